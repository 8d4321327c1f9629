"""The figures of a report: what they show, and that they can be read."""

import xml.etree.ElementTree

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest

from bqnes_jax import report
from bqnes_jax.files.text import plain
from bqnes_jax.kernels import WL
from bqnes_jax.metrics import disagreement, ece
from bqnes_jax.report import (
    architectures,
    html,
    plots,
    predict_each,
    rank_correlation,
    write_report,
)
from bqnes_jax.report.answers import against_what, how_good
from bqnes_jax.report.members import draw_by_class, why_these_members
from bqnes_jax.report.rivals import compare
from bqnes_jax.report.worth import look_at_search, was_it_worth_it
from bqnes_jax.spaces import DARTS, NATS, Product
from bqnes_jax.surrogates import wsabi
from tests.helpers.reported import COUNT, HOPELESS, TEMPERATURE, TEST, VALID, make_run

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


@pytest.mark.slow
def test_the_files_of_the_figures(tmp_path):
    run = make_run(tmp_path / "run")
    (tmp_path / "plots").mkdir()
    for name in ("architecture-77.png", "weights.pdf", "mine.png"):
        (tmp_path / "plots" / name).write_bytes(b"")
    assert write_report(run, tmp_path) == tmp_path / "report.html"
    members = run.saved_ensemble().members
    names = {"reliability", "reliability-before", "rivals", "candidates", "evidence", "map"}
    names |= {"surrogate", "disagreement", "by-class", *(f"architecture-{i}" for i in members)}
    files = {path.name: path.read_bytes() for path in (tmp_path / "plots").iterdir()}
    assert set(files) == {f"{n}.{form}" for n in names for form in ("png", "pdf")} | {"mine.png"}
    for name in names:
        assert files[f"{name}.png"].startswith(b"\x89PNG") and len(files[f"{name}.png"]) > 2000
        assert files[f"{name}.pdf"].startswith(b"%PDF")
    assert not (tmp_path / "run" / "report.html").exists()


def test_candidates_are_predicted_from_those_before_them(tmp_path):
    run = make_run(tmp_path, failed=(3,))
    record, search = run.record, run.config.search
    counts = jnp.array([5, 7])
    archs, values = jnp.asarray(record.archs), jnp.asarray(record.log_likelihoods)
    mean, sd, log_scale = predict_each(
        archs, values, counts, search.warp, search.fit, NATS, search.kernel, TEMPERATURE
    )
    assert np.isnan(mean[:5]).all()
    for first, last in ((5, 7), (7, 9)):
        mask = np.arange(COUNT) < first
        known = np.where(np.isfinite(record.log_likelihoods), record.log_likelihoods, -np.inf)
        model = wsabi.fit(
            WL(NATS),
            record.archs,
            known,
            mask=mask,
            temperature=TEMPERATURE,
            config=search.warp,
            fit_config=search.fit,
        )
        expected = model.predict(record.archs[first:last])
        np.testing.assert_allclose(mean[first:last], expected.mean, rtol=1e-3)
        np.testing.assert_allclose(sd[first:last] ** 2, expected.variance, rtol=1e-2, atol=1e-6)
        np.testing.assert_allclose(
            log_scale[first:last], known[mask].max() / TEMPERATURE, rtol=1e-6
        )


def test_rank_correlation():
    a = np.array([3.0, 1.0, 2.0, 2.0])
    assert rank_correlation(a, -np.exp(a)) == pytest.approx(-1)
    assert rank_correlation(a, np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(-0.316228, abs=1e-5)
    assert np.isnan(rank_correlation(a, np.ones(4))) and np.isnan(rank_correlation(a[:1], a[:1]))
    assert np.isnan(rank_correlation(a[:0], a[:0]))


def test_the_map_keeps_distances():
    points = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 1.0], [3.0, 1.0]])
    places, shares = report.kernel_coordinates(points @ points.T)
    before, after = (np.linalg.norm(x[:, None] - x, axis=2) for x in (points, places))
    np.testing.assert_allclose(after, before, atol=1e-6)
    np.testing.assert_allclose(shares, (0.9, 0.1))
    for gram in (np.ones((1, 1)), np.ones((3, 3))):
        places, shares = report.kernel_coordinates(gram)
        assert not places.any() and shares == (0, 0)


