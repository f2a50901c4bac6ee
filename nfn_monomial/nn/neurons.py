"""Neuron features: what every neuron and every weight carries while messages pass between them.

Where weight-space features fold input and output neurons into channels, here every neuron of every node, FIXED ones
included, has three streams of its own, and every weight one:

=========  ==========================  ==========================================================================
stream     field type                  what it is like
=========  ==========================  ==========================================================================
edges      ``(target^+1, source^-1)``  a weight: ``e_jk -> d_j / d_k e_jk``
out        ``(node^+1,)``              an activation or a bias: ``h_j -> d_j h_j``
back       ``(node^-1,)``              a gradient by an activation: ``g_j -> g_j / d_j``
inv        ``(node^0,)``               an invariant of its neuron: only permuted
=========  ==========================  ==========================================================================

All are fields of one `Features`, with multiplicity 1 and the same number of channels, so that the group acts on them
as on any features, and `PointwiseActivation`, `+` and ``assert_equivariant`` take them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nfn_monomial.space import packing
from nfn_monomial.space.axes import Axis, FieldType
from nfn_monomial.space.features import Features, Layout
from nfn_monomial.space.links import Link
from nfn_monomial.space.weight_space import WeightSpace

STREAMS = {"out": 1, "back": -1, "inv": 0}
"""Name -> charge of the three streams of a neuron, in the order of the fields."""


class Pair(NamedTuple):
    """The weights between two nodes: names of the node of the rows (target) and of the columns (source)."""

    target: str
    source: str

    @property
    def key(self) -> str:
        """A name for module dictionaries."""
        return f"{self.target}_from_{self.source}"


class NeuronLayout(NamedTuple):
    """The fields of neuron features of a space, see `neuron_layout`.

    Attributes:
        layout: edges of every pair, then out, back and inv of every node.
        pairs: the edge fields, in the layout's order.
        nodes: node names, in the layout's order.
    """

    layout: Layout
    pairs: tuple[Pair, ...]
    nodes: tuple[str, ...]

    def stream(self, name: str, node: str) -> int:
        """Index of a node's field of this stream."""
        return len(self.pairs) + 3 * self.nodes.index(node) + list(STREAMS).index(name)


def neuron_layout(space: WeightSpace) -> NeuronLayout:
    """The layout of neuron features of a space.

    Charges are not reduced: ``out`` and ``back`` are different streams also where the group cannot tell them apart.

    Raises:
        ValueError: if a parameter of the space is neither a weight (one axis of charge +1, one of charge -1) nor a
            bias (one axis of charge +1); kernel dimensions besides.
    """
    links = {link.parameter: link for link in space.links}
    for name, axes in space.axes.items():
        if name not in links or links[name].charges not in ((1, -1), (1,)):
            found = [a for a in axes if isinstance(a, Axis)]
            raise ValueError(
                f"{space.describe(name)} is neither a weight nor a bias: it has axes {', '.join(map(str, found))}. "
                "Messages pass along weights, with one axis of charge +1 and one of charge -1; after Canonicalize "
                "there are no charges left: put message passing in front of it"
            )
    pairs = dict.fromkeys(Pair(link.target, link.source) for link in space.links if link.source is not None)
    types: list[FieldType] = [(Axis(p.target, 1), Axis(p.source, -1)) for p in pairs]
    types += [(Axis(node, charge),) for node in space.nodes for charge in STREAMS.values()]
    return NeuronLayout(space.layout_of(types, fold=False), tuple(pairs), tuple(space.nodes))


def _places(space: WeightSpace) -> dict[str, list[Link]]:
    """Key of a pair or name of a node -> the parameters there."""
    places: dict[str, list[Link]] = {}
    for link in space.links:
        at = link.target if link.source is None else Pair(link.target, link.source).key
        places.setdefault(at, []).append(link)
    return places


def _entries(places: Sequence[Link]) -> int:
    return sum(math.prod(place.kernel) for place in places)


class Streams(NamedTuple):
    """The three streams of some neurons, ``(..., n, C)`` each: charges +1, -1 and 0."""

    out: Tensor
    back: Tensor
    inv: Tensor


