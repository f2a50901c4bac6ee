"""Colours of neurons: numbers that stay with a neuron when a network is permuted or flipped, and tell it from others.

Weights pass random messages between neurons, as in message passing networks that have not been trained. Neurons of
FIXED nodes have random colours of their own, all others start alike and are told apart by what reaches them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nfn_monomial.space.axes import Axis
from nfn_monomial.space.links import End, Link
from nfn_monomial.space.weight_space import WeightSpace

from .signs import parity

_CHANNELS = 32
_ROUNDS = 4
_FLOOR = 0.1  # relative to a sum of independent entries: what differs less between neurons may be noise


def colours(
    space: WeightSpace, networks: Sequence[Mapping[str, Tensor]], sizes: Mapping[str, int], seed: int
) -> list[dict[str, Tensor]]:
    """Of each network node -> colours ``(*sizes, channels)`` of neurons, nested ones behind those they are nested in.

    A message is ``sum_k w_jk r_k``, over all entries of a parameter at neuron j, with random numbers r of the kernel's
    places times the colours of the neurons at its other ends; of ``|w|`` if signs act on those, and its absolute value
    if signs act on j. Messages are centred and scaled over the neurons of all networks together. Those that hardly
    differ from neuron to neuron, as from gains that are all 1 but for noise, are not blown up.

    Args:
        space: the weight space; what acts are permutations and signs.
        networks: piece -> tensors ``(*axes)``, of scales that can be compared.
        sizes: of all nodes.
        seed: of the random numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    # Half as many bytes to read; that colours are like is all that counts.
    networks = [{name: x.float() for name, x in network.items()} for network in networks]
    norms = {name: float(x.norm()) for name, x in networks[0].items()}
    like = next(iter(networks[0].values()))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(like)

    shapes = {name: [sizes[above] for above in space.ancestry(name)] for name in space.nodes}
    start = {
        name: like.new_ones(*shapes[name], _CHANNELS) if node.permutes else random(*shapes[name], _CHANNELS)
        for name, node in space.nodes.items()
    }
    states = [dict(start) for _ in networks]
    history: list[dict[str, list[Tensor]]] = [{name: [] for name in space.nodes} for _ in networks]
    for _ in range(_ROUNDS):
        sums: list[dict[str, Tensor]] = [{} for _ in networks]

        def receive(node: str, messages: list[Tensor], floor: float, sums: list[dict[str, Tensor]] = sums) -> None:
            mix = random(_CHANNELS, _CHANNELS) / _CHANNELS**0.5
            for total, message in zip(sums, _standardised(messages, floor), strict=True):
                total[node] = total.get(node, 0) + message @ mix

        for link in space.links:
            kernel = random(*link.kernel, _CHANNELS)
            for end in link.ends:
                if space.nodes[end.node].permutes:
                    messages = [
                        _message(space, link, end, network[link.parameter], state, kernel)
                        for network, state in zip(networks, states, strict=True)
                    ]
                    own = messages[0][..., 0].numel()
                    receive(end.node, messages, _FLOOR * norms[link.parameter] / own**0.5)
        for child, parent in reversed(space.nesting.items()):
            receive(parent, [(s[child] + s[child].square()).mean(-2) for s in states], _FLOOR)
        for child, parent in space.nesting.items():
            receive(child, [s[parent].unsqueeze(-2).expand_as(s[child]) for s in states], _FLOOR)
        for total, state, past in zip(sums, states, history, strict=True):
            for node, x in total.items():
                past[node].append(x)
                state[node] = torch.tanh(x) + start[node] / 2
    return [{node: torch.cat(past, -1) for node, past in kept.items() if past} for kept in history]


def _message(
    space: WeightSpace, link: Link, end: End, x: Tensor, state: Mapping[str, Tensor], kernel: Tensor
) -> Tensor:
    """What one parameter tells the neurons at one of its ends, ``(*sizes, channels)``."""
    axes = space.axes[link.parameter]
    flips = [i for i, axis in enumerate(axes) if isinstance(axis, Axis) and parity(space, axis.node, axis.charge)]
    signed = all(i in end.at for i in flips)
    channel = x.ndim
    others = [(state[other.node], other.at) for other in link.ends if other is not end]
    others.append((kernel, tuple(i for i, axis in enumerate(axes) if isinstance(axis, int))))
    others.sort(key=lambda part: -part[0].numel())
    dims = list(range(x.ndim))
    total = x if signed else x.abs()
    for number, (colour, at) in enumerate(others):
        later = {i for _, rest in others[number + 1 :] for i in rest}
        kept = [*end.at, *(i for i in dims if i != channel and i not in end.at and i in later)]
        total = torch.einsum(total, dims, colour, [*at, channel], [*kept, channel])
        dims = [*kept, channel]
    return total.abs() if signed and flips else total


def _standardised(messages: list[Tensor], floor: float) -> list[Tensor]:
    together = torch.cat([m.flatten(0, -2) for m in messages])
    mean, spread = together.mean(0), together.var(0, correction=0)
    scale = (spread + floor**2).sqrt()
    scale = torch.where(scale > 0, scale, 1)
    return [(m - mean) / scale for m in messages]
