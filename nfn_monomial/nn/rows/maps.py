"""Maps of the rows of a field one after another: what is between them is never there as a whole.

A row is the last dimension of a field: all that one neuron, or one pair of neurons, has. Where nothing but the entries
of rows is mixed, a chain of maps can be run for some networks at a time, which stay in the cache. Backward runs it
again: only what it starts from is kept, and what is read off at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from nfn_monomial.nn.edges import plain_gradients

BLOCK = 2**20
"""Bytes of the widest rows of the networks that are run at a time on a CPU: they stay in its cache."""
BLOCK_ELSEWHERE = 2**26
WORTHWHILE = 4
"""So many blocks there must be: with fewer, running the maps again costs more time than what they keep is worth."""


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Rows ``(..., F)`` times a matrix ``(out, F)``.

    A field whose channels lie first in memory, as those of named tensors do, stays so: a batch of products, which moves
    nothing, in a quarter of the time of the rows' own at 16 channels.
    """
    if x.ndim > 2 and not x.is_contiguous() and x.movedim(-1, 1).is_contiguous():
        found = torch.bmm(weight.expand(len(x), -1, -1), x.movedim(-1, 1).flatten(2))
        return found.view(len(x), -1, *x.shape[1:-1]).movedim(1, -1)
    return nn.functional.linear(x, weight)


class Product(nn.Linear):
    """`product` as a layer: `torch.nn.Linear` without a bias."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rows ``(..., in_features)`` -> ``(..., out_features)``."""
        return product(x, self.weight)


class Map(NamedTuple):
    """A function of rows, with gradients.

    Attributes:
        function: of rows ``(..., F)`` and the parameters -> ``(..., width)``.
        parameters: that gradients are needed of.
        width: of its output; None if it is that of the input.
    """

    function: Callable[..., Tensor]
    parameters: tuple[Tensor, ...] = ()
    width: int | None = None


class Read(NamedTuple):
    """What is read off the end of a chain; None or nothing of what was not asked for."""

    product: Tensor | None
    means: dict[int, Tensor]
    whole: Tensor | None


