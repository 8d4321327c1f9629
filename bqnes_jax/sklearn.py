"""Ensembles of fitted scikit-learn classifiers, as a classifier of scikit-learn.

ensemble = EnsembleClassifier([forest, network, neighbours], size=2).fit(x_valid, y_valid)
ensemble.predict_proba(x_new)
"""

import functools
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from bqnes_jax.combination import combine
from bqnes_jax.errors import BQNESError
from bqnes_jax.studies.combine import resolve_size

__all__ = [
    "EnsembleClassifier",
]


def __dir__() -> list[str]:
    return __all__  # and nothing that is imported


class EnsembleClassifier(ClassifierMixin, BaseEstimator):
    """A small calibrated ensemble of classifiers that are fitted already.

    `fit` trains none of them: it selects members and weights by what they say about X and y, which
    must be data that they were not trained on. Classifiers that are not fitted, as after `clone`,
    are trained on one half of X and y, and the other half selects.

    Args:
        estimators: fitted classifiers with `predict_proba`, or pairs (name, classifier).
        size: how many members, at most as many as estimators; by default 3, or all if they are
            fewer.
        method: of selection, as in `bqnes_jax.combine`.
        calibrate: whether a temperature follows: `"on"`, `"off"`, or `"auto"`, if it lowers the
            loss of left-out points.

    Attributes:
        classes_: the classes of all estimators together.
        combination_: the `bqnes_jax.Combination`: members, weights, metrics, report.

    Example:
        >>> from sklearn.dummy import DummyClassifier
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> X, y = np.arange(40.0)[:, None], np.arange(40) > 20
        >>> models = [model.fit(X, y) for model in (DummyClassifier(), KNeighborsClassifier(3))]
        >>> ensemble = EnsembleClassifier(models, size=1, method="top").fit(X, y)
        >>> ensemble.predict([[3.0], [33.0]]).tolist()
        [False, True]
    """

    # Without types: scikit-learn wants wrong values to be refused by `fit`, not here.
    def __init__(self, estimators=(), *, size=None, method="logpool", calibrate="auto"):
        self.estimators = estimators
        self.size = size
        self.method = method
        self.calibrate = calibrate

    def fit(self, X, y):  # noqa: N803 (scikit-learn's names)
        """Select members and weights by data that the estimators were not trained on."""
        X, y = validate_data(self, X, y)  # noqa: N806
        check_classification_targets(y)
        names, models = self._name()
        resolve_size(self.size, len(models))  # before any is trained
        if not all(map(_is_fitted, models)):
            train, rest = self._halves(y)
            models = [m if _is_fitted(m) else _train(m, X[train], y[train]) for m in models]
            X, y = X[rest], y[rest]  # noqa: N806
        self.classes_ = functools.reduce(np.union1d, [np.unique(y), *(m.classes_ for m in models)])
        said = np.stack([self._of_all_classes(model, X) for model in models])
        labels = np.searchsorted(self.classes_, y)
        self.combination_ = combine(
            said, labels, size=self.size, method=self.method, names=names, calibrate=self.calibrate
        )
        self.members_ = [models[member] for member in self.combination_.members]
        return self

    @staticmethod
    def _halves(y) -> tuple[np.ndarray, np.ndarray]:
        """Return the points that train and those that select, drawn the same way each time."""
        if len(y) < 2:
            raise ValueError("1 sample is too few: one half of them trains, the other selects.")
        order = np.random.default_rng(0).permutation(len(y))
        order = order[np.argsort(y[order], kind="stable")]  # every other point of each class
        return order[::2], order[1::2]

    def predict_proba(self, X):  # noqa: N803
        """Return the probabilities of `classes_`; only members of the ensemble are asked."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)  # noqa: N806
        said = np.stack([self._of_all_classes(model, X) for model in self.members_])
        return self.combination_.predict(said)

    def predict(self, X):  # noqa: N803
        """Return the most probable class of each point."""
        best = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[best]

    def _name(self) -> tuple[list[str], list[Any]]:
        pairs = [
            each if isinstance(each, tuple) else (f"{i} {type(each).__name__}", each)
            for i, each in enumerate(self.estimators)
        ]
        if not pairs:
            raise BQNESError("estimators is empty; pass classifiers that are fitted already.")
        for name, model in pairs:
            if not hasattr(model, "predict_proba"):
                raise BQNESError(
                    f"estimator {name} has no predict_proba; wrap it into CalibratedClassifierCV."
                )
        return [name for name, _ in pairs], [model for _, model in pairs]

    def _of_all_classes(self, model, X) -> np.ndarray:  # noqa: N803
        """Return what a model says, with 0 for classes that it does not know."""
        said = np.zeros((len(X), len(self.classes_)))
        said[:, np.searchsorted(self.classes_, model.classes_)] = model.predict_proba(X)
        return said


def _train(model: Any, X, y) -> Any:  # noqa: N803
    fresh: Any = clone(model)
    return fresh.fit(X, y)


def _is_fitted(model) -> bool:
    try:
        check_is_fitted(model)
    except NotFittedError:
        return False
    return True
