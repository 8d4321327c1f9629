"""What can be wrong with a file: each function takes valid content and returns another.

They decide by `Choices`, so that hypothesis can drive them.
"""

import contextlib
import copy
import functools
import hashlib
import io
import json
import os
import pickle
import re
import struct
import zipfile

import numpy as np

from bqnes_jax.storage import records

HUGE = ["0", "-1", "1000000000000", "4294967296", "9" * 18, "9" * 30, "9" * 5000, "1e999"]
SNIPPETS = {
    "text": [
        b"&a [*a, *a]",
        b"{a: &b {c: *b}}",
        b"!!int ''",
        b"!!float ''",
        b"!!bool x",
        b"!!timestamp x",
        b"!!binary x",
        b"!!set {? 1}",
        b"!!omap [a: 1]",
        b"!!python/object/apply:os.mkdir [exploded]",
        b"0x" + b"f" * 5000,
        b"-0b1",
        b"2001-99-99",
        b"1:99:99",
        b"? [a]\n: b",
        b"{<<: 3}",
        b"[" * 3000,
        b"\n- ",
        b".inf",
        b".nan",
        b"\xff\xfe",
        b"\x00",
        b"| ",
        b"'",
    ],
    "json": [
        b"[" * 3000,
        b'{"a":' * 900,
        b"NaN",
        b"-Infinity",
        b'"\\ud800"',
        b"\xff",
        b"\x00",
        b"null",
    ],
    "bytes": [b"\xff" * 4, b"\x7f" + b"\xff" * 7, b"\x00" * 8, b"PK\x03\x04", b"\x93NUMPY", b"\n"],
    "pickle": [
        b"\x8e\xff\xff\xff\xff\xff\x00\x00\x00",  # of a pickle: bytes, as many as that
        b"\x95\xff\xff\xff\xff\xff\x00\x00\x00",  # a frame
        b"cos\nmkdir\nX\x08\x00\x00\x00exploded\x85R",
        b"cnumpy\ndtype\n",
        b"}\x8c\x05statesb",
        b"2\x86" * 12,  # pairs of pairs of pairs
        b"]q\x00h\x00a",
        b"\x8b\x00\x00\x00\x80",
    ],
}
VALUES = [
    *(None, True, False, 0, 1, -1, 7, 10**12, 2**31, 2**63, -(2**63) - 1, 10**400, 10**4000),
    *(0.0, -0.5, 0.25, 1.0, 1e300, float("nan"), float("inf"), -float("inf")),
    *("1000000000000", "9" * 18, "-1", "x.y"),
    *("", "a", "1", "clean", "nats", "slimmable", "restack", "float32", "\0", "\ud800", "a" * 5000),
    *([], [[]], [0], [0, 3], [1.0, float("nan")], ["a", 2], [["fog", 1]], [10**400], [[1], [2, 3]]),
    *({}, {"a": {}}, {"seed": 1, "search": {"budget": -1}}, {"images": 3}, [{}], {"": None}),
    *(["float32", []], ["float32", [3]], ["float64", [10**12]], {"list": {"a": None}}),
    *({"dict": [None]}, {"tuple": [["uint8", [2]]]}, ["float32", [0, 2**39, 2**39]]),
    functools.reduce(lambda inner, _: [inner], range(40), []),
    functools.reduce(lambda inner, _: {"data": inner}, range(40), {}),
]


class Choices:
    """Decisions from a tape of bytes, which hypothesis writes, and makes small where one fails."""

    def __init__(self, tape):
        self._tape = io.BytesIO(tape)

    def below(self, limit):
        return int.from_bytes(self._tape.read(3), "little") % limit

    def of(self, options):
        return options[self.below(len(options))]

    def bytes(self):
        return self._tape.read(self.below(20))


def altered_bytes(choose, content, form="bytes"):
    """Flip, overwrite, cut, extend, repeat, leave out, splice; numbers become huge ones."""
    altered = bytearray(content)
    for _ in range(1 + choose.below(3)):
        how, place, length = choose.below(9), choose.below(len(altered) + 1), choose.below(40)
        rest = altered[place:]
        if how == 0:
            altered[place : place + 1] = bytes(byte ^ 1 << length % 8 for byte in rest[:1])
        elif how == 1:
            altered[place : place + 1] = bytes([choose.below(256)])
        elif how == 2:
            del altered[place:]
        elif how == 3:
            altered[place:place] = choose.bytes()
        elif how == 4:
            altered[place:place] = rest[:length]
        elif how == 5:
            del altered[place : place + length]
        elif how == 6:
            piece = choose.of(PIECES)
            start = choose.below(len(piece))
            altered[place : place + length] = piece[start : start + 10 * length]
        elif how == 7:
            altered[place : place + length % 3] = choose.of(SNIPPETS[form])
        else:
            number = re.search(rb"\d+|$", rest)
            start, end = (place + there for there in number.span())
            altered[start:end] = choose.of(HUGE).encode()
    return bytes(altered)


