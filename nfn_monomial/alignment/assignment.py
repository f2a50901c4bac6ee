"""Which neurons of two networks belong together, given how well each pair fits; nested ones among those of a pair."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nfn_monomial.canonical.charges import Gauge
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix
from nfn_monomial.space.weight_space import WeightSpace


def roots(space: WeightSpace) -> list[str]:
    """Nodes that are permuted and nested in none, in order."""
    return [name for name, node in space.nodes.items() if node.permutes and node.parent is None]


def family(space: WeightSpace, root: str) -> list[str]:
    """A node and all that are nested in it, parents first."""
    return [name for name in space.nodes if root in space.ancestry(name)]


def assign(space: WeightSpace, root: str, fits: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """The places of a family's neurons at which the sum of their fits is largest.

    The fit of two neurons in which others are nested is their own and that of the best assignment inside.

    Args:
        space: the weight space.
        root: of the family.
        fits: node -> ``(neurons, neurons)``: how well a neuron of one network (rows) fits to one of the other.
            Nodes may be left out, of which nothing is known.
        sizes: of all nodes.

    Returns:
        Node -> for every place of the first network the place ``(neurons,)`` of the other's neuron that comes there;
        for a nested node, once the neurons that it is nested in have moved.
    """
    solver = _Solver(space, fits, sizes)
    for name in family(space, root):
        shape = [sizes[above] for above in space.ancestry(name)]
        solver.found[name] = np.arange(math.prod(shape)).reshape(shape)
    solver.keep(root, (), ())
    return {name: torch.from_numpy(found.flatten()) for name, found in solver.found.items()}


def element_of(
    space: WeightSpace,
    sizes: Mapping[str, int],
    *,
    sources: Mapping[str, Tensor] | None = None,
    scales: Mapping[Gauge, Tensor] | None = None,
) -> GroupElement:
    """An element with matrices of all nodes that are permuted, which products of elements need.

    Args:
        space: the weight space.
        sizes: of all nodes.
        sources: node -> for every place ``(neurons,)`` the place of the neuron that comes there, see `assign`.
        scales: gauge -> what it multiplies a node's neurons with, once they have moved, in any shape; 1 by default.
    """
    matrices = {}
    for name, node in space.nodes.items():
        if node.permutes:
            one = torch.ones(space.count(name, sizes), dtype=torch.float64)
            factors = [(scales or {}).get(Gauge(name, i), one).flatten() for i in range(len(node.gauges))]
            if sources is None or name not in sources:
                matrices[name] = MonomialMatrix.diagonal(factors)
            else:
                matrices[name] = MonomialMatrix(factors, sources[name].argsort())
    return GroupElement(space, matrices)


class _Solver:
    def __init__(self, space: WeightSpace, fits: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
        shapes = {name: [sizes[above] for above in space.ancestry(name)] for name in space.nodes}
        self.fits = {name: x.cpu().numpy().reshape(shapes[name] * 2) for name, x in fits.items()}
        self.sizes = sizes
        self.children = {name: [n for n, above in space.nesting.items() if above == name] for name in space.nodes}
        self.found: dict[str, np.ndarray] = {}

    def best(self, node: str, rows: tuple[int, ...], columns: tuple[int, ...]) -> tuple[float, np.ndarray]:
        """The largest sum of fits inside a pair of neurons, and the assignment."""
        from scipy.optimize import linear_sum_assignment

        n = self.sizes[node]
        at: Any = (*rows, slice(None), *columns)
        total = self.fits[node][at] if node in self.fits else np.zeros((n, n))
        if children := self.children[node]:
            inside = [
                [sum(self.best(c, (*rows, i), (*columns, j))[0] for c in children) for j in range(n)] for i in range(n)
            ]
            total = total + np.asarray(inside)
        sources = linear_sum_assignment(total, maximize=True)[1] if n > 1 else np.zeros(1, dtype=np.int64)
        return float(total[np.arange(n), sources].sum()), sources

    def keep(self, node: str, rows: tuple[int, ...], columns: tuple[int, ...]) -> None:
        """Write down the best assignment inside a pair of neurons."""
        sources = self.best(node, rows, columns)[1]
        n = len(sources)
        own = self.found[node]
        own[rows] = own[rows].flat[0] // n * n + sources
        for child in self.children[node]:
            for i, j in enumerate(sources):
                self.keep(child, (*rows, i), (*columns, int(j)))