class Rows:
    """A field ``(B, *neurons, F)`` that is not there yet: maps to be run on the rows of a tensor.

    Args:
        source: what the first map takes, ``(B, *neurons, F)``.
        maps: in order.
    """

    def __init__(self, source: Tensor, maps: tuple[Map, ...] = ()) -> None:
        self.source, self.maps = source, maps
        self._widths = [source.shape[-1]]
        for map_ in maps:
            self._widths.append(map_.width or self._widths[-1])

    @property
    def width(self) -> int:
        """Entries of a row."""
        return self._widths[-1]

    def then(self, map_: Map) -> Rows:
        """With one map more."""
        return Rows(self.source, (*self.maps, map_))

    def read(self, weight: Tensor | None = None, means: Sequence[int] = (), whole: bool = False) -> Read:
        """Run the maps, once for all that is to be known.

        Args:
            weight: of a matrix product with the rows, ``(out, F)``.
            means: dimensions, of each of which the mean is taken.
            whole: whether the field itself is needed.
        """
        if whole and not self.maps and weight is None and not means:
            return Read(None, {}, self.source)
        x, reading = self.source, _Reading(self.maps, weight is not None, tuple(means), whole)
        parameters = [p for map_ in self.maps for p in map_.parameters] + ([] if weight is None else [weight])
        widest = max(*self._widths, 0 if weight is None else len(weight))
        network = max(1, x[0].nbytes // max(1, x.shape[-1]) * widest)
        size = max(1, (BLOCK if x.device.type == "cpu" else BLOCK_ELSEWHERE) // network)
        if len(x) < WORTHWHILE * size:
            found = list(reading(x, parameters))
        else:
            found = list(_InBlocks.apply(reading, size, x, *parameters))  # type: ignore[no-untyped-call]
        product = None if weight is None else found.pop(0)
        last = found.pop() if whole else None
        return Read(product, dict(zip(means, found, strict=True)), last)


Field: TypeAlias = Tensor | Rows
"""A field that is there, or is not yet."""


def then(field: Field, map_: Map) -> Field:
    """A map of a field's rows: at once if the field is there."""
    return map_.function(field, *map_.parameters) if isinstance(field, Tensor) else field.then(map_)


def whole(field: Field) -> Tensor:
    """The field as a tensor."""
    if isinstance(field, Tensor):
        return field
    found = field.read(whole=True).whole
    assert found is not None, "it was asked for"
    return found


class _Reading(NamedTuple):
    """Maps, and what is read off behind them: a product, means and the rows themselves, in this order."""

    maps: tuple[Map, ...]
    product: bool
    means: tuple[int, ...]
    whole: bool

    def rows(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        given = iter(parameters)
        for map_ in self.maps:
            x = map_.function(x, *(next(given) for _ in map_.parameters))
        return x

    def __call__(self, x: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
        rows = self.rows(x, parameters)
        found = [product(rows, parameters[-1])] if self.product else []
        return (*found, *(rows.mean(dim) for dim in self.means), *([rows] if self.whole else []))


class _InBlocks(torch.autograd.Function):
    """A `_Reading`, some networks at a time; only its input is kept for backward, which runs the maps again."""

    @staticmethod
    def forward(ctx: Any, reading: _Reading, size: int, x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.reading, ctx.size = reading, size
        ctx.save_for_backward(x, *parameters)
        out: list[Tensor] = []
        for start in range(0, len(x), size):
            part = slice(start, start + size)
            found = reading(x[part], parameters)
            out = out or [y.new_empty((len(x), *y.shape[1:])) for y in found]
            for y, piece in zip(out, found, strict=True):
                y[part] = piece
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *by_out: Tensor) -> tuple[Tensor | None, ...]:
        reading, (x, *parameters), needed = ctx.reading, ctx.saved_tensors, ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            again = lambda: reading(x, parameters)  # noqa: E731
            return None, None, *plain_gradients(again, (x, *parameters), needed, by_out)
        # Sums over networks are rounded once, as those of a matrix product are.
        sums = [
            torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) if need else None
            for p, need in zip(parameters, needed[1:], strict=True)
        ]
        by_x = torch.empty_like(x) if needed[0] else None
        for start in range(0, len(x), ctx.size):
            part = slice(start, start + ctx.size)
            found = _gradients(reading, x[part], parameters, needed, [by[part] for by in by_out])
            if by_x is not None and found[0] is not None:
                by_x[part] = found[0]
            for total, piece in zip(sums, found[1:], strict=True):
                if total is not None and piece is not None:
                    total += piece
        return None, None, by_x, *(s if s is None else s.to(p.dtype) for s, p in zip(sums, parameters, strict=True))


def _gradients(
    reading: _Reading, x: Tensor, parameters: Sequence[Tensor], needed: Sequence[bool], by_out: list[Tensor]
) -> list[Tensor | None]:
    """By the input and the parameters; what is read is linear in the rows, so it is not computed again itself."""
    x, *given = (t.detach().requires_grad_(need) for t, need in zip((x, *parameters), needed, strict=True))
    with torch.enable_grad():
        rows = reading.rows(x, given)
    found: dict[int, Tensor] = {}
    by_rows = by_out[-1] if reading.whole else None
    for dim, by in zip(reading.means, by_out[reading.product :], strict=False):
        spread = by.unsqueeze(dim) / rows.shape[dim]
        by_rows = spread.expand_as(rows) if by_rows is None else by_rows + spread
    if reading.product:
        by_product, weight = by_out[0].flatten(0, -2), given.pop().detach()
        if needed[-1]:
            found[len(parameters)] = by_product.t() @ rows.detach().flatten(0, -2)
        back = (by_product @ weight).view(rows.shape)
        by_rows = back if by_rows is None else back.add_(by_rows)
    at = [i for i, t in enumerate((x, *given)) if t.requires_grad]
    if at and rows.requires_grad:
        inputs = [(x, *given)[i] for i in at]
        found |= zip(at, torch.autograd.grad(rows, inputs, by_rows), strict=True)
    return [found.get(i) for i in range(1 + len(parameters))]
