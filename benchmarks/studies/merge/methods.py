"""Ways to bring two networks into one frame before they are merged.

A method takes a `Pair` and returns its networks as they are to be averaged; their functions are as before.

- *naive*: as they are.
- *weight matching*: neurons of b permuted so that weights agree (Ainsworth et al. 2022, Sec. 3.2): one node's neurons
  are assigned after the other, given all others, until nothing is won.
- *activation matching*: neurons of b permuted so that activations correlate (Li et al. 2015; Ainsworth et al. 2022,
  Sec. 3.1).
- *permutation and scale* in nine variants. Neurons are permuted by weights, by weights of the balanced networks, or by
  activations; then they are scaled: ``balanced``, both networks become the canonical ones with the same functions
  (`balance`), whose line is that from a to b with the geometric mean of the quotients of norms as scales; ``least
  squares``, weights come as near to those of a as scales can bring them; ``activations``, root mean squares of
  activations become those of a.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from nfn_monomial import GroupElement, MonomialMatrix, WeightSpace, balance
from nfn_monomial.alignment import align
from nfn_monomial.alignment.scales import nearest_scales
from nfn_monomial.read.sites import sites_of
from nfn_monomial.space.packing import pieces

from .networks import Network

__all__ = ["BASELINES", "VARIANTS", "Pair", "activation_matching", "activations_of"]

Activations: TypeAlias = dict[str, list[Tensor]]
"""Node -> for each layer that reads it, its neurons' activations ``(n, samples)``."""


@dataclass(frozen=True)
class Pair:
    """Two networks, and what is needed to match them.

    Attributes:
        space: their weight space, with the names of the module.
        module: their architecture.
        a: the network whose frame counts.
        b: the network that is moved.
        inputs: images ``(n, 1, H, W)`` for activations.
    """

    space: WeightSpace
    module: nn.Module
    a: Network
    b: Network
    inputs: Tensor

    @cached_property
    def activations(self) -> tuple[Activations, Activations]:
        """Of both networks."""
        first, second = (activations_of(self.space, self.module, n, self.inputs) for n in (self.a, self.b))
        return first, second

    @cached_property
    def balanced(self) -> tuple[Network, Network]:
        """Both networks in their canonical form."""
        first, second = (_balanced(self.space, network) for network in (self.a, self.b))
        return first, second

    @cached_property
    def by_weights(self) -> GroupElement:
        """What permutes b so that weights agree."""
        return align(self.space, self.a, self.b, symmetry="permutation").element

    @cached_property
    def by_balanced_weights(self) -> GroupElement:
        """The same of the networks in their canonical form."""
        return align(self.space, *self.balanced, symmetry="permutation").element

    @cached_property
    def by_activations(self) -> GroupElement:
        """What permutes b so that activations correlate."""
        return activation_matching(self.space, *self.activations)


Method: TypeAlias = Callable[[Pair], tuple[Network, Network]]


def activations_of(space: WeightSpace, module: nn.Module, network: Network, inputs: Tensor) -> Activations:
    """What layers read of every node's neurons, samples and positions in a row."""
    sites = sites_of(module, space, {name: name for name in space.parameters})
    try:
        with torch.no_grad():
            torch.func.functional_call(module, network, (inputs,))
        found: Activations = defaultdict(list)
        for site in sites:
            (x,) = site.seen
            found[site.node].append(x.movedim(1, 0).flatten(1))
        return dict(found)
    finally:
        for site in sites:
            site.remove()


def activation_matching(space: WeightSpace, a: Activations, b: Activations) -> GroupElement:
    """Permutes the second network's neurons to those of the first that they correlate with most, in sum."""
    matrices = {}
    for node, seen in a.items():
        correlation = torch.stack([_correlation(x, y) for x, y in zip(seen, b[node], strict=True)]).sum(0)
        # Place j takes neuron source[j].
        source = torch.from_numpy(linear_sum_assignment(correlation.numpy(), maximize=True)[1])
        ones = torch.ones(len(source), dtype=torch.float64)
        matrices[node] = MonomialMatrix([ones] * len(space.nodes[node].gauges), source.argsort())
    return GroupElement(space, matrices)


def _correlation(x: Tensor, y: Tensor) -> Tensor:
    """Of all rows of two matrices ``(n, samples)`` and ``(m, samples)``: ``(n, m)``; 0 for rows that do not vary."""
    x, y = (z.double() - z.double().mean(1, keepdim=True) for z in (x, y))
    x, y = (torch.nn.functional.normalize(z, dim=1) for z in (x, y))
    return x @ y.mT


def _balanced(space: WeightSpace, network: Network) -> Network:
    batch = {name: t[None, None] for name, t in network.items()}
    return {name: t[0, 0] for name, t in balance(batch, space)[0].items()}


PERMUTATIONS: Mapping[str, Callable[[Pair], GroupElement]] = {
    "weights": lambda pair: pair.by_weights,
    "balanced weights": lambda pair: pair.by_balanced_weights,
    "activations": lambda pair: pair.by_activations,
}
"""By what neurons of b are permuted."""


def _to_balanced(pair: Pair, moved: GroupElement) -> tuple[Network, Network]:
    a, b = pair.balanced
    return a, moved.act(b)


def _to_least_squares(pair: Pair, moved: GroupElement) -> tuple[Network, Network]:
    sizes, b = pair.space.sizes(), moved.act(pair.b)
    both = [pieces(pair.space, {name: x.double() for name, x in network.items()}, sizes) for network in (pair.a, b)]
    scales = nearest_scales(pair.space, both[0], both[1], sizes)
    matrices = {node: MonomialMatrix.diagonal(found) for node, found in scales.items()}
    return pair.a, GroupElement(pair.space, matrices).act(b)


def _to_activations(pair: Pair, moved: GroupElement) -> tuple[Network, Network]:
    matrices = {}
    for node in pair.activations[0]:
        of_a, of_b = (torch.cat(seen[node], 1).double().square().mean(1) for seen in pair.activations)
        if node in moved.matrices:
            of_b = moved.matrices[node].act(of_b, 0, 0)
        ratio = (of_a / of_b).sqrt()
        ratio = torch.where(ratio.isfinite() & (ratio > 0), ratio, 1)  # dead neurons stay
        gauges = pair.space.nodes[node].gauges
        matrices[node] = MonomialMatrix.diagonal([ratio if g.scales else torch.ones_like(ratio) for g in gauges])
    return pair.a, GroupElement(pair.space, matrices).act(moved.act(pair.b))


SCALES: Mapping[str, Callable[[Pair, GroupElement], tuple[Network, Network]]] = {
    "balanced": _to_balanced,
    "least squares": _to_least_squares,
    "activations": _to_activations,
}
"""How neurons are scaled, once they are permuted."""


def _variant(permutation: str, scale: str) -> Method:
    return lambda pair: SCALES[scale](pair, PERMUTATIONS[permutation](pair))


BASELINES: Mapping[str, Method] = {
    "naive": lambda pair: (pair.a, pair.b),
    "weight matching": lambda pair: (pair.a, pair.by_weights.act(pair.b)),
    "activation matching": lambda pair: (pair.a, pair.by_activations.act(pair.b)),
}
"""Without scales."""
VARIANTS: Mapping[str, Method] = {
    f"{permutation}, {scale}": _variant(permutation, scale)
    for permutation, scale in itertools.product(PERMUTATIONS, SCALES)
}
"""Permuted by, scaled to."""
