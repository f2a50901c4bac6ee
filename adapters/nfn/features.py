"""nfn's features as named tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping

from nfn.common import WeightSpaceFeatures
from torch import Tensor

from nfn_monomial.checks import checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.features import Features
from nfn_monomial.space.geometry import layer_tensors
from nfn_monomial.space.weight_space import WeightSpace


def to_tensors(wsfeat: WeightSpaceFeatures) -> dict[str, Tensor]:
    """nfn's features as named tensors: ``weight.i`` ``(B, C, out, in, *kernel)`` and ``bias.i`` ``(B, C, out)``.

    These are the names of ``WeightSpace.from_network_spec``, `WeightSpace.mlp` and `WeightSpace.cnn`. A bias of None
    is left out.

    Raises:
        TypeError: if ``wsfeat`` is something else.
        ValueError: if it has another number of biases than of weights.
    """
    return layer_tensors(wsfeat)


@checked
def from_tensors(tensors: Mapping[str, Tensor]) -> WeightSpaceFeatures:
    """Named tensors ``weight.i``, ``bias.i`` as nfn's features; the inverse of `to_tensors`, missing biases are None.

    Raises:
        ValueError: if a name is of another form, or weights are not numbered 0, 1, ... without gaps.
    """
    depth = sum(name.startswith("weight.") for name in tensors)
    names = [(f"weight.{i}", f"bias.{i}") for i in range(depth)]
    other = sorted(set(tensors) - {name for pair in names for name in pair})
    if other or not depth:
        names_expected = f"weight.0 to weight.{max(depth - 1, 0)} and their biases"
        raise InvalidValueError(f"{names_expected} are expected, found {', '.join(other) or 'nothing'}")
    return WeightSpaceFeatures(tuple(tensors[w] for w, _ in names), tuple(tensors.get(b) for _, b in names))


def packed(wsfeat: WeightSpaceFeatures, space: WeightSpace) -> Features:
    """nfn's features as those of the core, checked: see `WeightSpace.pack`.

    NaN and infinities are looked for where features carry no gradient: in data, not in activations under training.
    """
    tensors = to_tensors(wsfeat)
    return space.pack(tensors, check_finite=not any(t.requires_grad for t in tensors.values()))


def unpacked(features: Features, space: WeightSpace) -> WeightSpaceFeatures:
    """The core's features as nfn's; the inverse of `packed`."""
    return from_tensors(space.unpack(features))