class NeuronLayer(nn.Module):
    """A layer from neuron features to neuron features of one space.

    Args:
        space: the networks' weight space.
        channels: of all streams, at least 1.
    """

    def __init__(self, space: WeightSpace, channels: int) -> None:
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels must be at least 1, found {channels}")
        self.space, self.channels = space, channels
        self.neurons: NeuronLayout = neuron_layout(space)
        self.in_layout = self.out_layout = self.neurons.layout

    def split(self, features: Features) -> tuple[dict[Pair, Tensor], dict[str, Streams]]:
        """Checked features as edges ``(B, targets, sources, C)`` of each pair and streams of each node."""
        self.in_layout.require(features, self.channels, type(self).__name__)
        edges = dict(zip(self.neurons.pairs, features.tensors, strict=False))
        rest = features.tensors[len(edges) :]
        nodes = {node: Streams(*rest[3 * i : 3 * i + 3]) for i, node in enumerate(self.neurons.nodes)}
        return edges, nodes

    def join(self, edges: Iterable[Tensor], nodes: Iterable[Streams]) -> Features:
        """The inverse of `split`."""
        return Features(self.out_layout, (*edges, *(t for streams in nodes for t in streams)))

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}"


class NeuronEmbedding(nn.Module):
    """Weights and biases -> neuron features, equivariantly: the way in.

    A weight's kernel and channels are mixed linearly into its edge, a bias into its neuron's ``out``. Neurons of FIXED
    nodes have learned embeddings of their own in all streams; other nodes have one ``inv`` embedding each, and ``back``
    starts at 0. Where no scale acts, ``inv`` also gets the logarithms of the norms of the neuron's incoming and
    outgoing weights and of its bias, which a norm would otherwise hide from later layers.

    Shapes: a batch of networks -> `Features` of ``neuron_layout(space)``, every field ``(B, *neurons, channels)``.

    Args:
        space: the networks' weight space.
        in_channels: channels of the networks.
        channels: channels of every stream.
        extra: channels of one more field of charge +1 for every hidden node, such as `ProbeFeatures` makes; 0: none.

    Raises:
        ValueError: see `neuron_layout`.
    """

    def __init__(self, space: WeightSpace, in_channels: int, channels: int, *, extra: int = 0) -> None:
        super().__init__()
        self.space, self.in_channels, self.channels, self.extra = space, in_channels, channels, extra
        self.neurons = neuron_layout(space)
        self._places = _places(space)
        self.mix = nn.ModuleDict(
            {at: nn.Linear(in_channels * _entries(p), channels, bias=False) for at, p in self._places.items()}
        )
        fixed = {name: node.size or 1 for name, node in space.nodes.items() if not node.permutes}
        hidden = [name for name in space.nodes if name not in fixed]
        # No group acts on FIXED neurons, so all three streams may start as anything.
        self.fixed = nn.ParameterDict({n: nn.Parameter(torch.randn(size, 3 * channels)) for n, size in fixed.items()})
        self.start = nn.ParameterDict({n: nn.Parameter(torch.randn(channels)) for n in hidden})
        scales = any(node.scales for node in space.nodes.values())
        self.norms = None if scales else nn.ModuleDict({n: nn.Linear(3, channels, bias=False) for n in space.nodes})
        self.probes = nn.ModuleDict({n: nn.Linear(extra, channels, bias=False) for n in (hidden if extra else ())})

    @property
    def out_layout(self) -> Layout:
        """The layout of the neuron features."""
        return self.neurons.layout

    def forward(self, networks: Features | Mapping[str, Tensor], extra: Mapping[str, Tensor] | None = None) -> Features:
        """Networks, packed or as named tensors, -> neuron features.

        Args:
            networks: `Features` of the space, or name -> ``(B, in_channels, *shape)``.
            extra: hidden node -> ``(B, n, extra)``, of charge +1.
        """
        if (extra is None) != (not self.extra):
            raise ValueError(
                f"NeuronEmbedding with extra={self.extra} was given {'no' if extra is None else 'an'} extra field"
            )
        tensors = self.space.unpack(networks) if isinstance(networks, Features) else networks
        sizes = packing.check_tensors(self.space, tensors)
        first = tensors[next(iter(self.space.parameters))]
        if first.shape[1] != self.in_channels:
            raise ValueError(f"networks of {first.shape[1]} channels; NeuronEmbedding was built for {self.in_channels}")
        taken = packing.pieces(self.space, tensors, sizes)
        raw = {
            at: torch.cat([self._spread(taken[p.parameter], p) for p in places], -1)
            for at, places in self._places.items()
        }
        fields = [self.mix[p.key](raw[p.key]) for p in self.neurons.pairs]
        zero = first.new_zeros(first.shape[0], 1, self.channels)
        for node in self.space.nodes:
            if node in self.fixed:
                out, back, inv = self.fixed[node].chunk(3, -1)
            else:
                out = back = zero
                inv = self.start[node]
            if node in raw:
                out = out + self.mix[node](raw[node])
            if node in self.probes and extra is not None:
                out = out + self.probes[node](extra[node])
            if self.norms is not None:
                inv = inv + self.norms[node](self._norms(node, raw, first.new_zeros(first.shape[0], sizes[node])))
            fields += [t.expand(first.shape[0], sizes[node], -1) for t in (out, back, inv)]
        return Features(self.out_layout, tuple(fields))

    def _spread(self, tensor: Tensor, place: Link) -> Tensor:
        """``(B, C, *axes)`` -> ``(B, *neurons, kernel entries x C)``."""
        return tensor.permute(place.order).flatten(1 + len(place.ends))

    def _norms(self, node: str, raw: Mapping[str, Tensor], zero: Tensor) -> Tensor:
        """Logarithms of squared norms of incoming weights, outgoing weights and bias: ``(B, n, 3)``."""
        incoming = outgoing = bias = zero
        for pair in self.neurons.pairs:
            if pair.target == node:
                incoming = incoming + packing.wide(raw[pair.key]).square().sum((2, 3))
            if pair.source == node:
                outgoing = outgoing + packing.wide(raw[pair.key]).square().sum((1, 3))
        if node in raw:
            bias = packing.wide(raw[node]).square().sum(-1)
        return torch.stack([incoming, outgoing, bias], -1).add(1e-6).log().to(zero.dtype)

    def extra_repr(self) -> str:
        return f"{self.space}, {self.in_channels}, {self.channels}" + (f", extra={self.extra}" if self.extra else "")


