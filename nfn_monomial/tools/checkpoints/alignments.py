"""Networks in one frame: written as checkpoints, merged, and the barrier between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from nfn_monomial import align
from nfn_monomial.alignment import align_all, mean_of, repair
from nfn_monomial.alignment.rounding import differing
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.calls import ALONE, Call
from nfn_monomial.tools.report import Report, Table

from .data import Data, Judge, Score, judge_of
from .figures import draw_lines
from .files import CheckpointError
from .networks import Net, Network, PathLike, difference_as_written, left_behind, paths_of, read_networks
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
    """What `align` made.

    Attributes:
        given: the networks, the frame's first.
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

    given: tuple[Network, ...]
    moved: tuple[Tensors, ...]
    merged: Tensors | None
    share: float | None
    distances: Mapping[str, tuple[float, ...]]
    differences: tuple[float, ...]
    judged: str
    own: tuple[Score, ...]
    lines: tuple[Line, ...]

    @property
    def networks(self) -> Sequence[Network]:
        return self.given

    @property
    def checkpoints(self) -> Sequence[Written]:
        first, *others = self.given
        names = [network.checkpoint.name for network in others]
        unique = len(set(names)) == len(names)
        found = [
            Written(network, name if unique else f"{network.label.replace('/', '-')}-{name}", tensors)
            for network, name, tensors in zip(others, names, self.moved, strict=True)
        ]
        if self.merged is not None:
            found.append(Written(first, first.checkpoint.renamed("merged"), self.merged))
        return found

    @property
    def summary(self) -> str:
        first, *others = self.given
        lines = [f"Moved into the frame of {first.label}:"]
        for i, network in enumerate(others):
            steps = ", ".join(f"{found[i]:.4g} ({method})" for method, found in self.distances.items())
            lines.append(f"  {network.label}: distance {steps}")
        if self.differences:
            lines.append(f"No output changes by more than {max(self.differences):.1e} of the largest by that.")
            lines.append(f"Barriers are of: {self.judged}.")
        else:
            lines.append(f"Outputs were not compared: {first.why_not}.")
        lines += left_behind(others if self.merged is None else self.given)
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        first, *others = self.given
        return {
            "network": first.architecture.name,
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
        header = ["moved by", "distance", "barrier"] if self.lines else ["moved by", "distance"]
        asked, classes = self.share is not None, any(s.accuracy is not None for s in self.own)
        header += [f"loss at {self.share or 0:.3g}"] * (asked and bool(self.lines))
        header += [f"accuracy at {self.share or 0:.3g}"] * (asked and classes)
        cells = []
        for method, found in self.distances.items():
            distance = f"{sum(found) / len(found):.4g}"
            lines = [line for line in self.lines if line.method.removesuffix(REPAIRED) == method]
            cells += [[method, distance]] * (not lines)
            for line in lines:
                row = [line.method, distance, f"{line.barrier:.4g}"]
                if line.merged is not None:
                    row += _shown(line.merged)
                cells.append(row)
        notes = []
        if self.lines:
            own = "; ".join(", ".join(_shown(score)) for score in self.own)
            notes = [
                f"Losses: {self.judged}. The networks' own: {own}. Barrier: the largest excess over these on the line "
                "from the first network to the mean of the others."
            ]
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
            raise CheckpointError(
                f"{first.label} and {network.label} differ in {', '.join(odd)}, which the network reads, no symmetry "
                "moves, and are not in floating point: there is no line between these networks"
            )
    space, wide = first.space, [{name: t.double() for name, t in network.items()} for network in networks]
    frames: dict[str, list[Tensors]] = {NAIVE: list(wide)}
    for method, symmetry in ((PERMUTATION, "permutation"), (ALL, None)):

        def move(symmetry: str | None = symmetry) -> tuple[Any, Mapping[str, Tensor]]:
            if len(wide) == 2:
                found = [align(space, *wide, symmetry=symmetry, seed=seed).aligned]
            else:
                found = align_all(space, wide, symmetry=symmetry, seed=seed).aligned[1:]
            return None, {f"{i} {name}": t for i, network in enumerate(found) for name, t in network.items()}

        _, kept = call.piece(f"moved-by-{symmetry or 'all'}", move)
        frames[method] = [wide[0], *({name: kept[f"{i} {name}"] for name in wide[0]} for i in range(len(others)))]
    distances = {method: tuple(_distance(found[0], other) for other in found[1:]) for method, found in frames.items()}
    moved = tuple(frames[ALL][1:])
    weights = None if merge is None else _weights(merge, len(networks))
    frames = {m: [{**x, **y} for x, y in zip(frame, unmoved, strict=True)] for m, frame in frames.items()}
    merged: Tensors | None = None if weights is None else mean_of(frames[ALL], weights)
    if not first.runs:
        return Aligned(tuple(networks), moved, merged, merge, distances, (), "", (), ())
    differences = [difference_as_written(network, after) for network, after in zip(others, moved, strict=True)]
    definition = first.architecture.definition
    judge = judge_of(data, definition.inputs if definition else ())
    course = _Course(first.module(), judge, frames[NAIVE], merge, on_progress, call)
    lines = [line for method, frame in frames.items() for line in course.lines(method, frame)]
    if merged is not None and weights is not None and course.repairs:
        merged = course.repaired(merged, frames[ALL], weights)
    return Aligned(
        tuple(networks), moved, merged, merge, distances, tuple(d for d in differences if d is not None),
        judge.words, tuple(course.own), tuple(lines),
    )  # fmt: skip


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
        self.module, self.judge, self.merge, self.call = module, judge, merge, call
        statistics = any(isinstance(m, _NORMS) and m.running_mean is not None for m in module.modules())
        self.repairs = statistics and judge.statistics is not None
        self.own = judge.own(module, [self._narrow(network) for network in networks])
        self._count = len(networks)
        steps = (len(METHODS) * (1 + self.repairs)) * (len(PLACES) + (merge is not None))
        numbers = itertools.count(1)

        def step() -> None:
            on_progress(next(numbers), steps)

        self._step = step

    def lines(self, method: str, frame: Sequence[Tensors]) -> list[Line]:
        """The line through networks in one frame, and the same with each network on it repaired."""
        found = []
        for repaired in (False, True)[: 1 + self.repairs]:
            name = method + REPAIRED * repaired
            places = [*PLACES, *([] if self.merge is None else [self.merge])]
            scores = self._scores(name, frame, places, repaired)
            excess = [score.loss - self._expected(t) for t, score in zip(PLACES, scores, strict=False)]
            merged = None if self.merge is None else scores[-1]
            found.append(Line(name, tuple(scores[: len(PLACES)]), max(0.0, *excess), merged))
        return found

    def repaired(self, merged: Tensors, frame: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
        """A merged network with statistics of its own."""
        ends = [self._narrow(network) for network in frame]
        found = repair(self.module, self._narrow(merged), ends, self.judge.statistics, weights)
        return {name: found[name] for name in merged}

    def _scores(self, name: str, frame: Sequence[Tensors], places: Sequence[float], repaired: bool) -> list[Score]:
        """Of the networks at some places of a line."""
        name = f"scores-{name.replace(', ', '-').replace(' ', '-')}"
        if (found := self.call.get(name)) is None:
            scores = [self._score(frame, t, repaired) for t in places]
            losses = torch.tensor([score.loss for score in scores], dtype=torch.float64)
            found = self.call.put(name, [score.accuracy for score in scores], {"losses": losses})
        else:
            for _ in places:
                self._step()
        return [Score(*pair) for pair in zip(found[1]["losses"].tolist(), found[0], strict=True)]

    def _score(self, frame: Sequence[Tensors], t: float, repaired: bool) -> Score:
        weights = _weights(t, self._count)
        network = mean_of(frame, weights)
        found = self.repaired(network, frame, weights) if repaired else self._narrow(network)
        score = self.judge.merged(self.module, found, weights)
        self._step()
        return score

    def _expected(self, t: float) -> float:
        return sum(w * score.loss for w, score in zip(_weights(t, self._count), self.own, strict=True))

    def _narrow(self, network: Tensors) -> dict[str, Tensor]:
        """In the module's dtypes, in which it takes its inputs."""
        own = {name: t.dtype for name, t in (*self.module.named_parameters(), *self.module.named_buffers())}
        return {name: t.to(own[name]) for name, t in network.items()}


def _weights(t: float, count: int) -> list[float]:
    """The share of the first network, and those of the others."""
    return [1 - t, *[t / (count - 1)] * (count - 1)]


def _shown(score: Score) -> list[str]:
    """Loss and, if there is one, accuracy."""
    return [f"{score.loss:.4g}", *([] if score.accuracy is None else [f"{score.accuracy:.3f}"])]


def _distance(a: Tensors, b: Tensors) -> float:
    return float(torch.stack([(a[name] - b[name]).square().sum() for name in a]).sum().sqrt())
