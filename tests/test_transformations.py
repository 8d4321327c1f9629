"""Each public function of the core: eager = jit of vmap, and other data do not compile again."""

import functools
import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from bqnes_jax import kernels, metrics, pooling, quadrature, selection
from bqnes_jax.kernels import (
    RBF,
    WL,
    FeatureRBF,
    Linear,
    Words,
    prediction_gram,
    wl_histograms,
    wl_labels,
)
from bqnes_jax.quadrature import (
    choose_landmarks,
    choose_temperature,
    drawn_evidence,
    effective_size,
    evidence_over,
    exact_evidence,
    included_evidence,
    log_expected_improvement,
    log_posterior,
    nystrom_test_functions,
    propose,
    quadrature_weights,
    recombine,
    sampled_evidence,
    uncertainty_sampling,
    upper_confidence_bound,
)
from bqnes_jax.selection import measure_candidates
from bqnes_jax.spaces import NATS, enumerate_space
from bqnes_jax.surrogates import (
    FitConfig,
    Hyperparameters,
    LikelihoodModel,
    Posterior,
    Prediction,
    WarpConfig,
    gp,
    wsabi,
)
from bqnes_jax.types import Status
from tests.helpers.toy import GRID

POOL = enumerate_space(GRID)
KERNEL = RBF(GRID, 0.4)


def nats(key):
    return NATS.sample(key, 8)


def grid(key, n=8):
    return POOL[jax.random.permutation(key, 36)[:n]]


def graph(key):
    return NATS.graph(nats(key)[0])


def numbers(key):
    return jax.random.normal(key, (8,))


def hyperparameters(key):
    return Hyperparameters(*jax.random.uniform(key, (3,), minval=0.1))


def posterior(key):
    return gp.condition(KERNEL, grid(key), numbers(key), hyperparameters(key))


def model(key, warp="linear"):
    return wsabi.condition(
        KERNEL, grid(key), 99 * numbers(key), hyperparameters(key), config=WarpConfig(warp=warp)
    )


def prediction(key):
    return Prediction(numbers(key), jnp.exp(numbers(key)))


def design(key):
    return grid(key), numbers(key), jnp.arange(8) < 6


def probabilities(key, members=3):
    return jax.nn.softmax(jax.random.normal(key, (members, 8, 4)))


def labelled(key):
    return probabilities(key)[0], jax.random.randint(key, (8,), 0, 4)


def mixture(key):
    return jax.nn.softmax(numbers(key)[:3]), probabilities(key)


EI = Partial(log_expected_improvement, best=0.5)
FIT, WARP = FitConfig(kernel_steps=3), WarpConfig()

