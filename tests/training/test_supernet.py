"""The supernet: pieces and one go, stopping and going on, and what its slices predict."""

import concurrent.futures
import dataclasses
import functools
import resource
import shutil
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.data import NO_AUGMENTATION, Examples, Split, channel_moments, normalise
from bqnes_jax.errors import BQNESError
from bqnes_jax.files.digests import DIGESTS
from bqnes_jax.models import MobileNet, MobileNetConfig
from bqnes_jax.spaces import SlimmableSpace
from bqnes_jax.training import SupernetConfig, make_supernet, predict_slices, train_supernet
from bqnes_jax.training import checkpoints as checkpoints_module
from bqnes_jax.training.checkpoints import Checkpoints

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

SPACE = SlimmableSpace(blocks=2, layers=2)
NETWORK = MobileNetConfig(
    SPACE, channels=(3, 4), strides=(2, 1), expansion=2, stem=3, head=6, classes=3
)
CONFIG = SupernetConfig(
    NETWORK,
    steps=30,
    batch=8,
    augment=NO_AUGMENTATION,
    random_slices=1,
    recalibration_batches=3,
    save_every=12,  # the last piece is shorter
)


def make_data(seed=0):
    draw = np.random.default_rng(seed)

    def part(n):
        labels = draw.integers(0, 3, n)
        images = draw.integers(0, 80, (n, 8, 8, 1)) + 80 * labels[:, None, None, None]
        return Examples(images.astype(np.uint8), labels.astype(np.int32))

    return Split(part(30), part(9), part(11), classes=3)


@functools.cache
def programs(config=CONFIG):
    supernet = make_supernet(config)
    return (
        jax.jit(supernet.init),
        jax.jit(supernet.train, static_argnums=3),
        jax.jit(supernet.evaluate),
    )


@functools.cache
def trained():
    """The undisturbed run; more steps are asked for than the config has."""
    init, train, _ = programs()
    data = jax.device_put(make_data())
    state = init(jax.random.key(1), data)
    return train(jax.random.key(2), state, data, 40)


def equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def archs_of(*texts):
    return jnp.stack([SPACE.from_string(text) for text in texts])


@pytest.mark.slow
def test_the_loss_decreases_and_steps_are_counted():
    state, losses = trained()
    assert int(state.step) == 30 and bool(state.healthy)
    assert np.isfinite(losses[:30]).all() and np.isnan(losses[30:]).all(), "all steps are done"
    assert np.median(losses[20:30]) < 0.6 * np.median(losses[:5])


def test_a_state_goes_in_as_it_comes_out():
    """Also its weak types: where one differs, the second piece is compiled anew."""
    supernet, data, key = make_supernet(CONFIG), make_data(), jax.random.key(1)
    begun = jax.eval_shape(supernet.init, key, data)
    state, _ = jax.eval_shape(lambda key, state: supernet.train(key, state, data, 5), key, begun)
    assert jax.tree.map(jax.typeof, begun) == jax.tree.map(jax.typeof, state)


@pytest.mark.slow
def test_pieces_are_one_go():
    """Bit for bit, though the first two pieces are single steps within an epoch of three."""
    init, train, _ = programs()
    data = jax.device_put(make_data())
    state, losses = init(jax.random.key(1), data), []
    for steps in (1, 1, 40):
        state, some = train(jax.random.key(2), state, data, steps)
        losses.append(some)
    whole, all_losses = trained()
    equal(state, whole)
    np.testing.assert_array_equal(jnp.concatenate(losses)[:40], all_losses)


@pytest.mark.slow
def test_a_training_that_was_stopped_goes_on_to_the_same_weights(tmp_path, key):
    seen = []
    data = make_data()
    undisturbed = train_supernet(
        key, data, CONFIG, tmp_path / "a", progress=lambda *args: seen.append(args)
    )
    assert [step for step, _ in seen] == [12, 24, 30] and seen[-1][1] < seen[0][1]

    for stop_at in (12, 24):

        def stop(step, loss, stop_at=stop_at):
            if step == stop_at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_supernet(key, data, CONFIG, tmp_path / "b", progress=stop)
    later = []
    resumed = train_supernet(
        key, data, CONFIG, tmp_path / "b", progress=lambda step, _: later.append(step)
    )
    assert later == [30], "what was done is not done again"
    equal(resumed, undisturbed)
    again = train_supernet(
        key, data, CONFIG, tmp_path / "b", progress=lambda *_: pytest.fail("trained")
    )
    equal(again, undisturbed)

    # How often it is saved changes nothing; whatever the weights depend on is refused.
    train_supernet(key, data, dataclasses.replace(CONFIG, save_every=7), tmp_path / "b")
    for changed, says in (
        ((key, data, dataclasses.replace(CONFIG, learning_rate=0.2)), "different: learning_rate"),
        ((key, make_data(1), CONFIG), "different: inputs"),
        ((jax.random.key(7), data, CONFIG), "different: key"),
    ):
        with pytest.raises(BQNESError, match=says):
            train_supernet(*changed, tmp_path / "b")


