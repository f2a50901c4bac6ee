"""Bases of equivariant maps, without tensors: partitions of axes with balanced charges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nfn_monomial.doors import lazy

if TYPE_CHECKING:
    from .bilinear import BilinearTerm, bilinear_terms, count_bilinear_terms
    from .linear import count_terms
else:
    lazy(
        __name__,
        {
            "bilinear": ["BilinearTerm", "bilinear_terms", "count_bilinear_terms"],
            "linear": ["count_terms"],
        },
    )

__all__ = ["BilinearTerm", "bilinear_terms", "count_bilinear_terms", "count_terms"]
