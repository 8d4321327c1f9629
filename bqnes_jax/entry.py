"""Where the command `bqnes` starts: it can be stopped before anything heavy is imported.

The imports take seconds, and nothing is at stake meanwhile: Ctrl-C ends the process at once. The
first tenth of a second, in which Python itself starts, is out of reach.
"""

import atexit
import os
import signal
import sys


def main() -> int:
    """Run the command; returns its code, 130 after Ctrl-C and 143 after SIGTERM."""
    _end_at_once_on_signals()
    atexit.register(_ignore_signals)  # the first one registered runs last
    _silence_xla()
    from bqnes_jax.cli import main as run

    try:
        return run(ready=_raise_on_signals)
    finally:
        _end_at_once_on_signals()  # while the interpreter tidies up


def _silence_xla() -> None:
    """Keep XLA from printing that it compiles slowly, which tells nobody what to do.

    Its errors are exceptions besides. $TF_CPP_MIN_LOG_LEVEL=0 shows everything.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def _end_at_once_on_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_at_once)


def _ignore_signals() -> None:
    """Let the command's code stand: Python restores the system's handlers as it ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _raise_on_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)


def _end_at_once(number: int, _: object) -> None:
    os._exit(128 + number)


def _terminate(number: int, _: object) -> None:
    sys.exit(128 + number)  # an exception, so that what is open is closed
