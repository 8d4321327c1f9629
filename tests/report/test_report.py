"""The page of a run's report: what it says, and that it can be read on a telephone."""

import dataclasses
import html
import itertools
import re
import shutil
import subprocess
import threading

import numpy as np
import pytest
import yaml

from bqnes_jax.errors import BQNESError
from bqnes_jax.files.text import plain
from bqnes_jax.kernels import KernelConfig
from bqnes_jax.report import again, summary, write_report
from bqnes_jax.runs import Ensemble, configure
from bqnes_jax.spaces import NATS, SLIMMABLE
from bqnes_jax.types import Status
from tests.helpers.reported import COUNT, HOPELESS, TEST, Page, make_run

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
    "How good is it?",
    "Against what?",
    "At which cost?",
    "Why these members?",
    "Was the search worth it?",
    "Can it be trusted?",
    "How to do it again",
]


def test_the_page(written, tmp_path):
    run, page = written
    assert page.titles == SECTIONS
    own = run.saved_ensemble()
    assert page.said.count("BQ-S with 3 members gets") == 1
    wrong = round((1 - own.metrics.accuracy) * TEST)
    assert f"It gets {wrong} of {TEST} test images wrong." in page.said
    loss = -own.metrics.log_likelihood / TEST
    for section in ("How good is it?", "Against what?"):
        assert f"{loss:.4f}" in page.section(section)
        assert f"{own.metrics.ece:.4f}" in page.section(section)
    assert f"The temperature {own.temperature:.2f} after pooling" in page.said
    assert f"the ECE from {own.without_temperature().metrics.ece:.4f}" in page.said
    assert "bqnes run --config config.yaml" in page.text and "bqnes reselect" not in page.text


def test_every_rival_is_named(written):
    """And what is not known says so, with what would tell."""
    run, page = written
    against = page.section("Against what?")
    for name in ("Best single", "Best member", "Random ensemble", "All equal", "Caruana", "BQ-L"):
        assert f"{name}:" in against
    assert "Deep ensemble is not known: each architecture was trained from one weight" in against
    assert f"all {COUNT} networks that were trained" in against
    single = -run.ensemble(1, "top").metrics.log_likelihood / TEST
    assert f"{single:.4f}" in against
    assert page.text.count('<tr role="row" class="own">') == 2  # beside rivals, and of its cost


def test_the_config_holds_what_differs_and_what_was_used(written, tmp_path):
    """And no field of a choice that the run did not make."""
    run, page = written
    config, used = re.findall(r"<pre>(family: .*?)</pre>", page.text, re.DOTALL)
    (tmp_path / "config.yaml").write_text(html.unescape(config))
    assert configure(file=tmp_path / "config.yaml") == run.config
    assert yaml.safe_load(config) == {
        "family": "nats",
        "data": "toy",
        "algorithm": "BQ-S",
        "search": {"initial": 5, "budget": COUNT},
    }
    used = yaml.safe_load(html.unescape(used))
    assert used["search"]["budget"] == COUNT and used["train"]["steps"] == 150
    absent = {"population", "parents", "diversity", "effective", "pool", "samples", "climbs"}
    assert not absent & set(used["search"]) and "depth" not in used["search"]["warp"]
    assert not {"shortlist", "prior", "data_directory"} & set(used)


def test_settings_that_are_in_use_depend_on_the_run():
    def used(space, **fields):
        return again.used_settings(configure(**fields), space)["search"]

    assert used(NATS, algorithm="NES-RE")["population"] == 20
    sliced = used(SLIMMABLE, family="slimmable")
    assert "iterations" not in sliced["kernel"] and {"pool", "samples"} <= set(sliced)
    assert sliced["fit"]["kernel_steps"] == 30 and "kernel_steps" not in used(NATS)["fit"]
    adapted = KernelConfig("wl", layer_weights="fitted")
    assert "kernel_bounds" in used(NATS, kernel=adapted)["fit"]
    chosen = used(NATS, temperature="auto")
    assert chosen["temperature"] == "auto" and "effective" in chosen


def test_the_page_is_for_everyone(written):
    """Headings descend by one; figures say what they show; tables stay tables; links lead."""
    _, page = written
    levels = [int(tag[1]) for tag, *_ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(deeper <= level + 1 for level, deeper in itertools.pairwise(levels))
    drawn = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(drawn) >= 10 and {one["role"] for one in drawn} == {"img"}
    assert len({one["aria-label"] for one in drawn}) == len(drawn)
    assert all(len(one["aria-label"]) > 20 for one in drawn)
    scopes = [one.get("scope") for tag, one in page.tags if tag == "th"]
    assert scopes and set(scopes) == {"col", "row"}
    first = next(one for tag, one in page.tags if tag == "a")
    assert first["href"] == "#content" and ("main", "id", "content") in page.attributes
    assert "details" in {tag for tag, _ in page.tags} and ":focus-visible" in page.text
    assert ("html", "lang", "en") in page.attributes


def test_the_page_is_for_dark_screens_and_paper(written):
    """Figures have no colour of their own but those of a scale, and paper is always light."""
    _, page = written
    dark = "@media screen and (prefers-color-scheme: dark)"
    assert dark in page.text and "@media print" in page.text
    named = set(re.findall(r"var\(--([a-z]+)\)", page.text))
    for scheme in re.findall(r":root \{(.*?)\}", page.text):
        given = set(re.findall(r"--([a-z]+): #", scheme))
        assert named - {"columns"} <= given
    for svg in re.findall(r"<svg.*?</svg>", page.text, re.DOTALL):
        colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg))
        assert not colours or "nats per point" in svg or "Map of the candidates" in svg


def test_nothing_is_wider_than_a_telephone(written):
    """No length in the style exceeds 320 pixels but as a maximum, and tables become grids."""
    _, page = written
    style = page.text[page.text.index("<style>") : page.text.index("</style>")]
    for name, length in re.findall(r"([\w-]*width): (\d+)(?:rem|px)", style):
        assert name in ("max-width", "min-width"), (name, length)
    assert all("min(100%," in one for one in re.findall(r"minmax\((?!0)[^;]*", style))
    assert "max-width: 45rem" in style and "overflow-wrap: anywhere" in style
    assert all("width" not in one and "height" not in one for tag, one in page.tags if tag == "svg")


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
    assert 'class="own"><th scope="row" role="rowheader">us+<wbr>top</th>' in page.text
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
        ({"size": 1}, "disagreement", "It is the network that is best on the validation data."),
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
    assert page.titles == SECTIONS and says in page.said
    assert ("failed." in page.section("Can it be trusted?")) == ("failed" in options)
    names = {path.stem for path in (tmp_path / "plots").iterdir()}
    assert {"surrogate", "disagreement", "evidence"} - names == ({without} if without else set())


@pytest.mark.slow
def test_all_the_weight_on_one_member(tmp_path, no_files):
    run = make_run(tmp_path)
    Ensemble(run, "restack", 3, np.array([4]), np.array([1.0])).save()
    said = Page(write_report(run)).said
    assert "BQ-S with 1 member gets" in said and "The ensemble has one member." in said


def test_the_scale_of_the_likelihood_is_said_in_a_sentence(written):
    run, page = written
    assert run.record.effective_sizes[-1] == 2.5
    said = (
        "Scale: at the temperature 7.5 the 40 validation points count as 5.33 observations, and "
        "the posterior over the 9 candidates is worth 2.5 equally likely ones"
    )
    assert said in page.said


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
    for width in (320, 390, 1200):
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
    for one in status:
        assert one.explain() in page.section("Can it be trusted?")
    assert "checks need a look" in page.said
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
