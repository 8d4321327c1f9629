"""Commands about one run: `run`, `reselect`, `predict`, `report`."""

import dataclasses
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro
from jaxtyping import Float

from bqnes_jax.candidates import SearchConfig
from bqnes_jax.cli.shell import (
    cluster_of,
    complain,
    console,
    import_family,
    interruptible,
    join_hosts,
    prepare_jax,
    progress_bar,
    say,
    show_table,
    status_line,
    warn,
)
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import as_path, explain_writing, refuse_damaged, write_whole
from bqnes_jax.files.arrays import read_npy
from bqnes_jax.parallel import is_first
from bqnes_jax.runs import Ensemble, Metrics, Run, RunConfig, TaskConfig, search

if TYPE_CHECKING:  # matplotlib takes a second to import
    from bqnes_jax.report import Row

_COLUMNS = ["", "M", "accuracy", "ECE", "log-likelihood", "T", "ECE at T = 1", "log-lik. at T = 1"]


@dataclasses.dataclass(frozen=True)
class RunCommand:
    """Search, train, and select an ensemble; print how good it is, and write a report.

    The same command goes on with a run that was stopped; with a larger --budget it trains more.

    Args:
        preset: what the other flags are by default: tiny (digits, a minute on two cores), small
            (larger networks, ten minutes), paper (CIFAR-100, for accelerators), reference (as
            paper, with the choices of the published code).
        config: a YAML or JSON file with flags that differ from the preset, nested as their names
            are: 'budget: 60', 'train: {steps: 300}'.
        out: directory of the run, also s3://bucket/run or gs://bucket/run; by default
            runs/<data>-<algorithm>-seed<seed>, with the family and the preset before it if they are
            others.
        resume: go on with a run that is in that directory; otherwise it is refused.
        hosts: how many processes do this run together, each with the same command; by default what
            Slurm, Open MPI, a TPU pod or $JAX_NUM_PROCESSES says. They share --out.
        host: which of them this is, from 0; by default $JAX_PROCESS_ID.
        coordinator: where they meet, as ADDRESS:PORT of the first; by default
            $JAX_COORDINATOR_ADDRESS.
        workers: train on this many processes of a Dask cluster, which divide this machine among
            them, or on all workers of a scheduler: tcp://host:8786. The next training begins as
            soon as one ends; by default a search waits for each batch.
        replay: directory of a run with --workers, to be done again in the order that it had.
        algorithm: BQ-L, BQ-S, BQ-R, NES-RE, Random, or any "strategy+method": "us+corrective";
            with several --seeds also BQ-W (what BQ-S is then) and "Deep ensemble".
        ensemble_size: how many members the ensemble has.
        calibrate: whether one temperature follows the pool of the members; auto if that lowers the
            loss of validation points that were left out.
        prior: package.module:function of architectures that returns the logarithm of their prior;
            by default they are equally likely.
        seeds: with how many weight seeds an architecture can be trained: --seed and those after it.
            With more than one, a candidate is an architecture with one of them.
        evaluate: how candidates are evaluated: alone, each trained on its own; or shared, as parts
            of one network that is trained once, after which only a shortlist is trained alone.
        shortlist: how many are trained alone after a search with shared weights; by default twice
            as many as members.
        search: which architectures are tried.
        task: what is trained, and on what.
    """

    preset: Literal["tiny", "small", "paper", "reference"] = "tiny"
    config: Path | None = None
    out: Path | None = None
    resume: bool = True
    hosts: int | None = None
    host: int | None = None
    coordinator: str | None = None
    workers: str | None = None
    replay: Path | None = None
    algorithm: str = "BQ-L"
    ensemble_size: int = 3
    calibrate: Literal["auto", "on", "off"] = "auto"
    prior: str | None = None
    seeds: int = 1
    evaluate: Literal["alone", "shared"] = "alone"
    shortlist: int | None = None
    search: Annotated[SearchConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=SearchConfig
    )
    task: Annotated[TaskConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=TaskConfig
    )

    def __call__(self) -> None:
        """Run the search and write its report."""
        config = RunConfig(
            **{one.name: getattr(self.task, one.name) for one in dataclasses.fields(TaskConfig)},
            algorithm=self.algorithm,
            ensemble_size=self.ensemble_size,
            calibrate=self.calibrate,
            prior=self.prior,
            seeds=self.seeds,
            evaluate=self.evaluate,
            shortlist=self.shortlist,
            search=self.search,
        )
        parts = [] if self.preset == "tiny" else [self.preset]
        parts += [config.label, config.algorithm.replace(" ", "-"), f"seed{config.seed}"]
        parts += [] if config.seeds == 1 else [f"of{config.seeds}"]
        parts += [] if config.evaluate == "alone" else [config.evaluate]
        out = as_path(self.out or Path("runs", "-".join(parts)))
        if not self.resume and out.exists():
            raise BQNESError(f"{out} is there already; choose another --out, or give --resume.")
        join_hosts(self.hosts, self.host, self.coordinator)
        prepare_jax()
        interruptible(
            lambda: _run(config, out, self.workers, self.replay),
            f"Stopped. What was trained is in {out}; the same command goes on from there.",
        )