def test_networks_that_learnt_nothing_do_not_squeeze_the_others():
    low, high = plots.range_of(HOPELESS)
    assert high == -70 and -200 < low < -80
    assert plots.range_of(np.array([np.nan])) == (-1, 0)
    assert plots.range_of(np.array([-3.0])) == (-3.5, -2.5)


def test_figures_show_what_was_measured(tmp_path):
    run = make_run(tmp_path)
    ensemble, labels = run.saved_ensemble(), run.record.test_labels
    compared = compare(ensemble)
    parts = [how_good(ensemble, compared), against_what(ensemble, compared)]
    parts += [why_these_members(ensemble), was_it_worth_it(ensemble, look_at_search(run))]
    drawn = {one.name: one.figure for part in parts for one in part.drawings}
    title = drawn["reliability"].axes[0].get_title(loc="left")
    error = float(ece(ensemble.test_log_probs, labels, log=True))
    assert title == f"After calibration: ECE {error:.4f}"
    bars = [bar.get_height() for bar in drawn["reliability"].axes[1].patches]
    assert sum(bars) == TEST
    names = [text.get_text() for text in drawn["rivals"].axes[0].get_yticklabels()]
    assert names[0] == "BQ-S" and {"Best single", "All equal", "Random ensemble"} < set(names)
    probabilities = np.exp(run.test_log_probs(ensemble.members))
    expected = 100 * np.asarray(disagreement(probabilities).pairwise)
    texts = [text.get_text() for text in drawn["disagreement"].axes[0].texts]
    assert texts == ["–" if i == j else f"{expected[i, j]:.1f}" for i in range(3) for j in range(3)]
    cell = drawn[f"architecture-{ensemble.members[0]}"].axes[0]
    names = [text.get_text() for text in cell.texts]
    assert len(names) == 4 + np.sum(ensemble.archs[0] != 0)
    best = next(line for line in drawn["candidates"].axes[0].lines if len(line.get_xdata()) == 9)
    losses = -run.record.log_likelihoods / VALID
    np.testing.assert_allclose(best.get_ydata(), np.minimum.accumulate(losses), rtol=1e-5)


def test_classes_are_as_many_as_can_be_read():
    shares = np.linspace(0, 1, 5 * 60).reshape(5, 60)
    drawing = draw_by_class(shares, np.arange(3))
    shown = [text.get_text() for text in drawing.figure.axes[0].get_xticklabels()]
    assert shown == [str(c) for c in range(40, 60)] and "20 classes" in drawing.caption


def test_labels_of_a_cell_do_not_overlap():
    figure = architectures.cell(np.full(6, 3), "")
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 10
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_both_cells_of_darts_are_drawn():
    arch = np.asarray(DARTS.sample(jax.random.key(0), 1)[0])
    figure = architectures.draw(DARTS, arch, "#7, weight 0.25")
    figure.canvas.draw()
    for axes, edges in zip(figure.axes, DARTS.decode(arch).values(), strict=True):
        boxes = [text.get_window_extent() for text in axes.texts]
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
        drawn = [(*text.get_position(), text.get_text()[:3]) for text in axes.texts]
        assert drawn == [(i // 2, source, name[:3]) for i, (name, source) in enumerate(edges)]
    assert "two cells before" in architectures.how_to_read(DARTS)


def test_svg_is_sound():
    svg = html.to_svg(
        "x", 'a "quoted" & <strange> name', architectures.cell(np.arange(6) % 5, "#1")
    )
    assert xml.etree.ElementTree.fromstring(svg).get("aria-label") == 'a "quoted" & <strange> name'


@pytest.mark.parametrize(
    "name", ["$x_1$", r"$\frac{$", "a_b^c", r"\alpha", "half \udcff", "a\x1bb"]
)
def test_names_from_files_are_text_in_figures(name):
    """Neither a formula, which may be none, nor a control sequence."""
    space = Product(**{name: (name, "other")})
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # letters as letters
        drawn = architectures.draw(space, np.zeros(1, int), name)
        svg = html.to_svg("drawing", "a drawing", drawn)
    words = ["".join(e.itertext()).strip() for e in xml.etree.ElementTree.fromstring(svg).iter()]
    assert words.count(plain(name)) >= 3, "the title, the choice, and what was chosen"
    settled = architectures.draw(space, np.zeros(1, int), name)
    plots.settle(settled)
    assert plots.to_bytes(settled, "png") and plots.to_bytes(settled, "pdf")
