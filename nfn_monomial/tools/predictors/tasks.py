"""What predictors are asked; here, the accuracy of classifiers. The experiments ask more.

A task says which networks it is about, builds the model again that was trained on them, and turns what that model says
into an answer. It is written as JSON (numbers, names, weight spaces; no code) and read back with every check.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from nfn_monomial import Axis, WeightSpace
from nfn_monomial.errors import InvalidValueError, MonomialError
from nfn_monomial.tools.checkpoints.files import Checkpoint
from nfn_monomial.tools.experiments import experiments

from . import invariants  # noqa: F401  (which adds them to the models that are known)
from .architectures import Architecture, architecture_of
from .models import NORMAL, MixedInfo, NetworkInfo, build_model, model_class
from .networks import in_words
from .quantiles import Quantiles

__all__ = [
    "MOST_INPUTS",
    "MOST_WEIGHTS",
    "TASKS",
    "Generalization",
    "Prediction",
    "Task",
    "finite",
    "number",
    "read_task",
]

FORMAT = 1
MOST_WEIGHTS = 2**24  # of a network that predictors in files read
MOST_INPUTS = 2**22  # entries of an input, or pixels of an image
MOST_AXES = 4  # of a parameter on one node: how many equivariant maps there are grows as Bell's numbers of it


TASKS: dict[str, type[Task]] = {}
"""Those that are known, by name."""


class Prediction(NamedTuple):
    """What a predictor says of a checkpoint.

    Attributes:
        checkpoint: on disk.
        names: parameter of the weight space -> key in the checkpoint.
        answer: of it; of an editor the edited network, a state dict with the same keys and dtypes.
    """

    checkpoint: Checkpoint
    names: dict[str, str]
    answer: Any

    @property
    def path(self) -> Path:
        """Of the checkpoint."""
        return self.checkpoint.path


class Task(ABC):
    """Base class.

    Attributes:
        name: of the experiment that trains for it.
        answers: what an answer is, in words.
        heads: of the columns that `cells` fills.
        edits: whether an answer is a network, which is written with its `picture`.
    """

    name: ClassVar[str]
    answers: ClassVar[str]
    heads: ClassVar[tuple[str, ...]]
    edits: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        TASKS[cls.name] = cls

    @property
    @abstractmethod
    def infos(self) -> tuple[NetworkInfo, ...]:
        """The architectures that it is about."""

    @abstractmethod
    def build(self, model: str, options: Mapping[str, Any]) -> nn.Module:
        """A freshly initialised model, as the experiment built it; ``options`` are those of the run's settings."""

    @abstractmethod
    def answer(self, model: Any, tensors: Mapping[str, Tensor], info: NetworkInfo) -> Any:
        """Networks ``(B, 1, *shape)`` of one architecture -> answers, a tensor or a dict of tensors ``(B, ...)``."""

    @abstractmethod
    def entries(self, predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
        """Answers as JSON has them, one for each checkpoint; numbers that are not finite are None."""

    @abstractmethod
    def cells(self, entry: Mapping[str, Any]) -> tuple[str, ...]:
        """An entry in a line of a table."""

    def picture(self, prediction: Prediction) -> bytes:
        """A network before and after the edit, as PNG."""
        raise NotImplementedError

    @abstractmethod
    def _fields(self) -> dict[str, Any]:
        """The task as JSON holds it."""

    @classmethod
    @abstractmethod
    def _read(cls, fields: Mapping[str, Any]) -> Self:
        """The task that `_fields` has written."""

    def written(self) -> dict[str, Any]:
        """As JSON holds it, for `read_task`; of one that it would not read, why."""
        value = {"format": FORMAT, "task": self.name, "answers": self.answers, **self._fields()}
        try:
            read_task(value)
        except MonomialError as error:
            return {"unusable": str(error)}
        return value

    def reads(self, any_width: bool) -> str:
        """Which networks it is about, in words."""
        first, more = self.infos[0], len(self.infos) - 1
        shape = first.input_shape or ()
        return (
            f"{in_words(first.space.shapes())}, {first.activation}"
            + f", on inputs {'x'.join(map(str, shape))}" * (len(shape) > 1)
            + f", or one of {more} other architectures" * (more > 0)
            + ", of any width" * any_width
        )


@dataclass(frozen=True)
class Generalization(Task):
    """How accurate are classifiers? Of one architecture, or of several, which their model then is ``mixed`` for."""

    name = "predict-generalization"
    answers = "the test accuracy of the network, from 0 to 1"
    heads = ("predicted test accuracy", "rank")

    networks: NetworkInfo | MixedInfo
    quantiles: Quantiles | None = None  # that the model answers in

    @property
    def infos(self) -> tuple[NetworkInfo, ...]:
        return self.networks.architectures

    def build(self, model: str, options: Mapping[str, Any]) -> nn.Module:
        return build_model(model, self.networks, seed=0, **options.get("model", {}))

    def answer(self, model: Any, tensors: Mapping[str, Tensor], info: NetworkInfo) -> Tensor:
        found = torch.sigmoid(model(model.prepare_groups([(tensors, info.space)])))
        return found if self.quantiles is None else self.quantiles.accuracy(found)

    def entries(self, predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
        values = [finite(p.answer) for p in predictions]
        ordered = sorted(v for v in values if v is not None)
        ranks = {v: len(ordered) - i for i, v in enumerate(ordered)}  # equal ones share the best
        return [{"accuracy": v, "rank": None if v is None else ranks[v]} for v in values]

    def cells(self, entry: Mapping[str, Any]) -> tuple[str, ...]:
        return number(entry["accuracy"]), "-" if entry["rank"] is None else str(entry["rank"])

    @classmethod
    def of(cls, networks: NetworkInfo | MixedInfo, model: str, quantiles: Quantiles | None = None) -> dict[str, Any]:
        """What is written of a task for a model; of one that could not be built again, why."""
        unknown = [info for info in networks.architectures if info.template and not _architecture(info)]
        normal = model.startswith(NORMAL)
        if (normal or model_class(model).sees == "functions") and unknown:
            what = "reads normal forms, and what these are" if normal else "runs the networks, and how they run"
            return {
                "unusable": f"{model} {what} is known from code alone, which no file has; train a model that reads "
                "weights as they are"
            }
        return cls(networks, quantiles).written()

    def _fields(self) -> dict[str, Any]:
        networks = [
            {
                "space": info.space.to_json(),
                "activation": info.activation,
                "architecture": architecture.described() if (architecture := _architecture(info)) else None,
                "input_shape": list(info.input_shape or ()),
            }
            for info in self.infos
        ]
        known = {} if self.quantiles is None else {"quantiles": list(self.quantiles.knots)}
        return {"networks": networks, "mixed": isinstance(self.networks, MixedInfo), **known}

    @classmethod
    def _read(cls, fields: Mapping[str, Any]) -> Self:
        infos = tuple(map(_info, fields["networks"]))
        if not infos:
            raise InvalidValueError("it names no networks")
        quantiles = Quantiles(tuple(fields["quantiles"])) if "quantiles" in fields else None
        return cls(MixedInfo(infos) if fields["mixed"] else infos[0], quantiles)


def _architecture(info: NetworkInfo) -> Architecture | None:
    """That whose `Architecture.module` is the template."""
    owner = getattr(info.template, "__self__", None)
    return owner if isinstance(owner, Architecture) else None


def _info(value: Any) -> NetworkInfo:
    space = WeightSpace.from_json(value["space"])
    if (weights := sum(map(math.prod, space.shapes().values()))) > MOST_WEIGHTS:
        raise InvalidValueError(f"networks of {weights} weights, {MOST_WEIGHTS} at most are read")
    for name, axes in space.axes.items():
        if any(count > MOST_AXES for count in Counter(a.node for a in axes if isinstance(a, Axis)).values()):
            raise InvalidValueError(f"{name} has more than {MOST_AXES} axes on one node")
    shape = tuple(value["input_shape"])
    if not all(type(n) is int and n > 0 for n in shape) or math.prod(shape) > MOST_INPUTS:
        raise InvalidValueError(f"an input of shape {shape}, expected positive integers, {MOST_INPUTS} entries at most")
    info = NetworkInfo(space, str(value["activation"]))
    if value["architecture"] is None:
        return info
    architecture = architecture_of(value["architecture"])
    if architecture.space != space:
        raise InvalidValueError(
            f"the architecture {architecture} and the weight space {space} are of different networks"
        )
    return replace(info, template=architecture.module, input_shape=shape)


def finite(value: Any) -> float | None:
    """A number as JSON has it."""
    return float(value) if math.isfinite(value) else None


def number(value: float | None) -> str:
    """The same in a table."""
    return "not finite" if value is None else f"{value:.3f}"


def read_task(value: Any) -> Task:
    """The task that `Task.written` has written.

    Raises:
        ValueError: if it is anything else, or of another version.
    """
    if not isinstance(value, Mapping) or not value:
        raise InvalidValueError("it holds weights alone: nothing says what they were trained for")
    if "unusable" in value:
        raise InvalidValueError(str(value["unusable"]))
    if value.get("task") not in TASKS:
        experiments("predictors")
    if value.get("format") != FORMAT or value.get("task") not in TASKS:
        found = f"format {value.get('format')}, task {value.get('task')!r}"
        raise InvalidValueError(f"{found}; this version reads format {FORMAT}, tasks {', '.join(TASKS)}")
    try:
        return TASKS[value["task"]]._read(value)
    except (TypeError, KeyError, AttributeError) as error:
        raise InvalidValueError(f"what it says of its task makes no sense: {error!r}") from error
