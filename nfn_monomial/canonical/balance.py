"""Canonical forms: of all networks that scalings and sign flips turn into one another, pick one.

The scales are those of the network of least norm, found by convex minimisation; the signs make an odd statistic of
every neuron positive. What is left of the group is permutations (``space.restricted("permutation")``), so that any
permutation-equivariant model behind is equivariant, and any permutation-invariant one invariant, under all of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import overload

import torch
from torch import Tensor, nn

from nfn_monomial.space.axes import Axis, FieldType, flow
from nfn_monomial.space.features import Features
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix
from nfn_monomial.space.weight_space import WeightSpace

from .solver import along, log_scales, onto


def balance(
    tensors: Mapping[str, Tensor], space: WeightSpace, *, scales: bool = True, signs: bool = True
) -> tuple[dict[str, Tensor], GroupElement]:
    """The canonical network with the same function, and the group element that leads to it.

    **Scales** (SCALE, MONOMIAL): the network of least squared norm, where for every neuron the squares that its
    scale multiplies and those it divides have equal sums: ``sum_{q>0} q ||entries||^2 = sum_{q<0} |q| ||entries||^2``,
    incoming and outgoing norm for ordinary layers. It is unique, since the norm is convex in the logarithms of
    scales. They are found in float64, from squares of the entries: exact for entries between 1e-150 and 1e150 in size.

    A neuron that has no nonzero entry on one side (dead) has no such scale, and as the limit is an entry 0, nor do its
    entries count for other neurons. It takes the scale at which its nonzero side has norm 1 (the larger of its bias
    and its weights), the incoming one if the two sides are nonzero but lead from or to dead neurons only. What is
    linked to nothing but dead neurons without a scale stays as it is; so does a neuron whose entries are all 0.

    **Signs** (SIGN, MONOMIAL): the sum of the entries that carry the neuron's sign, and no sign not yet settled, is
    made positive. Nodes are settled from inputs to outputs by incoming entries (where charges count modulo 2, those of
    the last layer as well), so that rows see columns whose signs are settled; what is left, neurons without incoming
    weights, backwards by outgoing ones. Where the sum is 0 within rounding, the sum of cubes
    counts, each weighted by its place among the entries that nothing permutes; where that is 0 too, as for weights
    ``(a, -a)`` from two permuted neurons and no bias, the sign stays as it is and the form is not unique.

    The element is computed without gradients: they flow through ``tensors`` with the element held constant.

    Args:
        tensors: parameter name -> ``(B, C, *shape)``; the element acts on all channels alike, norms are over all.
        space: the weight space.
        scales: whether to fix the scales.
        signs: whether to fix the signs. Without ``scales`` they depend on the scales of neighbours that scale.

    Returns:
        The balanced tensors ``element.act(tensors)``, and the element: a batch of B, scales in float64, no
        permutation. Permutation-equivariant: permuting neurons permutes the result.

    Raises:
        ValueError: as `WeightSpace.pack`, for names, shapes and values that do not fit.

    >>> space = WeightSpace.mlp([1, 1, 1], "relu", bias=False)
    >>> tensors = {"weight.0": torch.full((1, 1, 1, 1), 8.0), "weight.1": torch.full((1, 1, 1, 1), 2.0)}
    >>> balanced, element = balance(tensors, space)
    >>> [round(x.item(), 6) for x in balanced.values()], element.matrices["h1"].scale
    ([4.0, 4.0], tensor([[0.5000]], dtype=torch.float64))
    """
    element = balancing_element(space, space.pack(tensors), scales=scales, signs=signs)
    return element.act(tensors), element


class Balance(nn.Module):
    """`balance` as a layer without parameters: networks in, canonical networks out.

    Features keep their layout, in which axes count as charged; `WeightSpace.unpack` and the ``pack`` of
    ``space.restricted("permutation")`` turn them into features of permuted neurons.

    Args:
        space: the weight space.
        scales: whether to fix the scales.
        signs: whether to fix the signs.
    """

    def __init__(self, space: WeightSpace, *, scales: bool = True, signs: bool = True) -> None:
        super().__init__()
        self.space, self.scales, self.signs = space, scales, signs

    @overload
    def forward(self, networks: Features) -> Features: ...
    @overload
    def forward(self, networks: Mapping[str, Tensor]) -> dict[str, Tensor]: ...
    def forward(self, networks: Features | Mapping[str, Tensor]) -> Features | dict[str, Tensor]:
        """Features or named tensors ``(B, C, *shape)`` -> the same kind of thing, same shapes."""
        if not isinstance(networks, Features):
            return self.space.unpack(self(self.space.pack(networks)))
        self.space.layout.require(networks, None, "Balance")
        return balancing_element(self.space, networks, scales=self.scales, signs=self.signs).act(networks)

    def extra_repr(self) -> str:
        return f"{self.space}, scales={self.scales}, signs={self.signs}"


def balancing_element(
    space: WeightSpace, features: Features, *, scales: bool = True, signs: bool = True
) -> GroupElement:
    """The element of `balance`, of features of the space: nodes on which neither scales nor signs act are left out."""
    with torch.no_grad():
        precise = features.detach().to(torch.float64)
        factors = _scales(space, precise) if scales else {}
        if signs:
            # Rounding errors of the given entries, a few each, are no sign.
            noise = 32 * torch.finfo(features.tensors[0].dtype).eps
            for node, sign in _signs(space, _diagonal(space, factors).act(precise), noise).items():
                factors[node] = factors[node] * sign if node in factors else sign
    return _diagonal(space, factors)


def _diagonal(space: WeightSpace, factors: Mapping[str, Tensor]) -> GroupElement:
    return GroupElement(space, {node: MonomialMatrix.diagonal(factor) for node, factor in factors.items()})


# -- signs ------------------------------------------------------------------------------------------------------------


def _signs(space: WeightSpace, features: Features, noise: float) -> dict[str, Tensor]:
    """Node -> signs ``(B, n)``. ``known`` holds the sign of each neuron as far as it is settled, and 0 where not."""
    moments: list[tuple[list[Axis], list[tuple[Tensor, Tensor]]]] = []
    for field_type, x in features.fields.items():
        odd = {d: a for d, a in enumerate(field_type, 1) if space.acting((a,))[0].flips}
        if not odd:
            continue
        rest = [d for d in range(1, x.ndim) if d not in odd]
        cubes = x * x * x * torch.linspace(1, 2, x.shape[-1], dtype=x.dtype, device=x.device)
        # Signs can be taken out of these sums, which so need computing once: sums, and sums of sizes.
        moments.append((list(odd.values()), [(y.sum(rest), y.abs().sum(rest)) for y in (x, cubes)]))
    first, sizes = features.tensors[0], space.node_sizes(features)
    flipped = [name for name in space.nodes if any(axis.node == name for axes, _ in moments for axis in axes)]
    known = {name: first.new_zeros(first.shape[0], sizes[name]) for name in flipped}
    # Incoming entries alone at first: balanced, a single incoming and a single outgoing weight may cancel.
    for name, lowest in [*((name, 1) for name in flipped), *((name, -math.inf) for name in reversed(flipped))]:
        found = torch.zeros_like(known[name])
        for moment in range(2):
            total, size = torch.zeros_like(found), torch.zeros_like(found)
            for axes, sums in moments:
                own = [dim for dim, axis in enumerate(axes, 1) if axis.node == name]
                if (
                    len(own) != 1 or flow(axes[own[0] - 1].charge) < lowest
                ):  # with two, it carries the signs of two neurons
                    continue
                x, absolute = sums[moment]
                for dim, (other, _) in enumerate(axes, 1):
                    if dim != own[0]:
                        x = x * along(known[other], dim, x.ndim)
                        absolute = absolute * along(known[other].abs(), dim, x.ndim)
                total, size = total + onto(x, own[0]), size + onto(absolute, own[0])
            found = torch.where(found != 0, found, total.sign() * (total.abs() > noise * size))
        known[name] = torch.where(known[name] != 0, known[name], found)
    return {name: torch.where(sign != 0, sign, 1) for name, sign in known.items()}


# -- scales -----------------------------------------------------------------------------------------------------------


def _scales(space: WeightSpace, features: Features) -> dict[str, Tensor]:
    """Node -> scales ``(B, n)``, from the squared norms of what each combination of neurons scales."""
    squares: dict[FieldType, Tensor] = {}
    for field_type, x in features.fields.items():
        scaled = [d for d, a in enumerate(field_type, 1) if space.nodes[a.node].scales and a.charge]
        if scaled:
            rest = [d for d in range(1, x.ndim) if d not in scaled]
            axes, square = tuple(field_type[d - 1] for d in scaled), x.square().sum(rest)
            squares[axes] = squares[axes] + square if axes in squares else square
    if not squares:
        return {}
    order = [node for node in space.nodes if any(axis.node == node for axes in squares for axis in axes)]
    axes_of_all = list(itertools.chain.from_iterable(squares))
    logs = log_scales(
        list(squares.values()), [order.index(a.node) for a in axes_of_all], [a.charge for a in axes_of_all]
    )
    sizes = space.node_sizes(features)
    return dict(zip(order, logs.exp().split([sizes[node] for node in order], -1), strict=True))
