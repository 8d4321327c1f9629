"""Text from files is text: in the terminal, in tables that others read, and in config files."""

import csv
import io
import os
import signal
import struct
import subprocess
import sys
import time
import warnings
import zipfile

import numpy as np
import pytest

from bqnes_jax.cli import main, shell
from bqnes_jax.errors import BQNESError
from bqnes_jax.files.arrays import open_npz, read_npy
from bqnes_jax.files.text import plain
from bqnes_jax.runs import configure
from bqnes_jax.studies import formats
from bqnes_jax.studies.rows import Row
from tests.helpers.alterations import npy, zipped

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

NAMES = [
    "[bold]x[/bold]",
    "[/red]",
    "[link=file:///etc/passwd]x[/link]",
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m",
    "half \udcff",
    "a:key:b",
    "\u202egpj.exe",
    "line\rover\x00",
    "[",
]


def in_a_terminal(monkeypatch):
    """Let rich take what it writes to for a terminal."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_name_holds_is_printed_as_text(name, terminal, capsys, monkeypatch):
    if terminal:
        in_a_terminal(monkeypatch)
    shell.say(name)
    shell.warn([name])
    shell.complain(name)
    shell.show_table([name, "M"], [[name, "1"]], title=name, bold={(0, 1)} if terminal else ())
    with shell.progress_bar(name) as progress:
        progress(1, 2, name)
    said = "".join(capsys.readouterr())
    assert plain(name) in said
    said.encode()  # no half of a character is left
    assert name.isprintable() or name not in said


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_is_cut_off_a_table_that_is_too_wide(terminal, capsys, monkeypatch):
    if terminal:
        in_a_terminal(monkeypatch)
        monkeypatch.setenv("COLUMNS", "80")
    numbers = ["-1234.5 ± 67.8"] * 6
    shell.show_table(["", *"abcdef"], [["Deep ensemble", *numbers]])
    words = capsys.readouterr().out.split()
    assert {"Deep", "ensemble"} < {*words} and words.count("67.8") == words.count("-1234.5") == 6


def test_a_command_says_a_warning_once(capsys):
    with shell.warnings_in_a_line():
        warnings.simplefilter("always")
        for text in ("one", "two", "one"):
            warnings.warn(text, stacklevel=1)
    assert capsys.readouterr().err.splitlines() == ["warning: one", "warning: two"]


@pytest.mark.parametrize("name", NAMES)
def test_an_error_about_any_name_is_one_sentence(name, capsys):
    """Also where the name is a path that is not UTF-8."""
    if "\x00" in name:  # which no argument of a process can have
        return
    assert main(["report", name]) == 1
    said = capsys.readouterr().err
    assert "is not a run" in said and "unexpected" not in said and "\x1b" not in said
    assert main(["predict", "run", "--input", f"{name}.npy"]) == 1
    assert "is not there" in capsys.readouterr().err


def test_an_error_is_never_long():
    error = BQNESError(f"name is {'a' * 10**7}; it must be short.")
    assert len(str(error)) < 2100 and "… (9,998,027 characters) …" in str(error)
    assert str(error).startswith("name is aaa") and str(error).endswith("; it must be short.")


@pytest.mark.slow
def test_no_name_makes_a_line_of_its_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the report goes
    forged = "x\nwarning: all is lost"
    said = np.full((2, 6, 2), 0.5)
    said[0, :, 0], said[0, :, 1] = 0.6, 0.4
    labels = np.array([0, 0, 0, 0, 1, 1])
    np.savez(tmp_path / "none.npz", **{forged: np.zeros(1)})
    assert main(["combine", str(tmp_path / "none.npz")]) == 1
    np.savez(tmp_path / "two.npz", valid=said, valid_labels=labels, names=[forged, "b"])
    assert main(["combine", str(tmp_path / "two.npz"), "--size", "1"]) == 0
    lines = "".join(capsys.readouterr()).splitlines()
    assert any("all is lost" in line for line in lines)
    assert not any(line.startswith("warning: all is lost") for line in lines)


FORMULAS = [
    "=cmd|' /C calc'!A0",
    "+1",
    "-1",
    "@SUM(1)",
    'a,"b"',
    "x\n=1",
    "\t=1",
    "a\x1b[31m",
    "＝1",
    "a;=1",
]


@pytest.mark.parametrize(
    "name", [*FORMULAS, r"\input{/etc/passwd}", "a & b \\\\ %", "$x^2$", "| a |"]
)
def test_exported_tables_hold_names_as_text(name):
    numbers = np.array([0.5, 0.6])
    rows = [Row(one, 3, numbers, numbers, numbers) for one in (name, "BQ-S")]
    cells = list(csv.reader(io.StringIO(formats.as_csv(rows))))
    assert len(cells) == 5 and {len(line) for line in cells} == {7}
    assert not cells[1][0].startswith(tuple("=+-@＝＋－＠\t\r\n"))
    assert cells[1][0].removeprefix("'") == plain(name)
    latex = formats.as_latex(rows).splitlines()
    assert len(latex) == 8 and latex[4].count("&") - latex[4].count(r"\&") == 4
    assert r"\input" not in formats.as_latex(rows)
    assert latex[4].replace(r"\$", "").count("$") == 6
    markdown = formats.as_markdown(rows).splitlines()
    assert len(markdown) == 4 and markdown[2].replace(r"\|", "").count("|") == 6
    assert len(formats.as_text(rows).splitlines()) == 3
    assert "\x1b" not in "".join(map(str, (cells, latex, markdown)))


YAML = {
    "aliases of aliases": "".join(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}]\n" for i in range(1, 30)),
    "an alias of itself": "seed: &a [*a]",
    "a merge of itself": "a: &a {<<: *a}",
    "deep lists": "[" * 5000,
    "deep mappings": "".join(f"{' ' * i}a:\n" for i in range(500)),
    "a Python object": "!!python/object/apply:os.mkdir [exploded]",
    "a Python name": "seed: !!python/name:os.system",
    "a module": "!!python/module:os",
    "a tag of its own": "seed: !exploded 3",
    "a number of many digits": "seed: " + "9" * 10_000,
    "a number to the base 60": "seed: " + "1:" * 5000 + "1",
    "a long number to the base 60": "seed: " + "1:" * 500_000 + "1",
    "a long list": f"seed: [{'1, ' * 300_000}1]",
    "a key that is a list": "? [a, b]\n: 1",
    "the same key many times": "seed: 1\n" * 10 + "seeds: x",
    "a date that is none": "seed: 2001-99-99",
    "two documents": "seed: 1\n---\nseed: 2",
    "a byte that is no text": "seed: \x00",
}


@pytest.mark.parametrize("name", YAML)
def test_config_files_that_do_harm_are_refused_at_once(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(YAML[name])
    started = time.perf_counter()
    with pytest.raises(BQNESError) as error:
        configure("tiny", tmp_path / "c.yaml")
    assert time.perf_counter() - started < 5 and len(str(error.value)) < 1000
    assert os.listdir(tmp_path) == ["c.yaml"], "something was run"


def with_header(text, version=1, length=None):
    width = "<H" if version == 1 else "<I"
    length = len(text) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack(width, length) + text


NPY = {
    "a shape beyond memory": with_header(
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (999999999999, 99999999), }"
    ),
    "a product that wraps round": with_header(
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }"
    ),
    "a negative shape": with_header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }"),
    "a header of gigabytes": with_header(b"{", 2, 2**32 - 1),
    "nothing but brackets": with_header(b"(" * 10_000),
    "a call": with_header(b"{'descr': __import__('os').mkdir('exploded'), 'shape': ()}"),
    "an array within its type": with_header(
        b"{'descr': ('<f8', (9999, 9999)), 'fortran_order': False, 'shape': (1,), }"
    ),
    "objects": npy(np.array([None, 1])),
    "another version": with_header(b"{}", 9),
    "no header": b"\x93NUMPY\x01\x00",
}


@pytest.mark.parametrize("name", NPY)
def test_crafted_arrays_are_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.npy"
    path.write_bytes(NPY[name])
    with pytest.raises((ValueError, struct.error)):
        read_npy(path)
    (tmp_path / "x.npz").write_bytes(zipped({"x.npy": NPY[name]}))
    with pytest.raises((ValueError, struct.error)), open_npz(tmp_path / "x.npz") as file:
        file["x"].read()
    assert sorted(os.listdir(tmp_path)) == ["x.npy", "x.npz"]


def directory_entry(content, place, form, value):
    """Overwrite a field of the first entry of a zip's directory."""
    start = content.index(b"PK\x01\x02") + place
    return content[:start] + struct.pack(form, value) + content[start + struct.calcsize(form) :]


