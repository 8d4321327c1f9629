"""How to do it again: commands, and the settings that decide the outcome."""

import dataclasses
import json
from typing import Any

import yaml

from bqnes_jax import algorithms
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.families import families, is_named
from bqnes_jax.identity import identity
from bqnes_jax.report import html
from bqnes_jax.report.answers import Part
from bqnes_jax.report.html import Section
from bqnes_jax.runs import Ensemble, RunConfig, preset_config
from bqnes_jax.spaces import GraphSpace, Space

_SENTENCE = (
    "Save the lines below as config.yaml, and give the command; they are what differs from "
    "`bqnes run` with no flags. config.json in the directory of the run has every field."
)


def how_to_do_it_again(ensemble: Ensemble) -> Part:
    """Return commands, the config, what was in use, and versions."""
    run = ensemble.run
    used = used_settings(run.config, run.space)
    body = html.block(commands(ensemble)) + html.block(changes(run.config))
    body += html.fold("All settings that this run used", html.block(_yaml(used)))
    body += html.fold("Versions", html.definitions(run.versions))
    return Part(Section("How to do it again", _SENTENCE, body))


def commands(ensemble: Ensemble) -> str:
    """Return what does the run again, and selects the ensemble if that is not the run's own."""
    config = ensemble.run.config
    again = "bqnes run --config config.yaml --out again"
    family = "" if config.family in families() else f" --family {config.family}"
    if not is_named(config.family):
        again = f"bqnes_jax.search(family=family, data=data, budget={config.search.budget}, …)"
        family = " --family package.module:family"
    if (ensemble.method, ensemble.size) == (
        algorithms.find_trainable(config.algorithm).method,
        config.ensemble_size,
    ):
        return again
    selected = f"--method {ensemble.method} --size {ensemble.size} --save"
    return f"{again}\nbqnes reselect again{family} {selected}"


def changes(config: RunConfig) -> str:
    """Return, as a config file, what differs from the default of its family and data."""
    if config.family not in families():
        default = dataclasses.replace(preset_config(), family=config.family, train=config.train)
    else:
        default = preset_config(family=config.family, data=config.data)
    given = {"family": config.family, "data": config.data}
    found = given | _difference(_plain(config), _plain(default))
    return yaml.safe_dump(found, sort_keys=False, default_flow_style=False)


def used_settings(config: RunConfig, space: Space) -> dict[str, Any]:
    """Return the fields that decided something in this run: of the other choices none is shown."""
    plain = {name: value for name, value in _plain(config).items() if value is not None}
    plain["train"] = identity(config.train) if dataclasses.is_dataclass(config.train) else {}
    if plain["train"].get("steps") is not None:
        plain["train"].pop("epochs", None)
    strategy = algorithms.find_trainable(config.algorithm).strategy
    for name in _find_unused(config.search, strategy, space):
        *path, last = name.split(".")
        place = plain["search"]
        for part in path:
            place = place[part]
        place.pop(last, None)
    if config.evaluate == "alone":
        plain.pop("shortlist", None)
    return {name: value for name, value in plain.items() if value not in ({}, None)}


def _find_unused(search: SearchConfig, strategy: str, space: Space) -> list[str]:
    """Name the fields of a search that play no part in it."""
    listed = space.size is not None and search.exhaustive
    graphs = search.kernel.name in ("wl", "wl_rbf") or (
        search.kernel.name == "auto" and isinstance(space, GraphSpace)
    )
    adapted = _has_fitted_leaves(search, graphs)
    conditions = {
        "population": strategy == "evolution",
        "parents": strategy == "evolution" or not listed,
        "diversity": False,  # of an algorithm that needs a table
        "temperature": search.temperature is not None,
        "observations": search.temperature is None,
        "effective": search.temperature == "auto",
        "kernel.iterations": graphs,
        "kernel.layer_weights": graphs,
        "fit.kernel_bounds": adapted,
        "fit.kernel_steps": adapted,
        "warp.floor": search.warp.warp in ("linear", "moment"),
        "warp.depth": search.warp.warp in ("log", "lognormal"),
        "exhaustive": space.size is not None,
        **dict.fromkeys(("pool", "mutated", "climbs"), not listed),
        "samples": space.size is None,
    }
    return [name for name, used in conditions.items() if not used]


def _has_fitted_leaves(search: SearchConfig, graphs: bool) -> bool:
    """Tell whether the kernel has numbers of its own that a search fits."""
    kernel = search.kernel
    if kernel.name in ("rbf", "wl_rbf") or (kernel.name == "auto" and not graphs):
        return True
    return graphs and kernel.layer_weights == "fitted"


def _difference(plain: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that differ, nested ones too."""
    found = {}
    for name, value in plain.items():
        other = default.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            value = _difference(value, other)
            if value:
                found[name] = value
        elif value != other:
            found[name] = value
    return found


def _plain(config: RunConfig) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(config)))  # YAML has no tuples


def _yaml(content: dict[str, Any]) -> str:
    content = json.loads(json.dumps(content, default=str))
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=60)
