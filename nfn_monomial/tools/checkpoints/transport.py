"""A fine-tune carried to a base that was trained on its own: what tuning changed, moved next to the new base."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from nfn_monomial import align
from nfn_monomial.adapters.files import FileError
from nfn_monomial.alignment.rounding import differing
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.certificate import answers
from nfn_monomial.tools.calls import ALONE, Call
from nfn_monomial.tools.report import Table

from .data import Data, Judge, Score, judge_of
from .figures import draw_lines
from .findings import Finding, Written, left_behind
from .networks import Naming, Network, PathLike, read_networks

__all__ = ["transport_checkpoint"]

NAIVE, PERMUTATION, ALL = "as it is", "permutation", "all symmetries"
WRITTEN = {"permutation": PERMUTATION, "all": ALL}
STEPS = 10  # on the way to alpha
Tensors = Mapping[str, Tensor]


class _OnChange:
    """How much of the change of outputs that tuning made arrives: 1 for nothing, 0 for all of it.

    With outputs ``f`` on the example inputs it is ``||(f_new' - f_new) - (f_tuned - f_base)||^2 / ||f_tuned -
    f_base||^2``.
    """

    words = "squared distance from tuning's change of the outputs, relative to that, on the example inputs"

    def __init__(self, inputs: tuple[Any, ...], module: nn.Module, base: Tensors, tuned: Tensors, new: Tensors) -> None:
        self._inputs = inputs
        before, after, self._start = (self._outputs(module, network) for network in (base, tuned, new))
        self._wanted = [y - x for x, y in zip(before, after, strict=True)]
        if not any(bool(x.any()) for x in self._wanted):
            raise InvalidValueError(
                "BASE and TUNED answer alike on the example inputs, so nothing can be compared: give others, or --data"
            )

    def merged(self, module: nn.Module, network: Tensors, weights: Sequence[float]) -> Score:
        found = [y - x for x, y in zip(self._start, self._outputs(module, network), strict=True)]
        apart = sum(float((x - y).square().sum()) for x, y in zip(found, self._wanted, strict=True))
        return Score(apart / sum(float(x.square().sum()) for x in self._wanted))

    def _outputs(self, module: nn.Module, network: Tensors) -> list[Tensor]:
        return [t.double() for t in answers(module, network, self._inputs) if t.is_floating_point()]


def transport_checkpoint(
    *paths: PathLike,
    symmetry: str | None = None,
    alpha: float = 1.0,
    data: Data = None,
    seed: int = 0,
    call: Call = ALONE,
    **naming: Unpack[Naming],
) -> Finding:
    """What tuning a base changed, added to another base, in whose frame it is moved.

    With ``g`` the element of the group that moves the base next to the new one (`nfn_monomial.align`), the new network
    is ``new + alpha (g tuned - g base)``. As ``g`` multiplies and permutes entries, that is ``g`` of the difference; in
    the scales of the new base, which need not be balanced for it. Beside it are the difference as it is, and moved by
    permutations alone, each for all shares up to ``alpha``. Running variances that would be negative are 0.

    Args:
        paths: three checkpoints: the base, what it was tuned to, and the new base.
        symmetry: by which the difference is moved in what is written: ``"permutation"`` or ``"all"``; by default what
            has the lesser loss at ``alpha``.
        alpha: share of the difference that is added.
        data: see `batches_of`; **its code runs**. Without, changes of outputs on the example inputs are compared.
        seed: of the alignment.
        call: which keeps what is finished, and is told how many scores are done.
        naming: see `Naming`; the **code** of ``net`` **runs**.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: naming what cannot be used, and the way out.
    """
    if len(paths) != 3:
        raise InvalidValueError(f"transport needs three checkpoints, BASE TUNED NEWBASE; found {len(paths)}")
    if symmetry not in (None, *WRITTEN):
        raise InvalidValueError(f"--symmetry {symmetry}: expected {' or '.join(WRITTEN)}")
    if not 0 < alpha <= 10:
        raise InvalidValueError(f"--alpha {alpha:g}: expected a share of the change, more than 0 and up to 10")
    base, tuned, new = networks = read_networks(paths, **naming)
    if data is not None and not new.runs:
        raise InvalidValueError(f"--data {data}: {new.label} cannot be run: {new.why_not}")
    if odd := differing(base.unmoved, tuned.unmoved):
        raise FileError(
            f"{base.label} and {tuned.label} differ in {', '.join(odd)}, which the network reads and nothing moves, "
            "so that part of the change cannot be carried: give a TUNED that has them as its BASE"
        )
    start, end, frame = ({name: t.double() for name, t in network.items()} for network in networks)
    change = {name: end[name] - t for name, t in start.items()}
    if not any(bool(t.any()) for t in change.values()):
        raise FileError(f"{base.label} and {tuned.label} have the same parameters: there is nothing to be carried")
    moved: dict[str, Tensors] = {NAIVE: change}
    distances = {NAIVE: _norm({name: frame[name] - t for name, t in start.items()})}
    for method, group in ((PERMUTATION, "permutation"), (ALL, None)):

        def aligned(group: str | None = group) -> tuple[float, Tensors]:
            found = align(new.space, frame, start, symmetry=group, seed=seed)
            return found.distance, found.element.act(change)

        distances[method], moved[method] = call.piece(f"change-moved-by-{group or 'all'}", aligned)
    buffers = {name for name, _ in new.definition.template().named_buffers()}
    variances = {name for name in buffers & frame.keys() if bool((frame[name] >= 0).all())}

    def added(method: str, share: float) -> dict[str, Tensor]:
        found = {name: t + share * moved[method][name] for name, t in frame.items()}
        return {name: t.clamp(min=0) if name in variances else t for name, t in found.items()}

    judged, own, lines = _judged(networks, list(moved), added, alpha, data, call) if new.runs else ("", {}, {})
    best = min((name for name in lines if name != NAIVE), key=lambda name: lines[name]["loss"][-1], default=ALL)
    written = WRITTEN[symmetry] if symmetry else best
    results: dict[str, Any] = {
        "network": new.definition.name,
        "base": str(base.checkpoint.path),
        "tuned": str(tuned.checkpoint.path),
        "new_base": str(new.checkpoint.path),
        "alpha": alpha,
        "written": written,
        "distance_of_bases": distances,
        "norm_of_change": {method: _norm(found) for method, found in moved.items()},
        "judged_by": judged or None,
        "own": {name: score._asdict() for name, score in own.items()},
        "lines": lines,
    }

    def draw() -> dict[str, Figure | str]:
        losses = {method: line["loss"] for method, line in lines.items()}
        right = {method: line["accuracy"] for method, line in lines.items() if line["accuracy"]}
        return {"transport.png": draw_lines(losses, right, judged, along="alpha", end=alpha)} if lines else {}

    summary = [
        f"{new.label} + {alpha:g} x ({tuned.label} - {base.label}), which is moved by {written}.",
        f"Loss: {judged}." if judged else f"Outputs were not compared: {new.why_not}.",
        *left_behind([new]),
    ]
    made = [Written(new, new.checkpoint.name, added(written, alpha))]
    return Finding(tuple(networks), "\n".join(summary), results, [_table(results)], draw, made)


def _judged(
    networks: Sequence[Network],
    methods: Sequence[str],
    added: Callable[[str, float], Tensors],
    alpha: float,
    data: Data,
    call: Call,
) -> tuple[str, dict[str, Score], dict[str, Any]]:
    """What is measured; how the networks do; and those on the way to alpha, for each way to move the change."""
    module, inputs = networks[-1].module(), networks[-1].definition.inputs
    dtypes = {name: t.dtype for name, t in module.state_dict().items()}
    states = [{n: t.to(dtypes[n]) for n, t in (*network.items(), *network.unmoved.items())} for network in networks]
    judge: Judge | _OnChange = _OnChange(inputs, module, *states) if data is None else judge_of(data, inputs)
    known = dict(zip(("base", "tuned", "new base"), states, strict=True))
    own = {n: judge.merged(module, state, ()) for n, state in known.items() if data is not None or n == "new base"}
    lines: dict[str, Any] = {}
    for method in methods:
        scores = [own["new base"]]
        for step in range(1, STEPS + 1):
            made = {n: t.to(dtypes[n]) for n, t in added(method, alpha * step / STEPS).items()}
            scores.append(judge.merged(module, states[-1] | made, ()))
            call.progress(STEPS * len(lines) + step, STEPS * len(methods))
        accuracies = [score.accuracy for score in scores]
        lines[method] = {
            "alpha": [alpha * step / STEPS for step in range(STEPS + 1)],
            "loss": [score.loss for score in scores],
            "accuracy": None if None in accuracies else accuracies,
        }
    return judge.words, own, lines


def _table(results: Mapping[str, Any]) -> Table:
    """How the networks do, and what way the change was moved."""

    def shown(loss: float, accuracy: float | None) -> list[str]:
        return [f"{loss:.4g}", *([] if accuracy is None else [f"{accuracy:.3f}"])]

    cells = [[name, "-", "-", *shown(**score)] for name, score in results["own"].items()]
    for method, distance in results["distance_of_bases"].items():
        sizes = (f"{distance:.4g}", f"{results['norm_of_change'][method]:.4g}")
        line = results["lines"].get(method)
        last = shown(line["loss"][-1], (line["accuracy"] or [None])[-1]) if line else []
        cells.append([f"new base + change, {method}", *sizes, *last])
    header = ("network", "distance of bases", "norm of change", "loss", "accuracy")[: len(cells[0])]
    return Table("A fine-tune on a new base", header, tuple(map(tuple, cells)))


def _norm(tensors: Tensors) -> float:
    return float(torch.stack([t.square().sum() for t in tensors.values()]).sum().sqrt())
