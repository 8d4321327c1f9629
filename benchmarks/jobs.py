"""The jobs that are timed: for each, ours and what a user would pick instead, on the same data."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import peers
from jax import lax
from timing import precision
from ways import Case, Job, ours, peer

from bqnes_jax.candidates import SearchConfig, make
from bqnes_jax.candidates.landscape import Listed
from bqnes_jax.data import NO_AUGMENTATION, load, split
from bqnes_jax.drivers import scan
from bqnes_jax.families.cells import predict_cells
from bqnes_jax.kernels import WL
from bqnes_jax.models import NATSNetworkConfig
from bqnes_jax.models.cells import CONV_1X1, CONV_3X3
from bqnes_jax.pooling import ensemble_probabilities
from bqnes_jax.quadrature import acquisition, recombine
from bqnes_jax.selection import stacking_weights
from bqnes_jax.spaces import NATS, enumerate_space
from bqnes_jax.surrogates import TEMPERATURE, gp
from bqnes_jax.tables import Table, evaluator
from bqnes_jax.training import TrainConfig, train_population, weight_count

_DEPTH = 1  # refinements of the WL kernel


@functools.cache
def connected() -> np.ndarray:
    """List the cells with a path from input to output, in an order drawn once."""
    archs = np.asarray(enumerate_space(NATS))
    sizes = np.asarray(jax.vmap(lambda arch: NATS.graph(arch).n_node[0])(archs))
    return np.random.default_rng(0).permutation(archs[sizes > 0])


def wl(n: int) -> Case:
    """WL kernel matrix of n connected cells."""
    archs, kernel = connected()[:n], WL(NATS, _DEPTH)
    graphs = jax.tree.map(np.asarray, jax.vmap(NATS.graph)(archs))

    def of_cell(i: int) -> tuple[dict, dict]:
        nodes, edges = int(graphs.n_node[i, 0]), int(graphs.n_edge[i, 0])
        successors: dict[int, list[int]] = {node: [] for node in range(nodes)}
        for sender, receiver in zip(
            graphs.senders[i, :edges].tolist(), graphs.receivers[i, :edges].tolist(), strict=True
        ):
            successors[sender].append(receiver)
        return successors, dict(enumerate(graphs.nodes[i, :nodes].tolist()))

    with precision("float64"):
        some = np.asarray(kernel.gram(archs[:50]))

    def check(gram) -> tuple[str, bool]:
        error = np.abs(np.asarray(gram[:50, :50]) - some).max()
        return f"error {error:.0e}", error < 1e-5

    wanted = 40 if n == len(connected()) else 50
    return Case(
        [
            ours("float32", kernel.gram, archs, check=check, ratio=wanted),
            ours("float64", kernel.gram, archs, precision="float64", check=check),
            peer("GraKeL", peers.grakel_gram, [of_cell(i) for i in range(n)], _DEPTH, check=check),
        ],
        flops=8.0 * n**2,  # a sum over the nodes of a cell
        numbers=float(n) ** 2,
    )


def _observed(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw cells, and for each a number that the kernel can explain but for noise."""
    draw = np.random.default_rng(seed)
    archs = connected()[draw.permutation(len(connected()))[:n]]
    features = np.asarray(WL(NATS, _DEPTH).features(archs), np.float64)
    return archs, features @ draw.normal(size=features.shape[1]) + 0.1 * draw.normal(size=n)


def gaussian_process(n: int, batch: int = 10) -> Case:
    """Fit amplitude and noise of a Gaussian process to n points."""
    kernel = WL(NATS, _DEPTH)
    archs, targets = _observed(0, n)
    many = tuple(map(np.stack, zip(*(_observed(seed, n) for seed in range(batch)), strict=True)))
    features = np.asarray(kernel.features(archs), np.float64)

    @jax.jit
    def fit(archs, targets):
        return gp.fit(kernel, archs, targets)

    def check(found) -> tuple[str, bool]:
        value = getattr(found, "log_marginal_likelihood", found)
        return f"log p(y) {float(np.ravel(value)[0]):.2f}", bool(np.isfinite(value).all())

    fits = jax.jit(jax.vmap(fit))
    every = (("float32", 2.0, 10.0), ("float64", None, None))
    single = [
        ours(kind, fit, archs, targets, precision=kind, check=check, ratio=ratio)
        for kind, ratio, _ in every
    ]
    batched = [
        ours(
            f"{batch} at once, {kind}",
            fits,
            *many,
            precision=kind,
            problems=batch,
            check=check,
            ratio=ratio,
        )
        for kind, _, ratio in every
    ]
    d = features.shape[1]
    small = min(n, d)
    return Case(
        [
            *single,
            *batched,
            peer("scikit-learn", peers.sklearn_fit, features, targets, check=check),
            peer("GPyTorch", peers.gpytorch_fit, features, targets, check=check),
        ],
        # Eigenvalues and -vectors, the product that they are of, and one QR or Cholesky.
        flops=6.0 * small**3 + 4.0 * n * d * small,
        numbers=float(n * d),
    )


