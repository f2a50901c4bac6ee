"""Damage to files: of bytes, and of what the bytes mean, repaired so that it gets past the first check."""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
import random
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from published_writers import Marker

BRACKETS, DIGITS, FIELD = 1500, 5000, 200_000
Mutation = Callable[[Path, random.Random, Path], bool]
"""Damages a file in place; False if it is of no kind that can be damaged so. The last path is a poisoned one's mark."""


def _chunk(data: bytes, rng: random.Random) -> slice:
    start = rng.randrange(len(data) + 1)
    return slice(start, start + rng.choice((1, 2, 4, 8, 64, 512)))


def flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def insert(data: bytes, rng: random.Random) -> bytes:
    where = rng.randrange(len(data) + 1)
    return data[:where] + rng.randbytes(rng.choice((1, 4, 100))) + data[where:]


def remove(data: bytes, rng: random.Random) -> bytes:
    cut = _chunk(data, rng)
    return data[: cut.start] + data[cut.stop :]


def overwrite(data: bytes, rng: random.Random) -> bytes:
    cut = _chunk(data, rng)
    size = len(data[cut])
    return data[: cut.start] + rng.choice((b"\0", b"\xff", b"9", b"[", b'"')) * size + data[cut.stop :]


def number(data: bytes, rng: random.Random) -> bytes:
    """A whole number of 2, 4 or 8 bytes that is at the end of some range."""
    kind, value = rng.choice((("<h", -1), ("<i", -1), ("<I", 2**31), ("<q", 2**40), ("<q", -1), ("<Q", 2**63)))
    packed = struct.pack(kind, value)
    start = rng.randrange(len(data) + 1)
    return data[:start] + packed + data[start + len(packed) :]


OF_BYTES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    made.__name__: made for made in (flip, truncate, insert, remove, overwrite, number)
}


# What JSON means


