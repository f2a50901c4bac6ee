"""Canonical forms: one network in place of all that scalings and sign flips turn into it.

The scales are those of the network of least norm, found by convex minimisation; the signs make an odd statistic of
every neuron positive. Only permutations are left of the group (``space.restricted("permutation")``), so that any
permutation-equivariant model after it is equivariant, and any permutation-invariant one invariant, under all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias, overload

import torch
from torch import Tensor, nn

from nfn_monomial.checks import checked
from nfn_monomial.space.features import Features
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix
from nfn_monomial.space.packing import on_cpu
from nfn_monomial.space.weight_space import WeightSpace

from .buckets import ScaleFactor
from .charges import NodeGauge, along, charged_axes, log_squares, wide_dtype
from .least_norm import log_scales
from .signs import canonical_signs, sign_noise

_Factors: TypeAlias = dict[NodeGauge, Tensor]


@checked
def balance(
    tensors: Mapping[str, Tensor], space: WeightSpace, *, scales: bool = True, signs: bool = True
) -> tuple[dict[str, Tensor], GroupElement]:
    """Returns the canonical network with the same function, and the group element that leads to it.

    **Scales** (SCALE, MONOMIAL; each gauge of a node has its own): the network of least squared norm, where for every
    neuron the squares that its scale multiplies and those it divides have equal sums: ``sum_{q>0} q ||entries||^2 =
    sum_{q<0} |q| ||entries||^2``, incoming and outgoing norm for ordinary layers. It is unique, since the norm is
    convex in the logarithms of scales; the scales themselves need not be where two gauges do the same. They are found
    in float64, from logarithms of the entries, which may have any sizes that their dtype holds.

    A neuron that has no nonzero entry on one side (dead) has no such scale, and because its other entries tend to 0
    they do not count for other neurons; nor do those of a parameter that tends to 0 with the norm in every network of
    this space. It takes the scale at which its nonzero side has norm 1 (the larger of its bias and
    its weights), the incoming one if the two sides are nonzero but lead from or to dead neurons only. Neurons that are
    linked to nothing but one another, all without a scale, take those at which the logarithms of the entries between
    them (root mean squares where several entries scale alike) have least squares. A neuron whose entries are all 0
    stays as it is.

    **Signs** (SIGN, MONOMIAL): the sum of the entries that carry the neuron's sign, and no sign not yet settled, is
    made positive. Nodes are settled from inputs to outputs by incoming entries (where charges count modulo 2, those of
    the last layer as well), so that rows see columns whose signs are settled; the rest, neurons without incoming
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
        The balanced tensors, ``element.act(tensors)`` within rounding, and the element: a batch of B, scales in
        float64, no permutation. Permutation-equivariant: permuting neurons permutes the result.

    Raises:
        ValueError: as `WeightSpace.pack`, for names, shapes and values that do not fit; for scales that float64 does
            not hold, which `Balance` applies all the same.

    >>> space = WeightSpace.mlp([1, 1, 1], "relu", bias=False)
    >>> tensors = {"weight.0": torch.full((1, 1, 1, 1), 8.0), "weight.1": torch.full((1, 1, 1, 1), 2.0)}
    >>> balanced, element = balance(tensors, space)
    >>> [round(x.item(), 6) for x in balanced.values()], element.matrices["h1"].scale
    ([4.0, 4.0], tensor([[0.5000]], dtype=torch.float64))
    """
    features = space.pack(tensors)
    balancing = rescaling(space, features, scales=scales, signs=signs, converge=True)
    return space.unpack(balancing.act(features)), balancing.element(features)


class Balance(nn.Module):
    """`balance` as a layer without parameters: networks in, canonical networks out.

    No value is looked at, so nothing waits for an accelerator: there is a fixed number of rounds, by which the norms
    of most networks are least within rounding; not of deep ones whose entries are many orders of magnitude apart. The
    rest does not depend on the frame: equal functions have equal forms after any number of rounds, within rounding,
    which grows with the orders of magnitude; but, in networks of more than 128 scales, for the entries between more
    than ten neurons that zeros cut off from inputs, outputs and biases, on which no function depends. Named tensors on
    the CPU, where a look is for free, are checked for NaN.

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
            return self.space.unpack(self(self.space.pack(networks, check_finite=on_cpu(networks))))
        self.space.layout.require(networks, None, "Balance")
        return rescaling(self.space, networks, scales=self.scales, signs=self.signs).act(networks)

    def extra_repr(self) -> str:
        return f"{self.space}, scales={self.scales}, signs={self.signs}"


