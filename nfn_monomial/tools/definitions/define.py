"""Networks that a user names: a class or function in a file or package, or an exported program.

All three run code: the user's own, or, in an exported program, whatever its author put there, because
``torch.export.load`` unpickles the file (torch 2.13, ``torch/export/pt2_archive/_package.py``). So a definition is read
from the place that a user names and from nowhere else: never from beside weights.
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
from nfn_monomial.adapters.matching import way_out_of
from nfn_monomial.alignment.outputs import Reading
from nfn_monomial.alignment.rounding import differing
from nfn_monomial.checks import listed, require_numbers
from nfn_monomial.errors import MonomialError
from nfn_monomial.fibre import NormalForm, normal_form
from nfn_monomial.running import answers
from nfn_monomial.tools.files.keys import is_of_older_release, placed

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
        inputs: the positional arguments of its example call; none if nobody knows how it runs.
        input_shape: of one input without the batch, if there is only one, of real numbers.
        shapes: key of its state dict -> shape.
        tied: key -> the name under which the space has the same tensor.
        chain: whether it was read off the weights of a chain of layers, so that others may have other keys.
        renamed: from keys in files to keys of its state dict, for a package that saves others.
        saved: keys of its state dict, if its own methods or hooks make and read it; None if `torch` copies its tensors
            by their keys.
        ignored: patterns of keys that its class has no use for, such as buffers of older releases.
        settings: the arguments that it was built with, if they are known, name -> in words.
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
    _loaded: dict[str, Definition] = field(default_factory=dict, compare=False, repr=False)

    @functools.cached_property
    def read(self) -> frozenset[str]:
        """Keys of the tensors that the module reads in eval mode on its example inputs; all keys without inputs."""
        if not self.inputs:
            return frozenset(self.shapes)
        module = self.template()
        parameters = module.named_parameters(remove_duplicate=False)
        tensors = dict((*parameters, *module.named_buffers(remove_duplicate=False)))
        with Reading(tensors) as reading:
            answers(module, tensors, self.inputs)
        return frozenset(reading.keys)

    @functools.cached_property
    def unlearned(self) -> dict[str, Tensor]:
        """Key -> tensor that comes with the architecture: buffers, and parameters that need no gradient."""
        module = None if self.chain else self.template()
        if module is None:
            return {}
        still = {name: t for name, t in module.named_parameters() if not t.requires_grad}
        return still | {name: t for name, t in module.named_buffers() if isinstance(t, Tensor)}

    @functools.cached_property
    def normal_form(self) -> NormalForm | str:
        """The normal form of its networks; or, in words, why it is not known."""
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
        """Returns the normal form if frozen tensors, such as an adapter's base, have the values of a network."""
        form = self.normal_form
        frozen = {} if isinstance(form, str) else {name: state[name] for name in form.frozen if name in state}
        if isinstance(form, str) or not differing(frozen, {name: form.frozen[name] for name in frozen}):
            return form
        module = self.template()
        module.load_state_dict(frozen, strict=False)
        try:
            return normal_form(module, self.inputs)
        except ValueError as error:
            return str(error)

    def module(self, seed: int | None = 0) -> nn.Module:
        """Builds a new module; random weights, and all else that is drawn, follow from a seed."""
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            module = self.template()
        # tensors that hooks compute, such as those of pruning and weight norm, cannot be copied if they have a history
        made = [t for part in module.modules() for t in vars(part).values() if isinstance(t, Tensor) and not t.is_leaf]
        return copy.deepcopy(module, {id(t): t.detach().clone() for t in made})

    def places(self, keys: Iterable[str]) -> dict[str, str]:
        """Returns the key in a checkpoint, which may be called otherwise (`placed`), for each of its own keys.

        Raises:
            ValueError: if keys of several networks fit.
        """
        file_key = {self.renamed(key): key for key in keys}
        if self.chain:
            return file_key
        removed = {full.removesuffix(key) for key, full in file_key.items() if key in self.shapes and key != full}
        prefixes = tuple(prefix for prefix in removed if prefix.endswith("."))  # of the one part that is needed
        if prefixes:
            file_key = {key: full for key, full in file_key.items() if key in self.shapes or full.startswith(prefixes)}
        names, required = (self.shapes, self.required) if self.saved is None else (self.saved, self.saved)
        return {key: file_key[name] for name, key in placed(file_key, names, required).items()}

    def loaded(
        self, state: Mapping[str, Tensor], objects: Mapping[str, Any], versions: Mapping[str, Any]
    ) -> tuple[Definition, Loaded]:
        """Loads a state dict by the module's own methods; also returns the definition that it then has.

        That is another one if the module takes settings from the file beside tensors.

        Args:
            state: key, as `places` has it -> tensor.
            objects: the same for entries that are no tensors.
            versions: that torch keeps beside a state dict.

        Raises:
            DefinitionError: naming the keys that are missing or unexpected; for errors of its own code.
        """
        with own_code(f"{self.name}.load_state_dict fails"):
            loaded = load_into(self.module(), self.module(), state, objects, versions)
        tensors = tensors_of(loaded.module)
        there = {id(t) for key, t in tensors.items() if key not in loaded.missing}
        faults = {
            "missing are": [
                key
                for key in loaded.missing
                if (is_extra(key) or key in self.space.parameters)
                and not (key in tensors and id(tensors[key]) in there)
            ],
            "unexpected": [key for key in loaded.unexpected if not self.ignores(key, state[key])],
        }
        self._require_none(faults)
        if not loaded.changed:
            return self, loaded

        def template() -> nn.Module:
            module = self.module(seed=None)
            fresh = {key: t.detach().clone() for key, t in tensors_of(module).items()}
            load_state(module, state, objects, versions)
            with torch.no_grad():
                for key, t in tensors_of(module).items():
                    t.copy_(fresh[key])
            return module

        settings = repr(sorted(loaded.settings.items()))
        if settings not in self._loaded:
            try:
                space = WeightSpace.from_module(loaded.module, self.inputs)
            except (ValueError, TypeError) as error:
                raise DefinitionError(f"{self.name}, once it has loaded the file: {error}") from error
            same = _definition(self.name, space, tensors, template, self.inputs, self.renamed)
            same = replace(same, saved=self.saved, ignored=self.ignored, settings=self.settings)
            self._loaded[settings] = same
        return self._loaded[settings], loaded

    def ignores(self, key: str, t: Tensor) -> bool:
        """Checks whether its class ignores a tensor of a file: it says so, or the tensor is of an older release."""
        return any(re.search(pattern, key) for pattern in self.ignored) or is_of_older_release(key, t)

    def _require_none(self, faults: Mapping[str, list[str]], note: str = "") -> None:
        if any(faults.values()):
            reasons = "; ".join(f"{fault} {listed(names, SHOWN)}" for fault, names in faults.items() if names)
            reasons += note or way_out_of(faults["unexpected"], faults["missing are"])
            raise DefinitionError(f"the weights are of another architecture than {self.name}: {reasons}")

    @functools.cached_property
    def folds(self) -> list[Fold]:
        """The pairs of a layer and the batch norm after it, found by a run on its example inputs."""
        return folds_of(self.template(), self.inputs) if self.inputs and not self.chain else []

    @property
    def required(self) -> frozenset[str]:
        """Keys that all its checkpoints have: buffers may be missing, and tied tensors but one."""
        return frozenset(self.space.parameters).difference(self.tied.values())

    def keys(
        self, shapes: Mapping[str, tuple[int, ...]], *, widths: bool = False, state: Mapping[str, Tensor] | None = None
    ) -> dict[str, list[str]]:
        """Returns, for each parameter of the space, the keys of a state dict with these shapes that have it.

        One key of tied tensors is enough: safetensors files have no more. Buffers, and parameters that are not in the
        space, may be missing. With ``widths`` other numbers of neurons are accepted if they agree with one another. Of
        a ``state`` with these shapes, tensors that the class `ignores` are accepted.

        Raises:
            DefinitionError: naming the keys, if they are those of another architecture.
        """
        meta = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
        keys_of: dict[str, list[str]] = {}
        for key in shapes:
            keys_of.setdefault(self.tied.get(key, key), []).append(key)
        expected = {self.tied.get(key, key) for key in self.shapes}
        others = [key for key, shape in shapes.items() if self.shapes.get(key, shape) != shape]
        faults = {
            "missing are": [name for name in self.space.parameters if name not in keys_of],
            "unexpected": [
                key
                for name, keys in keys_of.items()
                if name not in expected
                for key in keys
                if state is None or not self.ignores(key, state[key])
            ],
            "of other shape:": [f"{key} is {shapes[key]}, not {self.shapes[key]}" for key in others],
        }
        note = ""
        if widths and others and not (faults["missing are"] or faults["unexpected"]):
            try:
                self.space.validate({name: meta[keys_of[name][0]][None, None] for name in self.space.parameters})
                faults["of other shape:"] = []
            except ValueError as error:
                note = f" (and not of another width: {error})"
                rows = {(shapes[key][:1], self.shapes[key][:1]) for key in others}
                alike = all(shapes[k] and self.shapes[k] and shapes[k][1:] == self.shapes[k][1:] for k in others)
                if len(rows) == 1 and alike:  # rows are those of words or classes
                    ((count,), (wanted,)) = rows.pop()
                    note += (
                        f". If {count} and {wanted} are the sizes of two vocabularies, keep the rows that both have, "
                        f"as {others[0]}[:{min(count, wanted)}]"
                    )
        self._require_none(faults, note)
        return {name: keys_of[name] for name in self.space.parameters}


