"""Features of networks that need no learned layers: statistics, and answers to probes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nfn_monomial.doors import lazy

if TYPE_CHECKING:
    from .grams import GramStatistics
    from .probes import Probed, ProbeFeatures
    from .statistics import InvariantStatistics
else:
    lazy(
        __name__,
        {
            "grams": ["GramStatistics"],
            "probes": ["Probed", "ProbeFeatures"],
            "statistics": ["InvariantStatistics"],
        },
    )

__all__ = ["GramStatistics", "InvariantStatistics", "ProbeFeatures", "Probed"]
