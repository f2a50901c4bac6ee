"""Strategies of damage to a file: to bytes, and to what the bytes mean, repaired so that it gets past the first check.

Each draws ``bytes`` that take the place of a file's, or ``Other``: what is there in place of a file.
"""

import contextlib
import gzip
import io
import json
import os
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from published_writers import Marker

DEEP, LONG = 1500, 5000  # brackets in one another, digits in a row
Draw = Callable[[st.SearchStrategy[Any]], Any]
Other = Callable[[Path], object]
"""Puts something in the place of a file, which is gone."""


NUMBERS = [struct.pack(kind, value) for kind, value in (
    ("<h", -1), ("<i", -1), ("<I", 2**31), ("<q", 2**40), ("<q", -1), ("<Q", 2**63),
)]  # fmt: skip


@st.composite
def of_bytes(draw: Draw, content: bytes) -> bytes:
    """A bit flipped; a piece cut out, put in, or written over; the file cut off."""
    start = draw(st.integers(0, len(content) - 1))
    size = draw(st.sampled_from((0, 1, 2, 4, 8, 64, 512, len(content))))
    piece = content[start : start + size]
    new = st.one_of(
        st.just(b""), st.sampled_from(NUMBERS), st.binary(min_size=1, max_size=100),
        st.sampled_from([byte * len(piece) for byte in (b"\0", b"\xff", b"9", b"[", b'"')]),
    )  # fmt: skip
    if size == 1 and draw(st.booleans()):
        new = st.integers(0, 7).map(lambda bit: bytes([piece[0] ^ 1 << bit]))
    return content[:start] + draw(new) + content[start + size :]


