"""Batch norms after layers: which there are, and layers that have taken them up, with the same function."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from nfn_monomial.checks import checked
from nfn_monomial.errors import InvalidValueError

from .graph import operation, program_of

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (nn.BatchNorm1d.forward, nn.SyncBatchNorm.forward)


class Fold(NamedTuple):
    """A layer and the batch norm after it.

    Attributes:
        layer, norm: their paths in a module.
        eps: of the norm.
        biased: whether the layer has a bias.
        affine: whether the norm has a gain and a shift.
        groups: of a transposed convolution, whose weight is ``(in, out / groups, ...)``; None for ``(out, ...)``.
    """

    layer: str
    norm: str
    eps: float
    biased: bool
    affine: bool
    groups: int | None = None

    @property
    def keys(self) -> list[str]:
        """The names of the norm's tensors: mean and variance, then gain and shift if it has them."""
        kinds = ("running_mean", "running_var", *(("weight", "bias") if self.affine else ()))
        return [f"{self.norm}.{kind}" for kind in kinds]

    def folded(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the weight and bias of a layer that computes what the layer and the norm do.

        With ``c = gain / sqrt(variance + eps)`` they are ``c W`` and ``c (b - mean) + shift``.
        """
        weight, (mean, variance, *affine) = tensors[f"{self.layer}.weight"], (tensors[key] for key in self.keys)
        bias = tensors[f"{self.layer}.bias"] if self.biased else torch.zeros_like(mean)
        gain, shift = affine or (torch.ones_like(mean), torch.zeros_like(mean))
        inverse = torch.rsqrt(variance + self.eps)
        factor, kernel = gain * inverse, [1] * (weight.ndim - 2)
        if self.groups is None:
            weight = weight * factor.view(-1, 1, *kernel)
        else:  # the outputs of a group are beside one another
            by_group = weight.reshape(self.groups, -1, *weight.shape[1:])
            weight = (by_group * factor.view(self.groups, 1, -1, *kernel)).flatten(0, 1)
        return weight, (bias - mean) * inverse * gain + shift


def folds_of(module: nn.Module, inputs: Any, kwargs: Mapping[str, Any] | None = None) -> list[Fold]:
    """Returns the batch norms with running statistics that read nothing but a layer, which nothing else reads.

    Layers are linear ones and convolutions. Tensors of layer and norm are used there alone.

    Raises:
        ValueError: as `derive`.
    """
    program = program_of(module, inputs, kwargs)
    names = list(program.parameters.values())

    def owner(arguments: Sequence[Any]) -> Any:
        """The path of the one module whose tensors these are, if nothing else reads them."""
        places = [argument for argument in arguments if isinstance(argument, fx.Node)]
        if not places or any(place.name not in program.parameters or len(place.users) > 1 for place in places):
            return None
        tensors = [program.parameters[place.name] for place in places]
        paths = {name.rpartition(".")[0] for name in tensors}
        return paths.pop() if len(paths) == 1 and all(names.count(name) == 1 for name in tensors) else None

    folds = []
    for node in program.graph.nodes:
        if node.op != "call_function" or operation(node) != "batch_norm":
            continue
        if not isinstance(reads := node.args[0], fx.Node) or reads.op != "call_function" or len(reads.users) > 1:
            continue
        norm, layer = owner(node.args[1:5]), owner(reads.args[1:3])
        if norm is None or layer is None or not isinstance(node.args[3], fx.Node):
            continue
        before, after = module.get_submodule(layer), module.get_submodule(norm)
        if type(before) in (*_LAYERS, *_TRANSPOSED) and type(after).forward in _NORMS:
            groups = getattr(before, "groups", None) if isinstance(before, _TRANSPOSED) else None
            eps, affine = getattr(after, "eps", 0.0), getattr(after, "weight", None) is not None
            folds.append(Fold(layer, norm, eps, before.bias is not None, affine, groups))
    return folds


@checked
def fold_batchnorm(
    module: nn.Module, example_inputs: Tensor | Sequence[Any], *, kwargs: Mapping[str, Any] | None = None
) -> nn.Module:
    """Returns a copy of a network in which every batch norm after a layer is part of that layer; exact in eval mode.

    Five tensors on a channel become two: with ``c = gain / sqrt(variance + eps)``, the layer's weight is ``c W`` and
    its bias ``c (b - mean) + shift``. Two scalings of each channel, before the norm (rows and running mean up, gain
    down) and after it, become one, and networks that differ in how they split that factor are the same.

    Args:
        module: any network that ``torch.export`` can trace.
        example_inputs: a tensor, or a tuple of all positional arguments.
        kwargs: further arguments.

    Returns:
        The copy, in eval mode. Batch norms stay that read anything but a linear layer or a convolution which is used
        once, and those of classes that do more than that.

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
    folds, folded = folds_of(module, example_inputs, kwargs), copy.deepcopy(module).eval()
    if not folds:
        raise InvalidValueError(
            f"{type(module).__name__} has no batch norm with running statistics behind a layer: nothing to fold"
        )
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    for fold in folds:
        layer: Any = folded.get_submodule(fold.layer)
        with torch.no_grad():
            weight, bias = fold.folded(tensors)
            layer.weight.copy_(weight)
        layer.bias = nn.Parameter(bias)
        folded.set_submodule(fold.norm, nn.Identity())
    return folded.eval()
