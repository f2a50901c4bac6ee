"""Activations that keep the symmetry: functions applied entry by entry, where that is equivariant."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nfn_monomial.checks import checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.axes import field_name
from nfn_monomial.space.features import Features, Layout
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

    @checked
    def __init__(self, space: WeightSpace, fn: Activation, *, layout: Layout | None = None) -> None:
        super().__init__()
        self.space, self.fn = space, fn
        self.layout = self.in_layout = self.out_layout = layout or space.layout
        self.function = None if isinstance(fn, str) and fn == "auto" else _resolve(fn)
        allowed = None if self.function is None else symmetry_of(fn)
        for field_type, felt in zip(self.layout.types, self.layout.felt, strict=True):
            if allowed is not None and not felt <= allowed:
                raise InvalidValueError(
                    f"{_name(fn)} is illegal on field [{field_name(field_type)}] of {space}, on which {felt} acts: "
                    f"{_name(fn)} commutes with {allowed} only. Legal there: {_LEGAL_DEFAULT[felt]!r}; "
                    "'auto' picks a legal one for every field"
                )

    def forward(self, features: Features) -> Features:
        """Features of the layout -> the same layout and shapes."""
        self.layout.require(features, None, "PointwiseActivation")
        functions = (self.function or _FUNCTIONS[_LEGAL_DEFAULT[felt]] for felt in self.layout.felt)
        return Features(self.layout, tuple(fn(x) for fn, x in zip(functions, features.tensors, strict=True)))

    def extra_repr(self) -> str:
        return f"{self.space}, {_name(self.fn)}"


def _resolve(fn: Activation) -> Callable[[Tensor], Tensor]:
    if isinstance(fn, str):
        if fn.lower() not in _FUNCTIONS:
            raise InvalidValueError(
                f"no function is known by the name {fn!r} (names: {', '.join(_FUNCTIONS)}); pass it itself"
            )
        return _FUNCTIONS[fn.lower()]
    return fn() if isinstance(fn, type) else fn


def _name(fn: Activation) -> str:
    return fn if isinstance(fn, str) else getattr(fn, "__name__", repr(fn))
