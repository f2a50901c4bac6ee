"""Canonical forms: of all networks that scalings and sign flips turn into one another, pick one.

The scales are those of the network of least norm, found by convex minimisation; the signs make an odd statistic of
every neuron positive. What is left of the group is permutations (``space.restricted("permutation")``), so that any
permutation-equivariant model behind is equivariant, and any permutation-invariant one invariant, under all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias, overload

import torch
from torch import Tensor, nn

from nfn_monomial.checks import checked
from nfn_monomial.space.features import Features
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix
from nfn_monomial.space.weight_space import WeightSpace

from .signs import canonical_signs
from .solver import Factor, encoded, log_scales, rough_log_scales
from .terms import Gauge, ordered, scaled_squares

_Factors: TypeAlias = dict[Gauge, Tensor]


@checked
def balance(
    tensors: Mapping[str, Tensor], space: WeightSpace, *, scales: bool = True, signs: bool = True
) -> tuple[dict[str, Tensor], GroupElement]:
    """The canonical network with the same function, and the group element that leads to it.

    **Scales** (SCALE, MONOMIAL; each gauge of a node has its own): the network of least squared norm, where for every
    neuron the squares that its scale multiplies and those it divides have equal sums: ``sum_{q>0} q ||entries||^2 =
    sum_{q<0} |q| ||entries||^2``, incoming and outgoing norm for ordinary layers. It is unique, since the norm is
    convex in the logarithms of scales; the scales themselves need not be where two gauges do the same. They are found
    in float64, from squares of the entries: exact for entries between 1e-150 and 1e150 in size.

    A neuron that has no nonzero entry on one side (dead) has no such scale, and as the limit is an entry 0, nor do its
    entries count for other neurons; nor do those of a parameter of which the network of least norm could do without
    in any network of this space. It takes the scale at which its nonzero side has norm 1 (the larger of its bias and
    its weights), the incoming one if the two sides are nonzero but lead from or to dead neurons only. Neurons that are
    linked to nothing but one another, all without a scale, take those at which the logarithms of the entries between
    them (root mean squares where several entries scale alike) have least squares. A neuron whose entries are all 0
    stays as it is.

    **Signs** (SIGN, MONOMIAL): the sum of the entries that carry the neuron's sign, and no sign not yet settled, is
    made positive. Nodes are settled from inputs to outputs by incoming entries (where charges count modulo 2, those of
    the last layer as well), so that rows see columns whose signs are settled; what is left, neurons without incoming
    weights, backwards by outgoing ones. The gauges of a node come one after the other, so there are as many such
    rounds. Where the sum is 0 within rounding, the sum of cubes counts, each weighted by its place among the entries
    that nothing permutes; where that is 0 too, as for weights ``(a, -a)`` from two permuted neurons and no bias, or
    where all entries carry other signs that nothing settles, the sign stays as it is and the form is not unique.

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

    @checked
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
    space: WeightSpace, features: Features, *, scales: bool = True, signs: bool = True, sweeps: int | None = None
) -> GroupElement:
    """The element of `balance`, of features of the space: nodes on which neither scales nor signs act are left out.

    With a number of ``sweeps`` over all gauges, at a fraction of the cost, scales are not yet those of least norm. But
    equal functions get equal sizes all the same.
    """
    with torch.no_grad():
        precise = features.detach().to(torch.float64)
        factors = _scales(space, precise, sweeps) if scales else {}
        if signs:
            # Rounding errors of the given entries, a few each, are no sign.
            noise = 32 * torch.finfo(features.tensors[0].dtype).eps
            for gauge, sign in canonical_signs(space, _diagonal(space, factors, precise).act(precise), noise).items():
                sign = torch.where(sign != 0, sign, 1)
                factors[gauge] = factors[gauge] * sign if gauge in factors else sign
    return _diagonal(space, factors, precise)


def _diagonal(space: WeightSpace, factors: _Factors, features: Features) -> GroupElement:
    """The element without permutations; gauges without a factor, and what a node is nested in, stay as they are."""
    sizes, first = space.node_sizes(features), features.tensors[0]
    moved = {above for gauge in factors for above in space.ancestry(gauge.node)}
    matrices = {}
    for node in filter(moved.__contains__, space.nodes):
        count = math.prod([sizes[name] for name in space.ancestry(node)])
        one = torch.ones(len(first), count, dtype=torch.float64, device=first.device)
        gauges = [Gauge(node, i) for i in range(len(space.nodes[node].gauges))]
        matrices[node] = MonomialMatrix.diagonal([factors[g].flatten(1) if g in factors else one for g in gauges])
    return GroupElement(space, matrices)


def _scales(space: WeightSpace, features: Features, sweeps: int | None) -> _Factors:
    """Gauge -> scales ``(B, *sizes)``, from the squared norms of what each combination of neurons scales."""
    terms = scaled_squares(space, features)
    if not terms:
        return {}
    shapes = {g: [x.shape[d] for d in axis.dims] for x, axes in terms for axis in axes for g, _ in axis.charges}
    order = ordered(space, shapes)
    factors = [
        tuple(Factor(order.index(gauge), q, axis.dims) for axis in axes for gauge, q in axis.charges)
        for _, axes in terms
    ]
    squares, numbers = [x for x, _ in terms], encoded(factors)
    logs = log_scales(squares, numbers) if sweeps is None else rough_log_scales(squares, numbers, sweeps)
    parts = torch.split(logs.exp(), [math.prod(shapes[gauge]) for gauge in order], -1)
    return {gauge: part.reshape(len(part), *shapes[gauge]) for gauge, part in zip(order, parts, strict=True)}
