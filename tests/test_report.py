"""The page of a run's report: what it says, and that it can be read on a telephone."""

import dataclasses
import html
import re
import shutil
import subprocess
import threading

import numpy as np
import pytest
import yaml

from bqnes_jax.errors import BQNESError
from bqnes_jax.files.text import plain
from bqnes_jax.report import summary, write_report
from bqnes_jax.runs import Ensemble, configure
from bqnes_jax.types import Status
from tests.reported import COUNT, HOPELESS, Page, make_run

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a run and the page of its report."""
    directory = tmp_path_factory.mktemp("written")
    run = make_run(directory)
    assert write_report(run) == directory / "report.html"
    return run, Page(directory / "report.html")


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_cannot_be_reported_is_one_sentence(tmp_path):
    with pytest.raises(BQNESError, match="no network whose training succeeded"):
        write_report(make_run(tmp_path / "a", failed=range(COUNT)))
    run = make_run(tmp_path / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(BQNESError, match=r"report .*cannot be written"):
        write_report(run, tmp_path / "file")
    with pytest.raises(BQNESError, match="size is 0"):
        summary(run, (0,))


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


@pytest.mark.slow
def test_what_went_differently_is_shown(tmp_path, no_files):
    status = Status.AT_BOUND | Status.JITTERED
    run = make_run(tmp_path, status=int(status))
    page = Page(write_report(run))
    assert "Warnings" in page.titles
    for one in status:
        assert html.escape(one.explain()) in page.text
    assert run.status == status and run.saved_ensemble().status == run.ensemble().status


@pytest.mark.slow
def test_a_link_in_the_place_of_plots_is_not_followed(tmp_path, no_files):
    run = make_run(tmp_path / "run")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "architecture-77.png").write_bytes(b"mine")
    (run.directory / "plots").symlink_to(elsewhere)
    with pytest.raises(BQNESError, match="it is a link, which is not followed"):
        write_report(run)
    assert [path.name for path in elsewhere.iterdir()] == ["architecture-77.png"]


@pytest.mark.slow
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
