"""The command `bqnes robustness`: the ensemble of a run under dataset shift."""

import dataclasses
from pathlib import Path

import numpy as np
import tyro

from bqnes_jax.cli.shell import (
    import_family,
    interruptible,
    prepare_jax,
    progress_bar,
    say,
    show_table,
)
from bqnes_jax.data import CORRUPTIONS
from bqnes_jax.runs import Run
from bqnes_jax.studies import robustness
from bqnes_jax.studies.robustness import PAPER_SEVERITIES, Robustness


@dataclasses.dataclass(frozen=True)
class RobustnessCommand:
    """Test the ensemble of a run on corrupted images, beside its best single network.

    Members and weights stay as they were found on clean validation images. Prints averages over
    corruptions by severity, and each corruption; the report of the run shows both.

    Args:
        run: directory of the run.
        corruptions: which; by default all 19 of Hendrycks and Dietterich.
        severities: from 1 to 5; by default those of the paper.
        published: a folder of published corrupted images, CIFAR-10-C or cifar10_corrupted of TFDS,
            instead of corrupting the test images here.
        family: package.module:family, if the run is not of a family of the package.
    """

    run: tyro.conf.Positional[Path]
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    severities: tuple[int, ...] = PAPER_SEVERITIES
    published: Path | None = None
    family: str | None = None

    def __call__(self) -> None:
        """Measure, print the table, and write the report again."""
        prepare_jax()
        run = Run.load(self.run, family=import_family(self.family))
        farewell = f"Stopped. What was measured is in {self.run}; the same command goes on."
        interruptible(lambda: self._study(run), farewell)

    def _study(self, run: Run) -> None:
        from bqnes_jax.report import write_report  # matplotlib takes a second to import

        with progress_bar("conditions") as progress:
            path = None if self.published is None else str(self.published)
            study = robustness.of_run(
                run, self.corruptions, severities=self.severities, path=path, progress=progress
            )
        _show(study, run)
        say(f"report: {write_report(run)}")


def _show(study: Robustness, run: Run) -> None:
    columns = ["accuracy", "ECE", "log-likelihood", "single: accuracy", "ECE", "log-likelihood"]
    means = np.concatenate([study.clean[:, None], study.by_severity()], axis=1)
    rows = [[str(s or "clean"), *_texts(means[:, i])] for i, s in enumerate((0, *study.severities))]
    title = f"{run.config.data_name}: test data, averaged over {len(study.corruptions)} corruptions"
    show_table(["severity", *columns], rows, title=title)
    each = study.shifted.mean(axis=2)
    rows = [[name, *_texts(each[:, i])] for i, name in enumerate(study.corruptions)]
    show_table(["corruption", *columns], rows, title="each, averaged over its severities")


def _texts(metrics: np.ndarray) -> list[str]:
    """Write the metrics of the ensemble and of the single network."""
    return [
        text
        for accuracy, ece, log_likelihood in metrics
        for text in (f"{accuracy:.2%}", f"{ece:.4f}", f"{log_likelihood:.1f}")
    ]
