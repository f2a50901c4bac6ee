"""What layers act on: weight spaces, their groups, and features of networks."""

from .axes import Axis, Dim, FieldType, field_name
from .features import Features, Layout
from .geometry import SymmetryLike
from .groups import GroupElement, MonomialMatrix
from .links import Link
from .specification import Node, Specification
from .weight_space import WeightSpace

__all__ = [
    "Axis",
    "Dim",
    "Features",
    "FieldType",
    "GroupElement",
    "Layout",
    "Link",
    "MonomialMatrix",
    "Node",
    "Specification",
    "SymmetryLike",
    "WeightSpace",
    "field_name",
]
