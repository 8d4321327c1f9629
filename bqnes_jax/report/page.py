"""The page about a run, and the files of its figures."""

import datetime
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bqnes_jax.files import as_path, explain_writing, make_folder, sweep, write_whole
from bqnes_jax.report import html, plots
from bqnes_jax.report.again import how_to_do_it_again
from bqnes_jax.report.answers import Part, against_what, how_good, result
from bqnes_jax.report.cost import at_which_cost, prepare_timing
from bqnes_jax.report.html import Drawing
from bqnes_jax.report.members import why_these_members
from bqnes_jax.report.rivals import compare
from bqnes_jax.report.shift import under_shift
from bqnes_jax.report.table import check_trained, name_of
from bqnes_jax.report.trust import can_it_be_trusted, check_run, explain_differences
from bqnes_jax.report.worth import look_at_search, was_it_worth_it
from bqnes_jax.runs import Ensemble, Run

# The figures that are not in every report, or were in those of older versions: an older one's must
# not stay beside a new page.
_MAY_BE_OLD = re.compile(
    r"(architecture-\d+|evidence|surrogate|disagreement|by-class|shift-[a-z-]+|reliability-[a-z]+"
    r"|weights|likelihoods)\.(png|pdf)"
)


def write_report(run: Run, directory: str | os.PathLike[str] | None = None) -> Path:
    """Write a page about the saved ensemble of a run, and its figures; returns the path.

    Args:
        run: what to report.
        directory: where `report.html` and `plots/` go; by default that of the run.
    """
    directory = run.directory if directory is None else as_path(directory)
    check_trained(run)
    ensemble = run.saved_ensemble()
    with ThreadPoolExecutor(1) as meanwhile:  # compiles what predicts
        timing = meanwhile.submit(prepare_timing, ensemble)
        compared, searched = compare(ensemble), look_at_search(run)
        checks = check_run(ensemble, compared, searched)
        before = [how_good(ensemble, compared), against_what(ensemble, compared), under_shift(run)]
        after = [
            why_these_members(ensemble),
            was_it_worth_it(ensemble, searched),
            can_it_be_trusted(checks, explain_differences(ensemble, compared)),
            how_to_do_it_again(ensemble),
        ]
        cost = at_which_cost(ensemble, timing.result()())  # alone: nothing else is computed now
    parts = [part for part in (*before, cost, *after) if part is not None]
    looks = sum(check.passed is False for check in checks)
    content = html.page(
        f"{run.config.data_name}: ensemble by {name_of(ensemble)}",
        result(ensemble, compared, looks),
        facts_of(ensemble),
        [part.section for part in parts],
    )
    with explain_writing(f"report {directory}"):
        _write_plots(directory / "plots", drawings_of(parts))
        write_whole(directory / "report.html", content.encode())
    return directory / "report.html"


def drawings_of(parts: Sequence[Part]) -> list[Drawing]:
    """Return all figures of the parts of a page."""
    return [drawing for part in parts for drawing in part.drawings]


def facts_of(ensemble: Ensemble) -> dict[str, str]:
    """Return what a report is about."""
    run = ensemble.run
    record, config = run.record, run.config
    shape = "×".join(map(str, record.input_shape)) or "one number"
    failed = int(np.isnan(record.log_likelihoods).sum())
    trained = f"{len(record.archs)} networks" + (f", of which {failed} failed" if failed else "")
    if run.first_stage is not None:
        trained += f", of {len(run.first_stage.record.archs)} searched with shared weights"
    return {
        "Data set": f"{config.data_name} ({shape}, {int(record.classes)} classes)",
        "Points": f"{record.log_probs.shape[1]} to validate, {len(record.test_labels)} to test",
        "Family": f"{run.family.name} ({run.space.name})",
        "Trained": trained,
        "Seed": f"{config.seed}" + (f", {config.seeds} of weights" if config.seeds > 1 else ""),
        "Written": datetime.date.today().isoformat(),
    }


def _write_plots(directory: Path, drawings: Sequence[Drawing]) -> None:
    make_folder(directory)
    sweep(directory)
    forms = [(drawing, form) for drawing in drawings for form in ("png", "pdf")]
    written = {directory / f"{drawing.name}.{form}": (drawing, form) for drawing, form in forms}
    for path, (drawing, form) in written.items():
        write_whole(path, plots.to_bytes(drawing.figure, form), swept=True)
    for path in set(directory.iterdir()) - set(written):
        if _MAY_BE_OLD.fullmatch(path.name):
            path.unlink()
