"""Plain torch networks in and out: modules, state dicts, lists of them <-> batches of tensors.

A batch of networks is a dict parameter -> ``(B, 1, *shape)`` with the names of its `WeightSpace`: what
`WeightSpace.pack` takes, and what `network_outputs` runs. ``WeightSpace.from_module`` gives a space with a module's own
names, so that ``torch.func.functional_call`` takes each network as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.checks import require_numbers
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.running import called_with
from nfn_monomial.space.packing import is_counter

from .matching import is_ignored, keys_by_name, match_names

Network: TypeAlias = "nn.Module | Mapping[str, Tensor]"

__all__ = [
    "match_names",
    "network_outputs",
    "stack_labelled",
    "stack_networks",
    "unstack_networks",
]


def stack_networks(
    networks: Network | Iterable[Network] | nn.ModuleList,
    space: WeightSpace,
    *,
    names: Mapping[str, str] | None = None,
    ignore: str | Collection[str] = (),
) -> dict[str, Tensor]:
    """Networks of one architecture -> parameter of the space -> tensor ``(B, 1, *shape)``; dtype and device are kept.

    State dicts may have any keys in any order, see `match_names`. Of a module those parameters and buffers are read
    that the space, or ``names``, names, detached; if it has not these, all parameters but slopes of ``nn.PReLU``, whose
    order is known in nested ``nn.Sequential``. Counters of batches are left out.
    `unstack_networks` is the exact inverse.

    Args:
        networks: one module or state dict, or any number of them, all of one shape.
        space: their weight space.
        names: parameter of the space -> key in the state dicts, where that is not clear.
        ignore: keys, or patterns as ``*.num_batches_tracked``, to leave out.

    Raises:
        ValueError: naming the network, its tensor and key, if keys do not match, shapes differ from the space's or
            from those of the first network, or a value is NaN or infinite.
        TypeError: if a value is no floating point tensor, or dtypes or devices differ.

    >>> space = WeightSpace.mlp([2, 8, 1], "relu")
    >>> tensors = stack_networks([nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(5)], space)
    >>> {name: tuple(t.shape) for name, t in tensors.items()}
    {'weight.0': (5, 1, 8, 2), 'bias.0': (5, 1, 8), 'weight.1': (5, 1, 1, 8), 'bias.1': (5, 1, 1)}
    """
    if isinstance(networks, Mapping) or (isinstance(networks, nn.Module) and not isinstance(networks, nn.ModuleList)):
        networks = [networks]
    every = list(networks)
    labelled = [(f"network {i} of {len(every)}", network) for i, network in enumerate(every, 1)]
    return stack_labelled(labelled, space, names, ignore)


def unstack_networks(
    tensors: Mapping[str, Tensor], space: WeightSpace, *, names: Mapping[str, str] | None = None
) -> list[dict[str, Tensor]]:
    """Parameter -> ``(B, 1, *shape)``, as one state dict a network; the tensors are copies.

    Args:
        tensors: a batch of networks with one channel.
        space: their weight space.
        names: parameter of the space -> key in the state dicts; its own name by default.

    Raises:
        ValueError: if the tensors do not fit the space, have more than one channel, or are not finite.
    """
    space.validate(tensors)
    first = next(iter(space.parameters))
    batch, channels = tensors[first].shape[:2]
    if channels != 1:
        raise InvalidValueError(
            f"{first} has {channels} channels; a network has one: map features to out_channels=1 first"
        )
    keys = keys_by_name(space, names)
    return [{key: tensors[name][b, 0].clone() for name, key in keys.items()} for b in range(batch)]


def network_outputs(module: nn.Module, tensors: Mapping[str, Tensor], x: Tensor | tuple[Any, ...]) -> Tensor:
    """Returns the outputs of B networks for the same inputs: ``(B, *module(x).shape)``, one vmap over all networks.

    Differentiable in ``tensors`` and ``x``. Parameters and buffers of the module that are not in ``tensors`` keep the
    module's own values for all networks. The module runs in the mode it is in.

    Args:
        module: the architecture; its parameters and buffers have the names of ``tensors``
            (``WeightSpace.from_module``).
        tensors: parameter -> ``(B, 1, *shape)``.
        x: inputs of one network, batched in the module's own way; a tuple for a module of several.

    Raises:
        ValueError: if a name is no parameter of the module, or a tensor is not ``(B, 1, *shape)``.
    """
    shapes = {name: t.shape for name, t in itertools.chain(module.named_parameters(), module.named_buffers())}
    unknown = [name for name in tensors if name not in shapes]
    if unknown or not tensors:
        raise InvalidValueError(
            f"the module has no parameter {', '.join(unknown) or '(none given)'}; it has {', '.join(shapes)}. "
            "WeightSpace.from_module(module, example_inputs) gives a space with its names"
        )
    batch = next(iter(tensors.values())).shape[0]
    for name, tensor in tensors.items():
        if tensor.ndim != 2 + len(shapes[name]) or tuple(tensor.shape[:2]) != (batch, 1):
            raise InvalidValueError(
                f"{name} has shape {tuple(tensor.shape)}; ({batch}, 1, *shape) is expected, with {len(shapes[name])} "
                "dimensions of the network's own"
            )
    single = {name: tensor.squeeze(1) for name, tensor in tensors.items()}

    def run(parameters: dict[str, Tensor]) -> Tensor:
        out: Tensor = called_with(module, parameters, x if isinstance(x, tuple) else (x,))
        return out

    outputs: Tensor = torch.func.vmap(run, randomness="different")(single)
    return outputs


def stack_labelled(
    networks: Sequence[tuple[str, Any]],
    space: WeightSpace,
    names: Mapping[str, str] | None,
    ignore: str | Collection[str],
) -> dict[str, Tensor]:
    """Matches, checks and stacks networks, each with the name that messages call it by."""
    if not networks:
        raise InvalidValueError("no networks given; at least one is needed")
    batch: dict[str, list[Tensor]] = {name: [] for name in space.parameters}
    matches: dict[object, dict[str, str]] = {}
    for label, network in networks:
        try:
            state, ordered = _state_of(network, space, names, ignore)
            signature = (ordered, *((key, tensor.shape) for key, tensor in state.items()))
            if signature not in matches:
                matches[signature] = match_names(state, space, names=names, ordered=ordered)
            keys = matches[signature]
            tensors = {name: require_numbers(state[key], key) for name, key in keys.items()}
            if network is networks[0][1]:
                space.validate({name: tensor[None, None] for name, tensor in tensors.items()})
            for name, tensor in tensors.items():
                batch[name].append(tensor)
                key, first, where = keys[name], batch[name][0], networks[0][0]
                if tensor.shape != first.shape:
                    raise InvalidValueError(
                        f"{key} has shape {tuple(tensor.shape)} but in {where} it is {tuple(first.shape)}: a batch "
                        "holds networks of one width; stack each width by itself"
                    )
                if (tensor.dtype, tensor.device) != (first.dtype, first.device):
                    raise InvalidTypeError(
                        f"{key} is {tensor.dtype} on {tensor.device} but in {where} it is {first.dtype} on "
                        f"{first.device}; convert them to one dtype and device"
                    )
        except (ValueError, TypeError) as error:
            raise type(error)(f"{label}: {error}") from None
    return {name: torch.stack(column).unsqueeze(1) for name, column in batch.items()}


def _state_of(
    network: Any, space: WeightSpace, names: Mapping[str, str] | None, ignore: str | Collection[str]
) -> tuple[dict[str, Tensor], bool]:
    """Key -> tensor, and whether the order of the keys is known to be that of the layers."""
    if isinstance(network, nn.Module):
        tensors = {key: t.detach() for key, t in itertools.chain(network.named_parameters(), network.named_buffers())}
        wanted = keys_by_name(space, names).values()
        if all(key in tensors for key in wanted):
            return {key: tensors[key] for key in wanted}, False
        parts = dict(network.named_modules())
        slopes = [f"{path}.weight" for path, part in parts.items() if isinstance(part, nn.PReLU)]
        layers = [key for key, _ in network.named_parameters() if key not in slopes and not is_ignored(key, ignore)]
        # In which order other modules call their parts cannot be seen from outside.
        ordered = all(type(part).forward is nn.Sequential.forward for part in parts.values() if part._modules)
        return {key: tensors[key] for key in layers}, ordered
    if not isinstance(network, Mapping):
        raise InvalidTypeError(f"it is a {type(network).__name__}; a module or a state dict is expected")
    expected = set(keys_by_name(space, names).values())
    state = {key: value for key, value in network.items() if key in expected or not is_counter(str(key), network)}
    state = {key: value for key, value in state.items() if not is_ignored(key, ignore)}
    other = [f"{key!r} ({type(value).__name__})" for key, value in state.items() if not isinstance(value, Tensor)]
    if other:
        raise InvalidTypeError(f"no tensors: {', '.join(other)}; leave such entries out by ignore=(key, ...)")
    return state, False
