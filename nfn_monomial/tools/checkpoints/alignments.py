"""Networks in one frame: written as checkpoints, merged, and the barrier between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from nfn_monomial import align
from nfn_monomial.alignment import align_all, mean_of, repair
from nfn_monomial.alignment.rounding import differing
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.fibre import align_fibres
from nfn_monomial.tools.files.strangers import FileError
from nfn_monomial.tools.report import Table
from nfn_monomial.tools.results import Progress, silent

from .data import Data, Judge, Score, judge_of
from .figures import draw_lines
from .findings import Finding, Written, difference_as_written, left_behind, naming_files
from .networks import Naming, Network, PathLike, read_several

__all__ = ["align_checkpoints"]

NAIVE, PERMUTATION, ALL, FIBRE = "as they are", "permutation", "all symmetries", "normal forms"
SYMMETRIES = {"none": NAIVE, "permutation": PERMUTATION, "all": ALL}
REPAIRED = ", REPAIR"
PLACES = tuple(i / 10 for i in range(11))
Tensors = Mapping[str, Tensor]
_NORMS = nn.modules.batchnorm._BatchNorm


def align_checkpoints(
    *paths: PathLike,
    merge: float | None = None,
    symmetry: str | None = None,
    fibre: bool = False,
    data: Data = None,
    repair_data: Data = None,
    seed: int = 0,
    progress: Progress = silent,
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
        merge: share of all but the first network in a merged one, 0 to 1: that of the lines whose loss is the lowest
            there; by all symmetries where no module runs them.
        symmetry: ``none``, ``permutation`` or ``all``: what the networks that are written are moved by, the merged one,
            too. By default they are moved by all, and the merged one is the best.
        fibre: whether to move all networks to their normal forms, next to that of the first
            (`nfn_monomial.fibre.align_fibres`), where more than permutations, scales and signs is known. The first is
            written, too.
        data: see `batches_of`; **its code runs**. Without, outputs on the example inputs are compared.
        repair_data: those that REPAIR takes its statistics on, as ``data``; they should be of the training data.
        seed: of the alignment.
        progress: told how many networks on lines are judged.
        naming: see `Naming`; the **code** of ``net`` **runs**.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: naming what cannot be used, and the way out; if outputs would change.
    """
    if merge is not None and not 0 <= merge <= 1:
        raise InvalidValueError(f"--merge {merge}: expected the share of the others, 0 to 1")
    if symmetry is not None and (symmetry not in SYMMETRIES or fibre):
        raise InvalidValueError(f"--symmetry {symmetry}: expected {', '.join(SYMMETRIES)}, and not with --fibre")
    networks, skipped = read_several("align", paths, **naming)
    first = networks[0]
    for option, given in (("--data", data), ("--repair-data", repair_data)):
        if given is not None and not first.runs:
            raise InvalidValueError(f"{option} {given}: {first.label} cannot be run: {first.why_not}")
    with naming_files(networks):
        judge = judge_of(data, first.definition.inputs, repair_data) if first.runs else None
        return _aligned(networks, merge, symmetry, fibre, judge, seed, progress).with_notes(skipped)


def _aligned(
    networks: Sequence[Network],
    merge: float | None,
    symmetry: str | None,
    fibre: bool,
    judge: Judge | None,
    seed: int,
    progress: Progress,
) -> Finding:
    first, *others = networks
    unmoved = _unmoved(networks)
    frames = _frames(networks, fibre, seed)
    distances = {method: [_distance(found[0], other) for other in found[1:]] for method, found in frames.items()}
    method = FIBRE if FIBRE in frames else SYMMETRIES[symmetry or "all"]
    written = networks if method == FIBRE else others
    moved = frames[method][-len(written) :]
    changes = [difference_as_written(network, after) for network, after in zip(written, moved, strict=True)]
    frames = {m: [{**x, **y} for x, y in zip(frame, unmoved, strict=True)] for m, frame in frames.items()}
    course = None if judge is None else _Course(first.module(), judge, frames, merge, progress)
    lines = course.lines if course else {}
    made = list(map(Written, written, _names(written), moved))
    way = None
    if merge is not None:
        way = _merged_by(lines, symmetry, method)
        frame = frames[way.removesuffix(REPAIRED)]
        merged: Tensors = mean_of(frame, _weights(merge, len(frame)))
        if course and way.endswith(REPAIRED):
            merged = course.at(frame, merge, repaired=True)
        made.append(Written(first, first.checkpoint.renamed("merged"), merged))
    results = {
        "network": first.definition.name,
        "frame": str(first.checkpoint.path),
        "moved": {
            str(network.checkpoint.path): {
                "distance": {name: found[i] for name, found in distances.items()},
                "max_output_difference": changes[i - len(others)],  # of the first, if it is written, in front
            }
            for i, network in enumerate(others)
        },
        "max_output_difference": max((x for x in changes if x is not None), default=None),
        "left": sorted({key for network in others for key in network.unread}),
        "share": merge,
        "merged_by": way,
        "judged_by": judge.words if judge else None,
        "repaired_on": judge.repaired_on if judge and course and course.repairs else None,
        "own": [score._asdict() for score in course.own] if course else [],
        "lines": lines,
    }
    left = [*left_behind(written if merge is None else networks), *first.why_no_form(asked=fibre)]

    def draw() -> dict[str, Figure | str]:
        losses = {name: line["loss"] for name, line in lines.items()}
        right = {name: line["accuracy"] for name, line in lines.items() if line["accuracy"]}
        return {"barrier.png": draw_lines(losses, right, str(results["judged_by"]))} if lines else {}

    summary = _summary(results, networks, symmetry, left)
    return Finding(tuple(networks), summary, results, [_table(results, distances)], draw, made)


