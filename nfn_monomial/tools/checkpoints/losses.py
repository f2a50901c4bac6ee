"""Losses of merged networks: on a user's own data, or by their outputs on inputs without labels.

A merged network should do the same as the networks that it was merged from. With data, this is measured by its loss on
them. Without, it is the distance of its outputs ``f`` from the mean of the others' outputs, weighted as they were
merged: ``||f - sum w_i f_i||^2 / mean ||f_i||^2``, which is 0 for each of the networks itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset

from nfn_monomial.alignment import mean_measures
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.running import answers, inputs_of
from nfn_monomial.tools.definitions.imports import called, named

__all__ = ["Data", "Loss", "Score", "loss_on"]

Data: TypeAlias = "str | Callable[[], Any] | Iterable[Any] | Dataset[Any] | None"
"""Data, a function that returns them, the name of either (``module.py:NAME``), or none at all. See `OnData`."""
Score: TypeAlias = "tuple[float, float | None]"
"""A network's loss, and its accuracy, if there are classes."""
STATISTICS = 1024  # samples that REPAIR's statistics are taken on, or a few more
BATCH = 256  # samples of a data set that are taken at once
EXPECTED = (
    "expected tensors (inputs, targets), a list of such pairs, or a torch Dataset or DataLoader whose samples are pairs"
)


class OnData:
    """A loss on labelled data: cross-entropy for integer targets, which are classes, mean squared error for others.

    The samples are the same each time, one batch in memory.

    Args:
        data: a pair of inputs and targets, or a list of pairs, in which inputs are a tensor or a tuple of all
            positional arguments; a torch ``Dataset`` or ``DataLoader``; a function without arguments that returns one
            of these; or the name of it.

    Attributes:
        label: the name of the data.
        words: the loss in words.
        classes: whether the targets are classes.
        statistics: inputs of the first samples of one size, which REPAIR can take.
        repaired_on: the samples that these are, in words.

    Raises:
        ValueError: naming what cannot be used, and what is expected.
    """

    def __init__(self, data: Data) -> None:
        self.label = data if isinstance(data, str) else getattr(data, "__name__", "data")
        kinds = (Dataset, DataLoader)
        source: Any = named(data, kinds)[1] if isinstance(data, str) else data
        if callable(source) and not isinstance(source, kinds):
            source = called(source, self.label)
        if isinstance(source, Dataset):
            source = DataLoader(source, BATCH)
        elif isinstance(source, tuple) and len(source) == 2 and isinstance(source[1], Tensor):
            source = [source]
        elif isinstance(source, Iterator):  # which can be iterated over once
            source = called(lambda: list(source), self.label)
        elif isinstance(source, Tensor) or not isinstance(source, Iterable):  # of a tensor, rows would be pairs
            raise InvalidValueError(f"{self.label} returns {type(source).__name__}: {EXPECTED}")
        self._source = source
        samples, are_classes, first = 0, set(), list[list[Tensor]]()
        for inputs, targets in self:
            parts = list(inputs_of(inputs))
            if samples < STATISTICS and (not first or [t.shape[1:] for t in parts] == [t.shape[1:] for t in first[0]]):
                first.append(parts)
            samples += len(targets)
            are_classes.add(not (targets.is_floating_point() or targets.is_complex()))
        if not first:
            raise InvalidValueError(f"{self.label} returns nothing: {EXPECTED}")
        if len(are_classes) > 1:
            raise InvalidValueError(f"{self.label} has targets that are classes and others that are not: give one kind")
        self.classes = are_classes.pop()
        columns = tuple(torch.cat(column) for column in zip(*first, strict=True))
        self.statistics: Any = columns if len(columns) > 1 else columns[0]
        self.words = f"{'cross-entropy' if self.classes else 'mean squared error'} on {samples} samples"
        self.repaired_on = "the data that it is judged on, which flatters it: give others by --repair-data"

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        batches: Iterator[Any] | None = None
        for number in itertools.count():
            try:
                with torch.random.fork_rng(devices=[]):  # for a loader that shuffles, and samples that are drawn
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
            tensors = (targets, *inputs_of(inputs))
            if not all(isinstance(t, Tensor) for t in tensors):
                raise InvalidValueError(f"{self.label} returns other things: {EXPECTED}")
            if not all(t.ndim for t in tensors):
                raise InvalidValueError(f"{self.label} returns samples one by one: {EXPECTED}")
            yield inputs, targets

    def of_ends(self, module: nn.Module, networks: Sequence[Mapping[str, Tensor]]) -> list[Score]:
        """Scores networks, parameter -> tensor each, before those that are merged from them."""
        return [self.of_merged(module, network, ()) for network in networks]

    def of_merged(self, module: nn.Module, network: Mapping[str, Tensor], weights: Sequence[float]) -> Score:
        """Scores a network that was merged from them with these weights."""
        loss, *accuracy = mean_measures(module, [network], self, self._measure)[0].tolist()
        if not math.isfinite(loss):
            raise InvalidValueError(f"{self.words}: a loss is {loss}; inputs, targets and outputs must be finite")
        return loss, accuracy[0] if accuracy else None

    def _measure(self, outputs: Any, targets: Tensor) -> Tensor:
        out = next((t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor)), None)
        if out is None:
            raise InvalidValueError(f"the network returns no tensor but {type(outputs).__name__}: nothing to judge")
        if not self.classes:
            if out.shape != targets.shape:
                raise InvalidValueError(f"outputs are {tuple(out.shape)}, but targets {tuple(targets.shape)}")
            return F.mse_loss(out, targets.to(out.dtype)).reshape(1)
        if out.shape[:-1] == targets.shape:
            scores = out
        elif (*out.shape[:1], *out.shape[2:]) == tuple(targets.shape):
            scores = out.movedim(1, -1)
        else:
            raise InvalidValueError(
                f"outputs are {tuple(out.shape)} and classes {tuple(targets.shape)}: expected a class for each row "
                "of outputs, with scores of the classes in the last dimension, or in dimension 1"
            )
        scores, wanted = scores.flatten(0, -2), targets.flatten().long()
        if not bool(((wanted >= 0) & (wanted < scores.shape[-1])).all()):
            raise InvalidValueError(
                f"classes must be 0 to {scores.shape[-1] - 1}, found {sorted(set(wanted.tolist()))[:8]}"
            )
        return torch.stack([F.cross_entropy(scores, wanted), (scores.argmax(-1) == wanted).to(scores.dtype).mean()])


