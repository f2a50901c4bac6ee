"""The likeness of two networks, as a p-value: neurons in their places, against the same neurons in random orders.

Neurons have no order of their own: training treats all neurons of a node alike, so every order of the neurons of a
network B that has nothing to do with A is as likely as the one at hand. Where B was made from A, neurons are where they
were in A. This is the null hypothesis and the idea of the constrained tests of Zhu et al., *Independence Tests for
Language Models* (ICML 2025), for any group of permutations.
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
from nfn_monomial.space.axes import Axis
from nfn_monomial.space.weight_space import WeightSpace

from .networks import Network, sizes_of
from .places import (
    COUNTED,
    SURE,
    Reasons,
    count_bound,
    fisher,
    marked,
    pieces_by_node,
    places_in,
    places_in_both,
    rows_of,
    unit_vectors,
)

_DOUBTFUL = 0.05  # p-values up to which places of neurons are looked for
_LEAST_SURE = 2e-3  # p-values of places beyond which these are not said to be there
_SAME = 1e-9  # differences of cosines that count as none: neurons may be twins
_LEAST = 1e-300  # p-values below are said to be this
_WORK = 10_000_000  # neurons that are put in order for a node: of wide nodes fewer orders are drawn
_PRODUCTS = 10_000_000_000  # of two entries, of a node of two networks: of larger parameters some entries are looked at
_AT_ONCE = 4_000_000  # numbers that are held together


class NodeKinship(NamedTuple):
    """Kinship by the neurons of one node.

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
    """Kinship of two networks, by `kinship`.

    Attributes:
        p_value: a bound on the probability that networks that were trained apart are as alike; 1 without ``nodes``.
        in_place: neurons of a that are nearer to b's in their own place than to all others.
        expected: a bound on their mean number in random orders: one for each set of neurons that is ordered.
        neurons: how many neurons were looked at.
        nodes: node -> kinship by its neurons; empty where nothing can be tested, because no node has two neurons that
            may be permuted.
        places: nodes that were left out, as their neurons have places of their own -> what shows it, in words.
    """

    p_value: float
    in_place: int = 0
    expected: int = 0
    neurons: int = 0
    nodes: dict[str, NodeKinship] = field(default_factory=dict)
    places: Reasons = field(default_factory=dict)


class _Node(NamedTuple):
    """One node of many pairs: sums of cosines, logarithms of p-values and neurons in place, each ``(pairs,)``."""

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
    """Returns a p-value for "networks a and b were trained independently", from the order of their neurons.

    **Assumed** is that the law of one of the networks is the same for all orders of its neurons: ``g.B ~ B`` for all
    permutations ``g`` of the group. This holds where all neurons of a node are initialised alike, and trained by
    anything that treats them alike (gradient descent, Adam, weight decay, dropout), on whatever data, also the same.
    If then a and b are independent, ``P(p <= x) <= x`` for all x, whatever a is. Networks that start from the same
    weights, or the same seed, are not independent. An order that was imposed afterwards breaks the assumption: neurons
    that were sorted, or moved next to those of the other network (`align`). So do initial weights that are not alike
    for all neurons, and tensors that are not learned, such as a table of sines that is added to a stream, or a mask.

    **Looked for**, therefore, where the p-value is 0.05 or less, is anything that gives neurons places of their own. In
    each network: likeness to an identity, a reversed one, a Hadamard matrix (Sylvester's), cosines (of the discrete
    cosine transform) and sines (of positions); neighbours that are alike, also but for signs, for a step along the
    diagonal, or in how they change from column to column (blocks, bands, steps). In both: zeros, and entries that are
    half of their row or more, in the same places. Each is compared with random orders of one node's neurons, so
    networks whose neurons were treated alike have each of them in a node with a probability of at most 1e-4, or 2e-3
    where the p-value is no smaller than half of that. Nodes along which one is found stay as they are (``places`` names
    them), and the p-value is that of the others, which is as exact. So do nodes along which something varies that is
    ``given``, and is the same in two networks. An order that looks like no order, as a random matrix that all training
    runs start from, is not seen: to this test they are relatives, from the same first weights.

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

    Everything is computed on the CPU in float64, by some entries of large parameters, the same in both networks.

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
        TypeError: for anything but a mapping to floating point tensors.

    >>> space = WeightSpace.mlp([8, 32, 4], "relu")
    >>> a, b = ({name: torch.randn(shape) for name, shape in space.shapes().items()} for _ in range(2))
    >>> tuned = {name: t + 0.1 * torch.randn_like(t) for name, t in a.items()}
    >>> kinship(space, a, tuned).p_value < 1e-20 < kinship(space, a, b).p_value
    True
    """
    pair = related(space, {"a": a, "b": b}, draws, seed, given or {})
    nodes = {
        n.name: NodeKinship(float(n.sums[0]) / n.neurons, float(n.logs[0].exp()), int(n.in_place[0]), n.neurons)
        for n in pair.nodes
    }
    return Kinship(
        p_value=float(pair.p_values[1, 0]),
        in_place=sum(n.in_place for n in nodes.values()),
        expected=sum(n.blocks for n in pair.nodes),
        neurons=sum(n.neurons for n in pair.nodes),
        nodes=nodes,
        places=pair.places.get((1, 0), {}),
    )


