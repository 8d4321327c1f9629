"""What a run will select is compiled while its first networks are trained."""

import pytest

import bqnes_jax
from bqnes_jax.report import rehearse
from bqnes_jax.report.selections import RIVALS, list_selections
from bqnes_jax.runs import RunConfig
from tests.helpers import farm

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)
GIVEN = {"initial": 3, "budget": 8, "ensemble_size": 2, "algorithm": "posterior+corrective"}


@pytest.mark.slow
def test_what_was_rehearsed_is_not_compiled_again(tmp_path, compilations):
    benches = []
    family, data = farm.watched(tmp_path / "watched"), farm.data()
    (tmp_path / "watched").mkdir()
    given = {"family": family, "data": data, "out": tmp_path / "run", **GIVEN}
    run = bqnes_jax.search(**given, started=benches.append)
    assert len(benches) == 1
    run.valid_log_probs, run.record.history  # noqa: B018  (that is not selection)
    for method, size in [*list_selections(run.config, 8), *((one, 2) for one in RIVALS)]:
        run.ensemble(size, method)
    compilations()
    rehearse(run.config, benches[0])
    assert compilations() == 0, "it rehearses what is done later, in the same shapes"
    bqnes_jax.search(**given, started=benches.append)
    assert len(benches) == 1, "a run that has candidates has its programs, too"


def test_what_the_table_shows():
    config = RunConfig(algorithm="us+top", ensemble_size=4)
    asked = list_selections(config, 40)
    assert asked[0] == ("top", 1) and asked[-1] == ("top", 4) and ("logpool", 4) in asked
    assert list_selections(config, 40, sizes=(2, 50))[:2] == [("top", 1), ("logpool", 2)]
    assert len(asked) == len(set(asked)) == 7
