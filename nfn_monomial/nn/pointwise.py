"""Layers that act entry by entry: activations that keep the symmetry, and the step that ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from nfn_monomial.space.features import Features, Layout, field_name
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Activation, Symmetry, symmetry_of

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "leaky_relu": nn.functional.leaky_relu,
    "abs": torch.abs,
    "tanh": torch.tanh,
    "sin": torch.sin,
    "erf": torch.erf,
    "softsign": nn.functional.softsign,
    "identity": nn.Identity(),
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "sigmoid": torch.sigmoid,
}
_LEGAL_DEFAULT = {
    Symmetry.FIXED: "relu",
    Symmetry.PERMUTATION: "relu",
    Symmetry.SCALE: "relu",
    Symmetry.SIGN: "tanh",
    Symmetry.MONOMIAL: "identity",
}


class PointwiseActivation(nn.Module):
    """Apply a function to every entry of every field: equivariant exactly where the function allows it (Prop. 3.4).

    A field whose axes scale needs a positively homogeneous function (ReLU), one whose axes flip signs an odd one
    (tanh, sin), one that does both the identity; an uncharged field takes anything.

    Args:
        space: the weight space.
        fn: a name, a function or a module whose symmetry is known (see `register_activation`); or ``"auto"``, which
            gives each field the first legal one of relu, tanh, identity.
        layout: of the features; those of the space's own parameters by default, ``neuron_layout(space).layout`` for
            neuron features, ``space.layout_of(types)`` for others.

    Raises:
        ValueError: if the function is unknown or illegal on a field of the space; the message names the field and a
            legal function.
    """

    def __init__(self, space: WeightSpace, fn: Activation, *, layout: Layout | None = None) -> None:
        super().__init__()
        self.space, self.fn = space, fn
        self.layout = layout or space.layout
        if isinstance(fn, str) and fn == "auto":
            names = [_LEGAL_DEFAULT[_felt(acting)] for acting in self.layout.acting]
            self._functions = [_FUNCTIONS[name] for name in names]
            return
        allowed = symmetry_of(fn)
        for field_type, acting in zip(self.layout.types, self.layout.acting, strict=True):
            felt = _felt(acting)
            if not felt <= allowed:
                raise ValueError(
                    f"{_name(fn)} is illegal on field [{field_name(field_type)}] of {space}, on which {felt} acts: "
                    f"{_name(fn)} commutes with {allowed} only. Legal there: {_LEGAL_DEFAULT[felt]!r}; "
                    "'auto' picks a legal one for every field"
                )
        function = _resolve(fn)
        self._functions = [function] * len(self.layout)

    def forward(self, features: Features) -> Features:
        """Same layout and shapes as the input."""
        if features.layout is not self.layout:
            raise ValueError(
                f"PointwiseActivation: found features [{features.layout}], built for [{self.layout}] of {self.space}"
            )
        moved = [fn(x) for fn, x in zip(self._functions, features.tensors, strict=True)]
        return Features(self.layout, tuple(moved))

    def extra_repr(self) -> str:
        return f"{self.space}, {_name(self.fn)}"


def _felt(acting: tuple[Symmetry, ...]) -> Symmetry:
    """The smallest listed group that contains what acts on any axis of a field."""
    bits = 0
    for symmetry in acting:
        bits |= symmetry.value
    return Symmetry(bits) if acting else Symmetry.PERMUTATION


def _resolve(fn: Activation) -> Callable[[Tensor], Tensor]:
    if isinstance(fn, str):
        if fn.lower() not in _FUNCTIONS:
            raise ValueError(
                f"no function is known by the name {fn!r} (names: {', '.join(_FUNCTIONS)}); pass it itself"
            )
        return _FUNCTIONS[fn.lower()]
    return fn() if isinstance(fn, type) else fn


def _name(fn: Activation) -> str:
    return fn if isinstance(fn, str) else getattr(fn, "__name__", repr(fn))


class Canonicalize(nn.Module):
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

    def __init__(
        self,
        space: WeightSpace,
        channels: int,
        kind: Literal["norm", "square", "abs"] = "norm",
        learnable: bool = True,
    ) -> None:
        super().__init__()
        if kind not in ("norm", "square", "abs"):
            raise ValueError(f"Canonicalize: kind must be 'norm', 'square' or 'abs', found {kind!r}")
        self.space, self.channels, self.kind = space, channels, kind
        self.in_layout, self.out_space = space.layout, space.uncharged()
        self.out_layout = self.out_space.layout
        self._felt = tuple(_felt(acting) for acting in self.in_layout.acting)
        if kind == "abs" and any(felt.scales for felt in self._felt):
            raise ValueError(f"Canonicalize(kind='abs') leaves the scalings of {space}; use 'norm' or 'square'")
        self._sources = _merge_plan(space, self.in_layout, self.out_space)
        self.weight = self.bias = None
        if learnable:
            widths = [m * channels for m in self.in_layout.multiplicities]
            self.weight = nn.ParameterList(torch.ones(w) for w in widths)
            self.bias = nn.ParameterList(torch.zeros(w) for w in widths)
            for felt, weight in zip(self._felt, self.weight, strict=True):
                if felt.scales:
                    nn.init.constant_(weight, len(weight) ** (0.5 if kind == "norm" else 1.0))

    def forward(self, features: Features) -> Features:
        """Charged features of ``space`` -> uncharged ones of ``space.uncharged()``, same channels."""
        self.in_layout.require(features, self.channels, "Canonicalize")
        killed = []
        for i, (felt, x) in enumerate(zip(self._felt, features.tensors, strict=True)):
            if felt.scales:
                x = _degree_zero(x, squared=self.kind == "square")
            if felt.flips:
                x = x.abs()
            if self.weight is not None and self.bias is not None:
                x = x * self.weight[i] + self.bias[i]
            killed.append(x)
        merged = []
        for pieces in self._sources:
            parts = [
                killed[field] if whole else killed[field].narrow(-1, start * self.channels, count * self.channels)
                for field, start, count, whole in pieces
            ]
            merged.append(parts[0] if len(parts) == 1 else torch.cat(parts, -1))
        return Features(self.out_layout, tuple(merged))

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}, kind={self.kind!r}, learnable={self.weight is not None}"


def _degree_zero(x: Tensor, squared: bool) -> Tensor:
    """``x / ||x||`` or ``x^2 / sum x^2`` over the last dimension; 0 where x is 0."""
    # The quotient does not depend on the factor taken out first, so no gradient flows through it.
    largest = x.detach().abs().amax(-1, keepdim=True)
    zero = largest == 0
    # The gradient is of size 1 / ||x||. Where it could overflow (||x|| below 5e-32 in float32, as of dead neurons under
    # weight decay), it is taken as 0; the value stays exact.
    x = torch.where(largest < torch.finfo(x.dtype).max ** (-13 / 16), x.detach(), x) / largest.masked_fill(zero, 1)
    square = x.square()
    total = square.sum(-1, keepdim=True).masked_fill(zero, 1)  # at least 1: the largest entry is 1
    return square / total if squared else x * total.rsqrt()


def degree_zero(x: Tensor, felt: Symmetry) -> Tensor:
    """``x`` with what ``felt`` does to it undone: over its last dimension ``x / ||x||`` times the root of the number of
    entries where scales act, ``|x|`` where signs flip."""
    if felt.scales:
        x = _degree_zero(x, squared=False) * x.shape[-1] ** 0.5
    return x.abs() if felt.flips else x


def _merge_plan(
    space: WeightSpace, source: Layout, target: WeightSpace
) -> tuple[tuple[tuple[int, int, int, bool], ...], ...]:
    """For each output field, which slices (field, offset, multiplicity, whole field) of the input make it up."""
    plan: list[list[tuple[int, int, int]]] = [[] for _ in target.layout.types]
    for old, new in zip(space.segments, target.segments, strict=True):
        pieces = plan[new.field]
        if pieces and pieces[-1][0] == old.field and sum(pieces[-1][1:]) == old.offset:
            pieces[-1] = (old.field, pieces[-1][1], pieces[-1][2] + old.multiplicity)
        else:
            pieces.append((old.field, old.offset, old.multiplicity))
    return tuple(tuple((f, s, n, n == source.multiplicities[f]) for f, s, n in pieces) for pieces in plan)


class InvariantPool(nn.Module):
    """Average or add over every hidden axis: permutation-equivariant features -> one vector a network (Sec. 5.2).

    Args:
        space: the weight space; the features are those of ``space.uncharged()``, as `Canonicalize` makes them.
        channels: channels of the features.
        reduce: ``"mean"`` (the paper's, independent of width) or ``"sum"``.

    Attributes:
        out_features: length of the vector: channels x the space's entries with hidden axes taken out.
    """

    def __init__(self, space: WeightSpace, channels: int, reduce: Literal["mean", "sum"] = "mean") -> None:
        super().__init__()
        if reduce not in ("mean", "sum"):
            raise ValueError(f"InvariantPool: reduce must be 'mean' or 'sum', found {reduce!r}")
        self.space, self.channels, self.reduce = space, channels, reduce
        self.layout = space.uncharged().layout
        self.out_features = channels * sum(self.layout.multiplicities)

    def forward(self, features: Features) -> Tensor:
        """Features -> ``(B, out_features)``."""
        self.layout.require(features, self.channels, "InvariantPool")
        pooled = [
            x if x.ndim == 2 else x.flatten(1, -2).mean(1) if self.reduce == "mean" else x.flatten(1, -2).sum(1)
            for x in features.tensors
        ]
        return torch.cat(pooled, -1)

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}, reduce={self.reduce!r}, out_features={self.out_features}"
