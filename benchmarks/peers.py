"""What a user would pick instead: each function prepares a job and returns what is to be timed.

A package that is missing raises ImportError.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bqnes_jax.data import Split
from bqnes_jax.spaces.nats import EDGES


def grakel_gram(graphs: list[tuple[dict, dict]], iterations: int = 1) -> Callable[[], np.ndarray]:
    """WL kernel matrix of graphs, each its edges (node: successors) and labels, by GraKeL."""
    import grakel

    return lambda: grakel.WeisfeilerLehman(n_iter=iterations, normalize=True).fit_transform(graphs)


def sklearn_fit(features: np.ndarray, targets: np.ndarray) -> Callable[[], float]:
    """Marginal likelihood at the best amplitude and noise, by scikit-learn."""
    make = _sklearn_model()
    return lambda: make().fit(features, targets).log_marginal_likelihood_value_


def _sklearn_model():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, WhiteKernel

    function = ConstantKernel(1.0, (1e-4, 1e4)) * DotProduct(0.0, "fixed")
    kernel = function + WhiteKernel(1e-3, (1e-6, 1e1))
    return lambda: GaussianProcessRegressor(kernel, alpha=1e-10)


def gpytorch_fit(features: np.ndarray, targets: np.ndarray) -> Callable[[], float]:
    """Marginal likelihood at the best amplitude and noise, by GPyTorch and torch's L-BFGS."""
    import gpytorch
    import torch

    x, y = (torch.tensor(array, dtype=torch.float64) for array in (features, targets))

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.LinearKernel()

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    def fit() -> float:
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        model = Model(likelihood).double()
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        model.train(), likelihood.train()
        optimiser = torch.optim.LBFGS(
            model.parameters(), max_iter=50, line_search_fn="strong_wolfe"
        )

        def closure():
            optimiser.zero_grad()
            loss = -objective(model(x), y)
            loss.backward()
            return loss

        optimiser.step(closure)
        return len(y) * objective(model(x), y).item()

    return fit


def sklearn_search(
    rows: np.ndarray,
    row_of: np.ndarray,
    log_likelihoods: np.ndarray,
    initial: np.ndarray,
    budget: int,
    temperature: float,
) -> Callable[[], np.ndarray]:
    """WSABI-L and uncertainty sampling by hand around scikit-learn's Gaussian process.

    `rows` are the different features of a space, of which architecture i has `rows[row_of[i]]`.
    """
    make = _sklearn_model()

    def search() -> np.ndarray:
        chosen = list(initial)
        while len(chosen) < budget:
            tempered = log_likelihoods[chosen] / temperature
            likelihoods = np.exp(tempered - tempered.max())
            targets = np.sqrt(2 * (likelihoods - 0.8 * likelihoods.min()))
            model = make().fit(rows[row_of[chosen]], targets)
            mean, deviation = model.predict(rows, return_std=True)
            scores = ((mean * deviation) ** 2)[row_of]
            scores[chosen] = -np.inf
            chosen.append(int(np.argmax(scores)))
        return np.array(chosen)

    return search


class Sparse(NamedTuple):
    """A probability vector on few points."""

    indices: np.ndarray
    weights: np.ndarray


def numpy_tree(functions: np.ndarray, weights: np.ndarray) -> Callable[[], Sparse]:
    """Recombination by divide and conquer (Tchernychova–Lyons), in NumPy.

    Of 2(T + 1) groups of points, standing for them by their barycentres, T + 1 carry all the
    weight; the rest is dropped, and what is left divided again.
    """
    slots = functions.shape[1] + 1
    conditions = np.column_stack([np.ones(len(functions)), functions])

    def recombine() -> Sparse:
        left, mass = np.arange(len(weights)), weights.copy()
        while len(left) > slots:
            count = min(2 * slots, len(left))
            starts = np.arange(count) * len(left) // count
            sizes = np.diff(np.append(starts, len(left)))
            moments = np.add.reduceat(mass[left, None] * conditions[left], starts)
            totals = moments[:, 0]
            shares = _eliminate(moments / totals[:, None], totals) / totals
            mass[left] *= np.repeat(shares, sizes)
            left = left[np.repeat(shares > 0, sizes)]
        return Sparse(left, mass[left])

    return recombine


