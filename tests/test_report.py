"""The report of a run: its numbers, its page, and that it can be read on a telephone."""

import dataclasses
import html
import html.parser
import re
import shutil
import subprocess
import threading
import xml.etree.ElementTree

import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
import yaml

from bqnes_jax import report
from bqnes_jax.errors import BQNESError
from bqnes_jax.families import CellFamily
from bqnes_jax.files import write_json
from bqnes_jax.files.text import plain
from bqnes_jax.kernels import WL
from bqnes_jax.metrics import disagreement, ece
from bqnes_jax.report import (
    architectures,
    plots,
    predict_each,
    rank_correlation,
    summary,
    write_report,
)
from bqnes_jax.runs import Ensemble, Record, Run, configure
from bqnes_jax.spaces import NATS, Product
from bqnes_jax.storage import Entry, Manifest, Store
from bqnes_jax.surrogates import wsabi
from bqnes_jax.types import Status

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

# One shape for all runs here, so that each selection is compiled once.
COUNT, VALID, TEST, CLASSES = 9, 40, 30, 3
TEMPERATURE = 7.5
MANIFEST = Manifest("nats", "toy", {"steps": 3}, VALID, TEST, CLASSES)
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def make_run(directory, counts=(5, 7, 9), failed=(), algorithm="BQ-S", size=3, status=0, **changed):
    """Make a run as if its networks had been trained, and save its ensemble."""
    random = np.random.default_rng(0)
    archs = np.asarray(NATS.from_index(random.choice(NATS.size, COUNT, replace=False)))
    labels = {"valid": np.arange(VALID) % CLASSES, "test": np.arange(TEST) % CLASSES}

    def predictions(truth, skill):
        logits = random.normal(size=(len(truth), CLASSES))
        logits[np.arange(len(truth)), truth] += skill
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    store = Store.open(directory / "store", MANIFEST)
    log_probs = np.full((COUNT, VALID), np.nan, np.float32)
    for i, arch in enumerate(archs):
        valid, test = (predictions(truth, 1.5) for truth in labels.values())
        if i in failed:
            store.put(Entry(NATS.to_string(arch), 0, "failed"))
            continue
        store.put(Entry(NATS.to_string(arch), 0, "ok", valid, test, variables=np.ones(2)))
        log_probs[i] = valid[np.arange(VALID), labels["valid"]]
    record = Record(
        archs.astype(np.int32),
        log_probs.sum(axis=1),
        log_probs,
        np.zeros(COUNT, np.float32),
        np.asarray(WL(NATS).gram(archs)),
        np.zeros(COUNT, np.float32),
        np.array(TEMPERATURE, np.float32),
        np.full(COUNT, 1 / COUNT, np.float32),
        np.array(counts, np.int32),
        np.linspace(1, 2.5, len(counts)).astype(np.float32),
        np.linspace(-0.8, -0.9, len(counts)).astype(np.float32),
        np.full(len(counts), 0.05, np.float32),
        np.full(len(counts), status, np.int32),
        labels["test"],
        np.array([8, 8, 1]),
        np.array(CLASSES),
    )
    config = configure(
        data="toy", algorithm=algorithm, ensemble_size=size, initial=counts[0], budget=COUNT
    )
    write_json(directory / "config.json", {"versions": {"bqnes-jax": "0", "jax": "1"}})
    run = Run(directory, config, CellFamily(config.train), record._replace(**changed))
    if len(failed) < COUNT:
        run.ensemble().save()
    return run


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a run and the page of its report."""
    directory = tmp_path_factory.mktemp("written")
    run = make_run(directory)
    assert write_report(run) == directory / "report.html"
    return run, Page(directory / "report.html")


@pytest.fixture
def no_files(monkeypatch):
    """Leave the files of figures empty, which saves most of the time."""
    monkeypatch.setattr(plots, "to_bytes", lambda figure, form: b"")


class Page(html.parser.HTMLParser):
    """What a page is made of; refuses tags that do not match."""

    def __init__(self, path):
        super().__init__()
        self.open, self.attributes, self.text, self.titles = [], [], path.read_text(), []
        self.feed(self.text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, *attr) for attr in attrs]
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, *attr) for attr in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.titles.append(data)

    def values(self, name, tag=None):
        return [value for of, attr, value in self.attributes if attr == name and tag in (None, of)]


SECTIONS = [
    "Results",
    "Calibration",
    "Weights",
    "Architectures",
    "Search",
    "Map",
    "Surrogate",
    "Disagreement",
    "How to do it again",
]


def test_the_table(written):
    run, _ = written
    rows = summary(run)
    assert [(row.name, row.size) for row in rows] == [
        ("Best single", 1),
        *(
            (name, size)
            for size in (3, 5)
            for name in ("BQ-S", "BQ-R", "beam", "corrective", "BQ-L")
        ),
    ]
    assert rows[0].metrics == run.ensemble(1, "top").metrics
    assert rows[2].metrics == run.ensemble(3, "recombine").metrics


@pytest.mark.parametrize(
    ("algorithm", "size", "names"),
    [
        (
            "NES-RE",
            3,
            ["evolution+restack", "evolution+recombine", "beam", "corrective", "evolution+logpool"],
        ),
        ("BQ-R", 2, ["BQ-R"]),
        ("ei+stack", 2, ["ei+stack"]),
    ],
)
def test_names_in_the_table(tmp_path, algorithm, size, names):
    sizes = (3,) if size == 3 else ()
    rows = summary(make_run(tmp_path, algorithm=algorithm, size=size), sizes)
    assert [(row.name, row.size) for row in rows[1:]] == [(name, size) for name in names]


def test_the_page(written, tmp_path):
    run, page = written
    assert page.titles == SECTIONS

    rows = summary(run)
    shown = [float(value) for value in page.values("value", "data")]
    assert shown == [number for row in rows for number in row.metrics]
    assert page.text.count('<tr class="own"><td>BQ-S</td><td>3</td>') == 1
    for field, best in (("accuracy", max), ("ece", min), ("log_likelihood", max)):
        value = best(getattr(row.metrics, field) for row in rows)
        assert f'<b><data value="{value!r}">' in page.text
    own, single = rows[1].metrics, rows[0].metrics
    result = (
        f"BQ-S with 3 members: {100 * own.accuracy:.1f} % accuracy, log-likelihood "
        f"{own.log_likelihood:.1f} against {single.log_likelihood:.1f} of the best single network."
    )
    assert re.sub(r"-(\d)", r"−\1", result) in page.text
    assert f"The temperature {rows[1].temperature:.2f} after pooling" in page.text
    config = re.search(r"<pre>(family: .*?)</pre>", page.text, re.DOTALL).group(1)
    (tmp_path / "config.yaml").write_text(config)
    assert configure(file=tmp_path / "config.yaml") == run.config
    assert yaml.safe_load(config)["search"]["budget"] == COUNT
    assert "bqnes run --config config.yaml" in page.text and "bqnes reselect" not in page.text


def test_the_page_needs_nothing_else(written):
    _, page = written
    assert "http" not in page.text and "@import" not in page.text and not page.values("src")
    named = page.values("href") + [f"#{name}" for name in re.findall(r"url\(#(.*?)\)", page.text)]
    named = {name for name in named if not name.startswith("data:image/png;base64,")}
    ids = page.values("id")
    assert len(ids) == len(set(ids)) and {f"#{name}" for name in ids} == named


def test_the_files_of_the_figures(tmp_path):
    run = make_run(tmp_path / "run")
    (tmp_path / "plots").mkdir()
    for name in ("architecture-77.png", "mine.png"):
        (tmp_path / "plots" / name).write_bytes(b"")
    assert write_report(run, tmp_path) == tmp_path / "report.html"
    members = run.saved_ensemble().members
    names = {"reliability", "reliability-single", "weights", "likelihoods", "evidence", "map"}
    names |= {"surrogate", "disagreement", *(f"architecture-{i}" for i in members)}
    files = {path.name: path.read_bytes() for path in (tmp_path / "plots").iterdir()}
    assert set(files) == {f"{n}.{form}" for n in names for form in ("png", "pdf")} | {"mine.png"}
    for name in names:
        assert files[f"{name}.png"].startswith(b"\x89PNG") and len(files[f"{name}.png"]) > 2000
        assert files[f"{name}.pdf"].startswith(b"%PDF")
    assert not (tmp_path / "run" / "report.html").exists()


def test_it_is_about_the_ensemble_that_was_saved(tmp_path, no_files):
    run = make_run(tmp_path)
    run.ensemble(2, "top").save()
    page = Page(write_report(run))
    assert "us+top with 2 members" in page.text
    assert '<tr class="own"><td>us+<wbr>top</td><td>2</td>' in page.text
    assert "bqnes reselect again --method top --size 2 --save" in page.text


def test_it_is_the_same_in_a_thread(written, tmp_path, no_files):
    (run, page), paths = written, []
    thread = threading.Thread(target=lambda: paths.append(write_report(run, tmp_path)))
    thread.start()
    thread.join()
    assert paths and Page(paths[0]).text == page.text


INFINITE = {
    "log_evidence": np.array([-np.inf, -0.9, -0.9]),
    "evidence_sd": np.array([np.inf, 1, 1]),
}
NO_EVIDENCE = {"log_evidence": np.full(3, -np.inf), "evidence_sd": np.full(3, np.inf)}
HOPELESS = np.array([-70, -72, -75, -80, -90, -1e5, -np.inf, -74, -73], np.float32)


@pytest.mark.parametrize(
    ("options", "without", "says"),
    [
        ({"size": 1}, "disagreement", "; it is the best single network."),
        ({"failed": (0, 6)}, None, "9 networks, of which 2 failed"),
        ({"failed": (7, 8), "counts": (7, 9)}, "surrogate", "No candidate was trained after"),
        ({"counts": (9,)}, "surrogate", "No candidate was trained after"),
        (INFINITE, None, "BQ-S with 3 members"),
        (NO_EVIDENCE, "evidence", "The evidence was never positive."),
        ({"log_likelihoods": HOPELESS}, None, "BQ-S with 3 members"),
        ({"algorithm": "Random", "counts": (9,)}, "surrogate", "Random with 3 members"),
    ],
)  # fmt: skip
def test_runs_that_are_out_of_the_ordinary(tmp_path, no_files, options, without, says):
    page = Page(write_report(make_run(tmp_path, **options)))
    warned = ["Warnings"] if "failed" in options else []
    assert page.titles == [SECTIONS[0], *warned, *SECTIONS[1:]] and says in page.text
    names = {path.stem for path in (tmp_path / "plots").iterdir()}
    assert {"surrogate", "disagreement", "evidence"} - names == ({without} if without else set())


def test_all_the_weight_on_one_member(tmp_path, no_files):
    run = make_run(tmp_path)
    Ensemble(run, "restack", 3, np.array([4]), np.array([1.0])).save()
    text = Page(write_report(run)).text
    assert "BQ-S with 1 member:" in text and "The ensemble has one member." in text


def test_the_scale_of_the_likelihood_is_said_in_a_sentence(written):
    run, page = written
    assert run.record.effective_sizes[-1] == 2.5
    said = (
        "At the temperature 7.5 the 40 validation points count as 5.33 observations, and the "
        "posterior over the 9 candidates is worth 2.5 equally likely ones"
    )
    assert said in " ".join(page.text.split())


def test_what_cannot_be_reported_is_one_sentence(tmp_path):
    with pytest.raises(BQNESError, match="no network whose training succeeded"):
        write_report(make_run(tmp_path / "a", failed=range(COUNT)))
    run = make_run(tmp_path / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(BQNESError, match=r"report .*cannot be written"):
        write_report(run, tmp_path / "file")
    with pytest.raises(BQNESError, match="size is 0"):
        summary(run, (0,))


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
    low, high = plots.shown_range(HOPELESS)
    assert high == -70 and -200 < low < -80
    assert plots.shown_range(np.array([np.nan])) == (-1, 0)
    assert plots.shown_range(np.array([-3.0])) == (-3.5, -2.5)


def test_figures_show_what_was_measured(tmp_path):
    ensemble = make_run(tmp_path).saved_ensemble()
    drawn = {drawing.name: drawing.figure for drawing in report._drawings(ensemble)}
    title = drawn["reliability"].axes[0].get_title(loc="left")
    labels = ensemble.run.record.test_labels
    assert title == f"BQ-S: ECE {float(ece(ensemble.test_log_probs, labels, log=True)):.4f}"
    bars = [bar.get_height() for bar in drawn["reliability"].axes[1].patches]
    assert sum(bars) == TEST
    lengths = [bar.get_width() for bar in drawn["weights"].axes[0].patches]
    np.testing.assert_allclose(lengths, ensemble.weights, rtol=1e-6)
    heat = drawn["disagreement"].axes[0].images[0].get_array()
    probabilities = np.exp(ensemble.run.test_log_probs(ensemble.members))
    np.testing.assert_allclose(heat, 100 * disagreement(probabilities).pairwise, rtol=1e-5)
    cell = drawn[f"architecture-{ensemble.members[0]}"].axes[0]
    names = [text.get_text() for text in cell.texts]
    assert len(names) == 4 + np.sum(ensemble.archs[0] != 0)


def test_labels_of_a_cell_do_not_overlap():
    figure = architectures.cell(np.full(6, 3), "")
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 10
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_svg_is_sound():
    svg = report.html.to_svg(
        "x", 'a "quoted" & <strange> name', architectures.cell(np.arange(6) % 5, "#1")
    )
    assert xml.etree.ElementTree.fromstring(svg).get("aria-label") == 'a "quoted" & <strange> name'


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_it_fits_on_telephones_and_screens(tmp_path, no_files):
    path = write_report(make_run(tmp_path, algorithm="evolution+recombine", failed=(1,)))
    # A window has a least width; a frame has none.
    frame = f"""<body style="margin: 0"><iframe style="border: 0; height: 1000px; width: WIDTHpx"
        srcdoc="{html.escape(path.read_text())}" onload="
        const page = this.contentDocument.documentElement;
        document.title = [page.clientWidth, page.scrollWidth].join()"></iframe></body>"""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += ["--window-size=1200,1000", f"--user-data-dir={tmp_path / 'profile'}"]
    for width in (320, 375, 1200):
        framed, picture = tmp_path / f"{width}.html", tmp_path / f"{width}.png"
        framed.write_text(frame.replace("WIDTH", str(width)))
        for what in ("--dump-dom", f"--screenshot={picture}"):
            command = [CHROMIUM, *flags, "--hide-scrollbars", what, framed.as_uri()]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
            if what == "--dump-dom":
                assert f"<title>{width},{width}</title>" in done.stdout
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_went_differently_is_shown(tmp_path, no_files):
    status = Status.AT_BOUND | Status.JITTERED
    run = make_run(tmp_path, status=int(status))
    page = Page(write_report(run))
    assert "Warnings" in page.titles
    for one in status:
        assert html.escape(one.explain()) in page.text
    assert run.status == status and run.saved_ensemble().status == run.ensemble().status


