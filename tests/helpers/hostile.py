"""Archives that are made to do harm: to hang, to take all memory, to crash, to run something.

Each is small on disk; what unpacks it is in `tests.files.test_hostile_archives`.
"""

import bz2
import functools
import gzip
import io
import pickle
import struct
import tarfile

import numpy as np

MIB = 1 << 20


def pushes(count):
    """Return opcodes that put small numbers on the stack."""
    return b"".join(b"K" + bytes([i % 256]) for i in range(count))


def text(value):
    return b"\x8c" + bytes([len(value)]) + value.encode()


def nested_pairs(levels=60):
    """Return opcodes that leave a pair of pairs of pairs, each of which is there twice."""
    doubled = (b"\x940h" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(levels))
    return b")" + b"".join(doubled)


def deep(levels):
    """Return opcodes that leave an empty tuple within as many others."""
    return b")" + b"\x85" * levels


def called(module, name, *arguments):
    return f"c{module}\n{name}\n".encode() + b"(" + b"".join(arguments) + b"tR"


def string(length, byte=b"a"):
    return b"\x8d" + struct.pack("<Q", length) + byte * length


PICKLES = {
    "a key of nested pairs": lambda: b"\x80\x04}" + nested_pairs() + b"K\x01s.",
    "keys of nested pairs, many at once": lambda: b"\x80\x04}(" + nested_pairs() + b"K\x01u.",
    "a dict of nested pairs": lambda: b"\x80\x04(" + nested_pairs() + b"K\x01d.",
    "a set of nested pairs": lambda: b"\x80\x04\x8f(" + nested_pairs() + b"\x90.",
    "a frozen set of nested pairs": lambda: b"\x80\x04(" + nested_pairs() + b"\x91.",
    "an OrderedDict of nested pairs": lambda: (
        b"\x80\x04"
        + called("collections", "OrderedDict", b"](" + nested_pairs() + b"K\x01\x86e")
        + b"."
    ),
    "a list that many calls copy": lambda: (
        b"\x80\x04]("
        + b"K\x01K\x01\x86" * 1_000
        + b"e\x940"
        + b"ccollections\nOrderedDict\nh\x00\x85R0" * 100
        + b"N."
    ),
    "a dict that many calls copy": lambda: (
        b"\x80\x04}("
        + b"".join(text(f"{i:02x}") + b"N" for i in range(256))
        + b"u\x940"
        + b"ccollections\nOrderedDict\nh\x00\x85R0" * 520
        + b"N."
    ),
    "a tuple that many calls copy": lambda: (
        b"\x80\x04("
        + text("ab") * 1_000
        + b"t\x940"
        + b"ccollections\nOrderedDict\nh\x00\x85R0" * 140
        + b"N."
    ),
    "a deep key": lambda: b"\x80\x04}" + deep(4_000) + b"K\x01s.",
    "a deep value": lambda: b"\x80\x04}K\x00" + deep(4_000) + b"s.",
    "deep lists": lambda: b"\x80\x04" + b"]" * 4_000 + b"a" * 3_999 + b".",
    "deep dicts": lambda: b"\x80\x04" + b"}K\x00" * 3_000 + b"}" + b"s" * 3_000 + b".",
    "marks without end": lambda: b"\x80\x04" + b"(" * 12_000 + b".",
    "lists without end": lambda: b"\x80\x04" + b"]" * 12_000 + b".",
    "sets without end": lambda: b"\x80\x05" + b"\x8f" * 12_000 + b".",
    "numbers without end": lambda: b"\x80\x04" + b"K\x00" * 112_000 + b".",
    "a memo without end": lambda: b"\x80\x04K\x00" + b"\x94" * 112_000 + b".",
    "a list within itself": lambda: b"\x80\x04]\x94h\x00a.",
    "a dict within itself": lambda: b"\x80\x04}\x94K\x00h\x00s.",
    "twice the same, doubled": lambda: b"\x80\x04" + b"]" + b"2\x86" * 60 + b".",
    "a key of many numbers": lambda: (
        b"\x80\x04}(" + pushes(9_000) + b"t\x94K\x00s" + b"h\x00K\x00s" * 500 + b"."
    ),
    "a key that is a huge number": lambda: (
        b"\x80\x04}\x8b"
        + struct.pack("<I", MIB)
        + b"\x7f" * MIB
        + b"\x94K\x00s"
        + b"h\x00K\x00s" * 500
        + b"."
    ),
    "a number of a million digits": lambda: b"\x80\x02I" + b"9" * 1_000_000 + b"\n.",
    "bytes that are not there": lambda: b"\x80\x05\x8e" + struct.pack("<Q", 1 << 36) + b"a.",
    "a frame that is not there": lambda: b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"a.",
    "an array of bytes that is not there": lambda: b"\x80\x05\x96" + struct.pack("<Q", 1 << 36),
    "a text that is a call's arguments": lambda: (
        b"\x80\x04" + b"ccollections\nOrderedDict\n" + string(5 * MIB) + b"R."
    ),
    "a function of the system": lambda: (
        b"\x80\x04" + called("os", "mkdir", text("exploded")) + b"."
    ),
    "a function by a dotted name": lambda: (
        b"\x80\x04" + text("collections") + text("OrderedDict.fromkeys") + b"\x93."
    ),
    "a registered extension": lambda: b"\x80\x04\x82\x01.",
    "an object of a class": lambda: b"\x80\x04ccollections\nOrderedDict\n)\x81.",
    "an instance of a class": lambda: b"\x80\x04(icollections\nOrderedDict\n.",
    "an identity of somebody else's": lambda: b"\x80\x04Psomething\n.",
    "a name of a million letters": lambda: b"\x80\x04c" + b"a" * MIB + b"\nb\n.",
    "a name with escape sequences": lambda: b"\x80\x04cos\x1b[2J\x1b]0;x\x07\nb\n.",
    "no end": lambda: b"\x80\x04}",
    "nothing": lambda: b"",
}