def one_value(keys: Sequence[str], state: Mapping[str, Tensor]) -> Tensor:
    """Returns the value of several keys of a state dict that are one tensor in the network.

    Raises:
        DefinitionError: naming two keys, if their values differ, or one, if its numbers are not real or not finite.
    """
    first, *others = keys
    try:
        value = require_numbers(state[first], first)
    except MonomialError as error:
        raise DefinitionError(str(error)) from error
    for key in others:
        if not torch.equal(value, state[key]):
            raise DefinitionError(
                f"{first} and {key} are one tensor in the network, but have two values: leave one of them out, or name "
                "a network that does not tie them"
            )
    return value.detach()


def read_definition(
    text: str, input_shape: Sequence[int] | None = None, batch: int = BATCH, arguments: Mapping[str, Any] | None = None
) -> Definition:
    """Reads a definition by name: ``module.py:Class``, ``package.module:Class``, ``net.pt2`` or one of a package.

    Its **code runs**: the class, or function, is called with ``arguments``. It makes the module, or a pair of it and
    its example inputs, as `define` takes them; a function ``example_inputs()`` beside it may state them as well.

    Args:
        text: the name; see `PACKAGES` for those of packages.
        input_shape: of one input without the batch, for a module with one real input; counts before stated examples.
        batch: number of random inputs of that shape.
        arguments: of the class or function, by keyword; a program has none.

    Raises:
        DefinitionError: naming the part that cannot be used, and the way out.
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
    """Returns the definition of a module.

    Args:
        module: any that ``torch.export`` can trace.
        inputs: a tensor, a tuple of all positional arguments, a dict of arguments by keyword, or a pair ``(args,
            kwargs)`` of both.
        name: of the architecture, by default that of the class.
        label: its name in messages, by default the same.
        template: builds such a module; by default returns this one.

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
    build_prepared = build if template is None else lambda: prepared(build())
    definition = _definition(name, space, tensors_of(module), build_prepared, inputs, renaming_of(module))
    return replace(definition, saved=saved, ignored=ignored_by(module), settings=configuration_of(module))


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
        if keywords:  # which its forward takes in their order, but a check before it does not
            module._forward_pre_hooks.clear()
        return module

    return _definition(path.name, space, program.state_dict, build, (*inputs, *keywords.values()))


