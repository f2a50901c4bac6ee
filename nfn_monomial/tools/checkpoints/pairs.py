"""Two networks compared: the verdict on their weights, settings and outputs, their distances, and their kinship."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch

from nfn_monomial.alignment import Comparison, Kinship, kinship
from nfn_monomial.alignment.comparison import compared
from nfn_monomial.alignment.outputs import output_difference, p_value_of_partners
from nfn_monomial.alignment.places import LOOKED_FOR
from nfn_monomial.alignment.rounding import differing
from nfn_monomial.alignment.verdict import Level, Outputs, Verdict, other_tensors, verdict_on
from nfn_monomial.fibre import FibreComparison, compare_fibres
from nfn_monomial.running import largest_change
from nfn_monomial.tools.definitions.loading import tensors_of
from nfn_monomial.tools.report import Table
from nfn_monomial.tools.results import Progress, silent

from .figures import draw_comparison
from .finding import Finding
from .networks import Network

__all__ = [
    "SURPRISING",
    "compare_pair",
    "judge_pair",
    "kinship_in_words",
    "kinship_to_json",
    "placed_by_class",
    "places_in_words",
]

STEPS = 4  # of a comparison: weights, normal forms, outputs, and kinship
ROUNDING = 1e-8  # of outputs in float64
SURPRISING = 0.05  # the largest p-value that is reported as surprising
PLACED = 1e-3  # the largest p-value by which a network is like a new one of its class
NAMED = 4  # nodes that are named in a sentence


def judge_pair(
    a: Network, b: Network, seed: int = 0, *, thorough: bool = True, progress: Progress = silent
) -> tuple[Verdict, Comparison, FibreComparison | None]:
    """Judges whether two networks are the same function.

    Args:
        a: the first network.
        b: the second one, of the same architecture and widths.
        seed: of the alignment.
        thorough: whether to search for the nearest element also if the networks are not equal, and to run them also if
            their weights explain nothing, for which the verdict is "not known" otherwise.
        progress: is told each step that is done: weights, normal forms, outputs.

    Returns:
        The verdict; the comparison of the weights by permutations, signs and scales; that of the normal forms, if there
        are any and the weights alone do not decide.
    """
    weights = compared(a.space, a.state, b.state, seed=seed, search=thorough)
    if a.stored is not a or b.stored is not b:  # folding is a part of the move
        squares = (float((a.stored[name].double() - b.stored[name].double()).square().sum()) for name in a)
        words = f"once batch norms are folded, {weights.move.words}"
        weights = dataclasses.replace(weights, move=weights.move._replace(words=words, stored=sum(squares) ** 0.5))
    progress(1, STEPS)
    forms = None
    settings = a.differences(b)
    if weights.move.level > Level.SAME and not weights.unmoved and not settings and a.form is not None:
        forms = compare_fibres(a.form, dict(a), dict(b), seed=seed)
    progress(2, STEPS)
    moves = [weights.move] if forms is None else [weights.move, forms.move]
    doubts = other_tensors(tuple(sorted({*weights.unmoved, *(forms.unlike if forms else ())})))
    doubts += ["what reaches their functions beside the weights differs"] * bool(settings)
    if arguments := a.other_arguments(b):
        doubts.append(f"hyper_parameters differ that nothing was built of: {', '.join(arguments)}")
    outputs = None
    if a.runs and b.runs and (thorough or min(move.level for move in moves) < Level.UNKNOWN):
        with torch.no_grad():
            if settings:  # each is run with its own
                first, second = (network.outputs(a.definition.inputs) for network in (a, b))
                largest = relative = math.inf
                if [t.shape for t in first] == [t.shape for t in second]:
                    changes = (x.double() - y.double() for x, y in zip(first, second, strict=True) if x.numel())
                    largest = max((float(change.abs().max()) for change in changes), default=0.0)
                    relative = largest_change(second, first)
                eps = max(torch.finfo(t.dtype).eps for network in (a, b) for t in network.values())
                outputs = Outputs(largest, relative, ROUNDING, True, eps)
            else:
                # a new module, because tensors that a checkpoint lacks are those of the module
                module, inputs = a.definition.template(), a.definition.inputs
                run = output_difference(a.space, weights.group_element, module, inputs, (a.state, b.state))
                outputs = run.outputs
    progress(3, STEPS)
    verdict = verdict_on(moves, doubts, outputs)
    same = verdict.level == Level.SAME
    return verdict, dataclasses.replace(weights, same_function=same, verdict=verdict.words, outputs=outputs), forms


def compare_pair(a: Network, b: Network, apart: Sequence[Network], seed: int, progress: Progress) -> Finding:
    """Compares two networks; ``apart`` are others that were trained independently, for a p-value."""
    verdict, weights, forms = judge_pair(a, b, seed, progress=progress)
    unread = differing(a.unread, b.unread)
    lines = [f"{a.label} and {b.label}: {verdict.words}."]
    if weights.outputs is not None:
        lines.append(
            f"Largest difference of outputs: {weights.outputs.largest:.2g}, which is {weights.outputs.relative:.2g} of "
            "the largest output."
        )
    elif not a.runs:
        lines.append(f"Outputs were not compared: {a.why_not}.")
    shares = ", ".join(f"{kind} {share:.1%}" for kind, share in weights.explained.items())
    lines.append(f"Shares of the squared distance between the weights: {shares}.")
    if settings := a.differences(b):
        lines.append(f"What reaches their functions beside the weights differs: {'; '.join(settings[:6])}.")
    if weights.unmoved:
        lines.append(f"Tensors that no symmetry moves differ, too: {', '.join(weights.unmoved[:6])}.")
    if unread:
        lines.append(f"Left out, as the network does not read it: {', '.join(unread[:6])}.")
    norms = {name: float(torch.linalg.vector_norm(t, dtype=torch.float64)) for name, t in a.items()}
    if forms is not None:
        moved = math.hypot(*(layer.aligned_l2 for layer in weights.layers.values()))
        before, after = forms.distances.items()
        middle = ("but for permutations, signs and scales", moved / (math.hypot(*norms.values()) or 1))
        forms = dataclasses.replace(forms, distances=dict([before, middle, after]))
        steps = ", ".join(f"{distance:.2g} {words}" for words, distance in forms.distances.items())
        lines.append(f"Distances, relative to the first: {steps}.")
    elif not weights.same_function and not settings:
        lines += a.why_no_form()
    kin = kinship(a.space, a, b, seed=seed, given=a.definition.unlearned)
    progress(STEPS, STEPS)
    partners = None
    if apart and weights.outputs is not None and not settings:
        module, states = a.definition.template(), [network.state for network in (a, b, *apart)]
        partners = p_value_of_partners(a.space, module, a.definition.inputs, states)
    if not weights.same_function or kin.p_value <= SURPRISING:
        lines += [*kinship_in_words(kin), *(placed_by_class([a, b], seed) if kin.p_value <= SURPRISING else ())]
        if partners is not None:
            lines.append(
                f"In whatever order neurons stand, {partners:.2g} of all pairs of these two and the {len(apart)} of "
                "--apart have neurons so alike: a p-value."
            )
        elif apart:
            lines.append("No p-value from --apart: it takes a network that runs, on 8 example inputs or more.")
    results = {
        "network": a.definition.name,
        "a": str(a.checkpoint.path),
        "b": str(b.checkpoint.path),
        **weights.to_json(),
        "normal_forms": None if forms is None else forms.to_json(),
        "kinship": kinship_to_json(kin),
        "partners_p_value": partners,
        "other_differences": sorted((*weights.unmoved, *unread)),
        "settings": settings,
    }
    cells = [
        (name, f"{layer.raw_l2:.4g}", f"{layer.aligned_l2:.4g}", f"{norms[name]:.4g}")
        for name, layer in weights.layers.items()
    ]
    note = "Raw: of the second from the first; aligned: once it is moved next to it; norm: of the first."
    header = ("parameter", "raw L2", "aligned L2", "norm")
    table = Table(f"{a.label} and {b.label}", header, tuple(cells), notes=(note,))
    return Finding((a, b), "\n".join(lines), results, [table], lambda: {"compare.png": draw_comparison(weights)})


def kinship_to_json(kin: Kinship) -> dict[str, object]:
    """Returns a kinship as JSON has it."""
    return dataclasses.asdict(kin) | {"nodes": {name: node._asdict() for name, node in kin.nodes.items()}}


def kinship_in_words(kin: Kinship) -> list[str]:
    """Says how surprising it would be for networks that were trained apart to have their neurons in these places."""
    left = [f"Left out of kinship are {places_in_words(kin.places)}."] * bool(kin.places)
    if not kin.nodes and kin.places:
        return [f"No p-value of kinship: all that could be compared are {places_in_words(kin.places)}."]
    if not kin.nodes:
        return ["No p-value of kinship: it has no two neurons that training treats alike."]
    places = f"{kin.in_place} of {kin.neurons} are nearest to the one in their own place, by chance {kin.expected}"
    if kin.p_value > SURPRISING:
        permuted = "Relatives whose neurons were permuted show none."
        return [f"No clear sign of kinship (p = {kin.p_value:.2g}; {places}). {permuted}", *left]
    cases = float(f"{1 / kin.p_value:.2g}")
    return [
        f"If they were trained independently, neurons would be so alike in about 1 of {cases:,.7g} cases "
        f"(p = {kin.p_value:.2g}; {places}).",
        "That holds if first weights treat neurons alike. In what was tested, none of these exceptions was found: "
        f"{LOOKED_FOR}.",
        *left,
    ]


def places_in_words(places: Mapping[str, str]) -> str:
    """Names the nodes whose neurons have places of their own, with the reasons that show it."""
    nodes_of: dict[str, list[str]] = {}
    for node, reason in places.items():
        nodes_of.setdefault(reason, []).append(node)
    reasons = "; ".join(
        f"{', '.join(nodes[:NAMED])}{f' and {len(nodes) - NAMED} more' * (len(nodes) > NAMED)}: {reason}"
        for reason, nodes in nodes_of.items()
    )
    return f"neurons with places of their own, which training apart leaves alike, too ({reasons})"


def placed_by_class(relatives: Sequence[Network], seed: int) -> list[str]:
    """Warns if one of these networks is as alike to one with new weights: then p-values of kinship mean nothing.

    This happens if initial weights are not alike for all neurons, or if they are always the same.
    """
    for network in relatives:
        if network.runs:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(torch.iinfo(torch.int64).max - seed)  # which nobody else takes
                fresh = {k: t.detach() for k, t in tensors_of(network.definition.template()).items()}
            p = kinship(network.space, fresh, network, seed=seed, given=network.definition.unlearned).p_value
            if p <= PLACED:
                return [
                    f"But the network that {network.definition.name} builds is so like {network.label}, too (p = "
                    f"{p:.2g}). Either {network.label} was made from its weights, or neurons have places of their own "
                    "in this architecture: then p-values of kinship say nothing."
                ]
    return []