# name: (function, what makes its arguments from a key)
PUBLIC = {
    "sample": (lambda key: NATS.sample(key, 5), lambda key: (key,)),
    "mutate": (NATS.mutate, lambda key: (key, nats(key)[0])),
    "index": (NATS.index, lambda key: (nats(key),)),
    "from_index": (NATS.from_index, lambda key: (jax.random.randint(key, (4,), 0, 15_625),)),
    "graph": (NATS.graph, lambda key: (nats(key)[0],)),
    "coordinates": (NATS.coordinates, lambda key: (nats(key),)),
    "wl_labels": (functools.partial(wl_labels, iterations=2), lambda key: (graph(key),)),
    "wl_histograms": (functools.partial(wl_histograms, buckets=64), lambda key: (graph(key),)),
    "wl_features": (WL(NATS).features, lambda key: (nats(key),)),
    "wl_hashed_features": (WL(NATS, 2, buckets=64).features, lambda key: (nats(key),)),
    "wl_gram": (WL(NATS).gram, lambda key: (nats(key),)),
    "wl_cross": (WL(NATS).cross, lambda key: (nats(key), nats(key)[:3])),
    "wl_diag": (WL(NATS).diag, lambda key: (nats(key),)),
    "rbf_features": (RBF(NATS).features, lambda key: (nats(key),)),
    "rbf_gram": (RBF(NATS).gram, lambda key: (nats(key),)),
    "rbf_cross": (RBF(NATS).cross, lambda key: (nats(key), nats(key)[:3])),
    "rbf_diag": (RBF(NATS).diag, lambda key: (nats(key),)),
    "feature_rbf_gram": (FeatureRBF(WL(NATS)).gram, lambda key: (nats(key),)),
    "gp_condition": (
        lambda a, y, m, h: gp.condition(KERNEL, a, y, h, mask=m),
        lambda key: (*design(key), hyperparameters(key)),
    ),
    "gp_fit": (lambda a, y, m: gp.fit(KERNEL, a, y, mask=m, config=FIT), design),
    "gp_predict": (Posterior.predict, lambda key: (posterior(key), POOL)),
    "gp_covariance": (
        lambda p, a: p.predict(a, full_covariance=True),
        lambda key: (posterior(key), POOL),
    ),
    "fantasise": (Posterior.fantasise, lambda key: (posterior(key), grid(key, 2))),
    "wsabi_condition": (
        lambda a, y, m, h: wsabi.condition(KERNEL, a, y, h, mask=m),
        lambda key: (*design(key), hyperparameters(key)),
    ),
    "wsabi_fit": (lambda a, y, m: wsabi.fit(KERNEL, a, y, mask=m, fit_config=FIT), design),
    "wsabi_predict": (LikelihoodModel.predict, lambda key: (model(key), POOL)),
    "wsabi_fantasise": (LikelihoodModel.fantasise, lambda key: (model(key), grid(key, 2))),
    "uncertainty_sampling": (uncertainty_sampling, lambda key: (prediction(key), numbers(key))),
    "upper_confidence_bound": (upper_confidence_bound, lambda key: (prediction(key), numbers(key))),
    "log_expected_improvement": (EI, lambda key: (prediction(key), numbers(key))),
    "propose": (lambda p: propose(p, POOL, q=3, distinct=True), lambda key: (model(key),)),
    "propose_ei": (lambda p: propose(p, POOL, acquisition=EI), lambda key: (posterior(key),)),
    "exact_evidence": (lambda m: exact_evidence(m, GRID), lambda key: (model(key),)),
    "moment_evidence": (lambda m: exact_evidence(m, GRID), lambda key: (model(key, "moment"),)),
    "sampled_evidence": (
        lambda key, m: sampled_evidence(key, m, GRID, samples=64),
        lambda key: (key, model(key)),
    ),
    "log_posterior": (log_posterior, lambda key: (numbers(key),)),
    "effective_size": (effective_size, lambda key: (numbers(key),)),
    "choose_temperature": (choose_temperature, lambda key: (numbers(key),)),
    "measure_candidates": (
        lambda valid, train: measure_candidates("both", valid, 4, train, 6),
        lambda key: (numbers(key), 2 * numbers(key)),
    ),
    "quadrature_weights": (
        lambda m, w: quadrature_weights(m, POOL[:8], w),
        lambda key: (model(key, "none"), jax.nn.softmax(numbers(key))),
    ),
    "evidence_over": (
        lambda m, w: evidence_over(m, POOL[:8], w),
        lambda key: (model(key), jax.nn.softmax(numbers(key))),
    ),
    "recombine": (
        recombine,
        lambda key: (jax.random.normal(key, (8, 4)), jax.nn.softmax(numbers(key))),
    ),
    "drawn_evidence": (
        lambda y, q: drawn_evidence(y, q, 36, temperature=1.0),
        lambda key: (numbers(key), -1 - numbers(key) ** 2),
    ),
    "included_evidence": (
        lambda y, p: included_evidence(y, p, 36, temperature=1.0),
        lambda key: (numbers(key), jax.nn.sigmoid(numbers(key))),
    ),
    "choose_landmarks": (
        functools.partial(choose_landmarks, count=3),
        lambda key: (KERNEL.gram(grid(key)), jax.nn.softmax(numbers(key))),
    ),
    "nystrom_test_functions": (
        lambda gram: nystrom_test_functions(gram, jnp.arange(3)),
        lambda key: (KERNEL.gram(grid(key)),),
    ),
    "stacking_weights": (
        selection.stacking_weights,
        lambda key: (jnp.log(probabilities(key)[..., 0]),),
    ),
    "log_pool_weights": (
        lambda classes: selection.log_pool_weights(classes[..., 0], classes),
        lambda key: (jnp.log(probabilities(key)),),
    ),
    "prediction_gram": (prediction_gram, lambda key: (jnp.log(probabilities(key)),)),
    "select": (
        lambda log_probs: selection.select("beam", log_probs, 2),
        lambda key: (jnp.log(probabilities(key)[..., 0]),),
    ),
    "accuracy": (metrics.accuracy, labelled),
    "log_likelihood": (metrics.log_likelihood, labelled),
    "mean_log_likelihood": (metrics.mean_log_likelihood, labelled),
    "brier_score": (metrics.brier_score, labelled),
    "ece": (metrics.ece, labelled),
    "reliability_curve": (metrics.reliability_curve, labelled),
    "aurc": (metrics.aurc, labelled),
    "adaptive_ece": (metrics.adaptive_ece, labelled),
    "classwise_ece": (metrics.classwise_ece, labelled),
    "brier_decomposition": (metrics.brier_decomposition, labelled),
    "mutual_information": (metrics.mutual_information, lambda key: (probabilities(key),)),
    "bootstrap_interval": (
        lambda p, y: metrics.bootstrap_interval(
            jax.random.key(0), metrics.brier_score, p, y, draws=20
        ),
        labelled,
    ),
    "disagreement": (metrics.disagreement, lambda key: (probabilities(key),)),
    "per_member": (
        functools.partial(metrics.per_member, metrics.accuracy),
        lambda key: (probabilities(key), labelled(key)[1]),
    ),
    "rmse": (metrics.rmse, lambda key: (numbers(key), 1 + numbers(key) ** 2)),
    "nlpd": (metrics.nlpd, lambda key: (*prediction(key), numbers(key))),
    "ensemble_probabilities": (pooling.ensemble_probabilities, mixture),
    "ensemble_log_probabilities": (
        lambda weights, members: pooling.ensemble_log_probabilities(weights, jnp.log(members)),
        mixture,
    ),
    "apply_temperature": (
        lambda weights, members: pooling.apply_temperature(
            jax.nn.log_softmax(members), weights[0] + 0.5
        ),
        mixture,
    ),
    "linear_gram": (Linear().gram, lambda key: (POOL * numbers(key)[0],)),
    "words_gram": (Words(9).gram, lambda key: (jax.random.randint(key, (4, 5), 0, 11),)),
    "gp_fit_weight_space": (
        lambda a, y: gp.fit(WL(NATS, iterations=0), a, y),
        lambda key: (nats(key), numbers(key)),
    ),
    "wsabi_fit_weight_space": (
        lambda a, y: wsabi.fit(
            WL(NATS, iterations=0, layer_weights=jnp.ones(1)),
            a,
            y,
            config=WARP,
            fit_config=FIT,
        ),
        lambda key: (nats(key), numbers(key)),
    ),
}


