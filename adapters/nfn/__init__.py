"""The core's layers with the signature and the container of the ``nfn`` package: swap a class name and go on.

Every layer takes nfn's ``NetworkSpec`` first and maps ``WeightSpaceFeatures`` to ``WeightSpaceFeatures``, so that it
mixes with ``HNPLinear``, ``NPAttention``, ``TupleOp`` and the rest in one ``nn.Sequential``. Where nfn's layers know
permutations only, these know the scalings or sign flips that the given networks' activations allow as well. Up to
`MonomialCanonicalize` or `MonomialBalance` only these layers keep them, and without one of the two a network is not
invariant; after it features are only permuted, and nfn's layers keep that. `check_invariant` tests a whole pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nfn_monomial.doors import lazy

if TYPE_CHECKING:
    from .balanced import MonomialBalance, MonomialLayerNorm
    from .features import from_tensors, to_tensors
    from .layers import (
        MonomialActivation,
        MonomialCanonicalize,
        MonomialChannelLinear,
        MonomialLinear,
    )
    from .messages import MonomialMessagePassing, MonomialProbes
    from .pools import MonomialPool, MonomialStatistics
    from .stack import MonomialStack, check_invariant
else:
    lazy(
        __name__,
        {
            "balanced": ["MonomialBalance", "MonomialLayerNorm"],
            "features": ["from_tensors", "to_tensors"],
            "layers": [
                "MonomialActivation",
                "MonomialCanonicalize",
                "MonomialChannelLinear",
                "MonomialLinear",
            ],
            "messages": ["MonomialMessagePassing", "MonomialProbes"],
            "pools": ["MonomialPool", "MonomialStatistics"],
            "stack": ["MonomialStack", "check_invariant"],
        },
    )

__all__ = [
    "MonomialActivation",
    "MonomialBalance",
    "MonomialCanonicalize",
    "MonomialChannelLinear",
    "MonomialLayerNorm",
    "MonomialLinear",
    "MonomialMessagePassing",
    "MonomialPool",
    "MonomialProbes",
    "MonomialStack",
    "MonomialStatistics",
    "check_invariant",
    "from_tensors",
    "to_tensors",
]
