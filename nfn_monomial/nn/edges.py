"""What happens on edges, in blocks that stay in cache: no message is ever kept for all edges at once."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from nfn_monomial.space.packing import wide

from .incidence import Adder, Incidence, Places

BLOCK = 2**18
"""Bytes of the edges of one block on a CPU: some six temporary results of that size fit into its cache."""

Out: TypeAlias = Literal["update", "sum", "none"]
"""What becomes of edges x that were scaled to e: their update, ``x + e + update``, or nothing, x as they are."""


class Scale(NamedTuple):
    """What tensors are multiplied by, broadcast against them.

    Attributes:
        constant: where it is not 0, tensors are constants, no gradient reaches them; None where it is 0 everywhere.
        factor: with this one, 0 where the other is not, it does.
    """

    constant: Tensor | None
    factor: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """The scaled tensor, in its own dtype."""
        scaled = wide(x) * self.factor
        return (scaled if self.constant is None else scaled + x.detach() * self.constant).to(x.dtype)

    def times(self, gain: Tensor) -> Scale:
        """Multiplied by one more number for each channel."""
        return Scale(None if self.constant is None else self.constant * gain, self.factor * gain)

    def total(self) -> Tensor:
        """What values are multiplied by."""
        return self.factor if self.constant is None else self.constant + self.factor


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
    """`exchange` in blocks; temporary results lie in memory that is used again for every block.

    What is as large as all edges is read and written once: temporary results are summed up in the cache before.
    """

    @staticmethod
    def forward(ctx: Any, places: Places, out: Out, edges: Tensor, *others: Tensor | None) -> tuple[Tensor | None, ...]:
        edges = edges.contiguous()
        ctx.places, ctx.out = places, out
        ctx.save_for_backward(edges, *others)
        ctx.set_materialize_grads(False)
        mix, gate, scale, ends = _unpacked(others)
        cut, mixed, gated = _Cut(places, edges), mix.mT, gate.mT
        total = None if scale is None else scale.total()
        sums = Sums(*(tuple(map(_zeros, x)) for x in (ends.messages, ends.hidden)))
        updated = None if out == "none" else torch.empty_like(edges)
        blocks = zip(
            cut.parts(edges), cut.parts(total), cut.parts(updated),
            cut.taken(places.against, ends.messages), cut.taken(places.along, ends.products),
            cut.taken(places.inv, ends.hidden),
            cut.adders(places.along, sums.messages), cut.adders(places.inv, sums.hidden), strict=True,
        )  # fmt: skip
        for x, by, new, messages, products, hidden, to_messages, to_hidden in blocks:
            t, z, e = cut.scratch(x, 3)
            e = x if by is None else torch.mul(x, by, out=e)
            for i in reversed(range(len(messages))):
                to_messages[i](torch.mul(e, _product(messages, i), out=t))
            t *= messages[0]
            torch.ops.aten.silu_(_before(t, mixed, hidden, z))
            for add in to_hidden:
                add(z)
            if new is not None:
                change = _mixed(z, gated, t).mul_(e)
                if out == "sum":
                    change.add_(x, alpha=2) if by is None else change.addcmul_(x, by + 1)
                torch.addcmul(change, products[0], _product(products, 0), out=new)
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
        cut, mixed, gated = _Cut(places, edges), mix.mT, gate.mT
        count, changed = len(ends.messages), gradients[-1]
        added = out == "sum" and changed is not None
        of_messages, of_hidden = (
            [_zeros(x) if g is None else g for g, x in zip(given, own, strict=True)]
            for given, own in ((gradients[:count], ends.messages), (gradients[count:-1], ends.hidden))
        )
        by_edges, by_mix, by_gate = torch.empty_like(edges), torch.zeros_like(mix), torch.zeros_like(gate)
        by_ends = Ends(*(tuple(map(_zeros, x)) for x in ends))
        factor, total = (None, None) if scale is None else (scale.factor, scale.total())
        by_total = None if total is None else torch.zeros_like(total)
        blocks = zip(
            cut.parts(edges), cut.parts(total), cut.parts(factor), cut.parts(by_edges), cut.parts(by_total),
            cut.parts(changed), cut.taken(places.against, ends.messages), cut.taken(places.along, ends.products),
            cut.taken(places.inv, ends.hidden), cut.taken(places.along, of_messages),
            cut.taken(places.inv, of_hidden), cut.adders(places.against, by_ends.messages),
            cut.adders(places.along, by_ends.products), cut.adders(places.inv, by_ends.hidden), strict=True,
        )  # fmt: skip
        for (
            x, by, by_factor, into, by_by, by_new, messages, products, hidden, sent, means,
            to_messages, to_products, to_hidden,
        ) in blocks:  # fmt: skip
            t, pre, z, y, by_e, e = cut.scratch(x, 6)
            e = x if by is None else torch.mul(x, by, out=e)
            torch.mul(e, all_messages := _product(messages, 0), out=t).mul_(messages[0])
            _before(t, mixed, hidden, pre)
            if by_new is None:
                by_z = _total(means, z)
            else:
                torch.ops.aten.silu.out(pre, out=z)
                _mixed(z, gated, by_e)
                torch.addcmul(by_new, by_new, by_e, out=by_e) if added else by_e.mul_(by_new)
                by_gate.addmm_(_rows(torch.mul(by_new, e, out=y)).mT, _rows(z))
                by_z = _before(y, gate, means, z)
                for i, add in enumerate(to_products):
                    add(torch.mul(by_new, _product(products, i), out=y))
            by_pre = torch.ops.aten.silu_backward.grad_input(by_z, pre, grad_input=z)
            by_mix.addmm_(_rows(by_pre).mT, _rows(t))
            for add in to_hidden:
                add(by_pre)
            by_t = _mixed(by_pre, mix, pre)
            for i in reversed(range(count)):
                # The gradient by the message of end i is the edge times this.
                rest = _sum([_product([*messages, sent[j]], i, j) for j in range(count) if j != i])
                torch.addcmul(rest, by_t, _product(messages, i), out=t)
                to_messages[i](torch.mul(e, t, out=y))
            t *= messages[0]
            if by_new is not None:
                t += by_e
            if added and by is None:
                t += by_new
            torch.addcmul(t, sent[0], all_messages, out=into if by is None else t)
            if by is not None:
                by_by += torch.mul(x, t, out=y).sum_to_size(by_by.shape)
                torch.addcmul(by_new, t, by_factor, out=into) if added else torch.mul(t, by_factor, out=into)
        by_constant = None if scale is None or scale.constant is None else by_total
        return None, None, by_edges, by_constant, by_total, by_mix, by_gate, *itertools.chain(*by_ends)


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


class _Cut:
    """All edges in blocks, what goes with each of these, and memory for temporary results."""

    def __init__(self, places: Places, edges: Tensor) -> None:
        size = BLOCK // edges.element_size() if edges.device.type == "cpu" else edges.numel()
        self._at, self._plan = places.inv, places.inv.plan(edges, size)
        self._count = len(list(self.parts(edges)))
        self._held: Tensor | None = None
        self._scratch: list[Tensor] = []

    def parts(self, x: Tensor | None) -> Iterable[Any]:
        """For each block its part of the edges, or of what all edges of a network share, or None."""
        return itertools.repeat(None, self._count) if x is None else self._at.parts(x, self._plan)

    def taken(self, at: Incidence[Any], brought: Sequence[Tensor]) -> Iterable[Sequence[Tensor]]:
        """For each block what all ends bring."""
        return zip(*(at.taken(x, i, self._plan) for i, x in enumerate(brought)), strict=True)

    def adders(self, at: Incidence[Any], totals: Sequence[Tensor]) -> Iterable[Sequence[Adder]]:
        """For each block what adds to the totals of each end."""
        return zip(*(at.adders(x, i, self._plan) for i, x in enumerate(totals)), strict=True)

    def scratch(self, like: Tensor, count: int) -> list[Tensor]:
        """Memory for so many temporary results, used again for every block."""
        if self._held is None:
            self._held = like.new_empty(count, like.numel())  # the first block is the largest
        if not self._scratch or self._scratch[0].shape != like.shape:
            self._scratch = [held[: like.numel()].view(like.shape) for held in self._held]
        return self._scratch


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like, memory_format=torch.contiguous_format)


def _unpacked(others: Sequence[Any]) -> tuple[Tensor, Tensor, Scale | None, Ends]:
    """The inputs of `_Exchange` behind the edges."""
    constant, factor, mix, gate, *brought = others
    count = len(brought) // 3
    ends = Ends(*(tuple(brought[i * count : (i + 1) * count]) for i in range(3)))
    return mix, gate, None if factor is None else Scale(constant, factor), ends


def _flat(found: tuple[Sums, Tensor]) -> tuple[Tensor, ...]:
    return *found[0].messages, *found[0].hidden, found[1]


def _rows(x: Tensor) -> Tensor:
    return x.view(-1, x.shape[-1])


def _mixed(x: Tensor, matrix: Tensor, out: Tensor) -> Tensor:
    torch.mm(_rows(x), matrix, out=_rows(out))
    return out


def _total(parts: Sequence[Tensor], out: Tensor) -> Tensor:
    """The sum of parts that broadcast."""
    return torch.add(parts[0], _sum(parts[1:]), out=out)


def _before(x: Tensor, matrix: Tensor, parts: Sequence[Tensor], out: Tensor) -> Tensor:
    """``x`` mixed, and parts that broadcast."""
    _rows(_total(parts, out)).addmm_(_rows(x), matrix)
    return out