def _unmoved(networks: Sequence[Network]) -> list[dict[str, Tensor]]:
    """Of each network what no symmetry moves and can be averaged, in float64."""
    found = [{k: t.double() for k, t in network.unmoved.items() if t.is_floating_point()} for network in networks]
    first, *others = networks
    shapes = [{key: t.shape for key, t in own.items()} for own in found]
    for network, own in zip(others, shapes[1:], strict=True):
        if network.settings != first.settings:
            raise FileError(
                f"{first.label} and {network.label} differ in {'; '.join(first.differences(network)[:6])}, which "
                "reaches their functions beside the weights: there is no line between these networks"
            )
        differ = differing(first.unmoved, network.unmoved)
        if odd := [key for key in differ if key not in own or own[key] != shapes[0].get(key)]:
            raise FileError(
                f"{first.label} and {network.label} differ in {', '.join(odd)}, which the network reads, no symmetry "
                "moves, and are not in floating point, or of two shapes: there is no line between these networks"
            )
    return found


def _names(networks: Sequence[Network]) -> list[str]:
    """Names for the files of networks: their own, if these differ."""
    names = [network.checkpoint.name for network in networks]
    if len(set(names)) == len(names):
        return names
    return [f"{n.label.replace('/', '-')}-{name}" for n, name in zip(networks, names, strict=True)]


def _merged_by(lines: Mapping[str, Any], symmetry: str | None, method: str) -> str:
    """The line on which a merged network is best, or of those that were asked for; the method, if there are none."""
    losses = {way: line["merged"]["loss"] for way, line in lines.items()}
    if symmetry is not None:
        losses = {way: loss for way, loss in losses.items() if way.removesuffix(REPAIRED) == method}
    return min(losses, key=losses.__getitem__, default=method)


def _summary(results: Mapping[str, Any], networks: Sequence[Network], symmetry: str | None, left: Sequence[str]) -> str:
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
    if results["repaired_on"]:
        lines.append(f"REPAIR's statistics are of {results['repaired_on']}.")
    if results["merged_by"]:
        chosen = symmetry is None and results["lines"]
        reason = ", the lowest loss of the table. These data chose it, so judge it on others" if chosen else ""
        lines.append(f"Merged at {results['share']:.3g} by {results['merged_by']}{reason}.")
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
    bold = frozenset(i for i, line in enumerate(cells) if line[0] == results["merged_by"])
    return Table("The networks in one frame", tuple(header), tuple(map(tuple, cells)), bold=bold, notes=tuple(notes))


def _frames(networks: Sequence[Network], fibre: bool, seed: int) -> dict[str, list[Tensors]]:
    """Method -> networks in float64, all but the first moved by it; by normal forms, if they are asked for, all."""
    space, form = networks[0].space, networks[0].form if fibre else None
    own: list[Tensors] = [{name: t.double() for name, t in network.items()} for network in networks]

    def moved(symmetry: str | None) -> list[Tensors]:
        if len(own) == 2:
            return [own[0], align(space, *own, symmetry=symmetry, seed=seed).aligned]
        return list(align_all(space, own, symmetry=symmetry, seed=seed).aligned)

    frames = {NAIVE: own, PERMUTATION: moved("permutation"), ALL: moved(None)}
    if form is not None:
        pairs = [align_fibres(form, own[0], other, seed=seed) for other in own[1:]]
        forms = [pairs[0][0], *(other for _, other in pairs)]
        both = zip(own, forms, strict=True)
        frames[FIBRE] = [{name: moved.get(name, t) for name, t in network.items()} for network, moved in both]
    return frames


class _Course:
    """Judges networks on lines in several frames: ``own`` are their scores, ``lines`` those of what lies between."""

    def __init__(
        self,
        module: nn.Module,
        judge: Judge,
        frames: Mapping[str, Sequence[Tensors]],
        merge: float | None,
        progress: Progress,
    ) -> None:
        self._module, self._judge, self._progress = module, judge, progress
        statistics = any(isinstance(m, _NORMS) and m.running_mean is not None for m in module.modules())
        self.repairs = statistics and judge.statistics is not None
        self.own = judge.own(module, [self._narrow(network) for network in frames[NAIVE]])
        self._places = [*PLACES, *([] if merge is None else [merge])]
        self._done, self._count = 0, len(frames) * (1 + self.repairs) * len(self._places)
        self.lines: dict[str, dict[str, Any]] = {}
        for method, frame in frames.items():
            self.lines |= self._of_frame(method, frame)

    def _of_frame(self, method: str, frame: Sequence[Tensors]) -> dict[str, dict[str, Any]]:
        """The line through networks in one frame, and the same with each network on it repaired, as JSON has them."""
        found = {}
        for repaired in (False, True)[: 1 + self.repairs]:
            scores = [self._score(frame, t, repaired) for t in self._places]
            losses, accuracies = [score.loss for score in scores], [score.accuracy for score in scores]
            barrier = 0.0
            for t, loss in zip(PLACES, losses, strict=False):
                weights = _weights(t, len(frame))
                barrier = max(barrier, loss - sum(w * own.loss for w, own in zip(weights, self.own, strict=True)))
            count = len(PLACES)
            found[method + REPAIRED * repaired] = {
                "t": list(PLACES),
                "loss": losses[:count],
                "accuracy": None if None in accuracies else accuracies[:count],
                "barrier": barrier,
                "merged": scores[-1]._asdict() if len(losses) > count else None,
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
        self._done += 1
        self._progress(self._done, self._count)
        return score

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