@functools.cache
def finished():
    """What a training that nothing disturbs ends with."""
    with tempfile.TemporaryDirectory() as folder:
        return train_supernet(jax.random.key(0), make_data(), CONFIG, folder)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_put_aside_and_the_one_before_goes_on(tmp_path):
    key, data, undisturbed = jax.random.key(0), make_data(), finished()
    train_supernet(key, data, CONFIG, tmp_path)
    newest = tmp_path / "checkpoints" / "30"
    files = sorted(file for file in newest.rglob("*") if file.is_file())
    for file in files:
        file.write_bytes(b"damaged")
    with pytest.warns(UserWarning, match=r"checkpoints/30 is damaged .* goes on from step 2"):
        equal(train_supernet(key, data, CONFIG, tmp_path), undisturbed)
    assert newest.is_dir() and list(newest.parent.glob("damaged-30-*"))
    equal(train_supernet(key, data, CONFIG, tmp_path), undisturbed)


@pytest.mark.slow
def test_a_checkpoint_whose_description_is_damaged_is_put_aside(tmp_path):
    """Orbax reads all descriptions before any checkpoint, and stops at a number of 5,000 digits."""
    key, data, undisturbed = jax.random.key(0), make_data(), finished()
    train_supernet(key, data, CONFIG, tmp_path)
    description = tmp_path / "checkpoints" / "30" / "_CHECKPOINT_METADATA"
    for content in ("9" * 5_000, "[" * 100_000, "no JSON"):
        description.write_text(f'{{"commit_timestamp_nsecs": {content}}}')
        with pytest.warns(UserWarning, match=r"checkpoints/30 is damaged \(its description cannot"):
            equal(train_supernet(key, data, CONFIG, tmp_path), undisturbed)


def test_a_checkpoint_of_other_numbers_is_damaged(tmp_path):
    """Orbax reads it without complaint, but it is not what was saved."""
    key, data, undisturbed = jax.random.key(0), make_data(), finished()
    train_supernet(key, data, CONFIG, tmp_path)
    other = jax.tree.map(lambda leaf: leaf + 1 if leaf.dtype == np.float32 else leaf, undisturbed)
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        shutil.rmtree(tmp_path / "checkpoints" / "30")
        checkpoints._manager.reload()
        noted = (tmp_path / "checkpoints" / DIGESTS).read_text().splitlines(keepends=True)
        before = "".join(line for line in noted if not line.endswith("/files\n")).encode()
        checkpoints.save(other)
        (tmp_path / "checkpoints" / DIGESTS).write_bytes(before)
    with pytest.warns(UserWarning, match="its numbers are not those that were saved"):
        equal(train_supernet(key, data, CONFIG, tmp_path), undisturbed)


def test_a_step_that_is_saved_again_is_not_taken_for_the_first(tmp_path, monkeypatch):
    """Whoever is killed after saving has not noted the files; those of before do not count."""
    key, data, undisturbed = jax.random.key(0), make_data(), finished()
    train_supernet(key, data, CONFIG, tmp_path)
    newest = tmp_path / "checkpoints" / "30"
    (newest / "default" / "manifest.ocdbt").write_bytes(b"damaged")
    noted = checkpoints_module.note

    def killed(directory, name, digest):
        if name.endswith("/files"):
            raise KeyboardInterrupt
        noted(directory, name, digest)

    monkeypatch.setattr(checkpoints_module, "note", killed)
    with pytest.warns(UserWarning, match="its files are not"), pytest.raises(KeyboardInterrupt):
        train_supernet(key, data, CONFIG, tmp_path)
    monkeypatch.undo()
    never = lambda *_: pytest.fail("trained again")  # noqa: E731
    equal(train_supernet(key, data, CONFIG, tmp_path, progress=never), undisturbed)


