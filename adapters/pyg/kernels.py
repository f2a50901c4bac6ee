"""Kernels of different shapes in one: padded with zeros around them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.checks import checked
from nfn_monomial.errors import InvalidValueError


@checked
def common_kernel(*spaces: WeightSpace) -> tuple[int, ...]:
    """The smallest kernel shape into which the weights of all these spaces fit; ``()`` where all are linear.

    Kernels of fewer dimensions count as ones of size 1 in the leading dimensions. Positions folded by a flatten need
    no shape, only room: where there are more of them than entries, a leading dimension is added.

    >>> common_kernel(WeightSpace.cnn([1, 8, 8], [3, 5], "relu", head=[10]), WeightSpace.mlp([2, 8, 1], "sin"))
    (5, 5)
    """
    weights = [link for space in spaces for link in space.links]
    kernels = [w.kernel[::-1] for w in weights if not w.folded]
    shape = tuple(max(sizes) for sizes in itertools.zip_longest(*kernels, fillvalue=1))[::-1]
    positions = max((math.prod(w.kernel) for w in weights if w.folded), default=1)
    room = math.prod(shape)
    return shape if room >= positions else (-(-positions // room), *shape)


def kernel_slots(name: str, inner: Sequence[int], folded: bool, outer: Sequence[int]) -> Tensor:
    """Where the entries of a kernel lie in a flattened larger one: in its middle, folded positions at its start.

    Raises:
        ValueError: naming the parameter, if it does not fit.
    """
    slots = torch.arange(math.prod(outer)).view(tuple(outer))
    sizes = [1] * (len(outer) - len(inner)) + list(inner)
    fits = math.prod(inner) <= math.prod(outer)
    if not folded:
        fits = len(sizes) == len(outer) and all(i <= o for i, o in zip(sizes, outer, strict=True))
    if not fits:
        what = "positions" if folded else "kernel"
        raise InvalidValueError(
            f"{name} has {what} {tuple(inner)}, which do not fit into kernel={tuple(outer)}; "
            "common_kernel(*spaces) gives the smallest that holds the weights of all given spaces"
        )
    if folded:
        return slots.flatten()[: math.prod(inner)]
    for dim, (i, o) in enumerate(zip(sizes, outer, strict=True)):
        slots = slots.narrow(dim, (o - i) // 2, i)
    return slots.flatten()
