"""Who is related to whom: distances of many networks once symmetry is taken out, and the tree that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from nfn_monomial import align, balance
from nfn_monomial.alignment.rounding import differing
from nfn_monomial.fibre import align_fibres, compare_fibres
from nfn_monomial.space import packing
from nfn_monomial.tools.calls import ALONE, Call
from nfn_monomial.tools.report import Table

from .figures import draw_family
from .findings import Finding
from .networks import Network

__all__ = ["family_of"]

_NEAR = 0.1  # distances from which on two are not the same function


def family_of(networks: Sequence[Network], *, seed: int = 0, call: Call = ALONE) -> Finding:
    """Distances between all pairs of three networks or more, and their tree; a call keeps a row after each pair.

    All networks are balanced, so that scales are those of the canonical form, then each two aligned by permutations and
    signs; or by all that leaves their functions as they are, where that is known to be more (`align_fibres`). Pairs
    that are the same function then are said to be. The distance is ``||a - b|| / sqrt(||a||^2 + ||b||^2)`` over the
    tensors that join neurons (weights, without biases, gains and statistics), which is the same whichever is moved: 0
    for equal functions, 1 for networks at right angles. Where that is larger, it is the distance of a tensor that no
    symmetry moves, such as a mask. The tree joins the nearest clusters first, by the mean distance of their members
    (UPGMA).
    """
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    space = networks[0].space
    rigid = space.restricted("sign")
    names = [link.parameter for link in space.links if len(link.ends) > 1]
    weights = list(dict.fromkeys(space.pieces[name].parameter for name in names)) or list(space.parameters)
    form, labels = networks[0].form, [network.label for network in networks]
    balanced: list[Mapping[str, Tensor]] = []
    for network in networks if form is None else ():
        tensors = {name: packing.without_dead(space, name, t, network.sizes) for name, t in network.items()}
        found, _ = balance({name: t.double()[None, None] for name, t in tensors.items()}, space)
        balanced.append({name: t[0, 0] for name, t in found.items()})
    count = len(networks)
    distances, equal = np.zeros((count, count)), []
    for i in range(1, count):
        row, _ = call.get(f"distances-{i}") or ([], {})
        for j in range(i):
            if j == len(row):
                one, other = networks[j], networks[i]
                if form is None:
                    pair = balanced[j], align(rigid, balanced[j], balanced[i], seed=seed).aligned
                else:
                    near = align_fibres(form, dict(one), dict(other), seed=seed)
                    pair = {**one, **near[0]}, {**other, **near[1]}  # with what stays as it is
                distance = max(_distance(*pair, weights), _unmoved_distance(one, other))
                same = form is not None and distance < _NEAR and not differing(one.unmoved, other.unmoved)
                if same and form is not None:
                    same = compare_fibres(form, dict(one), dict(other), seed=seed).same_function
                row.append([distance, same])
                call.put(f"distances-{i}", row, {})
            call.progress(i * (i - 1) // 2 + j + 1, count * (count - 1) // 2)
        distances[i, :i] = distances[:i, i] = [distance for distance, _ in row]
        equal += [{labels[i], labels[j]} for j, (_, same) in enumerate(row) if same]
    merges = linkage(squareform(distances), "average").tolist()
    links = _links(labels, distances)
    lines = [f"{count} networks; the nearest relatives first:"]
    for link in links:
        said = ", the same function: their normal forms are equal" * ({link["a"], link["b"]} in equal)
        lines.append(f"  {link['a']} - {link['b']}: {link['distance']:.3g}{said}")
    lines += networks[0].why_no_form()
    clusters: list[dict[str, Any]] = [{"name": label} for label in labels]
    for a, b, distance, _ in merges:
        clusters.append({"distance": distance, "parts": [clusters[int(a)], clusters[int(b)]]})
    results = {
        "network": networks[0].definition.name,
        "members": {
            network.label: {"path": str(network.checkpoint.path), "fingerprint": network.fingerprint()}
            for network in networks
        },
        "distances": distances.tolist(),
        "same_function": None if form is None else [sorted(pair) for pair in equal],
        "links": links,
        "tree": clusters[-1],
    }
    rows = zip(labels, distances, strict=True)
    cells = [(f"{i} {label}", *(f"{x:.3f}" for x in row)) for i, (label, row) in enumerate(rows, 1)]
    note = (
        "Distances of weights once symmetry is taken out: 0 for the same function, 1 for networks at right angles. "
        "They say who is related; which one came first they do not say."
    )
    table = Table("Distances", ("", *map(str, range(1, count + 1))), tuple(cells), notes=(note,))

    def draw() -> dict[str, Figure | str]:
        return {"family.png": draw_family(labels, distances.tolist(), merges)}

    return Finding(tuple(networks), "\n".join(lines), results, [table], draw)


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor], names: Sequence[str]) -> float:
    """``||a - b|| / sqrt(||a||^2 + ||b||^2)`` over some tensors."""
    pairs = [(a[name].double(), b[name].double()) for name in names]
    apart, size = (
        sum(float(part.square().sum()) for part in parts)
        for parts in ((x - y for x, y in pairs), (part for pair in pairs for part in pair))
    )
    return float((apart / (size or 1.0)) ** 0.5)


def _links(labels: Sequence[str], distances: Any) -> list[dict[str, Any]]:
    """The shortest ways that join all networks, the nearest first."""
    from scipy.sparse.csgraph import minimum_spanning_tree

    # Edges of 0 are none to scipy, and shifting all of them alike leaves the tree as it is.
    tree = minimum_spanning_tree(distances + 1.0).tocoo()
    pairs = [sorted(pair) for pair in zip(tree.row.tolist(), tree.col.tolist(), strict=True)]
    links = [{"a": labels[i], "b": labels[j], "distance": float(distances[i, j])} for i, j in pairs]
    return sorted(links, key=lambda link: float(link["distance"]))


def _unmoved_distance(a: Network, b: Network) -> float:
    """The largest distance of two tensors that no symmetry moves, relative as those of networks; 1 of one alone."""
    distances = [0.0]
    for key in differing(a.unmoved, b.unmoved):
        both = [network.unmoved[key].double() for network in (a, b) if key in network.unmoved]
        distances.append(float((both[0] - both[1]).norm() / torch.stack(both).norm()) if len(both) == 2 else 1.0)
    return max(distances)
