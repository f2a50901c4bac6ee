"""Networks that a user names: a class or function in a file or package, or an exported program.

All three run code: the user's own, or, in an exported program, whatever its author put there, as
``torch.export.load`` unpickles what the file says (torch 2.13, ``torch/export/pt2_archive/_package.py``). So a
definition is read from the place that a user names and from nowhere else: never from beside weights.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.matching import is_of_older_release, placed, way_out_of
from nfn_monomial.alignment.outputs import Reading
from nfn_monomial.alignment.rounding import differing
from nfn_monomial.checks import listed, require_numbers
from nfn_monomial.errors import MonomialError
from nfn_monomial.fibre import NormalForm, normal_form
from nfn_monomial.running import answers

from .folding import Fold, folds_of
from .imports import SHOWN, DefinitionError, called, importing, named, own_code
from .loading import Loaded, copies_by_key, is_extra, load_into, load_state, tensors_of
from .packages import PACKAGES, built, configuration_of, ignored_by, renaming_of

__all__ = ["Definition", "DefinitionError", "called", "define", "named", "one_value", "read_definition"]

PROGRAM = ".pt2"
BATCH = 2  # of example inputs
EXAMPLE = "example_inputs"  # a function beside a class that returns them
LARGE = 50_000_000  # entries, beyond which there are no normal forms: they take some copies of them in float64


@dataclass(frozen=True)
class Definition:
    """A network architecture, as a user gave it.

    Attributes:
        name: of the class or file.
        space: its weight space, with the names of its state dict.
        template: builds the module.
        inputs: the positional arguments of its example call; none where nobody knows how it runs.
        input_shape: of one input, where there is one, of real numbers; its first dimension is the batch.
        shapes: key of its state dict -> shape.
        tied: key -> the name under which the space has the same tensor.
        chain: whether it was read off the weights of a chain of layers, so that others may have other keys.
        renamed: from keys in files to its own, where a package saves others.
        saved: keys of its state dict, where its own methods or hooks make that and read it; None where `torch` copies
            its tensors by their keys, which are its own.
        ignored: patterns of keys that its class has no use for, as buffers of older releases.
        settings: what it was built with, where that is known, name -> in words.
    """

    name: str
    space: WeightSpace
    template: Callable[[], nn.Module]
    inputs: tuple[Any, ...]
    input_shape: tuple[int, ...] | None
    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]
    chain: bool = False
    renamed: Callable[[str], str] = str
    saved: frozenset[str] | None = None
    ignored: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    _with: dict[str, Definition] = field(default_factory=dict, compare=False, repr=False)

    @functools.cached_property
    def read(self) -> frozenset[str]:
        """Keys of the tensors that the module reads in eval mode on its example inputs; all, if it has none."""
        if not self.inputs:
            return frozenset(self.shapes)
        module = self.template()
        parameters = module.named_parameters(remove_duplicate=False)
        tensors = dict((*parameters, *module.named_buffers(remove_duplicate=False)))
        with Reading(tensors) as reading:
            answers(module, tensors, self.inputs)
        return frozenset(reading.keys)

    @functools.cached_property
    def given(self) -> dict[str, Tensor]:
        """Key -> what the architecture has and nobody learns: buffers, and parameters that need no gradient."""
        module = None if self.chain else self.template()
        if module is None:
            return {}
        still = {name: t for name, t in module.named_parameters() if not t.requires_grad}
        return still | {name: t for name, t in module.named_buffers() if isinstance(t, Tensor)}

    @functools.cached_property
    def normal_form(self) -> NormalForm | str:
        """All that leaves its function as it is; or, in words, why that is not known."""
        if not self.inputs:
            return f"no module runs {self.name}"
        if sum(map(math.prod, self.shapes.values())) > LARGE:
            return f"{self.name} has more than {LARGE:,} entries"
        try:
            return normal_form(self.template(), self.inputs)
        except ValueError as error:
            return str(error)
        except RuntimeError as error:  # of torch, as where a part is run once more for its gradient
            return f"{self.name} has no gradient: {error}"

    def normal_form_with(self, state: Mapping[str, Tensor]) -> NormalForm | str:
        """The same where what stays as it is, as an adapter's base, has the values of a network."""
        form = self.normal_form
        still = {} if isinstance(form, str) else {name: state[name] for name in form.frozen if name in state}
        if isinstance(form, str) or not differing(still, {name: form.frozen[name] for name in still}):
            return form
        module = self.template()
        module.load_state_dict(still, strict=False)
        try:
            return normal_form(module, self.inputs)
        except ValueError as error:
            return str(error)

    def module(self, seed: int | None = 0) -> nn.Module:
        """A module of its own, with random weights, and all else that is drawn, from a seed."""
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            module = self.template()
        # what hooks make, as pruning and weight norm do, is made anew, and cannot be copied where it has a history
        made = [t for part in module.modules() for t in vars(part).values() if isinstance(t, Tensor) and not t.is_leaf]
        return copy.deepcopy(module, {id(t): t.detach().clone() for t in made})

    def places(self, keys: Iterable[str]) -> dict[str, str]:
        """Its own keys -> those of a checkpoint, which may be called otherwise, see `placed`.

        Raises:
            ValueError: if keys of several networks fit.
        """
        named = {self.renamed(key): key for key in keys}
        if self.chain:
            return named
        removed = {key.removesuffix(own) for own, key in named.items() if own in self.shapes and own != key}
        fronts = tuple(front for front in removed if front.endswith("."))  # of a part, which is all that is wanted
        if fronts:
            named = {own: key for own, key in named.items() if own in self.shapes or key.startswith(fronts)}
        names, required = (self.shapes, self.required) if self.saved is None else (self.saved, self.saved)
        return {own: named[key] for key, own in placed(named, names, required).items()}

    def loaded(
        self, state: Mapping[str, Tensor], objects: Mapping[str, Any], versions: Mapping[str, Any]
    ) -> tuple[Definition, Loaded]:
        """What its own methods make of a state dict, and itself as it is then: with other settings it is another one.

        Args:
            state: key, as `places` has it -> tensor.
            objects: the same of what is no tensor.
            versions: that torch keeps beside a state dict.

        Raises:
            DefinitionError: naming what is missing or unexpected; for what its own code raises.
        """
        with own_code(f"{self.name}.load_state_dict fails"):
            found = load_into(self.module(), self.module(), state, objects, versions)
        own = tensors_of(found.module)
        there = {id(t) for key, t in own.items() if key not in found.missing}
        faults = {
            "missing are": [
                key
                for key in found.missing
                if (is_extra(key) or key in self.space.parameters) and not (key in own and id(own[key]) in there)
            ],
            "unexpected": [key for key in found.unexpected if not self.ignores(key, state[key])],
        }
        self._require_none(faults)
        if not found.changed:
            return self, found
        text = repr(sorted(found.settings.items()))
        if text not in self._with:
            self._with[text] = self._as_loaded(found, state, objects, versions)
        return self._with[text], found

    def _as_loaded(
        self, found: Loaded, state: Mapping[str, Tensor], objects: Mapping[str, Any], versions: Mapping[str, Any]
    ) -> Definition:
        """The definition of what a module is once it has loaded a state dict that is not of its tensors alone."""

        def template() -> nn.Module:
            module = self.module(seed=None)
            fresh = {key: t.detach().clone() for key, t in tensors_of(module).items()}
            load_state(module, state, objects, versions)
            with torch.no_grad():
                for key, t in tensors_of(module).items():
                    t.copy_(fresh[key])
            return module

        try:
            space = WeightSpace.from_module(found.module, self.inputs)
        except (ValueError, TypeError) as error:
            raise DefinitionError(f"{self.name}, once it has loaded the file: {error}") from error
        same = _definition(self.name, space, tensors_of(found.module), template, self.inputs, self.renamed)
        return replace(same, saved=self.saved, ignored=self.ignored, settings=self.settings)

    def ignores(self, key: str, t: Tensor) -> bool:
        """Whether its class has no use for a tensor of a file: by what it says, or as older releases saved such."""
        return any(re.search(pattern, key) for pattern in self.ignored) or is_of_older_release(key, t)

    def _require_none(self, faults: Mapping[str, list[str]], note: str = "") -> None:
        if any(faults.values()):
            said = "; ".join(f"{what} {listed(names, SHOWN)}" for what, names in faults.items() if names)
            said += note or way_out_of(faults["unexpected"], faults["missing are"])
            raise DefinitionError(f"the weights are of another architecture than {self.name}: {said}")

    @functools.cached_property
    def folds(self) -> list[Fold]:
        """Its batch norms behind layers, as its example inputs show them."""
        return folds_of(self.template(), self.inputs) if self.inputs and not self.chain else []

    @property
    def required(self) -> frozenset[str]:
        """Keys that its checkpoints have: of tied tensors another one will do, and buffers may be missing."""
        return frozenset(self.space.parameters).difference(self.tied.values())

    def keys(
        self, shapes: Mapping[str, tuple[int, ...]], *, widths: bool = False, state: Mapping[str, Tensor] | None = None
    ) -> dict[str, list[str]]:
        """Parameter of the space -> keys of a state dict with these shapes that have it.

        Of tied tensors one key is enough, as safetensors files have it. Buffers and parameters that are not in the
        space are not asked for. With ``widths`` other numbers of neurons will do, where they agree with one another.
        Of a ``state`` with these shapes what the class `ignores` may be there.

        Raises:
            DefinitionError: naming the keys, if they are those of another architecture.
        """
        meta = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
        given: dict[str, list[str]] = {}
        for key in shapes:
            given.setdefault(self.tied.get(key, key), []).append(key)
        expected = {self.tied.get(key, key) for key in self.shapes}
        others = [key for key, shape in shapes.items() if self.shapes.get(key, shape) != shape]
        faults = {
            "missing are": [name for name in self.space.parameters if name not in given],
            "unexpected": [
                key
                for name, keys in given.items()
                if name not in expected
                for key in keys
                if state is None or not self.ignores(key, state[key])
            ],
            "of other shape:": [f"{key} is {shapes[key]}, not {self.shapes[key]}" for key in others],
        }
        note = ""
        if widths and others and not (faults["missing are"] or faults["unexpected"]):
            try:
                self.space.validate({name: meta[given[name][0]][None, None] for name in self.space.parameters})
                faults["of other shape:"] = []
            except ValueError as error:
                note = f" (and not of another width: {error})" + _vocabularies(shapes, self.shapes, others)
        self._require_none(faults, note)
        return {name: given[name] for name in self.space.parameters}


