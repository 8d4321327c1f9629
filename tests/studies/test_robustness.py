"""Dataset shift: metrics of many ensembles at once, where corrupted images come from, and runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.data import Dataset, Examples, SplitIndices
from bqnes_jax.data.corruptions import CORRUPTIONS, corrupt
from bqnes_jax.data.prepared import _write
from bqnes_jax.data.shifted import corrupt_test, read_corrupted
from bqnes_jax.errors import BQNESError
from bqnes_jax.metrics import accuracy, ece, log_likelihood
from bqnes_jax.pooling import Pool, ensemble_log_probabilities
from bqnes_jax.studies import robustness
from bqnes_jax.studies.robustness import conditions, measure_all, study

single = pytest.mark.parametrize("precision", ["float32"], indirect=True)

LABELS = np.arange(6, dtype=np.int32) % 3
IMAGES = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
TEST = Examples(IMAGES, LABELS)
DATASET = Dataset("toy", 3, TEST, TEST)


@pytest.mark.slow("float64")
def test_metrics_are_those_of_each_mixture(tolerance):
    log_probs = jax.nn.log_softmax(3 * jax.random.normal(jax.random.key(0), (4, 6, 3)))
    weights = jnp.array([[0.5, 0.5, 0, 0], [0, 0.2, 0.3, 0.5], [0, 0, 0, 1.0]])
    measured = measure_all(weights, log_probs, jnp.asarray(LABELS))
    for row, found in zip(weights, measured, strict=True):
        mixture = jnp.einsum("m,mnc->nc", row, jnp.exp(log_probs))
        expected = [metric(mixture, LABELS) for metric in (accuracy, ece, log_likelihood)]
        np.testing.assert_allclose(found, expected, rtol=tolerance(1e-5, 1e-12))


@pytest.mark.slow("float64")
def test_each_ensemble_is_pooled_in_its_own_space(tolerance):
    log_probs = jax.nn.log_softmax(3 * jax.random.normal(jax.random.key(0), (4, 6, 3)))
    weights = jnp.array([[0.5, 0.5, 0, 0], [0, 1.2, 0.3, 0.5], [0, 0, 0, 1.0]])
    pools = Pool.MIXTURE, Pool.LOG, Pool.MIXTURE
    measured = measure_all(weights, log_probs, jnp.asarray(LABELS), pools=pools)
    for pool, row, found in zip(pools, weights, measured, strict=True):
        said = jnp.exp(ensemble_log_probabilities(row, log_probs, pool=pool))
        expected = [metric(said, LABELS) for metric in (accuracy, ece, log_likelihood)]
        np.testing.assert_allclose(found, expected, rtol=tolerance(1e-5, 1e-12))


@pytest.mark.slow("float64")
def test_probabilities_that_underflow_have_a_logarithm(tolerance):
    """Far from what a network knows, it may give the truth e⁻⁵⁰⁰."""
    log_probs = jnp.array([[[-500.0, 0.0]], [[-800.0, 0.0]]])
    weights = jnp.array([[0.25, 0.75], [0.0, 1.0]])
    measured = measure_all(weights, log_probs, jnp.array([0]))
    expected = [-500 + np.log(0.25), -800]
    np.testing.assert_allclose(measured[:, 2], expected, rtol=tolerance(1e-6, 1e-12))


@single
def test_a_study_goes_through_the_conditions():
    under = conditions(("contrast", "fog"), (1, 5))
    assert under == [("clean", 0), ("contrast", 1), ("contrast", 5), ("fog", 1), ("fog", 5)]
    seen = []

    def predict(images):
        seen.append(images)
        return jax.nn.log_softmax(jnp.asarray(images, float).mean((1, 2))[None])

    found = dict(study(predict, jnp.ones((1, 1)), corrupt_test(jax.random.key(0), TEST), under))
    assert list(found) == under
    np.testing.assert_array_equal(seen[0], IMAGES)
    result = robustness.collect(["one"], found, under)
    assert result.corruptions == ("contrast", "fog") and result.severities == (1, 5)
    np.testing.assert_array_equal(result.shifted[:, 1, 0], found["fog", 1])
    np.testing.assert_array_equal(result.clean, found["clean", 0])
    np.testing.assert_allclose(
        result.by_severity()[:, 1], (found["contrast", 5] + found["fog", 5]) / 2
    )


@single
def test_what_is_not_a_condition_is_refused():
    assert len(conditions()) == 1 + 19 * 3
    with pytest.raises(BQNESError, match="corruption is 'rain'; allowed are 'gaussian_noise'"):
        conditions(("rain",))
    with pytest.raises(BQNESError, match="severity is 6"):
        conditions(("fog",), (6,))


@single
def test_own_corruptions_are_always_the_same(monkeypatch):
    key = jax.random.key(3)
    shifted = corrupt_test(key, TEST)
    images, labels = shifted("gaussian_noise", 2)
    np.testing.assert_array_equal(images, shifted("gaussian_noise", 2).inputs)
    np.testing.assert_array_equal(labels, LABELS)
    own = jax.random.fold_in(jax.random.fold_in(key, list(CORRUPTIONS).index("gaussian_noise")), 0)
    expected = corrupt("gaussian_noise", own, jnp.asarray(IMAGES), 2)
    np.testing.assert_array_equal(images, expected)
    monkeypatch.setattr("bqnes_jax.data.shifted._AT_ONCE", 4)
    in_parts = corrupt_test(key, TEST)("brightness", 3).inputs
    np.testing.assert_array_equal(in_parts, shifted("brightness", 3).inputs)


def places(valid_from="train"):
    return SplitIndices(np.arange(2), np.arange(2, 4), np.array([1, 4]), valid_from)


@single
def test_published_arrays_are_read_at_the_places_of_the_test_images(tmp_path):
    every = np.concatenate([IMAGES // severity for severity in range(1, 6)])
    np.save(tmp_path / "fog.npy", every)
    np.save(tmp_path / "labels.npy", np.tile(LABELS, 5).astype(np.int64))
    shifted = read_corrupted(tmp_path, DATASET, places("test"))
    np.testing.assert_array_equal(shifted("fog", 4).inputs, (IMAGES // 4)[[1, 4]])
    np.testing.assert_array_equal(shifted("fog", 4).labels, LABELS[[1, 4]])
    np.testing.assert_array_equal(shifted("clean", 0).inputs, IMAGES[[1, 4]])
    with pytest.raises(BQNESError, match=r"snow\.npy does not exist"):
        shifted("snow", 1)
    (tmp_path / "snow.npy").write_bytes((tmp_path / "fog.npy").read_bytes()[:-100])
    with pytest.raises(BQNESError, match=r"snow\.npy is cut short, altered"):
        shifted("snow", 1)
    other = DATASET._replace(test=Examples(IMAGES, LABELS[::-1].copy()))
    with pytest.raises(BQNESError, match="other labels than the 6 test images"):
        read_corrupted(tmp_path, other, places())


@single
def test_published_images_are_read_from_tfds(tmp_path):
    for name, images in (("frosted_glass_blur_1", IMAGES // 2), ("fog_1", IMAGES // 3)):
        _write(Dataset(name, 3, TEST, Examples(images, LABELS)), tmp_path)
    shifted = read_corrupted(tmp_path, DATASET, places())
    np.testing.assert_array_equal(shifted("glass_blur", 1).inputs, IMAGES // 2)
    np.testing.assert_array_equal(shifted("fog", 1).inputs, IMAGES // 3)
    np.testing.assert_array_equal(shifted("clean", 0).inputs, IMAGES)
    with pytest.raises(BQNESError, match="no fog of severity 2"):
        shifted("fog", 2)
    other = DATASET._replace(test=Examples(IMAGES, LABELS * 0))
    with pytest.raises(BQNESError, match="other images or labels than the 6 test images"):
        read_corrupted(tmp_path, other, places())("fog", 1)
    with pytest.raises(BQNESError, match="the validation images among them are not known"):
        read_corrupted(tmp_path, DATASET, places("test"))


@single
def test_a_folder_without_corrupted_images_is_refused(tmp_path):
    with pytest.raises(BQNESError, match=r"holds no corrupted images; give .* CIFAR-10-C"):
        read_corrupted(tmp_path / "nowhere", DATASET, places())
