"""What predictors are asked: the accuracy of classifiers, the class of an image, an edited image.

A task says which networks it is about, builds the model again that was trained on them, and turns what that model says
into an answer. It is written as JSON (numbers, names, weight spaces; no code) and read back with every check.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from nfn_monomial import Axis, WeightSpace
from nfn_monomial.benchmarks.data.architectures.base import Architecture
from nfn_monomial.benchmarks.data.architectures.reading import architecture_of
from nfn_monomial.benchmarks.data.networks import MixedInfo, NetworkInfo
from nfn_monomial.benchmarks.data.sirens import Siren
from nfn_monomial.benchmarks.models.catalogue import build_model, model_class
from nfn_monomial.benchmarks.models.editors import Editor, build_editor
from nfn_monomial.benchmarks.models.inr import inr_info
from nfn_monomial.benchmarks.models.inr_input import Classifier, prepared_siren
from nfn_monomial.benchmarks.settings.inrs import EditorConfig, InputConfig, Sizes
from nfn_monomial.benchmarks.settings.training import Head
from nfn_monomial.canonical import absorb_omega
from nfn_monomial.errors import InvalidValueError, MonomialError

from .quantiles import Quantiles
from .words import in_words

__all__ = ["TASKS", "Classification", "Editing", "Generalization", "Task", "read_task"]

FORMAT = 1
MOST_WEIGHTS = 2**24  # of a network that predictors in files read
MOST_INPUTS = 2**22  # entries of an input, or pixels of an image
MOST_AXES = 4  # of a parameter on one node: how many equivariant maps there are grows as Bell's numbers of it


class Task(ABC):
    """Base class.

    Attributes:
        name: of the experiment that trains for it.
        answers: what an answer is, in words.
    """

    name: ClassVar[str]
    answers: ClassVar[str]

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

    networks: NetworkInfo | MixedInfo
    quantiles: Quantiles | None = None  # that the model answers in

    @property
    def infos(self) -> tuple[NetworkInfo, ...]:
        return self.networks.architectures

    def build(self, model: str, options: Mapping[str, Any]) -> nn.Module:
        given = options.get("model", {})
        checked = Head(**given)
        return build_model(model, self.networks, seed=0, **{name: getattr(checked, name) for name in given})

    def answer(self, model: Any, tensors: Mapping[str, Tensor], info: NetworkInfo) -> Tensor:
        found = torch.sigmoid(model(model.prepare_groups([(tensors, info.space)])))
        return found if self.quantiles is None else self.quantiles.accuracy(found)

    @classmethod
    def of(cls, networks: NetworkInfo | MixedInfo, model: str, quantiles: Quantiles | None = None) -> dict[str, Any]:
        """What is written of a task for a model; of one that could not be built again, why."""
        unknown = [info for info in networks.architectures if info.template and not _architecture(info)]
        if model_class(model).sees == "functions" and unknown:
            return {
                "unusable": f"{model} runs the networks, and how they run is known from code alone, which no file has; "
                "train a model that sees weights only"
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


@dataclass(frozen=True)
class Classification(Task):
    """Which of several classes does the image belong to that an INR shows?"""

    name = "classify-inr"
    answers = "the probability of each class"

    siren: Siren
    classes: tuple[str, ...]
    loss: str

    @property
    def infos(self) -> tuple[NetworkInfo, ...]:
        return (_siren_info(self.siren),)

    def build(self, model: str, options: Mapping[str, Any]) -> Classifier:
        inputs = InputConfig(**options["inputs"])
        info = inr_info(prepared_siren(inputs, self.siren))
        checked = Sizes(**options["sizes"])
        sizes = {name: getattr(checked, name) for name in options["sizes"]}
        built = build_model(model, info, seed=0, out_features=len(self.classes), **sizes)
        return Classifier(built, self.siren, inputs)

    def answer(self, model: Any, tensors: Mapping[str, Tensor], info: NetworkInfo) -> Tensor:
        logits = model(tensors)
        return torch.sigmoid(logits) if self.loss == "bce" else torch.softmax(logits, -1)

    def _fields(self) -> dict[str, Any]:
        return {"siren": asdict(self.siren), "classes": list(self.classes), "loss": self.loss}

    @classmethod
    def _read(cls, fields: Mapping[str, Any]) -> Self:
        return cls(_siren(fields["siren"]), tuple(map(str, fields["classes"])), str(fields["loss"]))


@dataclass(frozen=True)
class Editing(Task):
    """The network whose image is that of a given INR, edited."""

    name = "edit-inr"
    answers = "the edited network"

    siren: Siren
    edit: str

    @property
    def infos(self) -> tuple[NetworkInfo, ...]:
        return (_siren_info(self.siren),)

    def build(self, model: str, options: Mapping[str, Any]) -> Editor:
        return build_editor(model, self.siren, EditorConfig(**options["editor"]), seed=0)

    def answer(self, model: Any, tensors: Mapping[str, Tensor], info: NetworkInfo) -> dict[str, Tensor]:
        """The edited networks, for the omega_0 of the given ones."""
        edited = model.edited(model.prepare({name: t.squeeze(1) for name, t in tensors.items()}))
        networks = {name: t.unsqueeze(1) for name, t in edited.items()}
        return absorb_omega(networks, info.space, model.siren.omega_0 / self.siren.omega_0)

    def _fields(self) -> dict[str, Any]:
        return {"siren": asdict(self.siren), "edit": self.edit}

    @classmethod
    def _read(cls, fields: Mapping[str, Any]) -> Self:
        return cls(_siren(fields["siren"]), str(fields["edit"]))


def _siren_info(siren: Siren) -> NetworkInfo:
    return replace(inr_info(siren), activation=f"sin with omega_0 {siren.omega_0:g}")


def _siren(value: Any) -> Siren:
    siren = TypeAdapter(Siren).validate_python(value)
    weights = sum(a * b for a, b in zip(siren.sizes, siren.sizes[1:], strict=False))
    if min(*siren.sizes, *siren.image) < 1 or weights > MOST_WEIGHTS or math.prod(siren.image) > MOST_INPUTS:
        raise InvalidValueError(f"{siren}: sizes are to be positive, weights {MOST_WEIGHTS} at most")
    if not all(map(math.isfinite, (siren.omega_0, siren.gain, siren.offset))) or siren.omega_0 <= 0 or siren.gain == 0:
        raise InvalidValueError(f"{siren}: omega_0 is to be positive, the gain not 0")
    return siren


TASKS: dict[str, type[Task]] = {cls.name: cls for cls in (Generalization, Classification, Editing)}


def read_task(value: Any) -> Task:
    """The task that `Task.written` has written.

    Raises:
        ValueError: if it is anything else, or of another version.
    """
    if not isinstance(value, Mapping) or not value:
        raise InvalidValueError("it holds weights alone: nothing says what they were trained for")
    if "unusable" in value:
        raise InvalidValueError(str(value["unusable"]))
    if value.get("format") != FORMAT or value.get("task") not in TASKS:
        found = f"format {value.get('format')}, task {value.get('task')!r}"
        raise InvalidValueError(f"{found}; this version reads format {FORMAT}, tasks {', '.join(TASKS)}")
    try:
        return TASKS[value["task"]]._read(value)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        raise InvalidValueError(f"{'.'.join(map(str, ('siren', *wrong['loc'])))}: {wrong['msg']}") from None
    except (TypeError, KeyError, AttributeError) as error:
        raise InvalidValueError(f"what it says of its task makes no sense: {error!r}") from error