def _vocabularies(
    shapes: Mapping[str, tuple[int, ...]], own: Mapping[str, tuple[int, ...]], others: Sequence[str]
) -> str:
    """What to do if some tensors have more or fewer rows alone, which are those of words or classes."""
    rows = {(shapes[key][:1], own[key][:1]) for key in others}
    if len(rows) > 1 or any(shapes[key][1:] != own[key][1:] or not shapes[key] or not own[key] for key in others):
        return ""
    ((found,), (expected,)) = rows.pop()
    return (
        f". If {found} and {expected} are the sizes of two vocabularies, keep the rows that both have, as "
        f"{others[0]}[:{min(found, expected)}]"
    )


def one_value(keys: Sequence[str], state: Mapping[str, Tensor]) -> Tensor:
    """What a state dict has under several keys that are one tensor in the network.

    Raises:
        DefinitionError: naming two keys, if their values differ, or one, if its numbers are not real or not finite.
    """
    first, *others = keys
    try:
        found = require_numbers(state[first], first)
    except MonomialError as error:
        raise DefinitionError(str(error)) from error
    for key in others:
        if not torch.equal(found, state[key]):
            raise DefinitionError(
                f"{first} and {key} are one tensor in the network, but have two values: leave one of them out, or name "
                "a network that does not tie them"
            )
    return found.detach()


