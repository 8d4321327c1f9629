"""Ensembles of models that exist already: what is read, what comes out, what is refused."""

import re

import numpy as np
import pytest

import bqnes_jax
from bqnes_jax import kernels
from bqnes_jax.calibration import fit_temperature
from bqnes_jax.cli import main
from bqnes_jax.errors import BQNESError
from bqnes_jax.pooling import apply_temperature
from bqnes_jax.report.figures import pareto_front
from bqnes_jax.studies.models import check_models
from bqnes_jax.studies.predictions import read_predictions


def softmax(logits):
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def drawn(models=4, points=60, classes=3, seed=0):
    """Draw logits of models that are right more often than not, each sure in its own way."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, points)
    logits = random.normal(size=(models, points, classes))
    logits[:, np.arange(points), labels] += 1.5
    return logits * np.linspace(0.5, 3, models)[:, None, None], labels


LOGITS, LABELS = drawn()
VALID = softmax(LOGITS)
NEW_LOGITS, NEW_LABELS = drawn(seed=1)
NEW = softmax(NEW_LOGITS)


def pooled(combination, probabilities):
    """Pool by the formulas, in double precision."""
    members = probabilities[combination.members].astype(float)
    if combination.pool == "mixture":
        said = np.einsum("m,mkc->kc", combination.weights, members)
    else:
        floored = np.maximum(np.log(members), -12)
        said = softmax(np.einsum("m,mkc->kc", combination.weights, floored))
    return softmax(np.log(said) / combination.temperature)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["logpool", "beam"])
def test_predictions_are_those_of_the_formulas(method):
    found = bqnes_jax.combine(VALID, LABELS, size=2, method=method)
    assert np.allclose(found.predict(NEW), pooled(found, NEW), atol=1e-5)
    assert np.array_equal(found.predict(NEW), found.predict(NEW[found.members]))
    every = bqnes_jax.combine(VALID[[3, 0]], LABELS, size=2, method=method, calibrate="off")
    assert every.members.tolist() == [0, 1]  # so that all models and all members are the same
    with pytest.raises(BQNESError, match=r"new has shape \(3, 60, 3\)"):
        found.predict(NEW[:3])
    with pytest.raises(BQNESError, match="new holds NaN"):
        found.predict(np.full_like(NEW, np.nan))


@pytest.mark.slow
def test_what_is_measured_is_what_the_metrics_say(precision):
    given = {"test": NEW, "test_labels": NEW_LABELS}
    found = bqnes_jax.combine(VALID, LABELS, size=2, method="beam", **given)
    said = found.predict(NEW)
    loss, ece, accuracy, _ = found.metrics
    true = said[np.arange(60), NEW_LABELS]
    assert np.isclose(loss.estimate, -np.log(true).mean(), rtol=1e-4)
    assert np.isclose(accuracy.estimate, (said.argmax(1) == NEW_LABELS).mean())
    assert loss.low < loss.estimate < loss.high and 0 <= ece.low <= ece.high <= 1
    names = [row.name for row in found.measured.rows]
    assert names[0] == "beam" and {"best single", "caruana", "stack", "all equal"} <= set(names)
    everyone = found.measured.rows[-1].metrics.loss.estimate
    mean = NEW.mean(axis=0)[np.arange(60), NEW_LABELS]
    assert np.isclose(everyone, -np.log(mean).mean(), rtol=1e-4)
    single = found.measured.rows[names.index("best single")].metrics.loss.estimate
    best = np.log(VALID[:, np.arange(60), LABELS]).mean(axis=1).argmax()
    losses = -np.log(NEW[:, np.arange(60), NEW_LABELS])
    assert np.isclose(single, losses[best].mean(), rtol=1e-4)
    assert "60 test points" in str(found) and "Combination(beam" in repr(found)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_every_kind_of_input_says_the_same():
    logs = np.log(VALID)
    for inputs, given in (("logits", LOGITS), ("log_probabilities", logs)):
        models = check_models(given, LABELS, inputs=inputs)
        assert np.allclose(models.valid, logs, atol=1e-9) and not models.notes
    half = check_models(VALID.round(2).astype(np.float16), LABELS)
    assert np.allclose(np.exp(half.valid).sum(axis=-1), 1, atol=1e-6)
    assert len(half.notes) == 1 and "divided by its sums" in half.notes[0]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_failed_models_are_never_members():
    valid = VALID.copy()
    valid[1, 7, 0] = np.nan
    found = bqnes_jax.combine(valid, LABELS, size=4, method="caruana", names=list("abcd"))
    assert 1 not in found.members and "b" not in found.names
    assert "NaN or infinity somewhere: b." in str(found)
    with pytest.raises(BQNESError, match="every model says NaN"):
        bqnes_jax.combine(np.full_like(valid, np.nan), LABELS)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_probabilities_of_the_true_class_are_enough_for_mixtures():
    true = VALID[:, np.arange(60), LABELS]
    whole = bqnes_jax.combine(VALID, LABELS, size=2, method="corrective", calibrate="off")
    found = bqnes_jax.combine(true, size=2, method="corrective")
    assert np.array_equal(found.members, whole.members)
    assert np.allclose(found.weights, whole.weights, atol=1e-5)
    assert np.isnan(found.metrics.accuracy.estimate) and found.metrics.loss.estimate > 0
    with pytest.raises(BQNESError, match="all classes"):
        found.predict(VALID)
    with pytest.raises(BQNESError, match="'logpool', which needs the probabilities of all"):
        bqnes_jax.combine(true)
    with pytest.raises(BQNESError, match="logits of the true class alone"):
        bqnes_jax.combine(true, method="beam", inputs="logits")


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("given", "labels", "says"),
    [
        (VALID.transpose(1, 0, 2), LABELS, r"axis 0 is the points: pass valid.transpose\(1, 0, 2"),
        (VALID.transpose(0, 2, 1), LABELS, r"axis 2 is the points: pass valid.transpose\(0, 2, 1"),
        (VALID, LABELS[:50], "axis 1 has 60 entries for 50 labels"),
        (softmax(drawn(2)[0]).transpose(2, 1, 0), LABELS, "axis 0 may be the classes"),
        (softmax(drawn(3)[0]).transpose(2, 1, 0), LABELS, "over axis 0 they do"),
        (VALID, LABELS - 1, "valid_labels hold -1"),
        (VALID, LABELS + 0.5, "must be whole numbers"),
        (VALID, None, "valid_labels is None"),
        (LOGITS, LABELS, "probabilities are not negative"),
        (VALID * 2, LABELS, "sums to 2 over its last axis"),
        (VALID[0], LABELS, r"pass valid\[None\]"),
        (VALID[0, 0], LABELS, "it must hold numbers"),
        (VALID[:0], LABELS, "it must hold numbers"),
    ],
)
def test_a_wrong_shape_is_named(given, labels, says):
    with pytest.raises(BQNESError, match=says):
        check_models(given, labels)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_other_wrong_arguments_are_named():
    for given, says in (
        ({"test": VALID[:2], "test_labels": LABELS}, "the same models"),
        ({"test_labels": LABELS}, "without test"),
        ({"names": ["a"]}, "names has 1 entries"),
        ({"inputs": "scores"}, "inputs is 'scores'"),
        ({"calibrate": "yes"}, "calibrate is 'yes'"),
        ({"costs": [1.0, 2.0, 3.0]}, "costs has shape"),
        ({"costs": [1.0, 2.0, 3.0, -1.0]}, "costs hold a number"),
        ({"size": 0}, "size is 0"),
    ):
        with pytest.raises(BQNESError, match=says):
            bqnes_jax.combine(VALID, LABELS, **{"method": "beam", **given})


@pytest.mark.parametrize("method", ["restack", "recombine", "quadrature"])
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_methods_with_a_kernel_take_that_between_predictions(method):
    found = bqnes_jax.combine(VALID, LABELS, size=2, method=method, calibrate="off")
    assert 1 <= len(found.members) <= 2 and np.isclose(found.weights.sum(), 1, atol=1e-5)


def test_the_kernel_between_predictions(tolerance):
    twice = np.concatenate([VALID, VALID[:1]])
    gram = np.asarray(kernels.prediction_gram(np.log(twice)))
    roots = np.sqrt(twice).reshape(5, -1)
    distances = 1 - roots @ roots.T / 60
    pairs = distances[~np.eye(5, dtype=bool)]
    median = np.median(pairs[pairs > 1e-9])
    assert np.allclose(gram, np.exp(-distances / median), atol=tolerance(1e-4, 1e-9))
    assert gram[0, 4] == 1 and np.linalg.eigvalsh(gram).min() > -1e-5
    masked = np.log(twice)
    masked[2] = np.nan
    left = kernels.prediction_gram(masked, mask=np.arange(5) != 2)
    assert np.isfinite(left).all() and not np.asarray(left)[2].any()
    assert np.array_equal(kernels.prediction_gram(np.log(VALID[[0, 0]])), np.ones((2, 2)))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_calibration_is_kept_only_where_it_helps():
    true = np.eye(3)[LABELS] * 0.5 + 0.5 / 3  # under-confident, and always right
    found = bqnes_jax.combine(true[None], LABELS, size=1, method="top")
    assert found.temperature < 0.5
    assert found.study.calibration is not None
    assert found.study.calibration.after < found.study.calibration.before
    off = bqnes_jax.combine(true[None], LABELS, size=1, method="top", calibrate="off")
    assert off.temperature == 1
    assert "temperature 1" in found.table() and "temperature 1 " not in off.table()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_one_point_one_model_and_certainty():
    one = bqnes_jax.combine(np.array([[[1.0, 0.0]]]), np.array([0]), method="beam")
    assert one.members.tolist() == [0] and one.metrics.loss.estimate == 0
    wrong = bqnes_jax.combine(np.array([[[1.0, 0.0]] * 2]), np.array([0, 1]), method="top")
    assert wrong.predict(np.array([[[1.0, 0.0]]])).shape == (1, 2) and str(wrong)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predictions")
    arrays = {name: array.astype(np.float32) for name, array in (("valid", VALID), ("test", NEW))}
    labels = {"valid_labels": LABELS, "test_labels": NEW_LABELS}
    np.savez(folder / "all.npz", **arrays, **labels, names=np.array(list("abcd")))
    for name, array in arrays.items():
        (folder / "each" / name).mkdir(parents=True)
        for i, one in enumerate(array):
            path = folder / "each" / name / "abcd"[i]
            if i % 2:
                np.save(path.with_suffix(".npy"), one)
            else:
                head = "x,y,z" if i else ""
                np.savetxt(path.with_suffix(".csv"), one, delimiter=",", header=head, comments="")
    np.save(folder / "each" / "valid_labels.npy", labels["valid_labels"])
    np.savetxt(folder / "each" / "test_labels.csv", labels["test_labels"])
    return folder


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_files_of_both_forms_say_the_same(files):
    whole, each = read_predictions(files / "all.npz"), read_predictions(files / "each")
    assert set(whole) == set(each) == {"valid", "valid_labels", "test", "test_labels", "names"}
    for name in whole:
        if name == "names":
            assert whole[name].tolist() == each[name].tolist()
        else:
            assert np.allclose(whole[name], each[name], atol=1e-6)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_files_that_cannot_be_read_are_named(files, tmp_path):
    np.savez(tmp_path / "other.npz", predictions=VALID)
    (tmp_path / "cut.npz").write_bytes((files / "all.npz").read_bytes()[:200])
    np.savez(tmp_path / "objects.npz", valid=np.array([{}], object))
    (tmp_path / "unlike" / "valid").mkdir(parents=True)
    np.save(tmp_path / "unlike" / "valid" / "a.npy", np.ones((3, 2)))
    np.save(tmp_path / "unlike" / "valid" / "b.npy", np.ones((4, 2)))
    (tmp_path / "empty").mkdir()
    for name, says in (
        ("none.npz", "does not exist"),
        ("other.npz", "has no array valid, but predictions"),
        ("cut.npz", "is cut short, altered"),
        ("objects.npz", "not an array of numbers"),
        ("unlike", "must predict the same points"),
        ("empty", "has no .npy or .csv file"),
    ):
        with pytest.raises(BQNESError, match=says):
            read_predictions(tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_the_command_prints_a_table_and_writes_a_report(files, tmp_path, capsys):
    out = tmp_path / "out"
    given = ["--size", "2", "--method", "caruana", "--costs", "1", "2", "3", "4"]
    assert main(["combine", str(files / "all.npz"), *given, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "caruana with 2 of 4" in printed and "all equal" in printed
    assert "report: " in printed and (out / "ensemble.json").exists()
    page = (out / "report.html").read_text()
    titles = ["How good is it?", "Against what?", "At which cost?", "Why these members?"]
    assert re.findall("<h2>(.*?)</h2>", page) == [*titles, "Can it be trusted?"]
    assert main(["combine", str(tmp_path / "none.npz")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "does not exist" in error


def test_the_front_has_nothing_that_another_beats():
    random = np.random.default_rng(0)
    costs, losses = random.integers(1, 9, 40).astype(float), random.integers(0, 9, 40) / 8
    front = pareto_front(costs, losses)
    for i in range(40):
        beaten = ((costs <= costs[i]) & (losses < losses[i])) | (
            (costs < costs[i]) & (losses <= losses[i])
        )
        place = any(costs[i] == costs[j] and losses[i] == losses[j] for j in front)
        assert place == (not beaten.any())


@pytest.mark.slow("float64")
def test_each_model_may_have_a_temperature_of_its_own():
    """What is too sure counts as if it were not; predictions are those of tempered models."""
    sure = np.stack([VALID[0], VALID[0] ** 4 / (VALID[0] ** 4).sum(axis=-1, keepdims=True)])
    found = bqnes_jax.combine(sure, LABELS, size=2, method="beam", calibrate="members")
    own = found.study.models.temperatures
    np.testing.assert_allclose(own[1] / own[0], 4, rtol=1e-2)
    np.testing.assert_allclose(
        found.study.models.valid[0], found.study.models.valid[1], rtol=1e-2, atol=1e-3
    )
    assert found.temperature == 1 and "member_temperatures" in found.as_dict()
    alone = fit_temperature(np.log(sure[0]), LABELS)
    expected = np.exp(apply_temperature(np.log(sure[0, :3]), alone))
    np.testing.assert_allclose(found.predict(sure[:, :3]), expected, rtol=1e-2)
    with pytest.raises(BQNESError, match="calibrate is 'members', which needs"):
        bqnes_jax.combine(sure[:, :, 0], size=1, method="top", calibrate="members")
