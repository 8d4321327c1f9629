"""The house: modules import only from what stands above them, and the core nothing heavy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bqnes_jax
from bqnes_jax import cli
from bqnes_jax.cli import commands

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

ROOT = Path(bqnes_jax.__file__).parent
PURE = (
    *("errors", "types", "registry", "identity", "compiling"),
    *("spaces", "kernels", "surrogates", "quadrature", "pooling", "metrics"),
    *("selection", "calibration", "candidates", "drivers", "elastic", "algorithms"),
)
NETWORKS = ("files", "parallel", "data", "models", "training", "families")
SHELL = (
    *("storage", "nats_bench", "tables", "runs", "studies", "report"),
    *("combination", "sklearn", "cli", "entry"),
)
FLOORS = (*PURE, *NETWORKS, *SHELL)
HEAVY = ("flax", "tensorflow_datasets", "tyro", "rich", "yaml", "matplotlib", "orbax", "sklearn")


def imports_of(path):
    """Yield the part of the package that each import statement of a file names, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno} imports relatively"
            whole = node.module == "bqnes_jax"
            names = [f"bqnes_jax.{a.name}" for a in node.names] if whole else [node.module]
        for name in names:
            package, *rest = name.split(".")
            if package == "bqnes_jax" and rest:
                yield rest[0], node.lineno


def test_every_module_has_its_place():
    parts = {path.stem for path in ROOT.glob("*.py")} | {
        path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()
    }
    assert parts - {"__init__"} == set(FLOORS)


def test_imports_go_upwards_only():
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for part, line in imports_of(path):
            if FLOORS.index(part) > FLOORS.index(own):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {part}")
    assert not wrong, "\n".join(wrong)


def test_the_command_line_alone_parses_arguments():
    users = [
        path.relative_to(ROOT).parts[0]
        for path in ROOT.rglob("*.py")
        if any(name in path.read_text() for name in ("import tyro", "from tyro"))
    ]
    assert set(users) == {"cli"}


@pytest.mark.parametrize("part", ["", ".kernels", ".algorithms"])
def test_the_core_imports_nothing_heavy(part):
    code = f"import sys, bqnes_jax{part}; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert loaded.returncode == 0, loaded.stderr
    loaded = {name.partition(".")[0] for name in loaded.stdout.split()}
    assert not loaded & set(HEAVY)
    assert ("jax" in loaded) == bool(part), "the package itself loads nothing"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], [], ["--version"]])
def test_what_commands_there_are_is_said_without_jax(arguments):
    """The command itself runs, so that nothing of what it imports is missed."""
    code = (
        "import atexit, sys\n"
        "from bqnes_jax.entry import main\n"
        "atexit.register(lambda: print('loaded:', *sorted(sys.modules)))\n"
        "sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said, _, loaded = done.stdout.rpartition("loaded:")
    assert said.startswith("bqnes " if "--version" in arguments else "usage: bqnes [-h] {run,")
    assert not {"jax", "numpy", "flax", "bqnes_jax.cli.commands"} & set(loaded.split())


def test_the_overview_is_what_the_commands_say_of_themselves(capsys):
    helps = []
    for show in (cli.main, commands.run):
        with pytest.raises(SystemExit):
            show(["--help"])
        helps.append(capsys.readouterr().out)
    assert helps[0] == helps[1] and "reselect" in helps[0]


def test_names_load_when_they_are_used():
    for name in dir(bqnes_jax):
        assert getattr(bqnes_jax, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        bqnes_jax.nothing  # noqa: B018
    assert bqnes_jax.__version__.count(".") == 2


def test_the_package_imports_without_what_only_posix_has():
    """As on Windows: no fcntl, no os.sysconf, no sched_getaffinity."""
    code = (
        "import asyncio, sys, os, importlib.abc\n"  # asyncio itself asks for what it has here
        "sys.modules['fcntl'] = None\n"
        "for name in ('sysconf', 'sysconf_names', 'sched_getaffinity'):\n"
        "    delattr(os, name) if hasattr(os, name) else None\n"
        "import bqnes_jax.cli.commands\n"
        "from bqnes_jax.parallel import device_memory\n"
        "assert device_memory() > 0\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