@checked
def kinships(
    space: WeightSpace, networks: Sequence[Network], *, draws: Count = 999, seed: Seed = 0, given: Network | None = None
) -> Tensor:
    """Returns p-values of all pairs of networks ``(N, N)``, float64, 1 on the diagonal; arguments as of `kinship`.

    Nodes whose neurons have places of their own in one of two networks are left out for this pair.

    P-values of one network depend on one another. Control of false discoveries (Benjamini-Hochberg) is proved for such
    dependence only with the factor of Benjamini-Yekutieli; Holm's correction holds in any case.
    """
    if len(networks) < 2:
        raise InvalidValueError(f"kinships needs two networks or more, found {len(networks)}")
    labelled = {f"networks[{i}]": network for i, network in enumerate(networks)}
    return related(space, labelled, draws, seed, given or {}).p_values


class Related(NamedTuple):
    """Kinship of all pairs of networks, by `related`.

    Attributes:
        p_values: of all pairs ``(N, N)``, 1 on the diagonal.
        places: pair (i, j < i) -> nodes that were left out, as their neurons have places of their own, and what shows
            it.
        nodes: each node's numbers for the pairs that were looked at last: all, if there is one.
    """

    p_values: Tensor
    places: dict[tuple[int, int], Reasons]
    nodes: list[_Node]


@torch.no_grad()
def related(space: WeightSpace, networks: Mapping[str, Network], draws: int, seed: int, fixed: Network) -> Related:
    """Tests all pairs; those of small p-values again, without the nodes whose neurons have places of their own.

    Args:
        space: the weight space.
        networks: label -> network.
        draws: as of `kinship`.
        seed: as of `kinship`.
        fixed: tensors that are not learned, ``given`` of `kinship`.
    """
    sizes, every = sizes_of(space, networks), list(networks.values())
    still = {name for name, size in sizes.items() if size < 2} | _fixed(space, every, fixed, sizes)
    values = torch.ones(len(every), len(every), dtype=torch.float64)

    def tested(pairs: Sequence[tuple[int, int]], still: Collection[str]) -> list[_Node]:
        nodes = list(_nodes(space, every, pairs, sizes, still, draws, seed))
        i, j = torch.tensor(pairs).T
        values[i, j] = values[j, i] = _joined(nodes) if nodes else 1.0
        return nodes

    pairs = [(i, j) for i in range(len(every)) for j in range(i)]
    nodes = tested(pairs, still)
    reasons: dict[int, Reasons] = {}
    with_marks: set[int] = set()
    places: dict[tuple[int, int], Reasons] = {}
    pairs_without: dict[frozenset[str], list[tuple[int, int]]] = {}
    # What is as surprising in a network as the likeness of two may be the reason for that.
    sure = min(max(SURE, 2 * float(values.min())), _LEAST_SURE)
    for i, j in pairs:
        if float(values[i, j]) <= _DOUBTFUL:
            for k in {i, j} - reasons.keys():
                reasons[k] = places_in(space, every[k], sizes, still, sure)
                with_marks |= {k} if marked(space, every[k], sizes, still) else set()
            of_pair = reasons[i] | reasons[j]
            if {i, j} <= with_marks:
                of_pair |= places_in_both(space, every[i], every[j], sizes, {*still, *of_pair}, sure)
            if of_pair:
                places[i, j] = of_pair
                pairs_without.setdefault(frozenset(of_pair), []).append((i, j))
    for left_out, same in pairs_without.items():
        nodes = tested(same, still | left_out)
    return Related(values, places, nodes)