def _positions(module: nn.Module, inputs: Any) -> tuple[Any, Callable[[nn.Module], nn.Module]]:
    """Orders inputs as positional arguments; also returns a function that makes a module take them in that order.

    A dict that does not fit the names of a module's arguments is its only argument.
    """
    pair = isinstance(inputs, tuple | list) and len(inputs) == 2 and isinstance(inputs[0], tuple | list)
    values, keywords = inputs if pair else ((), inputs)
    try:
        bound = inspect.signature(module.forward).bind(*values, **keywords)
    except (TypeError, ValueError):
        return inputs, lambda module: module
    if bound.kwargs:  # those after one that is left out
        bound.apply_defaults()
    first, names = len(bound.args), [name for name in bound.kwargs if name in keywords]

    def take_in_order(module: nn.Module) -> nn.Module:
        cls = type(module)

        def forward(self: nn.Module, *values: Any, **more: Any) -> Any:
            return cls.forward(self, *values[:first], **dict(zip(names, values[first:], strict=False)), **more)

        if names:
            module.__class__ = type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__})
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
    """Calls a user's class or function: the module, and its example inputs if it returns them."""
    made = called(build, text, arguments)
    module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        raise DefinitionError(f"{text} returns {type(module).__name__}, expected an nn.Module")
    return module, inputs