def assert_close(ours, theirs, tolerance, precision):
    if precision == "float32":
        forgive = jax.tree_util.tree_map_with_path
        ours, theirs = (forgive(without_bound, one) for one in (ours, theirs))
    chex.assert_trees_all_close(ours, theirs, rtol=tolerance, atol=tolerance)


def without_bound(path, leaf):
    """Leave out of a status whether a fit ended at a bound: next to it, float32 decides."""
    is_status = jax.tree_util.keystr(path).endswith(".status")
    return leaf & ~Status.AT_BOUND if is_status else leaf


def stack(*trees):
    """Put trees on top of each other, by NumPy but for keys: that compiles nothing."""

    def stack_leaves(*leaves):
        if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
            return jnp.stack(leaves)
        return jax.device_put(np.stack(leaves))

    return jax.tree.map(stack_leaves, *trees)


@pytest.mark.slow("float64")
@pytest.mark.parametrize("name", PUBLIC)
def test_transformations(name, compilations, tolerance, precision):
    function, arguments = PUBLIC[name]
    keys = jax.random.split(jax.random.key(1), 3)
    each = [arguments(key) for key in keys]
    eager = [function(*each[0])]
    compilations()
    eager += [function(*some) for some in each[1:]]
    assert compilations() == 0, "a second call with other data compiled again"

    mapped = jax.jit(jax.vmap(lambda *arguments: function(*arguments)))
    close = functools.partial(assert_close, tolerance=tolerance(2e-2, 1e-6), precision=precision)
    close(mapped(*stack(*each)), stack(*eager))
    close(mapped(*stack(*each[::-1])), stack(*eager[::-1]))
    assert mapped._cache_size() == 1


NOT_NUMERICAL = {
    *("vocabulary", "make_kernel", "scale_temperature"),
    *("methods", "register", "needs_classes", "needs_kernel", "pool_of", "takes_limit"),
}


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("module", [kernels, quadrature, selection, metrics, pooling])
def test_no_public_function_is_left_out(module):
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    functions = {name for name in names if name.islower() and not name.startswith("_")}
    assert functions - NOT_NUMERICAL <= set(PUBLIC)
