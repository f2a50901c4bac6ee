"""Kinship of many networks: their distances once symmetry is taken out, and the tree that these make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from nfn_monomial import align, balance
from nfn_monomial.alignment.kinship import related as related_networks
from nfn_monomial.alignment.places import LOOKED_FOR
from nfn_monomial.alignment.rounding import differing
from nfn_monomial.alignment.verdict import Level, Verdict
from nfn_monomial.fibre import align_fibres
from nfn_monomial.space import packing
from nfn_monomial.tools.report import Table
from nfn_monomial.tools.results import Progress, silent
from nfn_monomial.tools.store import Store

from .figures import draw_family
from .finding import Finding
from .networks import Network
from .pairs import SURPRISING, judge_pair, placed_by_class, places_in_words

__all__ = ["compare_family"]

KEPT = "distances-2"  # the number is raised when distances are computed in another way
NEAR = 0.1  # distance below which two networks may be the same function


def compare_family(
    networks: Sequence[Network], seed: int = 0, store: Store | None = None, progress: Progress = silent
) -> Finding:
    """Computes the distances between all pairs of three networks or more, and their tree; a store keeps each pair.

    Networks with equal fingerprints that are the same function are detected first: each but the first of them is at
    the distance 0 from that, and not aligned with others. All others are balanced, so that scales are those of the
    canonical form, and then aligned in pairs by permutations and signs; or by all that leaves their functions as they
    are, if more is known (`align_fibres`). Pairs of neighbours are reported if they are the same function. Pairs whose
    neurons are in the same places are reported with their p-values (`kinship`), which Holm's method corrects for the
    number of pairs.

    The distance is ``||a - b|| / sqrt(||a||^2 + ||b||^2)`` over the tensors that join neurons (weights, without biases,
    gains and statistics), which is the same whichever is moved: 0 for equal functions, 1 for networks at right angles.
    If a tensor that no symmetry moves, such as a mask, has a larger distance, that counts. The tree joins the nearest
    clusters first, by the mean distance of their members (UPGMA).
    """
    from scipy.cluster.hierarchy import linkage
    from scipy.sparse.csgraph import minimum_spanning_tree
    from scipy.spatial.distance import squareform

    space, labels, count = networks[0].space, [network.label for network in networks], len(networks)
    prints = [network.fingerprint() for network in networks]
    distances, verdict_of = _distances(networks, prints, seed, store, progress)
    verdicts = {(labels[i], labels[j]): verdict_of[i, j] for j in range(count) for i in range(j)}
    alike = {
        level: sorted(sorted(pair) for pair, verdict in verdicts.items() if verdict.level == level) for level in Level
    }
    unlearned = networks[0].definition.unlearned
    kin = related_networks(space, dict(zip(labels, networks, strict=True)), 999, seed, unlearned)
    kinship = _kinship_to_json(labels, kin.p_values.numpy())
    related, corrected = kinship["pairs"], kinship["corrected"]
    merges = linkage(squareform(distances), "average").tolist()
    # the minimum spanning tree; scipy takes edges of 0 for none, and a constant added to all edges does not change it
    tree = minimum_spanning_tree(distances + 1.0).tocoo()
    edges = [sorted(edge) for edge in zip(tree.row.tolist(), tree.col.tolist(), strict=True)]
    links: list[dict[str, Any]] = [
        {"a": labels[i], "b": labels[j], "distance": float(distances[i, j])} for i, j in edges
    ]
    links.sort(key=lambda link: link["distance"])
    lines = [f"{count} networks; the nearest relatives first:"]
    for link in links:
        verdict = verdicts.get((link["a"], link["b"])) or verdicts[link["b"], link["a"]]
        words = f", {verdict.words}" if verdict.level < Level.UNKNOWN else ""
        lines.append(f"  {link['a']} - {link['b']}: {link['distance']:.3g}{words}")
    lines += [
        f"Probably not trained independently, as neurons in the same places are too alike: {', '.join(family)}."
        for family in kinship["families"]
    ]
    pairs = count * (count - 1) // 2
    these = (
        f"That is {len(related)} of {pairs} pairs" if related else f"No pair of {pairs} has neurons that are too alike"
    )
    lines.append(
        f"{these}; of folders of unrelated networks, at most 1 of 20 has such a pair. Relatives whose neurons were "
        "permuted are not found by this test."
    )
    if kin.places:
        reasons = {node: reason for places in kin.places.values() for node, reason in places.items()}
        lines.append(f"Left out of p-values, for {len(kin.places)} of the pairs, are {places_in_words(reasons)}.")
    if related:
        lines.append(
            "P-values hold if first weights treat neurons alike. In what was tested, none of these exceptions was "
            f"found: {LOOKED_FOR}."
        )
    kindred = {label for pair in related for label in (pair["a"], pair["b"])}
    lines += placed_by_class([network for network in networks if network.label in kindred][:2], seed)
    lines += networks[0].why_no_form()
    settings = {tuple(networks[0].differences(network)): network.label for network in networks[:0:-1]}
    lines += [
        f"Beside the weights {labels[0]} and {label} differ in what reaches their functions: {'; '.join(differ[:6])}."
        for differ, label in settings.items()
        if differ
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
        "kinship": kinship,
        "links": links,
        "tree": clusters[-1],
    }

    def matrix(title: str, values: Any, form: str, note: str) -> Table:
        rows = enumerate(zip(labels, values, strict=True), 1)
        cells = tuple((f"{i} {label}", *(format(x, form) for x in row)) for i, (label, row) in rows)
        return Table(title, ("", *map(str, range(1, count + 1))), cells, notes=(note,))

    note = (
        "Distances of weights once symmetry is taken out: 0 for the same function, 1 for networks at right angles. "
        "They show which networks are related, not which one came first."
    )
    tables = [matrix("Distances", distances, ".3f", note)]
    if related:
        note = "P-values of the hypothesis that the two were trained independently, corrected for the number of pairs."
        tables.append(matrix("P-values of kinship", corrected, ".1g", note))

    def draw() -> dict[str, Figure | str]:
        return {"family.png": draw_family(labels, distances.tolist(), merges, np.asarray(corrected) <= SURPRISING)}

    return Finding(tuple(networks), "\n".join(lines), results, tables, draw)


def _distances(
    networks: Sequence[Network], prints: Sequence[str | None], seed: int, store: Store | None, progress: Progress
) -> tuple[Any, dict[tuple[int, int], Verdict]]:
    """Computes the distance, and the verdict, of each two networks by their numbers."""
    # the number of the first network that is the same function, among those of one fingerprint
    same_print: dict[str | None, list[int]] = {}
    first: list[int] = []
    equal: dict[int, Verdict] = {}
    for i, (network, fingerprint) in enumerate(zip(networks, prints, strict=True)):
        alike = same_print.setdefault(fingerprint, [])
        for k in alike:
            verdict, *_ = judge_pair(networks[k], network, seed, thorough=False)
            if verdict.level == Level.SAME:
                equal[i] = verdict
                first.append(k)
                break
        else:
            alike.append(i)
            first.append(i)
    unequal = sorted(set(first))
    space, form = networks[0].space, networks[0].form
    rigid = space.restricted("sign")
    balanced: dict[int, Mapping[str, Tensor]] = {}
    for i in unequal if form is None else ():
        sizes = networks[i].sizes
        tensors = {name: packing.without_dead(space, name, t, sizes) for name, t in networks[i].items()}
        batch, _ = balance({name: t.double()[None, None] for name, t in tensors.items()}, space)
        balanced[i] = {name: t[0, 0] for name, t in batch.items()}
    names = [link.parameter for link in space.links if len(link.ends) > 1]
    weights = list(dict.fromkeys(space.pieces[name].parameter for name in names)) or list(space.parameters)
    distances = np.zeros((len(networks), len(networks)))
    verdicts: dict[tuple[int, int], Verdict] = {}
    for n, i in enumerate(unequal):
        row, _ = (store.get(f"{KEPT}-{i}") if store else None) or ([], {})
        for m, j in enumerate(unequal[:n]):
            if m == len(row):
                one, other = networks[j], networks[i]
                if form is None:
                    pair = balanced[j], align(rigid, balanced[j], balanced[i], seed=seed).aligned
                else:
                    near = align_fibres(form, dict(one), dict(other), seed=seed)
                    pair = {**one, **near[0]}, {**other, **near[1]}  # with tensors that nothing moves
                between = [_distance([(pair[0][name], pair[1][name]) for name in weights])]
                for key in differing(one.unmoved, other.unmoved):
                    both = key in one.unmoved and key in other.unmoved
                    between.append(_distance([(one.unmoved[key], other.unmoved[key])]) if both else 1.0)
                near_enough = max(between) < NEAR
                verdict = judge_pair(one, other, seed, thorough=False)[0] if near_enough else Verdict(Level.UNKNOWN, "")
                row.append([max(between), *verdict])
                if store is not None:
                    store.put(f"{KEPT}-{i}", row, {})
            distances[i, j] = distances[j, i] = row[m][0]
            verdicts[j, i] = Verdict(Level(row[m][1]), row[m][2])
            progress(n * (n - 1) // 2 + m + 1, len(unequal) * (len(unequal) - 1) // 2)
    of_all: dict[tuple[int, int], Verdict] = {}
    for j, b in enumerate(first):
        for i, a in enumerate(first[:j]):
            of_all[i, j] = (equal.get(j) or equal[i]) if a == b else verdicts[min(a, b), max(a, b)]
    return distances[np.ix_(first, first)], of_all


def _distance(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Computes ``||a - b|| / sqrt(||a||^2 + ||b||^2)`` over pairs of tensors."""
    doubled = [(a.double(), b.double()) for a, b in pairs]
    apart = sum(float((a - b).square().sum()) for a, b in doubled)
    size = sum(float(part.square().sum()) for pair in doubled for part in pair)
    return float((apart / (size or 1.0)) ** 0.5)


def _kinship_to_json(labels: Sequence[str], p: Any) -> dict[str, Any]:
    """Corrects p-values by Holm's method; lists the pairs with at most 0.05, and the families that they join."""
    from scipy.sparse.csgraph import connected_components

    i, j = np.tril_indices(len(labels), -1)
    order = np.argsort(p[i, j], kind="stable")
    i, j, corrected = i[order], j[order], np.ones_like(p)
    steps = np.maximum.accumulate(p[i, j] * np.arange(len(order), 0, -1)).clip(max=1.0)
    corrected[i, j] = corrected[j, i] = steps
    pairs = [
        {"a": labels[y], "b": labels[x], "p_value": float(p[x, y]), "corrected": float(corrected[x, y])}
        for x, y in zip(i.tolist(), j.tolist(), strict=True)
        if corrected[x, y] <= SURPRISING
    ]
    number = connected_components(corrected <= SURPRISING)[1]
    sets = [[label for label, n in zip(labels, number, strict=True) if n == k] for k in range(max(number) + 1)]
    families = [members for members in sets if len(members) > 1]
    return {"p_values": p.tolist(), "corrected": corrected.tolist(), "pairs": pairs, "families": families}
