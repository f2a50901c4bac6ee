"""Bases of equivariant maps, without tensors: partitions of axes with balanced charges."""

from .bilinear import BilinearTerm, bilinear_terms, count_bilinear_terms
from .linear import count_terms

__all__ = ["BilinearTerm", "bilinear_terms", "count_bilinear_terms", "count_terms"]
