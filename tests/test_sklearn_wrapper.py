"""The classifier of scikit-learn's kind: its own checks, and ensembles of fitted models."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from bqnes_jax.errors import BQNESError
from bqnes_jax.sklearn import EnsembleClassifier

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


def two():
    return [GaussianNB(), KNeighborsClassifier(3)]


def sounder():
    return [LogisticRegression(max_iter=1000), KNeighborsClassifier(10)]


CHECKS = parametrize_with_checks(
    [EnsembleClassifier(two(), size=2, method="caruana", calibrate="off")]
)


@pytest.mark.slow
# scikit-learn 1.6 gives an iterator, which pytest 9 takes no longer.
@pytest.mark.parametrize(CHECKS.args[0], list(CHECKS.args[1]), **CHECKS.kwargs)
@pytest.mark.filterwarnings("default")  # of what the checks do to the members
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    names = np.array([f"digit {i}" for i in range(10)])
    parts = np.split(np.arange(900), [300, 600])
    return [(images[part] / 16, names[labels[part]]) for part in parts]


@pytest.mark.slow
def test_fitted_models_are_combined_and_not_trained(digits):
    (x, y), (x_valid, y_valid), (x_test, y_test) = digits
    models = [model.fit(x, y) for model in sounder()]
    before = models[0].coef_.copy()
    found = EnsembleClassifier([("linear", models[0]), ("near", models[1])], size=2)
    found = found.fit(x_valid, y_valid)
    assert np.array_equal(models[0].coef_, before)
    assert found.members_[0] is models[found.combination_.members[0]]
    all_said = np.stack([model.predict_proba(x_test) for model in models])
    assert np.array_equal(found.predict_proba(x_test), found.combination_.predict(all_said))
    assert set(found.combination_.names) <= {"linear", "near"}
    said = found.predict_proba(x_test)
    assert said.shape == (300, 10) and np.allclose(said.sum(axis=1), 1, atol=1e-5)
    assert np.array_equal(found.predict(x_test), found.classes_[said.argmax(axis=1)])
    best = max(model.score(x_test, y_test) for model in models)
    assert found.score(x_test, y_test) > best - 0.02


def test_a_class_that_no_model_knows_has_a_probability_of_next_to_nothing(digits):
    (x, y), (x_valid, y_valid), _ = digits
    known = y != "digit 9"
    models = [model.fit(x[known], y[known]) for model in sounder()]
    found = EnsembleClassifier(models, size=2, method="stack", calibrate="off")
    found = found.fit(x_valid, y_valid)
    assert len(found.classes_) == 10
    assert found.predict_proba(x_valid)[:, 9].max() < 1e-4


def test_frozen_models_survive_cross_validation(digits):
    (x, y), (x_valid, y_valid), _ = digits
    models = [FrozenEstimator(model.fit(x, y)) for model in sounder()]
    ensemble = EnsembleClassifier(models, size=2, method="caruana", calibrate="off")
    assert cross_val_score(ensemble, x_valid, y_valid, cv=2).min() > 0.7


def test_models_without_probabilities_are_refused(digits):
    _, valid, _ = digits
    with pytest.raises(BQNESError, match="estimators is empty"):
        EnsembleClassifier([]).fit(*valid)
    with pytest.raises(BQNESError, match="LinearSVC has no predict_proba"):
        EnsembleClassifier([LogisticRegression(), LinearSVC()]).fit(*valid)