def test_digests_that_cannot_be_read_put_nothing_aside(tmp_path):
    key, data = jax.random.key(0), make_data()
    train_supernet(key, data, CONFIG, tmp_path)
    digests = tmp_path / "checkpoints" / DIGESTS
    digests.unlink()
    digests.mkdir()
    with pytest.raises(BQNESError, match="SHA256SUMS"):
        train_supernet(key, data, CONFIG, tmp_path)
    assert not list((tmp_path / "checkpoints").glob("damaged-*"))


def test_orbax_does_not_see_damaged_files(tmp_path, capfd):
    """Some of its threads would print tracebacks of them."""
    key, data, undisturbed = jax.random.key(0), make_data(), finished()
    train_supernet(key, data, CONFIG, tmp_path)
    manifest = tmp_path / "checkpoints" / "30" / "default" / "manifest.ocdbt"
    content = bytearray(manifest.read_bytes())
    content[len(content) // 2] ^= 1
    manifest.write_bytes(content)
    with pytest.warns(UserWarning, match="its files are not those that were saved"):
        equal(train_supernet(key, data, CONFIG, tmp_path), undisturbed)
    assert "Traceback" not in capfd.readouterr().err


def test_a_full_disk_while_a_checkpoint_is_saved_loses_nothing(tmp_path, capfd, caplog):
    """A file may not grow beyond a size here, which TensorStore reports as it does a full disk."""
    key, data, undisturbed = jax.random.key(0), make_data(), finished()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def no_more_room(step, loss):
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))

    try:
        with pytest.raises(BQNESError, match=r"cannot be written .*; what was stored before is in"):
            train_supernet(key, data, CONFIG, tmp_path, progress=no_more_room)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "Traceback" not in capfd.readouterr().err + caplog.text
    equal(train_supernet(key, data, CONFIG, tmp_path), undisturbed)


@pytest.mark.slow
def test_what_tensorstore_says_of_a_full_disk_becomes_a_remedy(tmp_path, monkeypatch):
    state = trained()[0]
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:

        def full(*_, **__):
            raise ValueError("Error opening: [OS error 28: ENOSPC No space left on device]")

        monkeypatch.setattr(checkpoints._manager, "save", full)
        with pytest.raises(
            BQNESError, match=r"\(No space left on device\).*free some space and run"
        ):
            checkpoints.save(state)


def test_a_supernet_that_two_runs_share_is_trained_once(tmp_path, recwarn):
    """The second waits for the first, says so, and finds what that has trained."""
    key, data, undisturbed = jax.random.key(0), make_data(), finished()
    trainings = []

    def second(step, loss):
        if not trainings:
            trainings.append(pool.submit(train_supernet, key, data, CONFIG, tmp_path, progress=no))
            time.sleep(0.5)

    def no(step, loss):
        raise AssertionError("it is trained twice")

    with concurrent.futures.ThreadPoolExecutor() as pool:
        equal(train_supernet(key, data, CONFIG, tmp_path, progress=second), undisturbed)
        equal(trainings[0].result(), undisturbed)
    assert any("at work in another process; waiting" in str(one.message) for one in recwarn)


