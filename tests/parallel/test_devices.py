"""Members divided among devices and hosts: the same results as on one; less memory than hoped."""

import dataclasses
import json
import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bqnes_jax
from bqnes_jax.cli.shell import join_hosts
from bqnes_jax.errors import BQNESError
from bqnes_jax.parallel import (
    Chunk,
    agree,
    chunk_of,
    device_memory,
    in_chunks,
    make_mesh,
    mesh_for,
    own_part,
    spread,
    use_all_cores,
)
from bqnes_jax.runs import Run
from tests.runs.test_runs import CONFIG

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

OF_POPULATION = ("losses", "said", "predicted")


def start(*arguments, devices=1):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=os.environ | {"XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*processes):
    for process in processes:
        said, _ = process.communicate(timeout=600)
        assert process.returncode == 0, said


def free_address():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return f"localhost:{one.getsockname()[1]}"


@pytest.fixture(scope="module")
def of_eight(tmp_path_factory):
    """Return the results of eight devices and of one of them, from a process that has eight."""
    out = tmp_path_factory.mktemp("eight") / "out.npz"
    finish(start("-m", "tests.helpers.on_devices", str(out), devices=8))
    with np.load(out) as results:
        return dict(results)


@pytest.mark.slow
def test_eight_devices_give_what_one_gives(of_eight):
    assert of_eight["devices"] == 8
    assert of_eight["for three"] == 3
    names = [name.removeprefix("one/") for name in of_eight if name.startswith("one/")]
    assert len(names) == 7
    for name in names:
        one, many = of_eight[f"one/{name}"], of_eight[f"many/{name}"]
        assert np.isfinite(one).all()
        np.testing.assert_allclose(many, one, rtol=2e-4, atol=2e-4, err_msg=name)


@pytest.mark.slow
def test_two_processes_give_what_one_gives(of_eight, tmp_path):
    address, out = free_address(), str(tmp_path / "out.npz")
    finish(
        *(start("-m", "tests.helpers.on_devices", out, str(i), address, devices=2) for i in (0, 1))
    )
    with np.load(out) as results:
        assert results["devices"] == results["for three"] == 4  # no host is left out
        for name in OF_POPULATION:
            one, many = of_eight[f"one/{name}"], results[f"many/{name}"]
            np.testing.assert_allclose(many, one, rtol=2e-4, atol=2e-4)
        # One host ran out of memory, both went on with half as many.
        assert results["many/chunk"] == 1
        np.testing.assert_array_equal(results["many/halved"], np.arange(9.0))


@pytest.mark.slow
def test_two_hosts_do_one_run(tmp_path):
    """The first trains the supernet and writes the run, both evaluate slices for the store."""
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(CONFIG)))
    run = ["run", "--config", str(tmp_path / "config.json"), "--out", str(tmp_path / "two")]
    run += ["--hosts", "2", "--coordinator", free_address()]
    code = "import sys; from bqnes_jax.cli import main; sys.exit(main())"
    first, second = (start("-c", code, *run, "--host", str(i)) for i in (0, 1))
    said, _ = second.communicate(timeout=600)
    assert second.returncode == 0, said
    assert "accuracy" not in said and "accuracy" in first.communicate(timeout=600)[0]
    together, alone = Run.load(tmp_path / "two"), bqnes_jax.search(CONFIG, out=tmp_path / "one")
    assert len(together.store.keys()) == 6
    np.testing.assert_array_equal(together.record.archs, alone.record.archs)
    np.testing.assert_allclose(together.record.log_probs, alone.record.log_probs, rtol=2e-3)
    assert together.saved_ensemble().texts == alone.saved_ensemble().texts


@pytest.mark.slow
@pytest.mark.parametrize("told", [None, "3"])
def test_each_core_is_a_device_unless_said_otherwise(told):
    code = "from bqnes_jax.cli.shell import prepare_jax; prepare_jax(); import jax; "
    code += "print(jax.device_count())"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"JAX_NUM_CPU_DEVICES": told} if told else {}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert int(said.split()[-1]) == int(told or min(cores, 8))


def test_devices_stay_as_they_are_while_jax_is_at_work(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")
    before = jax.device_count()
    use_all_cores()
    assert jax.device_count() == before
    assert jax.config.jax_num_cpu_devices < 0


def test_shares_are_filled_up_and_results_whole():
    mesh = make_mesh(jax.devices()[:1])
    add = spread(lambda x, y, shift: {"sum": x + y + shift}, mesh, split=2)
    numbers = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(add(numbers, numbers, np.array(1.0))["sum"], 2 * numbers + 1)
    chunks = list(in_chunks(add, mesh, Chunk(2), (numbers, numbers), np.array(1.0)))
    assert [len(chunk["sum"]) for chunk in chunks] == [2, 1]
    np.testing.assert_array_equal(np.concatenate([c["sum"] for c in chunks]), 2 * numbers + 1)
    assert chunk_of(8, None, mesh) == chunk_of(8, 9, mesh) == Chunk(8)
    assert chunk_of(8, 3, mesh) == Chunk(3)
    assert mesh_for(None, mesh) == mesh_for(1, mesh) == mesh
    assert device_memory() > 1e6
    assert own_part([1, 2, 3]) == [1, 2, 3]
    assert agree(numbers) is numbers


def test_a_chunk_that_is_too_large_for_the_memory_is_halved():
    """With more than one member at once the program asks for 16 TB, which no machine here has."""
    mesh = make_mesh(jax.devices()[:1])

    def scratch(shape):  # of rows: XLA of JAX 0.12 cannot compile one of 16 TB
        return 0 * jnp.sort(jax.random.uniform(jax.random.key(0), shape))[0, 0]

    def hungry(x):
        return x + scratch((2, 2) if len(x) == 1 else (2**22, 2**20))

    chunk, members = Chunk(4), np.arange(5.0)
    with pytest.warns(UserWarning, match="out of memory with") as said:
        results = list(in_chunks(spread(hungry, mesh), mesh, chunk, (members,)))
    assert [str(w.message).split("; ")[1] for w in said] == ["going on with 2.", "going on with 1."]
    assert chunk == Chunk(1)
    np.testing.assert_array_equal(np.concatenate(results), members)

    def always(x):
        return x + scratch((2**22, 2**20))

    with pytest.raises(jax.errors.JaxRuntimeError, match=r"RESOURCE_EXHAUSTED|Out of memory"):
        list(in_chunks(spread(always, mesh), mesh, Chunk(1), (members,)))


def test_hosts_that_cannot_meet_are_refused(monkeypatch):
    join_hosts(None, None, None)  # alone: nothing to do
    join_hosts(1, None, None)
    with pytest.raises(BQNESError, match="where they meet is not known"):
        join_hosts(2, 0, None)
    with pytest.raises(BQNESError, match="which this is is not known"):
        join_hosts(2, None, "localhost:1")
    with pytest.raises(BQNESError, match="host is 2"):
        join_hosts(2, 2, "localhost:1")
    with pytest.raises(BQNESError, match="it must be ADDRESS:PORT"):
        join_hosts(2, 1, "localhost")
    for text in ("two", "²", "9" * 5000):
        monkeypatch.setenv("JAX_NUM_PROCESSES", text)
        with pytest.raises(BQNESError, match=r"\$JAX_NUM_PROCESSES is .*be a whole number"):
            join_hosts(None, None, None)
