"""Two checkpoints judged: what their weights, all that lies outside of these, and their outputs say."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch

from nfn_monomial.alignment import Comparison
from nfn_monomial.alignment.comparison import compared
from nfn_monomial.alignment.outputs import output_difference
from nfn_monomial.alignment.verdict import Level, Outputs, Verdict, other_tensors, verdict_on
from nfn_monomial.fibre import FibreComparison, compare_fibres
from nfn_monomial.running import largest_change
from nfn_monomial.tools.results import Progress, silent

from .networks import Network

__all__ = ["STEPS", "Judged", "judged"]

STEPS = 4  # of two compared: weights, normal forms, outputs, and kinship
ROUNDING = 1e-8  # of outputs in float64


class Judged(NamedTuple):
    """Two networks compared.

    Attributes:
        verdict: on the two.
        weights: compared by permutations, signs and scales.
        forms: normal forms compared, where more than that is known and weights alone do not say all.
    """

    verdict: Verdict
    weights: Comparison
    forms: FibreComparison | None


def judged(a: Network, b: Network, seed: int = 0, *, thorough: bool = True, progress: Progress = silent) -> Judged:
    """Two networks compared.

    Args:
        a: the first network.
        b: the second one, of the same architecture and widths.
        seed: of the alignment.
        thorough: whether to look for the nearest element also if the networks are not equal, and to run those whose
            weights are not explained, too, on which the verdict is "not known" else.
        progress: told of each step: weights, normal forms, and outputs; of all of a command there are `STEPS`.
    """
    weights = compared(a.space, a.state, b.state, seed=seed, search=thorough)
    if a.stored is not a or b.stored is not b:  # folding is a part of the move
        apart = (float((a.stored[name].double() - b.stored[name].double()).square().sum()) for name in a)
        words = f"once batch norms are folded, {weights.move.words}"
        weights = dataclasses.replace(weights, move=weights.move._replace(words=words, stored=sum(apart) ** 0.5))
    progress(1, STEPS)
    forms = None
    beside = a.differences(b)
    if weights.move.level > Level.SAME and not weights.unmoved and not beside and a.form is not None:
        forms = compare_fibres(a.form, dict(a), dict(b), seed=seed)
    progress(2, STEPS)
    moves = [weights.move] if forms is None else [weights.move, forms.move]
    differing = other_tensors(tuple(sorted({*weights.unmoved, *(forms.unlike if forms else ())})))
    differing += ["what reaches their functions beside the weights differs"] * bool(beside)
    if arguments := a.other_arguments(b):
        differing.append(f"hyper_parameters differ that nothing was built of: {', '.join(arguments)}")
    outputs = None
    if a.runs and b.runs and (thorough or min(move.level for move in moves) < Level.UNKNOWN):
        if beside:
            outputs = _own_outputs(a, b)
        else:
            # What a checkpoint lacks is the module's own, so it is one that has read none.
            module, inputs = a.definition.template(), a.definition.inputs
            with torch.no_grad():
                run = output_difference(a.space, weights.group_element, module, inputs, (a.state, b.state))
            outputs = run.outputs
    progress(3, STEPS)
    verdict = verdict_on(moves, differing, outputs)
    same = verdict.level == Level.SAME
    weights = dataclasses.replace(weights, same_function=same, verdict=verdict.words, outputs=outputs)
    return Judged(verdict, weights, forms)


def _own_outputs(a: Network, b: Network) -> Outputs:
    """How far the outputs of two networks are apart, each run with all that is its own beside weights."""
    with torch.no_grad():
        first, second = (network.outputs(a.definition.inputs) for network in (a, b))
    largest = relative = math.inf
    if [t.shape for t in first] == [t.shape for t in second]:
        changes = [
            float((x.double() - y.double()).abs().max()) for x, y in zip(first, second, strict=True) if x.numel()
        ]
        largest, relative = max(changes, default=0.0), largest_change(second, first)
    eps = max(torch.finfo(t.dtype).eps for network in (a, b) for t in network.values())
    return Outputs(largest, relative, ROUNDING, True, eps)
