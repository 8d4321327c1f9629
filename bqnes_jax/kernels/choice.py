"""The choice of a kernel for a space, as part of a config."""

import dataclasses
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from bqnes_jax.errors import BQNESError, check_choice, check_positive, check_whole
from bqnes_jax.kernels.base import Kernel
from bqnes_jax.kernels.linear import Affine
from bqnes_jax.kernels.rbf import RBF, FeatureRBF
from bqnes_jax.kernels.wl import WL
from bqnes_jax.spaces.base import CoordinateSpace, GraphSpace, Space

Name = Literal["auto", "wl", "wl_rbf", "rbf", "affine"]
_ON_GRAPHS, _ON_COORDINATES = ("wl", "wl_rbf"), ("rbf", "affine")


@dataclasses.dataclass(frozen=True)
class KernelConfig:
    """How alike architectures are said to be.

    Attributes:
        name: wl (labelled subtrees that graphs share), wl_rbf (squared-exponential in the features
            of wl), rbf (squared-exponential in coordinates, with fitted length scales) or affine
            (linear in coordinates); auto is wl for a space of graphs and rbf for others.
        iterations: h, how deep the subtrees of wl are.
        layer_weights: what each of the h + 1 layers of wl counts: equal, fitted, or numbers.
    """

    name: Name = "auto"
    _: dataclasses.KW_ONLY
    iterations: int = 1
    layer_weights: Literal["equal", "fitted"] | tuple[float, ...] = "equal"

    def __post_init__(self) -> None:
        check_choice("kernel.name", self.name, get_args(Name))
        check_whole("kernel.iterations", self.iterations, 0)
        weights = self.layer_weights
        if not isinstance(weights, tuple):
            check_choice("kernel.layer_weights", weights, ("equal", "fitted"))
            return
        if len(weights) != self.iterations + 1:
            raise BQNESError(
                f"kernel.layer_weights are {len(weights)} numbers; {self.iterations} iterations "
                f"have {self.iterations + 1} layers: give one number for each."
            )
        check_positive("kernel.layer_weights", jnp.asarray(weights))


def make_kernel(space: Space, config: KernelConfig = KernelConfig()) -> Kernel:
    """Make the kernel that a config chooses; refuse one that the space does not allow.

    Example:
        >>> from bqnes_jax.spaces import NATS
        >>> make_kernel(NATS, KernelConfig("wl", iterations=2)).iterations
        2
    """
    graphs = _ON_GRAPHS if isinstance(space, GraphSpace) else ()
    coordinates = _ON_COORDINATES if isinstance(space, CoordinateSpace) else ()
    if not (graphs or coordinates):
        raise BQNESError(
            f"space {space.name!r} has neither graph nor coordinates, which tell how alike "
            "architectures are; give it one of them, or pass a kernel to make."
        )
    allowed = (*graphs, *coordinates)
    check_choice(f"kernel.name, for space {space.name!r},", config.name, ("auto", *allowed))
    name = allowed[0] if config.name == "auto" else config.name
    if isinstance(space, GraphSpace) and name in graphs:
        wl = _make_wl(space, config)
        return wl if name == "wl" else FeatureRBF(wl)
    assert isinstance(space, CoordinateSpace)
    if name == "affine":
        return Affine(space)
    none = jnp.zeros(len(space.options), jnp.int32)
    return RBF(space, jnp.ones(jax.eval_shape(space.coordinates, none).shape[-1]))


def _make_wl(space: GraphSpace, config: KernelConfig) -> WL:
    chosen = config.layer_weights
    weights = {"equal": None, "fitted": jnp.ones(config.iterations + 1)}
    return WL(
        space,
        config.iterations,
        buckets=None if space.size is not None else 4096,
        layer_weights=chosen if isinstance(chosen, tuple) else weights[chosen],
    )
