"""The step that ends the charges: after it scalings and sign flips act no more, only permutations."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Symmetry

from .steps import Layer


class Canonicalize(Layer):
    """Kill the charges: features that scalings and sign flips no longer change, only permutations (paper Sec. 5.2).

    Every field sends the vector ``x`` of a neuron (or of a pair of neurons), all its channels and fixed entries
    together, through a function of degree zero, then through an affine map per entry (the paper's beta):

    ========== ==================================== =================================================
    ``kind``    on fields that scale                 on fields that flip signs
    ========== ==================================== =================================================
    ``norm``    ``x / ||x||_2``                      ``|x|``  (on fields that do both ``|x| / ||x||``)
    ``square``  ``x^2 / sum x^2``, as in the paper   ``|x|``  (on fields that do both ``x^2 / sum x^2``)
    ``abs``     illegal                              ``|x|``
    ========== ==================================== =================================================

    A positive scaling keeps signs, so ``norm`` keeps more information than the paper's ``square`` does. Both are
    exact at any scale of ``x`` (it is divided by its largest entry first, no epsilon), map 0 to 0 and have finite
    gradients everywhere. Uncharged fields get the affine map only.

    Shapes: as the input; the output belongs to ``space.uncharged()``, on which `EquivariantLinear` is HNP.

    Args:
        space: the weight space of the input.
        channels: channels of the input.
        kind: see above.
        learnable: whether the affine map is there. It starts as the identity times the square root of the number of
            entries (``norm``) or that number (``square``), so that normalised entries start at size 1.

    Raises:
        ValueError: for an unknown kind, or ``abs`` on a space with scalings.
    """

    @checked
    def __init__(
        self,
        space: WeightSpace,
        channels: Count,
        kind: Literal["norm", "square", "abs"] = "norm",
        learnable: bool = True,
    ) -> None:
        super().__init__()
        self.space, self.channels, self.kind = space, channels, kind
        self.in_layout, self.out_space = space.layout, space.uncharged()
        self.out_layout = self.out_space.layout
        if kind == "abs" and any(felt.scales for felt in self.in_layout.felt):
            raise InvalidValueError(f"Canonicalize(kind='abs') leaves the scalings of {space}; use 'norm' or 'square'")
        self._sources = _merge_plan(space, self.out_space)
        self.weight = self.bias = None
        if learnable:
            widths = [m * channels for m in self.in_layout.multiplicities]
            self.weight = nn.ParameterList(torch.empty(w) for w in widths)
            self.bias = nn.ParameterList(torch.empty(w) for w in widths)
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """The affine map that normalised entries start at size 1 with, see ``learnable``."""
        if self.weight is not None and self.bias is not None:
            for felt, weight, bias in zip(self.in_layout.felt, self.weight, self.bias, strict=True):
                power = (0.5 if self.kind == "norm" else 1.0) if felt.scales else 0.0
                nn.init.constant_(weight, len(weight) ** power)
                nn.init.zeros_(bias)

    def forward(self, features: Features) -> Features:
        """Charged features of ``space`` -> uncharged ones of ``space.uncharged()``, same channels."""
        self.in_layout.require(features, self.channels, "Canonicalize")
        killed = [
            _without_charge(x, felt, self.kind == "square")
            for x, felt in zip(features.tensors, self.in_layout.felt, strict=True)
        ]
        if self.weight is not None and self.bias is not None:
            killed = [torch.addcmul(b, x, w) for x, w, b in zip(killed, self.weight, self.bias, strict=True)]
        fields = []
        for pieces in self._sources:
            parts = [
                killed[field].narrow(-1, start * self.channels, count * self.channels) for field, start, count in pieces
            ]
            fields.append(torch.cat(parts, -1) if len(parts) > 1 else parts[0])
        return Features(self.out_layout, tuple(fields))

    def extra_repr(self) -> str:
        learnable = "" if self.weight is not None else ", learnable=False"
        return f"{self.space}, {self.channels}, kind={self.kind!r}{learnable}"


def _without_charge(x: Tensor, felt: Symmetry, squared: bool) -> Tensor:
    """Over the last dimension ``x / ||x||`` or ``x^2 / sum x^2`` where scales act, 0 where x is 0; ``|x|`` where signs
    flip."""
    if felt.scales:
        # The quotient does not depend on the factor taken out first, so no gradient flows through it.
        with torch.no_grad():
            largest = x.abs().amax(-1, keepdim=True)
            zero = largest == 0
            # The gradient is of size 1 / ||x||. Where it could overflow (||x|| below 5e-32 in float32, as of dead
            # neurons under weight decay), it is taken as 0; the value stays exact.
            small = largest < torch.finfo(x.dtype).max ** (-13 / 16)
            largest.masked_fill_(zero, 1)
        x = (torch.where(small, x.detach(), x) if torch.is_grad_enabled() else x) / largest
        x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).masked_fill(zero, 1)
        x = x.square() if squared else x
    return x.abs() if felt.flips else x


def degree_zero(x: Tensor, felt: Symmetry) -> Tensor:
    """``x`` without its charge: over its last dimension ``x / ||x||`` times the root of the number of entries where
    scales act, ``|x|`` where signs flip."""
    neutral = _without_charge(x, felt, squared=False)
    return neutral * x.shape[-1] ** 0.5 if felt.scales else neutral


def neutral(x: Tensor, flips: Tensor | bool, scales: Tensor | bool) -> Tensor:
    """`degree_zero` where signs flip and scales act, which may be other entries: masks that broadcast against ``x``."""
    if scales is not False:
        unscaled = degree_zero(x, Symmetry.SCALE)
        x = unscaled if scales is True else torch.where(scales, unscaled, x)
    if flips is not False:
        x = x.abs() if flips is True else torch.where(flips, x.abs(), x)
    return x


def _merge_plan(space: WeightSpace, target: WeightSpace) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """For each output field, which slices (field, offset, multiplicity) of the input make it up."""
    plan: list[list[tuple[int, int, int]]] = [[] for _ in target.layout.types]
    for old, new in zip(space.folding.slices, target.folding.slices, strict=True):
        pieces = plan[new.field]
        if pieces and pieces[-1][0] == old.field and sum(pieces[-1][1:]) == old.offset:
            pieces[-1] = (old.field, pieces[-1][1], pieces[-1][2] + old.multiplicity)
        else:
            pieces.append((old.field, old.offset, old.multiplicity))
    return tuple(map(tuple, plan))
