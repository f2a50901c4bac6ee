"""Architectures from what files say of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nfn_monomial.errors import InvalidValueError

from .base import KINDS, Architecture
from .plain import PlainCNN
from .residual import ResidualCNN
from .transformers import Transformer

__all__ = ["architecture_of"]

_CLASSES: dict[str, type[Architecture]] = {cls.kind: cls for cls in (PlainCNN, ResidualCNN, Transformer)}


def architecture_of(described: Mapping[str, Any]) -> Architecture:
    """What `Architecture.described` has written; a description that names no kind is that of a plain CNN.

    Raises:
        ValueError: if the kind is not known, or the numbers make no sense.
        TypeError: if fields are missing, or there are unknown ones.
    """
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in described.items() if name != "kind"}
    kind = described.get("kind", PlainCNN.kind)
    if kind not in _CLASSES:
        raise InvalidValueError(f"unknown kind of architecture {kind!r}: choose from {', '.join(KINDS)}")
    return _CLASSES[kind](**fields)