def tensor(shape, storage, strides=b")"):
    return called("torch._utils", "_rebuild_tensor_v2", storage, b"K\x00", shape, strides)


_STORAGE = b"\x80\x02(X\x07\x00\x00\x00storageq\x00ctorch\nFloatStorage\nq\x01tQ."


@functools.cache
def storage(identity=_STORAGE, *, machine=b"\x80\x02}q\x00."):
    """Return opcodes that leave the numbers of a tensor, as PyTorch wrote them."""
    numbers = np.zeros(4, "<f4")
    parts = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001)]
    content = b"".join([*parts, machine, identity, pickle.dumps([], 2)])
    content += struct.pack("<q", 4) + numbers.tobytes()
    return called(
        "torch.storage", "_load_from_bytes", b"B" + struct.pack("<I", len(content)) + content
    )


TENSORS = {
    "a tensor of many axes": lambda: tensor(
        b"(" + b"K\x01" * 4_000 + b"t", storage(), b"(" + b"K\x01" * 4_000 + b"t"
    ),
    "a tensor with a huge axis": lambda: tensor(
        b"(" + (b"\x8b" + struct.pack("<I", MIB) + b"\x7f" * MIB) * 8 + b"t", storage()
    ),
    "tensors within tensors": lambda: tensors_within(900),
    "a tensor whose numbers are described at length": lambda: tensor(
        b"K\x04\x85", storage(machine=b"\x80\x04" + b"K\x000" * 1_000 + b"N.")
    ),
    "a tensor whose numbers have an id of bytes": lambda: tensor(
        b"K\x04\x85", storage(identity=b"\x80\x04C\x04aaaaQ.")
    ),
    "a tensor with bytes for axes": lambda: tensor(b"C\x04aaaa", storage()),
}


