"""What networks are judged on: a user's own data and their loss, or their answers to inputs without labels.

A merged network should do what the networks do that it was merged from. With data that is its loss on them. Without, it
is how far its outputs ``f`` are from the mean of the others' outputs, weighted as they were merged:
``||f - sum w_i f_i||^2 / mean ||f_i||^2``, which is 0 for each of the networks itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial.adapters.definitions import called, named
from nfn_monomial.alignment import mean_measures
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.certificate import answers, inputs_of

__all__ = ["Data", "Judge", "Score", "judge_of"]

Data: TypeAlias = "str | Callable[[], Any] | None"
"""How data are given: ``module.py:function``, the function, or not at all."""
STATISTICS = 1024  # samples that REPAIR's statistics are taken on, or a few more
EXPECTED = "expected tensors (inputs, targets), or a list of such pairs"


class Score(NamedTuple):
    """How well a network does.

    Attributes:
        loss: less is better.
        accuracy: share of right classes; None where there are none.
    """

    loss: float
    accuracy: float | None = None


class OnData:
    """A loss on labelled data, pairs of inputs and targets, which may be classes.

    ``words`` say what is measured, ``statistics`` can be taken on the first inputs.
    """

    def __init__(self, batches: Sequence[tuple[Any, Tensor]], classes: bool) -> None:
        self.batches, self.classes = batches, classes
        loss = "cross-entropy" if classes else "mean squared error"
        self.words = f"{loss} on {sum(len(targets) for _, targets in batches)} samples"

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

    @property
    def statistics(self) -> Any:
        """Inputs on which statistics can be taken."""
        taken: list[list[Any]] = []
        for inputs, _ in self.batches:
            if sum(len(leaves[0]) for leaves in taken) < STATISTICS:
                taken.append(list(inputs_of(inputs)))
        parts = tuple(torch.cat(column) for column in zip(*taken, strict=True))
        return parts if len(parts) > 1 else parts[0]


class OnProbes:
    """Outputs on inputs (all positional arguments) without labels; methods as of `OnData`."""

    words = "squared distance from the networks' mean outputs, relative, on the example inputs"
    statistics = None

    def __init__(self, inputs: tuple[Any, ...]) -> None:
        self.inputs = inputs
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


def judge_of(data: Data, inputs: tuple[Any, ...]) -> Judge:
    """What to judge networks on.

    Args:
        data: a function without arguments, or its name, that returns inputs and targets, or a list of such pairs.
            Inputs are a tensor or a tuple of all positional arguments; integer targets are classes (cross-entropy),
            others are compared by mean squared error.
        inputs: to use without data.

    Raises:
        ValueError: naming what cannot be used, and what is expected.
    """
    if data is None:
        return OnProbes(inputs)
    label = data if isinstance(data, str) else getattr(data, "__name__", "data")
    found = called(named(data)[1] if isinstance(data, str) else data, label)
    pair = isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Tensor)
    try:
        batches = [(x, y) for x, y in ([found] if pair else found)]
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"{label} returns {type(found).__name__}: {EXPECTED}") from error
    if not batches or not all(
        isinstance(y, Tensor) and all(isinstance(t, Tensor) for t in inputs_of(x)) for x, y in batches
    ):
        raise InvalidValueError(f"{label} returns {'nothing' if not batches else 'other things'}: {EXPECTED}")
    classes = {not (y.is_floating_point() or y.is_complex()) for _, y in batches}
    if len(classes) > 1:
        raise InvalidValueError(f"{label} has targets that are classes and targets that are not: give one kind")
    return OnData(batches, classes.pop())
