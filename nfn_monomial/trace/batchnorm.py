"""Batch norms folded into the layers in front of them: fewer parameters, the same function."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from nfn_monomial.checks import checked
from nfn_monomial.errors import InvalidValueError

from .graph import operation, program_of

_LAYERS = {
    nn.Linear: 0, nn.Conv1d: 0, nn.Conv2d: 0, nn.Conv3d: 0,
    nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 1, nn.ConvTranspose3d: 1,
}  # fmt: skip


@checked
def fold_batchnorm(
    module: nn.Module, example_inputs: Tensor | Sequence[Any], *, kwargs: Mapping[str, Any] | None = None
) -> nn.Module:
    """A copy of a network in which every batch norm behind a layer is part of that layer; exact in eval mode.

    Five tensors on a channel become two: with ``c = gain / sqrt(variance + eps)``, the layer's weight is ``c W`` and
    its bias ``c (b - mean) + shift``. Two scalings of each channel, in front of the norm (rows and running mean up,
    gain down) and behind it, become one, and networks that differ in how they split that factor are the same.

    Args:
        module: any network that ``torch.export`` can trace.
        example_inputs: a tensor, or a tuple of all positional arguments.
        kwargs: further arguments.

    Returns:
        The copy, in eval mode. Batch norms that stand behind something else than a linear layer or a convolution used
        once, as in front of an activation alone, stay.

    Raises:
        ValueError: as `derive`; or if there is no batch norm to fold.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    >>> fold_batchnorm(net, torch.zeros(1, 1, 8, 8))
    Sequential(
      (0): Conv2d(1, 4, kernel_size=(3, 3), stride=(1, 1))
      (1): Identity()
      (2): ReLU()
    )
    """
    program = program_of(module, example_inputs, kwargs)
    folded = copy.deepcopy(module).eval()
    count = 0
    for node in program.graph.nodes:
        if node.op != "call_function" or operation(node) != "batch_norm":
            continue
        layer, norm = node.args[0], _owner(module, program.parameters, node.args[3])
        if norm is None or not isinstance(layer, fx.Node) or layer.op != "call_function" or len(layer.users) > 1:
            continue
        own = _owner(module, program.parameters, layer.args[1] if len(layer.args) > 1 else None)
        if own is None or type(module.get_submodule(own)) not in _LAYERS:
            continue
        if not all(_once(program.parameters, arg) for arg in (*layer.args[1:3], *node.args[1:5])):
            continue
        _fold(folded.get_submodule(own), folded.get_submodule(norm))
        folded.set_submodule(norm, nn.Identity())
        count += 1
    if not count:
        raise InvalidValueError(
            f"{type(module).__name__} has no batch norm with running statistics behind a layer: nothing to fold"
        )
    return folded.eval()


def _owner(module: nn.Module, names: Mapping[str, str], argument: Any) -> str | None:
    """The path of the module that a parameter belongs to."""
    if not isinstance(argument, fx.Node) or argument.name not in names:
        return None
    path, _, _ = names[argument.name].rpartition(".")
    return path


def _once(names: Mapping[str, str], argument: Any) -> bool:
    """Whether a parameter is read by one operation only, under one name."""
    if not isinstance(argument, fx.Node):
        return True
    name = names.get(argument.name)
    return len(argument.users) == 1 and sum(other == name for other in names.values()) == 1


@torch.no_grad()
def _fold(layer: Any, norm: Any) -> None:
    weight, dim = layer.weight, _LAYERS[type(layer)]
    factor = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        factor = factor * norm.weight
    if dim:  # transposed: (in, out / groups, ...), the outputs of a group beside one another
        groups = layer.groups
        shape = (groups, weight.shape[0] // groups, *weight.shape[1:])
        by_group = factor.view(groups, 1, -1, *[1] * (weight.ndim - 2))
        weight.copy_((weight.view(shape) * by_group).view(weight.shape))
    else:
        weight.mul_(factor.view(-1, *[1] * (weight.ndim - 1)))
    bias = -norm.running_mean * factor if layer.bias is None else (layer.bias - norm.running_mean) * factor
    layer.bias = nn.Parameter(bias if norm.bias is None else bias + norm.bias)
