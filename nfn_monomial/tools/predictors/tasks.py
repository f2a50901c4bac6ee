"""The tasks of predictors: the accuracy of classifiers, and columns of tables. The experiments add more.

A task names the networks that it is about, builds again the model that was trained on them, and turns the model's
outputs into answers. It is written as JSON (numbers, names, weight spaces; no code) and checked when it is read.
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
from nfn_monomial.tools.experiments import experiments
from nfn_monomial.tools.files.checkpoints import Checkpoint

from . import invariants  # noqa: F401  (which adds them to the models that are known)
from .architectures import Architecture, architecture_of
from .matching import in_words
from .models import NORMAL, MixedInfo, NetworkInfo, build_model, model_class
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
    "score_in_words",
    "warning_of_few",
]

FORMAT = 1
FEW = 30  # networks, of which tau is rough
MOST_WEIGHTS = 2**24  # of a network that predictors in files read
MOST_INPUTS = 2**22  # entries of an input, or pixels of an image
MOST_AXES = 4  # of a parameter on one node: how many equivariant maps there are grows as Bell's numbers of it


TASKS: dict[str, type[Task]] = {}
"""The known tasks by name."""


class Prediction(NamedTuple):
    """A predictor's answer for a checkpoint.

    Attributes:
        checkpoint: on disk.
        names: parameter of the weight space -> key in the checkpoint.
        answer: a tensor; from an editor, the edited network, a state dict with the same keys and dtypes.
        doubt: a note on the order in which its layers were taken, if neither names nor the user state it.
    """

    checkpoint: Checkpoint
    names: dict[str, str]
    answer: Any
    doubt: str = ""

    @property
    def path(self) -> Path:
        """The path of the checkpoint."""
        return self.checkpoint.path


class Task(ABC):
    """Base class.

    Attributes:
        name: of the experiment that trains for it.
        answers: describes an answer in words.
        heads: headings of the columns that `cells` fills.
        edits: whether an answer is a network, which is written with its `picture`.
    """

    name: ClassVar[str]
    edits: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        TASKS[cls.name] = cls

    @property
    @abstractmethod
    def answers(self) -> str: ...

    @property
    @abstractmethod
    def heads(self) -> tuple[str, ...]: ...

    @property
    @abstractmethod
    def infos(self) -> tuple[NetworkInfo, ...]:
        """The architectures that it is about."""

    def about(self, info: NetworkInfo) -> Task:
        """Returns the task with the code that runs its one architecture."""
        raise InvalidValueError(f"{self.name} knows how its networks run: leave --net out")

    @abstractmethod
    def build(self, model: str, options: Mapping[str, Any]) -> nn.Module:
        """Builds a new model as the experiment did; ``options`` are those of the run's settings."""

    @abstractmethod
    def answer(self, model: Any, tensors: Mapping[str, Tensor], info: NetworkInfo) -> Any:
        """Answers for networks ``(B, 1, *shape)`` of one architecture: a tensor or a dict of tensors ``(B, ...)``."""

    @abstractmethod
    def entries(self, predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
        """Returns answers as JSON has them, one for each checkpoint; numbers that are not finite are None."""

    @abstractmethod
    def cells(self, entry: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns the cells of an entry in a table."""

    def picture(self, prediction: Prediction) -> bytes:
        """Draws a network before and after the edit, as PNG."""
        raise NotImplementedError

    @abstractmethod
    def _fields(self) -> dict[str, Any]:
        """Returns the fields of the task as JSON holds them."""

    @classmethod
    @abstractmethod
    def _read(cls, fields: Mapping[str, Any]) -> Self:
        """Reads the task back from its `_fields`."""

    def written(self) -> dict[str, Any]:
        """Returns the task as JSON holds it, for `read_task`; or the reason why that would not read it."""
        value = {"format": FORMAT, "task": self.name, "answers": self.answers, **self._fields()}
        try:
            read_task(value)
        except MonomialError as error:
            return {"unusable": str(error)}
        return value

    def reads(self, any_width: bool) -> str:
        """Describes the networks that it is about."""
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
    """Predicts the accuracy of classifiers, of one architecture or, by a ``mixed`` model, of several."""

    name = "predict-generalization"

    networks: NetworkInfo | MixedInfo
    quantiles: Quantiles | None = None  # in whose levels the model answers

    @property
    def answers(self) -> str:
        return "the test accuracy of the network, from 0 to 1"

    @property
    def heads(self) -> tuple[str, ...]:
        return ("predicted test accuracy", "rank")

    @property
    def infos(self) -> tuple[NetworkInfo, ...]:
        return self.networks.architectures

    def about(self, info: NetworkInfo) -> Self:
        return replace(self, networks=info)

    def build(self, model: str, options: Mapping[str, Any]) -> nn.Module:
        return build_model(model, self.networks, seed=0, **options.get("model", {}))

    def answer(self, model: Any, tensors: Mapping[str, Tensor], info: NetworkInfo) -> Tensor:
        level = torch.sigmoid(model(model.prepare_groups([(tensors, info.space)])))
        return level if self.quantiles is None else self.quantiles.accuracy(level)

    def entries(self, predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
        return [{"accuracy": v, "rank": rank} for v, rank in _ranked(predictions)]

    def cells(self, entry: Mapping[str, Any]) -> tuple[str, ...]:
        return number(entry["accuracy"]), "-" if entry["rank"] is None else str(entry["rank"])

    @classmethod
    def of(
        cls, networks: NetworkInfo | MixedInfo, model: str, quantiles: Quantiles | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Writes the task of a model as JSON; or the reason why the model could not be built again."""
        unknown = [info for info in networks.architectures if info.template and not _architecture(info)]
        if runs_networks(model) and unknown and isinstance(networks, MixedInfo):
            return {
                "unusable": f"{model} runs networks of several architectures, and how they run is known from code "
                "alone, which no file has; train a model that reads weights as they are"
            }
        return cls(networks, quantiles, **fields).written()

    def _fields(self) -> dict[str, Any]:
        networks = [
            {
                "space": info.space.to_json(),
                "activation": info.activation,
                "architecture": architecture.described() if (architecture := _architecture(info)) else None,
                "input_shape": list(info.input_shape or ()),
                **({"aliases": list(map(list, info.aliases))} if info.aliases else {}),
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


@dataclass(frozen=True)
class Column(Generalization):
    """Predicts a column of a table: a number in its own units, or one of its classes.

    Attributes:
        column: its name.
        unit: after its numbers, such as ``%``.
        classes: of the column; none if it has numbers.
    """

    name = "train"

    column: str = ""
    unit: str = ""
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        several = len(set(self.classes)) == len(self.classes) > 1
        if several == (self.quantiles is not None) or (self.classes and not several):
            raise InvalidValueError("a column has quantiles, or two or more classes, none of them twice")

    @property
    def answers(self) -> str:
        return f"the probability of each class of {self.column}" if self.classes else f"{self.column}, in its own units"

    @property
    def heads(self) -> tuple[str, ...]:
        return (self.column, *CLASS_HEADS) if self.classes else (f"predicted {self.column}", "rank, 1 the largest")

    def build(self, model: str, options: Mapping[str, Any]) -> nn.Module:
        return build_model(model, self.networks, seed=0, out_features=max(1, len(self.classes)))

    def read(self, logits: Tensor) -> Tensor:
        """Turns a model's outputs into numbers ``(B,)`` or probabilities ``(B, classes)``, float64."""
        if self.quantiles is None:
            return torch.softmax(logits.double(), -1)
        return self.quantiles.accuracy(torch.sigmoid(logits.double()))

    def answer(self, model: Any, tensors: Mapping[str, Tensor], info: NetworkInfo) -> Tensor:
        return self.read(model(model.prepare_groups([(tensors, info.space)])))

    def entries(self, predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
        if self.classes:
            return class_entries(self.classes, predictions)
        return [{"predicted": v, "rank": rank} for v, rank in _ranked(predictions)]

    def cells(self, entry: Mapping[str, Any]) -> tuple[str, ...]:
        if self.classes:
            return class_cells(entry)
        value, rank = entry["predicted"], entry["rank"]
        return ("not finite", "-") if value is None else (f"{value:.5g}{self.unit}", str(rank))

    def _fields(self) -> dict[str, Any]:
        return {**super()._fields(), "column": self.column, "unit": self.unit, "classes": list(self.classes)}

    @classmethod
    def _read(cls, fields: Mapping[str, Any]) -> Self:
        base = Generalization._read(fields)
        if isinstance(base.networks, MixedInfo):
            raise InvalidValueError("it names networks of several architectures")
        classes = tuple(map(str, fields["classes"]))
        return cls(base.networks, base.quantiles, str(fields["column"]), str(fields["unit"]), classes)


CLASS_HEADS = ("probability", "then")
LIKELIEST = 3  # classes that a table shows


def class_entries(classes: Sequence[str], predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Returns `Task.entries` for probabilities ``(classes,)``."""
    return [
        {
            "class": classes[int(p.answer.nan_to_num(-1).argmax())],
            "probabilities": dict(zip(classes, map(finite, p.answer.tolist()), strict=True)),
        }
        for p in predictions
    ]


def class_cells(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns `Task.cells` of these: the likeliest class, its probability, and the next ones."""
    ranked = sorted(entry["probabilities"].items(), key=lambda item: -(item[1] or 0))
    first, *others = [(name, number(p)) for name, p in ranked[:LIKELIEST]]
    return *first, ", ".join(f"{name} {p}" for name, p in others)


def runs_networks(model: str) -> bool:
    """Checks whether a model needs the torch module of its networks: it runs them, or reads their normal forms."""
    return model.startswith(NORMAL) or model_class(model).sees == "functions"


def _ranked(predictions: Sequence[Prediction]) -> list[tuple[float | None, int | None]]:
    """Returns numbers with their ranks, 1 for the largest; equal numbers share a rank."""
    values = [finite(p.answer) for p in predictions]
    ordered = sorted(v for v in values if v is not None)
    ranks = {v: len(ordered) - i for i, v in enumerate(ordered)}
    return [(v, None if v is None else ranks[v]) for v in values]


def _architecture(info: NetworkInfo) -> Architecture | None:
    """Returns the architecture whose `Architecture.module` is the template, if there is one."""
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
    aliases = tuple((str(key), None if name is None else str(name)) for key, name in value.get("aliases", ()))
    info = NetworkInfo(space, str(value["activation"]), input_shape=shape or None, aliases=aliases)
    if value["architecture"] is None:
        return info
    architecture = architecture_of(value["architecture"])
    if architecture.shapes() != space.shapes():
        raise InvalidValueError(
            f"the architecture {architecture} and the weight space {space} are of different networks"
        )
    return replace(info, template=architecture.module)


def finite(value: Any) -> float | None:
    """Returns a number as JSON has it, None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def number(value: float | None) -> str:
    """Writes a number for a table."""
    return "not finite" if value is None else f"{value:.3f}"


def score_in_words(name: str, value: float, networks: int | None = None) -> str:
    """Writes a metric of so many networks: Kendall's tau of few with two digits, errors with four."""
    if name == "mae":
        return f"{value:.4g}"
    return f"{value:.2f}" if name == "tau" and networks is not None and networks < FEW else f"{value:.3f}"


def warning_of_few(networks: int) -> str:
    """Says how far Kendall's tau of few networks is from that of many; empty if they are not few.

    Its variance for two rankings that have nothing to do with one another is ``2 (2 n + 5) / (9 n (n - 1))``.
    """
    if not 1 < networks < FEW:
        return ""
    bound = min(1, 1.96 * math.sqrt(2 * (2 * networks + 5) / (9 * networks * (networks - 1))))
    return f"Tau of {networks} networks is rough: of random answers, 95 % have one from -{bound:.2f} to {bound:.2f}."


def read_task(value: Any) -> Task:
    """Reads the task that `Task.written` has written.

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
        stated = f"format {value.get('format')}, task {value.get('task')!r}"
        raise InvalidValueError(f"{stated}; this version reads format {FORMAT}, tasks {', '.join(TASKS)}")
    try:
        return TASKS[value["task"]]._read(value)
    except (TypeError, KeyError, AttributeError) as error:
        raise InvalidValueError(f"what it says of its task makes no sense: {error!r}") from error