def _run(config: RunConfig, out: Path, workers: str | None, replay: Path | None) -> None:
    # matplotlib takes a second to import
    from bqnes_jax.report import rehearse, summary, warnings_of, write_report

    with (
        cluster_of(workers) as cluster,
        progress_bar("training") as progress,
        ThreadPoolExecutor(1) as meanwhile,
    ):
        elsewhere = {} if cluster is None else cluster._asdict()
        run = search(
            config,
            out=out,
            progress=progress,
            replay=replay,
            started=lambda bench: meanwhile.submit(rehearse, config, bench),
            **elsewhere,
        )
    if not is_first():
        return
    candidates = len(run.record.archs)
    trained = f"{candidates} candidates by {config.algorithm}"
    if run.first_stage is not None:
        searched = len(run.first_stage.record.archs)
        trained = f"{candidates} trained of {searched} by {config.algorithm} with shared weights"
    title = f"{config.data_name}: test data, {trained}"
    with status_line() as status:
        status("selecting ensembles")
        rows = summary(run)
    _show_metrics(rows, title)
    ensemble = run.saved_ensemble()
    _show_members(ensemble, warnings_of(ensemble, rows))
    worth, temperature = run.record.effective_sizes[-1], float(run.record.temperature)
    say(f"scale:  temperature {temperature:.4g}, posterior worth {worth:.1f} of {candidates}")
    with status_line() as status:
        status("writing the report")
        report = write_report(run)
    say(f"run:    {out}\nreport: {report}")


@dataclasses.dataclass(frozen=True)
class ReselectCommand:
    """Select another ensemble from the candidates of a run, without training anything.

    Args:
        run: directory of the run.
        method: restack (BQ-S), recombine (BQ-R), logpool (BQ-L), beam, stack, quadrature,
            corrective, caruana or top; by default that of the run.
        size: how many members; by default as many as in the run.
        calibrate: whether one temperature follows: auto, on or off; by default as in the run.
        save: make it the ensemble that `bqnes predict` and `bqnes report` use.
        family: package.module:family, if the run is not of a family of the package.
    """

    run: tyro.conf.Positional[Path]
    method: str | None = None
    size: int | None = None
    calibrate: Literal["auto", "on", "off"] | None = None
    save: bool = False
    family: str | None = None

    def __call__(self) -> None:
        """Select, and print what that is worth."""
        from bqnes_jax.report import row_of  # matplotlib takes a second to import

        prepare_jax()
        run = Run.load(self.run, family=import_family(self.family))
        ensemble = run.ensemble(self.size, self.method, calibrate=self.calibrate)
        single = run.ensemble(1, "top")
        rows = [row_of(single, "Best single"), row_of(ensemble, ensemble.method)]
        _show_metrics(rows, f"{run.config.data_name}: test data")
        if self.save:
            ensemble.save()
        _show_members(ensemble, ensemble.warnings())


@dataclasses.dataclass(frozen=True)
class PredictCommand:
    """Print what the ensemble of a run says of inputs, as CSV; and how right it is.

    Args:
        run: directory of the run.
        input: an .npy of inputs like those of training; images (n, height, width, channels) are
            from 0 to 255, as they come.
        show: the probabilities of all classes; or classes, the likeliest of them, with its
            probability (confidence) and the entropy of all in nats.
        labels: an .npy of the true classes, from 0: error rate, loss in nats per input and ECE are
            printed to the standard error, with 95 % intervals.
        out: an .npy or .csv to write to, instead of printing CSV.
        family: package.module:family, if the run is not of a family of the package.
    """

    run: tyro.conf.Positional[Path]
    input: Path
    show: Literal["probabilities", "classes"] = "probabilities"
    labels: Path | None = None
    out: Path | None = None
    family: str | None = None

    def __call__(self) -> None:
        """Predict, and print or write what was asked for."""
        if self.out is not None and self.out.suffix not in (".npy", ".csv"):
            raise BQNESError(f"out is {self.out}; it must end in .npy or .csv.")
        prepare_jax()
        inputs = _read_array(self.input, "inputs")
        labels = None if self.labels is None else _read_array(self.labels, "labels")
        run = Run.load(self.run, family=import_family(self.family))
        probabilities = np.asarray(run.saved_ensemble().predict(inputs))
        score = None if labels is None else _score(probabilities, labels)
        shown, csv = probabilities, _csv(probabilities)
        if self.show == "classes":
            shown = summarise(probabilities)
            lines = [f"{int(c)},{sure:.6f},{spread:.6f}" for c, sure, spread in shown.tolist()]
            csv = "\n".join(["class,confidence,entropy", *lines]) + "\n"
        if self.out is None:
            console().print(csv, end="", markup=False, soft_wrap=True)
        else:
            content = io.BytesIO(csv.encode())
            if self.out.suffix == ".npy":
                np.save(content := io.BytesIO(), shown)
            with explain_writing(str(self.out)):
                write_whole(self.out, content.getvalue())
        if score is not None:
            complain(score)


