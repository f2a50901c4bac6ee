"""What happens on edges, in blocks that stay in cache: no message is ever kept for all edges at once."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from nfn_monomial.space.packing import wide

from .incidence import Incidence, Places

BLOCK = 2**18
"""Bytes of the edges of one block on a CPU: some six temporary results of that size fit into its cache."""

Out: TypeAlias = Literal["update", "sum", "none"]
"""What becomes of edges x that were scaled to e: their update, ``x + e + update``, or nothing, x as they are."""


class Scale(NamedTuple):
    """What tensors are multiplied by, broadcast against them: one of the two is 0.

    Attributes:
        constant: with this one they are constants, no gradient reaches them.
        factor: with this one it does.
    """

    constant: Tensor
    factor: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """The scaled tensor, in its own dtype."""
        return torch.addcmul(x.detach() * self.constant, wide(x), self.factor).to(x.dtype)

    def times(self, gain: Tensor) -> Scale:
        """Multiplied by one more number for each channel."""
        return Scale(self.constant * gain, self.factor * gain)


class Ends(NamedTuple):
    """What the neurons at each end of edges bring to them, see `EdgeMessages`."""

    messages: tuple[Tensor, ...]
    products: tuple[Tensor, ...]
    hidden: tuple[Tensor, ...]


class Sums(NamedTuple):
    """Sums of messages to each end, and of hidden features over the edges of each neuron there."""

    messages: tuple[Tensor, ...]
    hidden: tuple[Tensor, ...]


def exchange(
    places: Places,
    edges: Tensor,
    mix: Tensor,
    gate: Tensor,
    ends: Ends,
    scale: Scale | None = None,
    out: Out = "update",
) -> tuple[Sums, Tensor]:
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
        scale: what edges are multiplied by first, the same for all of a network; a norm never makes a tensor then.
        out: which edges are returned.
    """
    plain = _small(edges) or watched(edges) or (scale is not None and scale.factor.dtype != edges.dtype)
    if plain:
        return plain_exchange(places, edges, mix, gate, ends, scale, out)
    count = len(ends.messages)
    inputs = edges, *(scale or (None, None)), mix, gate, *itertools.chain(*ends)
    *sums, updated = _Exchange.apply(places, out, *inputs)  # type: ignore[no-untyped-call]
    return Sums(tuple(sums[:count]), tuple(sums[count:])), edges if updated is None else updated


def plain_exchange(
    places: Places,
    edges: Tensor,
    mix: Tensor,
    gate: Tensor,
    ends: Ends,
    scale: Scale | None = None,
    out: Out = "update",
) -> tuple[Sums, Tensor]:
    """`exchange` on all edges at once."""
    messages, products, hidden = (
        [at.take(x, i) for i, x in enumerate(brought)] for at, brought in zip(places, ends, strict=True)
    )
    e = edges if scale is None else scale(edges)
    sent = [e * _product(messages, i) for i in range(len(messages))]
    z = silu(linear(sent[0] * messages[0], mix) + _sum(hidden))
    updated = edges if out == "none" else torch.addcmul(_product(products), e, linear(z, gate))
    updated = edges + e + updated if out == "sum" else updated
    sums = [places.along.sum(x, i, ends.messages[i]) for i, x in enumerate(sent)]
    return Sums(tuple(sums), tuple(places.inv.sum(z, i, x) for i, x in enumerate(ends.hidden))), updated


def _small(edges: Tensor) -> bool:
    return edges.nbytes <= BLOCK if edges.device.type == "cpu" else not edges.numel()