@functools.cache
def _surface() -> np.ndarray:
    """Draw log-likelihoods of all cells, with a peak as high as those of trained networks."""
    draw = np.random.default_rng(0)
    features = np.asarray(WL(NATS, _DEPTH).features(enumerate_space(NATS)), np.float64)
    smooth = features @ draw.normal(size=features.shape[1])
    noisy = smooth / smooth.std() + 0.1 * draw.normal(size=len(smooth))
    return TEMPERATURE * 5.0 * noisy


def _searches(config: SearchConfig, kind: str):
    """Return a strategy, and a program for repeats of a search with it: keys -> candidates."""
    with precision(kind):
        strategy = make("us", NATS, config=config)
        table = Table(jnp.asarray(_surface(), jnp.float32), jnp.zeros(NATS.size))
    evaluate = evaluator(table, NATS)

    def search(key):
        return NATS.index(scan(strategy, config, key, evaluate).history.archs)

    return strategy, jax.jit(lambda keys: lax.map(search, keys)), jax.jit(jax.vmap(search))


def _from_scratch(config: SearchConfig, kind: str, keys) -> np.ndarray:
    """Search without keeping anything from step to step, and score every cell at each."""
    config = dataclasses.replace(config, fit=dataclasses.replace(config.fit, growth=0.0))
    with precision(kind), mock.patch.object(acquisition, "_SHORTLIST", NATS.size):
        return np.asarray(_searches(config, kind)[1](keys))


def candidates(budget: int, initial: int = 10, repeats: int = 10) -> Case:
    """Choose cells one after another, refitting and scoring all 15,625 at each step."""
    config = SearchConfig(initial=initial, budget=budget)
    keys = jax.random.split(jax.random.key(0), repeats)
    log_likelihoods = _surface()
    plain = {kind: _from_scratch(config, kind, keys) for kind in ("float32", "float64")}
    strategy, in_turn, at_once = _searches(config, "float32")
    in_double = _searches(config, "float64")[1]
    listed = Listed(NATS, WL(NATS, _DEPTH))
    rows = np.asarray(listed.summands(None)[0], np.float64)
    first = np.asarray(NATS.index(strategy.init(jax.random.split(keys[0])[0])[1].archs))

    def check(found) -> tuple[str, bool]:
        found = np.atleast_2d(np.asarray(found))
        best = float(np.max(log_likelihoods[found[0]]) / np.max(log_likelihoods))
        # Each precision draws other first cells.
        same = max(np.sum(np.all(found == other[: len(found)], 1)) for other in plain.values())
        said = f"{best:.0%} of the best; {same} of {len(found)} as from scratch"
        return said, len(np.unique(found[0])) == budget

    many = {"problems": repeats, "check": check}
    steps, (m, d) = budget - initial + 1, rows.shape
    small = min(budget, d)
    fit = 6.0 * small**3 + 4.0 * budget * d * small
    return Case(
        [
            ours("one search", in_turn, keys[:1], check=check, limit=0.1),
            ours(f"{repeats} searches", in_turn, keys, limit=0.1, **many),
            ours(f"{repeats} at once", at_once, keys, **many),
            ours(f"{repeats} searches, float64", in_double, keys, precision="float64", **many),
            peer(
                "scikit-learn in a loop",
                peers.sklearn_search,
                rows,
                listed.row_of,
                log_likelihoods,
                first,
                budget,
                TEMPERATURE,
                check=check,
            ),
        ],
        flops=steps * (fit + 2.0 * m * d * small),  # the variance of every different cell
        numbers=steps * float(m * d),
    )


