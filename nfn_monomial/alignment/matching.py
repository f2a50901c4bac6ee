"""Matches the neurons of two networks: by features that their neighbours give them, or by how well each pair fits.

A match has for every neuron of a, node by node, its place in b (``sources``), before anything has moved. Neurons that
are nested in others are found among those of the one that matches these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from nfn_monomial.canonical.charges import NodeGauge
from nfn_monomial.canonical.neuron_features import Parity, Streams
from nfn_monomial.canonical.signs import sign_bases
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix
from nfn_monomial.space.weight_space import WeightSpace

_ROWS = 1024  # of neurons, compared with all others at a time
_MOST = 4096  # neurons that are assigned to one another where the nearest are taken by several

_Place: TypeAlias = tuple[int, ...]
"""The neurons that some are nested in, the outermost first."""


def element_of(
    space: WeightSpace,
    sizes: Mapping[str, int],
    *,
    sources: Mapping[str, Tensor] | None = None,
    scales: Mapping[NodeGauge, Tensor] | None = None,
) -> GroupElement:
    """Returns an element with matrices of all nodes that are permuted, which products of elements need.

    Neurons come from ``sources``, or stay; once they have moved, each gauge multiplies them with its scales, which have
    any shape, or with 1.
    """
    matrices = {}
    for name, node in space.nodes.items():
        if node.permutes:
            one = torch.ones(space.count(name, sizes), dtype=torch.float64)
            factors = [(scales or {}).get(NodeGauge(name, i), one).flatten() for i in range(len(node.gauges))]
            if sources is None or name not in sources:
                matrices[name] = MonomialMatrix.diagonal(factors)
            else:
                # What a neuron is nested in has moved already.
                n, here = sizes[name], torch.arange(len(one))
                inside = here - here % n + sources[name] % n
                matrices[name] = MonomialMatrix(factors, inside.argsort())
    return GroupElement(space, matrices)


def roots(space: WeightSpace) -> list[str]:
    """Nodes that are permuted and nested in none, in order."""
    return [name for name, node in space.nodes.items() if node.permutes and node.parent is None]


def family(space: WeightSpace, root: str) -> list[str]:
    """A node and all that are nested in it, parents first."""
    return [name for name in space.nodes if root in space.ancestry(name)]


def assignment(fits: Any) -> Any:
    """For each row of ``fits`` a column, each taken once: those at which the sum of fits is largest."""
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(fits, maximize=True)[1]


def assign(space: WeightSpace, root: str, fits: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Returns the places of a family's neurons at which the sum of their fits is largest.

    Fits ``(neurons, neurons)`` say how well a neuron of a (rows) fits to one of b; nodes of which nothing is known may
    have none. The fit of two neurons in which others are nested is their own and that of the best assignment inside.
    """
    shapes = {name: [sizes[above] for above in space.ancestry(name)] for name in fits}
    arrays = {name: x.cpu().numpy().reshape(shapes[name] * 2) for name, x in fits.items()}

    def best(node: str, rows: _Place, columns: _Place) -> tuple[float, dict[str, Any]]:
        """The largest sum of fits of a node's neurons inside a pair of neurons, and the places of all inside it."""
        n = sizes[node]
        at: Any = (*rows, slice(None), *columns)
        total = arrays[node][at] if node in arrays else np.zeros((n, n))
        inside = [
            [[best(child, (*rows, i), (*columns, j)) for j in range(n)] for i in range(n)]
            for child, parent in space.nesting.items()
            if parent == node
        ]
        for pairs in inside:
            total = total + np.asarray([[value for value, _ in row] for row in pairs])
        sources = assignment(total)
        places = {node: sources}
        for pairs in inside:
            chosen = [(j, pairs[i][j][1]) for i, j in enumerate(sources)]
            places |= {name: np.concatenate([j * len(x[name]) + x[name] for j, x in chosen]) for name in chosen[0][1]}
        return float(total[np.arange(n), sources].sum()), places

    return {name: torch.from_numpy(places) for name, places in best(root, (), ())[1].items()}