def watched(edges: Tensor) -> bool:
    return (
        torch.compiler.is_compiling()
        or edges.is_meta
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
    def forward(ctx: Any, places: Places, out: Out, edges: Tensor, *others: Tensor | None) -> tuple[Tensor | None, ...]:
        edges = edges.contiguous()
        ctx.places, ctx.out = places, out
        ctx.save_for_backward(edges, *others)
        ctx.set_materialize_grads(False)
        mix, gate, scale, ends = _unpacked(others)
        total = None if scale is None else torch.add(*scale)
        sums = Sums(*(tuple(map(places.inv.total, x)) for x in (ends.messages, ends.hidden)))
        updated = None if out == "none" else torch.empty_like(edges)
        for block, scratch in _blocks(places, edges):
            e = _scaled(places, edges, total, block, scratch)
            x, z = scratch(e), scratch(e)
            messages = _taken(places.against, ends.messages, block)
            for i in reversed(range(len(messages))):
                torch.mul(e, _product(messages, i), out=x)
                places.along.add(sums.messages[i], x, i, block)
            silu(_before(x.mul_(messages[0]), mix, _taken(places.inv, ends.hidden, block), z), inplace=True)
            for i, into in enumerate(sums.hidden):
                places.inv.add(into, z, i, block)
            if updated is not None:
                new, products = places.inv.part(updated, block), _taken(places.along, ends.products, block)
                torch.mul(products[0], _product(products, 0), out=new)
                if out == "sum":
                    new += places.inv.part(edges, block)
                new.addcmul_(e, _gates(z, gate, out, x))
        return *sums.messages, *sums.hidden, updated

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        places, out, (edges, *others) = ctx.places, ctx.out, ctx.saved_tensors
        mix, gate, scale, ends = _unpacked(others)
        if torch.is_grad_enabled():
            return None, None, *plain_gradients(
                lambda: _flat(plain_exchange(places, edges, mix, gate, ends, scale, out)),
                (edges, *others), ctx.needs_input_grad[2:], gradients,
            )  # fmt: skip
        count = len(ends.messages)
        of_messages, of_hidden = (
            [torch.zeros_like(x) if g is None else g for g, x in zip(given, own, strict=True)]
            for given, own in ((gradients[:count], ends.messages), (gradients[count:-1], ends.hidden))
        )
        by_edges, by_mix, by_gate = torch.empty_like(edges), torch.zeros_like(mix), torch.zeros_like(gate)
        by_ends = Ends(*(tuple(map(places.inv.total, x)) for x in ends))
        if gradients[-1] is None:
            by_ends = by_ends._replace(products=tuple(map(torch.zeros_like, ends.products)))
        total = None if scale is None else torch.add(*scale)
        by_total = None if total is None else torch.zeros_like(total)
        for block, scratch in _blocks(places, edges):
            e, into = _scaled(places, edges, total, block, scratch), places.inv.part(by_edges, block)
            messages, sent = (
                _taken(at, x, block) for at, x in ((places.against, ends.messages), (places.along, of_messages))
            )
            t, pre, by_z, y = (scratch(e) for _ in range(4))
            torch.mul(e, all_messages := _product(messages, 0), out=t).mul_(messages[0])
            _before(t, mix, _taken(places.inv, ends.hidden, block), pre)
            means = _taken(places.inv, of_hidden, block)
            changed = None if gradients[-1] is None else places.inv.part(gradients[-1], block)
            if changed is None:
                _total(means, by_z)
                into.zero_()
            else:
                z = by_z
                torch.ops.aten.silu.out(pre, out=z)
                torch.mul(_gates(z, gate, out, y), changed, out=into)
                torch.mul(changed, e, out=y)
                by_gate.addmm_(_rows(y).mT, _rows(z))
                _rows(_total(means, by_z)).addmm_(_rows(y), gate)
                products = _taken(places.along, ends.products, block)
                for i, by_end in enumerate(by_ends.products):
                    places.along.add(by_end, torch.mul(changed, _product(products, i), out=y), i, block)
            by_pre = torch.ops.aten.silu_backward.grad_input(by_z, pre, grad_input=by_z)
            by_mix.addmm_(_rows(by_pre).mT, _rows(t))
            for i, by_end in enumerate(by_ends.hidden):
                places.inv.add(by_end, by_pre, i, block)
            by_t = _mixed(by_pre, mix, pre)
            for i in reversed(range(count)):
                # The gradient by the message of end i is the edge times this.
                rest = _sum([sent[j] * _product(messages, i, j) for j in range(count) if j != i])
                torch.addcmul(rest, by_t, _product(messages, i), out=t)
                places.against.add(by_ends.messages[i], torch.mul(e, t, out=y), i, block)
            into.addcmul_(t, messages[0]).addcmul_(sent[0], all_messages)
            if scale is not None and by_total is not None:
                share = places.inv.shared(by_total, block)
                share += torch.mul(places.inv.part(edges, block), into, out=y).sum_to_size(share.shape)
                into *= places.inv.shared(scale.factor, block)
            if changed is not None and out == "sum":
                into += changed
        return None, None, by_edges, by_total, by_total, by_mix, by_gate, *itertools.chain(*by_ends)


def plain_gradients(
    outputs: Callable[[], Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    gradients: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients, by those of outputs, that have gradients themselves: of the formula, computed again by operators."""
    given = [(y, g) for y, g in zip(outputs(), gradients, strict=True) if g is not None]
    at = [x for x, need in zip(inputs, needed, strict=True) if need and x is not None]
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


def _unpacked(others: Sequence[Any]) -> tuple[Tensor, Tensor, Scale | None, Ends]:
    """The inputs of `_Exchange` behind the edges."""
    constant, factor, mix, gate, *brought = others
    count = len(brought) // 3
    ends = Ends(*(tuple(brought[i * count : (i + 1) * count]) for i in range(3)))
    return mix, gate, None if constant is None else Scale(constant, factor), ends


def _flat(found: tuple[Sums, Tensor]) -> tuple[Tensor, ...]:
    return *found[0].messages, *found[0].hidden, found[1]


def _scaled(places: Places, edges: Tensor, scale: Tensor | None, block: Any, scratch: _Scratch) -> Tensor:
    """The edges of a block, scaled."""
    e = places.inv.part(edges, block)
    return e if scale is None else torch.mul(e, places.inv.shared(scale, block), out=scratch(e))


def _gates(z: Tensor, gate: Tensor, out: Out, into: Tensor) -> Tensor:
    """What edges are multiplied by in their update, or in the sum of it and themselves."""
    gates = _mixed(z, gate.mT, into)
    return gates.add_(1) if out == "sum" else gates


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
