"""Every kind of search space, one or two of each: what is tested of all of them."""

from bqnes_jax.spaces import (
    DARTS,
    NATS,
    SLIMMABLE,
    EnumerableSpace,
    Product,
    Seeded,
    SlimmableSpace,
    Space,
    Subset,
)

SPACES: dict[str, Space] = {
    "NATS": NATS,
    "DARTS": DARTS,
    "SLIMMABLE": SLIMMABLE,
    "a small slimmable": SlimmableSpace(blocks=2, layers=3, widths=2),
    "Product": Product(depth=(1, 2, 3), width=(16, 32), activation=("relu", "tanh")),
    "a large product": Product(**{f"width_{i}": tuple(range(1, 9)) for i in range(9)}),
    "Subset": Subset(NATS, tuple(range(7_000, 7_125))),  # of all last three edges
    "Seeded": Seeded(NATS, 3),
    "Seeded DARTS": Seeded(DARTS, 2),
}


def is_numbered(space: Space) -> bool:
    """Tell whether a space says how many architectures it has, and numbers them."""
    return isinstance(space, EnumerableSpace) and space.size is not None
