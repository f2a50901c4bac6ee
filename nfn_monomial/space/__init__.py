"""Weight spaces, their groups, and features of networks: the data that layers act on."""

from . import as_pytree as as_pytree  # registers `Features`
from .axes import Axis, Charge, Dim, FieldType, Sum, field_name
from .features import Features, Layout
from .geometry import SymmetryLike
from .groups import GroupElement
from .links import Link, SharedScale
from .monomial import MonomialMatrix
from .nodes import Node
from .places import Piece, Place
from .weight_space import WeightSpace

__all__ = [
    "Axis",
    "Charge",
    "Dim",
    "Features",
    "FieldType",
    "GroupElement",
    "Layout",
    "Link",
    "MonomialMatrix",
    "Node",
    "Piece",
    "Place",
    "SharedScale",
    "Sum",
    "SymmetryLike",
    "WeightSpace",
    "field_name",
]
