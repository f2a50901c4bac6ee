"""JSON, tables and arrays in files of strangers, read within limits that real files do not come near.

The size that a file states is compared with its actual size before memory is allocated.
"""

from __future__ import annotations

import csv
import io
import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nfn_monomial.checks import shown
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files.untrusted import open_regular, parse_json, read_bytes

__all__ = ["map_array", "number", "read_json", "read_rows", "whole"]

LINE_BYTES = 2**20
EXPANSION = 200  # bytes that a compressed byte may become: tables of numbers give 3 to 20, all zeros 1,000
HEADROOM = 2**20  # beyond that, for short files


def read_json(path: Path) -> Any:
    """Reads a JSON file; as `read_bytes` and `parse_json`."""
    return parse_json(read_bytes(path))


def number(value: object, what: str) -> float:
    """A finite number, from a number or its digits.

    Raises:
        ValueError: naming ``what``, if it is none.
    """
    try:
        converted = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        converted = math.nan
    if not math.isfinite(converted):
        raise InvalidValueError(f"{what} is {shown(value)}, expected a finite number")
    return converted


def whole(value: object, what: str, *, least: int = 0, most: int = 10**9) -> int:
    """A whole number, from a number or its digits; 5.0 is one, 5.9 is none.

    Raises:
        ValueError: naming ``what``, if it is none, or is not from ``least`` to ``most``.
    """
    try:
        converted = number(value, what)
    except InvalidValueError:
        converted = math.nan
    if not (least <= converted <= most and converted == int(converted)):
        raise InvalidValueError(f"{what} is {shown(value)}, expected a whole number from {least} to {most}")
    return int(converted)


class _Unzipped(io.RawIOBase):
    """The text of a gzip file. `gzip` reads zeros at the end of a file one by one; here they are an error."""

    def __init__(self, raw: BinaryIO) -> None:
        self.raw, self.member, self.rest = raw, zlib.decompressobj(wbits=31), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.member.eof:
            block = self.rest or self.raw.read(2**16)
            text = self.member.decompress(block, len(buffer))
            self.rest = self.member.unconsumed_tail
            if text:
                buffer[: len(text)] = text
                return len(text)
            if not block:
                raise InvalidValueError("its compressed text is cut off")
        if self.member.unused_data or self.raw.read(1):
            raise InvalidValueError("there is more after its compressed text")
        return 0


def read_rows(path: Path, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """The lines of a CSV file, whose name may end in ``.gz``, with their numbers. UTF-8, with a mark of that or not.

    Raises:
        FileNotFoundError: as `require_regular`.
        ValueError: while reading, if a line is longer than a MiB, or the text is far longer than its compressed form.
        Exception: errors of the readers of gzip and CSV; see `damaged`.
    """
    with open_regular(path) as raw:
        most = EXPANSION * os.fstat(raw.fileno()).st_size + HEADROOM
        stream = io.BufferedReader(_Unzipped(raw)) if path.suffix == ".gz" else raw

        def lines() -> Iterator[str]:
            taken = 0
            while line := stream.readline(LINE_BYTES + 1):
                taken += len(line)
                if len(line) > LINE_BYTES or taken > most:
                    what = "a line of more than a MiB" if len(line) > LINE_BYTES else f"more than {most} bytes of text"
                    raise InvalidValueError(f"it has {what}")
                yield line.decode("utf-8-sig")

        reader = csv.reader(lines(), delimiter=delimiter)
        for row in reader:
            yield reader.line_num, row


def map_array(path: Path, dtype: type[np.generic], dimensions: int) -> np.ndarray[tuple[int, ...], Any]:
    """The array in a ``.npy`` file, memory-mapped, after its header was held against the size of the file.

    Raises:
        FileNotFoundError: as `require_regular`.
        ValueError: if the header names another type, another number of dimensions, or another size than the file has.
        Exception: NumPy's errors for a damaged header; see `damaged`.
    """
    with open_regular(path) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, stored = read(file)
        start, size = file.tell(), os.fstat(file.fileno()).st_size
    if stored != dtype or len(shape) != dimensions or any(type(n) is not int or n < 0 for n in shape):
        wanted = f"{np.dtype(dtype)} with {dimensions} dimensions"
        raise InvalidValueError(f"it holds {stored} {shown(shape)}, expected {wanted}: convert it first")
    expected = start + math.prod(shape) * stored.itemsize
    if size != expected:
        state = "truncated" if size < expected else "too long"
        sizes = " x ".join(map(shown, shape))
        raise InvalidValueError(
            f"it is {state}: its header says {sizes} {stored}, {shown(expected)} bytes in all, but it has {size}"
        )
    if not math.prod(shape):
        return np.empty(shape, stored)  # an empty file cannot be mapped
    return np.memmap(path, stored, "r", start, shape, "F" if fortran else "C")
