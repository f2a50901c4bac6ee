"""The formulas on edges and at neurons, for neurons in buckets or in a graph: parameters, and what is done with them.

Parameters of all sets of edges with one number of ends, and of all nodes of one kind, are slices of one tensor. The
layers of graphs have one slice for all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from nfn_monomial.nn.edges import Matrices, mixed, mixed_from

from .layout import NodeKind

if TYPE_CHECKING:
    from .buckets import Pick


class Stacked(nn.Module):
    """Slices of parameters, initialised as those of `torch.nn.Linear` are; a call returns the slices of each bucket."""

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        for parameter, inputs in self._parameters_and_inputs():
            nn.init.uniform_(parameter, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs))

    def _parameters_and_inputs(self) -> Sequence[tuple[Tensor, int]]:
        """Each parameter, and how many inputs the map has that it belongs to."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return ", ".join(f"{name} {tuple(p.shape)}" for name, p in self.named_parameters(recurse=False))


class EdgeMessages(Stacked):
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
        slices: sets of edges with parameters of their own.
        ends: how many ends an edge has.
        updates: whether edges change.

    Attributes:
        ends: ``(slices x ends, 3, C, C)``: of the target, then of each source, the matrices of the stream whose charge
            is opposite to the edge's (B, A), of the one of the same charge (Q, P; not there where edges stay), and of
            invariants (V, U). All matrices are multiplied from the left by rows of features.
        hidden: ``(slices, C, C)``, W.
        bias: ``(slices, C)``, w.
        gate: ``(slices, C, C)``, G; None where edges stay.
    """

    def __init__(self, channels: int, slices: int = 1, ends: int = 2, updates: bool = True) -> None:
        super().__init__()
        self.ends = nn.Parameter(torch.empty(slices * ends, 3 if updates else 2, channels, channels))
        self.hidden = nn.Parameter(torch.empty(slices, channels, channels))
        self.bias = nn.Parameter(torch.empty(slices, channels))
        self.gate = nn.Parameter(torch.empty(slices, channels, channels)) if updates else None
        self.reset_parameters()

    def forward(self, ends: Pick, edges: Pick) -> tuple[Iterator[Tensor], Iterator[Matrices]]:
        """The slices of ``ends`` for each group of ends, and the others for each bucket of edges."""
        matrices = zip(edges.of(self.hidden), edges.of(self.bias), edges.of(self.gate), strict=True)
        return iter(ends.of(self.ends)), itertools.starmap(Matrices, matrices)

    def _parameters_and_inputs(self) -> Sequence[tuple[Tensor, int]]:
        return [(parameter, self.hidden.shape[-1]) for parameter in self.parameters()]


class NeuronUpdate(Stacked):
    """Sums of messages, mixed over channels; ``(V1 h) * (V2 g)`` of streams of opposite charges joins the invariants.

    Streams that a parameter of one end transports from another one, as a gain does, get ``p * (A h)`` besides.

    Args:
        channels: of all streams.
        kind: which streams there are.
        slices: nodes with parameters of their own.

    Attributes:
        mixes: ``(slices x (summed + 2 pairs + transports), C, C)``: of the sums, of the first factors of products, of
            the second ones, of transported streams; None if there are none of these.
        inv: ``(slices, (2 + pairs) C, C)``, of the means over edges in and out, and of the products.
        bias: ``(slices, C)``.
    """

    def __init__(self, channels: int, kind: NodeKind, slices: int = 1) -> None:
        super().__init__()
        self.kind = kind
        self.mixes = nn.Parameter(torch.empty(slices * kind.mixes, channels, channels)) if kind.mixes else None
        self.inv = nn.Parameter(torch.empty(slices, (2 + kind.pairs) * channels, channels))
        self.bias = nn.Parameter(torch.empty(slices, channels))
        self.reset_parameters()

    def forward(self, mixes: Pick, nodes: Pick) -> Iterator[tuple[Tensor | None, Tensor, Tensor]]:
        """For each bucket of nodes the slices of ``mixes``, ``inv`` and ``bias``, as `updated` takes them."""
        return zip(mixes.of(self.mixes), nodes.of(self.inv), nodes.of(self.bias), strict=True)

    def _parameters_and_inputs(self) -> Sequence[tuple[Tensor, int]]:
        inputs = self.inv.shape[1]
        mixes = [] if self.mixes is None else [(self.mixes, self.mixes.shape[-1])]
        return [*mixes, (self.inv, inputs), (self.bias, inputs)]


def updated(
    kind: NodeKind,
    streams: Tensor,
    sums: Tensor,
    mixes: Tensor | None,
    inv: Tensor,
    bias: Tensor,
    transports: Tensor | None = None,
) -> list[Tensor]:
    """`NeuronUpdate` of ``V`` nodes: the updates of charged streams ``(streams - 1, V, ..., C)``, then of ``inv``.

    Args:
        kind: of the nodes.
        streams: ``(streams, V, ..., C)``.
        sums: ``(summed + 2, V, ..., C)``: of messages to each stream, means over edges that lead to the neurons, and
            over those that lead from them.
        mixes: ``((summed + 2 pairs + transports) x V, C, C)``.
        inv: ``(V, (2 + pairs) C, C)``.
        bias: ``(V, C)``.
        transports: the kind's, ``(3, transports)``; None if there are none.
    """
    nodes, pairs = len(inv), kind.pairs
    messages, into, out_of = torch.split(sums, [kind.summed, 1, 1])
    means = [into.squeeze(0), out_of.squeeze(0)]
    if mixes is None:
        return [mixed(torch.cat(means, -1), inv, bias).unsqueeze(0)]
    counts = [nodes * kind.summed, nodes * 2 * pairs, nodes * len(kind.transports)]
    of_sums, of_factors, of_transports = torch.split(mixes, counts)
    pieces = means
    if pairs:
        factors = mixed(streams[: 2 * pairs].flatten(0, 1), of_factors).view(2, pairs, *streams.shape[1:])
        pieces = [*means, factors]
    new_inv = mixed_from(_joined(*pieces), inv, bias, _joined, *pieces).unsqueeze(0)
    updates = mixed(messages.flatten(0, 1), of_sums).view(messages.shape) if kind.summed else messages
    if transports is not None:
        parameters, sources, targets = transports.unbind(0)
        taken = streams.index_select(0, sources)
        moved = mixed(taken.flatten(0, 1), of_transports).view(taken.shape)
        updates = updates.index_add(0, targets, streams.index_select(0, parameters) * moved)
    if kind.reached:
        charged, to_inv = torch.split(updates, [kind.summed - 1, 1])
        return [charged, to_inv + new_inv]
    return [updates, new_inv]


def _joined(into: Tensor, out_of: Tensor, factors: Tensor | None = None) -> Tensor:
    """The inputs of new invariants: means over edges in and out, and products of factors ``(2, pairs, V, ...)``."""
    products = () if factors is None else torch.mul(*factors.unbind(0)).unbind(0)
    return torch.cat([into, out_of, *products], -1)


class NeuronGate(Stacked):
    """``s' = M s~, h' = h * (M' s~)`` for each other stream, with ``s~ = silu(M'' [degree0(h), ..., s])``.

    Args:
        channels: of all streams.
        streams: how many there are, ``inv`` included.
        slices: nodes with parameters of their own.
        gates: whether the others are read after the gate; if not, only ``s'`` is computed.

    Attributes:
        hidden: ``(slices, streams C, 2 C)``, M'', and its bias ``(slices, 2 C)``.
        out: ``(slices, 2 C, streams C)``, M' of each stream, then M; or M alone. And its bias, which starts at 1 for
            gates.
    """

    def __init__(self, channels: int, streams: int = 3, slices: int = 1, gates: bool = True) -> None:
        super().__init__()
        self.channels, width = channels, (streams if gates else 1) * channels
        self.hidden = nn.Parameter(torch.empty(slices, streams * channels, 2 * channels))
        self.hidden_bias = nn.Parameter(torch.empty(slices, 2 * channels))
        self.out = nn.Parameter(torch.empty(slices, 2 * channels, width))
        self.out_bias = nn.Parameter(torch.empty(slices, width))
        self.reset_parameters()

    def forward(self, nodes: Pick) -> Iterator[tuple[Tensor, ...]]:
        """For each bucket of nodes the slices of all parameters, as `gated` takes them."""
        return zip(*[nodes.of(p) for p in (self.hidden, self.hidden_bias, self.out, self.out_bias)], strict=True)

    def _parameters_and_inputs(self) -> Sequence[tuple[Tensor, int]]:
        inputs, features = self.hidden.shape[1], self.out.shape[1]
        return [(self.hidden, inputs), (self.hidden_bias, inputs), (self.out, features), (self.out_bias, features)]

    def reset_parameters(self) -> None:
        """Draws all parameters anew; gates start near 1."""
        super().reset_parameters()
        with torch.no_grad():
            self.out_bias[:, : -self.channels] = 1.0


def gated(
    streams: Tensor,
    kill: Callable[[Tensor], Tensor],
    hidden: Tensor,
    hidden_bias: Tensor,
    out: Tensor,
    out_bias: Tensor,
) -> list[Tensor]:
    """`NeuronGate` of ``V`` nodes: the charged streams ``(streams - 1, V, ..., C)``, if gates are there, then ``inv``.

    Args:
        streams: ``(streams, V, ..., C)``.
        kill: returns the charged ones with their charge killed, see `degree_zero`.
        hidden: ``(V, streams C, 2 C)``.
        hidden_bias: ``(V, 2 C)``.
        out: ``(V, 2 C, streams C)`` or ``(V, 2 C, C)``.
        out_bias: ``(V, streams C)`` or ``(V, C)``.
    """
    channels = streams.shape[-1]
    charged = streams[:-1]
    features = mixed_from(_killed(kill, streams), hidden, hidden_bias, partial(_killed, kill), streams)
    new = mixed_from(silu(features), out, out_bias, silu, features)
    if out.shape[-1] == channels:
        return [new.unsqueeze(0)]
    gates, new = torch.split(new, [new.shape[-1] - channels, channels], -1)
    return [charged * torch.unflatten(gates, -1, (-1, channels)).movedim(-2, 0), new.unsqueeze(0)]


def _killed(kill: Callable[[Tensor], Tensor], streams: Tensor) -> Tensor:
    """All streams without their charges, side by side."""
    return torch.cat([*kill(streams[:-1]).unbind(0), streams[-1]], -1)