class Match:
    """The neurons of b that are those of a, by their features (`Refinement`).

    Attributes:
        sources: node -> for every neuron of a its place in b.
        signs: gauge -> the signs ``(neurons,)`` that turn b's features into a's.
    """

    def __init__(
        self, space: WeightSpace, sizes: Mapping[str, int], a: Mapping[str, Streams], b: Mapping[str, Streams]
    ) -> None:
        self.space, self.sizes = space, sizes
        self.sources = _alike(space, a, b, sizes)
        self.signs: dict[NodeGauge, Tensor] = {}
        for name, basis in sign_bases(space).items():
            if not basis.rank:
                continue
            sums: dict[int, Tensor] = {}
            for path, h in a.get(name, {}).items():
                if path in b[name]:
                    fits = (h.flatten(0, -2) * b[name][path].flatten(0, -2)[self.sources[name]]).sum(-1)
                    flips = sum(odd << i for i, odd in enumerate(path[-1]))
                    sums[flips] = sums.get(flips, 0) + fits * self._sign(name, path[:-1])
            ones = torch.ones(basis.rank, space.count(name, sizes), dtype=torch.float64)
            self.signs |= basis.of_gauges(basis.best(sums)[1] if sums else ones)

    def _sign(self, name: str, path: Parity) -> Tensor:
        """The signs of a stream: of a node's neurons, and of those that they are nested in, as far as the path goes."""
        total = torch.ones(len(self.sources[name]), dtype=torch.float64)
        for above, odd in zip(self.space.ancestry(name), path, strict=False):
            for i, flips in enumerate(odd):
                if flips and (sign := self.signs.get(NodeGauge(above, i))) is not None:
                    total = total * sign.repeat_interleave(len(total) // len(sign))
        return total

    def carried(self, a: Mapping[str, Streams]) -> dict[str, Streams]:
        """The features of a, for the neurons of b that match."""
        carried: dict[str, Streams] = {name: {} for name in a}
        for name, streams in a.items():
            places = self.sources[name].argsort()
            for path, h in streams.items():
                signed = h.flatten(0, -2) * self._sign(name, path)[:, None]
                carried[name][path] = signed[places].reshape(h.shape)
        return carried

    def changes(self, other: Match) -> int:
        """The number of neurons that another match has in another place, or with another sign."""
        pairs = [(x, other.sources[name]) for name, x in self.sources.items()]
        pairs += [(x, other.signs[gauge]) for gauge, x in self.signs.items()]
        return sum(int((x != y).sum()) for x, y in pairs)

    def element(self) -> GroupElement:
        """The element that brings b's neurons to the places and signs of a's."""
        return element_of(self.space, self.sizes, sources=self.sources, scales=self.signs)


def _alike(
    space: WeightSpace, a: Mapping[str, Streams], b: Mapping[str, Streams], sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """Node -> for every neuron of a the place of b's that is most like it, among those of a parent's like one."""
    sources: dict[str, Tensor] = {}
    for name in sorted(space.nodes, key=lambda name: len(space.ancestry(name))):
        n, above = sizes[name], space.nesting.get(name)
        one, other = (_colours(space, x, name, sizes) for x in (a, b))
        blocks = torch.arange(len(one)) if above is None else sources[above]
        inside = torch.arange(n).expand(len(one), n)
        if space.nodes[name].permutes and one.shape[-1]:
            inside = torch.stack([_nearest(one[i], other[block]) for i, block in enumerate(blocks.tolist())])
        sources[name] = (inside + n * blocks[:, None]).flatten()
    return sources


def _colours(space: WeightSpace, streams: Mapping[str, Streams], name: str, sizes: Mapping[str, int]) -> Tensor:
    """Features of a node's neurons that no sign changes, ``(blocks, n, colours)``, and means over neurons inside."""
    parts = [h.flatten(0, -2) for path, h in streams.get(name, {}).items() if not any(map(any, path))]
    inner = [child for child, parent in space.nesting.items() if parent == name]
    parts += [_colours(space, streams, child, sizes).mean(1) for child in inner]
    n = sizes[name]
    colours = torch.cat([torch.zeros(space.count(name, sizes), 0, dtype=torch.float64), *parts], -1)
    return colours.reshape(len(colours) // n, n, colours.shape[-1])


def _nearest(a: Tensor, b: Tensor) -> Tensor:
    """For each of a's rows the nearest row of b, each taken once: those that several rows want are assigned to them."""
    nearest = torch.cat([torch.cdist(rows, b).argmin(-1) for rows in torch.split(a, _ROWS)])
    wanted = torch.bincount(nearest, minlength=len(b))
    rows, free = (wanted[nearest] > 1).nonzero()[:, 0], (wanted != 1).nonzero()[:, 0]
    if 0 < len(rows) <= _MOST:
        free = free[torch.from_numpy(assignment(-torch.cdist(a[rows], b[free]).numpy()))]
    nearest[rows] = free  # beyond that number neurons are too alike: no symmetry turns one network into the other
    return nearest
