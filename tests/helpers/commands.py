"""Commands of `bqnes`: here, with the programs that this process has compiled, or as processes."""

import contextlib
import io
import os
import subprocess
import sys
import warnings

from bqnes_jax.cli import main

_BQNES = [sys.executable, "-c", "import sys; from bqnes_jax.cli import main; sys.exit(main())"]


def call(folder, *arguments):
    """Return a command's code, and what it prints as output and beside it, given in a folder."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")  # not errors, as in a process of its own
        warnings.simplefilter("error", DeprecationWarning)  # as in all tests: pyproject.toml
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="matplotlib")
        code = main(list(map(str, arguments)))
    return code, out.getvalue(), err.getvalue()


def start(folder, *arguments, **environment):
    """Start a command as a process; a variable that is None is left out."""
    variables = os.environ | {"PYTHONPATH": os.getcwd()} | environment
    return subprocess.Popen(
        [*_BQNES, *map(str, arguments)],
        cwd=folder,
        env={name: value for name, value in variables.items() if value is not None},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, timeout=600):
    """Return a process's code, and what it has printed as output and beside it."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err