def recombination(size: tuple[int, int], batch: int = 64) -> Case:
    """Find k of n points with the expectations of k − 1 functions."""
    n, k = size
    draw = np.random.default_rng(0)
    functions, weights = draw.normal(size=(batch, n, k - 1)), draw.random((batch, n))
    weights /= weights.sum(1, keepdims=True)
    one = functions[0], weights[0]
    truth = weights[0] @ functions[0]

    def check(found) -> tuple[str, bool]:
        indices, w = (np.asarray(values) for values in found[:2])
        indices, w = (indices[0], w[0]) if indices.ndim == 2 else (indices, w)
        error = np.abs(w @ functions[0][indices] - truth).max()
        error = max(error, abs(w.sum() - 1))
        return f"error {error:.0e}, {np.sum(w > 0)} points", error < 1e-12 and np.sum(w > 0) <= k

    ways = [ours("float64", recombine, *one, precision="float64", check=check, ratio=1.0)]
    if n <= 1000:
        at_once = jax.jit(jax.vmap(recombine))
        ways.append(
            ours(
                f"{batch} at once, float64",
                at_once,
                functions,
                weights,
                precision="float64",
                problems=batch,
                check=check,
                ratio=5.0,
            )
        )
    levels = max(1, int(np.ceil(np.log2(n / k))))
    return Case(
        [
            *ways,
            peer("NumPy tree", peers.numpy_tree, *one, check=check),
            peer("HiGHS", peers.highs_vertex, *one, check=check),
        ],
        # At each level the null space of k conditions on 2k points, and k steps along it.
        flops=4.0 * n * k + 20.0 * levels * k**3,
        numbers=float(n * k),
    )


def _log_probs(seed: int, points: int, count: int = 150) -> np.ndarray:
    """Draw what candidates of unlike skill say, who agree on which points are hard."""
    draw = np.random.default_rng(seed).normal
    related = draw(size=(count, 8)) @ draw(size=(8, points)) / 2
    margin = 1 - np.abs(draw(size=(count, 1))) - 3 * draw(size=points) + related
    return -np.logaddexp(0, -(margin + draw(size=(count, points))))


def stacking(points: int, batch: int = 10) -> Case:
    """Find the best weights of 150 candidates on a number of validation points."""
    log_probs = np.stack([_log_probs(seed, points) for seed in range(batch)])
    probs = np.exp(log_probs[0] - log_probs[0].max(0))

    def check(found) -> tuple[str, bool]:
        weights = np.atleast_2d(np.asarray(getattr(found, "weights", found), np.float64))[0]
        weights = weights / weights.sum()
        slope = (probs / (weights @ probs)).mean(1)
        gap = slope.max() - weights @ slope
        return f"gap {gap:.0e}", gap <= 1e-6

    weights_of = jax.jit(stacking_weights)
    many = jax.jit(jax.vmap(stacking_weights))
    kinds = ("float32", "float64")
    single = [
        ours(kind, weights_of, log_probs[0], precision=kind, check=check, ratio=1.0)
        for kind in kinds
    ]
    batched = [
        ours(
            f"{batch} at once, {kind}",
            many,
            log_probs,
            precision=kind,
            problems=batch,
            check=check,
            ratio=5.0,
        )
        for kind in kinds
    ]
    steps, members, working = 5, *log_probs.shape[1:2], 33
    return Case(
        [
            *single,
            *batched,
            peer("SLSQP", peers.slsqp_stacking, log_probs[0], check=check),
            peer("softmax and L-BFGS", peers.softmax_stacking, log_probs[0], check=check),
        ],
        # At each step of Newton's method a gradient, and the curvature of the working set.
        flops=steps * points * (4.0 * members + 2.0 * working**2),
        numbers=steps * 2.0 * members * points,
    )


_CHANNELS, _CELLS, _BATCH, _SIDE = 8, 1, 64, 8  # of the networks


