"""Which group acts on a layer's neurons, and which activation functions it commutes with (paper Prop. 3.4)."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nfn_monomial.checks import checked, shown
from nfn_monomial.errors import InvalidValueError

Activation: TypeAlias = str | nn.Module | type[nn.Module] | Callable[[Tensor], Tensor]

_PERMUTES, _FLIPS, _SCALES = 1, 2, 4


class Symmetry(enum.Enum):
    """The group of monomial matrices ``g = D P`` that acts on the neurons of one layer.

    The value is a bit set of what the group's elements do (permute = 1, flip signs = 2, scale positively = 4),
    so groups intersect bitwise: ``Symmetry.SCALE & Symmetry.SIGN is Symmetry.PERMUTATION``.

    ==============  ==================  =======================================================
    member          group (paper)       preserved by the activation
    ==============  ==================  =======================================================
    ``FIXED``       ``{id}``            (network inputs and outputs)
    ``PERMUTATION`` ``P_n``             any pointwise one
    ``SIGN``        ``G_n^{+-1}``       odd ones: tanh, sin, softsign, erf, hardtanh
    ``SCALE``       ``G_n^{>0}``        positively homogeneous ones: ReLU, LeakyReLU, PReLU, abs
    ``MONOMIAL``    ``G_n``             the identity
    ==============  ==================  =======================================================
    """

    FIXED = 0
    PERMUTATION = _PERMUTES
    SIGN = _PERMUTES | _FLIPS
    SCALE = _PERMUTES | _SCALES
    MONOMIAL = _PERMUTES | _FLIPS | _SCALES

    def __and__(self, other: Symmetry) -> Symmetry:
        """The intersection of two groups: what a node used by several operations keeps."""
        if not isinstance(other, Symmetry):
            return NotImplemented
        return Symmetry(self.value & other.value)

    def __le__(self, other: Symmetry) -> bool:
        """Whether this group is a subgroup of ``other``."""
        if not isinstance(other, Symmetry):
            return NotImplemented
        return self & other is self

    @property
    def permutes(self) -> bool:
        """Whether elements may permute the neurons."""
        return bool(self.value & _PERMUTES)

    @property
    def flips(self) -> bool:
        """Whether elements may flip the sign of a neuron."""
        return bool(self.value & _FLIPS)

    @property
    def scales(self) -> bool:
        """Whether elements may scale a neuron by a positive factor."""
        return bool(self.value & _SCALES)

    def charge(self, charge: int) -> int:
        """``charge`` reduced to what this group can tell apart.

        Two charges act alike for every element exactly when they reduce to the same number: as integers where
        the group scales, modulo 2 where it only flips signs, all alike where it only permutes.
        """
        if self.scales:
            return charge
        return charge % 2 if self.flips else 0

    def acting(self, charge: int) -> Symmetry:
        """The part of this group that an axis of this charge feels: ``d_j^charge`` for all allowed ``d_j``."""
        if not self.permutes:
            return Symmetry.FIXED
        bits = _PERMUTES
        if self.scales and charge:
            bits |= _SCALES
        if self.flips and charge % 2:
            bits |= _FLIPS
        return Symmetry(bits)

    @classmethod
    def _missing_(cls, value: object) -> Symmetry:
        raise InvalidValueError(f"{shown(value)} is no symmetry; Symmetry.coerce reads names and activations")

    @classmethod
    def coerce(cls, value: Symmetry | Activation) -> Symmetry:
        """A symmetry from itself, from its name, or from an activation (name, module, class or function).

        >>> Symmetry.coerce("scale"), Symmetry.coerce("relu"), Symmetry.coerce(nn.Tanh())
        (<Symmetry.SCALE: 5>, <Symmetry.SCALE: 5>, <Symmetry.SIGN: 3>)

        Raises:
            ValueError: for a name or an activation that is not known.
        """
        if isinstance(value, Symmetry):
            return value
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        return symmetry_of(value)

    def __str__(self) -> str:
        return self.name


_BY_NAME: dict[str, Symmetry] = {}
_BY_OBJECT: dict[object, Symmetry] = {}


@checked
def register_activation(activation: Activation, symmetry: Symmetry | str) -> None:
    """Declare the largest symmetry that ``activation`` commutes with.

    Args:
        activation: a name, an ``nn.Module`` class, or a function. For a class, every instance is declared.
        symmetry: ``SIGN`` for an odd function, ``SCALE`` for a positively homogeneous one (f(d x) = d f(x),
            d > 0), ``MONOMIAL`` for a linear one, ``PERMUTATION`` for any other.

    Raises:
        ValueError: if ``symmetry`` is FIXED (which no pointwise function needs) or no symmetry.
    """
    symmetry = Symmetry.coerce(symmetry)
    if symmetry is Symmetry.FIXED:
        raise InvalidValueError(
            "register_activation: any pointwise function commutes with permutations; use PERMUTATION"
        )
    if isinstance(activation, str):
        _BY_NAME[activation.lower()] = symmetry
    elif isinstance(activation, nn.Module):
        _BY_OBJECT[type(activation)] = symmetry
    else:
        _BY_OBJECT[activation] = symmetry


def symmetry_of(activation: Activation) -> Symmetry:
    """The largest group of monomial matrices that commutes with a pointwise activation (paper Prop. 3.4).

    In front of even functions (abs, cos, square) rows may flip besides, which what reads them does not take back: that
    is no commuting, so that `WeightSpace.mlp` has not these signs. `WeightSpace.from_module` has them.

    Args:
        activation: a name (``"relu"``), a module or its class (``nn.ReLU()``), or a function (``torch.relu``).

    Raises:
        ValueError: if the activation is not known: `register_activation` adds it; or if it is not the same
            function on every neuron (``nn.PReLU(num_parameters=n)``).

    >>> symmetry_of("leaky_relu"), symmetry_of(torch.sin), symmetry_of(nn.GELU())
    (<Symmetry.SCALE: 5>, <Symmetry.SIGN: 3>, <Symmetry.PERMUTATION: 1>)
    """
    if isinstance(activation, str):
        if activation.lower() in _BY_NAME:
            return _BY_NAME[activation.lower()]
        raise InvalidValueError(
            f"unknown activation or symmetry {activation!r}; symmetries: "
            f"{', '.join(s.name.lower() for s in Symmetry)}; activations: {', '.join(sorted(_BY_NAME))}. "
            "Add one with register_activation(activation, symmetry)"
        )
    if isinstance(activation, nn.PReLU) and activation.num_parameters != 1:
        raise InvalidValueError(
            f"PReLU with {activation.num_parameters} slopes is a different function on every neuron, which neither "
            "permutations nor scalings of the neurons preserve; use nn.PReLU() (one slope) or symmetry='fixed'"
        )
    if isinstance(activation, nn.Hardtanh) and not isinstance(activation, nn.ReLU6):
        return Symmetry.SIGN if activation.min_val == -activation.max_val else Symmetry.PERMUTATION
    kind = type(activation) if isinstance(activation, nn.Module) else activation
    try:
        if kind in _BY_OBJECT:
            return _BY_OBJECT[kind]
    except TypeError:  # unhashable
        pass
    raise InvalidValueError(
        f"unknown activation {activation!r}; declare what it commutes with: "
        "register_activation(activation, 'sign' if odd, 'scale' if positively homogeneous, else 'permutation')"
    )


def _register_defaults() -> None:
    # fmt: off
    names = {
        Symmetry.SCALE: "relu leaky_relu leakyrelu prelu abs",
        Symmetry.SIGN: "tanh sin sine siren softsign erf hardtanh arctan sinh asinh",
        Symmetry.MONOMIAL: "identity linear",
        Symmetry.PERMUTATION: "gelu silu swish mish sigmoid elu selu celu softplus relu6 hardswish hardsigmoid cos exp "
                              "square",
    }
    objects: dict[Symmetry, list[object]] = {
        Symmetry.SCALE: [
            nn.ReLU, nn.LeakyReLU, nn.PReLU, F.relu, F.leaky_relu, torch.relu, torch.abs, Tensor.relu, Tensor.abs,
        ],
        Symmetry.SIGN: [
            nn.Tanh, nn.Softsign, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, F.tanh, F.softsign, F.tanhshrink,
            F.softshrink, F.hardshrink, F.hardtanh, torch.tanh, torch.sin, torch.erf, torch.atan, torch.arctan,
            torch.sinh, torch.asinh, Tensor.tanh, Tensor.sin, Tensor.erf,
        ],
        Symmetry.MONOMIAL: [nn.Identity],
        Symmetry.PERMUTATION: [
            nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.ELU, nn.SELU, nn.CELU, nn.Softplus, nn.ReLU6, nn.Hardswish,
            nn.Hardsigmoid, nn.LogSigmoid, F.gelu, F.silu, F.mish, F.elu, F.selu, F.celu, F.softplus, F.relu6,
            F.hardswish, F.hardsigmoid, F.logsigmoid, F.sigmoid, torch.sigmoid, torch.selu, torch.celu, torch.cos,
            torch.exp, torch.square,
        ],
    }
    # fmt: on
    for symmetry in names:
        _BY_NAME.update(dict.fromkeys(names[symmetry].split(), symmetry))
        _BY_OBJECT.update(dict.fromkeys(objects[symmetry], symmetry))


_register_defaults()