def altered_json(choose, content):
    """Replace, add or leave out values."""
    content = {"": json.loads(content)}
    for _ in range(1 + choose.below(2)):
        places = [(holder, key) for holder in containers(content) for key in keys(holder)]
        holder, key = choose.of(places)
        how = choose.below(6)
        if how < 4:
            holder[key] = copy.deepcopy(choose.of(VALUES))
        elif how == 4 and holder is not content:
            del holder[key]
        elif isinstance(holder, dict) and holder is not content:
            holder[choose.of(["a", "", "seed", "format"])] = copy.deepcopy(choose.of(VALUES))
    return content[""]


def keys(holder):
    return list(holder) if isinstance(holder, dict) else range(len(holder))


def containers(content):
    if isinstance(content, dict | list):
        yield content
        for key in keys(content):
            yield from containers(content[key])


def as_json(value):
    return json.dumps(value).encode()


def npy(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


class Bomb:
    """What makes a folder where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("exploded",)


OTHER_ARRAYS = [
    np.array([Bomb(), None]),
    np.zeros((2, 2), [("a", "f4"), ("b", "O")]),
    np.zeros(3, "f4,i8"),
    np.array(["a", "b"]),
    np.array([b"a"]),
    np.array(["2001-01-01"], "datetime64[D]"),
    np.array(1j),
    np.zeros(2, np.longdouble),
    np.array("cifar10"),
    np.array("\ud800"),
    np.array(7),
    np.array(-7.5),
    np.array([np.nan, np.inf]),
    np.zeros((0, 3), np.uint8),
    np.zeros((2, 0, 4), np.float32),
    np.zeros((4, 6), np.uint8),
    np.full((4, 6), -1, np.int32),
    np.full((3, 4), 2**62),
    np.asfortranarray(np.arange(12, dtype=">f4").reshape(3, 4)),
    np.ones((1,) * 20, bool),
]
CODES = ["|O", "<U0", "|S9", "|V9", ">f4", "f4,f4", "<M8[D]", "|u1", "<f16", "<i8", "|b1", "<U2"]


def altered_npy(choose, content):
    """Take another array, or change what the header of this one says."""
    how = choose.below(6)
    if how == 0 or not content.startswith(b"\x93NUMPY\x01\x00") or b"\n" not in content[10:]:
        return npy(choose.of(OTHER_ARRAYS))
    header, numbers = content[10:].split(b"\n", 1)
    header = header.rstrip().decode("latin1")
    if how == 1:  # other values of the same type
        values = np.full(len(numbers) + 1, choose.of([0, 1, 2, 127, 128, 255]), np.uint8)
        numbers = numbers[: choose.below(len(values))]
        numbers += values[len(numbers) + 1 :].tobytes()
    elif how == 2:
        lengths = [choose.of([*HUGE, "1", "2", "3", "4"]) for _ in range(choose.below(12))]
        header = re.sub(r"\(.*\)", f"({', '.join(lengths)},)", header)
    elif how == 3:
        header = re.sub(r"'[<>|]\w+'", f"'{choose.of(CODES)}'", header)
    elif how == 4:
        header = header.replace("False", choose.of(["True", "0", "None", "[]"]))
    else:
        place = choose.below(len(header))
        header = header[:place] + choose.bytes().decode("latin1") + header[place:]
    text = header.encode("latin1") + b"\n"
    version = choose.of([1, 1, 1, 2, 3, 4])
    length = choose.of([len(text)] * 5 + [2**16 - 1])
    start = b"\x93NUMPY" + bytes([version, 0])
    return start + struct.pack("<H" if version == 1 else "<I", length) + text + numbers


def unzipped(content):
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


def zipped(members, method=zipfile.ZIP_STORED):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method, compresslevel=1) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return packed.getvalue()


METHODS = [zipfile.ZIP_STORED] * 3 + [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]


def altered_npz(choose, content):
    """Alter arrays within; the zip around them is as it should be, or claims other sizes."""
    members = unzipped(content)
    for _ in range(1 + choose.below(2)):
        name, how = choose.of(sorted(members)), choose.below(9)
        if how < 5:
            members[name] = altered_npy(choose, members[name])
        elif how == 5:
            members[name] = altered_bytes(choose, members[name])
        elif how == 6:
            members[name] = members[choose.of(sorted(members))]
        elif how == 7:
            members[choose.of(["x.npy", "\xff", "../a.npy", f"{name}.npy"])] = members[name]
        elif len(members) > 1:
            del members[name]
    altered = zipped(members, choose.of(METHODS))
    if choose.below(4) == 0:  # in the directory at the end: what it says about one member
        places = [match.start() for match in re.finditer(b"PK\x01\x02", altered)]
        place = choose.of(places) + choose.of([6, 8, 10, 16, 20, 24, 28, 42])
        number = choose.of([0, 1, 100, 2**31 - 1, 2**32 - 2])
        altered = altered[:place] + struct.pack("<I", number) + altered[place + 4 :]
    return altered


def altered_entry(choose, content):
    """Change the header of an entry, and the checksums with it."""
    (length,) = struct.unpack("<I", content[8:12])
    header, body = content[12 : 12 + length], content[12 + length + 32 :]
    header = altered_json(choose, header)
    if isinstance(header, dict) and choose.below(2):
        body = body[: choose.below(len(body) + 1)] + choose.bytes()
        header["sha256"] = hashlib.sha256(body[:42]).hexdigest()
        header["variables_sha256"] = hashlib.sha256(body[42:]).hexdigest()
    return headed(content[:8], header, body)


def altered_tree(choose, content):
    """Change the header of a tree of arrays, and the checksums with it."""
    (length,) = struct.unpack("<I", content[8:12])
    header, body = content[12 : 12 + length], content[12 + length + 32 :]
    header = altered_json(choose, header)
    if isinstance(header, dict) and choose.below(2):
        body = body[: choose.below(len(body) + 1)] + choose.bytes()
        header["sha256"] = hashlib.sha256(body).hexdigest()
    return headed(content[:8], header, body)


def headed(magic, header, body):
    """Write what follows a header, whose checksum is right."""
    text = as_json(header)
    head = magic + struct.pack("<I", len(text)) + text
    return head + hashlib.sha256(head).digest() + body


def altered_manifest(choose, content):
    """Change the manifest of a store, and the checksum with it."""
    value = altered_json(choose, content)
    if not isinstance(value, dict):
        return as_json(value)
    if choose.below(2):
        field = choose.of(["valid_points", "test_points", "classes", "format"])
        value[field] = choose.of([1, 2**20, 2**30, 10**12, 2**62])
    with contextlib.suppress(ValueError):  # NaN
        return signed(value)
    return as_json(value)


def signed(manifest):
    manifest = {name: value for name, value in manifest.items() if name != "sha256"}
    digest = hashlib.sha256(records.canonical(manifest)).hexdigest()
    return as_json({**manifest, "sha256": digest})


def altered(choose, content, form):
    """Alter the content of a file of that form: within it, or any of its bytes."""
    how = choose.below(10)
    if how == 0:
        return choose.bytes()
    if how < 7 and form in BY_FORM:
        return BY_FORM[form](choose, content)
    return altered_bytes(choose, content, form if form in SNIPPETS else "bytes")


BY_FORM = {
    "json": lambda choose, content: as_json(altered_json(choose, content)),
    "npy": altered_npy,
    "npz": altered_npz,
    "entry": altered_entry,
    "tree": altered_tree,
    "manifest": altered_manifest,
}


def as_npz(**arrays):
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


PIECES = [
    npy(np.arange(12).reshape(3, 4)),
    npy(np.array([Bomb()])),
    as_npz(x=np.zeros((2, 2, 2), np.uint8), y=np.arange(2)),
    pickle.dumps({"data": np.arange(5), "labels": [1, 2]}, 2),
    pickle.dumps([Bomb(), "a", 1.5, (1, 2)], 4),
    as_json({"config": {"seed": 3, "search": {"budget": 5}}, "members": [0, 1]}),
    b"search: {budget: 3}\n- a\n&a [1, 2]\n",
]
