"""Commands about one run: `run`, `reselect`, `predict`, `report`."""

import dataclasses
import functools
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro

from bqnes_jax.arrays import read_npy
from bqnes_jax.cli.shell import (
    console,
    interruptible,
    join_hosts,
    prepare_jax,
    progress_bar,
    say,
    show_table,
)
from bqnes_jax.config import PRESETS, RunConfig
from bqnes_jax.devices import is_first
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import damaged_means_refused, writing
from bqnes_jax.runs import Metrics, Run, search

_COLUMNS = ["", "M", "accuracy", "ECE", "log-likelihood"]


@dataclasses.dataclass(frozen=True)
class RunCommand:
    """Search, train, and select an ensemble; print how good it is, and write a report.

    The same command goes on with a run that was stopped.

    Args:
        preset: what the other flags are by default: tiny (digits, two minutes on two cores), small
            (larger networks, ten minutes), paper (CIFAR-100, for accelerators).
        config: a YAML or JSON file with fields that differ from the preset, nested as the config in
            a report is: 'search: {budget: 60}'.
        out: directory of the run; by default runs/<dataset>-<algorithm>-seed<seed>, with the space
            and the preset before it if they are others.
        resume: go on with a run that is in that directory; otherwise it is refused.
        pretrained: the directory `supernet` of another slimmable run with the same seed, data and
            supernet, which is not trained again then.
        hosts: how many processes do this run together, each with the same command; by default what
            Slurm, Open MPI, a TPU pod or $JAX_NUM_PROCESSES says. They share --out.
        host: which of them this is, from 0; by default $JAX_PROCESS_ID.
        coordinator: where they meet, as ADDRESS:PORT of the first; by default
            $JAX_COORDINATOR_ADDRESS.
        fields: of the run.
    """

    preset: Literal["tiny", "small", "paper"] = "tiny"
    config: Path | None = None
    out: Path | None = None
    resume: bool = True
    pretrained: Path | None = None
    hosts: int | None = None
    host: int | None = None
    coordinator: str | None = None
    fields: Annotated[RunConfig, tyro.conf.arg(name="")] = PRESETS["tiny"]

    def __call__(self) -> None:
        """Do it."""
        config = self.fields
        parts = [Path(config.dataset).stem, config.algorithm, f"seed{config.seed}"]
        parts = [*([self.preset] if self.preset != "tiny" else []), *parts]
        parts = [*([config.space] if config.space != "nats" else []), *parts]
        out = self.out or Path("runs", "-".join(parts))
        if self.pretrained is not None and config.space != "slimmable":
            raise BQNESError("pretrained is about a supernet; give --space slimmable, too.")
        if not self.resume and out.exists():
            raise BQNESError(f"{out} is there already; choose another --out, or give --resume.")
        join_hosts(self.hosts, self.host, self.coordinator)
        prepare_jax()
        interruptible(
            lambda: self._run(config, out),
            f"Stopped. What was trained is in {out}; the same command goes on from there.",
        )

    def _run(self, config: RunConfig, out: Path) -> None:
        from bqnes_jax.report import summary, write_report  # matplotlib takes a second to import

        with progress_bar("training") as progress:
            of_supernet = functools.partial(progress, what="training the supernet")
            run = search(config, out, progress, of_supernet, supernet=self.pretrained)
        if not is_first():
            return
        candidates = len(run.found.archs)
        title = f"{config.dataset}: test data, {candidates} candidates by {config.algorithm}"
        _show_metrics([(row.name, row.size, row.metrics) for row in summary(run)], title)
        _show_members(run)
        say(f"run:    {out}\nreport: {write_report(run)}")


@dataclasses.dataclass(frozen=True)
class ReselectCommand:
    """Select another ensemble from the candidates of a run, without training anything.

    Args:
        run: directory of the run.
        method: restack (BQ-S), recombine (BQ-R), beam, stack, corrective or top; by default that of
            the run.
        size: how many members; by default as many as in the run.
        save: make it the ensemble that `bqnes predict` and `bqnes report` use.
    """

    run: tyro.conf.Positional[Path]
    method: str | None = None
    size: int | None = None
    save: bool = False

    def __call__(self) -> None:
        """Do it."""
        prepare_jax()
        run = Run.load(self.run)
        ensemble = run.ensemble(self.size, self.method)
        single = run.ensemble(1, "top")
        rows = [
            ("Best single", 1, single.metrics),
            (ensemble.method, self.size or ensemble.size, ensemble.metrics),
        ]
        _show_metrics(rows, f"{run.config.dataset}: test data")
        if self.save:
            ensemble.save()
        _show_members(run, ensemble)


@dataclasses.dataclass(frozen=True)
class PredictCommand:
    """Print class probabilities of images by the ensemble of a run.

    Args:
        run: directory of the run.
        input: an .npy of images (n, height, width, channels), from 0 to 255 as they come.
        out: an .npy or .csv to write to, instead of printing CSV.
    """

    run: tyro.conf.Positional[Path]
    input: Path
    out: Path | None = None

    def __call__(self) -> None:
        """Do it."""
        if self.out is not None and self.out.suffix not in (".npy", ".csv"):
            raise BQNESError(f"out is {self.out}; it must end in .npy or .csv.")
        prepare_jax()
        images = _read_images(self.input)
        probabilities = np.asarray(Run.load(self.run).saved_ensemble().predict(images))
        if self.out is None:
            console().print(_csv(probabilities), end="", markup=False, soft_wrap=True)
            return
        with writing(str(self.out)):
            if self.out.suffix == ".npy":
                np.save(self.out, probabilities)
            else:
                self.out.write_text(_csv(probabilities))


@dataclasses.dataclass(frozen=True)
class ReportCommand:
    """Write the report of a run again: one HTML file, and its plots as PNG and PDF.

    Args:
        run: directory of the run.
    """

    run: tyro.conf.Positional[Path]

    def __call__(self) -> None:
        """Do it."""
        from bqnes_jax.report import write_report

        prepare_jax()
        say(str(write_report(Run.load(self.run))))


def _show_metrics(rows: list[tuple[str, int, Metrics]], title: str) -> None:
    show_table(
        _COLUMNS,
        [
            [name, str(size), f"{m.accuracy:.2%}", f"{m.ece:.4f}", f"{m.log_likelihood:.1f}"]
            for name, size, m in rows
        ],
        title=title,
    )


def _show_members(run: Run, ensemble=None) -> None:
    ensemble = ensemble or run.saved_ensemble()
    for text, weight in zip(ensemble.texts, ensemble.weights, strict=True):
        say(f"{weight:6.3f}  {text}")


def _read_images(path: Path) -> np.ndarray:
    remedy = "save the images as one with numpy.save."
    with damaged_means_refused(path, "is not an .npy of numbers", remedy, "is not there."):
        return read_npy(path)


def _csv(probabilities: np.ndarray) -> str:
    header = ",".join(f"class_{i}" for i in range(probabilities.shape[1]))
    lines = [",".join(f"{p:.6f}" for p in row) for row in probabilities.tolist()]
    return "\n".join([header, *lines]) + "\n"
