"""Files of others: whatever is in them, they are read, or refused in one sentence; nothing is run.

Each loader gets its own valid file back, altered: bits and pieces of it, the numbers and types that
its headers claim, the values in its JSON, with checksums that are right where there are any.
"""

import json
import os
import pickle
import re
import struct
import sys
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from bqnes_jax.cli import main
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import as_json, write_bound
from bqnes_jax.runs import Run
from bqnes_jax.storage import DamagedEntryWarning
from tests.helpers.alterations import Bomb, Choices, altered, headed, npy, signed, unzipped, zipped
from tests.helpers.loaders import KINDS, a_run

# Nothing here is computed by JAX.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


def refused(load, *arguments):
    """Load, and return the error, which can only be our own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedEntryWarning)
        try:
            load(*arguments)
        except BQNESError as error:
            return error
    return None


def test_there_are_enough_cases():
    assert sum(kind.cases for kind in KINDS.values()) >= 10_000


@pytest.mark.parametrize("name", KINDS)
def test_altered_files_are_read_or_refused(name, tmp_path, monkeypatch, request):
    make, form, cases = KINDS[name]
    cases = cases if request.config.getoption("--all") else cases // 5
    (tmp_path / "files").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    loader = make(tmp_path / "files")
    assert refused(loader.load, loader.content) is None
    tried = []
    # A type that a function is not made for shows in tests only; a pickle chooses what to call.
    never = (
        MemoryError | NameError if form == "pickle" else MemoryError | NameError | TypeCheckError
    )

    @settings(max_examples=cases)
    @given(st.binary(min_size=90, max_size=90))
    def check(tape):
        content = altered(Choices(tape), loader.content, form)
        error = refused(loader.load, content)
        assert not isinstance(error and error.__cause__, never), content
        tried.append(error is None)

    check()
    assert len(tried) >= cases
    assert not list((tmp_path / "here").iterdir()), "something was run"


OBJECTS = npy(np.array([Bomb(), None]))


def objects_within(content):
    """Yield files in which one array after the other is made of objects."""
    members = unzipped(content)
    for name in members:
        yield zipped({**members, name: OBJECTS})


@pytest.mark.parametrize("name", KINDS)
def test_objects_in_files_are_not_made(name, tmp_path, monkeypatch):
    make, form, _ = KINDS[name]
    (tmp_path / "here").mkdir()
    (tmp_path / "files").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    loader = make(tmp_path / "files")
    files = [pickle.dumps(Bomb(), protocol) for protocol in range(6)]
    files += [pickle.dumps({"data": Bomb(), "200": [Bomb()]}, 4), OBJECTS]
    files += [b"seed: !!python/object/apply:os.mkdir [exploded]"]
    files += objects_within(loader.content) if form == "npz" else []
    for content in files:
        error = refused(loader.load, content)
        assert error is not None or name == "run/robustness.json", content
    assert not list((tmp_path / "here").iterdir()), "something was run"
    pickle.loads(files[0])
    assert list((tmp_path / "here").iterdir()), "this is what it would have done"


def claims(form, content):
    """Yield files that claim to hold more than they do."""
    if form == "npy":
        for shape in (b"1000000000000,", b"1000000, 1000000", b"0, 999999999999999999", b"9" * 18):
            yield re.sub(rb"\(.*\)", b"(" + shape + b")", content)
        yield re.sub(rb"'[<|]..'", b"'<U0'", re.sub(rb"\(.*\)", b"(1000000000000,)", content))
    elif form == "npz":
        members = unzipped(content)
        for name in members:
            for claim in claims("npy", members[name]):
                yield zipped({**members, name: claim})
    elif form == "manifest":
        manifest = json.loads(content)
        for name in ("valid_points", "test_points", "classes"):
            for number in (2**28, 2**30, 10**12, 10**400):
                yield signed({**manifest, name: number})
    elif form in ("entry", "tree"):
        yield content[:8] + b"\xff" * 4 + content[12:]
        yield content[:8] + b"\xff\xff\x0f\x00" + content[12:]
        (length,) = struct.unpack("<I", content[8:12])
        header, body = json.loads(content[12 : 12 + length]), content[12 + length + 32 :]
        field = {"entry": "variables", "tree": "tree"}[form]
        for shape in ([2**28], [2**30], [10**12], [10**400], [2**39] * 4, [0, 2**39, 2**39]):
            for described in (["float64", shape], {"list": [["uint8", shape]] * 3}):
                yield headed(content[:8], {**header, field: described}, body)
    elif form == "pickle":
        for code in (b"\x8e", b"\x8d", b"\x96", b"\x95"):  # bytes, text, bytearray, frame
            yield b"\x80\x05" + code + struct.pack("<Q", 2**36)
        yield b"\x80\x02T\xff\xff\xff\x7f"
        yield b"\x80\x02\x8b\xff\xff\xff\x7f"
    elif form == "text":
        laughs = "".join(f"a{i + 1}: &a{i + 1} [{f'*a{i}, ' * 9}]\n" for i in range(40))
        yield f"a0: &a0 [1]\n{laughs}seed: *a40\n".encode()
        yield b"seed: 0x" + b"f" * 10**4
    else:
        for match in re.finditer(rb"\d+", content[:300]):
            yield content[: match.start()] + b"1000000000000" + content[match.end() :]
        yield content[:4] + b"\xff" * 12 + content[16:]


@pytest.mark.parametrize("name", KINDS)
def test_what_a_file_claims_takes_no_memory(name, tmp_path):
    make, form, _ = KINDS[name]
    loader = make(tmp_path)
    tracemalloc.start()
    try:
        for content in claims(form, loader.content):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            error = refused(loader.load, content)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 20e6, error
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.form != "pickle"])
def test_a_file_of_ten_gigabytes_takes_no_memory(name, tmp_path):
    loader = KINDS[name].make(tmp_path)
    loader.path.write_bytes(loader.content[:100])
    os.truncate(loader.path, 10**10)  # the rest takes no place on the disk
    tracemalloc.start()
    try:
        error = refused(loader.read)
        assert tracemalloc.get_traced_memory()[1] < 50e6, error
    finally:
        tracemalloc.stop()


def test_a_small_file_that_unpacks_to_a_huge_one(tmp_path):
    start = b"\x93NUMPY\x01\x00"
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (300000000,), }\n"
    zeros = start + struct.pack("<H", len(header)) + header + bytes(300_000_000)
    content = zipped({"x.npy": zeros}, zipfile.ZIP_DEFLATED)
    assert len(content) < 3e6
    for name, kind in KINDS.items():
        if kind.form == "npz":
            folder = tmp_path / name.replace("/", "-")
            folder.mkdir()
            error = refused(kind.make(folder).load, content)
            assert "would unpack to 300," in str(error)


@pytest.mark.parametrize(
    "alien",
    [
        {"type": "alien.Feature", "content": {}},
        {"pythonClassName": "alien.Feature", "tensor": {"dtype": "uint8"}},
        {"python_class_name": "alien.Feature", "tensor": {"dtype": "uint8"}},
    ],
)
def test_a_prepared_set_imports_nothing(alien, tmp_path, monkeypatch):
    """TFDS would import the module of any feature that it does not know."""
    (tmp_path / "alien.py").write_text("open('exploded', 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "set").mkdir()
    loader = KINDS["prepared/features"].make(tmp_path / "set")
    features = json.loads(loader.content)
    features["featuresDict"]["features"]["image"] = alien
    hidden = {**features, "jsonFeature": {"json": json.dumps({"image": alien})}}
    del hidden["featuresDict"]
    for content in (alien, features, hidden):
        assert refused(loader.load, json.dumps(content).encode()) is not None
    assert "alien" not in sys.modules and not (tmp_path / "exploded").exists()


def test_a_run_imports_nothing(tmp_path, monkeypatch):
    """One whose family is in a module asks for it, even where the module lies at hand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "alien.py").write_text("open('exploded', 'w').close()")
    (tmp_path / "run").mkdir()
    a_run(tmp_path / "run")
    np.save("x.npy", np.zeros((1, 2, 2, 1)))
    content = json.loads((tmp_path / "run" / "config.json").read_text())
    content["config"] |= {"family": "alien:family", "train": {}, "prior": "alien:prior"}
    write_bound(tmp_path / "run" / "config.json", as_json(content))
    for command in (["report", "run"], ["predict", "run", "--input", "x.npy"]):
        assert main(command) == 1
    with pytest.raises(BQNESError, match=r"if you trust its code .*--family alien:family"):
        Run.load("run")
    assert "alien" not in sys.modules and not (tmp_path / "exploded").exists()
