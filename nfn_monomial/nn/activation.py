"""Activations that keep the symmetry: functions applied entry by entry, where that is equivariant."""

from __future__ import annotations

from torch import nn

from nfn_monomial.checks import checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.axes import field_name
from nfn_monomial.space.features import Features, Layout
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Activation, Symmetry, function_named, symmetry_of

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
        self.space, self.fn = space, fn() if isinstance(fn, type) else fn
        self.layout = self.in_layout = self.out_layout = layout or space.layout
        if self.fn == "auto":
            return
        allowed = symmetry_of(fn)
        for field_type, felt in zip(self.layout.types, self.layout.felt, strict=True):
            if not felt <= allowed:
                raise InvalidValueError(
                    f"{_name(fn)} is illegal on field [{field_name(field_type)}] of {space}, on which {felt} acts: "
                    f"{_name(fn)} commutes with {allowed} only. Legal there: {_LEGAL_DEFAULT[felt]!r}; "
                    "'auto' picks a legal one for every field"
                )
        if isinstance(fn, str) and function_named(fn) is None:
            raise InvalidValueError(f"no function of torch is known by the name {fn!r}; pass it itself")

    def forward(self, features: Features) -> Features:
        """Features of the layout -> the same layout and shapes."""
        self.layout.require(features, None, "PointwiseActivation")
        fields = []
        for x, felt in zip(features.tensors, self.layout.felt, strict=True):
            fn = _LEGAL_DEFAULT[felt] if self.fn == "auto" else self.fn
            function = function_named(fn) if isinstance(fn, str) else fn
            assert callable(function), "checked above"
            fields.append(function(x))
        return Features(self.layout, tuple(fields))

    def extra_repr(self) -> str:
        return f"{self.space}, {_name(self.fn)}"


def _name(fn: Activation) -> str:
    return fn if isinstance(fn, str) else getattr(fn, "__name__", repr(fn))
