"""Whole models: networks in, predictions or edited networks out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nfn_monomial.doors import lazy

if TYPE_CHECKING:
    from .blocks import recompute_blocks
    from .message_passing import MessagePassingEditor, MessagePassingNFN
    from .monomial import EquivariantNFN, MonomialNFN, equivariant_stack
else:
    lazy(
        __name__,
        {
            "blocks": ["recompute_blocks"],
            "message_passing": ["MessagePassingEditor", "MessagePassingNFN"],
            "monomial": ["EquivariantNFN", "MonomialNFN", "equivariant_stack"],
        },
    )

__all__ = [
    "EquivariantNFN",
    "MessagePassingEditor",
    "MessagePassingNFN",
    "MonomialNFN",
    "equivariant_stack",
    "recompute_blocks",
]
