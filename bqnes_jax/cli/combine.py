"""The command `bqnes combine`: an ensemble of models that exist already."""

import dataclasses
from pathlib import Path
from typing import Literal

import tyro

from bqnes_jax.cli.shell import prepare_jax, say, warn
from bqnes_jax.combination import combine
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import explain_writing, write_json
from bqnes_jax.studies.predictions import read_predictions


@dataclasses.dataclass(frozen=True)
class CombineCommand:
    """Make a small ensemble of models that exist already, from files of what they predict.

    Prints a table beside what others would do, and writes a report and the ensemble.

    Args:
        predictions: an .npz with the arrays valid (models, points, classes) and valid_labels, and
            maybe test, test_labels and names; or a directory with a folder valid (and test) that
            has an .npy or .csv for each model, and valid_labels.csv (and test_labels.csv).
        size: number of members, at most that of models; by default 3, or all if they are fewer.
        method: of selection, such as logpool, corrective, beam, stack or caruana.
        inputs: what the arrays hold.
        calibrate: whether a temperature follows; auto if it lowers the loss of left-out points.
            With members each model has one of its own, before any is selected.
        costs: what each model costs to run, for the report.
        out: directory for report.html and ensemble.json; by default combination-NAME.
    """

    predictions: tyro.conf.Positional[Path]
    size: int | None = None
    method: str = "logpool"
    inputs: Literal["probabilities", "logits", "log_probabilities"] = "probabilities"
    calibrate: Literal["auto", "on", "off", "members"] = "auto"
    costs: tuple[float, ...] | None = None
    out: Path | None = None

    def __call__(self) -> None:
        """Read, combine, print and write."""
        given = read_predictions(self.predictions)
        out = Path(f"combination-{self.predictions.stem}") if self.out is None else self.out
        if out.exists() and not out.is_dir():
            raise BQNESError(f"out is {out}, which is a file; give a directory.")
        prepare_jax()
        found = combine(
            given["valid"],
            given.get("valid_labels"),
            size=self.size,
            method=self.method,
            inputs=self.inputs,
            costs=self.costs,
            calibrate=self.calibrate,
            names=given.get("names"),
            test=given.get("test"),
            test_labels=given.get("test_labels"),
        )
        say(found.table())
        warn(found.warnings)
        with explain_writing(f"report {out}"):
            out.mkdir(parents=True, exist_ok=True)
            write_json(out / "ensemble.json", found.as_dict())
        say(f"report: {found.report(out / 'report.html')}")
