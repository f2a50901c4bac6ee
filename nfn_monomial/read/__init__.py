"""What is read off networks without learned layers: statistics, and answers to probes."""

from .grams import GramStatistics
from .probes import Probed, ProbeFeatures
from .statistics import InvariantStatistics

__all__ = ["GramStatistics", "InvariantStatistics", "ProbeFeatures", "Probed"]