def tensors_within(levels):
    opcodes = b"ctorch._utils\n_rebuild_tensor_v2\n\x940" + storage() + b"\x940K\x00"
    for i in range(2, levels):
        opcodes += b"\x940h\x00(h\x01j" + struct.pack("<I", i) + b"))tR"
    return opcodes


def header(name, size, kind=tarfile.REGTYPE):
    """Return one block of a tar, of any size that is claimed."""
    member = tarfile.TarInfo(name)
    member.type = kind
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT)[:512])
    claimed = size.to_bytes(12, "big", signed=True)
    block[124:136] = claimed if size < 0 else bytes([claimed[0] | 0x80]) + claimed[1:]
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax(fields):
    """Return the header of fields that hold for the next member, and the fields."""
    content = b""
    for name, value in fields.items():
        record = b" %s=%s\n" % (name.encode(), value)
        length = len(record) + len(str(len(record) + len(str(len(record)))))
        content += str(length).encode() + record
    padded = content + bytes(-len(content) % 512)
    return header("fields", len(content), tarfile.XHDTYPE) + padded


END = bytes(1024)
FILE = "cifar-10-batches-py/data_batch_1"
TARS = {
    "a long name of 6 GiB": lambda: header("././@LongLink", 6 << 30, tarfile.GNUTYPE_LONGNAME),
    "a long link of 6 GiB": lambda: header("././@LongLink", 6 << 30, tarfile.GNUTYPE_LONGLINK),
    "a long name of 8 EiB": lambda: header("././@LongLink", 1 << 62, tarfile.GNUTYPE_LONGNAME),
    "fields of 6 GiB": lambda: header("fields", 6 << 30, tarfile.XHDTYPE),
    "fields for all of 6 GiB": lambda: header("fields", 6 << 30, tarfile.XGLTYPE),
    "a file with holes": lambda: header(FILE, 6 << 30, tarfile.GNUTYPE_SPARSE),
    "a file with holes by its fields": lambda: (
        pax({"GNU.sparse.major": b"1", "GNU.sparse.minor": b"0", "GNU.sparse.realsize": b"9" * 12})
        + header(FILE, 5 * MIB)
        + b"999999999\n"
        + b"0\n" * 2 * MIB
    ),
    "a file of 6 GiB": lambda: header(FILE, 6 << 30),
    "another file of 6 GiB": lambda: header("readme", 6 << 30),
    "another file of 8 EiB": lambda: header("readme", 1 << 62),
    "a file of 8 EiB by its fields": lambda: (
        pax({"size": str(1 << 62).encode()}) + header("readme", 0)
    ),
    "a file of negative size": lambda: header(FILE, -512) + END,
    "a negative size by its fields": lambda: pax({"size": b"-1024"}) + header("readme", 0) + END,
    "long names without end": lambda: (
        (header("././@LongLink", 8, tarfile.GNUTYPE_LONGNAME) + bytes(512)) * 5000
    ),
    "members without end": lambda: header("x", 0) * 1_000,
    "a link to a device": lambda: header(FILE, 0, tarfile.SYMTYPE) + END,
    "a device": lambda: header(FILE, 0, tarfile.CHRTYPE) + END,
    "a FIFO": lambda: header(FILE, 0, tarfile.FIFOTYPE) + END,
    "a way out of its folder": lambda: header("../../etc/passwd", 0) + END,
    "noise": lambda: np.random.default_rng(0).bytes(5000),
}


@functools.cache
def zeros_in_gzip(mebibytes):
    """Return a gzip member that unpacks to so many MiB of zeros."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as file:
        for _ in range(mebibytes):
            file.write(bytes(MIB))
    return packed.getvalue()


def as_gzip(tar, mebibytes=40):
    """Return a compressed tar, which zeros follow: many of them for what its header claims."""
    return gzip.compress(tar, 1) + zeros_in_gzip(mebibytes)


def as_bz2(content):
    return bz2.compress(content, 1)
