"""All commands: what is parsed, and what follows an error."""

import argparse
import dataclasses
import io
import os
import sys
from typing import Annotated, Any, Union

import tyro

from bqnes_jax.candidates import SearchConfig
from bqnes_jax.cli.combine import CombineCommand
from bqnes_jax.cli.compare import CompareCommand, TabulateCommand, task_of
from bqnes_jax.cli.data import FamiliesCommand, ListCommand, PrepareCommand
from bqnes_jax.cli.nats import CheckCommand, ImportCommand
from bqnes_jax.cli.overview import DESCRIPTION, GROUPS
from bqnes_jax.cli.robustness import RobustnessCommand
from bqnes_jax.cli.run import PredictCommand, ReportCommand, ReselectCommand, RunCommand
from bqnes_jax.cli.shell import complain, stop, warnings_in_a_line
from bqnes_jax.errors import BQNESError
from bqnes_jax.runs import RunConfig, TaskConfig, preset_config
from bqnes_jax.runs.fields import fit_value, read_fields
from bqnes_jax.runs.presets import configure_from, search_from


def run(arguments: list[str]) -> int:
    """Run a command; returns 0, 1 after an error, 2 after a wrong flag, 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a pipe may know less than UTF-8
    debug = "--debug" in arguments
    arguments = [_rename_space(argument) for argument in arguments if argument != "--debug"]
    try:
        command = tyro.cli(
            _commands(arguments),
            prog="bqnes",
            description=DESCRIPTION,
            args=arguments,
            config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.AvoidSubcommands),
        )
        with warnings_in_a_line():
            command()
    except BQNESError as error:
        if debug:
            raise
        complain(f"error: {error}")
        return stop(1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        complain(f"error: {reason} (unexpected; --debug shows where it came from)")
        return stop(1)
    return 0


_WITH_CONFIG: dict[str, type] = {
    "run": RunCommand,
    "compare": CompareCommand,
    "tabulate": TabulateCommand,
}


def _flags_in(kind: type, written: dict, where: str) -> tuple[dict[str, Any], dict]:
    """Return flags of a command that a config file has, and its other fields.

    The fields of a run are the config's own.
    """
    own = {field.name: field.default for field in dataclasses.fields(kind)}
    for name in ("config", "search", "task"):
        own.pop(name, None)
    if kind is RunCommand:
        for field in dataclasses.fields(RunConfig):
            own.pop(field.name, None)
    flags, others = {}, {}
    for name, value in written.items():
        if name not in own:
            others[name] = value
            continue
        value = str(value) if name == "workers" and type(value) is int else value
        flags[name] = fit_value(kind, name, value, own[name], where=f"{where}: {name}")
    return flags, others


def _rename_space(argument: str) -> str:
    """Let a family be chosen by the space of its networks, too: --space darts."""
    flag, *value = argument.split("=", 1)
    return "=".join(["--family", *value]) if flag == "--space" else argument


def _commands(arguments: list[str]) -> Any:
    """Return the type of all commands, with the defaults of the preset and file that are given."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--preset", "--config", "--family", "--data"):
        parser.add_argument(flag, nargs="?")
    known, _ = parser.parse_known_args(arguments)
    written = read_fields(known.config) if known.config else {}
    where = known.config or ""
    kind = _WITH_CONFIG.get(next(iter(arguments), ""), RunCommand)
    flags, written = _flags_in(kind, written, where)
    preset = known.preset or flags.get("preset", RunCommand.preset)
    flags["preset"] = preset
    given = {name: getattr(known, name) for name in ("family", "data")}
    chosen = {name: value for name, value in given.items() if value is not None}
    config = configure_from(preset, written, where, **chosen)
    task = task_of(config)
    # A comparison has the paper's budget whatever the preset, but its temperature; the choices of
    # the published code are about the search itself.
    own = preset_config(preset).search
    search = own if preset == "reference" else SearchConfig(temperature=own.temperature)
    if kind is CompareCommand:
        search = search_from(search, written, where)
    beside = {"search", *(field.name for field in dataclasses.fields(TaskConfig))}
    names = [field.name for field in dataclasses.fields(RunConfig)]
    of_run = {name: getattr(config, name) for name in names if name not in beside}

    def with_default(command: type, name: str, **default: object):
        default |= flags if command is kind else {}
        return Annotated[command, tyro.conf.subcommand(name, default=command(**default))]

    def plain(kind: object, name: str, description: str | None = None):
        return Annotated[kind, tyro.conf.subcommand(name, description=description)]

    data = Union[plain(ListCommand, "list"), plain(PrepareCommand, "prepare")]  # noqa: UP007
    nats = Union[plain(ImportCommand, "import"), plain(CheckCommand, "check")]  # noqa: UP007
    return Union[  # noqa: UP007
        with_default(RunCommand, "run", task=task, search=config.search, **of_run),
        with_default(CompareCommand, "compare", task=task, search=search),
        plain(CombineCommand, "combine"),
        plain(ReselectCommand, "reselect"),
        plain(PredictCommand, "predict"),
        plain(ReportCommand, "report"),
        plain(RobustnessCommand, "robustness"),
        with_default(TabulateCommand, "tabulate", task=task),
        plain(data, "data", GROUPS["data"]),
        plain(nats, "nats", GROUPS["nats"]),
        plain(FamiliesCommand, "families"),
    ]
