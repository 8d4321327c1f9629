"""Tell how a search here differs from the paper's: in its config, and in words."""

from pathlib import Path

import imported

from bqnes_jax.candidates import SearchConfig
from bqnes_jax.errors import BQNESError
from bqnes_jax.spaces import NATS
from bqnes_jax.surrogates import TEMPERATURE

RECIPES = {  # of tables of cells that were trained here
    "digits": "8×8 pixels; C = 4, N = 1 instead of 16 and 5; 150 steps of 64",
    "cifar10": "12×12 pixels; C = 8, N = 3 instead of 16 and 5; 2,000 steps of 64",
    "cifar100": "8×8 pixels; C = 16, N = 1 instead of 16 and 5; 1,800 steps of 64",
}


def search_config(size: int, data: str = "live") -> SearchConfig:
    """Return the config of a search, of half of the cells at most.

    Published results have the published temperature.
    """
    least = 2 * SearchConfig().initial
    if size < least:
        raise BQNESError(f"{size} cells are too few to search in; it takes {least}.")
    temperature = TEMPERATURE if data == "nats" else None
    return SearchConfig(budget=min(SearchConfig().budget, size // 2), temperature=temperature)


def stride(size: int) -> int:
    """Return the step through the ranking of cells that surrogates are tested at."""
    return 25 if size >= 1000 else 5


def what_cells_lack(name: str, setting: dict) -> tuple[int, list[str]]:
    """Return how many cells there are, and what is smaller about them than in the paper."""
    if setting["data"] == "nats":
        return setting["architectures"], imported.what_is_left_out(setting)
    size, (train, valid, test) = setting["cells"], setting["images"]
    recipe = RECIPES.get(Path(name).stem)
    return size, [
        f"{size:,} cells instead of {NATS.size:,}, no two alike to the WL kernel",
        f"{train:,} images to train on, {valid:,} to validate, {test:,} to test",
        *([recipe] if recipe else []),
        "one training of each cell",
    ]


def scaled_down_surrogates(name: str, setting: dict) -> str:
    size, lacks = what_cells_lack(name, setting)
    budget, every = search_config(size).budget, stride(size)
    if budget < SearchConfig().budget:
        lacks.append(f"a search sees {budget} cells instead of {SearchConfig().budget}")
    if every < 25:
        lacks.append(f"tested on every {every}th cell of the ranking instead of every 25th")
    if size < NATS.size:
        lacks.append(f"tested on {-(-size // every)} cells, which are left out of the fit")
    return "; ".join(lacks) + "."


def scaled_down_searches(name: str, setting: dict) -> str:
    size, lacks = what_cells_lack(name, setting)
    config = search_config(size)
    if config.budget < SearchConfig().budget:
        mutations = max(config.budget - config.population, 0)
        lacks.append(
            f"searches see {config.budget} cells instead of {SearchConfig().budget}, so that "
            f"evolution with its population of {config.population} makes {mutations} mutations, "
            f"and NES-BS is fitted to the best {config.budget}"
        )
    return "; ".join(lacks) + "."