def partnership(x: Tensor, y: Tensor) -> float | None:
    """Returns the likeness of two networks' neurons by their activations, each beside its partner, from 0 to 1.

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
    by_sums = fisher(torch.stack([n.logs for n in nodes]))
    count = torch.stack([n.in_place for n in nodes]).sum(0).double()
    by_count = count_bound(count, sum(n.blocks for n in nodes))
    best = torch.minimum(by_sums - math.log1p(-COUNTED), by_count - math.log(COUNTED))
    return best.exp().clamp(_LEAST, 1.0)


def _nodes(
    space: WeightSpace,
    networks: Sequence[Network],
    pairs: Sequence[tuple[int, int]],
    sizes: Mapping[str, int],
    still: Collection[str],
    draws: int,
    seed: int,
) -> Iterator[_Node]:
    """Tests each node of pairs of networks, which are in order."""
    generator = torch.Generator().manual_seed(seed)
    needed = sorted({k for pair in pairs for k in pair})
    number = {k: n for n, k in enumerate(needed)}
    others = {i: torch.tensor([number[j] for k, j in pairs if k == i]) for i in dict.fromkeys(i for i, _ in pairs)}
    for name, pieces in pieces_by_node(space, still).items():
        n, all_of = sizes[name], space.count(name, sizes)
        vectors = torch.stack([_vectors(space, networks[k], name, pieces, sizes) for k in needed])
        count = max(min(draws, _WORK // all_of), min(draws, 199))
        orders = torch.rand(count, all_of // n, n, generator=generator).argsort(-1)
        orders = torch.cat([torch.arange(n).expand(1, all_of // n, n), orders])
        results = [
            _beside(vectors[number[i]], vectors[part], orders)
            for i, of in others.items()
            for part in torch.split(of, max(1, _AT_ONCE // (all_of * n)))
        ]
        yield _Node(name, all_of // n, all_of, *(torch.cat(parts) for parts in zip(*results, strict=True)))


def _beside(a: Tensor, others: Tensor, orders: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums, logarithms of p-values, and neurons in place, of a and each other ``(blocks, n, entries)``.

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


def _fixed(space: WeightSpace, networks: Sequence[Network], fixed: Network, sizes: Mapping[str, int]) -> set[str]:
    """Nodes along which a tensor varies that is not learned, and is the same in two networks or more."""
    nodes = set()
    for name in fixed.keys() & space.parameters.keys():
        values = [network[name].detach() for network in networks]
        same = fixed[name].detach() if fixed[name].shape == values[0].shape else values[0]  # of a narrower sibling
        if sum(torch.equal(x, same.to(x)) for x in values) > 1:
            for piece, x in packing.cut(space, name, same, sizes):
                axes = enumerate(space.axes[piece])
                nodes |= {a.node for i, a in axes if isinstance(a, Axis) and bool((x != x.narrow(i, 0, 1)).any())}
    return nodes


def _vectors(
    space: WeightSpace, network: Network, name: str, pieces: Sequence[str], sizes: Mapping[str, int]
) -> Tensor:
    """Unit vectors of a node's neurons, or 0: ``(blocks, n, entries)``."""
    parts = []
    for x in rows_of(space, network, name, pieces, sizes):
        x = x.flatten(2)
        if x.shape[-1] > (most := max(32, _PRODUCTS // (x.shape[0] * x.shape[1] ** 2 * len(pieces)))):
            x = x[..., torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(0))[:most].to(x.device)]
        parts.append(x.to("cpu", torch.float64))
    return unit_vectors(parts)