def test_what_went_differently_in_other_rows_is_said(tmp_path, no_files):
    """Each row says so, by its name."""
    run = make_run(tmp_path)
    rows, ensemble = report.summary(run, sizes=(3, COUNT)), run.saved_ensemble()
    statuses = {(row.name, row.size): row.status for row in rows}
    assert statuses["BQ-R", COUNT] == run.ensemble(COUNT, "recombine").status
    odd = [row._replace(status=Status.INFEASIBLE) for row in rows]
    (said,) = set(report.warnings_of(ensemble, odd)) - set(ensemble.warnings())
    assert said.endswith(Status.INFEASIBLE.explain()) and "BQ-R 3, beam 3" in said
    assert "BQ-S 3" not in said, "of the ensemble itself it is said already"


def test_a_row_says_how_many_members_are_in_use(tmp_path, no_files):
    """And no ensemble has more members than there are candidates."""
    run = make_run(tmp_path)
    rows = report.summary(run, sizes=(3, COUNT, COUNT + 1))
    assert {row.size for row in rows} == {1, 3, COUNT}
    for row in rows:
        found = f"{row.used} of {row.size}" if row.used < row.size else str(row.size)
        assert row.members == found
    assert any(row.used < row.size for row in rows)
    page = Page(write_report(run)).text
    used = len(run.ensemble(5, "restack").members)
    assert f"<td>BQ-S</td><td>{html_row_of(used, 5)}</td>" in page
    for size in (COUNT + 1, 10**9):
        with pytest.raises(BQNESError, match=f"size is {size}; it must be .* from 1 to {COUNT}"):
            run.ensemble(size)


