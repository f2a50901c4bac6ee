"""The exchange on edges: `plain_exchange` is the definition; a CPU does the same in blocks that stay in its cache."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from torch.nn.modules import module as torch_module

from nfn_monomial.space.packing import wide

from .incidence import Places, zeros_to_add_to

BLOCK = 2**18
"""Bytes of the edges of one block: some six temporary results of that size fit into a processor's cache."""


class Ends(NamedTuple):
    """The tensors that neurons bring to each end of edges, see `EdgeMessages`; no products where edges stay."""

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
    hidden: nn.Module,
    gate: nn.Module | None,
    ends: Ends,
    scale: Tensor | None = None,
    residual: bool = False,
) -> tuple[Sums, Tensor]:
    """Sums of the messages from edges to their ends, and the updated edges: the formulas of `EdgeMessages`.

    On a CPU it is done block by block, and once more in the backward pass, for which only the edges and the tensors of
    their ends are kept. `plain_exchange` runs on other devices, where all edges are one block, and where somebody needs
    to see operators or modules: torch.compile, torch.func, autocast, fake tensors, hooks, anything but `nn.Linear`.

    Args:
        places: which neurons are at which end.
        edges: ``x (..., C)``.
        hidden: ``t -> W t + w``; the identity where t is 0, because a factor of it is.
        gate: ``z -> G z``; None where edges stay as they are.
        ends: the tensors that their neurons bring.
        scale: edges are ``e = x * scale`` in all formulas; a norm never makes a tensor then.
        residual: whether ``x + e + update`` is returned, not the update.
    """
    plain = untouched(hidden, nn.Identity) or untouched(hidden, nn.Linear)
    plain = plain and (gate is None or untouched(gate, nn.Linear))
    large = edges.device.type == "cpu" and not watched(edges) and edges.nbytes > BLOCK
    if not (plain and large and (scale is None or scale.dtype == edges.dtype)):
        return plain_exchange(places, edges, hidden, gate, ends, scale, residual)
    mix, bias = getattr(hidden, "weight", None), getattr(hidden, "bias", None)
    first, *others = ends.hidden
    ends = ends._replace(hidden=(first if bias is None else first + bias, *others))
    count, gated = len(ends.messages), None if gate is None else gate.weight
    *sums, updated = _Exchange.apply(places, count, residual, edges, scale, mix, gated, *itertools.chain(*ends))  # type: ignore[no-untyped-call]
    return Sums(tuple(sums[:count]), tuple(sums[count:])), edges if updated is None else updated


def plain_exchange(
    places: Places,
    edges: Tensor,
    hidden: Any,
    gate: Any,
    ends: Ends,
    scale: Tensor | None = None,
    residual: bool = False,
) -> tuple[Sums, Tensor]:
    """`exchange` on all edges at once; ``hidden`` and ``gate`` are any functions."""
    messages, products, invariants = (
        [at.take(x, i) for i, x in enumerate(brought)] for at, brought in zip(places, ends, strict=True)
    )
    e = edges if scale is None else scaled(edges, scale)
    sent = [e * _product(messages, i) for i in range(len(messages))]
    z = silu(sum_of([hidden(sent[0] * messages[0]), *invariants]))
    updated = edges
    if gate is not None:
        update = torch.addcmul(_product(products), e, gate(z))
        updated = edges + e + update if residual else update
    sums = [places.along.sum(x, i, ends.messages[i]) for i, x in enumerate(sent)]
    return Sums(tuple(sums), tuple(places.inv.sum(z, i, x) for i, x in enumerate(ends.hidden))), updated


def scaled(x: Tensor, factor: Tensor) -> Tensor:
    """The product in the dtype of ``x``, whatever that of the factor."""
    return (wide(x) * factor).to(x.dtype)


