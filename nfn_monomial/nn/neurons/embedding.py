"""The way in: parameters of networks as neuron features; and the way back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, Within, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.nn.edges import mixed
from nfn_monomial.nn.sizes import log_sums, square_sums
from nfn_monomial.space import packing
from nfn_monomial.space.axes import Charge
from nfn_monomial.space.features import Features, Layout
from nfn_monomial.space.nodes import ancestry
from nfn_monomial.space.weight_space import WeightSpace

from .buckets import Neurons
from .entries import Entries, entries_of
from .layers import OnNeurons


class NeuronEmbedding(OnNeurons):
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

    Attributes:
        mix: ``(entries, C)``, of each place of parameters its entries and their channels; then of the extra fields.
        start: ``(hidden nodes, C)``.
        fixed: ``(FIXED neurons x streams, C)``.
        norms: ``(nodes, 3, C)``; None where scales act.
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
        super().__init__(space, channels)
        self.in_channels = in_channels
        self.in_layout = space.layout
        self.extra = extra
        plans = self.neurons.nodes
        fixed = [
            (node.size or 1) * len(plans[n].charges)
            for n, node in space.nodes.items()
            if n in plans and not node.permutes
        ]
        hidden = [name for name in plans if space.nodes[name].permutes]
        charges = {n: 1 for n in hidden if (1,) in plans[n].charges} if charges is None else charges
        at = {n: self._stream_of(n, q) for n, q in charges.items() if extra}
        self._extra = tuple((field, extra) for field in at.values())
        self._extra_nodes = tuple(at)
        self._widths = [in_channels * place.entries for place in self.neurons.places] + [extra] * len(at)
        scales = any(node.scales for node in space.nodes.values())
        self.mix = nn.Parameter(torch.empty(sum(self._widths), channels))
        # No group acts on FIXED neurons, so all of their streams may start as anything.
        self.start = nn.Parameter(torch.empty(len(hidden), channels)) if hidden else None
        self.fixed = nn.Parameter(torch.empty(sum(fixed), channels)) if fixed else None
        self.norms = None if scales or not plans else nn.Parameter(torch.empty(len(plans), 3, channels))
        self.reset_parameters()

    def _stream_of(self, name: str, charge: Charge) -> int:
        """The stream for a field of a node's neurons that outer nodes, in which they are nested, only permute."""
        plan = self.neurons.nodes[name]
        outer = [self.space.nodes[each] for each in ancestry(self.space.nodes, name)[:-1]]
        for charges in ((*plan.charges[-1][:-1], charge), *plan.charges):
            acting = (
                q and (gauge.scales or gauge.flips)
                for node, of_node in zip(outer, charges, strict=False)
                for gauge, q in zip(node.gauges, node.spelled(of_node), strict=True)
            )
            if charges in plan.charges and charges[-1] == charge and not any(acting):
                return self.neurons.stream(name, *charges)
        raise InvalidValueError(f"the neurons of node {name!r} have no stream for a field of charge {charge}")

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        for part, width in zip(torch.split(self.mix, self._widths), self._widths, strict=True):
            nn.init.uniform_(part, -1 / math.sqrt(width), 1 / math.sqrt(width))
        for parameter in (self.start, self.fixed):
            if parameter is not None:
                nn.init.normal_(parameter)
        if self.norms is not None:
            nn.init.uniform_(self.norms, -1 / math.sqrt(3), 1 / math.sqrt(3))

    @property
    def out_layout(self) -> Layout:
        """The layout of the neuron features."""
        return self.neurons.layout

    def forward(
        self,
        networks: Features | Mapping[str, Tensor],
        extra: Mapping[str, Tensor] | None = None,
        *,
        in_buckets: bool = False,
    ) -> Features | Neurons:
        """Networks, packed or as named tensors, -> neuron features.

        Args:
            networks: `Features` of the space, or name -> ``(B, in_channels, *shape)``.
            extra: hidden node -> ``(B, *neurons, extra)``.
            in_buckets: whether they come in buckets, as layers pass them on, or as `Features`.
        """
        if (extra is None) != (not self.extra):
            raise InvalidValueError(
                f"NeuronEmbedding with extra={self.extra} was given {'no' if extra is None else 'an'} extra field"
            )
        features = networks if isinstance(networks, Features) else self.space.pack(networks, check_finite=False)
        self.in_layout.require(features, self.in_channels, "NeuronEmbedding", self.mix)
        sizes, first = self.space.node_sizes(features), features.tensors[0]
        entries = self.lately(entries_of, self.in_channels, self._extra, *self.arrangement(sizes, first))
        if [x.shape[1:] for x in features.tensors] != entries.fields:
            # Fields that were put together by hand: the message names the parameter.
            packing.check_tensors(self.space, self.space.unpack(features))
        flat = [x.flatten(1) for x in features.tensors]
        flat += [extra[node].flatten(1) for node in self._extra_nodes] if extra is not None else []
        flat += [first.new_zeros(len(first), 1)] if entries.padded else []
        numbers = torch.cat(flat, 1).index_select(1, entries.numbers)
        picked = torch.split(numbers, [*map(math.prod, entries.shapes)], 1)
        shaped = [torch.unflatten(x, 1, shape) for x, shape in zip(picked, entries.shapes, strict=True)]
        raw = [x.permute(1, 2, 0, 3).contiguous() for x in shaped]  # (Q, N, B, K)
        fields = [mixed(x, w) for x, w in zip(raw, entries.matrices(self.mix), strict=True)]
        buckets, count = entries.buckets, len(entries.buckets.edges)
        edges = [torch.unflatten(x, 1, bucket.shape) for bucket, x in zip(buckets.edges, fields, strict=False)]
        into, rows = [entries.rows], [x.flatten(0, 1) for x in fields[count:]]
        if self.norms is not None:
            added = self._norms(entries, raw)
            into += [buckets.invariant_rows]
            rows += [x.to(fields[0].dtype) for x in added]
        started = [p for p in (self.start, self.fixed) if p is not None]
        start = torch.cat([*started, self.mix.new_zeros(1, self.channels)]).index_select(0, entries.start)
        x = start.unsqueeze(1).expand(-1, first.shape[0], -1)
        if rows:
            new = torch.cat(rows)
            x = x.to(new.dtype).index_add(0, torch.cat(into), new)
        neurons = Neurons(buckets, tuple(edges), x)
        return neurons if in_buckets else buckets.unpack(neurons)

    def _norms(self, entries: Entries, raw: list[Tensor]) -> list[Tensor]:
        """Logarithms of squared norms of weights in and out and of parameters of one end, mapped: rows of ``inv``."""
        assert self.norms is not None
        buckets = entries.buckets
        squares = []
        for number, x in enumerate(raw):
            square = square_sums(x, -1)
            if number < len(buckets.edges):
                bucket = buckets.edges[number]
                of_edges = torch.unflatten(square, 1, bucket.shape)
                squares += [bucket.grid.sum(of_edges, end).flatten(0, -2) for end in range(len(bucket.grid.at))]
            else:
                squares.append(square.flatten(0, 1))
        logs = log_sums(torch.cat(squares), entries.log_at, entries.logs)[:-1].to(self.norms.dtype)
        counts = [len(bucket.nodes) for bucket in buckets.nodes]
        matrices = torch.split(self.norms.index_select(0, entries.nodes), counts)
        parts = torch.split(torch.unflatten(logs, 0, (-1, 3)), [len(b.nodes) * b.neurons for b in buckets.nodes])
        of_nodes = [torch.unflatten(x, 0, (len(w), -1)) for x, w in zip(parts, matrices, strict=True)]
        return [mixed(x.transpose(-1, -2), w).flatten(0, 1) for x, w in zip(of_nodes, matrices, strict=True)]

    def extra_repr(self) -> str:
        return f"{self.space}, {self.in_channels}, {self.channels}" + (f", extra={self.extra}" if self.extra else "")


