"""Networks in one frame: written as checkpoints, merged, and the barrier between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from nfn_monomial import WeightSpace, align
from nfn_monomial.adapters.files import FileError
from nfn_monomial.alignment import align_all, mean_of, repair
from nfn_monomial.alignment.rounding import differing
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.calls import ALONE, Call
from nfn_monomial.tools.report import Report, Table

from .data import Data, Judge, Score, judge_of
from .figures import draw_lines
from .networks import Net, PathLike, difference_as_written, left_behind, paths_of, read_networks
from .outputs import Finding, Written

__all__ = ["Aligned", "Line", "align_checkpoints"]

NAIVE, PERMUTATION, ALL = METHODS = "as they are", "permutation", "all symmetries"
REPAIRED = ", REPAIR"
PLACES = tuple(i / 10 for i in range(11))
Tensors = Mapping[str, Tensor]
_NORMS = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class Line:
    """Networks on the line from the first one to the mean of the others.

    Attributes:
        method: how the others were moved before.
        scores: at `PLACES`; the first is that of the first network.
        barrier: the largest excess of the loss over what the networks have, weighted as they are merged.
        merged: the score at the place that was asked for, if one was.
    """

    method: str
    scores: tuple[Score, ...]
    barrier: float
    merged: Score | None

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        accuracies = [score.accuracy for score in self.scores]
        return {
            "t": list(PLACES),
            "loss": [score.loss for score in self.scores],
            "accuracy": None if None in accuracies else accuracies,
            "barrier": self.barrier,
            "merged": self.merged and self.merged._asdict(),
        }


@dataclass(frozen=True)
class Aligned(Finding):
    """What `align` made; the frame is the first network's.

    Attributes:
        moved: of each network but the first: parameter -> value in the first one's frame.
        merged: the merged network, if one was asked for.
        share: of all but the first in it.
        distances: method -> L2 distance of each network but the first from the first.
        differences: of the outputs of each moved network, as it is written, from what they were, relative to the
            largest, in float64; empty where no module runs them.
        judged: what losses are, in words.
        own: the scores of the networks as they are.
        lines: for every method; empty where no module runs the networks.
    """

    moved: tuple[Tensors, ...]
    merged: Tensors | None
    share: float | None
    distances: Mapping[str, tuple[float, ...]]
    differences: tuple[float, ...] = ()
    judged: str = ""
    own: tuple[Score, ...] = ()
    lines: tuple[Line, ...] = ()

    @property
    def checkpoints(self) -> Sequence[Written]:
        first, *others = self.networks
        names = [network.checkpoint.name for network in others]
        if len(set(names)) < len(names):
            names = [f"{n.label.replace('/', '-')}-{name}" for n, name in zip(others, names, strict=True)]
        found = list(map(Written, others, names, self.moved))
        if self.merged is not None:
            found.append(Written(first, first.checkpoint.renamed("merged"), self.merged))
        return found

    @property
    def summary(self) -> str:
        first, *others = self.networks
        lines = [f"Moved into the frame of {first.label}:"]
        for i, network in enumerate(others):
            steps = ", ".join(f"{found[i]:.4g} ({method})" for method, found in self.distances.items())
            lines.append(f"  {network.label}: distance {steps}")
        if self.differences:
            lines.append(f"No output changes by more than {max(self.differences):.1e} of the largest by that.")
            lines.append(f"Barriers are of: {self.judged}.")
        else:
            lines.append(f"Outputs were not compared: {first.why_not}.")
        lines += left_behind(others if self.merged is None else self.networks)
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        first, *others = self.networks
        return {
            "network": first.definition.name,
            "frame": str(first.checkpoint.path),
            "moved": {
                str(network.checkpoint.path): {
                    "distance": {method: found[i] for method, found in self.distances.items()},
                    "max_output_difference": self.differences[i] if self.differences else None,
                }
                for i, network in enumerate(others)
            },
            "left": sorted({key for network in others for key in network.unread}),
            "share": self.share,
            "judged_by": self.judged or None,
            "own": [score._asdict() for score in self.own],
            "lines": {line.method: line.to_json() for line in self.lines},
        }

    def report(self) -> Report:
        header = ["moved by", "distance"]
        cells = [[method, _mean(found)] for method, found in self.distances.items()]
        notes = []
        if self.lines:
            own = "; ".join(", ".join(_shown(score)) for score in self.own)
            notes = [
                f"Losses: {self.judged}. The networks' own: {own}. Barrier: the largest excess over these on the line "
                "from the first network to the mean of the others."
            ]
            header.append("barrier")
            cells = []
            for line in self.lines:
                distance = _mean(self.distances[line.method.removesuffix(REPAIRED)])
                at_share = [] if line.merged is None else _shown(line.merged)
                cells.append([line.method, distance, f"{line.barrier:.4g}", *at_share])
            header += [f"{name} at {self.share:.3g}" for name in ("loss", "accuracy")[: len(cells[0]) - len(header)]]
        table = Table("The networks in one frame", tuple(header), tuple(map(tuple, cells)), notes=tuple(notes))
        return Report([table], self.to_json(), {"barrier.png": self._figure()} if self.lines else {})

    def _figure(self) -> Figure:
        losses = {line.method: [score.loss for score in line.scores] for line in self.lines}
        right = {line.method: [s.accuracy for s in line.scores if s.accuracy is not None] for line in self.lines}
        return draw_lines(losses, right if all(right.values()) else {}, self.judged)


def align_checkpoints(
    *paths: PathLike,
    net: Net = None,
    merge: float | None = None,
    data: Data = None,
    input_shape: Sequence[int] | None = None,
    activation: str | None = None,
    key: str | None = None,
    seed: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    call: Call = ALONE,
) -> Aligned:
    """Networks moved into the frame of the first one, without a change of what they compute; and what lies between.

    Two are aligned by `nfn_monomial.align`, more by `nfn_monomial.alignment.align_all`, so that the ways between them
    compose. On the line from the first network to the mean of the others the loss is taken for the networks as they
    are, moved by permutations only, and moved by all symmetries. What no symmetry moves, as a scale of inputs, is
    averaged as it is. With data, networks with running statistics are repaired, too (`nfn_monomial.alignment.repair`):
    these become those of the data, gains and shifts follow them.

    Args:
        paths: two or more checkpoints, or one folder of them.
        net: see `read_architecture`, as ``input_shape`` and ``activation``; **its code runs**.
        merge: share of all but the first network in a merged one, 0 to 1; repaired where that can be done.
        data: see `judge_of`; **its code runs**. Without, outputs on the example inputs are compared.
        input_shape: of the example inputs, batch included; of a module that does not state any.
        activation: between the layers of a chain, by name.
        key: of the state dict in files of ``torch.save``, where they have several.
        seed: of the alignment.
        on_progress: called with the number of steps done and of all.
        call: which keeps the networks that are moved, and the scores on each line.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: naming what cannot be used, and the way out; if outputs would change.
    """
    if merge is not None and not 0 <= merge <= 1:
        raise InvalidValueError(f"--merge {merge}: expected the share of the others, 0 to 1")
    networks = read_networks(paths_of(paths), net, input_shape=input_shape, activation=activation, key=key)
    if len(networks) < 2:
        raise InvalidValueError(f"align needs two networks, or a folder of them; found {networks[0].label} alone")
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
    distances = {method: tuple(_distance(found[0], other) for other in found[1:]) for method, found in frames.items()}
    moved = tuple(frames[ALL][1:])
    frames = {m: [{**x, **y} for x, y in zip(frame, unmoved, strict=True)] for m, frame in frames.items()}
    merged: Tensors | None = None if merge is None else mean_of(frames[ALL], _weights(merge, len(networks)))
    if not first.runs:
        return Aligned(tuple(networks), moved, merged, merge, distances)
    differences = [difference_as_written(network, after) for network, after in zip(others, moved, strict=True)]
    judge = judge_of(data, first.definition.inputs)
    course = _Course(first.module(), judge, frames[NAIVE], merge, on_progress, call)
    lines = [line for method, frame in frames.items() for line in course.lines(method, frame)]
    if merge is not None and course.repairs:
        merged = course.at(frames[ALL], merge, repaired=True)
    return Aligned(
        tuple(networks), moved, merged, merge, distances, tuple(d for d in differences if d is not None),
        judge.words, tuple(course.own), tuple(lines),
    )  # fmt: skip


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


class _Course:
    """Judges networks on lines.

    Args:
        module: runs them.
        judge: says how well they do.
        networks: as they are.
        merge: share of all but the first in the network that is asked for.
        on_progress: called after each score.
        call: which keeps the scores.
    """

    def __init__(
        self,
        module: nn.Module,
        judge: Judge,
        networks: Sequence[Tensors],
        merge: float | None,
        on_progress: Callable[[int, int], None],
        call: Call,
    ) -> None:
        self._module, self._judge, self._merge, self._call = module, judge, merge, call
        statistics = any(isinstance(m, _NORMS) and m.running_mean is not None for m in module.modules())
        self.repairs = statistics and judge.statistics is not None
        self.own = judge.own(module, [self._narrow(network) for network in networks])
        self._places = [*PLACES, *([] if merge is None else [merge])]
        self._on_progress, self._done = on_progress, 0

    def lines(self, method: str, frame: Sequence[Tensors]) -> list[Line]:
        """The line through networks in one frame, and the same with each network on it repaired."""
        found = []
        for repaired in (False, True)[: 1 + self.repairs]:
            name, behind = method + REPAIRED * repaired, self._done + len(self._places)

            def judged(repaired: bool = repaired) -> tuple[Any, Tensors]:
                scores = [self._score(frame, t, repaired) for t in self._places]
                losses = torch.tensor([score.loss for score in scores], dtype=torch.float64)
                return [score.accuracy for score in scores], {"losses": losses}

            accuracies, kept = self._call.piece(f"scores-{name.replace(', ', '-').replace(' ', '-')}", judged)
            scores = list(map(Score, kept["losses"].tolist(), accuracies))
            for _ in range(behind - self._done):  # of scores that were kept
                self._step()
            barrier = 0.0
            for t, score in zip(PLACES, scores, strict=False):
                weights = _weights(t, len(frame))
                barrier = max(barrier, score.loss - sum(w * s.loss for w, s in zip(weights, self.own, strict=True)))
            found.append(Line(name, tuple(scores[: len(PLACES)]), barrier, None if self._merge is None else scores[-1]))
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
        self._on_progress(self._done, len(METHODS) * (1 + self.repairs) * len(self._places))

    def _narrow(self, network: Tensors) -> dict[str, Tensor]:
        """In the module's dtypes, in which it takes its inputs."""
        own = {name: t.dtype for name, t in (*self._module.named_parameters(), *self._module.named_buffers())}
        return {name: t.to(own[name]) for name, t in network.items()}


def _weights(t: float, count: int) -> list[float]:
    """The share of the first network, and those of the others."""
    return [1 - t, *[t / (count - 1)] * (count - 1)]


def _shown(score: Score) -> list[str]:
    """Loss and, if there is one, accuracy."""
    return [f"{score.loss:.4g}", *([] if score.accuracy is None else [f"{score.accuracy:.3f}"])]


def _mean(distances: Sequence[float]) -> str:
    return f"{sum(distances) / len(distances):.4g}"


def _distance(a: Tensors, b: Tensors) -> float:
    return float(torch.stack([(a[name] - b[name]).square().sum() for name in a]).sum().sqrt())