def untouched(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Returns whether a module is of this class and does what that says: no hooks, and no method replaced."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    everywhere = torch_module._has_any_global_hook()  # type: ignore[no-untyped-call]
    return type(module) is kind and not any(hooks) and "forward" not in vars(module) and not everywhere


def watched(x: Tensor) -> bool:
    """Returns whether somebody sees the operators on a tensor: a compiler, a transform, autocast, or its class."""
    return (
        torch.compiler.is_compiling()
        or type(x) not in (Tensor, nn.Parameter)
        or x.is_meta
        or torch.is_autocast_enabled(x.device.type)
        or torch._C._functorch.maybe_current_level() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def _product(tensors: Sequence[Tensor], *but: int) -> Any:
    """The product of all but some; 1 of none."""
    left: list[Any] = [t for i, t in enumerate(tensors) if i not in but]
    return reduce(operator.mul, left or [1])


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of one or more tensors."""
    return reduce(operator.add, tensors)


class _Exchange(torch.autograd.Function):
    """`exchange` in blocks: tensors as large as all edges are read and written once, the rest stays in the cache."""

    @staticmethod
    def forward(
        ctx: Any, places: Places, count: int, residual: bool, edges: Tensor, *others: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        edges = edges.contiguous()
        ctx.places, ctx.count, ctx.residual = places, count, residual
        ctx.save_for_backward(edges, *others)
        ctx.set_materialize_grads(False)
        scale, mix, gate, ends = _unpacked(others, count)
        blocks = _Blocks(places, edges)
        sums = Sums(*(tuple(map(zeros_to_add_to, x)) for x in (ends.messages, ends.hidden)))
        updated = None if gate is None else torch.empty_like(edges)
        for x, by, new, (messages, products, hidden), (to_messages, to_hidden) in zip(
            *map(blocks.parts, (edges, scale, updated)), blocks.taken(places, ends), blocks.adders(places[1:], sums),
            strict=True,
        ):  # fmt: skip
            e = x if by is None else x * by
            for i in reversed(range(count)):
                t = e * _product(messages, i)
                to_messages[i](t)
            z = silu(sum_of(hidden) if mix is None else _added(hidden, t.mul_(messages[0]), mix.mT), inplace=True)
            for add in to_hidden:
                add(z)
            if new is not None:
                change = linear(z, gate).mul_(e)
                if residual:
                    change.add_(x, alpha=2) if by is None else change.addcmul_(x, by + 1)
                torch.addcmul(change, products[0], _product(products, 0), out=new)
        pairs = zip((*sums.messages, *sums.hidden), (*ends.messages, *ends.hidden), strict=True)
        return *(total.to(x.dtype) for total, x in pairs), updated

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return None, None, None, *_Exchange._differentiable(ctx, gradients)
        places, count, (edges, *others) = ctx.places, ctx.count, ctx.saved_tensors
        scale, mix, gate, ends = _unpacked(others, count)
        blocks = _Blocks(places, edges)
        summed = zip(gradients[:-1], (*ends.messages, *ends.hidden), strict=True)
        by_sums = [torch.zeros_like(x) if g is None else g for g, x in summed]
        by_edges, by_ends = torch.empty_like(edges), Ends(*(tuple(map(zeros_to_add_to, x)) for x in ends))
        totals: list[Any] = [None if x is None else zeros_to_add_to(x) for x in (scale, mix, gate)]
        by_scale, by_mix, by_gate = totals
        for (
            x, by, into, into_scale, by_new, (messages, products, hidden), (sent, means),
            (to_messages, to_products, to_hidden),
        ) in zip(
            *map(blocks.parts, (edges, scale, by_edges, by_scale, gradients[-1])), blocks.taken(places, ends),
            blocks.taken(places[1:], (by_sums[:count], by_sums[count:])), blocks.adders(places, by_ends), strict=True,
        ):  # fmt: skip
            e = x if by is None else x * by
            t = (e * _product(messages, 0)).mul_(messages[0])
            pre = sum_of(hidden) if mix is None else _added(hidden, t, mix.mT)
            by_z, by_e = sum_of(means), None
            if by_new is not None:
                z, y = silu(pre), by_new * e
                by_e = linear(z, gate).mul_(by_new)
                by_gate += _rows(y).mT @ _rows(z)
                by_z = _added(means, y, gate)
                for i, add in enumerate(to_products):
                    add(by_new * _product(products, i))
            by_pre = torch.ops.aten.silu_backward(by_z, pre)
            if by_mix is not None:
                by_mix += _rows(by_pre).mT @ _rows(t)
            for add in to_hidden:
                add(by_pre)
            by_t = by_pre if mix is None else by_pre @ mix
            for i in reversed(range(count)):
                # The gradient by the message of end i is the edge times this.
                rest = sum_of([_product([*messages, sent[j]], i, j) for j in range(count) if j != i])
                torch.addcmul(rest, by_t, _product(messages, i), out=t)
                to_messages[i](e * t)
            t.mul_(messages[0]).addcmul_(sent[0], _product(messages, 0))
            if by_e is not None:
                t += by_e
            twice = ctx.residual and by_e is not None  # the output has x and e in it
            if twice:
                t += by_new
            if into_scale is not None:
                into_scale += (x * t).sum_to_size(into_scale.shape)
                t *= by
            torch.add(t, by_new, out=into) if twice else into.copy_(t)
        return None, None, None, by_edges, by_scale, by_mix, by_gate, *itertools.chain(*by_ends)

    @staticmethod
    def _differentiable(ctx: Any, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients that have gradients themselves: those of `plain_exchange`."""
        # Inputs depend on one another, as the size of the edges does on the edges. Views of them do not: a gradient
        # that comes through another input is left to the operator that made that input.
        inputs: list[Any] = [None if x is None else x.view_as(x) for x in ctx.saved_tensors]
        scale, mix, gate, ends = _unpacked(inputs[1:], ctx.count)
        hidden = _matrix(mix) or nn.Identity()
        sums, updated = plain_exchange(ctx.places, inputs[0], hidden, _matrix(gate), ends, scale, ctx.residual)
        outputs = zip((*sums.messages, *sums.hidden, updated), gradients, strict=True)
        used, by_used = zip(*((y, g) for y, g in outputs if g is not None), strict=True)
        needed = ctx.needs_input_grad[3:]
        wanted = list(itertools.compress(inputs, needed))
        by = iter(torch.autograd.grad(used, wanted, by_used, create_graph=True, allow_unused=True))
        return [next(by) if need else None for need in needed]


class _Blocks:
    """All edges in blocks, each with the tensors that belong to it."""

    def __init__(self, places: Places, edges: Tensor) -> None:
        self._at: Any = places.inv
        self._plan = self._at.plan(edges, BLOCK // edges.element_size())
        self._count = len(list(self.parts(edges)))

    def parts(self, x: Tensor | None) -> Iterable[Any]:
        """For each block its part of the edges, or of a tensor that all edges of a network share, or None."""
        return itertools.repeat(None, self._count) if x is None else self._at.parts(x, self._plan)

    def taken(self, places: Sequence[Any], brought: Sequence[Sequence[Tensor]]) -> Iterable[Any]:
        """For each block the tensors that all ends bring, of each kind."""
        kinds = zip(places, brought, strict=True)
        return self._zipped([at.taken(x, i, self._plan) for i, x in enumerate(kind)] for at, kind in kinds)

    def adders(self, places: Sequence[Any], totals: Sequence[Sequence[Tensor]]) -> Iterable[Any]:
        """For each block the adders to the totals of each end, of each kind."""
        kinds = zip(places, totals, strict=True)
        return self._zipped([at.adders(x, i, self._plan) for i, x in enumerate(kind)] for at, kind in kinds)

    def _zipped(self, kinds: Iterable[Sequence[Iterable[Any]]]) -> Iterable[Any]:
        each = [zip(*kind, strict=True) if kind else itertools.repeat((), self._count) for kind in kinds]
        return zip(*each, strict=True)


def _unpacked(others: Sequence[Any], count: int) -> tuple[Any, Any, Any, Ends]:
    """The inputs of `_Exchange` after the edges, for edges of ``count`` ends."""
    scale, mix, gate, *brought = others
    messages, products, hidden = brought[:count], brought[count:-count], brought[-count:]
    return scale, mix, gate, Ends(tuple(messages), tuple(products), tuple(hidden))


def _matrix(weight: Tensor | None) -> Any:
    return None if weight is None else partial(linear, weight=weight)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _added(parts: Sequence[Tensor], x: Tensor, matrix: Tensor) -> Tensor:
    """The sum of two or more parts that broadcast, and ``x`` times a matrix."""
    total = torch.add(parts[0], sum_of(parts[1:]), out=x.new_empty(x.shape))
    return total.view(-1, x.shape[-1]).addmm_(_rows(x), matrix).view(x.shape)
