"""Ways to bring two networks into one frame before they are merged.

A method takes a `Pair` and returns its networks as they are to be averaged; their functions are as before.

- *naive*: as they are.
- *weight matching*: neurons of b permuted so that weights agree (Ainsworth et al. 2022, Sec. 3.2): one node's neurons
  are assigned after the other, given all others, until nothing is won. Running statistics of norms are no weights.
- *activation matching*: neurons of b permuted so that activations correlate (Li et al. 2015; Ainsworth et al. 2022,
  Sec. 3.1).
- *permutation and scale* in six variants. Both networks are balanced first (`balance`): what leads to a neuron and what
  leaves it have the same norm. What leads to a batch norm has a sign as well, which the norm's gain undoes: the one at
  which the gain is positive, so that rows agree where what leaves the norm does. Signs that each network settles by
  sums of its own entries would set every other row of b against that of a. Neurons are permuted by balanced weights;
  by activations, as above; or by balanced activations, whose sum of products is made large, so that neurons count by
  their size. Then they are scaled: in ``balanced`` they stay so, which is the line from a to b with the geometric mean
  of the quotients of norms as scales; in ``preactivations`` each of b gets the root mean square of a's *before* the
  ReLU. A neuron that is nearly dead still varies there, while a quotient of what passes the ReLU has no bound.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from nfn_monomial import Axis, GroupElement, MonomialMatrix, Symmetry, WeightSpace, balance
from nfn_monomial.alignment import align
from nfn_monomial.space.axes import powers

from .networks import Network

__all__ = [
    "BASELINES",
    "IMAGE_NETS",
    "VARIANTS",
    "Family",
    "Method",
    "Pair",
    "Seen",
    "activation_matching",
    "correlations",
    "fitting",
    "permuting",
    "seen_in",
]

Activations: TypeAlias = Mapping[str, Sequence[Tensor]]
"""Node -> for each layer that reads it, or writes it, its neurons' values ``(n, samples)``, positions in a row."""


class Seen(NamedTuple):
    """What a network's neurons do.

    Attributes:
        read: by the layers behind them.
        written: by the layers or norms in front of them, before the ReLU.
    """

    read: Activations
    written: Activations


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
    def balanced(self) -> tuple[Network, Network]:
        """Both networks with the scales of their canonical form, and positive gains."""
        first, second = (_balanced(self.space, self.module, network) for network in (self.a, self.b))
        return first, second

    @cached_property
    def seen(self) -> tuple[Seen, Seen]:
        """Of both balanced networks."""
        first, second = (seen_in(self.space, self.module, n, self.inputs) for n in self.balanced)
        return first, second

    @cached_property
    def by_weights(self) -> GroupElement:
        """What permutes b so that weights agree."""
        return _weight_matching(self.space, self.a, self.b)

    @cached_property
    def by_balanced_weights(self) -> GroupElement:
        """The same of the networks in their canonical form."""
        return _weight_matching(self.space, *self.balanced)

    @cached_property
    def by_activations(self) -> GroupElement:
        """What permutes b so that activations correlate, which is the same in every frame."""
        a, b = self.seen
        return activation_matching(self.space, a.read, b.read, correlations)

    @cached_property
    def by_balanced_activations(self) -> GroupElement:
        """What permutes b so that activations are near to one another, of the networks in their canonical form."""
        a, b = self.seen
        return activation_matching(self.space, a.read, b.read, _products)


Method: TypeAlias = Callable[[Pair], tuple[Network, Network]]


class Family(NamedTuple):
    """The methods by which networks of one family of architectures are merged.

    Attributes:
        baselines: *naive* among them.
        variants: of which one is chosen on validation pairs.
        ours: what that one is called.
        rival: the baseline that it is compared with, pair by pair.
        chosen: what the names of variants say.
    """

    baselines: Mapping[str, Method]
    variants: Mapping[str, Method]
    ours: str
    rival: str
    chosen: str

    @property
    def methods(self) -> tuple[str, ...]:
        """What is measured on test pairs."""
        return (*self.baselines, self.ours)


def seen_in(space: WeightSpace, module: nn.Module, network: Network, inputs: Tensor) -> Seen:
    """What every node's neurons do on some inputs."""
    read: dict[str, list[Tensor]] = defaultdict(list)
    written: dict[str, list[Tensor]] = defaultdict(list)

    def reader(node: str) -> Any:
        return lambda layer, args: read[node].append(_rows(args[0]))

    def writer(node: str) -> Any:
        return lambda layer, args, out: written[node].append(_rows(out))

    handles = []
    for name, dims in space.parameters.items():
        path, _, kind = name.rpartition(".")
        at = {"weight": 1, "bias": 0}.get(kind, len(dims))
        axis = dims[at] if at < len(dims) else None
        if isinstance(axis, Axis) and space.nodes[axis.node].permutes:
            layer = module.get_submodule(path)
            handles.append(
                layer.register_forward_pre_hook(reader(axis.node))
                if kind == "weight"
                else layer.register_forward_hook(writer(axis.node))
            )
    try:
        with torch.no_grad():
            torch.func.functional_call(module, network, (inputs,))
    finally:
        for handle in handles:
            handle.remove()
    return Seen(dict(read), dict(written))


