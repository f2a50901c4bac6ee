"""Who is related to whom: distances of many networks once symmetry is taken out, and the tree that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from nfn_monomial import align, balance
from nfn_monomial.alignment import kinship
from nfn_monomial.alignment.kinship import related as related_networks
from nfn_monomial.alignment.places import LOOKED_FOR
from nfn_monomial.alignment.rounding import differing
from nfn_monomial.alignment.verdict import Level, Verdict
from nfn_monomial.fibre import align_fibres
from nfn_monomial.space import packing
from nfn_monomial.tools.definitions.loading import tensors_of
from nfn_monomial.tools.report import Table
from nfn_monomial.tools.results import Progress, silent
from nfn_monomial.tools.store import Store

from .figures import draw_family
from .findings import Finding
from .judging import judged
from .networks import Network

__all__ = ["family_of", "placed_by_class", "told_places"]

KEPT = "distances-2"  # the number is raised when distances are computed in another way
_SURPRISING = 0.05  # corrected p-values of pairs that are told
_PLACED = 1e-3  # p-values of a network and one with new weights that are told
_NEAR = 0.1  # distances from which on two are not asked whether they are the same function
_FAR = Verdict(Level.UNKNOWN, "")
_NAMED = 4  # nodes, where several are told


def family_of(
    networks: Sequence[Network], seed: int = 0, store: Store | None = None, progress: Progress = silent
) -> Finding:
    """Distances between all pairs of three networks or more, and their tree; a store keeps each pair.

    Networks with equal fingerprints that are the same function are found first: each but the first of them is at the
    distance 0 from that, and not aligned with others. All others are balanced, so that scales are those of the
    canonical form, then each two aligned by permutations and signs; or by all that leaves their functions as they are,
    where that is known to be more (`align_fibres`). Pairs that are the same function then are said to be. Pairs whose
    neurons stand in the same places are told with their p-values (`kinship`), which Holm's method corrects for the
    number of pairs.

    The distance is ``||a - b|| / sqrt(||a||^2 + ||b||^2)`` over the tensors that join neurons (weights, without biases,
    gains and statistics), which is the same whichever is moved: 0 for equal functions, 1 for networks at right angles.
    Where that is larger, it is the distance of a tensor that no symmetry moves, such as a mask. The tree joins the
    nearest clusters first, by the mean distance of their members (UPGMA).
    """
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    space = networks[0].space
    rigid = space.restricted("sign")
    names = [link.parameter for link in space.links if len(link.ends) > 1]
    weights = list(dict.fromkeys(space.pieces[name].parameter for name in names)) or list(space.parameters)
    form, labels = networks[0].form, [network.label for network in networks]
    prints = [network.fingerprint() for network in networks]
    first, equal = _firsts(networks, prints, seed)
    kept = sorted(set(first))
    balanced: dict[int, Mapping[str, Tensor]] = {}
    for i in kept if form is None else ():
        network = networks[i]
        tensors = {name: packing.without_dead(space, name, t, network.sizes) for name, t in network.items()}
        found, _ = balance({name: t.double()[None, None] for name, t in tensors.items()}, space)
        balanced[i] = {name: t[0, 0] for name, t in found.items()}
    count = len(networks)
    distances, verdicts = np.zeros((count, count)), dict[tuple[int, int], Verdict]()
    for n, i in enumerate(kept):
        row, _ = (store.get(f"{KEPT}-{i}") if store else None) or ([], {})
        for m, j in enumerate(kept[:n]):
            if m == len(row):
                one, other = networks[j], networks[i]
                if form is None:
                    pair = balanced[j], align(rigid, balanced[j], balanced[i], seed=seed).aligned
                else:
                    near = align_fibres(form, dict(one), dict(other), seed=seed)
                    pair = {**one, **near[0]}, {**other, **near[1]}  # with what stays as it is
                distance = max(_distance(*pair, weights), _unmoved_distance(one, other))
                verdict = judged(one, other, seed, thorough=False).verdict if distance < _NEAR else _FAR
                row.append([distance, *verdict])
                if store is not None:
                    store.put(f"{KEPT}-{i}", row, {})
            distances[i, j] = distances[j, i] = row[m][0]
            verdicts[j, i] = Verdict(Level(row[m][1]), row[m][2])
            progress(n * (n - 1) // 2 + m + 1, len(kept) * (len(kept) - 1) // 2)
    distances = distances[np.ix_(first, first)]

    def verdict_of(i: int, j: int) -> Verdict:
        if first[i] == first[j]:
            return equal.get(j) or equal[i]
        return verdicts[min(first[i], first[j]), max(first[i], first[j])]

    said = {(labels[i], labels[j]): verdict_of(i, j) for j in range(count) for i in range(j)}
    alike = {level: sorted(sorted(pair) for pair, verdict in said.items() if verdict.level == level) for level in Level}
    kin = related_networks(space, dict(zip(labels, networks, strict=True)), 999, seed, networks[0].definition.given)
    related = _related(labels, kin.p_values.numpy())
    merges = linkage(squareform(distances), "average").tolist()
    links = _links(labels, distances)
    lines = [f"{count} networks; the nearest relatives first:"]
    for link in links:
        verdict = said.get((link["a"], link["b"])) or said[link["b"], link["a"]]
        words = f", {verdict.words}" if verdict.level < Level.UNKNOWN else ""
        lines.append(f"  {link['a']} - {link['b']}: {link['distance']:.3g}{words}")
    lines += [
        f"Too alike, place by place, to have been trained apart: {', '.join(family)}." for family in related["families"]
    ]
    lines.append(
        f"That is {len(related['pairs'])} of {count * (count - 1) // 2} pairs; a false one is in fewer than 1 of "
        "20 folders. Networks whose neurons were permuted are not seen by it."
    )
    if kin.places:
        told = told_places({node: what for found in kin.places.values() for node, what in found.items()})
        lines.append(f"Left out of p-values, for {len(kin.places)} of the pairs, are {told}.")
    if related["pairs"]:
        lines.append(f"They hold if first weights treat neurons alike: looked for, and not seen, were {LOOKED_FOR}.")
    kindred = {label for pair in related["pairs"] for label in (pair["a"], pair["b"])}
    lines += placed_by_class([network for network in networks if network.label in kindred][:2], seed)
    lines += networks[0].why_no_form()
    beside = {tuple(networks[0].differences(network)): network.label for network in networks[:0:-1]}
    lines += [
        f"Beside the weights {labels[0]} and {label} differ in what reaches their functions: {'; '.join(found[:6])}."
        for found, label in beside.items()
        if found
    ]
    clusters: list[dict[str, Any]] = [{"name": label} for label in labels]
    for a, b, distance, _ in merges:
        clusters.append({"distance": distance, "parts": [clusters[int(a)], clusters[int(b)]]})
    results = {
        "network": networks[0].definition.name,
        "members": {
            network.label: {"path": str(network.checkpoint.path), "fingerprint": fingerprint}
            for network, fingerprint in zip(networks, prints, strict=True)
        },
        "distances": distances.tolist(),
        "same_function": alike[Level.SAME],
        "within_rounding": alike[Level.ROUNDING],
        "kinship": related,
        "links": links,
        "tree": clusters[-1],
    }
    note = (
        "Distances of weights once symmetry is taken out: 0 for the same function, 1 for networks at right angles. "
        "They say who is related; which one came first they do not say."
    )
    told = "How likely a pair of all those of the folder would be as alike, place by place, if all were trained apart."

    def matrix(title: str, values: Any, form: str, note: str) -> Table:
        rows = enumerate(zip(labels, values, strict=True), 1)
        cells = tuple((f"{i} {label}", *(format(x, form) for x in row)) for i, (label, row) in rows)
        return Table(title, ("", *map(str, range(1, count + 1))), cells, notes=(note,))

    corrected = related["corrected"]
    tables = [matrix("Distances", distances, ".3f", note)]
    tables += [matrix("P-values of kinship", corrected, ".1g", told)] * bool(related["pairs"])

    def draw() -> dict[str, Figure | str]:
        return {"family.png": draw_family(labels, distances.tolist(), merges, np.asarray(corrected) <= _SURPRISING)}

    return Finding(tuple(networks), "\n".join(lines), results, tables, draw)


def placed_by_class(relatives: Sequence[Network], seed: int) -> list[str]:
    """In words, if one of these networks is as alike to one with new weights: then p-values do not say what they seem.

    This is so where initial weights are not alike for all neurons, or where all have the same.
    """
    for network in relatives:
        if network.runs:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(torch.iinfo(torch.int64).max - seed)  # which nobody else takes
                fresh = {k: t.detach() for k, t in tensors_of(network.definition.template()).items()}
            given = network.definition.given
            if (p := kinship(network.space, fresh, network, seed=seed, given=given).p_value) <= _PLACED:
                return [
                    f"But the network that {network.definition.name} builds is so like {network.label}, too (p = "
                    f"{p:.2g}). Either {network.label} was made from its weights, or neurons have places of their own "
                    "in this architecture: then p-values of kinship say nothing."
                ]
    return []


def told_places(places: Mapping[str, str]) -> str:
    """Nodes whose neurons have places of their own, and what shows it, in words."""
    of: dict[str, list[str]] = {}
    for node, what in places.items():
        of.setdefault(what, []).append(node)
    told = "; ".join(
        f"{', '.join(nodes[:_NAMED])}{f' and {len(nodes) - _NAMED} more' * (len(nodes) > _NAMED)}: {what}"
        for what, nodes in of.items()
    )
    return f"neurons with places of their own, which training apart leaves alike, too ({told})"


def _firsts(
    networks: Sequence[Network], prints: Sequence[str | None], seed: int
) -> tuple[list[int], dict[int, Verdict]]:
    """Of each network the number of the first that is the same function and has its fingerprint, or, like it, none.

    And of each but the first ones the verdict on the two.
    """
    known: dict[str | None, list[int]] = {}
    firsts, verdicts = [], {}
    for i, (network, fingerprint) in enumerate(zip(networks, prints, strict=True)):
        alike = known.setdefault(fingerprint, [])
        for k in alike:
            verdict = judged(networks[k], network, seed, thorough=False).verdict
            if verdict.level == Level.SAME:
                verdicts[i] = verdict
                firsts.append(k)
                break
        else:
            alike.append(i)
            firsts.append(i)
    return firsts, verdicts


def _related(labels: Sequence[str], p: Any) -> dict[str, Any]:
    """P-values, those that Holm's method corrects for their number, pairs for which these are at most 0.05, and sets of
    networks that such pairs join.
    """
    from scipy.sparse.csgraph import connected_components

    i, j = np.tril_indices(len(labels), -1)
    order = np.argsort(p[i, j], kind="stable")
    i, j, corrected = i[order], j[order], np.ones_like(p)
    steps = np.maximum.accumulate(p[i, j] * np.arange(len(order), 0, -1)).clip(max=1.0)
    corrected[i, j] = corrected[j, i] = steps
    pairs = [
        {"a": labels[y], "b": labels[x], "p_value": float(p[x, y]), "corrected": float(corrected[x, y])}
        for x, y in zip(i.tolist(), j.tolist(), strict=True)
        if corrected[x, y] <= _SURPRISING
    ]
    number = connected_components(corrected <= _SURPRISING)[1]
    sets = [[label for label, n in zip(labels, number, strict=True) if n == k] for k in range(max(number) + 1)]
    families = [found for found in sets if len(found) > 1]
    return {"p_values": p.tolist(), "corrected": corrected.tolist(), "pairs": pairs, "families": families}


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
