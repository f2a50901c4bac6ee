"""Tensors and what is known of them in one safetensors file: a record as JSON, and a checksum over both.

Nothing is unpickled. A file that was cut off, or in which a bit has flipped, is never taken for data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from nfn_monomial.adapters.files import parse_json, require_regular
from nfn_monomial.errors import InvalidValueError

__all__ = ["read_tensors", "tensor_bytes"]

ENTRY = "nfn-monomial"  # of the file's metadata: one, as safetensors writes several in random order


def tensor_bytes(tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> bytes:
    """The file; equal contents give equal bytes.

    Args:
        tensors: by name, on any device.
        record: what JSON holds: texts, finite numbers, lists and dicts of these.
    """
    kept = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    entry = {"sha256": _digest(kept, record), "record": record}
    return save(kept, {ENTRY: json.dumps(entry, allow_nan=False)})


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors, on the CPU, and record, as `tensor_bytes` has written them.

    Raises:
        FileNotFoundError: if there is no such regular file.
        ValueError: naming the file, if it is damaged, or was written by something else.
    """
    file = Path(path)
    require_regular(file)
    try:
        with safe_open(file, framework="pt") as opened:
            text = (opened.metadata() or {}).get(ENTRY)
            tensors = {} if text is None else {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InvalidValueError(f"{file} is truncated or no safetensors file: {error}") from error
    if text is None:
        raise InvalidValueError(f"{file} holds tensors alone, without the record that nfn-monomial writes beside them")
    try:
        entry = parse_json(text)
        expected, record = entry["sha256"], entry["record"]
        found = _digest(tensors, record)
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidValueError(
            f"{file}: its record is damaged ({type(error).__name__}): copy the file again"
        ) from None
    if expected != found or not isinstance(record, dict):
        raise InvalidValueError(f"{file} is damaged: its checksum does not fit its content: copy the file again")
    return tensors, record


def _digest(tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(record, sort_keys=True, allow_nan=False).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
