"""The table of a report: its rows, their names, and what is said of them."""

import pytest

from bqnes_jax import report
from bqnes_jax.errors import BQNESError
from bqnes_jax.report import summary, write_report
from bqnes_jax.types import Status
from tests.helpers.reported import COUNT, Page, make_run

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


@pytest.mark.slow
def test_the_table(tmp_path):
    run = make_run(tmp_path)
    names = ("BQ-L", "BQ-S", "BQ-R", "beam", "corrective")
    for sizes in ((), (3, 5)):
        rows = summary(run, sizes)
        assert [(row.name, row.size) for row in rows] == [
            ("Best single", 1),
            *((name, size) for size in sizes or (3,) for name in names),
        ]
    assert rows[0].metrics == run.ensemble(1, "top").metrics
    assert rows[3].metrics == run.ensemble(3, "recombine").metrics


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "size", "names"),
    [
        (
            "NES-RE",
            3,
            ["evolution+logpool", "evolution+restack", "evolution+recombine", "beam", "corrective"],
        ),
        ("BQ-R", 2, ["BQ-L", "BQ-S", "BQ-R", "beam", "corrective"]),
        (
            "ei+stack",
            2,
            ["ei+logpool", "ei+restack", "ei+recombine", "beam", "corrective", "ei+stack"],
        ),
    ],
)
def test_names_in_the_table(tmp_path, algorithm, size, names):
    rows = summary(make_run(tmp_path, algorithm=algorithm, size=size))
    assert [(row.name, row.size) for row in rows[1:]] == [(name, size) for name in names]


@pytest.mark.slow
def test_what_went_differently_in_other_rows_is_said(tmp_path, no_files):
    """Each row says so, by its name."""
    run = make_run(tmp_path)
    rows, ensemble = report.summary(run, sizes=(3, COUNT)), run.saved_ensemble()
    statuses = {(row.name, row.size): row.status for row in rows}
    assert statuses["BQ-R", COUNT] == run.ensemble(COUNT, "recombine").status
    odd = [row._replace(status=Status.INFEASIBLE) for row in rows]
    (said,) = set(report.warnings_of(ensemble, odd)) - set(ensemble.warnings())
    assert said.endswith(Status.INFEASIBLE.explain()) and "BQ-R 3, beam 3" in said
    assert "BQ-S 3" not in said, "of the ensemble itself it is said already"


@pytest.mark.slow
def test_a_row_says_how_many_members_are_in_use(tmp_path, no_files):
    """And no ensemble has more members than there are candidates."""
    run = make_run(tmp_path)
    rows = report.summary(run, sizes=(3, COUNT, COUNT + 1))
    assert {row.size for row in rows} == {1, 3, COUNT}
    for row in rows:
        found = f"{row.used} of {row.size}" if row.used < row.size else str(row.size)
        assert row.members == found
    assert any(row.used < row.size for row in rows)
    run = make_run(tmp_path / "large", size=COUNT)
    used = len(run.ensemble(COUNT, "restack").members)
    assert f"BQ-S with {used} members gets" in Page(write_report(run)).said
    for size in (COUNT + 1, 10**9):
        with pytest.raises(BQNESError, match=f"size is {size}; it must be .* from 1 to {COUNT}"):
            run.ensemble(size)
