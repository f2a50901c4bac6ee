"""Plain chains of layers, read off the names and shapes of a checkpoint: convolutions first, then linear layers.

If all layers are linear, the chain is a module, because the activation says what happens between them. With
convolutions, strides and pools are not known, and a chain has only a weight space.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.matching import OrderError, follows, in_order, natural
from nfn_monomial.checks import listed, require_numbers
from nfn_monomial.errors import InvalidValueError, MonomialError
from nfn_monomial.space import SymmetryLike
from nfn_monomial.symmetry import function_named, symmetry_of
from nfn_monomial.tools.files.checkpoints import Checkpoint
from nfn_monomial.tools.files.untrusted import FileError

from .define import Definition, define

__all__ = ["NET", "Layer", "chain_of", "layers_of", "parameters_of", "plant", "space_of"]

NAME = "the chain of layers"
PROBES = 64  # random inputs of a chain of layers
NET = "--net module.py:Class, package.module:Class, hf:FOLDER or PATH.pt2"

Layer: TypeAlias = "tuple[Tensor, Tensor | None]"
"""A layer's weight ``(out, in, *kernel)``, and its bias ``(out,)``, if it has one."""


def layers_of(state: Mapping[Any, Any], path: Path, layer: str, example: str) -> dict[str, Layer]:
    """Returns the layers of a state dict by name, in order of execution: convolutions, then linear ones, by number.

    Args:
        state: keys ``{layer}.weight`` and ``{layer}.bias`` and no others.
        path: of the file, for messages.
        layer: regular expression of a layer's name.
        example: the keys that are expected, for messages.

    Raises:
        FileError: naming the file and the key, for other keys, a bias without a weight, and values that are no
            finite floating point tensors, or not of the dimensions of a weight or bias.
    """
    weights: dict[str, Tensor] = {}
    biases: dict[str, Tensor] = {}
    pattern = re.compile(rf"({layer})\.(weight|bias)")
    unexpected = []
    for key, value in state.items():
        match = pattern.fullmatch(key) if isinstance(key, str) else None
        if match is None:
            unexpected.append(key)
            continue
        role = match[match.lastindex or 0]
        shown = listed([key])  # of any length in the file
        try:
            tensor = require_numbers(value, shown).detach().float()
        except MonomialError as error:
            raise FileError(f"{path}: {error}") from error
        if tensor.numel() == 0 or not (tensor.ndim == 1 if role == "bias" else 2 <= tensor.ndim <= 5):
            expected = "(out,)" if role == "bias" else "(out, in) or (out, in, *kernel)"
            raise FileError(f"{path}: {shown} has shape {tuple(tensor.shape)}, expected {expected}")
        (biases if role == "bias" else weights)[key.removesuffix(f".{role}")] = tensor
    if unexpected or not (weights or biases):
        what = f"has keys {listed(unexpected, 5)}" if unexpected else "is empty"
        raise FileError(f"{path} {what}; expected {example} and no others: these are networks of another kind")
    for name in biases:
        if name not in weights:
            raise FileError(f"{path}: there is {name}.bias but no {name}.weight; expected {example}")
    ordered = sorted(weights, key=lambda name: (weights[name].ndim == 2, natural(name)))
    return {name: (weights[name], biases.get(name)) for name in ordered}


def parameters_of(layers: Mapping[str, Layer], path: Path, *, biases: bool = True) -> dict[str, Tensor]:
    """Names the tensors of layers ``weight.i``, ``bias.i``.

    Raises:
        FileError: naming the file and the layer, if one does not follow the one before it, or (``biases``) has none.
    """
    tensors: dict[str, Tensor] = {}
    for i, (name, (weight, bias)) in enumerate(layers.items()):
        if biases and bias is None:
            raise FileError(f"{path}: {name}.bias is missing beside {name}.weight")
        if bias is not None and len(bias) != len(weight):
            raise FileError(f"{path}: {name}.bias has {len(bias)} entries, but {name}.weight {len(weight)} rows")
        tensors[f"weight.{i}"] = weight
        if bias is not None:
            tensors[f"bias.{i}"] = bias
    for (before, (first, _)), (name, (second, _)) in itertools.pairwise(layers.items()):
        if not follows(second.shape, first.shape):
            raise FileError(
                f"{path}: {name}.weight reads {second.shape[1]} inputs, but {before}.weight before it has "
                f"{first.shape[0]} outputs"
            )
    return tensors


def space_of(
    layers: Mapping[str, Layer],
    symmetry: SymmetryLike | Sequence[SymmetryLike],
    names: Sequence[tuple[str, str | None]] | None = None,
) -> WeightSpace:
    """Returns the weight space of successive layers, with parameters ``weight.i`` and ``bias.i``, or with ``names``.

    If there is a flatten before a linear layer, its columns run over positions, too.
    """
    weights = [tuple(weight.shape) for weight, _ in layers.values()]
    outputs = [weight[0] for weight in weights]
    return WeightSpace.sequential(
        (weights[0][1], *outputs),
        [weight[2:] for weight in weights],
        symmetry,
        bias=[bias is not None for _, bias in layers.values()],
        positions={i: w[1] // rows for i, (rows, w) in enumerate(zip(outputs, weights[1:], strict=False), 1)},
        names=names,
    )


def chain_of(
    checkpoint: Checkpoint, activation: str, input_shape: Sequence[int] | None, order: Sequence[str] | None = None
) -> Definition:
    """Returns the chain of layers in a checkpoint; it has no example inputs if nobody knows how it runs.

    ``order`` names the layers in the order in which they run; by default it is that of the file.

    Raises:
        ValueError: naming what cannot be used, and the way out.
    """
    path, shapes = checkpoint.path, checkpoint.shapes
    symmetry_of(activation)  # raises if it is not known
    ranks = {".weight": (2, 3, 4, 5), ".bias": (1,)}
    if odd := [key for key, shape in shapes.items() if len(shape) not in ranks.get(f".{key.rpartition('.')[2]}", ())]:
        shown = ", ".join(f"{key} {shapes[key]}" for key in odd[:5]) + ", ..." * (len(odd) > 5)
        raise FileError(
            f"{path} has {shown}: no chain of layers with {{layer}}.weight and {{layer}}.bias; say what it is by {NET}"
        )
    layers = layers_of(checkpoint, path, r".+", "{layer}.weight and {layer}.bias")
    names = dict.fromkeys(key.rpartition(".")[0] for key in shapes)
    try:
        run = in_order({name: tuple(layers[name][0].shape) for name in names}, order)
    except OrderError as error:
        raise FileError(f"{path}: {error}; or say what network it is by {NET}") from error
    layers = {name: layers[name] for name in run}
    parameters_of(layers, path, biases=False)  # raises if they do not follow one another
    function = function_named(activation)
    if function is None or any(weight.ndim > 2 for weight, _ in layers.values()):
        keys = [(f"{n}.weight", None if bias is None else f"{n}.bias") for n, (_, bias) in layers.items()]
        return Definition(NAME, space_of(layers, activation, keys), nn.Module, (), None, shapes, {}, chain=True)
    size = next(iter(layers.values()))[0].shape[1]
    if input_shape is not None and input_shape[-1] != size:
        raise InvalidValueError(f"--input {','.join(map(str, input_shape))}: {path} reads {size} inputs")
    inputs = torch.randn(*(input_shape or (PROBES, size)), generator=torch.Generator().manual_seed(0))
    return dataclasses.replace(define(LayerChain(layers, function), inputs), name=NAME, chain=True)


class LayerChain(nn.Module):
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
    """Puts a module at a dotted name."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(last, module)