def _rows(x: Tensor) -> Tensor:
    """Neurons first: those of images ``(B, n, H, W)``, vectors ``(B, n)``, or tokens ``(B, T, n)``."""
    return x.movedim(1 if x.ndim == 4 else -1, 0).flatten(1)


def _weight_matching(space: WeightSpace, a: Network, b: Network) -> GroupElement:
    learned = {name: dims for name, dims in space.parameters.items() if ".running_" not in name}
    found = align(WeightSpace(space.nodes, learned), a, b, symmetry="permutation").element
    return GroupElement(space, found.matrices)


def activation_matching(
    space: WeightSpace, a: Activations, b: Activations, fits: Callable[[Tensor, Tensor], Tensor]
) -> GroupElement:
    """Permutes the second network's neurons to those of the first that they fit best, in sum."""
    orders = {}
    for node, seen in a.items():
        fit = torch.stack([fits(x.double(), y.double()) for x, y in zip(seen, b[node], strict=True)]).sum(0)
        orders[node] = fitting(fit)
    return permuting(space, orders)


def fitting(fit: Tensor) -> Tensor:
    """For each of n places the neuron that it takes, so that the sum of their fits ``(n, n)`` is largest."""
    return torch.from_numpy(linear_sum_assignment(fit.numpy(), maximize=True)[1])


def permuting(space: WeightSpace, orders: Mapping[str, Tensor]) -> GroupElement:
    """What gives every place of these nodes the neuron that it takes."""
    matrices = {}
    for node, order in orders.items():
        ones = torch.ones(len(order), dtype=torch.float64)
        matrices[node] = MonomialMatrix([ones] * len(space.nodes[node].gauges), order.argsort())
    return GroupElement(space, matrices)


def correlations(x: Tensor, y: Tensor) -> Tensor:
    """Of all rows of two matrices ``(n, samples)`` and ``(m, samples)``: ``(n, m)``; 0 for rows that do not vary."""
    x, y = (nn.functional.normalize(z - z.mean(1, keepdim=True), dim=1) for z in (x, y))
    return x @ y.mT


def _products(x: Tensor, y: Tensor) -> Tensor:
    """What is lacking from the squared distance of two rows."""
    return x @ y.mT


def _balanced(space: WeightSpace, module: nn.Module, network: Network) -> Network:
    batch = {name: t[None, None] for name, t in network.items()}
    found = {name: t[0, 0] for name, t in balance(batch, space, signs=False)[0].items()}
    return _gain_signs(space, module, found).act(found)


def _gain_signs(space: WeightSpace, module: nn.Module, network: Network) -> GroupElement:
    """What makes the gains of all batch norms positive."""
    signs: dict[str, list[Tensor]] = {}
    for name, dims in space.parameters.items():
        path, _, kind = name.rpartition(".")
        if kind != "weight" or not isinstance(module.get_submodule(path), nn.BatchNorm2d):
            continue
        axis, gain = cast("Axis", dims[0]), network[name].double()
        gauges = space.nodes[axis.node].gauges
        found = signs.setdefault(axis.node, [torch.ones_like(gain)] * len(gauges))
        for i, (gauge, q) in enumerate(zip(gauges, powers(axis.charge), strict=True)):
            if gauge.flips and q % 2:
                found[i] = torch.where(gain < 0, -1.0, 1.0).to(gain)
    return GroupElement(space, {node: MonomialMatrix.diagonal(found) for node, found in signs.items()})


PERMUTATIONS: Mapping[str, Callable[[Pair], GroupElement]] = {
    "balanced weights": lambda pair: pair.by_balanced_weights,
    "activations": lambda pair: pair.by_activations,
    "balanced activations": lambda pair: pair.by_balanced_activations,
}
"""By what neurons of b are permuted."""


def _to_balanced(pair: Pair, moved: GroupElement) -> tuple[Network, Network]:
    a, b = pair.balanced
    return a, moved.act(b)


def _to_preactivations(pair: Pair, moved: GroupElement) -> tuple[Network, Network]:
    a, b = _to_balanced(pair, moved)
    matrices = {}
    for node, gauges in ((name, pair.space.nodes[name].gauges) for name in pair.seen[0].written):
        of_a, of_b = (torch.cat(list(seen.written[node]), 1).double().square().mean(1) for seen in pair.seen)
        ratio = (of_a / moved.matrices[node].act(of_b, 0, 0)).sqrt()
        ratio = torch.where(ratio.isfinite() & (ratio > 0), ratio, 1)  # nothing at all leads to such a neuron
        scales = [ratio if gauge is Symmetry.SCALE else torch.ones_like(ratio) for gauge in gauges]
        matrices[node] = MonomialMatrix.diagonal(scales)
    return a, GroupElement(pair.space, matrices).act(b)


SCALES: Mapping[str, Callable[[Pair, GroupElement], tuple[Network, Network]]] = {
    "balanced": _to_balanced,
    "preactivations": _to_preactivations,
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
IMAGE_NETS = Family(BASELINES, VARIANTS, "permutation and scale", "activation matching", "permuted by, scaled to")
