"""Aligns and compares networks: matches neurons, up to scales and signs, and measures what is left between them."""

from .align import Alignment, align
from .comparison import Comparison, LayerDistance, compare
from .cycles import CommonFrame, align_all
from .kinship import Kinship, NodeKinship, kinship, kinships
from .path import barrier, interpolate, mean_measures, mean_of
from .repair import repair

__all__ = [
    "Alignment",
    "CommonFrame",
    "Comparison",
    "Kinship",
    "LayerDistance",
    "NodeKinship",
    "align",
    "align_all",
    "barrier",
    "compare",
    "interpolate",
    "kinship",
    "kinships",
    "mean_measures",
    "mean_of",
    "repair",
]