def summarise(
    probabilities: Float[np.ndarray, "n classes"],
) -> Float[np.ndarray, "n 3"]:
    """Return the likeliest class of each point, its probability, and the entropy of all in nats.

    Example:
        >>> summarise(np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])).round(3).tolist()
        [[0.0, 0.5, 0.693], [2.0, 1.0, 0.0]]
    """
    positive = np.where(probabilities > 0, probabilities, 1)
    entropy = np.abs((probabilities * np.log(positive)).sum(axis=1))
    columns = probabilities.argmax(axis=1), probabilities.max(axis=1), entropy
    return np.stack(columns, axis=1, dtype=float)


def _score(probabilities: Float[np.ndarray, "n classes"], labels: np.ndarray) -> str:
    """Say how right predictions are; refuse labels that are not theirs."""
    from bqnes_jax.report.uncertainty import measure_each  # matplotlib takes a second to import

    count, classes = probabilities.shape
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise BQNESError(
            f"labels have shape {labels.shape} and type {labels.dtype}; they must be {count} whole "
            "numbers, one for each input."
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise BQNESError(
            f"labels are from {labels.min()} to {labels.max()}; they must be from 0 to "
            f"{classes - 1}."
        )
    with np.errstate(divide="ignore"):
        log_probs = np.log(probabilities.astype(float))
    (found,) = measure_each([log_probs[None]], labels.astype(int))
    error = [100 * one for one in found.error]
    return (
        f"error rate {error[0]:.2f} % [{error[1]:.2f}, {error[2]:.2f}], "
        f"loss {found.loss.value:.4f} [{found.loss.low:.4f}, {found.loss.high:.4f}] nats per "
        f"input, ECE {found.ece.value:.4f} [{found.ece.low:.4f}, {found.ece.high:.4f}] "
        f"over {count} inputs"
    )


@dataclasses.dataclass(frozen=True)
class ReportCommand:
    """Write the report of a run again: one HTML file, and its plots as PNG and PDF.

    Args:
        run: directory of the run.
        family: package.module:family, if the run is not of a family of the package.
    """

    run: tyro.conf.Positional[Path]
    family: str | None = None

    def __call__(self) -> None:
        """Write the report, and say where it is."""
        from bqnes_jax.report import write_report

        prepare_jax()
        say(str(write_report(Run.load(self.run, family=import_family(self.family)))))


def _show_metrics(rows: Sequence["Row"], title: str) -> None:
    """Print how good ensembles are, and how good without the temperature after pooling."""
    lines = [
        [
            row.name,
            row.members,
            f"{row.metrics.accuracy:.2%}",
            *_fit_texts(row.metrics),
            f"{row.temperature:.2f}",
            *_fit_texts(row.uncalibrated),
        ]
        for row in rows
    ]
    show_table(_COLUMNS, lines, title=title)


def _fit_texts(metrics: Metrics) -> tuple[str, str]:
    return f"{metrics.ece:.4f}", f"{metrics.log_likelihood:.1f}"


def _show_members(ensemble: Ensemble, warnings: Sequence[str]) -> None:
    """Print the members, and all warnings in one line."""
    for text, weight in zip(ensemble.texts, ensemble.weights, strict=True):
        say(f"{weight:6.3f}  {text}")
    warn(warnings)


def _read_array(path: Path, what: str) -> np.ndarray:
    remedy = f"save the {what} as one with numpy.save."
    with refuse_damaged(path, "is not an .npy of numbers", remedy=remedy, absent="is not there."):
        return read_npy(path)


def _csv(probabilities: np.ndarray) -> str:
    header = ",".join(f"class_{i}" for i in range(probabilities.shape[1]))
    lines = [",".join(f"{p:.6f}" for p in row) for row in probabilities.tolist()]
    return "\n".join([header, *lines]) + "\n"
