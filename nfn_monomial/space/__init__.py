"""What layers act on: weight spaces, their groups, and features of networks."""

from .features import Axis, Features, FieldType, Layout
from .groups import GroupElement, MonomialMatrix
from .links import Link
from .weight_space import Node, WeightSpace

__all__ = ["Axis", "Features", "FieldType", "GroupElement", "Layout", "Link", "MonomialMatrix", "Node", "WeightSpace"]