def _eliminate(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Empty all but as many points as there are conditions, along the null space of these."""
    rank = points.shape[1]
    null = np.linalg.qr(points, mode="complete")[0][:, rank:]
    weights, alive = weights.copy(), np.ones(len(weights), bool)
    for column in range(null.shape[1]):
        change = null[:, column]
        if not (change[alive] > 0).any():
            change = -change
        falls = alive & (change > 1e-14)
        where = np.flatnonzero(falls)
        reach = weights[where] / change[where]
        first = where[np.argmin(reach)]
        weights -= reach.min() * change
        alive[first], weights[first] = False, 0
        rest = null[:, column + 1 :]
        rest -= np.outer(null[:, column], rest[first] / null[first, column])
        rest[first] = 0
    return np.maximum(weights, 0)


def highs_vertex(functions: np.ndarray, weights: np.ndarray) -> Callable[[], Sparse]:
    """Recombination as a vertex of {w ≥ 0: all expectations as given}, by HiGHS's simplex."""
    from scipy.optimize import linprog

    conditions = np.vstack([np.ones(len(weights)), functions.T])
    cost = np.random.default_rng(0).random(len(weights))

    def solve() -> Sparse:
        found = linprog(cost, A_eq=conditions, b_eq=conditions @ weights, method="highs-ds").x
        indices = np.flatnonzero(found > 0)
        return Sparse(indices, found[indices])

    return solve


def slsqp_stacking(log_probs: np.ndarray) -> Callable[[], np.ndarray]:
    """Stacking weights by SciPy's sequential quadratic programming."""
    from scipy.optimize import minimize

    probs = np.exp(log_probs - log_probs.max(0))
    count, points = probs.shape

    def loss(weights):
        mixture = weights @ probs
        return -np.log(mixture).mean(), -(probs @ (1 / mixture)) / points

    def solve() -> np.ndarray:
        total = {"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like}
        return minimize(
            loss,
            np.full(count, 1 / count),
            jac=True,
            method="SLSQP",
            bounds=[(0, 1)] * count,
            constraints=total,
            options={"ftol": 1e-12, "maxiter": 1000},
        ).x

    return solve


def softmax_stacking(log_probs: np.ndarray) -> Callable[[], np.ndarray]:
    """Stacking weights as a softmax, by SciPy's L-BFGS."""
    from scipy.optimize import minimize
    from scipy.special import softmax

    probs = np.exp(log_probs - log_probs.max(0))
    count, points = probs.shape

    def loss(logits):
        weights = softmax(logits)
        mixture = weights @ probs
        slope = -(probs @ (1 / mixture)) / points
        return -np.log(mixture).mean(), weights * (slope - weights @ slope)

    options = {"ftol": 1e-14, "gtol": 1e-9, "maxiter": 5000}
    return lambda: softmax(
        minimize(loss, np.zeros(count), jac=True, method="L-BFGS-B", options=options).x
    )


def torch_loop(
    archs: np.ndarray, channels: int, cells: int, images: np.ndarray, batch: int
) -> Callable[[], np.ndarray]:
    """Mean of what networks say, one after another in PyTorch, with only their own operations."""
    import torch

    networks = [torch_network(arch, channels, cells, images.shape[-1]).eval() for arch in archs]
    pixels = torch.tensor(images).permute(0, 3, 1, 2)

    def predict() -> np.ndarray:
        total = 0
        with torch.inference_mode():
            for network in networks:
                parts = [network(part.float() / 255) for part in pixels.split(batch)]
                total = total + torch.softmax(torch.cat(parts), 1)
        return (total / len(networks)).numpy()

    return predict


def torch_network(arch: np.ndarray, channels: int, cells: int, inputs: int = 1, classes: int = 10):
    """Build the network of a cell of NATS-Bench, as plain as PyTorch users would."""
    import torch
    from torch import nn

    def conv(inputs, outputs, size, stride=1):
        return nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def operation(which, c):
        pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        return (None, nn.Identity(), conv(c, c, 1), conv(c, c, 3), pool)[which]

    class Cell(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.layers = nn.ModuleList(operation(int(which), c) for which in arch)

        def forward(self, x):
            nodes = [x, None, None, None]
            for (source, target), layer in zip(EDGES, self.layers, strict=True):
                if layer is not None and nodes[source] is not None:
                    out = layer(nodes[source])
                    nodes[target] = out if nodes[target] is None else nodes[target] + out
            return torch.zeros_like(x) if nodes[3] is None else nodes[3]

    class Reduction(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.convs = nn.Sequential(conv(c, 2 * c, 3, 2), conv(2 * c, 2 * c, 3))
            self.shortcut = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(c, 2 * c, 1, bias=False))

        def forward(self, x):
            return self.convs(x) + self.shortcut(x)

    layers = [nn.Conv2d(inputs, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)]
    for stage in range(3):
        layers += [Reduction(channels * 2 ** (stage - 1))] if stage else []
        layers += [Cell(channels * 2**stage) for _ in range(cells)]
    last = 4 * channels
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes)]
    return nn.Sequential(*layers, nn.BatchNorm2d(last), nn.ReLU(), *head)


def torch_training(
    archs: np.ndarray,
    data: Split,
    steps: int,
    batch: int,
    channels: int,
    cells: int,
) -> Callable[[], float]:
    """Train networks one after another in PyTorch, without evaluating; returns the last loss."""
    import torch

    images = torch.tensor(data.train.inputs).permute(0, 3, 1, 2).float()
    images = (images - images.mean()) / images.std()
    labels = torch.tensor(data.train.labels).long()
    per_epoch, loss_of = len(images) // batch, torch.nn.CrossEntropyLoss()

    def train_one(arch) -> float:
        model = torch_network(arch, channels, cells, images.shape[1])
        optimiser = torch.optim.SGD(
            model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        order = torch.arange(len(images))
        for step in range(steps):
            place = step % per_epoch
            order = order if place else torch.randperm(len(images))
            chosen = order[place * batch : (place + 1) * batch]
            optimiser.zero_grad()
            loss = loss_of(model(images[chosen]), labels[chosen])
            loss.backward()
            optimiser.step()
            schedule.step()
        return float(loss)

    return lambda: [train_one(arch) for arch in archs][-1]
