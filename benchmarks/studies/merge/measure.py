"""Lines between networks and means of several, measured; every pair's numbers are kept, so that a run goes on."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nfn_monomial.alignment import align, align_all, barrier, interpolate, mean_measures, mean_of, repair
from nfn_monomial.benchmarks.experiments.merge import MergeConfig, Subject, read_subject
from nfn_monomial.tools.store import Store

from .methods import IMAGE_NETS, Family, Pair
from .networks import TRANSFORMERS as KINDS_OF_TRANSFORMERS
from .networks import Network, Trained, data_of, trained
from .transformers import TRANSFORMERS

__all__ = ["Findings", "Line", "Merged", "measure_merging", "shares_left"]

EVALUATED = 500  # images at once
MEASURED = 1000  # images of a part, at most


@dataclass(frozen=True)
class Line:
    """One pair by one method: what the networks on the line from a to b do.

    Attributes:
        subject: see `Subject`.
        pair: its number.
        method: a baseline or a variant of the family, or its ``ours``.
        repaired: whether statistics are reset (`repair`).
        loss: cross-entropy at evenly spaced t.
        accuracy: likewise.
    """

    subject: str
    pair: int
    method: str
    repaired: bool
    loss: tuple[float, ...]
    accuracy: tuple[float, ...]

    @property
    def barrier(self) -> float:
        """Of the loss, see `nfn_monomial.alignment.barrier`."""
        return barrier(self.loss)

    @property
    def middle(self) -> float:
        """Accuracy at t = 1/2."""
        return self.accuracy[len(self.accuracy) // 2]

    @property
    def ends(self) -> float:
        """Mean accuracy of the two networks."""
        return (self.accuracy[0] + self.accuracy[-1]) / 2


@dataclass(frozen=True)
class Merged:
    """Several networks merged at once by one method.

    Attributes:
        group: number of the group of networks.
        method: how they were brought into one frame.
        repaired: whether statistics were reset.
        loss: of their mean.
        accuracy: of their mean.
        single: mean accuracy of the networks themselves.
    """

    group: int
    method: str
    repaired: bool
    loss: float
    accuracy: float
    single: float


@dataclass(frozen=True)
class Findings:
    """All that was measured.

    Attributes:
        family: by which methods.
        lines: of test pairs on test images.
        validation: of validation pairs on validation images, by all variants.
        variants: whether repaired -> the one that was chosen there, which is the family's ``ours`` in
            ``lines``.
        merged: of the several networks at once.
        accuracies: subject -> of every network, on the test images.
        parameters: subject -> entries of a network.
    """

    family: Family
    lines: list[Line]
    validation: list[Line]
    variants: dict[bool, str]
    merged: list[Merged]
    accuracies: dict[str, list[float]]
    parameters: dict[str, int]


def measure_merging(
    config: MergeConfig, folder: Path, progress: Callable[[int, int], object] = lambda done, total: None
) -> Findings:
    """Train, match, merge and measure.

    Args:
        config: see there.
        folder: networks and the numbers of finished pairs are kept here; of another configuration, they are replaced.
        progress: called with the numbers of pairs that are done and that there are in all.
    """
    family = TRANSFORMERS if read_subject(config.several).kind in KINDS_OF_TRANSFORMERS else IMAGE_NETS
    subjects, several = [read_subject(text) for text in config.subjects], read_subject(config.several)
    needed = dict.fromkeys((*subjects, several))
    total = len(needed) + len(subjects) * (config.pairs + config.validation_pairs) + config.pairs
    done = 0

    def tell(units: int) -> None:
        nonlocal done
        done += units
        progress(done, total)

    tell(0)
    networks: dict[Subject, Trained] = {}
    for subject in needed:
        networks[subject] = trained(subject, config, folder / "networks")
        tell(1)
    described = {name: value for name, value in asdict(config).items() if name not in ("subjects", "several")}
    kept = Store(folder / "pairs", described)

    def lines(part: str, methods: Mapping[str, Any]) -> list[Line]:
        found = []
        for subject in subjects:
            for number in range(len(getattr(networks[subject], part)) // 2):
                found += _lines(kept, config, part, subject, number, methods, networks[subject])
                tell(1)
        return found

    validation = lines("val", {**family.baselines, **family.variants})
    variants = {repaired: _chosen(family, validation, repaired) for repaired in (False, True)}
    measured = lines("test", {**family.baselines, **{name: family.variants[name] for name in variants.values()}})
    named = {name: {False: name, True: name} for name in family.baselines} | {family.ours: variants}
    test = [
        replace(line, method=method)
        for method, names in named.items()
        for line in measured
        if line.method == names[line.repaired]
    ]
    merged = []
    for group in range(config.pairs):
        stated, _ = kept.piece(
            f"{several}-together-{group}", functools.partial(_together, group, networks[several], several, config)
        )
        merged += [Merged(**entry) for entry in stated]
        tell(1)
    return Findings(
        family,
        test,
        validation,
        variants,
        merged,
        {str(s): n.accuracies for s, n in networks.items()},
        {str(s): sum(t.numel() for t in n.test[0].values()) for s, n in networks.items()},
    )


def _chosen(family: Family, validation: Sequence[Line], repaired: bool) -> str:
    """The variant that leaves the least share of the naive barrier, mean over all pairs of all subjects."""
    shares = shares_left([line for line in validation if line.repaired == repaired])
    return min(family.variants, key=lambda name: statistics.fmean(shares[name] or [1.0]))


def shares_left(lines: Sequence[Line]) -> dict[str, list[float]]:
    """Method -> of each pair the barrier as a share of the naive one, of those pairs that have a naive one."""
    naive = {(x.subject, x.pair, x.repaired): x.barrier for x in lines if x.method == "naive"}
    found: dict[str, list[float]] = {x.method: [] for x in lines}
    for x in lines:
        if (whole := naive[x.subject, x.pair, x.repaired]) > 0:
            found[x.method].append(x.barrier / whole)
    return found


def _lines(
    kept: Store,
    config: MergeConfig,
    part: str,
    subject: Subject,
    number: int,
    methods: Mapping[str, Any],
    networks: Trained,
) -> list[Line]:
    """Of one pair, by these methods; each in a piece of its own, as the methods on test pairs are chosen later."""
    _, data = data_of(subject)
    ours: list[Network] = getattr(networks, part)
    inputs = data.train[0][: config.inputs]
    pair = Pair(networks.space, networks.module, ours[2 * number], ours[2 * number + 1], inputs)

    def measured(name: str) -> tuple[Any, dict[str, Tensor]]:
        a, b = methods[name](pair)
        on = getattr(data, part)
        return [_along(networks.module, a, b, inputs, on, config, repaired) for repaired in (False, True)], {}

    found = []
    for name in methods:
        stated, _ = kept.piece(f"{subject}-{part}-{number}-{name.replace(' ', '-')}", functools.partial(measured, name))
        for repaired, (loss, accuracy) in zip((False, True), stated, strict=True):
            found.append(Line(str(subject), number, name, repaired, tuple(loss), tuple(accuracy)))
    return found


def _together(
    group: int, networks: Trained, subject: Subject, config: MergeConfig
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Several networks at once: as they are, each matched to the first, and all to one another."""
    _, data = data_of(subject)
    count = len(networks.test)
    chosen = [networks.test[(2 * group + i) % count] for i in range(config.together)]
    space, module = networks.space, networks.module
    first, *others = chosen
    ways: dict[str, Callable[[], Sequence[Mapping[str, Tensor]]]] = {
        "naive": lambda: chosen,
        "weight matching to the first": lambda: [
            first,
            *(align(space, first, other, symmetry="permutation").aligned for other in others),
        ],
        "all at once, permutation": lambda: align_all(space, chosen, symmetry="permutation").aligned,
        "all at once, permutation and scale": lambda: align_all(space, chosen).aligned,
    }
    inputs = data.train[0][: config.inputs]
    batches = _batches(data.test)
    single = float(mean_measures(module, chosen, batches, _measure)[:, 1].mean())
    found = []
    for name, way in ways.items():
        networks_of_one_frame = way()
        mean = mean_of(networks_of_one_frame)
        for repaired in (False, True):
            network = repair(module, mean, networks_of_one_frame, inputs) if repaired else mean
            ((loss, accuracy),) = mean_measures(module, [network], batches, _measure).tolist()
            found.append(asdict(Merged(group, name, repaired, loss, accuracy, single)))
    return found, {}


def _along(
    module: nn.Module,
    a: Network,
    b: Network,
    inputs: Tensor,
    on: tuple[Tensor, Tensor],
    config: MergeConfig,
    repaired: bool,
) -> tuple[list[float], list[float]]:
    """Losses and accuracies on the line."""
    line = []
    for t in torch.linspace(0, 1, config.points, dtype=torch.float64).tolist():
        network = interpolate(a, b, t)
        line.append(repair(module, network, (a, b), inputs, (1 - t, t)) if repaired else network)
    found = mean_measures(module, line, _batches(on), _measure)
    return found[:, 0].tolist(), found[:, 1].tolist()


def _batches(data: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(*(torch.split(part[:MEASURED], EVALUATED) for part in data), strict=True))


def _measure(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy and accuracy."""
    return torch.stack(
        [nn.functional.cross_entropy(outputs, labels), (outputs.argmax(-1) == labels).to(outputs.dtype).mean()]
    )
