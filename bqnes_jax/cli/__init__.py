"""The command `bqnes`."""

import sys
from collections.abc import Callable

SHELLS = ("bash", "zsh", "tcsh")


def main(arguments: list[str] | None = None, *, ready: Callable[[], None] = lambda: None) -> int:
    """Run a command; returns 0, 1 after an error, 2 after a wrong flag, 130 after Ctrl-C.

    What says only which commands there are loads no JAX; `ready` is called when the imports of the
    others, which take seconds, are done.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["--completion"]:
        if len(arguments) != 2 or arguments[1] not in SHELLS:
            print(f"error: --completion needs a shell: {', '.join(SHELLS)}.", file=sys.stderr)
            return 2
        arguments[0] = "--tyro-print-completion"
    if set(arguments) <= {"--help", "-h", "--version", "--debug"}:
        from bqnes_jax.cli.overview import show

        return show(arguments)
    from bqnes_jax.cli.commands import run

    ready()
    return run(arguments)
