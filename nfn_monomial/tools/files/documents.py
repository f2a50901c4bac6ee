"""Files of strangers that are read whole, and JSON in them, within limits that real ones do not come near."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

from nfn_monomial.checks import shown
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files.strangers import FileError, open_regular

__all__ = ["parse_json", "read_bytes"]

TEXT_BYTES = 2**25  # of a file that is read whole; the longest published one has 6 MB
DEPTH = 64  # of brackets in JSON
LARGEST = 2**53  # whole numbers up to this are exact in every program
SURROGATE = re.compile("[\ud800-\udfff]")


def read_bytes(path: Path, most: int = TEXT_BYTES) -> bytes:
    """All of a file.

    Raises:
        FileNotFoundError: as `require_regular`.
        ValueError: if it has more than ``most`` bytes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise FileError(f"{path} has {size} bytes, expected at most {most}: it is no file of this kind")
        return file.read(size)


def parse_json(data: bytes | str) -> Any:
    """JSON within limits: nested 64 deep at most, whole numbers up to 2**53, all numbers finite, proper Unicode.

    Raises:
        ValueError: if it is anything else.
    """
    try:
        value = json.loads(data.decode("utf-8-sig") if isinstance(data, bytes) else data)
    except RecursionError:
        raise InvalidValueError(f"not JSON: nested more than {DEPTH} deep") from None
    except ValueError as error:
        raise InvalidValueError(f"not JSON: {error}") from error
    inside, depth = [value], 0
    while inside:
        depth += 1
        if depth > DEPTH:
            raise InvalidValueError(f"not JSON that is read here: nested more than {DEPTH} deep")
        following: list[Any] = []
        for item in inside:
            if isinstance(item, dict):
                following += [*item, *item.values()]
            elif isinstance(item, list):
                following += item
            elif isinstance(item, float) and not math.isfinite(item):
                raise InvalidValueError(f"not JSON: it has the number {item}")
            elif isinstance(item, int) and abs(item) > LARGEST:
                raise InvalidValueError(f"not JSON that is read here: the whole number {shown(item)} is over 2**53")
            elif isinstance(item, str) and not item.isascii() and SURROGATE.search(item):
                raise InvalidValueError(f"not JSON: half a surrogate pair in {shown(item)}")
        inside = following
    return value
