"""Batch norms behind layers, and the same networks with these folded into the layers, as they are fused for inference.

A fused network is one of the network with batch norms, too: each of these has the gain 1, the variance ``1 - eps`` and
the shift that the layer's bias is. So the two are compared as networks of one class, once both are folded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from nfn_monomial.running import answers

__all__ = ["Fold", "folded", "folds_of", "unfused"]

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_STATISTICS = ("running_mean", "running_var")


class Fold(NamedTuple):
    """A layer and the batch norm behind it, by their paths in a module."""

    layer: str
    norm: str
    eps: float
    biased: bool
    affine: bool

    @property
    def shift(self) -> str:
        """The key of what a constant is kept in once all is folded."""
        if self.biased:
            return f"{self.layer}.bias"
        return f"{self.norm}.bias" if self.affine else f"{self.norm}.running_mean"

    @property
    def keys(self) -> list[str]:
        """Those of the batch norm: mean, variance, and what it multiplies and adds, if it does."""
        return [f"{self.norm}.{name}" for name in (*_STATISTICS, *(("weight", "bias") if self.affine else ()))]


def folds_of(module: nn.Module, inputs: tuple[Any, ...]) -> list[Fold]:
    """Layers whose output is what a batch norm takes, as a run shows them; each layer and norm in one pair at most."""
    made: dict[int, tuple[str, Tensor]] = {}  # the tensors are kept, so that no other gets their number
    taken: list[tuple[str, str]] = []
    hooks = []
    for path, part in module.named_modules():
        if isinstance(part, _LAYERS):
            hooks.append(part.register_forward_hook(lambda _, x, y, path=path: made.update({id(y): (path, y)})))
        elif isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:

            def seen(_: nn.Module, x: tuple[Any, ...], path: str = path) -> None:
                if id(x[0]) in made:
                    taken.append((made[id(x[0])][0], path))

            hooks.append(part.register_forward_pre_hook(seen))
    try:
        with torch.no_grad():
            answers(module, {}, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    parts = dict(module.named_modules())
    found = []
    for layer, norm in dict.fromkeys(taken):
        once = sum(layer == other for other, _ in taken) == sum(norm == other for _, other in taken) == 1
        if once:
            own: Any = parts[norm]
            found.append(Fold(layer, norm, own.eps, parts[layer].bias is not None, own.weight is not None))
    return found


def unfused(state: Mapping[str, Tensor], folds: Sequence[Fold]) -> dict[str, Tensor] | None:
    """A state dict without batch norms as one of the network that has them; None if none is missing with all it has."""
    gone = [fold for fold in folds if not any(key in state for key in fold.keys) and f"{fold.layer}.weight" in state]
    found = dict(state)
    for fold in gone:
        weight = state[f"{fold.layer}.weight"]
        zero = weight.new_zeros(weight.shape[0])
        bias = found.pop(f"{fold.layer}.bias", zero)
        found |= dict(zip(fold.keys, (zero, zero + 1 - fold.eps, zero + 1, zero), strict=False))
        found[fold.shift] = -bias if fold.shift.endswith(_STATISTICS[0]) else bias
    return found if gone else None


def folded(state: Mapping[str, Tensor], folds: Sequence[Fold]) -> dict[str, Tensor]:
    """The same function where no batch norm multiplies or adds anything, but for a constant where the layer adds none.

    What is folded is so as `torch.nn.utils.fusion` does it, in the dtype that it has.
    """
    found = dict(state)
    for fold in folds:
        weight, bias = found[f"{fold.layer}.weight"], found.get(f"{fold.layer}.bias")
        mean, variance, *affine = (found.pop(key) for key in fold.keys)
        gain, shift = affine or (None, None)
        fuse: Any = fuse_linear_bn_weights if weight.ndim == 2 else fuse_conv_bn_weights
        if weight.ndim == 2:  # which takes no batch norm without them
            bias, gain, shift = (
                t if t is not None else torch.full_like(mean, x) for t, x in ((bias, 0.0), (gain, 1.0), (shift, 0.0))
            )
        made = fuse(weight, bias, mean, variance, fold.eps, gain, shift)
        found |= {f"{fold.layer}.{name}": t.detach() for name, t in zip(("weight", "bias"), made, strict=True)}
    return unfused(found, folds) or found