def read_definition(
    text: str, input_shape: Sequence[int] | None = None, batch: int = BATCH, arguments: Mapping[str, Any] | None = None
) -> Definition:
    """What ``module.py:Class``, ``package.module:Class``, ``net.pt2`` or an entry of `packages` defines. Runs its code.

    The class, or function, is called without arguments, or with those given. It makes the module, or a pair of it and
    its example inputs, as `define` takes them, which a function ``example_inputs()`` beside it may state as well.

    Args:
        text: as a user gives it.
        input_shape: of one input without the batch, for a module of one real input that states no example; where it
            states one, this counts.
        batch: how many random inputs of that shape are the example.
        arguments: of the class or function, by keyword; a program has none.

    Raises:
        DefinitionError: naming what was not found or cannot be used, and the way out.
    """
    if text.endswith(PROGRAM):
        if arguments:
            raise DefinitionError(f"{text} is a program, which takes no arguments: name a class or function")
        return _of_program(Path(text))
    if text.partition(":")[0] in PACKAGES:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module, inputs_of = built(text, arguments or {})
            if (inputs := inputs_of(input_shape, batch)) is None:
                raise DefinitionError(
                    f"{text}: say what its inputs are: give their shape, --input {batch},..., batch included"
                )
            return define(module, inputs, text.partition(":")[2], text, lambda: built(text, arguments or {})[0])
    home, build = named(text)
    place, _, name = text.rpartition(":")
    arguments = dict(arguments or {})
    with torch.random.fork_rng(devices=[]), importing(text):
        torch.manual_seed(0)
        module, inputs = _built(build, text, arguments)
        if input_shape is not None:
            like = next(module.parameters(), torch.zeros(()))
            inputs = torch.randn(batch, *input_shape, dtype=like.dtype)
        elif inputs is None and callable(example := getattr(home, EXAMPLE, None)):
            inputs = called(example, f"{place}:{EXAMPLE}")
        if inputs is None:
            raise DefinitionError(
                f"{text}: say what its inputs are: give their shape (--input {batch},3,32,32, batch included; of a "
                f"data set the option input_shape=3,32,32, of one input), write {EXAMPLE}() beside it, or let "
                f"{name} return a pair: the module and its example inputs"
            )
        return define(module, inputs, name, text, lambda: _built(build, text, arguments)[0])