class OnProbes:
    """The distance of outputs on inputs (all positional arguments) without labels; attributes as of `OnData`."""

    words = "squared distance from the networks' mean outputs, relative, on the example inputs"
    repaired_on = ""

    def __init__(self, inputs: tuple[Any, ...]) -> None:
        self.inputs, self.statistics = inputs, None
        self._ends: list[list[Tensor]] = []

    def of_ends(self, module: nn.Module, networks: Sequence[Mapping[str, Tensor]]) -> list[Score]:
        self._ends = [self._outputs(module, network) for network in networks]
        return [(0.0, None) for _ in networks]

    def of_merged(self, module: nn.Module, network: Mapping[str, Tensor], weights: Sequence[float]) -> Score:
        apart = size = 0.0
        for out, *ends in zip(self._outputs(module, network), *self._ends, strict=True):
            mean = torch.stack([w * x for w, x in zip(weights, ends, strict=True)]).sum(0)
            apart += float((out - mean).square().sum())
            size += float(torch.stack([x.square().sum() for x in ends]).mean())
        return apart / size if size else apart, None

    def _outputs(self, module: nn.Module, network: Mapping[str, Tensor]) -> list[Tensor]:
        return [t.double() for t in answers(module, network, self.inputs) if t.is_floating_point()]


Loss: TypeAlias = OnData | OnProbes


def loss_on(data: Data, inputs: tuple[Any, ...], repair_data: Data = None) -> Loss:
    """Returns the loss on some data, or on example inputs (all positional arguments).

    ``repair_data`` are the data that the networks were trained on, by default ``data``: REPAIR takes its statistics on
    their first inputs.

    Raises:
        ValueError: naming what cannot be used, and what is expected.
    """
    loss = OnProbes(inputs) if data is None else OnData(data)
    if repair_data is not None:
        trained = OnData(repair_data)
        loss.statistics, loss.repaired_on = trained.statistics, f"samples of {trained.label}"
    return loss
