"""What happens on edges, in blocks that stay in cache: no message is ever kept for all edges at once."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

BLOCK = 2**18
"""Bytes of the edges of one block on a CPU: some six temporary results of that size fit into its cache."""

Block = TypeVar("Block")


class Incidence(Protocol[Block]):
    """Which neurons are at the ends of edges; a block is some of the edges."""

    def blocks(self, edges: Tensor, size: int) -> Iterator[Block]:
        """All edges in blocks of about so many numbers."""

    def part(self, edges: Tensor, block: Block) -> Tensor:
        """The edges of a block, a view."""

    def take(self, neurons: Tensor, end: int, block: Block | None = None) -> Tensor:
        """Features of the neurons at an end, as they broadcast against the edges of a block, or against all."""

    def sum(self, values: Tensor, end: int, like: Tensor) -> Tensor:
        """Sums over the edges of each neuron at an end, whose features are ``like`` others."""

    def total(self, like: Tensor) -> Tensor:
        """Where to add sums for neurons whose features are ``like`` others."""

    def add(self, total: Tensor, values: Tensor, end: int, block: Block) -> None:
        """Add the sums over the edges of a block to the total of all neurons at an end."""


class Places(NamedTuple):
    """Where edges meet the streams of the neurons at their ends.

    Attributes:
        against: the one whose charge is opposite to theirs, which messages are made of.
        along: the one of the same charge, to which messages go.
        inv: their invariants.
    """

    against: Incidence[Any]
    along: Incidence[Any]
    inv: Incidence[Any]


class Ends(NamedTuple):
    """What the neurons at each end of edges bring to them, see `EdgeMessages`."""

    messages: tuple[Tensor, ...]
    products: tuple[Tensor, ...]
    hidden: tuple[Tensor, ...]


class Sums(NamedTuple):
    """Sums of messages to each end, and of hidden features over the edges of each neuron there."""

    messages: tuple[Tensor, ...]
    hidden: tuple[Tensor, ...]


class Grid:
    """All pairs (or tuples) of neurons have an edge: ``(B, *axes, C)``.

    Args:
        at: for each end the positions of its neurons' axes among those of the edges.
        axes: how many axes the edges have.
    """

    def __init__(self, at: Sequence[Sequence[int]], axes: int) -> None:
        self._missing = [[1 + i for i in range(axes) if i not in own] for own in at]

    def blocks(self, edges: Tensor, size: int) -> Iterator[tuple[slice, slice]]:
        """Of several networks, or of one and some of the neurons of its first axis."""
        batch, rows = edges.shape[:2]
        row = edges[:1, :1].numel()
        networks, rows_once = max(1, size // (row * rows)), max(1, min(rows, size // row))
        starts = itertools.product(range(0, batch, networks), range(0, rows, rows_once))
        return ((slice(b, b + networks), slice(r, r + rows_once)) for b, r in starts)

    def part(self, edges: Tensor, block: tuple[slice, slice]) -> Tensor:
        return edges[block]

    def take(self, neurons: Tensor, end: int, block: tuple[slice, slice] | None = None) -> Tensor:
        neurons = neurons if block is None else self._of(neurons, end, block)
        for dim in self._missing[end]:
            neurons = neurons.unsqueeze(dim)
        return neurons

    def sum(self, values: Tensor, end: int, like: Tensor) -> Tensor:
        return values.sum(self._missing[end])

    def total(self, like: Tensor) -> Tensor:
        return torch.empty_like(like, memory_format=torch.contiguous_format)

    def add(self, total: Tensor, values: Tensor, end: int, block: tuple[slice, slice]) -> None:
        into, dims = self._of(total, end, block), self._missing[end]
        if 1 not in dims or block[1].start == 0:
            torch.sum(values, dims, out=into)
        else:
            into += values.sum(dims)

    def _of(self, neurons: Tensor, end: int, block: tuple[slice, slice]) -> Tensor:
        """Those at the ends of a block."""
        return neurons[block[0]] if 1 in self._missing[end] else neurons[block]


class Pairs:
    """Neurons joined one by one: edges are rows ``(E, C)``, neurons ``(N, C)``.

    Args:
        at: for each end, which neuron is at that end of each edge.
    """

    def __init__(self, at: tuple[Tensor, ...]) -> None:
        self._at = at

    def blocks(self, edges: Tensor, size: int) -> Iterator[slice]:
        rows = max(1, size // edges.shape[1])
        return (slice(i, i + rows) for i in range(0, len(edges), rows))

    def part(self, edges: Tensor, block: slice) -> Tensor:
        return edges[block]

    def take(self, neurons: Tensor, end: int, block: slice | None = None) -> Tensor:
        return neurons.index_select(0, self._at[end][slice(None) if block is None else block])

    def sum(self, values: Tensor, end: int, like: Tensor) -> Tensor:
        return torch.zeros_like(like).index_add(0, self._at[end], values)

    def total(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like)

    def add(self, total: Tensor, values: Tensor, end: int, block: slice) -> None:
        total.index_add_(0, self._at[end][block], values)


def exchange(places: Places, edges: Tensor, mix: Tensor, gate: Tensor, ends: Ends) -> tuple[Sums, Tensor]:
    """Sums of what edges send to their ends, and the updated edges: the formulas of `EdgeMessages`.

    Done block by block, and once more in the backward pass, for which only the edges and what the ends bring are kept.
    Where all edges are one block, or a transform needs to see the operators (torch.compile, torch.func, autocast,
    forward-mode derivatives, derivatives of derivatives), `plain_exchange` runs.

    Args:
        places: which neurons are at which end.
        edges: ``(..., C)``.
        mix: W, ``(C, C)``.
        gate: G, ``(C, C)``.
        ends: what their neurons bring; w is part of one of them.
    """
    if _small(edges) or _watched(edges):
        return plain_exchange(places, edges, mix, gate, ends)
    count = len(ends.messages)
    *sums, updated = _Exchange.apply(places, edges, mix, gate, *itertools.chain(*ends))  # type: ignore[no-untyped-call]
    return Sums(tuple(sums[:count]), tuple(sums[count:])), updated


def plain_exchange(places: Places, edges: Tensor, mix: Tensor, gate: Tensor, ends: Ends) -> tuple[Sums, Tensor]:
    """`exchange` on all edges at once."""
    messages, products, hidden = (
        [at.take(x, i) for i, x in enumerate(brought)] for at, brought in zip(places, ends, strict=True)
    )
    sent = [edges * _product(messages, i) for i in range(len(messages))]
    z = silu(linear(sent[0] * messages[0], mix) + _sum(hidden))
    updated = torch.addcmul(_product(products), edges, linear(z, gate))
    sums = [places.along.sum(x, i, ends.messages[i]) for i, x in enumerate(sent)]
    return Sums(tuple(sums), tuple(places.inv.sum(z, i, x) for i, x in enumerate(ends.hidden))), updated


def _small(edges: Tensor) -> bool:
    return edges.nbytes <= BLOCK if edges.device.type == "cpu" else not edges.numel()


def _watched(edges: Tensor) -> bool:
    return (
        torch.compiler.is_compiling()
        or torch.is_autocast_enabled(edges.device.type)
        or torch._C._functorch.maybe_current_level() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def _product(tensors: Sequence[Tensor], *but: int) -> Any:
    """The product of all but some; 1 of none."""
    left: list[Any] = [t for i, t in enumerate(tensors) if i not in but]
    return functools.reduce(operator.mul, left or [1])


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    return functools.reduce(operator.add, tensors)


class _Exchange(torch.autograd.Function):
    """`exchange` in blocks; temporary results lie in memory that is used again for every block."""

    @staticmethod
    def forward(
        ctx: Any, places: Places, edges: Tensor, mix: Tensor, gate: Tensor, *brought: Tensor
    ) -> tuple[Tensor, ...]:
        edges = edges.contiguous()
        ctx.places = places
        ctx.save_for_backward(edges, mix, gate, *brought)
        ctx.set_materialize_grads(False)
        ends = _ends(brought)
        sums = Sums(*(tuple(map(places.inv.total, x)) for x in (ends.messages, ends.hidden)))
        updated = torch.empty_like(edges)
        for block, scratch in _blocks(places, edges):
            e, new = places.inv.part(edges, block), places.inv.part(updated, block)
            messages = _taken(places.against, ends.messages, block)
            x, z = scratch(e), scratch(e)
            for i in reversed(range(len(messages))):
                torch.mul(e, _product(messages, i), out=x)
                places.along.add(sums.messages[i], x, i, block)
            silu(_before(x.mul_(messages[0]), mix, _taken(places.inv, ends.hidden, block), z), inplace=True)
            for i, total in enumerate(sums.hidden):
                places.inv.add(total, z, i, block)
            products = _taken(places.along, ends.products, block)
            torch.mul(products[0], _product(products, 0), out=new)
            new.addcmul_(e, _mixed(z, gate.mT, x))
        return *sums.messages, *sums.hidden, updated

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        places, (edges, mix, gate, *brought) = ctx.places, ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *_plain_gradients(places, (edges, mix, gate, *brought), ctx.needs_input_grad[1:], gradients)
        ends, count = _ends(brought), len(brought) // 3
        of_messages, of_hidden = (
            [torch.zeros_like(x) if g is None else g for g, x in zip(given, own, strict=True)]
            for given, own in ((gradients[:count], ends.messages), (gradients[count:-1], ends.hidden))
        )
        by_edges, by_mix, by_gate = torch.empty_like(edges), torch.zeros_like(mix), torch.zeros_like(gate)
        by_ends = Ends(*(tuple(map(places.inv.total, x)) for x in ends))
        if gradients[-1] is None:
            by_ends = by_ends._replace(products=tuple(map(torch.zeros_like, ends.products)))
        for block, scratch in _blocks(places, edges):
            e, into = places.inv.part(edges, block), places.inv.part(by_edges, block)
            messages, sent = (
                _taken(at, x, block) for at, x in ((places.against, ends.messages), (places.along, of_messages))
            )
            t, pre, by_z, y = (scratch(e) for _ in range(4))
            torch.mul(e, all_messages := _product(messages, 0), out=t).mul_(messages[0])
            _before(t, mix, _taken(places.inv, ends.hidden, block), pre)
            means = _taken(places.inv, of_hidden, block)
            if gradients[-1] is None:
                _total(means, by_z)
                into.zero_()
            else:
                changed, z = places.inv.part(gradients[-1], block), by_z
                torch.ops.aten.silu.out(pre, out=z)
                _mixed(z, gate.mT, into).mul_(changed)
                torch.mul(changed, e, out=y)
                by_gate.addmm_(_rows(y).mT, _rows(z))
                _rows(_total(means, by_z)).addmm_(_rows(y), gate)
                products = _taken(places.along, ends.products, block)
                for i, total in enumerate(by_ends.products):
                    places.along.add(total, torch.mul(changed, _product(products, i), out=y), i, block)
            by_pre = torch.ops.aten.silu_backward.grad_input(by_z, pre, grad_input=by_z)
            by_mix.addmm_(_rows(by_pre).mT, _rows(t))
            for i, total in enumerate(by_ends.hidden):
                places.inv.add(total, by_pre, i, block)
            by_t = _mixed(by_pre, mix, pre)
            for i in reversed(range(count)):
                # The gradient by the message of end i is the edge times this.
                others = _sum([sent[j] * _product(messages, i, j) for j in range(count) if j != i])
                torch.addcmul(others, by_t, _product(messages, i), out=t)
                places.against.add(by_ends.messages[i], torch.mul(e, t, out=y), i, block)
            into.addcmul_(t, messages[0]).addcmul_(sent[0], all_messages)
        return None, by_edges, by_mix, by_gate, *itertools.chain(*by_ends)


def _plain_gradients(
    places: Places, inputs: Sequence[Tensor], needed: Sequence[bool], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients that have gradients themselves."""
    edges, mix, gate, *brought = inputs
    sums, updated = plain_exchange(places, edges, mix, gate, _ends(brought))
    outputs = zip((*sums.messages, *sums.hidden, updated), gradients, strict=True)
    given = [(y, g) for y, g in outputs if g is not None]
    at = [x for x, need in zip(inputs, needed, strict=True) if need]
    grads = torch.autograd.grad([y for y, _ in given], at, [g for _, g in given], create_graph=True, allow_unused=True)
    found = iter(grads)
    return [next(found) if need else None for need in needed]