class NeuronReadout(OnNeurons):
    """Neuron features -> parameters, equivariantly: the way back, mixing linearly the fields that they lie in.

    Args:
        space: the networks' weight space.
        channels: of the neuron features.
        out_channels: of the networks.

    Attributes:
        mix: ``(entries, C)``, of each place of parameters its entries and their channels.
    """

    @checked
    def __init__(self, space: WeightSpace, channels: Count, out_channels: Count) -> None:
        super().__init__(space, channels)
        self.out_channels = out_channels
        self.out_layout = space.layout
        self.mix = nn.Parameter(
            torch.empty(sum(place.entries for place in self.neurons.places) * out_channels, channels)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        nn.init.uniform_(self.mix, -(self.channels**-0.5), self.channels**-0.5)

    def forward(self, features: Features | Neurons) -> Features:
        """Neuron features of ``channels`` -> `Features` of the space with ``out_channels``."""
        neurons = self.packed(features)
        sizes = neurons.buckets.sizes
        entries = self.lately(
            entries_of, self.out_channels, (), *self.arrangement(sizes, neurons.rows[:1].movedim(1, 0))
        )
        widths = [shape[:2] for shape in entries.shapes[len(neurons.edges) :]]
        streams = torch.split(neurons.rows.index_select(0, entries.rows), [*map(math.prod, widths)])
        fields = [x.flatten(1, -3) for x in neurons.edges]
        fields += [torch.unflatten(x, 0, shape) for x, shape in zip(streams, widths, strict=True)]
        pairs = zip(fields, entries.matrices(self.mix), strict=True)
        out = [mixed(x, w.mT).transpose(-1, -2).flatten(0, 2) for x, w in pairs]
        if not streams:
            # Gradients of 0, not none, for what made the neurons: parallel training waits for all.
            out.append(neurons.rows[:0, :, 0])
        numbers = torch.cat(out).index_select(0, entries.back).T
        parts = zip(torch.split(numbers, [*map(math.prod, entries.fields)], 1), entries.fields, strict=True)
        return Features(self.space.layout, tuple([torch.unflatten(x, 1, shape) for x, shape in parts]))

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}, {self.out_channels}"
