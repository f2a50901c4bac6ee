"""Chains of layers: read off the names and shapes of a state dict, convolutions first, then linear layers.

`layers_of` gives the layers in order of execution under their own names, `parameters_of` the tensors ``weight.i``,
``bias.i`` of a weight space, and `space_of` that space.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.matching import follows, natural
from nfn_monomial.checks import listed, require_numbers
from nfn_monomial.errors import MonomialError
from nfn_monomial.space import SymmetryLike
from nfn_monomial.tools.files.strangers import FileError

__all__ = ["Layer", "layers_of", "parameters_of", "space_of"]


class Layer(NamedTuple):
    """One layer's parameters: ``weight (out, in, *kernel)``, ``bias (out,)``."""

    weight: Tensor
    bias: Tensor | None


def layers_of(state: Mapping[Any, Any], path: Path, layer: str, example: str) -> dict[str, Layer]:
    """The layers of a state dict by name, in order of execution: convolutions, then linear ones, each by number.

    Args:
        state: keys ``{layer}.weight`` and ``{layer}.bias`` and no others.
        path: of the file, for messages.
        layer: regular expression of a layer's name.
        example: the keys that are expected, for messages.

    Raises:
        FileError: naming the file and the key, for other keys, a bias without a weight, and values that are no
            finite floating point tensors, or not of the dimensions of a weight or bias.
    """
    found: dict[str, dict[str, Tensor]] = {}
    pattern = re.compile(rf"({layer})\.(weight|bias)")
    unexpected = []
    for key, value in state.items():
        match = pattern.fullmatch(key) if isinstance(key, str) else None
        if match is None:
            unexpected.append(key)
            continue
        role = match[match.lastindex or 0]
        found.setdefault(key.removesuffix(f".{role}"), {})[role] = _checked(value, path, key, role)
    if unexpected or not found:
        what = f"has keys {listed(unexpected, 5)}" if unexpected else "is empty"
        raise FileError(f"{path} {what}; expected {example} and no others: these are networks of another kind")
    for name, parts in found.items():
        if "weight" not in parts:
            raise FileError(f"{path}: there is {name}.bias but no {name}.weight; expected {example}")
    ordered = sorted(found, key=lambda name: (found[name]["weight"].ndim == 2, natural(name)))
    return {name: Layer(found[name]["weight"], found[name].get("bias")) for name in ordered}


def _checked(value: Any, path: Path, key: str, role: str) -> Tensor:
    key = listed([key])  # of any length in the file
    try:
        tensor = require_numbers(value, key).detach().float()
    except MonomialError as error:
        raise FileError(f"{path}: {error}") from error
    if tensor.numel() == 0 or not (tensor.ndim == 1 if role == "bias" else 2 <= tensor.ndim <= 5):
        expected = "(out,)" if role == "bias" else "(out, in) or (out, in, *kernel)"
        raise FileError(f"{path}: {key} has shape {tuple(tensor.shape)}, expected {expected}")
    return tensor


def parameters_of(layers: Mapping[str, Layer], path: Path, *, biases: bool = True) -> dict[str, Tensor]:
    """Layers as ``weight.i``, ``bias.i``.

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
    for (before, first), (name, second) in itertools.pairwise(layers.items()):
        rows, columns = first.weight.shape[0], second.weight.shape[1]
        if not follows(second.weight.shape, first.weight.shape):
            raise FileError(
                f"{path}: {name}.weight reads {columns} inputs, but {before}.weight before it has {rows} outputs"
            )
    return tensors


def space_of(
    layers: Mapping[str, Layer],
    symmetry: SymmetryLike | Sequence[SymmetryLike],
    names: Sequence[tuple[str, str | None]] | None = None,
) -> WeightSpace:
    """The weight space of layers that follow one another, with parameters ``weight.i`` and ``bias.i``, or other names.

    Where a flatten is in front of a linear layer, its columns run over positions, too.
    """
    weights = [tuple(layer.weight.shape) for layer in layers.values()]
    outputs = [weight[0] for weight in weights]
    return WeightSpace.sequential(
        (weights[0][1], *outputs),
        [weight[2:] for weight in weights],
        symmetry,
        bias=[layer.bias is not None for layer in layers.values()],
        positions={i: w[1] // rows for i, (rows, w) in enumerate(zip(outputs, weights[1:], strict=False), 1)},
        names=names,
    )
