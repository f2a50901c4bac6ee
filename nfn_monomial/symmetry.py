"""Symmetries: the group that acts on a layer's neurons, and the activations it commutes with (paper Prop. 3.4)."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

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
        """The intersection of two groups: the symmetry of a node that several operations use."""
        if not isinstance(other, Symmetry):
            return NotImplemented
        return Symmetry(self.value & other.value)

    def __or__(self, other: Symmetry) -> Symmetry:
        """The smallest of these groups that contains both."""
        if not isinstance(other, Symmetry):
            return NotImplemented
        return Symmetry(self.value | other.value)

    def __le__(self, other: Symmetry) -> bool:
        """True for a subgroup of ``other``."""
        if not isinstance(other, Symmetry):
            return NotImplemented
        return self & other is self

    @property
    def permutes(self) -> bool:
        """True where elements may permute the neurons."""
        return bool(self.value & _PERMUTES)

    @property
    def flips(self) -> bool:
        """True where elements may flip the sign of a neuron."""
        return bool(self.value & _FLIPS)

    @property
    def scales(self) -> bool:
        """True where elements may scale a neuron by a positive factor."""
        return bool(self.value & _SCALES)

    def charge(self, charge: int) -> int:
        """Reduces ``charge`` to what this group can tell apart.

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
        return Symmetry(_PERMUTES | (self.value & _SCALES * bool(charge)) | (self.value & _FLIPS * (charge % 2)))

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


class Parity(NamedTuple):
    """The factors that come out of a pointwise function if its argument has a factor.

    Attributes:
        power: p, where f(d x) = d^p f(x) for all d > 0; None where there is none.
        sign: 1 for an odd function, 0 for an even one, None for any other.
        zero: whether f(0) = 0.
    """

    power: int | None
    sign: int | None
    zero: bool = False

    @property
    def symmetry(self) -> Symmetry:
        """The largest group that commutes with the function."""
        return Symmetry(_PERMUTES | (_SCALES if self.power == 1 else 0) | (_FLIPS if self.sign == 1 else 0))


# fmt: off
FUNCTIONS: dict[str, Parity] = {name: parity for parity, names in (
    (Parity(1, 1, True), "identity"),
    (Parity(1, None, True), "relu leaky_relu rrelu"),
    (Parity(1, 0, True), "abs absolute"),
    (Parity(2, 0, True), "square"),
    (Parity(None, 1, True), "tanh sin erf erfinv atan arctan asin arcsin asinh arcsinh atanh arctanh sinh tan softsign "
                            "tanhshrink softshrink hardshrink round trunc fix frac"),
    (Parity(None, 0), "cos cosh sinc i0 special_i0"),
    (Parity(None, None, True), "gelu silu mish elu selu celu hardswish relu6 expm1 log1p floor ceil"),
    (Parity(None, None), "sigmoid special_expit softplus log_sigmoid exp exp2 log log2 log10 hardsigmoid erfc "
                         "special_erfcx lgamma digamma acos arccos acosh arccosh logit"),
) for name in names.split()}
# fmt: on
"""Functions by their names in torch: the table for activations, and for operators of a traced module."""


def _plain(name: str) -> str:
    """A name without underscores: those of a module's class, of a function and of an operator are alike."""
    return name.lower().replace("_", "")


_PARITIES: dict[object, Parity] = {_plain(name): parity for name, parity in FUNCTIONS.items()}
"""The same by plain names and by the functions and classes of torch that have them; and what users register."""


def _in_torch(*owners: Any) -> Iterator[tuple[str, Any]]:
    """Plain names of the table, and the functions or classes of torch that have them."""
    for name, function in itertools.chain.from_iterable(vars(owner).items() for owner in owners):
        in_place = name.endswith("_")
        if _plain(name) in _PARITIES and callable(function) and not in_place:
            yield _plain(name), function


_NAMED: dict[str, Callable[[Tensor], Tensor]] = {**dict(_in_torch(F, torch)), "identity": nn.Identity()}
"""Functions by plain names."""
_PARITIES |= {function: _PARITIES[name] for name, function in [*_in_torch(F, torch, torch._C.TensorBase, nn)]}
_PARITIES |= dict.fromkeys(("prelu", nn.PReLU), FUNCTIONS["relu"])
_PARITIES |= dict.fromkeys(("hardtanh", F.hardtanh, "sine", "siren"), FUNCTIONS["sin"])
_PARITIES |= {"swish": FUNCTIONS["silu"], "linear": FUNCTIONS["identity"]}


def function_named(name: str) -> Callable[[Tensor], Tensor] | None:
    """The function of torch that an activation's name stands for, None where there is none."""
    return _NAMED.get(_plain(name))


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
    key = type(activation) if isinstance(activation, nn.Module) else activation
    parity = Parity(1 if symmetry.scales else None, 1 if symmetry.flips else None)
    _PARITIES[_plain(key) if isinstance(key, str) else key] = parity


def parity_of(activation: Activation) -> Parity:
    """The parity of a pointwise activation: the factors that come out of it for scales and signs.

    Args:
        activation: a name (``"relu"``), a module or its class (``nn.ReLU()``), or a function (``torch.relu``).

    Raises:
        ValueError: if the activation is not known: `register_activation` adds it; or if it is not the same
            function on every neuron (``nn.PReLU(num_parameters=n)``).

    >>> parity_of("abs"), parity_of(torch.sin).sign, parity_of(nn.GELU()).power
    (Parity(power=1, sign=0, zero=True), 1, None)
    """
    if isinstance(activation, str):
        if _plain(activation) in _PARITIES:
            return _PARITIES[_plain(activation)]
        raise InvalidValueError(
            f"unknown activation or symmetry {activation!r}; symmetries: "
            f"{', '.join(s.name.lower() for s in Symmetry)}; activations: "
            f"{', '.join(sorted(key for key in _PARITIES if isinstance(key, str)))}. "
            "Add one with register_activation(activation, symmetry)"
        )
    if isinstance(activation, nn.PReLU) and activation.num_parameters != 1:
        raise InvalidValueError(
            f"PReLU with {activation.num_parameters} slopes is a different function on every neuron, which neither "
            "permutations nor scalings of the neurons preserve; use nn.PReLU() (one slope) or symmetry='fixed'"
        )
    if isinstance(activation, nn.Hardtanh) and not isinstance(activation, nn.ReLU6):
        return Parity(None, 1 if activation.min_val == -activation.max_val else None)
    kind = type(activation) if isinstance(activation, nn.Module) else activation
    try:
        if kind in _PARITIES:
            return _PARITIES[kind]
    except TypeError:  # unhashable
        pass
    raise InvalidValueError(
        f"unknown activation {activation!r}; declare what it commutes with: "
        "register_activation(activation, 'sign' if odd, 'scale' if positively homogeneous, else 'permutation')"
    )


def symmetry_of(activation: Activation) -> Symmetry:
    """The largest group of monomial matrices that commutes with a pointwise activation (paper Prop. 3.4).

    Even functions (abs, cos, square) do not commute with flips of the rows before them, but ignore them, and factors
    come out of square as their squares. These are symmetries of the network as well: `WeightSpace.mlp` and
    ``from_module`` have them.

    Args:
        activation: a name, a module or its class, or a function.

    Raises:
        ValueError: as `parity_of`.

    >>> symmetry_of("leaky_relu"), symmetry_of(torch.sin), symmetry_of(nn.GELU())
    (<Symmetry.SCALE: 5>, <Symmetry.SIGN: 3>, <Symmetry.PERMUTATION: 1>)
    """
    return parity_of(activation).symmetry
