"""Files of predictions: one `.npz`, or a directory with a file for each model; read without trust.

predictions.npz             arrays valid, valid_labels, and maybe test, test_labels, names
predictions/valid/NAME.npy  what a model says, (points, classes); or NAME.csv
predictions/test/NAME.npy   the same for the test points, if there are any
predictions/valid_labels.csv, predictions/test_labels.csv, or .npy
"""

import io
from pathlib import Path

import numpy as np

from bqnes_jax.errors import BQNESError
from bqnes_jax.files import read_small, refuse_damaged
from bqnes_jax.files.arrays import open_npz, read_npy

_ARRAYS = ("valid", "valid_labels", "test", "test_labels", "names")
_FORMS = (".npy", ".csv")


def read_predictions(path: Path) -> dict[str, np.ndarray]:
    """Read what `bqnes_jax.combine` takes, by the names of its arguments."""
    if path.is_dir():
        found = _read_directory(path)
    else:
        with refuse_damaged(path), open_npz(path) as file:
            found = {name: file[name].read() for name in _ARRAYS if name in file}
            others = ", ".join(file.names) or "nothing"
        if "valid" not in found:
            raise BQNESError(
                f"{path} has no array valid, but {others}; save one with "
                "numpy.savez(path, valid=…, valid_labels=…)."
            )
    for name in ("valid_labels", "test_labels"):
        if name in found and found[name].dtype.kind == "f":
            found[name] = _as_whole(path, name, found[name])
    return found


def _read_directory(path: Path) -> dict[str, np.ndarray]:
    names, valid = _read_models(path / "valid")
    found = {"names": np.array(names), "valid": valid}
    if (path / "test").is_dir():
        tested, found["test"] = _read_models(path / "test")
        if tested != names:
            raise BQNESError(
                f"{path / 'test'} has files of {', '.join(tested)}, and {path / 'valid'} of "
                f"{', '.join(names)}; each model needs one of the same name in both."
            )
    for name in ("valid_labels", "test_labels"):
        for form in _FORMS:
            if (file := path / f"{name}{form}").exists():
                found[name] = _read(file).reshape(-1)
    return found


def _read_models(directory: Path) -> tuple[list[str], np.ndarray]:
    """Read the files of a directory in the order of their names, one for each model."""
    files = sorted(file for file in directory.glob("*") if file.suffix in _FORMS)
    if not files:
        raise BQNESError(
            f"{directory} has no .npy or .csv file; it needs one for each model, with a row for "
            "each point and a column for each class."
        )
    arrays = [_read(file) for file in files]
    for file, array in zip(files, arrays, strict=True):
        if array.shape != arrays[0].shape:
            raise BQNESError(
                f"{file} has shape {array.shape}, and {files[0]} {arrays[0].shape}; all models "
                "must predict the same points and classes."
            )
    return [file.stem for file in files], np.stack(arrays)


def _read(file: Path) -> np.ndarray:
    with refuse_damaged(file, remedy="write it again."):
        return read_npy(file) if file.suffix == ".npy" else _read_csv(file)


def _read_csv(file: Path) -> np.ndarray:
    """Read numbers between commas; the first line may name the columns."""
    text = read_small(file).decode()
    first, _, rest = text.partition("\n")
    try:
        [float(cell) for cell in first.split(",")]
    except ValueError:
        text = rest
    return np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2)


def _as_whole(path: Path, name: str, labels: np.ndarray) -> np.ndarray:
    whole = labels.astype(int) if np.isfinite(labels).all() else np.zeros(0)
    if not np.array_equal(whole, labels):
        raise BQNESError(
            f"{name} of {path} are not whole numbers; a label is the number of a class."
        )
    return whole
