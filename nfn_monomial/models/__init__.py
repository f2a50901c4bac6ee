"""Whole models: networks in, predictions or edited networks out."""

from .blocks import recompute_blocks
from .message_passing import MessagePassingEditor, MessagePassingNFN
from .monomial import EquivariantNFN, MonomialNFN, equivariant_stack

__all__ = [
    "EquivariantNFN",
    "MessagePassingEditor",
    "MessagePassingNFN",
    "MonomialNFN",
    "equivariant_stack",
    "recompute_blocks",
]
