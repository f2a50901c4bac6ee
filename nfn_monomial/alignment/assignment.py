"""Which neurons of two networks belong together, given how well each pair fits; nested ones among those of a pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from nfn_monomial.canonical.charges import Gauge
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix
from nfn_monomial.space.weight_space import WeightSpace

_Place: TypeAlias = tuple[int, ...]
"""The neurons that some are nested in, the outermost first."""


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
    shapes = {name: [sizes[above] for above in space.ancestry(name)] for name in fits}
    arrays = {name: x.cpu().numpy().reshape(shapes[name] * 2) for name, x in fits.items()}
    places = _best(space, arrays, sizes, root, (), ())[1]
    return {name: torch.from_numpy(places[name]) for name in family(space, root)}


def _best(
    space: WeightSpace, fits: Mapping[str, Any], sizes: Mapping[str, int], node: str, rows: _Place, columns: _Place
) -> tuple[float, dict[str, Any]]:
    """The largest sum of fits of a node's neurons inside a pair of neurons, and the places of all that are in there."""
    from scipy.optimize import linear_sum_assignment

    n = sizes[node]
    at: Any = (*rows, slice(None), *columns)
    total = fits[node][at] if node in fits else np.zeros((n, n))
    inside = {
        child: [[_best(space, fits, sizes, child, (*rows, i), (*columns, j)) for j in range(n)] for i in range(n)]
        for child, parent in space.nesting.items()
        if parent == node
    }
    for pairs in inside.values():
        total = total + np.asarray([[value for value, _ in row] for row in pairs])
    sources = linear_sum_assignment(total, maximize=True)[1] if n > 1 else np.zeros(1, dtype=np.int64)
    places = {node: sources}
    for pairs in inside.values():
        chosen = [pairs[i][j][1] for i, j in enumerate(sources)]
        places |= {
            name: np.concatenate([i * len(x[name]) + x[name] for i, x in enumerate(chosen)]) for name in chosen[0]
        }
    return float(total[np.arange(n), sources].sum()), places


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
