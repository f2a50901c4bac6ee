"""The architecture that the names and shapes of a checkpoint tell: a plain chain of layers.

Of layers that are all linear the chain is a module: with the activation between them it says what they compute. Where
convolutions are in it, strides and pools are not known, and so it has a space alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nfn_monomial.adapters.matching import OrderError, in_order
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.symmetry import function_named, symmetry_of
from nfn_monomial.tools.definitions.chains import Layer, layers_of, parameters_of, space_of
from nfn_monomial.tools.definitions.define import Definition, define
from nfn_monomial.tools.files.strangers import FileError

from .files import Checkpoint

__all__ = ["NET", "chain_of", "plant"]

NAME = "the chain of layers"
PROBES = 64  # random inputs of a chain of layers
NET = "--net module.py:Class, package.module:Class, hf:FOLDER or PATH.pt2"


def chain_of(
    checkpoint: Checkpoint, activation: str, input_shape: Sequence[int] | None, order: Sequence[str] | None = None
) -> Definition:
    """The chain of layers in a checkpoint; without example inputs where nobody knows how it runs.

    ``order`` names the layers in the order in which they run; without it, that is the order of the file.

    Raises:
        ValueError: naming what cannot be used, and the way out.
    """
    path = checkpoint.path
    symmetry_of(activation)  # or it is an error
    ranks = {".weight": (2, 3, 4, 5), ".bias": (1,)}
    shapes = checkpoint.shapes
    if odd := [key for key, shape in shapes.items() if len(shape) not in ranks.get(f".{key.rpartition('.')[2]}", ())]:
        shown = ", ".join(f"{key} {shapes[key]}" for key in odd[:5]) + ", ..." * (len(odd) > 5)
        raise FileError(
            f"{path} has {shown}: no chain of layers with {{layer}}.weight and {{layer}}.bias; say what it is by {NET}"
        )
    layers = layers_of(checkpoint, path, r".+", "{layer}.weight and {layer}.bias")
    names = dict.fromkeys(key.rpartition(".")[0] for key in shapes)
    try:
        run = in_order({name: tuple(layers[name].weight.shape) for name in names}, order)
    except OrderError as error:
        raise FileError(f"{path}: {error}; or say what network it is by {NET}") from error
    layers = {name: layers[name] for name in run}
    parameters_of(layers, path, biases=False)  # or it is an error
    function = function_named(activation)
    if function is None or any(layer.weight.ndim > 2 for layer in layers.values()):
        keys = [(f"{n}.weight", None if bias is None else f"{n}.bias") for n, (_, bias) in layers.items()]
        return Definition(NAME, space_of(layers, activation, keys), nn.Module, (), None, shapes, {}, chain=True)
    size = next(iter(layers.values())).weight.shape[1]
    if input_shape is not None and input_shape[-1] != size:
        raise InvalidValueError(f"--input {','.join(map(str, input_shape))}: {path} reads {size} inputs")
    inputs = torch.randn(*(input_shape or (PROBES, size)), generator=torch.Generator().manual_seed(0))
    definition = define(Chain(layers, function), inputs)
    return dataclasses.replace(definition, name=NAME, chain=True)


class Chain(nn.Module):
    """Linear layers, by their dotted names, with an activation between them."""

    def __init__(self, layers: Mapping[str, Layer], activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._names, self._activation = list(layers), activation
        for name, (weight, bias) in layers.items():
            plant(self, name, nn.Linear(weight.shape[1], len(weight), bias=bias is not None))

    def forward(self, x: Tensor) -> Any:
        """``(B, inputs)`` -> ``(B, outputs)``."""
        for i, name in enumerate(self._names):
            x = self.get_submodule(name)(x if not i else self._activation(x))
        return x


def plant(root: nn.Module, name: str, module: nn.Module) -> None:
    """Make a module that of a dotted name."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(last, module)
