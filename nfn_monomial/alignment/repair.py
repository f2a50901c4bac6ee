"""REPAIR of merged networks: hidden units get back the means and deviations that averaging takes from them.

In the mean of two networks, units that agree only in part vary less than in either of them, layer by layer more so.
Jordan et al. 2022 (REPAIR) set mean and standard deviation of every unit's preactivation to the means of those in the
endpoints. After a layer with a bias that is one factor and one shift of a unit, which weight and bias take up; after a
batch norm, gain and shift do, once its running statistics are those of the merged network.

Nothing here depends on the frame that the endpoints stand in. To take a norm's gain as it is would: for given running
statistics a gain may be divided by what the rows before it are multiplied by, for new ones it may not.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nfn_monomial.checks import checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.running import called_with, evaluating, inputs_of, running

from .path import mean_of

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@checked
def repair(
    module: nn.Module,
    merged: Mapping[str, Tensor],
    endpoints: Sequence[Mapping[str, Tensor]],
    inputs: Any,
    weights: Sequence[float] | None = None,
) -> dict[str, Tensor]:
    """Returns a merged network whose units have the mean of the statistics that they have in the endpoints.

    - **Batch norms with running statistics** (`nn.BatchNorm1d` to 3d): these become mean and variance of what enters
      the norm now. Gain and shift, where it has them, are set so that mean and deviation of what leaves it agree; the
      gain keeps its sign.
    - **Linear layers and convolutions with a bias** (`nn.Linear`, `nn.Conv1d` to 3d): each unit's row of the weight is
      multiplied by the quotient of deviations, and the bias set so that the means agree. Left as they are: layers
      without a bias, the one whose output is the network's, layers that run more than once or share a parameter, and
      the row of a unit that does not vary, whose mean alone is set.

    Statistics are over samples and positions, of one forward pass with all inputs, in which every layer sees what the
    repaired layers before it hand on. Some hundred inputs of the training data will do; labels are not needed.

    Args:
        module: what runs, in eval mode; left as it is.
        merged: parameter or buffer -> tensor, as of `interpolate`.
        endpoints: the networks that it is the mean of.
        inputs: a tensor ``(N, ...)``, or a tuple of all positional arguments.
        weights: of the endpoints, as ``(1 - t, t)``; equal ones by default.

    Raises:
        ValueError: if names, shapes or numbers do not fit, or if there is nothing to repair.
    """
    owners = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    candidates = [
        name
        for name, m in module.named_modules()
        if (isinstance(m, _NORMS) and m.running_mean is not None)
        or (isinstance(m, _LAYERS) and m.bias is not None and owners[id(m.weight)] == owners[id(m.bias)] == 1)
    ]
    expected = mean_of([_spreads(module, endpoint, inputs, candidates) for endpoint in endpoints], weights)
    chosen = [name for name in candidates if f"{name}.mean" in expected]
    if not chosen:
        raise InvalidValueError(
            f"{type(module).__name__} has neither batch norms with running statistics nor hidden linear layers or "
            "convolutions with a bias: there is nothing to repair"
        )
    state = {name: tensor.clone() for name, tensor in merged.items()}

    def repaired(name: str, layer: Any, args: tuple[Any, ...], out: Tensor) -> Tensor:
        if isinstance(layer, _NORMS):
            mean, variance = _moments(args[0], 1)
            state[f"{name}.running_mean"], state[f"{name}.running_var"] = mean, variance
            gain: Tensor | None = layer.weight
            shift: Tensor | None = layer.bias
            if gain is not None:
                size = expected[f"{name}.deviation"] * ((variance + layer.eps) / variance).sqrt()
                gain = state[f"{name}.weight"] = torch.where(variance > 0, size.copysign(gain), gain)
                shift = state[f"{name}.bias"] = expected[f"{name}.mean"]
            return nn.functional.batch_norm(args[0], mean, variance, gain, shift, False, 0.0, layer.eps)
        units = _units(layer)
        mean, variance = _moments(out, units)
        factor = torch.where(variance > 0, expected[f"{name}.deviation"] / variance.sqrt(), 1)
        shift = expected[f"{name}.mean"] - factor * mean
        state[f"{name}.weight"] = layer.weight * _along(factor, layer.weight, 0)
        state[f"{name}.bias"] = layer.bias * factor + shift
        return out * _along(factor, out, units) + _along(shift, out, units)

    _run(module, merged, inputs, chosen, repaired)
    return state


def _spreads(module: nn.Module, network: Mapping[str, Tensor], inputs: Any, names: Sequence[str]) -> dict[str, Tensor]:
    """``layer.mean`` and ``layer.deviation`` of what layers hand on, ``(n,)`` each.

    Layers that do not run just once are left out, and that whose output is the network's.
    """
    spreads: dict[str, tuple[Tensor, Tensor]] = {}
    runs: Counter[str] = Counter()
    handed_on: dict[str, weakref.ref[Tensor]] = {}

    def seen(name: str, layer: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        spreads[name] = _moments(out, _units(layer))
        runs[name] += 1
        handed_on[name] = weakref.ref(out)

    outputs = _run(module, network, inputs, names, seen)
    once = [name for name in names if runs[name] == 1 and handed_on[name]() is not outputs]
    means = {f"{name}.mean": spreads[name][0] for name in once}
    return means | {f"{name}.deviation": spreads[name][1].sqrt() for name in once}


def _run(
    module: nn.Module, network: Mapping[str, Tensor], inputs: Any, names: Sequence[str], hook: Callable[..., Any]
) -> Any:
    """Runs the module with a forward hook at some of its layers, which has their name as its first argument."""
    with evaluating(module), running(module, "the inputs"), contextlib.ExitStack() as hooks:
        for name in names:
            hooks.enter_context(module.get_submodule(name).register_forward_hook(functools.partial(hook, name)))
        return called_with(module, network, inputs_of(inputs))


def _units(layer: nn.Module) -> int:
    """The dimension of a layer's output that its units are in."""
    return -1 if isinstance(layer, nn.Linear) else 1


def _moments(x: Tensor, units: int) -> tuple[Tensor, Tensor]:
    """Mean and variance over all dimensions but that of the units, ``(n,)`` each."""
    variance, mean = torch.var_mean(x.movedim(units, 0).flatten(1), 1, correction=0)
    return mean, variance


def _along(values: Tensor, x: Tensor, units: int) -> Tensor:
    shape = [1] * x.ndim
    shape[units] = -1
    return values.view(shape)