class _Scratch:
    """Memory for temporary results, used again for every block."""

    def __init__(self) -> None:
        self._held, self._next = list[Tensor](), 0

    def reset(self) -> None:
        self._next = 0

    def __call__(self, like: Tensor) -> Tensor:
        if self._next == len(self._held):
            self._held.append(like.new_empty(like.numel()))  # the first block is the largest
        self._next += 1
        return self._held[self._next - 1][: like.numel()].view(like.shape)


def _blocks(places: Places, edges: Tensor) -> Iterator[tuple[Any, _Scratch]]:
    size = BLOCK // edges.element_size() if edges.device.type == "cpu" else edges.numel()
    scratch = _Scratch()
    for block in places.inv.blocks(edges, size):
        scratch.reset()
        yield block, scratch


def _ends(brought: Sequence[Tensor]) -> Ends:
    count = len(brought) // 3
    return Ends(*(tuple(brought[i * count : (i + 1) * count]) for i in range(3)))


def _taken(at: Incidence[Any], brought: Sequence[Tensor], block: Any = None) -> list[Tensor]:
    return [at.take(x, i, block) for i, x in enumerate(brought)]


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _mixed(x: Tensor, matrix: Tensor, out: Tensor) -> Tensor:
    torch.mm(_rows(x), matrix, out=_rows(out))
    return out


def _total(parts: Sequence[Tensor], out: Tensor) -> Tensor:
    """The sum of parts that broadcast."""
    return torch.add(parts[0], _sum(parts[1:]), out=out)


def _before(t: Tensor, mix: Tensor, hidden: Sequence[Tensor], out: Tensor) -> Tensor:
    """What `silu` is taken of."""
    _rows(_total(hidden, out)).addmm_(_rows(t), mix.mT)
    return out