PLAIN = zipped({"x.npy": npy(np.arange(9))})
ZIPS = {
    "a size beyond memory": directory_entry(PLAIN, 24, "<I", 2**32 - 2),
    "a place beyond its end": directory_entry(PLAIN, 42, "<I", 2**31),
    "an encrypted member": directory_entry(PLAIN, 8, "<H", 1),
    "an unknown compression": directory_entry(PLAIN, 10, "<H", 97),
    "a wrong checksum": directory_entry(PLAIN, 16, "<I", 1),
    "no directory": PLAIN[: PLAIN.index(b"PK\x01\x02")],
    "a bomb": zipped({"x.npy": bytes(2**28 + 2**20)}, zipfile.ZIP_DEFLATED),
}


@pytest.mark.parametrize("name", ZIPS)
def test_crafted_zips_are_refused(name, tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(ZIPS[name])
    # NotImplementedError is what zipfile raises for a compression that it does not know.
    refusals = (ValueError, OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile)
    with pytest.raises(refusals), open_npz(path) as file:
        file["x"].read()


STARTS = """
import sys, bqnes_jax.entry as entry
assert not {"jax", "numpy", "tyro"} & set(sys.modules)
entry._end_at_once_on_signals()
print("ready", flush=True)
sys.exit(entry.main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay", [0.0, 0.3, 1.0])
def test_a_command_can_be_stopped_while_it_imports(number, delay):
    process = subprocess.Popen(
        [sys.executable, "-c", STARTS, "families"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == b"ready\n"
    time.sleep(delay)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert said == b""
    # A fast machine has done its work after a while; what is done keeps its own code.
    assert process.returncode == 128 + number or (delay and process.returncode == 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_at_work_ends_with_a_farewell(number, monkeypatch, capsys):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)

    def work():
        os.kill(os.getpid(), number)
        deadline = time.time() + 20
        while not codes and time.time() < deadline:
            time.sleep(0.01)

    before = signal.getsignal(number)
    shell.interruptible(work, "Stopped in [red] \x1b[2J.")
    assert codes == [128 + number] and signal.getsignal(number) is before
    assert r"Stopped in [red] \x1b[2J." in capsys.readouterr().err
