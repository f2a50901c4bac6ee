"""What is read off networks without learned layers: statistics, and answers to probes."""

from .probes import Probed, ProbeFeatures
from .statistics import InvariantStatistics

__all__ = ["InvariantStatistics", "ProbeFeatures", "Probed"]