def define(
    module: nn.Module,
    inputs: Any,
    name: str = "",
    label: str = "",
    template: Callable[[], nn.Module] | None = None,
) -> Definition:
    """The definition of a module that is there.

    Args:
        module: any that ``torch.export`` can trace.
        inputs: a tensor, a tuple of all positional arguments, a dict of arguments by keyword, or a pair ``(args,
            kwargs)`` of both.
        name: of the architecture, by default of the class.
        label: what to call it in messages, by default the name.
        template: builds such a module; by default this one is handed out.

    Raises:
        DefinitionError: naming what cannot be used, and the way out.
    """
    name = name or type(module).__name__
    inputs, prepared = _positions(module, inputs)
    build = template or (lambda: module)
    module = prepared(module)
    with own_code(f"{label or name}.state_dict fails"):
        saved = None if copies_by_key(module) else frozenset(module.state_dict())
    try:
        space = WeightSpace.from_module(module, inputs)
    except (ValueError, TypeError) as error:
        raise DefinitionError(f"{label or name}: {error}") from error
    own = build if template is None else lambda: prepared(build())
    found = _definition(name, space, tensors_of(module), own, inputs, renaming_of(module))
    return replace(found, saved=saved, ignored=ignored_by(module), settings=configuration_of(module))


def _of_program(path: Path) -> Definition:
    if not path.is_file():
        raise DefinitionError(f"{path}: no such file, expected an exported program")
    try:
        program = torch.export.load(path)
        space = WeightSpace.from_module(program)
    except Exception as error:  # damaged files raise whatever their bytes happen to mean
        raise DefinitionError(f"{path} cannot be used as an exported program: {error}") from error
    inputs, keywords = program.example_inputs or ((), {})

    def build() -> nn.Module:
        module = program.module(check_guards=False)  # of any batch, where the program does not state one
        if keywords:  # which its forward takes in their order, but a check in front of it does not
            module._forward_pre_hooks.clear()
        return module

    return _definition(path.name, space, program.state_dict, build, (*inputs, *keywords.values()))


def _positions(module: nn.Module, inputs: Any) -> tuple[Any, Callable[[nn.Module], nn.Module]]:
    """Inputs as positional arguments, and what lets a module take those in order that it takes by keyword only.

    A dict that does not fit the names of a module's arguments is its only argument.
    """
    pair = isinstance(inputs, tuple | list) and len(inputs) == 2 and isinstance(inputs[0], tuple | list)
    values, keywords = inputs if pair else ((), inputs)
    try:
        bound = inspect.signature(module.forward).bind(*values, **keywords)
    except (TypeError, ValueError):
        return inputs, lambda module: module
    if bound.kwargs:  # those behind one that is left out
        bound.apply_defaults()
    first, names = len(bound.args), [name for name in bound.kwargs if name in keywords]

    def take_in_order(module: nn.Module) -> nn.Module:
        own = type(module)

        def forward(self: nn.Module, *values: Any, **more: Any) -> Any:
            return own.forward(self, *values[:first], **dict(zip(names, values[first:], strict=False)), **more)

        if names:
            module.__class__ = type(own.__name__, (own,), {"forward": forward, "__module__": own.__module__})
        return module

    return (*bound.args, *(bound.kwargs[name] for name in names)), take_in_order


def _definition(
    name: str,
    space: WeightSpace,
    tensors: Mapping[str, Tensor],
    template: Callable[[], nn.Module],
    inputs: Any,
    renamed: Callable[[str], str] = str,
) -> Definition:
    places: dict[Any, list[str]] = {}
    for key, t in tensors.items():
        places.setdefault((t.untyped_storage().data_ptr(), t.storage_offset(), t.shape, t.stride()), []).append(key)
    tied: dict[str, str] = {}
    for keys in places.values():
        kept = next((key for key in keys if key in space.parameters), keys[0])
        tied |= {key: kept for key in keys if key != kept and tensors[key].numel()}
    example = tuple(inputs) if isinstance(inputs, tuple | list) else () if inputs is None else (inputs,)
    one = example[0] if len(example) == 1 else None
    shape = tuple(one.shape[1:]) if isinstance(one, Tensor) and one.is_floating_point() else None
    shapes = {key: tuple(t.shape) for key, t in tensors.items()}
    return Definition(name, space, template, example, shape, shapes, tied, renamed=renamed)


def _built(build: Callable[..., Any], text: str, arguments: Mapping[str, Any]) -> tuple[nn.Module, Any]:
    """The module, and its example inputs if there are some."""
    found = called(build, text, arguments)
    module, inputs = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(module, nn.Module):
        raise DefinitionError(f"{text} returns {type(module).__name__}, expected an nn.Module")
    return module, inputs