ODD = [
    None, True, [], {}, "", -1, 0, 1, 5.9, 2**40, 10**18, 2**63, -(2**63), 1e300, "NaN", "x" * LONG, "9" * LONG,
    "../..", "\ud800", "\0", [[]], [None], {"a": []}, float("nan"), float("inf"), -0.5, 2, "²", "٣", [-1], [0, 2**62],
    [0, 2**40],
    *("F64", "F16", "BF16", "I32", "I64", "U16", "F8_E4M3", "F8_E5M2", "BOOL", "C64"),  # types in safetensors
]  # fmt: skip
RAW = ["[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "9" * LONG, "1e999", "-Infinity"]
PLACE = "@@place@@"


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with each of its keys."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


@st.composite
def of_json(draw: Draw, text: str) -> str:
    """The text with one of its values or names left out or replaced by an odd one."""
    value = json.loads(text)
    places = _places(value)
    container, key = draw(st.sampled_from(places))
    how = draw(st.sampled_from(("leave out", "rename", "copy", "odd", "odd", "raw")))
    if how == "leave out":
        del container[key]
    elif how == "rename" and isinstance(container, dict):
        container[draw(st.sampled_from(("9" * LONG, "", "\ud800", "x" * LONG)))] = container.pop(key)
    elif how == "copy":
        other, place = draw(st.sampled_from(places))
        container[key] = json.loads(json.dumps(other[place]))
    else:
        container[key] = PLACE if how == "raw" else draw(st.sampled_from(ODD))
    return json.dumps(value).replace(f'"{PLACE}"', draw(st.sampled_from(RAW)))


@st.composite
def of_safetensors(draw: Draw, content: bytes) -> bytes:
    """The header, with its length put right; so that it says something else of the same bytes."""
    size = int.from_bytes(content[:8], "little")
    raw = draw(of_json(content[8 : 8 + size].decode())).encode("utf-8", "surrogatepass")
    return len(raw).to_bytes(8, "little") + raw + content[8 + size :]


@st.composite
def of_table(draw: Draw, content: bytes) -> bytes:
    lines = content.decode().split("\n")
    place = draw(st.integers(0, len(lines) - 1))
    fields = lines[place].split(",")
    odd = ("", "nan", "-1", "2", "5.9", "9" * LONG, "x" * 200_000, '"', "(" * DEEP, "1e9", "²", "\0", "(3, -3)")
    fields[draw(st.integers(0, len(fields) - 1))] = draw(st.sampled_from(odd))
    lines[place : place + 1] = draw(st.sampled_from(([], lines[place : place + 1] * 2, [",".join(fields)])))
    return "\n".join(lines).encode()


@st.composite
def of_array(draw: Draw, content: bytes) -> bytes:
    """The header of numpy's array, with its length put right."""
    size = int.from_bytes(content[8:10], "little")
    header = content[10 : 10 + size].decode().strip()
    shape = header[header.index("(") : header.index(")") + 1]
    a, b = shape.strip("()").split(", ")
    shapes = (f"(-{a}, {b})", f"({2**40}, {2**40})", f"({b}, {a})", "(" * DEEP, f"({a}.0, {b})", f"({'9' * LONG},)")
    changed = [header.replace(shape, other) for other in shapes]
    changed += [header.replace("<f4", other) for other in ("<f8", ">f4", "|O", "<i4", "f" * 100)]
    changed += [header.replace("'shape'", "'shapes'"), header[:-1], header[1:], "((" + header + "))"]
    changed += ["{'descr': [('a', '<f4', (2**40,))], 'fortran_order': False, 'shape': (1,)}"]
    raw = draw(st.sampled_from(changed)).encode() + b"\n"
    return content[:8] + (len(raw) % 65536).to_bytes(2, "little") + raw + content[10 + size :]


@st.composite
def of_archive(draw: Draw, content: bytes) -> bytes:
    """The archive packed again with one part damaged; its checksums are right."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {info.filename: archive.read(info) for info in archive.infolist()}
    name = draw(st.sampled_from([n for n in parts if n.endswith("data.pkl")] + list(parts)))
    damaged = of_bytes(parts[name]) if parts[name] else st.just(b"0")
    longer = st.sampled_from([parts[name] + bytes(n) for n in (1, 4, 4096)])
    parts[name + draw(st.sampled_from(("", "", "", "", "0")))] = draw(
        st.one_of(damaged, damaged, longer, st.just(bytes(2**24)), st.just(parts.pop(name)))
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if max(map(len, parts.values())) == 2**24 else 0) as archive:
        for part, data in parts.items():
            archive.writestr(part, data)
    return buffer.getvalue()


def _odd_values(x: torch.Tensor, mark: Path) -> list[Any]:
    """Values of other kinds, one of which runs code where it is unpickled."""
    x = x.float()
    with warnings.catch_warnings(action="ignore"):  # of kinds that are to go, or have just come
        quantised = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    return [
        x.to_sparse(), x.to("meta"), x.to(torch.float8_e4m3fn), x.to(torch.complex64), x.int(), x > 0, x.double(),
        quantised, torch.zeros(1).expand(2**20, 2**11), torch.zeros(0), x * torch.nan, x.half(), x[..., None, None],
        x.flatten(), torch.tensor(3), 5.9, torch.nn.Parameter(x.clone()), "text", None, 10**18, [x], {"a": x}, nested,
        (1,) * 3, x.bfloat16(), Marker(mark), Marker(mark),
    ]  # fmt: skip


@st.composite
def of_tensors(draw: Draw, content: bytes, mark: Path) -> bytes:
    """What `torch.save` wrote, with a value left out, renamed, or replaced by one of another kind."""
    saved = torch.load(io.BytesIO(content), weights_only=True)
    target, key = draw(st.sampled_from([(c, k) for c, k in _places(saved) if isinstance(c, dict)]))
    value = target.pop(key)
    how = draw(st.sampled_from(("leave out", "rename", "replace", "replace", "replace")))
    if how == "rename":
        target[draw(st.sampled_from(("9" * LONG, 5, ("a", 1), None, "x.weight", "²")))] = value
    elif how == "replace":
        like = value if isinstance(value, torch.Tensor) and value.numel() else torch.ones(3, 2)
        target[key] = _odd_values(like, mark)[draw(st.integers(0, 26))]
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        torch.save(saved, buffer, _use_new_zipfile_serialization=content[:2] == b"PK")
    return buffer.getvalue()


def _packed(text: bytes) -> bytes:
    return gzip.compress(text, 1, mtime=0)


def _hole(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**28)


BOMBS = [_packed(text * (2**26 // len(text))) for text in (b"\0", b"a,b\n", b'"')]  # a little expands to a lot
OTHERS: dict[str, Other] = {
    "a folder": Path.mkdir, "a pipe": os.mkfifo, "a device": lambda path: path.symlink_to("/dev/zero"),
    "itself": lambda path: path.symlink_to(path), "nothing": Path.touch, "a hole of 256 MiB": _hole,
}  # fmt: skip
REPAIRED = ("tensors", "archive")  # whose checksums are right: what they leave is another file, no damaged one


def damages(file: Path, mark: Path) -> st.SearchStrategy[tuple[str, bytes | Other]]:
    """How a file is damaged, and what takes its place; what is poisoned makes a file ``mark`` if it runs."""
    content = file.read_bytes()
    of: dict[str, st.SearchStrategy[bytes | Other]] = {
        "bytes": of_bytes(content), "place": st.sampled_from(list(OTHERS.values())),
    }  # fmt: skip
    if file.suffix == ".json":
        of["json"] = of_json(content.decode()).map(str.encode)
    elif file.suffix == ".safetensors":
        of["header"] = of_safetensors(content)
    elif file.name.endswith(".csv.gz"):
        of |= {"table": of_table(gzip.decompress(content)).map(_packed), "bomb": st.sampled_from(BOMBS)}
    elif file.suffix == ".csv":
        of["table"] = of_table(content)
    elif file.suffix == ".npy":
        of["array"] = of_array(content)
    elif file.suffix in (".pt", ".pth"):
        if zipfile.is_zipfile(file):
            of["archive"] = of_archive(content)
        with contextlib.suppress(pickle.UnpicklingError):  # of what names more than tensors
            torch.load(file, weights_only=True)
            of["tensors"] = of_tensors(content, mark)
    return st.one_of([st.tuples(st.just(how), strategy) for how, strategy in of.items()])
