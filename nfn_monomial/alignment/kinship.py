"""How surprising the likeness of two networks is: neurons in their places, against the same neurons in random orders.

Neurons have no order of their own: training treats all of a node alike, so that of a network B which has nothing to do
with A every order is as likely as the one at hand. Where B was made from A, neurons stand where they stood in A. This
is the null hypothesis and the idea of the constrained tests of Zhu et al., *Independence Tests for Language Models*
(ICML 2025), for any group of permutations.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial.checks import Count, Seed, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space import packing
from nfn_monomial.space.axes import Axis, paths_of
from nfn_monomial.space.weight_space import WeightSpace

from .align import Network, sizes_of

_COUNTED = 1e-3  # the share of all errors that is left to the count of neurons in place
_SAME = 1e-9  # differences of cosines that count as none: neurons may be twins
_LEAST = 1e-300  # p-values below are said to be this
_WORK = 10_000_000  # neurons that are put in order for a node: of wide nodes fewer orders are drawn
_PRODUCTS = 10_000_000_000  # of two entries, of a node of two networks: of larger parameters some entries are looked at
_AT_ONCE = 4_000_000  # numbers that are held together


class NodeKinship(NamedTuple):
    """What a node says.

    Attributes:
        likeness: mean cosine of neurons that stand in the same place.
        p_value: of that sum among random orders of the node's neurons alone.
        in_place: neurons of a that are nearer to b's in their own place than to all others.
        neurons: how many there are.
    """

    likeness: float
    p_value: float
    in_place: int
    neurons: int


@dataclass(frozen=True)
class Kinship:
    """What `kinship` found.

    Attributes:
        p_value: how likely networks that were trained apart are to be at least so alike, at most; 1 without ``nodes``.
        in_place: neurons of a that are nearer to b's in their own place than to all others.
        expected: how many of these random orders have on average, at most: one for each set of neurons that is ordered.
        neurons: how many neurons were looked at.
        nodes: node -> what it says; empty where nothing can be tested, as no node has two neurons that may be permuted.
    """

    p_value: float
    in_place: int = 0
    expected: int = 0
    neurons: int = 0
    nodes: dict[str, NodeKinship] = field(default_factory=dict)


class _Node(NamedTuple):
    """One node of many pairs: sums of cosines, logarithms of p-values, neurons in place, each ``(pairs,)``."""

    name: str
    blocks: int
    neurons: int
    sums: Tensor
    logs: Tensor
    in_place: Tensor


@checked
def kinship(
    space: WeightSpace, a: Network, b: Network, *, draws: Count = 9999, seed: Seed = 0, given: Network | None = None
) -> Kinship:
    """A p-value for "networks a and b were trained independently", from where their neurons stand.

    **Assumed** is that the law of one of the networks is the same for all orders of its neurons: ``g.B ~ B`` for all
    permutations ``g`` of the group. This holds where all neurons of a node are initialised alike, and trained by
    anything that treats them alike (gradient descent, Adam, weight decay, dropout), on whatever data, also the same.
    If then a and b are independent, ``P(p <= x) <= x`` for all x, whatever a is. Networks that start from the same
    weights, or the same seed, are not independent. An order that was imposed afterwards breaks the assumption: neurons
    that were sorted, or moved next to those of the other network (`align`). So does one that the architecture imposes:
    initial weights that are not alike for all neurons (rates that grow from state to state, as of Mamba; an identity;
    a table of sines that is trained), and what is not learned, as a table of sines that is added to a stream. The last
    is seen where it is ``given``: nodes along which it varies, and is the same in two networks, stay as they are.

    **Not seen** are relatives whose neurons were permuted: there a large p-value says nothing. No exact test can see
    them without more assumptions: if training always ended in the same network up to the group, networks that were
    trained apart would look like moved copies, too.

    The nodes come one after the other, those that others are nested in first. The vector of a neuron has its entries
    of the parameters whose other axes run over earlier nodes, in their order, or over FIXED ones; parameters on which
    a node has two axes that are the last are left out. Vectors are centred, of equal size for each parameter, and
    divided by their norms, so scales matter little. The sum of cosines of neurons in the same place is compared with
    that of ``draws`` random orders of b's neurons of the node: ``p_i = (1 + #{sum as large}) / (1 + draws)``, which is
    exact for any order of the nodes before. Fisher's method joins them. Beside it stands the number k of a's neurons
    that are nearer to the one in their own place than to all others: where B sets of neurons are each in a random
    order, there are k or more with a probability of at most ``B^k / k!``. The p-value is
    ``min(p_sums / 0.999, p_count / 0.001)``, whose second part makes it as small as relatives deserve.

    All is computed on the CPU in float64. Of large parameters some entries are looked at, the same in both networks.

    Args:
        space: the weight space.
        a: parameter name -> tensor ``(*shape)``, one network, floating point.
        b: the same; signs and scales stay as they are.
        draws: random orders for each node; of more than 1,000 neurons fewer, at least 199.
        seed: of the orders.
        given: buffers and parameters that are not learned, as the architecture has them: name -> tensor.

    Raises:
        ValueError: for parameters that are missing, whose shapes do not fit the space or one another, or that hold NaN
            or infinite values.
        TypeError: for what is no mapping to floating point tensors.

    >>> space = WeightSpace.mlp([8, 32, 4], "relu")
    >>> a, b = ({name: torch.randn(shape) for name, shape in space.shapes().items()} for _ in range(2))
    >>> tuned = {name: t + 0.1 * torch.randn_like(t) for name, t in a.items()}
    >>> kinship(space, a, tuned).p_value < 1e-20 < kinship(space, a, b).p_value
    True
    """
    found = list(_nodes(space, {"a": a, "b": b}, draws, seed, given or {}))
    if not found:
        return Kinship(1.0)
    nodes = {
        n.name: NodeKinship(float(n.sums[0]) / n.neurons, float(n.logs[0].exp()), int(n.in_place[0]), n.neurons)
        for n in found
    }
    counts = sum(n.in_place for n in nodes.values()), sum(n.blocks for n in found)
    return Kinship(float(_joined(found)[0]), *counts, sum(n.neurons for n in found), nodes)


@checked
def kinships(
    space: WeightSpace, networks: Sequence[Network], *, draws: Count = 999, seed: Seed = 0, given: Network | None = None
) -> Tensor:
    """P-values of all pairs of networks ``(N, N)``, float64, 1 on the diagonal: see `kinship`, arguments and errors.

    Those of one network depend on one another. Control of false discoveries (Benjamini-Hochberg) is proved for such
    dependence only with the factor of Benjamini-Yekutieli; Holm's correction holds in any case.
    """
    if len(networks) < 2:
        raise InvalidValueError(f"kinships needs two networks or more, found {len(networks)}")
    labelled = {f"networks[{i}]": network for i, network in enumerate(networks)}
    found = list(_nodes(space, labelled, draws, seed, given or {}))
    values = torch.ones(len(networks), len(networks), dtype=torch.float64)
    if found:
        i, j = torch.tril_indices(len(networks), len(networks), -1)
        values[i, j] = values[j, i] = _joined(found)
    return values


def partnership(x: Tensor, y: Tensor) -> float | None:
    """How alike the activations of two networks' neurons are, each beside its partner, from 0 to 1.

    The mean, over a's neurons that vary, of the size of the correlation with the one of b that is nearest, where this
    one's nearest is it again; else 0. The same for neurons in another order, scaled and flipped. It is no p-value:
    networks that are trained apart learn alike neurons from the same data, so compare it with theirs.

    Args:
        x: activations of a's neurons ``(*sizes, samples)``.
        y: the same, of b's.

    Returns:
        None for fewer than 8 samples, or where none of a's neurons varies.
    """
    x, y = (_unit(t.flatten(0, -2).double()) for t in (x, y))
    varied = int(x.any(-1).sum())
    if x.shape[-1] < 8 or not varied:
        return None
    fits = (x @ y.T).abs()
    best, nearest = fits.max(1)
    mutual = fits.argmax(0)[nearest] == torch.arange(len(x), device=x.device)
    return float((best * mutual).sum()) / varied


def _unit(x: Tensor) -> Tensor:
    """Rows, centred and of unit length, or 0 where they vary by rounding alone."""
    centred, size = x - x.mean(-1, keepdim=True), x.norm(dim=-1, keepdim=True)
    length = centred.norm(dim=-1, keepdim=True)
    return torch.where(length > _SAME * size, centred / length.clamp_min(1e-300), 0.0)


def _joined(nodes: Sequence[_Node]) -> Tensor:
    """The p-values of pairs, from those of all nodes."""
    half = -torch.stack([n.logs for n in nodes]).sum(0)  # of Fisher's statistic, chi-squared with 2 k degrees
    k = torch.arange(len(nodes), dtype=torch.float64)
    powers = torch.special.xlogy(k, half[:, None]) - torch.lgamma(k + 1)
    by_sums = torch.logsumexp(powers, 1) - half
    count = torch.stack([n.in_place for n in nodes]).sum(0).double()
    by_count = count * math.log(sum(n.blocks for n in nodes)) - torch.lgamma(count + 1)
    best = torch.minimum(by_sums - math.log1p(-_COUNTED), by_count - math.log(_COUNTED))
    return best.exp().clamp(_LEAST, 1.0)


@torch.no_grad()
def _nodes(
    space: WeightSpace, networks: Mapping[str, Network], draws: int, seed: int, given: Network
) -> Iterator[_Node]:
    """What each node says of all pairs (i, j < i), in the order of ``tril_indices``."""
    sizes = sizes_of(space, networks)
    still = {name for name, size in sizes.items() if size < 2} | _placed(space, list(networks.values()), given, sizes)
    generator = torch.Generator().manual_seed(seed)
    for name, own in _own(space, still).items():
        n, all_of = sizes[name], space.count(name, sizes)
        if not own:
            continue
        vectors = torch.stack([_vectors(space, network, name, own, sizes) for network in networks.values()])
        count = max(min(draws, _WORK // all_of), min(draws, 199))
        orders = torch.rand(count, all_of // n, n, generator=generator).argsort(-1)
        orders = torch.cat([torch.arange(n).expand(1, all_of // n, n), orders])
        found = [
            _beside(vectors[i], vectors[part], orders)
            for i in range(1, len(vectors))
            for part in torch.split(torch.arange(i), max(1, _AT_ONCE // (all_of * n)))
        ]
        yield _Node(name, all_of // n, all_of, *(torch.cat(parts) for parts in zip(*found, strict=True)))


def _beside(a: Tensor, others: Tensor, orders: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of a and each other ``(blocks, n, entries)``: sums, logarithms of p-values, and neurons in place.

    The first of the orders ``(draws + 1, blocks, n)`` leaves neurons where they are.
    """
    blocks, n, _ = a.shape
    sums = a.new_zeros(len(others), len(orders))
    in_place = a.new_zeros(len(others))
    for rows in torch.split(torch.arange(n), max(1, _AT_ONCE // (len(others) * blocks * n))):
        cosines = torch.einsum("bnd,jbmd->jbnm", a[:, rows], others)
        flat, first = cosines.flatten(1), torch.arange(blocks * len(rows)).view(blocks, -1) * n
        for part in torch.split(torch.arange(len(orders)), max(1, _AT_ONCE // (len(flat) * first.numel()))):
            sums[:, part] += flat[:, (first + orders[part][:, :, rows]).flatten(1)].sum(-1)
        places = rows.view(-1, 1).expand(*cosines.shape[:-1], 1)
        place = cosines.gather(-1, places)[..., 0]
        in_place += (place > cosines.scatter_(-1, places, -2.0).amax(-1) + _SAME).sum((1, 2))
    larger = (sums[:, 1:] >= sums[:, :1] - _SAME * blocks * n).sum(1)
    return sums[:, 0].clone(), ((1.0 + larger.double()) / len(orders)).log(), in_place


def _placed(space: WeightSpace, networks: Sequence[Network], given: Network, sizes: Mapping[str, int]) -> set[str]:
    """Nodes along which something varies that is given, and is the same in two networks or more."""
    found = set()
    for name in given.keys() & space.parameters.keys():
        values = [network[name].detach() for network in networks]
        same = given[name].detach() if given[name].shape == values[0].shape else values[0]  # of a narrower sibling
        if sum(torch.equal(x, same.to(x)) for x in values) > 1:
            for piece, x in packing.cut(space, name, same, sizes):
                axes = enumerate(space.axes[piece])
                found |= {a.node for i, a in axes if isinstance(a, Axis) and bool((x != x.narrow(i, 0, 1)).any())}
    return found


def _own(space: WeightSpace, still: Collection[str]) -> dict[str, list[str]]:
    """Node -> the pieces of which it is the last node, and has one axis; nodes in the order of `kinship`, without those
    that stay as they are.
    """
    order = sorted(space.nodes, key=lambda name: len(space.ancestry(name)))
    own: dict[str, list[str]] = {name: [] for name in order if space.nodes[name].permutes and name not in still}
    rank = {name: i for i, name in enumerate(own)}
    for piece, axes in space.axes.items():
        nodes = [axis.node for axis in axes if isinstance(axis, Axis) and axis.node in rank]
        if nodes and nodes.count(last := max(nodes, key=rank.__getitem__)) == 1:
            own[last].append(piece)
    return own


def _vectors(space: WeightSpace, network: Network, name: str, own: Sequence[str], sizes: Mapping[str, int]) -> Tensor:
    """Unit vectors of a node's neurons, or 0: ``(blocks, n, entries)``."""
    parts = []
    for piece in own:
        axes, parameter = space.axes[piece], space.pieces[piece].parameter
        x = dict(packing.cut(space, parameter, network[parameter].detach(), sizes))[piece]
        (i,) = (i for i, axis in enumerate(axes) if isinstance(axis, Axis) and axis.node == name)
        at = paths_of(axes, space.nesting)[i]
        rest = [i for i in range(x.ndim) if i not in at]
        x = x.permute(*at, *rest).reshape(space.count(name, sizes) // sizes[name], sizes[name], -1)
        if x.shape[-1] > (most := max(32, _PRODUCTS // (x.shape[0] * x.shape[1] ** 2 * len(own)))):
            x = x[..., torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(0))[:most].to(x.device)]
        x = x.to("cpu", torch.float64)
        x = x - x.mean(1, keepdim=True)
        parts.append(x * (x.numel() ** 0.5 / (float(x.norm()) or 1.0)))
    vectors = torch.cat(parts, -1)
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / lengths.clamp_min(1e-300)