class NeuronReadout(nn.Module):
    """Neuron features -> weights and biases, equivariantly: the way back, as edges and ``out`` streams mix linearly.

    Args:
        space: the networks' weight space.
        channels: of the neuron features.
        out_channels: of the networks.
    """

    def __init__(self, space: WeightSpace, channels: int, out_channels: int) -> None:
        super().__init__()
        self.space, self.channels, self.out_channels = space, channels, out_channels
        self.neurons = neuron_layout(space)
        self.in_layout, self.out_layout = self.neurons.layout, space.layout
        self._places = _places(space)
        self.mix = nn.ModuleDict(
            {at: nn.Linear(channels, out_channels * _entries(p), bias=False) for at, p in self._places.items()}
        )

    def forward(self, features: Features) -> Features:
        """Neuron features of ``channels`` -> `Features` of the space with ``out_channels``."""
        self.in_layout.require(features, self.channels, "NeuronReadout")
        source = {p.key: t for p, t in zip(self.neurons.pairs, features.tensors, strict=False)}
        source |= {n: features.tensors[self.neurons.stream("out", n)] for n in self.neurons.nodes}
        tensors = {}
        for at, places in self._places.items():
            widths = [self.out_channels * math.prod(place.kernel) for place in places]
            for place, x in zip(places, self.mix[at](source[at]).split(widths, -1), strict=True):
                x = x.unflatten(-1, (*place.kernel, self.out_channels))
                x = x.permute([place.order.index(i) for i in range(x.ndim)])
                sizes = {node: source[at].shape[1 + i] for i, (node, *_) in enumerate(place.ends)}
                tensors[place.parameter] = x.reshape(*x.shape[:2], *self.space.shape_of(place.parameter, sizes))
        return self.space.pack(tensors, check_finite=False)

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}, {self.out_channels}"
