"""Programs that are compiled quickly."""

import jax
import jax.numpy as jnp
import pytest

from bqnes_jax import compiling
from bqnes_jax.compiling import jit_quickly, little_optimisation


@pytest.fixture(autouse=True)
def untold(monkeypatch):
    """Forget how the suite compiles."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    little_optimisation.cache_clear()
    yield
    little_optimisation.cache_clear()


def test_alone_and_as_a_part(compilations):
    @jit_quickly("power")
    def root(x, power):
        return x ** (1 / power)

    assert root(9.0, power=2) == jax.jit(lambda x: root(x, power=2))(9.0) == 3
    assert jax.jit(lambda x: x + root(9.0, power=2))(1.0) == 4  # nothing of the part is traced
    assert jax.vmap(lambda x: root(x, power=2))(jnp.array([4.0, 9.0])).tolist() == [2, 3]
    assert jax.grad(lambda x: root(x, power=2))(4.0) == 0.25
    compilations()
    root(16.0, power=2)
    assert compilations() == 0


def test_options_of_another_compiler_are_left_out(monkeypatch):
    known = {"xla_backend_optimization_level": 1}
    assert known.items() <= little_optimisation().items()
    for options, left in (({"xla_of_another_year": True}, None), ({"xla_of": 1, **known}, known)):
        monkeypatch.setattr(compiling, "_LITTLE", options)
        little_optimisation.cache_clear()
        assert little_optimisation() == left
        assert jit_quickly()(jnp.negative)(1.0) == -1


def test_who_says_how_to_compile_is_heard(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=2")
    assert little_optimisation() is None