@pytest.mark.slow
def test_statistics_of_a_slice_are_those_of_its_batches():
    """The stem's by hand over all chosen images, the others' batch by batch; no image twice."""
    params, data = trained()[0].params, make_data()
    arch = SPACE.from_string("20-31")
    slices = programs()[2](params, arch[None], jax.device_put(data))
    places = np.arange(24) * 30 // 24
    assert np.unique(places).size == 24
    moments = channel_moments(jnp.asarray(data.train.inputs))
    network, means, squares = MobileNet(NETWORK), [], []
    run = jax.jit(functools.partial(network.apply, train=True, mutable=["batch_stats"]))
    for i in range(3):
        images = normalise(jnp.asarray(data.train.inputs[places[i::3]]), *moments)
        _, updated = run({"params": params}, arch, images)
        statistics = updated["batch_stats"]
        norms = [statistics[module][norm] for module in statistics for norm in statistics[module]]
        means.append([norm.mean for norm in norms])
        squares.append([norm.var + norm.mean**2 for norm in norms])
    mean = [sum(parts) / 3 for parts in zip(*means, strict=True)]
    var = [sum(p) / 3 - m**2 for p, m in zip(zip(*squares, strict=True), mean, strict=True)]
    expected = np.concatenate([np.ravel(x) for pair in zip(mean, var, strict=True) for x in pair])
    np.testing.assert_allclose(slices.batch_stats[0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_slices_together_are_slices_one_by_one():
    params, data = trained()[0].params, jax.device_put(make_data())
    archs = archs_of("33-33", "10-10", "21-30")
    evaluate = programs()[2]
    together = evaluate(params, archs, data)
    assert together.valid_log_probs.shape == (3, 9, 3)
    assert together.test_log_probs.shape == (3, 11, 3)
    assert together.failed.tolist() == [False] * 3
    np.testing.assert_allclose(np.exp(together.valid_log_probs).sum(-1), 1, rtol=1e-5)
    picked = np.take_along_axis(
        np.asarray(together.valid_log_probs), np.asarray(data.valid.labels)[None, :, None], 2
    )
    np.testing.assert_allclose(together.valid_loss, -picked.mean((1, 2)), rtol=1e-5)
    for i in range(3):
        alone = evaluate(params, archs[i : i + 1], data)
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_allclose(a[0], b[i], rtol=1e-4, atol=1e-4),
            alone,
            together,
        )
    moments = channel_moments(data.train.inputs)
    again = predict_slices(CONFIG, params, together.batch_stats, archs, data.test.inputs, moments)
    np.testing.assert_allclose(again, together.test_log_probs, rtol=1e-5, atol=1e-5)
    places = np.arange(24) * 30 // 24  # the images of recalibration speak for all 30
    seen, labels = (part[places] for part in data.train)
    fitted = predict_slices(CONFIG, params, together.batch_stats, archs, seen, moments)
    own = jnp.take_along_axis(fitted, labels[None, :, None], 2).sum((1, 2)) * 30 / 24
    np.testing.assert_allclose(together.train_log_likelihood, own, rtol=1e-4)
    with pytest.raises(BQNESError, match="batch_stats has shape"):
        predict_slices(
            CONFIG, params, together.batch_stats[:, :5], archs, data.test.inputs, moments
        )


def test_a_slice_of_broken_weights_is_marked_and_disturbs_no_other():
    """NaN in the last layer of the second block: whoever has it fails."""
    params, data = trained()[0].params, jax.device_put(make_data())
    archs = archs_of("33-33", "10-10", "21-30")
    evaluate = programs()[2]
    healthy = evaluate(params, archs, data)
    layer = params["blocks_1_rest"]
    broken = {**params, "blocks_1_rest": {**layer, "expand": layer["expand"] * jnp.nan}}
    spoilt = evaluate(broken, archs, data)
    assert spoilt.failed.tolist() == [True, False, False]
    for leaf in (spoilt.valid_log_probs, spoilt.test_log_probs, spoilt.valid_loss):
        assert np.isnan(leaf[0]).all()
    for ours, theirs in zip(spoilt, healthy, strict=True):
        np.testing.assert_array_equal(ours[1:], theirs[1:])


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_training(tmp_path, key):
    """A label that does not exist has a loss of NaN, in the step it is first in."""
    init, train, _ = programs()
    data = jax.device_put(make_data())
    labels = data.train.labels.at[1].set(99)
    bad = dataclasses.replace(data, train=data.train._replace(labels=labels))
    start = init(jax.random.key(1), data)
    state, losses = train(jax.random.key(2), start, bad, 40)
    assert not state.healthy and int(state.step) == 30
    lost = np.isnan(losses[:30])
    assert lost.any() and (np.diff(lost.astype(int)) >= 0).all(), "frozen from then on"
    before = start
    for _ in range(lost.argmax()):
        before, _ = train(jax.random.key(2), before, data, 1)
    equal(state.params, before.params)
    with pytest.raises(BQNESError, match="labels are from"):
        train_supernet(key, jax.device_get(bad), CONFIG, tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"batch": 0},
        {"momentum": 1.0},
        {"learning_rate": -1.0},
        {"weight_decay": -1.0},
        {"random_slices": -1},
        {"save_every": 0},
    ],
)
def test_bad_configs_are_refused(wrong):
    with pytest.raises(BQNESError, match=next(iter(wrong))):
        dataclasses.replace(CONFIG, **wrong)


def test_a_batch_larger_than_the_data_is_refused(tmp_path, key):
    with pytest.raises(BQNESError, match="batch is 99"):
        train_supernet(key, make_data(), dataclasses.replace(CONFIG, batch=99), tmp_path)