ODD = (
    None, True, [], {}, "", -1, 0, 1, 5.9, 2**40, 10**18, 2**63, -(2**63), 1e300, "NaN", "x" * DIGITS, "9" * DIGITS,
    "../..", "\ud800", "\0", [[]], [None], {"a": []}, float("nan"), float("inf"), -0.5, 2, "²", "٣",
)  # fmt: skip
RAW = ("[" * BRACKETS + "]" * BRACKETS, '{"a":' * BRACKETS + "1" + "}" * BRACKETS, "9" * DIGITS, "1e999", "-Infinity")
PLACE = "@@place@@"


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with each of its keys."""
    found = []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += [(value, key), *_places(inner)]
    return found


def odd_json(text: str, rng: random.Random) -> str:
    """The text with one of its values or names replaced by an odd one."""
    value = json.loads(text)
    places = _places(value)
    if not places:
        return rng.choice((json.dumps(rng.choice(ODD)), rng.choice(RAW)))
    container, key = rng.choice(places)
    how = rng.randrange(6)
    if how == 0:
        del container[key]
    elif how == 1 and isinstance(container, dict):
        container[rng.choice(("9" * DIGITS, "", "\ud800", "x" * DIGITS))] = container.pop(key)
    elif how == 2:
        other, place = rng.choice(places)
        container[key] = json.loads(json.dumps(other[place]))
    elif how == 3:
        container[key] = PLACE
    else:
        container[key] = rng.choice(ODD)
    return json.dumps(value).replace(f'"{PLACE}"', rng.choice(RAW))


def edit_json(file: Path, rng: random.Random, _: Path) -> bool:
    if file.suffix != ".json":
        return False
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    if file.name == "result.json":  # an object a line
        place = rng.randrange(len(lines))
        lines[place] = odd_json(lines[place], rng) + "\n"
        text = "".join(lines)
    else:
        text = odd_json("".join(lines), rng)
    file.write_text(text, encoding="utf-8")
    return True


def edit_safetensors(file: Path, rng: random.Random, _: Path) -> bool:
    """The header, with its length put right; so that it says something else of the same bytes."""
    if file.suffix != ".safetensors":
        return False
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    how = rng.randrange(3)
    if how == 0:
        text = odd_json(json.dumps(header), rng)
    else:
        name = rng.choice([key for key in header if key != "__metadata__"])
        entry = header[name]
        change: dict[str, Any] = rng.choice((
            {"dtype": rng.choice(("F64", "F16", "BF16", "I32", "I64", "U16", "F8_E4M3", "F8_E5M2", "BOOL", "C64"))},
            {"shape": entry["shape"][::-1]}, {"shape": [*entry["shape"], 1]}, {"shape": [0, 2**62]}, {"shape": [-1]},
            {"data_offsets": [0, 2**40]}, {"data_offsets": entry["data_offsets"][::-1]},
        ))  # fmt: skip
        text = json.dumps(header | {name: entry | change})
    raw = text.encode("utf-8", "surrogatepass")
    file.write_bytes(len(raw).to_bytes(8, "little") + raw + data[8 + size :])
    return True


# Tables and arrays


def edit_table(file: Path, rng: random.Random, _: Path) -> bool:
    packed = file.name.endswith(".csv.gz")
    if not packed and file.suffix != ".csv":
        return False
    data = file.read_bytes()
    lines = (gzip.decompress(data) if packed else data).decode().split("\n")
    place = rng.randrange(len(lines))
    fields = lines[place].split(",")
    odd = ("", "nan", "-1", "2", "5.9", "9" * DIGITS, "x" * FIELD, '"', "(" * BRACKETS, "1e9", "²", "\0", "(3, -3)")
    how = rng.randrange(4)
    if how == 0:
        del lines[place]
    elif how == 1:
        lines.insert(place, lines[place])
    else:
        fields[rng.randrange(len(fields))] = rng.choice(odd)
        lines[place] = ",".join(fields)
    text = "\n".join(lines).encode()
    file.write_bytes(gzip.compress(text, 1, mtime=0) if packed else text)
    return True


def bomb(file: Path, rng: random.Random, _: Path) -> bool:
    """A little that expands to a lot."""
    if not file.name.endswith(".gz"):
        return False
    file.write_bytes(_bomb(rng.choice((b"\0", b"a,b\n", b'"'))))
    return True


@functools.cache
def _bomb(text: bytes) -> bytes:
    return gzip.compress(text * (2**26 // len(text)), 1, mtime=0)


def edit_array(file: Path, rng: random.Random, _: Path) -> bool:
    if file.suffix != ".npy":
        return False
    data = file.read_bytes()
    size = int.from_bytes(data[8:10], "little")
    header = data[10 : 10 + size].decode().strip()
    shape = header[header.index("(") : header.index(")") + 1]
    numbers = shape.strip("()").split(", ")
    header = rng.choice((
        header.replace(shape, f"(-{numbers[0]}, {numbers[1]})"), header.replace(shape, f"({2**40}, {2**40})"),
        header.replace(shape, f"({numbers[1]}, {numbers[0]})"), header.replace(shape, "(" * BRACKETS), header[:-1],
        header.replace(shape, f"({numbers[0]}.0, {numbers[1]})"), header.replace(shape, f"({'9' * DIGITS},)"),
        header.replace("<f4", rng.choice(("<f8", ">f4", "|O", "<i4", "f" * 100))),
        header.replace("'shape'", "'shapes'"),
        header.replace("(", "((((").replace(")", "))))"), header[1:],
        "{'descr': [('a', '<f4', (2**40,))], 'fortran_order': False, 'shape': (1,)}",
    ))  # fmt: skip
    raw = header.encode() + b"\n"
    file.write_bytes(data[:8] + (len(raw) % 65536).to_bytes(2, "little") + raw + data[10 + size :])
    return True


# Torch files


def _is_archive(file: Path) -> bool:
    return file.suffix in (".pt", ".pth", ".ckpt") or file.name == "checkpoints"


def edit_archive(file: Path, rng: random.Random, mark: Path) -> bool:
    """The archive packed again with one part damaged; its checksums are right."""
    if not _is_archive(file) or not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        parts = {info.filename: archive.read(info) for info in archive.infolist()}
    name = rng.choice([n for n in parts if n.endswith("data.pkl")] + list(parts))
    how, kind = rng.randrange(7), zipfile.ZIP_STORED
    if how == 0:
        del parts[name]
    elif how == 1:
        parts[f"{name}0"] = parts.pop(name)
    elif how == 2:
        parts[name], kind = bytes(2**24), zipfile.ZIP_DEFLATED
    elif how == 3:
        parts[name] += bytes(rng.choice((1, 4, 4096)))
    elif parts[name]:
        parts[name] = rng.choice(list(OF_BYTES.values()))(parts[name], rng)
    with zipfile.ZipFile(file, "w", kind) as archive:
        for part, content in parts.items():
            archive.writestr(part, content)
    return True


def _odd_tensors(tensor: torch.Tensor) -> list[Any]:
    flat = tensor.float()
    with warnings.catch_warnings(action="ignore"):  # of kinds that are to go, or have just come
        quantised = torch.quantize_per_tensor(flat, 0.1, 0, torch.qint8)
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with_nan, twice = flat.clone(), flat.double()
    with_nan.view(-1)[0] = torch.nan
    return [
        flat.to_sparse(), flat.to("meta"), flat.to(torch.float8_e4m3fn), flat.to(torch.complex64), flat.int(), flat > 0,
        twice, quantised, torch.zeros(1).expand(2**20, 2**11), torch.zeros(0), with_nan,
        flat.half(), flat[..., None, None, None, None], flat.flatten(), torch.tensor(3), 5.9,
        torch.nn.Parameter(flat.clone()), "text", None, 10**18, [flat], {"a": flat}, nested, (1,) * 3, flat.bfloat16(),
    ]  # fmt: skip


def odd_tensor(file: Path, rng: random.Random, mark: Path) -> bool:
    """A value replaced by one of another kind, or by one that runs code where it is unpickled."""
    if not _is_archive(file):
        return False
    try:
        content = torch.load(file, weights_only=True)
    except Exception:  # which names what only its reader knows
        return False
    legacy = not zipfile.is_zipfile(file)
    places = [(value, key) for value in _mappings(content) for key in value]
    target, key = rng.choice(places)
    like = target[key] if isinstance(target[key], torch.Tensor) else torch.randn(3, 2)
    how = rng.randrange(8)
    if how == 0:
        del target[key]
    elif how == 1:
        target[rng.choice(("9" * DIGITS, 5, ("a", 1), None, "x.weight", "²"))] = target.pop(key)
    elif how == 2:
        target[key] = Marker(mark)
    elif like.numel():
        target[key] = rng.choice(_odd_tensors(like))
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        torch.save(content, buffer, _use_new_zipfile_serialization=not legacy)
    file.write_bytes(buffer.getvalue())
    return True


def _mappings(value: Any) -> list[Any]:
    if not isinstance(value, dict):
        return []
    return [value, *(found for inner in value.values() for found in _mappings(inner))]


# What is in the place of a file


def other_kind(file: Path, rng: random.Random, _: Path) -> bool:
    how = rng.randrange(6)
    data = file.read_bytes()
    file.unlink()
    if how == 0:
        file.mkdir()
    elif how == 1:
        os.mkfifo(file)
    elif how == 2:
        file.symlink_to("/dev/zero")
    elif how == 3:
        file.symlink_to(file)
    elif how == 4:
        file.write_bytes(b"")
    elif how == 5:
        file.write_bytes(data)
        os.truncate(file, 2**28)  # a hole of 256 MiB
    return True


OF_MEANING: dict[str, Mutation] = {
    made.__name__: made
    for made in (edit_json, edit_safetensors, edit_table, edit_array, edit_archive, odd_tensor, bomb, other_kind)
}
REPAIRS = {"edit_archive", "odd_tensor"}  # whose checksums are right: what they leave is another file, no damaged one
