"""What layers act on: weight spaces, their groups, and features of networks."""

from .axes import Axis, Charge, Dim, FieldType, Sum, field_name
from .features import Features, Layout
from .geometry import SymmetryLike
from .groups import GroupElement
from .links import End, Link, SharedScale
from .monomial import MonomialMatrix
from .specification import Node, Piece, Specification
from .weight_space import WeightSpace

__all__ = [
    "Axis",
    "Charge",
    "Dim",
    "End",
    "Features",
    "FieldType",
    "GroupElement",
    "Layout",
    "Link",
    "MonomialMatrix",
    "Node",
    "Piece",
    "SharedScale",
    "Specification",
    "Sum",
    "SymmetryLike",
    "WeightSpace",
    "field_name",
]
