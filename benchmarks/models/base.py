"""What a model is to an experiment, and the register of models.

A model reads a batch of networks and answers with one logit per network. What it does to a network without learned
parameters (statistics, flattening, packing) is its `Model.prepare`, called once per data set, so that an epoch is
nothing but indexing, forward, backward and optimiser.

Adding a model is adding a class:

    @register("my-model")
    class MyModel(Model):
        label, invariant_under = "Mine", "permutations"

        def __init__(self, networks: NetworkInfo, out_features: int = 1) -> None: ...
        def prepare(self, tensors: Mapping[str, Tensor]) -> Any: ...
        def forward(self, batch: Any) -> Tensor: ...

Keyword-only parameters of the class, such as widths, are its options, which an experiment sets by name, for all models
that have them alike (`model_options`).

A model of networks of different architectures is ``mixed``: it is built with a `MixedInfo` too, and has
`Model.prepare_groups` instead of ``prepare``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

from torch import Tensor, nn

from nfn_monomial import balance
from nfn_monomial.benchmarks.data.networks import NetworkGroup
from nfn_monomial.errors import InvalidValueError

__all__ = [
    "BALANCED",
    "InvariantUnder",
    "Model",
    "Register",
    "Sees",
    "Task",
    "register",
]

InvariantUnder = Literal["group", "permutations", "nothing"]
Sees = Literal["weights", "functions"]
Task = Literal["any", "generalization", "inr", "ablation"]


class Model(nn.Module):
    """Base of all models: prepared networks -> logits ``(B,)``, or ``(B, out_features)`` for several outputs.

    Attributes:
        label: name in tables and figures.
        invariant_under: what leaves the output as it is: the networks' whole symmetry group (with scalings or sign
            flips), permutations of hidden neurons only, or nothing.
        sees: the networks' weights alone, or also what they compute (the model runs them).
        any_width: whether it reads networks with more hidden neurons than those it was built for.
        task: what it was made for: ``any`` network and question, ``generalization`` of CNNs, ``inr``s, or ``ablation``
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
        """Everything without learned parameters: for a data set in memory at once, otherwise batch by batch.

        Args:
            tensors: parameter name -> ``(N, 1, *shape)``.

        Returns:
            A pytree of tensors whose first dimension is N; `forward` takes any part of it along that dimension.
        """
        raise NotImplementedError

    def prepare_groups(self, groups: Sequence[NetworkGroup]) -> Any:
        """What experiments call: `prepare` for networks of several architectures, N in all, in this order."""
        if len(groups) != 1:
            raise InvalidValueError(f"{type(self).__name__} reads networks of one architecture, found {len(groups)}")
        return self.prepare(groups[0][0])

    def fit_inputs(self, prepared: Any) -> None:
        """Take input statistics from the prepared training networks; called once, before training."""

    def forward(self, batch: Any) -> Tensor:
        raise NotImplementedError


BALANCED = "balanced-"
T = TypeVar("T", bound=type[Any])


class Register(Generic[T]):
    """Classes by name, in the order in which they were added.

    ``balanced-`` in front of a name makes a subclass whose networks are brought into canonical form first, which takes
    scalings and sign flips away from it.

    Args:
        what: they are, as ``model``.
        balanced: makes that subclass; ``label`` and ``invariant_under`` are set here.
    """

    def __init__(self, what: str, balanced: Callable[[T], T]) -> None:
        self._what = what
        self._balanced: Callable[[Any], Any] = functools.cache(functools.partial(_named, balanced))
        self.classes: dict[str, T] = {}

    def __call__(self, name: str) -> Callable[[T], T]:
        """Class decorator: make a class known by this name."""

        def add(cls: T) -> T:
            if self.classes.setdefault(name, cls) is not cls:
                taken = self.classes[name].__qualname__
                raise InvalidValueError(f"another {self._what} is registered as {name!r} already: {taken}")
            return cls

        return add

    def __iter__(self) -> Iterator[str]:
        return iter(self.classes)

    def __getitem__(self, name: str) -> T:
        """The class of a name.

        Raises:
            ValueError: listing the known names.
        """
        plain = name.removeprefix(BALANCED)
        if plain not in self.classes:
            known = ", ".join(self.classes)
            raise InvalidValueError(
                f"unknown {self._what} {name!r}: choose from {known}, each also with {BALANCED!r} in front"
            )
        found: T = self.classes[plain] if plain == name else self._balanced(self.classes[plain])
        return found


def _named(balanced: Callable[[Any], Any], base: Any) -> Any:
    cls = balanced(base)
    cls.label = f"balanced {base.label}"
    cls.invariant_under = "group" if base.invariant_under == "permutations" else base.invariant_under
    return cls


def _balanced(base: Any) -> Any:
    class Balanced(base):  # type: ignore[misc]
        def prepare_groups(self, groups: Sequence[NetworkGroup]) -> Any:
            return super().prepare_groups([(balance(tensors, space)[0], space) for tensors, space in groups])

    return Balanced


register: Register[type[Model]] = Register("model", _balanced)
"""Class decorator: ``@register("name")`` makes a model known to every experiment and on the command line."""
