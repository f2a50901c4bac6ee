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
    sizes = (math.prod(inner),) if folded else (*[1] * (len(outer) - len(inner)), *inner)
    slots = torch.arange(math.prod(outer)).view((-1,) if folded else tuple(outer))
    if len(sizes) != slots.ndim or any(size > room for size, room in zip(sizes, slots.shape, strict=True)):
        raise InvalidValueError(
            f"{name} has {'positions' if folded else 'kernel'} {tuple(inner)}, which do not fit into "
            f"kernel={tuple(outer)}; common_kernel(*spaces) gives the smallest that holds the weights of all spaces"
        )
    for dim, size in enumerate(sizes):
        margin = 0 if folded else (slots.shape[dim] - size) // 2
        slots = slots.narrow(dim, margin, size)
    return slots.flatten()
