"""The base class of models, the networks that they read, and the register of models.

A model reads a batch of networks and returns one logit per network. `Model.prepare` is the part without learned
parameters (statistics, flattening, packing). It is called once per data set, so that an epoch is only indexing,
forward, backward and optimiser.

Adding a model is adding a class (docs/extending.md). Its keyword-only parameters, such as widths, are its options,
which an experiment sets by name (`model_options`). A model of networks of different architectures is ``mixed``: it may
be built with a `MixedInfo`, and has `Model.prepare_groups` instead of ``prepare``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace, balance, normal_form
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.fibre import NormalForm
from nfn_monomial.sites import template_names
from nfn_monomial.tools.experiments import experiments

__all__ = [
    "BALANCED",
    "NORMAL",
    "Heads",
    "InvariantUnder",
    "MixedInfo",
    "Model",
    "NetworkGroup",
    "NetworkInfo",
    "Register",
    "Sees",
    "Standardise",
    "Task",
    "at_once",
    "build_model",
    "logits",
    "model_class",
    "model_options",
    "register",
]

EVALUATION_BATCH, EVALUATION_BYTES = 256, 2**26
"""The largest number of examples that are predicted at once, and of their bytes, unless one takes more."""

ROUNDINGS = 64
"""Times the precision of a number, differences may be rounding: invariants of moved networks differ by a few."""

NetworkGroup: TypeAlias = "tuple[Mapping[str, Tensor], WeightSpace]"
"""Networks of one architecture, parameter name -> ``(N, 1, *shape)``, and their weight space."""

InvariantUnder = Literal["group", "permutations", "nothing"]
Sees = Literal["weights", "functions"]
Task = Literal["any", "generalization", "inr", "ablation"]


@dataclass(frozen=True)
class NetworkInfo:
    """Describes the networks that a model will read.

    Attributes:
        space: their weight space.
        activation: their activation function, or several with ``/`` between.
        template: builds the torch module of one network, whose parameters and buffers have the space's names, or its
            order; parameters that need no gradient, if others do, are the same in all networks. None if not known.
        input_shape: of one input of that module, such as ``(channels, height, width)``; None if not known.
        aliases: key of the networks' state dicts -> the parameter of the space that it is tied to, or None for a tensor
            that is in no space, such as a mask.
    """

    space: WeightSpace
    activation: str
    template: Callable[[], nn.Module] | None = None
    input_shape: tuple[int, ...] | None = None
    aliases: tuple[tuple[str, str | None], ...] = ()

    @property
    def architectures(self) -> tuple[NetworkInfo, ...]:
        """Only this one; see `MixedInfo`."""
        return (self,)

    def __deepcopy__(self, memo: object) -> NetworkInfo:
        return self  # nothing in it changes

    @functools.cached_property
    def form(self) -> NormalForm:
        """The normal form of these networks, whose parameters have the template's names.

        Raises:
            ValueError: if the template or the shape of its input is not known; as `normal_form`.
        """
        return normal_form(self._module, torch.zeros(2, *(self.input_shape or ())))

    def normal(self, tensors: Mapping[str, Tensor]) -> NetworkGroup:
        """Returns networks ``(N, 1, *shape)`` in their normal form, and the space of these; raises as `form`."""
        names = template_names(self._module, self.space)
        return self.form({names[name]: t for name, t in tensors.items()}), self.form.space

    @functools.cached_property
    def _module(self) -> nn.Module:
        if self.template is None or self.input_shape is None:
            raise InvalidValueError(
                f"normal forms need the torch module of networks of {self.space} and the shape of its input, which are "
                f"not known: give NetworkInfo a template and an input_shape, or choose {BALANCED}... models"
            )
        with torch.random.fork_rng(devices=[]):
            return self.template()


@dataclass(frozen=True)
class MixedInfo:
    """Describes networks of several architectures, for a ``mixed`` model."""

    architectures: tuple[NetworkInfo, ...]


class Model(nn.Module):
    """Base of all models: prepared networks -> logits ``(B,)``, or ``(B, out_features)`` for several outputs.

    Attributes:
        label: name in tables and figures.
        invariant_under: the group that keeps the output: the networks' whole symmetry group (with scalings or sign
            flips), permutations of hidden neurons only, or nothing.
        sees: the networks' weights alone, or also their functions (the model runs them).
        any_width: whether it reads networks with more hidden neurons than those it was built for.
        task: that it was made for: ``any`` network and question, ``generalization`` of CNNs, ``inr``s, or ``ablation``
            alone.
        mixed: whether it reads networks of different architectures and activations.
        train_with: fields of `TrainConfig`, and ``loss``, that this model is trained with whatever the experiment says.
    """

    label: ClassVar[str]
    invariant_under: ClassVar[InvariantUnder]
    sees: ClassVar[Sees] = "weights"
    any_width: ClassVar[bool] = True
    task: ClassVar[Task] = "any"
    mixed: ClassVar[bool] = False
    train_with: ClassVar[Mapping[str, Any]] = {}  # `training` is torch's

    def prepare(self, tensors: Mapping[str, Tensor]) -> Any:
        """Computes everything without learned parameters, for a data set in memory at once, otherwise by batches.

        Args:
            tensors: parameter name -> ``(N, 1, *shape)``.

        Returns:
            A pytree of tensors whose first dimension is N; `forward` takes any part of it along that dimension.
        """
        raise NotImplementedError

    def prepare_groups(self, groups: Sequence[NetworkGroup]) -> Any:
        """Prepares networks of several architectures, N in all, in this order; called by experiments."""
        if len(groups) != 1:
            raise InvalidValueError(f"{type(self).__name__} reads networks of one architecture, found {len(groups)}")
        return self.prepare(groups[0][0])

    def fit_inputs(self, prepared: Any) -> None:
        """Takes input statistics from the prepared training networks; called once, before training."""

    def forward(self, batch: Any) -> Tensor:
        raise NotImplementedError


BALANCED, NORMAL = "balanced-", "normal-"
INVARIANT_UNDER = ("group", "permutations", "nothing")
T = TypeVar("T", bound=type[Any])


class Register(Generic[T]):
    """Classes by name, in the order in which they were added; unknown names are looked up in the experiments.

    A prefix of a name (``prefixes``: prefix -> function of the class) makes a subclass whose networks are brought into
    a canonical form first, which removes scalings and sign flips, or more.
    """

    def __init__(self, kind: str, prefixes: Mapping[str, Callable[[T], T]]) -> None:
        self._kind, self._prefixes = kind, prefixes
        self._prefixed: dict[str, T] = {}
        self.classes: dict[str, T] = {}

    def __call__(self, name: str) -> Callable[[T], T]:
        """Class decorator: adds a class under this name."""

        def add(cls: T) -> T:
            if (taken := self.classes.get(name, cls)) is not cls:
                raise InvalidValueError(f"another {self._kind} is registered as {name!r} already: {taken.__qualname__}")
            for attribute, known in (("label", ()), ("invariant_under", INVARIANT_UNDER)):
                value = getattr(cls, attribute, None)
                if not isinstance(value, str) or not value or (known and value not in known):
                    expected = " or ".join(map(repr, known)) or "a name"
                    raise InvalidValueError(
                        f"{cls.__qualname__}.{attribute} is {value!r}, but tables show it: expected {expected}"
                    )
            if same := [other for other, one in self.classes.items() if one is not cls and one.label == cls.label]:
                raise InvalidValueError(
                    f"the {self._kind}s {same[0]!r} and {name!r} are both called {cls.label!r} in tables, where they "
                    "would be taken for one: give one of them a label of its own"
                )
            self.classes[name] = cls
            return cls

        return add

    def __iter__(self) -> Iterator[str]:
        return iter(self.classes)

    def __getitem__(self, name: str) -> T:
        """Returns the class of a name.

        Raises:
            ValueError: listing the known names.
        """
        prefix = next((prefix for prefix in self._prefixes if name.startswith(prefix)), "")
        plain = name.removeprefix(prefix)
        if plain not in self.classes:
            catalogue = experiments("models.catalogue")
            if plain not in self.classes:
                catalogue.register_all()
        if plain not in self.classes:
            known, prefixes = ", ".join(self.classes), " or ".join(map(repr, self._prefixes))
            raise InvalidValueError(
                f"unknown {self._kind} {name!r}: choose from {known}, each also with {prefixes} in front"
            )
        base = self.classes[plain]
        if not prefix:
            return base
        if name not in self._prefixed:
            cls = self._prefixed[name] = self._prefixes[prefix](base)
            cls.label = f"{prefix.removesuffix('-')} {base.label}"
            cls.invariant_under = "group" if base.invariant_under == "permutations" else base.invariant_under
        return self._prefixed[name]


def _balanced(base: Any) -> Any:
    class Balanced(base):  # type: ignore[misc]
        def prepare_groups(self, groups: Sequence[NetworkGroup]) -> Any:
            return super().prepare_groups([(balance(tensors, space)[0], space) for tensors, space in groups])

    return Balanced


def _normal(base: Any) -> Any:
    class Normal(_balanced(base)):  # type: ignore[misc]  # normal forms differ by signs, which balance settles
        any_width = False

        def __init__(self, networks: NetworkInfo | MixedInfo, out_features: int = 1, **options: Any) -> None:
            if base.sees == "functions":
                raise InvalidValueError(
                    f"{base.label} runs the networks, but normal forms cannot be run; choose a model that sees "
                    "weights alone"
                )
            read = [replace(i, space=i.form.space, template=None) for i in networks.architectures]
            super().__init__(
                MixedInfo(tuple(read)) if isinstance(networks, MixedInfo) else read[0], out_features, **options
            )
            self.architectures = networks.architectures

        def prepare_groups(self, groups: Sequence[NetworkGroup]) -> Any:
            normal = []
            for tensors, space in groups:
                info = next((info for info in self.architectures if info.space == space), None)
                if info is None:
                    raise InvalidValueError(f"{self.label} was built for networks of other sizes than those of {space}")
                normal.append(info.normal(tensors))
            return super().prepare_groups(normal)

    return Normal


register: Register[type[Model]] = Register("model", {BALANCED: _balanced, NORMAL: _normal})
"""Class decorator: ``@register("name")`` makes a model known to every experiment and on the command line."""


def model_class(name: str) -> type[Model]:
    """Returns the class registered under a name, which may have a prefix.

    With ``balanced-`` the model reads networks after `balance`; with ``normal-`` it reads their normal form
    (`NetworkInfo.form`) after `balance`, so that a model that is exact under permutations is exact under all that keeps
    functions.

    Raises:
        ValueError: listing the known names.
    """
    return register[name]


def model_options(name: str) -> dict[str, Any]:
    """Returns a model's options, with their defaults: keyword-only parameters of its class, and of the bases that it
    passes others on to.
    """
    options: dict[str, Any] = {}
    for cls in model_class(name).__mro__:
        if "__init__" in vars(cls):
            parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
            options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY} | options
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return options


def build_model(
    name: str, networks: NetworkInfo | MixedInfo, *, seed: int, out_features: int = 1, **options: Any
) -> Model:
    """Builds a freshly initialised model on the CPU; parameters follow from the seed, not from the global generator.

    ``options`` are those of `model_options` that the experiment sets; the others keep the model's own values.

    Raises:
        ValueError: if there is no such model, it has no such option, or it cannot read networks of different
            architectures, but is asked to.
    """
    cls: Any = model_class(name)
    if unknown := sorted(set(options) - set(known := model_options(name))):
        raise InvalidValueError(f"{name} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    if isinstance(networks, MixedInfo) and not cls.mixed:
        able = ", ".join(known for known in register if register[known].mixed)
        raise InvalidValueError(f"{name} reads networks of one architecture; for a mixed zoo choose from {able}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Model = cls(networks, out_features, **options)
        return model


class Heads(nn.Linear):
    """A linear layer for each of K heads, in one product: ``(B, K in_features)`` -> ``(B, K out_features)``."""

    def __init__(self, in_features: int, out_features: int, heads: int) -> None:
        super().__init__(in_features, heads * out_features)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        if self.heads == 1:
            return super().forward(x)
        weight, bias = self.weight.view(self.heads, -1, self.in_features), self.bias.view(self.heads, 1, -1)
        inputs = x.view(len(x), self.heads, -1).transpose(0, 1)
        return torch.baddbmm(bias, inputs, weight.mT).transpose(0, 1).flatten(1)


def logits(out: Tensor) -> Tensor:
    """Returns outputs ``(B, 1)`` as ``(B,)``; others as they are."""
    return out.squeeze(-1) if out.shape[-1] == 1 else out


class Standardise(nn.Module):
    """``(x - mean) / std`` with the statistics of the training networks, over the networks and over ``dims``.

    The training networks are the original or the augmented ones, as the experiment trains on them. Entries that never
    vary are only centred; so are those that vary by a few roundings (`ROUNDINGS`), because moved networks do, too.

    Args:
        shape: of a network's entries.
        dims: over which statistics are taken in addition to the networks.
        size: of the numbers that entries were computed from, if it is known: rounding is a share of it. 0 if not.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, shape: Sequence[int], dims: Sequence[int] = (), size: float = 0.0) -> None:
        super().__init__()
        self.dims, self.size = (0, *dims), size
        kept = [1 if i in self.dims else n for i, n in enumerate((1, *shape))]
        self.register_buffer("mean", torch.zeros(kept))
        self.register_buffer("std", torch.ones(kept))

    def fit(self, x: Tensor) -> None:
        wide = x.double()
        std = wide.std(self.dims, correction=0, keepdim=True)
        size = wide.abs().amax(self.dims, keepdim=True).clamp_min(self.size)
        self.mean.copy_(wide.mean(self.dims, keepdim=True))
        self.std.copy_(std.masked_fill(std <= ROUNDINGS * torch.finfo(x.dtype).eps * size, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def at_once(nbytes: float) -> int:
    """Returns the number of examples, of this many bytes each, that are predicted at once: within both bounds."""
    return max(1, min(EVALUATION_BATCH, int(EVALUATION_BYTES / max(1, nbytes))))
