"""Networks with batch norms after layers, and the same networks as they are fused for inference.

A fused network is a network with batch norms, too: each of these has the gain 1, the variance ``1 - eps`` and the shift
that the layer's bias is. So the two are compared as networks of one class, once both are folded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from nfn_monomial.errors import MonomialError
from nfn_monomial.trace import batchnorm
from nfn_monomial.trace.batchnorm import Fold

__all__ = ["Fold", "folded", "folds_of", "unfused"]


def folds_of(module: nn.Module, inputs: tuple[Any, ...]) -> list[Fold]:
    """Returns the batch norms that layers can take up; none if the program of the module cannot be read."""
    try:
        return batchnorm.folds_of(module, inputs)
    except MonomialError:
        return []


def unfused(state: Mapping[str, Tensor], folds: Sequence[Fold]) -> dict[str, Tensor] | None:
    """Returns a state dict without batch norms as one of the network that has them; None if they are all there.

    The constants of a layer without a bias are kept in its norm: as the shift, or else as the negative mean.
    """
    gone = [fold for fold in folds if not any(key in state for key in fold.keys) and f"{fold.layer}.weight" in state]
    tensors = dict(state)
    for fold in gone:
        weight = state[f"{fold.layer}.weight"]
        zero = weight.new_zeros(len(weight) if fold.groups is None else fold.groups * weight.shape[1])
        bias = tensors.pop(f"{fold.layer}.bias", zero)
        tensors |= dict(zip(fold.keys, (zero, zero + 1 - fold.eps, zero + 1, zero), strict=False))
        if fold.biased:
            tensors[f"{fold.layer}.bias"] = bias
        elif fold.affine:
            tensors[f"{fold.norm}.bias"] = bias
        else:
            tensors[f"{fold.norm}.running_mean"] = -bias
    return tensors if gone else None


def folded(state: Mapping[str, Tensor], folds: Sequence[Fold]) -> dict[str, Tensor]:
    """Returns the same function where no batch norm multiplies or adds anything, but for constants of its layer."""
    tensors = dict(state)
    for fold in folds:
        weight, bias = fold.folded(tensors)
        tensors = {key: t for key, t in tensors.items() if key not in fold.keys}
        tensors |= {f"{fold.layer}.weight": weight.detach(), f"{fold.layer}.bias": bias.detach()}
    return unfused(tensors, folds) or tensors
