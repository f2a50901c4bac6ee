"""What networks are judged on: a user's own data and their loss, or their answers to inputs without labels.

A merged network should do what the networks do that it was merged from. With data that is its loss on them. Without, it
is how far its outputs ``f`` are from the mean of the others' outputs, weighted as they were merged:
``||f - sum w_i f_i||^2 / mean ||f_i||^2``, which is 0 for each of the networks itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset

from nfn_monomial.alignment import mean_measures
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.running import answers, inputs_of
from nfn_monomial.tools.definitions.imports import called, named

__all__ = ["Data", "Judge", "Score", "judge_of"]

Data: TypeAlias = "str | Callable[[], Any] | Iterable[Any] | Dataset[Any] | None"
"""Data, a function that returns them, the name of either (``module.py:NAME``), or none at all. See `batches_of`."""
STATISTICS = 1024  # samples that REPAIR's statistics are taken on, or a few more
BATCH = 256  # samples of a data set that are taken at once
EXPECTED = (
    "expected tensors (inputs, targets), a list of such pairs, or a torch Dataset or DataLoader whose samples are pairs"
)


class Score(NamedTuple):
    """How well a network does.

    Attributes:
        loss: less is better.
        accuracy: share of right classes; None where there are none.
    """

    loss: float
    accuracy: float | None = None


class Batches:
    """Pairs of inputs and targets, checked; the same ones each time they are gone through, one batch in memory.

    Attributes:
        samples: how many there are.
        classes: whether the targets are.
        first: inputs of the first samples, on which statistics can be taken.
        label: whose they are.
    """

    def __init__(self, source: Iterable[Any], label: str) -> None:
        self._source, self.label, self.samples = source, label, 0
        kinds, taken = set(), list[list[Tensor]]()
        for inputs, targets in self:
            if self.samples < STATISTICS:
                taken.append(list(inputs_of(inputs)))
            self.samples += len(targets)
            kinds.add(not (targets.is_floating_point() or targets.is_complex()))
        if not taken:
            raise InvalidValueError(f"{label} returns nothing: {EXPECTED}")
        if len(kinds) > 1:
            raise InvalidValueError(f"{label} has targets that are classes and targets that are not: give one kind")
        self.classes = kinds.pop()
        parts = tuple(torch.cat(column) for column in zip(*taken, strict=True))
        self.first: Any = parts if len(parts) > 1 else parts[0]

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        batches: Iterator[Any] | None = None
        for number in itertools.count():
            try:
                with torch.random.fork_rng(devices=[]):  # of a loader that shuffles, and of samples that are drawn
                    torch.manual_seed(number)
                    if batches is None:
                        batches = iter(self._source)
                    batch = next(batches, None)
            except (Exception, SystemExit) as error:
                raise InvalidValueError(f"{self.label} fails: {type(error).__name__}: {error}") from error
            if batch is None:
                return
            try:
                inputs, targets = batch
            except (TypeError, ValueError) as error:
                raise InvalidValueError(f"{self.label} returns {type(self._source).__name__}: {EXPECTED}") from error
            if not all(isinstance(t, Tensor) for t in (targets, *inputs_of(inputs))):
                raise InvalidValueError(f"{self.label} returns other things: {EXPECTED}")
            yield inputs, targets


class OnData:
    """A loss on labelled data.

    ``words`` say what is measured, ``statistics`` are inputs that REPAIR can take, ``repaired_on`` says whose.
    """

    def __init__(self, batches: Batches) -> None:
        self.batches, self.classes, self.statistics = batches, batches.classes, batches.first
        loss = "cross-entropy" if self.classes else "mean squared error"
        self.words = f"{loss} on {batches.samples} samples"
        self.repaired_on = "the data that it is judged on, which flatters it: give others by --repair-data"

    def own(self, module: nn.Module, networks: Sequence[Mapping[str, Tensor]]) -> list[Score]:
        """Of the networks that are merged later, parameter -> tensor each; asked for first."""
        return [self.merged(module, network, ()) for network in networks]

    def merged(self, module: nn.Module, network: Mapping[str, Tensor], weights: Sequence[float]) -> Score:
        """Of a network that was merged from them with these weights."""
        score = Score(*mean_measures(module, [network], self.batches, self._measure)[0].tolist())
        if not math.isfinite(score.loss):
            raise InvalidValueError(f"{self.words}: a loss is {score.loss}; inputs, targets and outputs must be finite")
        return score

    def _measure(self, outputs: Any, targets: Tensor) -> Tensor:
        found = next((t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor)), None)
        if found is None:
            raise InvalidValueError(f"the network returns no tensor but {type(outputs).__name__}: nothing to judge")
        if not self.classes:
            if found.shape != targets.shape:
                raise InvalidValueError(f"outputs are {tuple(found.shape)}, but targets {tuple(targets.shape)}")
            return F.mse_loss(found, targets.to(found.dtype)).reshape(1)
        if found.shape[:-1] == targets.shape:
            scores = found
        elif (*found.shape[:1], *found.shape[2:]) == tuple(targets.shape):
            scores = found.movedim(1, -1)
        else:
            raise InvalidValueError(
                f"outputs are {tuple(found.shape)} and classes {tuple(targets.shape)}: expected a class for each row "
                "of outputs, with scores of the classes in the last dimension, or in dimension 1"
            )
        scores, wanted = scores.flatten(0, -2), targets.flatten().long()
        if not bool(((wanted >= 0) & (wanted < scores.shape[-1])).all()):
            raise InvalidValueError(
                f"classes must be 0 to {scores.shape[-1] - 1}, found {sorted(set(wanted.tolist()))[:8]}"
            )
        return torch.stack([F.cross_entropy(scores, wanted), (scores.argmax(-1) == wanted).to(scores.dtype).mean()])


class OnProbes:
    """Outputs on inputs (all positional arguments) without labels; methods as of `OnData`."""

    words = "squared distance from the networks' mean outputs, relative, on the example inputs"
    repaired_on = ""

    def __init__(self, inputs: tuple[Any, ...]) -> None:
        self.inputs, self.statistics = inputs, None
        self._ends: list[list[Tensor]] = []

    def own(self, module: nn.Module, networks: Sequence[Mapping[str, Tensor]]) -> list[Score]:
        self._ends = [self._outputs(module, network) for network in networks]
        return [Score(0.0) for _ in networks]

    def merged(self, module: nn.Module, network: Mapping[str, Tensor], weights: Sequence[float]) -> Score:
        apart = size = 0.0
        for out, *own in zip(self._outputs(module, network), *self._ends, strict=True):
            mean = torch.stack([w * x for w, x in zip(weights, own, strict=True)]).sum(0)
            apart += float((out - mean).square().sum())
            size += float(torch.stack([x.square().sum() for x in own]).mean())
        return Score(apart / size if size else apart)

    def _outputs(self, module: nn.Module, network: Mapping[str, Tensor]) -> list[Tensor]:
        return [t.double() for t in answers(module, network, self.inputs) if t.is_floating_point()]


Judge: TypeAlias = OnData | OnProbes


def judge_of(data: Data, inputs: tuple[Any, ...], repair_data: Data = None) -> Judge:
    """What to judge networks on.

    Args:
        data: see `batches_of`. Integer targets are classes (cross-entropy), others are compared by mean squared error.
        inputs: to use without data: all positional arguments.
        repair_data: whose first inputs REPAIR's statistics are taken on, those that the networks were trained on; by
            default ``data``.

    Raises:
        ValueError: naming what cannot be used, and what is expected.
    """
    judge = OnProbes(inputs) if data is None else OnData(batches_of(data))
    if repair_data is not None:
        batches = batches_of(repair_data)
        judge.statistics, judge.repaired_on = batches.first, f"samples of {batches.label}"
    return judge


def batches_of(data: Data) -> Batches:
    """Inputs and targets in batches.

    Args:
        data: a pair of them, or a list of pairs, in which inputs are a tensor or a tuple of all positional arguments;
            a torch ``Dataset``, of which batches are made, or ``DataLoader``; a function without arguments that returns
            one of these; or the name of it.

    Raises:
        ValueError: naming what cannot be used, and what is expected.
    """
    label = data if isinstance(data, str) else getattr(data, "__name__", "data")
    kinds = (Dataset, DataLoader)
    found: Any = named(data, kinds)[1] if isinstance(data, str) else data
    if callable(found) and not isinstance(found, kinds):
        found = called(found, label)
    if isinstance(found, Dataset):
        found = DataLoader(found, BATCH)
    elif isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Tensor):
        found = [found]
    elif isinstance(found, Iterator):  # which can be gone through once
        found = called(lambda: list(found), label)
    elif not isinstance(found, Iterable):
        raise InvalidValueError(f"{label} returns {type(found).__name__}: {EXPECTED}")
    return Batches(found, label)