class Rescaling(NamedTuple):
    """A group element without permutations, which acts without a look at values and without overflow on the way.

    Attributes:
        space: the weight space.
        logs: gauge -> logarithms of scales ``(B, *sizes)``.
        signs: gauge -> signs ``(B, *sizes)``.
    """

    space: WeightSpace
    logs: _Factors
    signs: _Factors

    def inverse(self) -> Rescaling:
        """Returns the inverse element: signs undo themselves."""
        return self._replace(logs={gauge: -log for gauge, log in self.logs.items()})

    def act(self, features: Features) -> Features:
        """Moves features of the space, of any dtype; the gradient is that of a product with constants."""
        fields = []
        for field_type, x in features.fields.items():
            logs, moved = [], x
            for axis in charged_axes(self.space, field_type, lambda _, q: q):
                for gauge, q in axis.charges:
                    if gauge in self.logs:
                        log = along(self.logs[gauge], axis.dims, x.ndim)
                        logs.append(log if q == 1 else q * log)
                    if gauge in self.signs and q % 2:
                        moved = moved * along(self.signs[gauge], axis.dims, x.ndim).to(x.dtype)
            if logs:
                # The way from the least to the largest number takes two factors.
                half = (sum(logs[1:], logs[0]) / 2).exp()
                moved = (moved * half * half).to(x.dtype)
            fields.append(moved)
        return Features(features.layout, tuple(fields))

    def element(self, features: Features) -> GroupElement:
        """Returns it as a group element; gauges without a factor stay, and so do nodes that others are nested in."""
        sizes, first = self.space.node_sizes(features), features.tensors[0]
        factors = {gauge: log.exp() for gauge, log in self.logs.items()}
        for gauge, sign in self.signs.items():
            factors[gauge] = factors[gauge] * sign if gauge in factors else sign
        moved = {above for gauge in factors for above in self.space.ancestry(gauge.node)}
        matrices = {}
        for node in filter(moved.__contains__, self.space.nodes):
            count = math.prod([sizes[name] for name in self.space.ancestry(node)])
            one = torch.ones(len(first), count, dtype=wide_dtype(first), device=first.device)
            gauges = [NodeGauge(node, i) for i in range(len(self.space.nodes[node].gauges))]
            matrices[node] = MonomialMatrix.diagonal([factors[g].flatten(1) if g in factors else one for g in gauges])
        return GroupElement(self.space, matrices)


@torch.no_grad()
def rescaling(
    space: WeightSpace, features: Features, *, scales: bool = True, signs: bool = True, converge: bool = False
) -> Rescaling:
    """Returns the element that `balance` moves features of the space by.

    Unless it is to ``converge``, no value is looked at: there is a fixed number of rounds, after which equal functions
    have equal sizes too.
    """
    features = features.detach()
    balancing = Rescaling(space, {}, {})
    if scales and (terms := log_squares(space, features)):
        gauges = {gauge for _, axes in terms for axis in axes for gauge, _ in axis.charges}
        order = sorted(gauges, key=lambda gauge: (list(space.nodes).index(gauge.node), gauge.number))
        factors = [
            tuple(ScaleFactor(order.index(gauge), q, axis.dims) for axis in axes for gauge, q in axis.charges)
            for _, axes in terms
        ]
        logs = log_scales([x for x, _ in terms], factors, converge=converge)
        balancing = balancing._replace(logs=dict(zip(order, logs, strict=True)))
    if not signs or not any(gauge.flips for node in space.nodes.values() for gauge in node.gauges):
        return balancing
    first = features.tensors[0]
    settled = canonical_signs(space, balancing.act(features.to(wide_dtype(first))), sign_noise(first.dtype))
    return balancing._replace(signs={gauge: torch.where(sign != 0, sign, 1) for gauge, sign in settled.items()})
