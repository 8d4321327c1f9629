"""Images without meaning, for tests of how images are read and split; and damage to files."""

import numpy as np

from bqnes_jax.data import Dataset, Examples


def images(n, side=32, channels=3, classes=10, seed=0):
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (n, side, side, channels), dtype=np.uint8)
    return Examples(pixels, generator.permutation(np.arange(n) % classes).astype(np.int32))


def toy(name="own", train=100, test=40):
    return Dataset(name, 10, images(train, 4), images(test, 4, seed=1))


def same(a, b):
    np.testing.assert_array_equal(a.inputs, b.inputs)
    np.testing.assert_array_equal(a.labels, b.labels)
    assert (a.inputs.dtype, a.labels.dtype) == (np.uint8, np.int32)


def damage(path, place, mask):
    """Change one byte at a place from 0 to 1 of a file; a mask of 0 cuts it short there."""
    content = bytearray(path.read_bytes())
    if mask:
        content[int(place * len(content))] ^= mask
    else:
        del content[int(place * len(content)) :]
    path.write_bytes(content)