def multiply_adds(archs: np.ndarray, channels: int, cells: int, side: int, inputs: int = 1) -> int:
    """Count those of one image through all networks, with only their own operations."""
    total = len(archs) * 9 * inputs * channels * side**2
    for stage in range(3):
        width, positions = channels * 2**stage, (side // 2**stage) ** 2
        per_edge = np.where(archs == CONV_3X3, 9, np.where(archs == CONV_1X1, 1, 0))
        total += cells * int(per_edge.sum()) * width**2 * positions
        if stage:
            total += len(archs) * (9 * 1.5 + 0.5) * width**2 * positions
    return int(total)


def training(count: int, steps: int = 20, of_networks: int = 200, of_steps: int = 150) -> Case:
    """Train cells on digits; a problem is one step of one architecture.

    The time of compiling is shared by as many networks and steps as a search may ask for. Ours
    predict as well, which the peer does not: for one batch of each kind of image.
    """
    data = split(load("digits"), sizes=(300, _BATCH, _BATCH))
    archs, work = connected()[:count], count * steps
    network = NATSNetworkConfig(_CHANNELS, _CELLS, classes=10)
    config = TrainConfig(network, steps=steps, batch=_BATCH, augment=NO_AUGMENTATION)

    def train():
        return train_population(jax.random.key(0), archs, data, config).trained

    def check(trained) -> tuple[str, bool]:
        failed = int(np.sum(trained.failed))
        return f"{failed} failed", failed == 0

    fields = {"check": check, "ratio": 2.0, "amortise": 1 / (of_networks * of_steps)}
    torch = (archs, data, steps, _BATCH, _CHANNELS, _CELLS)
    return Case(
        [
            ours("float32", train, problems=work, **fields),
            peer("PyTorch in a loop", peers.torch_training, *torch, problems=work),
        ],
        # A product forwards, and two of that size backwards.
        flops=3 * 2.0 * _BATCH * multiply_adds(archs, _CHANNELS, _CELLS, _SIDE) / count,
        numbers=0.0,
    )


def prediction(count: int, members: int = 10) -> Case:
    """Predict images with an ensemble of networks."""
    archs = connected()[:members].astype(np.int32)
    network = NATSNetworkConfig(_CHANNELS, _CELLS, classes=10)
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (count, _SIDE, _SIDE, 1), np.uint8)
    shape = members, weight_count(network, images.shape[1:])
    vectors = np.abs(draw.normal(size=shape)).astype(np.float32) / 10
    moments, shares = np.array([[0.5], [0.3]], np.float32), np.full(members, 1 / members)

    def predict(*own):
        return np.exp(predict_cells(network, *own, images, moments))

    def together():
        return ensemble_probabilities(shares, predict(vectors, archs))

    def one_by_one():
        each = (predict(vectors[i : i + 1], archs[i : i + 1])[0] for i in range(members))
        return sum(share * one for share, one in zip(shares, each, strict=True))

    def check(probabilities) -> tuple[str, bool]:
        total = np.asarray(probabilities).sum(1)
        return "", bool(np.allclose(total, 1, atol=1e-4))

    torch, loop = (archs, _CHANNELS, _CELLS, images, 256), "a loop over members"
    return Case(
        [
            ours("all at once", together, check=check, ratio=1.0),
            peer(loop, lambda: one_by_one, check=check),
            peer("PyTorch in a loop", peers.torch_loop, *torch, check=check),
        ],
        flops=2.0 * count * multiply_adds(archs, _CHANNELS, _CELLS, _SIDE),
        numbers=float(count * members * 10),
    )


def _first(size: tuple[int, int]) -> float:
    return size[0]


JOBS = {
    job.name: job
    for job in (
        Job(
            "wl",
            f"WL kernel matrix of n connected cells, h = {_DEPTH}",
            wl,
            {"small": (200,), "full": (2_000, 15_284)},
            {"small": (50, 100, 200, 400), "full": (1_000, 2_000, 4_000, 8_000)},
        ),
        Job(
            "gp",
            "Gaussian process on n points: amplitude and noise",
            gaussian_process,
            {"small": (40,), "full": (150,)},
            {"small": (20, 30, 40, 50), "full": (150, 300, 600, 1_200)},
        ),
        Job(
            "search",
            "candidates 10 → n of all 15,625 cells, refitted at each step",
            candidates,
            {"small": (14,), "full": (150,)},
            {"small": (12, 13, 14, 15), "full": (40, 80, 150, 300)},
            lambda budget: budget - 9,
        ),
        Job(
            "recombination",
            "recombination n → k",
            recombination,
            {"small": ((60, 5),), "full": ((150, 10), (2_000, 50), (20_000, 100))},
            {
                "small": ((60, 5), (120, 5), (240, 5), (480, 5)),
                "full": ((2_000, 50), (4_000, 50), (8_000, 50), (16_000, 50)),
            },
            _first,
        ),
        Job(
            "stacking",
            "stacking 150 candidates on n points",
            stacking,
            {"small": (200,), "full": (5_000,)},
            {"small": (100, 200, 300, 400), "full": (1_250, 2_500, 5_000, 10_000)},
        ),
        Job(
            "training",
            f"training n cells, {_CHANNELS} channels, batches of {_BATCH}, {_SIDE}×{_SIDE}: a step",
            training,
            {"small": (4,), "full": (16,)},
            {"small": (4, 8, 12, 16), "full": (4, 8, 16, 32)},
        ),
        Job(
            "prediction",
            "n images by an ensemble of 10",
            prediction,
            {"small": (100,), "full": (10_000,)},
            {"small": (100, 200, 300, 400), "full": (1_250, 2_500, 5_000, 10_000)},
        ),
    )
}
