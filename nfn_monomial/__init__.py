"""Monomial-matrix-group equivariant neural functionals: layers that read networks and respect all their symmetries.

The core is pure torch. Converters live in ``nfn_monomial.adapters``, experiments in ``nfn_monomial.benchmarks``.
"""

from .basis import count_terms
from .features import Axis, Features, FieldType, Layout
from .groups import GroupElement, MonomialMatrix
from .linear import EquivariantLinear
from .models import EquivariantNFN, MonomialNFN, equivariant_stack
from .pointwise import Canonicalize, InvariantPool, PointwiseActivation
from .symmetry import Symmetry, register_activation, symmetry_of
from .weight_space import Node, WeightSpace

__version__ = "0.1.0"

__all__ = [
    "Axis",
    "Canonicalize",
    "EquivariantLinear",
    "EquivariantNFN",
    "Features",
    "FieldType",
    "GroupElement",
    "InvariantPool",
    "Layout",
    "MonomialMatrix",
    "MonomialNFN",
    "Node",
    "PointwiseActivation",
    "Symmetry",
    "WeightSpace",
    "count_terms",
    "equivariant_stack",
    "register_activation",
    "symmetry_of",
]
