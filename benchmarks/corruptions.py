"""How fast images are corrupted, in nineteen ways, beside imagecorruptions-imaug.

Real CIFAR images (from BQNES_DATA_DIR, repeated as often as needed), a chunk at a time; compilation
is reported apart. The peer, which works on one image at a time and has the settings of ImageNet-C,
gets fewer images of the same size in the same run: the ratio is the result. With `--sheet FILE.png`
all corruptions of one image are drawn instead.

    python benchmarks/corruptions.py
    python benchmarks/corruptions.py --sheet benchmarks/results/corruptions.png
"""

import contextlib
import io
import warnings
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import tyro
from matplotlib.figure import Figure
from shared import RESULTS, console, show, timed, write

from bqnes_jax.data import CORRUPTIONS, FAMILIES, SEVERITIES, corrupt, load


@dataclass(frozen=True)
class Options:
    """Corrupt many images, or draw one."""

    images: int = 10_000
    """How many images are corrupted."""
    chunk: int = 100
    """How many at once; larger ones do not fit into the cache of a CPU."""
    severity: int = 3
    """From 1 to 5."""
    peer_images: int = 200
    """How many images imagecorruptions-imaug gets; 0 for none."""
    dataset: str = "cifar10_subset"
    """Where the images are from; `digits` for 8×8 ones, which the peer refuses."""
    sheet: Path | None = None
    """Draw a picture of all corruptions into this file, and measure nothing."""
    image: int = 53
    """Which image is drawn."""
    out: Path = RESULTS / "corruptions.json"
    """Where to write the results."""


def measure(name: str, images, options: Options) -> dict:
    """Corrupt all images; the first chunk is corrupted once before, for the compilation."""
    keys = jax.random.split(jax.random.key(0), -(-len(images) // options.chunk))
    chunks = [images[i : i + options.chunk] for i in range(0, len(images), options.chunk)]
    _, first = timed(corrupt, name, keys[0], chunks[0], options.severity)
    # A smaller last chunk would be a program of its own.
    whole = [chunk for chunk in chunks if len(chunk) == options.chunk] or chunks
    seconds = 0.0
    for key, chunk in zip(keys, whole, strict=False):
        _, took = timed(corrupt, name, key, chunk, options.severity)
        seconds += took
    done = sum(map(len, whole))
    once = seconds / len(whole)
    return {"images": done, "seconds": seconds, "compiling": max(first - once, 0.0)}


def measure_peer(name: str, images: np.ndarray, options: Options) -> float:
    """Return images per second; the first call compiles what Numba compiles."""
    from imagecorruptions import corrupt as corrupt_one

    def all_images():
        return [corrupt_one(image, options.severity, name) for image in images]

    # It prints and warns about single images.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
        corrupt_one(images[0], options.severity, name)
        _, seconds = timed(all_images)
    return len(images) / seconds


def draw(options: Options) -> None:
    images = jnp.asarray(load(options.dataset).train.inputs[options.image][None])
    names = list(CORRUPTIONS)
    figure = Figure(figsize=(6.2, 1.02 * len(names)), layout="constrained")
    grid = figure.subplots(len(names), 1 + len(SEVERITIES))
    for row, name in zip(grid, names, strict=True):
        shown = [images] + [corrupt(name, jax.random.key(0), images, s) for s in SEVERITIES]
        for axes, picture in zip(row, shown, strict=True):
            axes.imshow(
                np.asarray(picture[0]).squeeze(),
                cmap="gray",
                vmin=0,
                vmax=255,
                interpolation="nearest",
            )
            axes.set(xticks=[], yticks=[])
        row[0].set_ylabel(name.replace("_", "\n"), fontsize=8)
    for axes, title in zip(grid[0], ("clean", *SEVERITIES), strict=True):
        axes.set_title(str(title), fontsize=9)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=72)
    options.sheet.parent.mkdir(parents=True, exist_ok=True)
    # 64 levels of each colour: a smaller file, and nothing that the eye would miss.
    coarse = np.asarray(PIL.Image.open(picture).convert("RGB")) // 4 * 4
    PIL.Image.fromarray(coarse).save(options.sheet, optimize=True)
    console.print(f"written to {options.sheet}")


def main(options: Options) -> None:
    if options.sheet is not None:
        return draw(options)
    own = load(options.dataset).train.inputs
    images = jnp.asarray(own[np.arange(options.images) % len(own)])
    large_enough = min(own.shape[1:3]) >= 32
    results, rows = {}, []
    for family, names in FAMILIES.items():
        for name in names:
            one = results[name] = measure(name, images, options)
            one["per second"] = one["images"] / one["seconds"]
            row = [family, name, f"{one['per second']:,.0f}", f"{one['compiling']:.1f} s", "", ""]
            if options.peer_images and large_enough:
                one["peer per second"] = measure_peer(name, own[: options.peer_images], options)
                one["ratio"] = one["per second"] / one["peer per second"]
                row[-2:] = f"{one['peer per second']:,.0f}", f"{one['ratio']:.1f}"
            rows.append(row)
    seconds = sum(one["seconds"] for one in results.values())
    compiling = sum(one["compiling"] for one in results.values())
    show(
        f"images per second, severity {options.severity}, {options.images:,} images of "
        f"{'×'.join(map(str, own.shape[1:]))} ({options.peer_images:,} for the peer)",
        ["family", "corruption", "here", "compiling", "imagecorruptions", "ratio"],
        rows,
        names=2,
    )
    console.print(f"all of them: {seconds:.0f} s, and {compiling:.0f} s of compiling")
    write(
        options.out,
        {
            "options": vars(options) | {"sheet": None, "out": ""},
            "jax": jax.__version__,
            "seconds": seconds,
            "compiling": compiling,
            "corruptions": results,
        },
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
