"""Random points of a network and what they show: its group keeps its function, it is complete, parameters are dead."""

from .certificate import Certificate, certify
from .completeness import Completeness, completeness
from .dead import dead_parts
from .points import Point

__all__ = ["Certificate", "Completeness", "Point", "certify", "completeness", "dead_parts"]
