"""The way in: parameters of networks as neuron features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, Within, checked, same_numbers
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space import packing
from nfn_monomial.space.axes import Charge
from nfn_monomial.space.features import Features, Layout
from nfn_monomial.space.weight_space import WeightSpace

from .layout import Slot, neuron_layout


class NeuronEmbedding(nn.Module):
    """Parameters of networks -> neuron features, equivariantly: the way in.

    Kernels, channels, and all parameters on the same axes are mixed linearly: weights into their edge, biases and gains
    into the stream of their charge. Neurons of FIXED nodes have learned embeddings of their own in all streams; other
    nodes have one ``inv`` embedding each, and streams that no parameter enters start at 0. Where no scale acts, ``inv``
    also gets the logarithms of the norms of the neuron's incoming and outgoing weights and of its own parameters, which
    a norm would otherwise hide from later layers.

    Shapes: a batch of networks -> `Features` of ``neuron_layout(space)``, every field ``(B, *neurons, channels)``.

    Args:
        space: the networks' weight space.
        in_channels: channels of the networks.
        channels: channels of every stream.
        extra: channels of one more field for hidden nodes, as `ProbeFeatures` makes them; 0: none.
        charges: node -> charge of that field; by default +1 on hidden nodes with such a stream.
    """

    @checked
    def __init__(
        self,
        space: WeightSpace,
        in_channels: Count,
        channels: Count,
        *,
        extra: Annotated[int, Within(0, 2**20)] = 0,
        charges: Mapping[str, Charge] | None = None,
    ) -> None:
        super().__init__()
        self.space, self.in_channels, self.channels, self.extra = space, in_channels, channels, extra
        self.neurons = neuron_layout(space)
        self.mix = nn.ModuleDict(
            {p.key: nn.Linear(in_channels * p.entries, channels, bias=False) for p in self.neurons.places}
        )
        plans = self.neurons.nodes
        fixed = {name: node.size or 1 for name, node in space.nodes.items() if name in plans and not node.permutes}
        hidden = [name for name in plans if name not in fixed]
        # No group acts on FIXED neurons, so all of their streams may start as anything.
        self.fixed = nn.ParameterDict(
            {n: nn.Parameter(torch.randn(size, len(plans[n].charges) * channels)) for n, size in fixed.items()}
        )
        self.start = nn.ParameterDict({n: nn.Parameter(torch.randn(channels)) for n in hidden})
        scales = any(node.scales for node in space.nodes.values())
        self.norms = None if scales else nn.ModuleDict({n: nn.Linear(3, channels, bias=False) for n in plans})
        charges = {n: 1 for n in hidden if (1,) in plans[n].charges} if charges is None else charges
        extra_charges = {n: (*plans[n].charges[-1][:-1], q) for n, q in charges.items() if extra}
        self._extra_field = {n: self.neurons.stream(n, *q) for n, q in extra_charges.items()}
        self.probes = nn.ModuleDict({n: nn.Linear(extra, channels, bias=False) for n in self._extra_field})

    @property
    def zeros(self) -> frozenset[int]:
        """Numbers of the fields that are 0: streams that no parameter and no extra field enters."""
        entered = {place.field for place in self.neurons.places} | set(self._extra_field.values())
        streams = {field for node in self.start for field in self.neurons.numbers(node)[:-1]}
        return frozenset(streams - entered)

    @property
    def out_layout(self) -> Layout:
        """The layout of the neuron features."""
        return self.neurons.layout

    def forward(self, networks: Features | Mapping[str, Tensor], extra: Mapping[str, Tensor] | None = None) -> Features:
        """Networks, packed or as named tensors, -> neuron features.

        Args:
            networks: `Features` of the space, or name -> ``(B, in_channels, *shape)``.
            extra: hidden node -> ``(B, *neurons, extra)``.
        """
        if (extra is None) != (not self.extra):
            raise InvalidValueError(
                f"NeuronEmbedding with extra={self.extra} was given {'no' if extra is None else 'an'} extra field"
            )
        tensors = self.space.unpack(networks) if isinstance(networks, Features) else networks
        sizes = packing.check_tensors(self.space, tensors)
        first = tensors[next(iter(self.space.parameters))]
        if first.shape[1] != self.in_channels:
            raise InvalidValueError(
                f"networks of {first.shape[1]} channels; NeuronEmbedding was built for {self.in_channels}"
            )
        same_numbers(first, next(self.parameters(), first), "NeuronEmbedding")
        taken = packing.pieces(self.space, tensors, sizes)
        raw = {p.field: self._gathered(p, taken) for p in self.neurons.places}
        mixed = {p.field: self.mix[p.key](raw[p.field]) for p in self.neurons.places}
        fields = [mixed[i] for i in range(len(self.neurons.edges))]
        for node, plan in self.neurons.nodes.items():
            shape = (first.shape[0], *(sizes[name] for name in self.space.ancestry(node)))
            start = [first.new_zeros(self.channels)] * (len(plan.charges) - 1)
            fixed = node in self.fixed
            streams = list(self.fixed[node].chunk(len(plan.charges), -1)) if fixed else [*start, self.start[node]]
            numbers = self.neurons.numbers(node)
            streams = [s + mixed[i] if i in mixed else s for i, s in zip(numbers, streams, strict=True)]
            if node in self.probes and extra is not None:
                i = numbers.index(self._extra_field[node])
                streams[i] = streams[i] + self.probes[node](extra[node])
            if self.norms is not None:
                streams[-1] = streams[-1] + self.norms[node](self._norms(node, raw, first.new_zeros(shape)))
            fields += [t.expand(*shape, -1) for t in streams]
        return Features(self.out_layout, (*fields, *([mixed[len(fields)]] if self.neurons.const else [])))

    def _gathered(self, place: Slot, taken: Mapping[str, Tensor]) -> Tensor:
        """The parameters of one place, ``(B, *neurons, entries x C)``."""
        rank = len(self.out_layout.types[place.field])
        named = zip(place.pieces, place.orders, strict=True)
        return torch.cat([taken[name].permute(order).flatten(1 + rank) for name, order in named], -1)

    def _norms(self, node: str, raw: Mapping[int, Tensor], zero: Tensor) -> Tensor:
        """Logarithms of squared norms of weights in and out and of parameters of one end: ``(B, *neurons, 3)``."""
        incoming = outgoing = parameters = zero
        for field, edge in enumerate(self.neurons.edges):
            for number, end in [(i, end) for i, end in enumerate(edge.ends) if end.node == node]:
                others = [1 + i for i in range(len(edge.axes) + 1) if i not in end.at]
                square = packing.wide(raw[field]).square().sum(others)
                incoming, outgoing = (incoming, outgoing + square) if number else (incoming + square, outgoing)
        for field in self.neurons.numbers(node):
            if field in raw:
                parameters = parameters + packing.wide(raw[field]).square().sum(-1)
        return torch.stack([incoming, outgoing, parameters], -1).add(1e-6).log().to(zero.dtype)

    def extra_repr(self) -> str:
        return f"{self.space}, {self.in_channels}, {self.channels}" + (f", extra={self.extra}" if self.extra else "")
