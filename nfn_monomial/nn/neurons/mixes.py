"""Layers on edges and at neurons, for neurons that lie one layer after the other or in a graph."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from nfn_monomial.nn.edges import Ends, Sums, exchange
from nfn_monomial.nn.incidence import Places

from .layout import CHAIN, StreamPlan, Streams


def mix_of(channels: int, needed: bool = True) -> nn.Module:
    """A matrix; the identity in its place where it would multiply streams that are always 0 or are never read."""
    return nn.Linear(channels, channels, bias=False) if needed else nn.Identity()


class EndMix(nn.Module):
    """``(A h, P g, U s)`` of the neurons at one end of edges: ``h`` the stream whose charge is opposite to that of the
    edge at this end, ``g`` the one of the same charge, ``s`` their invariants."""

    def __init__(self, channels: int, against: bool, along: bool, bias: bool) -> None:
        super().__init__()
        self.against, self.along = mix_of(channels, against), mix_of(channels, along)
        self.inv = nn.Linear(channels, channels, bias=bias)

    def forward(self, against: Tensor, along: Tensor, inv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Streams ``(..., C)`` -> their products with the matrices."""
        return self.against(against), self.along(along), self.inv(inv)


class EdgeMessages(nn.Module):
    """The exchange on an edge between the neurons at its ends, channel by channel except for the matrices.

    Of an edge ``e_jk`` from neuron ``k`` to neuron ``j``, with matrices A, P, U of the source, B, Q, V of the target::

        forward message    e_jk * (A h_k)                              charge +1 at j
        backward message   e_jk * (B g_j)                              charge -1 at k
        invariant          t_jk = e_jk * (B g_j) * (A h_k)             charge 0
        hidden             z_jk = silu(W t_jk + V s_j + U s_k + w)
        edge update        e_jk * (G z_jk) + (Q h_j) * (P g_k)         charges +1 at j, -1 at k

    With more ends, the message to one is the product of the edge with the tensors of all others.

    Args:
        channels: of all streams.
        against: for each end of an edge, two or more, whether the first of its streams has a matrix, see `EndMix`.
        along: whether the second ones have.
        updates: whether edges change.
    """

    def __init__(
        self, channels: int, against: Sequence[bool] = (True, True), along: bool = True, updates: bool = True
    ) -> None:
        super().__init__()
        # Where t is always 0, it has no matrix, and w comes with the invariants of the first end.
        invariant = all(against)
        self.ends = nn.ModuleList(
            EndMix(channels, mixed, along, bias=not invariant and number == 0) for number, mixed in enumerate(against)
        )
        self.hidden = nn.Linear(channels, channels) if invariant else nn.Identity()
        self.gate = mix_of(channels) if updates else None

    def forward(
        self,
        places: Places,
        edges: Tensor,
        streams: Sequence[tuple[Tensor, Tensor, Tensor]],
        scale: Tensor | None = None,
        residual: bool = False,
    ) -> tuple[Sums, Tensor]:
        """Sums of the messages from edges to their ends, and the updated edges, see `exchange`; ``streams`` are
        ``h, g, s`` of the neurons at each end, as `EndMix` takes them."""
        brought = [mix(*x) for mix, x in zip(self.ends, streams, strict=True)]
        messages, products, hidden = zip(*brought, strict=True)
        ends = Ends(messages, products if self.gate is not None else (), hidden)
        return exchange(places, edges, self.hidden, self.gate, ends, scale, residual)


class NeuronUpdate(nn.Module):
    """Sums of messages, mixed over channels; ``(V1 h) * (V2 g)`` of streams of opposite charges joins the invariants.

    Args:
        channels: of all streams.
        plan: which streams there are. Those that a parameter of one end transports from another one, as a gain does,
            get ``p * (A h)`` besides.
        zeros: numbers of the streams that are always 0.
        unreached: numbers of those that no message comes to.
    """

    def __init__(
        self, channels: int, plan: StreamPlan = CHAIN, zeros: Collection[int] = (), unreached: Collection[int] = ()
    ) -> None:
        super().__init__()
        self.plan, self.pairs = plan, plan.pairs
        reached = [i not in unreached for i in range(len(plan.charges) - (not plan.reached))]
        multiplied = [not set(zeros).isdisjoint(pair) for pair in self.pairs]
        self.mixes = nn.ModuleList(mix_of(channels, needed) for needed in reached)
        self.first, self.second = (nn.ModuleList(mix_of(channels, not zero) for zero in multiplied) for _ in range(2))
        self.transports = nn.ModuleList(mix_of(channels, set(zeros).isdisjoint(three[:2])) for three in plan.transports)
        self.inv = nn.Linear((2 + len(self.pairs)) * channels, channels)

    def forward(self, streams: Sequence[Tensor], sums: Sequence[Tensor], into: Tensor, out_of: Tensor) -> Streams:
        """Updates from the sums of messages into each stream, and the means of hidden over edges that lead to the
        neurons and over those that lead from them."""
        firsts = [mix(streams[i]) for mix, (i, _) in zip(self.first, self.pairs, strict=True)]
        products = [f * mix(streams[j]) for f, mix, (_, j) in zip(firsts, self.second, self.pairs, strict=True)]
        inv = self.inv(torch.cat([into, out_of, *products], -1))
        updates = [mix(total) for mix, total in zip(self.mixes, sums, strict=False)]
        for mix, (parameter, source, target) in zip(self.transports, self.plan.transports, strict=True):
            updates[target] = torch.addcmul(updates[target], streams[parameter], mix(streams[source]))
        return (*updates[:-1], updates[-1] + inv) if self.plan.reached else (*updates, inv)


class NeuronGate(nn.Module):
    """``s' = M s~, h' = h * (M' s~)`` for each other stream, with ``s~ = silu(M'' [s, degree0(h), ...])``.

    Args:
        channels: of all streams.
        streams: how many there are, ``inv`` included.
        charged: whether the others are read behind the gate; if not, they stay as they are.
        invariant: whether ``inv`` is.
    """

    def __init__(self, channels: int, streams: int = 3, charged: bool = True, invariant: bool = True) -> None:
        super().__init__()
        self.hidden = nn.Linear(streams * channels, 2 * channels)
        self.inv = nn.Linear(2 * channels, channels) if invariant else None
        self.gates = nn.Linear(2 * channels, (streams - 1) * channels) if charged and streams > 1 else None
        if self.gates is not None:
            nn.init.ones_(self.gates.bias)

    def forward(self, streams: Sequence[Tensor], neutral: Sequence[Tensor]) -> Streams:
        """``neutral``: the charged streams with their charge killed, see `degree_zero`."""
        *charged, inv = streams
        hidden = silu(self.hidden(torch.cat([inv, *neutral], -1)))
        if self.gates is not None:
            charged = [x * gate for x, gate in zip(charged, self.gates(hidden).chunk(len(charged), -1), strict=True)]
        return (*charged, inv if self.inv is None else self.inv(hidden))