def html_row_of(used, size):
    return f"{size}" if used == size else f"{used} of {size}"


@pytest.mark.parametrize(
    "name", ["[bold]x[/bold]", "[/red]", "\x1b[2J\x1b]0;t\x07", "half \udcff", "<script>a</script>"]
)
def test_names_from_files_are_text_in_the_report(name, tmp_path, no_files):
    run = make_run(tmp_path)
    config = dataclasses.replace(run.config, data=name)
    path = write_report(dataclasses.replace(run, config=config))
    text = path.read_bytes().decode()
    assert html.escape(plain(name)) in text
    assert not {*map(chr, range(32))} - {"\n", "\t"} & set(text)
    assert "<script" not in text and "\x1b" not in text


@pytest.mark.parametrize(
    "name", ["$x_1$", r"$\frac{$", "a_b^c", r"\alpha", "half \udcff", "a\x1bb"]
)
def test_names_from_files_are_text_in_figures(name):
    """Neither a formula, which may be none, nor a control sequence."""
    space = Product(**{name: (name, "other")})
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # letters as letters
        drawn = architectures.draw(space, np.zeros(1, int), name)
        svg = report.html.to_svg("drawing", "a drawing", drawn)
    words = ["".join(e.itertext()).strip() for e in xml.etree.ElementTree.fromstring(svg).iter()]
    assert words.count(plain(name)) >= 3, "the title, the choice, and what was chosen"
    settled = architectures.draw(space, np.zeros(1, int), name)
    plots.settle(settled)
    assert plots.to_bytes(settled, "png") and plots.to_bytes(settled, "pdf")
