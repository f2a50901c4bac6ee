"""Safetensors files with a checksum over their tensors and over a statement about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from nfn_monomial.errors import InvalidValueError

from .tensors import PathLike, open_safetensors
from .untrusted import parse_json

__all__ = ["read_sealed", "seal"]

SEAL = "sealed"  # the entry of a file's metadata


def seal(tensors: Mapping[str, Tensor], stated: Mapping[str, Any]) -> bytes:
    """Makes a safetensors file whose metadata have a statement and a checksum; equal contents give equal bytes.

    ``stated`` is JSON that says what the tensors are.
    """
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    memory = [t.untyped_storage().data_ptr() for t in tensors.values()]
    shared = {place for place in memory if memory.count(place) > 1}  # as of a layer that a model has twice
    tensors = {
        name: t.clone() if place in shared else t for (name, t), place in zip(tensors.items(), memory, strict=True)
    }
    text = json.dumps(stated)
    entry = json.dumps({"sha256": _digest(tensors, text), "stated": text})
    return safetensors.torch.save(tensors, {SEAL: entry})  # one entry, because the order of several is not fixed


def read_sealed(path: PathLike) -> tuple[dict[str, Tensor], Any]:
    """Reads the tensors, memory-mapped, and the statement of a file that `seal` wrote.

    Raises:
        FileNotFoundError: if the file does not exist or is no regular file.
        ValueError: if it is damaged; without the file's name, if it has no checksum of ours, or another.
    """
    tensors, metadata = open_safetensors(path)
    if SEAL not in metadata:
        raise InvalidValueError("it has no checksum: another program wrote it, or an earlier version of this one")
    entry = parse_json(metadata[SEAL])
    text = entry.get("stated") if isinstance(entry, dict) else None
    if not isinstance(text, str) or entry.get("sha256") != _digest(tensors, text):
        raise InvalidValueError("its contents do not have the checksum that it states")
    return tensors, parse_json(text)


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name!r} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
