"""Networks in one frame: written as checkpoints, merged, and the barrier between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from nfn_monomial import WeightSpace, align
from nfn_monomial.adapters.files import FileError
from nfn_monomial.alignment import align_all, mean_of, repair
from nfn_monomial.alignment.rounding import differing
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.fibre import NormalForm, align_fibres
from nfn_monomial.tools.calls import ALONE, Call
from nfn_monomial.tools.report import Table

from .data import Data, Judge, Score, judge_of
from .figures import draw_lines
from .findings import Finding, Written
from .networks import Naming, Network, PathLike, difference_as_written, left_behind, read_several

__all__ = ["align_checkpoints"]

NAIVE, PERMUTATION, ALL, FIBRE = "as they are", "permutation", "all symmetries", "normal forms"
REPAIRED = ", REPAIR"
PLACES = tuple(i / 10 for i in range(11))
Tensors = Mapping[str, Tensor]
_NORMS = nn.modules.batchnorm._BatchNorm


def align_checkpoints(
    *paths: PathLike,
    merge: float | None = None,
    fibre: bool = False,
    data: Data = None,
    seed: int = 0,
    call: Call = ALONE,
    **naming: Unpack[Naming],
) -> Finding:
    """Networks moved into the frame of the first one, without a change of what they compute; and what lies between.

    Two are aligned by `nfn_monomial.align`, more by `nfn_monomial.alignment.align_all`, so that the ways between them
    compose. On the line from the first network to the mean of the others the loss is taken for the networks as they
    are, moved by permutations only, and moved by all symmetries. What no symmetry moves, as a scale of inputs, is
    averaged as it is. With data, networks with running statistics are repaired, too (`nfn_monomial.alignment.repair`):
    these become those of the data, gains and shifts follow them.

    Args:
        paths: two or more checkpoints, or one folder of them.
        fibre: whether to move all networks to their normal forms, next to that of the first
            (`nfn_monomial.fibre.align_fibres`), where more than permutations, scales and signs is known. The first is
            written, too.
        merge: share of all but the first network in a merged one, 0 to 1; repaired where that can be done.
        data: see `judge_of`; **its code runs**. Without, outputs on the example inputs are compared.
        seed: of the alignment.
        call: which keeps the networks that are moved, and the scores on each line, and is told how many are done.
        naming: see `Naming`; the **code** of ``net`` **runs**.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: naming what cannot be used, and the way out; if outputs would change.
    """
    if merge is not None and not 0 <= merge <= 1:
        raise InvalidValueError(f"--merge {merge}: expected the share of the others, 0 to 1")
    networks, skipped = read_several("align", paths, **naming)
    first, *others = networks
    if data is not None and not first.runs:
        raise InvalidValueError(f"--data {data}: {first.label} cannot be run: {first.why_not}")
    unmoved = [{k: t.double() for k, t in network.unmoved.items() if t.is_floating_point()} for network in networks]
    for network in others:
        if odd := [key for key in differing(first.unmoved, network.unmoved) if key not in unmoved[0]]:
            raise FileError(
                f"{first.label} and {network.label} differ in {', '.join(odd)}, which the network reads, no symmetry "
                "moves, and are not in floating point: there is no line between these networks"
            )
    frames = _frames(
        first.space, [{name: t.double() for name, t in network.items()} for network in networks], seed, call
    )
    best = ALL
    if fibre and (form := first.form) is not None:
        best, frames[FIBRE] = FIBRE, _in_normal_form(form, frames[NAIVE], seed, call)
    distances = {method: [_distance(found[0], other) for other in found[1:]] for method, found in frames.items()}
    written = networks if best == FIBRE else others
    moved = frames[best][-len(written) :]
    frames = {m: [{**x, **y} for x, y in zip(frame, unmoved, strict=True)] for m, frame in frames.items()}
    merged: Tensors | None = None if merge is None else mean_of(frames[best], _weights(merge, len(networks)))
    changes = [difference_as_written(network, after) for network, after in zip(written, moved, strict=True)]
    course, judged = None, ""
    lines: dict[str, dict[str, Any]] = {}
    if first.runs:
        judge = judge_of(data, first.definition.inputs)
        course, judged = _Course(first.module(), judge, frames[NAIVE], merge, call, len(frames)), judge.words
        for method, frame in frames.items():
            lines |= course.lines(method, frame)
        if merge is not None and course.repairs:
            merged = course.at(frames[best], merge, repaired=True)
    results = {
        "network": first.definition.name,
        "frame": str(first.checkpoint.path),
        "moved": {
            str(network.checkpoint.path): {
                "distance": {method: found[i] for method, found in distances.items()},
                "max_output_difference": changes[i - len(others)],  # of the first, if it is written, in front
            }
            for i, network in enumerate(others)
        },
        "max_output_difference": max((x for x in changes if x is not None), default=None),
        "left": sorted({key for network in others for key in network.unread}),
        "share": merge,
        "judged_by": judged or None,
        "own": [score._asdict() for score in course.own] if course else [],
        "lines": lines,
    }
    names = [network.checkpoint.name for network in written]
    if len(set(names)) < len(names):
        names = [f"{n.label.replace('/', '-')}-{name}" for n, name in zip(written, names, strict=True)]
    made = list(map(Written, written, names, moved))
    if merged is not None:
        made.append(Written(first, first.checkpoint.renamed("merged"), merged))
    left = left_behind(written if merged is None else networks)
    summary = _summary(results, networks, [*left, *first.why_no_form(asked=fibre)])

    def draw() -> dict[str, Figure | str]:
        losses = {method: line["loss"] for method, line in lines.items()}
        right = {method: line["accuracy"] for method, line in lines.items() if line["accuracy"]}
        return {"barrier.png": draw_lines(losses, right, judged)} if lines else {}

    return Finding(tuple(networks), summary, results, [_table(results, distances)], draw, made).with_notes(skipped)


def _summary(results: Mapping[str, Any], networks: Sequence[Network], left: Sequence[str]) -> str:
    first, *others = networks
    lines = [f"Moved into the frame of {first.label}{' in its normal form' * (FIBRE in results['lines'])}:"]
    for network, found in zip(others, results["moved"].values(), strict=True):
        steps = ", ".join(f"{distance:.4g} ({method})" for method, distance in found["distance"].items())
        lines.append(f"  {network.label}: distance {steps}")
    if results["judged_by"]:
        lines.append(f"No output changes by more than {results['max_output_difference']:.1e} of the largest by that.")
        lines.append(f"Barriers are of: {results['judged_by']}.")
    else:
        lines.append(f"Outputs were not compared: {first.why_not}.")
    return "\n".join([*lines, *left])


def _table(results: Mapping[str, Any], distances: Mapping[str, Sequence[float]]) -> Table:
    """How each way to move the networks does: means of their distances, and barriers where they run."""
    mean = {method: f"{sum(found) / len(found):.4g}" for method, found in distances.items()}
    header = ["moved by", "distance"]
    cells = [[method, distance] for method, distance in mean.items()]
    notes = []
    if results["lines"]:
        own = "; ".join(", ".join(_shown(score)) for score in results["own"])
        notes = [
            f"Losses: {results['judged_by']}. The networks' own: {own}. Barrier: the largest excess over these on the "
            "line from the first network to the mean of the others."
        ]
        cells = []
        for method, line in results["lines"].items():
            at_share = _shown(line["merged"]) if line["merged"] else []
            cells.append([method, mean[method.removesuffix(REPAIRED)], f"{line['barrier']:.4g}", *at_share])
        header.append("barrier")
        header += [f"{name} at {results['share']:.3g}" for name in ("loss", "accuracy")[: len(cells[0]) - len(header)]]
    return Table("The networks in one frame", tuple(header), tuple(map(tuple, cells)), notes=tuple(notes))


def _frames(
    space: WeightSpace, networks: list[dict[str, Tensor]], seed: int, call: Call
) -> dict[str, list[Mapping[str, Tensor]]]:
    """Method -> networks in float64, all but the first moved by it."""
    frames: dict[str, list[Tensors]] = {NAIVE: list(networks)}
    for method, symmetry in ((PERMUTATION, "permutation"), (ALL, None)):

        def move(symmetry: str | None = symmetry) -> tuple[None, Tensors]:
            if len(networks) == 2:
                found = [align(space, *networks, symmetry=symmetry, seed=seed).aligned]
            else:
                found = align_all(space, networks, symmetry=symmetry, seed=seed).aligned[1:]
            return None, {f"{i} {name}": t for i, network in enumerate(found) for name, t in network.items()}

        _, kept = call.piece(f"moved-by-{symmetry or 'all'}", move)
        moved = ({name: kept[f"{i} {name}"] for name in networks[0]} for i in range(len(networks) - 1))
        frames[method] = [networks[0], *moved]
    return frames


def _in_normal_form(form: NormalForm, networks: Sequence[Tensors], seed: int, call: Call) -> list[Tensors]:
    """Networks in float64, all in normal form, and next to the first."""

    def move() -> tuple[None, Tensors]:
        pairs = [align_fibres(form, networks[0], other, seed=seed) for other in networks[1:]]
        found = [pairs[0][0], *(other for _, other in pairs)]
        return None, {f"{i} {name}": t for i, network in enumerate(found) for name, t in network.items()}

    _, kept = call.piece("moved-by-normal-forms", move)
    return [{name: kept.get(f"{i} {name}", t) for name, t in own.items()} for i, own in enumerate(networks)]


class _Course:
    """Judges networks on lines; of ``networks`` as they are it knows the scores, ``own``."""

    def __init__(
        self, module: nn.Module, judge: Judge, networks: Sequence[Tensors], merge: float | None, call: Call, lines: int
    ) -> None:
        self._module, self._judge, self._call = module, judge, call
        statistics = any(isinstance(m, _NORMS) and m.running_mean is not None for m in module.modules())
        self.repairs = statistics and judge.statistics is not None
        self.own = judge.own(module, [self._narrow(network) for network in networks])
        self._places = [*PLACES, *([] if merge is None else [merge])]
        self._done, self._lines = 0, lines

    def lines(self, method: str, frame: Sequence[Tensors]) -> dict[str, dict[str, Any]]:
        """The line through networks in one frame, and the same with each network on it repaired, as JSON has them."""
        found = {}
        for repaired in (False, True)[: 1 + self.repairs]:
            name, behind = method + REPAIRED * repaired, self._done + len(self._places)

            def judged(repaired: bool = repaired) -> tuple[Any, Tensors]:
                scores = [self._score(frame, t, repaired) for t in self._places]
                losses = torch.tensor([score.loss for score in scores], dtype=torch.float64)
                return [score.accuracy for score in scores], {"losses": losses}

            accuracies, kept = self._call.piece(f"scores-{name.replace(', ', '-').replace(' ', '-')}", judged)
            losses = kept["losses"].tolist()
            for _ in range(behind - self._done):  # of scores that were kept
                self._step()
            barrier = 0.0
            for t, loss in zip(PLACES, losses, strict=False):
                weights = _weights(t, len(frame))
                barrier = max(barrier, loss - sum(w * own.loss for w, own in zip(weights, self.own, strict=True)))
            count = len(PLACES)
            found[name] = {
                "t": list(PLACES),
                "loss": losses[:count],
                "accuracy": None if None in accuracies else accuracies[:count],
                "barrier": barrier,
                "merged": Score(losses[-1], accuracies[-1])._asdict() if len(losses) > count else None,
            }
        return found

    def at(self, frame: Sequence[Tensors], t: float, *, repaired: bool) -> Tensors:
        """The network at a place of a line, with statistics of its own if it is repaired."""
        weights = _weights(t, len(frame))
        mean = self._narrow(mean_of(frame, weights))
        if not repaired:
            return mean
        ends = [self._narrow(network) for network in frame]
        found = repair(self._module, mean, ends, self._judge.statistics, weights)
        return {name: found[name] for name in mean}

    def _score(self, frame: Sequence[Tensors], t: float, repaired: bool) -> Score:
        score = self._judge.merged(self._module, self.at(frame, t, repaired=repaired), _weights(t, len(frame)))
        self._step()
        return score

    def _step(self) -> None:
        self._done += 1
        self._call.progress(self._done, self._lines * (1 + self.repairs) * len(self._places))

    def _narrow(self, network: Tensors) -> dict[str, Tensor]:
        """In the module's dtypes, in which it takes its inputs."""
        own = {name: t.dtype for name, t in (*self._module.named_parameters(), *self._module.named_buffers())}
        return {name: t.to(own[name]) for name, t in network.items()}


def _weights(t: float, count: int) -> list[float]:
    """The share of the first network, and those of the others."""
    return [1 - t, *[t / (count - 1)] * (count - 1)]


def _shown(score: Mapping[str, float | None]) -> list[str]:
    """Loss and, if there is one, accuracy."""
    accuracy = score["accuracy"]
    return [f"{score['loss']:.4g}", *([] if accuracy is None else [f"{accuracy:.3f}"])]


def _distance(a: Tensors, b: Tensors) -> float:
    return float(torch.stack([(a[name] - b[name]).square().sum() for name in a]).sum().sqrt())
