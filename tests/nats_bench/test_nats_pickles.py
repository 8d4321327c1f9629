"""Nothing but tensors, numbers and plain containers is made of a pickle of NATS-Bench."""

import bz2
import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bqnes_jax import nats_bench
from bqnes_jax.data.archives import refuse_damaged
from bqnes_jax.errors import BQNESError
from tests.helpers import published
from tests.nats_bench.test_nats_archive import refused

# Nothing here depends on JAX's precision.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


class Bomb:
    def __reduce__(self):
        return os.system, ("touch exploded",)


def test_a_file_that_calls_anything_is_refused(archive, monkeypatch):
    monkeypatch.chdir(archive)
    for bomb in ([Bomb()], {"200": Bomb()}):
        content = bz2.compress(pickle.dumps(bomb, 4))
        (archive / "000000.pickle.pbz2").write_bytes(content)
        says = r"asks for \w+\.system, which no file of NATS-Bench needs; it is not safe"
        refused(archive, says)
    (archive / "meta.pickle.pbz2").write_bytes(content)
    refused(archive, says)
    assert not (archive / "exploded").exists()


def test_a_tensor_that_calls_anything_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Disguised(published.Storage):
        def __reduce__(self):
            return published.FROM_BYTES, (pickle.dumps(Bomb(), 2),)

    class Tensor(published.Tensor):
        def __reduce__(self):
            return published.REBUILD, (Disguised(None), 0, (1,), (1,), False, {})

    tensor = nats_bench.unpickle(io.BytesIO(published.dump(Tensor(None))))
    with pytest.raises(BQNESError, match=r"asks for \w+\.system"):
        tensor.array()
    assert not (tmp_path / "exploded").exists()


def test_what_an_object_wants_to_be_set_to_is_left_out():
    class Sly:
        def __reduce__(self):
            return published.FROM_BYTES, (b"",), {"content": 1, "numbers": 2}

    found = nats_bench.unpickle(io.BytesIO(published.dump([Sly()])))
    assert found[0].content == b"" and callable(found[0].numbers)
    # A function as the object: {"a": 1} does not become its attributes.
    stream = published.dump(published.REBUILD)[:-1] + b"}\x8c\x01aK\x01sb."
    assert not hasattr(nats_bench.unpickle(io.BytesIO(stream)), "a")


def test_tensors_are_read_as_they_were_written():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(np.float32) for s in ((2, 3, 1, 1), (4,), ())]
    arrays.append(np.arange(3))
    stream = published.dump([published.Tensor(array) for array in arrays])
    for tensor, array in zip(nats_bench.unpickle(io.BytesIO(stream)), arrays, strict=True):
        np.testing.assert_array_equal(tensor.array(), array)
        assert tensor.array().dtype == array.dtype


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ((0, (3,), (1,)), "larger than its numbers"),
        ((1, (2,), (1,)), "larger than its numbers"),
        ((-1, (2,), (1,)), "larger than its numbers"),
        ((0, (-1, -2), (1, 1)), "larger than its numbers"),
        ((0, (1 << 62, 4), (4, 1)), "larger than its numbers"),
        ((0, ("2",), (1,)), "larger than its numbers"),
        ((0, (2,), (1 << 40,)), "out of order"),
        ((0, (1, 2), (1, 0)), "out of order"),
    ],
)
def test_tensors_that_claim_memory_they_do_not_have(claims, says):
    class Lying(published.Tensor):
        def __reduce__(self):
            storage = published.Storage(np.arange(2, dtype=np.float32))
            return published.REBUILD, (storage, *claims, False, {})

    tensor = nats_bench.unpickle(io.BytesIO(published.dump(Lying(None))))
    with pytest.raises(pickle.UnpicklingError, match=says):
        tensor.array()


@given(st.data())
def test_any_altered_pickle_is_read_or_refused(data):
    state = {"w": published.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)), "x": 1.5}
    content = bytearray(published.dump({"200": state, "n": np.float64(2)}))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) // 2, 2 * len(content))) :]
    try:
        with refuse_damaged(Path("file")):
            found = nats_bench.unpickle(io.BytesIO(content))
            found["200"]["w"].array()
    except BQNESError as error:
        assert "get it again" in str(error)
