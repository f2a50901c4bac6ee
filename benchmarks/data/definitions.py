"""Networks that a user names: a class or function in a file or package, or an exported program.

All three run code: the user's own, or, in an exported program, whatever its author put there, as
``torch.export.load`` unpickles what the file says (torch 2.13, ``torch/export/pt2_archive/_package.py``). So a
definition is read from the place that a user names and from nowhere else: never from beside weights.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import itertools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.errors import InvalidValueError

__all__ = ["Definition", "DefinitionError", "read_definition"]

PROGRAM = ".pt2"
BATCH = 2  # of example inputs
FORMS = "module.py:Class, package.module:Class, or a program's path, net.pt2"


class DefinitionError(InvalidValueError):
    """A definition that cannot be read; the message names it, what was found and the way out."""


@dataclass(frozen=True)
class Definition:
    """A network architecture, as a user gave it.

    Attributes:
        name: of the class or file.
        space: its weight space, with the names of its state dict.
        template: builds the module.
        input_shape: of one input, where there is one, of real numbers; its first dimension is the batch.
        shapes: key of its state dict -> shape.
        tied: key -> the name under which the space has the same tensor.
    """

    name: str
    space: WeightSpace
    template: Callable[[], nn.Module]
    input_shape: tuple[int, ...] | None
    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]

    def parameters(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the space from a state dict, float32.

        Of tied tensors one key is enough, as safetensors files have it. Buffers and parameters that are not in the
        space are not read.

        Raises:
            DefinitionError: naming the keys, if the state dict is that of another architecture; or the tensor, if
                its numbers are not real or not finite.
        """
        given = {self.tied.get(key, key) for key in state}
        expected = {self.tied.get(key, key) for key in self.shapes}
        missing = [name for name in self.space.parameters if name not in given]
        unexpected = [key for key in state if self.tied.get(key, key) not in expected]
        wrong = [
            f"{key} is {tuple(t.shape)}, not {self.shapes[key]}"
            for key, t in state.items()
            if key in self.shapes and tuple(t.shape) != self.shapes[key]
        ]
        if missing or unexpected or wrong:
            raise DefinitionError(
                f"the weights are of another architecture than {self.name}: "
                + "; ".join(
                    f"{what} {_some(names)}"
                    for what, names in (
                        ("missing are", missing),
                        ("unexpected", unexpected),
                        ("of other shape:", wrong),
                    )
                    if names
                )
            )
        found: dict[str, Tensor] = {}
        for key, tensor in state.items():
            name = self.tied.get(key, key)
            if name not in self.space.parameters:
                continue
            if not tensor.is_floating_point():
                raise DefinitionError(f"{key} is {tensor.dtype}, expected a floating point tensor")
            if not bool(torch.isfinite(tensor).all()):
                raise DefinitionError(f"{key} holds NaN or infinite values: its training diverged, delete the file")
            found[name] = tensor.detach().float()
        return {name: found[name] for name in self.space.parameters}


def read_definition(text: str, input_shape: Sequence[int] | None = None) -> Definition:
    """What ``module.py:Class``, ``package.module:Class`` or ``net.pt2`` defines. Runs its code.

    The class, or function, is called without arguments. It makes the module, or a pair of it and its example inputs (a
    tensor or a tuple).

    Args:
        text: as a user gives it.
        input_shape: of one input without the batch, for a module of one real input that states no example.

    Raises:
        DefinitionError: naming what was not found or cannot be used, and the way out.
    """
    if text.endswith(PROGRAM):
        return _of_program(Path(text))
    build, name = _callable(text), text.rpartition(":")[2]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, inputs = _built(build, text)
        if inputs is None:
            if input_shape is None:
                raise DefinitionError(
                    f"{text}: give the shape of one input, as input_shape=3,32,32, or let {name} return a pair: the "
                    "module and its example inputs"
                )
            like = next(module.parameters(), torch.zeros(()))
            inputs = torch.randn(BATCH, *input_shape, dtype=like.dtype)
        try:
            space = WeightSpace.from_module(module, inputs)
        except (ValueError, TypeError) as error:
            raise DefinitionError(f"{text}: {error}") from error
    return _definition(name, space, module.state_dict(keep_vars=True), lambda: _built(build, text)[0], inputs)


def _of_program(path: Path) -> Definition:
    if not path.is_file():
        raise DefinitionError(f"{path}: no such file, expected an exported program")
    try:
        program = torch.export.load(path)
        space = WeightSpace.from_module(program)
    except Exception as error:  # damaged files raise whatever their bytes happen to mean
        raise DefinitionError(f"{path} cannot be used as an exported program: {error}") from error
    inputs, keywords = program.example_inputs or ((), {})
    build = functools.partial(program.module, check_guards=False)  # of any batch, where the program does not state one
    return _definition(path.name, space, program.state_dict, build, None if keywords else inputs)


def _definition(
    name: str,
    space: WeightSpace,
    tensors: Mapping[str, Tensor],
    template: Callable[[], nn.Module],
    inputs: Any,
) -> Definition:
    places: dict[Any, list[str]] = {}
    for key, t in tensors.items():
        places.setdefault((t.untyped_storage().data_ptr(), t.storage_offset(), t.shape, t.stride()), []).append(key)
    tied: dict[str, str] = {}
    for keys in places.values():
        kept = next((key for key in keys if key in space.parameters), keys[0])
        tied |= {key: kept for key in keys if key != kept and tensors[key].numel()}
    one = inputs[0] if isinstance(inputs, tuple) and len(inputs) == 1 else inputs
    shape = tuple(one.shape[1:]) if isinstance(one, Tensor) and one.is_floating_point() else None
    return Definition(name, space, template, shape, {key: tuple(t.shape) for key, t in tensors.items()}, tied)


def _built(build: Callable[[], Any], text: str) -> tuple[nn.Module, Any]:
    """The module, and its example inputs if there are some."""
    try:
        found = build()
    except TypeError as error:
        raise DefinitionError(
            f"{text} is called without arguments: {error}; name a function that gives them"
        ) from error
    module, inputs = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(module, nn.Module):
        raise DefinitionError(f"{text} makes a {type(module).__name__}, expected an nn.Module")
    return module, inputs


def _callable(text: str) -> Callable[[], Any]:
    place, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        raise DefinitionError(f"{text!r} names no network, expected {FORMS}")
    home = _file(Path(place)) if place.endswith(".py") else _package(place)
    found: Callable[[], Any] | None = getattr(home, name, None)
    if found is None or not callable(found):
        known = [key for key, value in vars(home).items() if inspect.isclass(value) and issubclass(value, nn.Module)]
        raise DefinitionError(f"{place} has no class or function {name}; its modules: {_some(known) or 'none'}")
    return found


@functools.cache
def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise DefinitionError(f"{path}: no such file, expected {FORMS}")
    name = f"nfn_monomial_definition_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DefinitionError(f"{path} is no Python file")
    home = importlib.util.module_from_spec(spec)
    sys.modules[name] = home  # dataclasses look there
    spec.loader.exec_module(home)
    return home


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DefinitionError(f"{name} cannot be imported ({error}), expected {FORMS}") from error


def _some(names: Collection[str], shown: int = 6) -> str:
    return ", ".join(itertools.islice(names, shown)) + f" and {len(names) - shown} more" * (len(names) > shown)
