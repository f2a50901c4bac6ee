"""The step that ends the charges: behind it scalings and sign flips act no more, only permutations."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.features import Layout
from nfn_monomial.space.packing import concrete
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Symmetry

from .edges import BLOCK, plain_gradients, watched
from .rows import Field, Map, RowWise, then, whole


class Canonicalize(RowWise):
    """Kill the charges: features that scalings and sign flips no longer change, only permutations (paper Sec. 5.2).

    Every field sends the vector ``x`` of a neuron (or of a pair of neurons), all its channels and fixed entries
    together, through a function of degree zero, then through an affine map per entry (the paper's beta):

    ========== ==================================== =================================================
    ``kind``    on fields that scale                 on fields that flip signs
    ========== ==================================== =================================================
    ``norm``    ``x / ||x||_2``                      ``|x|``  (on fields that do both ``|x| / ||x||``)
    ``square``  ``x^2 / sum x^2``, as in the paper   ``|x|``  (on fields that do both ``x^2 / sum x^2``)
    ``abs``     illegal                              ``|x|``
    ========== ==================================== =================================================

    A positive scaling keeps signs, so ``norm`` keeps more information than the paper's ``square`` does. Both are
    exact at any scale of ``x`` (it is divided by its largest entry first, no epsilon), map 0 to 0 and have finite
    gradients everywhere. Uncharged fields get the affine map only.

    Shapes: as the input; the output belongs to ``space.uncharged()``, on which `EquivariantLinear` is HNP.

    Args:
        space: the weight space of the input.
        channels: channels of the input.
        kind: see above.
        learnable: whether the affine map is there. It starts as the identity times the square root of the number of
            entries (``norm``) or that number (``square``), so that normalised entries start at size 1.

    Raises:
        ValueError: for an unknown kind, or ``abs`` on a space with scalings.
    """

    @checked
    def __init__(
        self,
        space: WeightSpace,
        channels: Count,
        kind: Literal["norm", "square", "abs"] = "norm",
        learnable: bool = True,
    ) -> None:
        super().__init__()
        self.space, self.channels, self.kind = space, channels, kind
        self.in_layout, self.out_space = space.layout, space.uncharged()
        self.out_layout = self.out_space.layout
        if kind == "abs" and any(felt.scales for felt in self.in_layout.felt):
            raise InvalidValueError(f"Canonicalize(kind='abs') leaves the scalings of {space}; use 'norm' or 'square'")
        self._sources = _merge_plan(space, self.in_layout, self.out_space)
        self.weight = self.bias = None
        if learnable:
            widths = [m * channels for m in self.in_layout.multiplicities]
            self.weight = nn.ParameterList(torch.ones(w) for w in widths)
            self.bias = nn.ParameterList(torch.zeros(w) for w in widths)
            for felt, weight in zip(self.in_layout.felt, self.weight, strict=True):
                if felt.scales:
                    nn.init.constant_(weight, len(weight) ** (0.5 if kind == "norm" else 1.0))

    def on_rows(self, fields: Sequence[Field]) -> list[Field]:
        """Charged features of ``space`` -> uncharged ones of ``space.uncharged()``, same channels."""
        killed = []
        for i, (felt, x) in enumerate(zip(self.in_layout.felt, fields, strict=True)):
            affine = () if self.weight is None or self.bias is None else (self.weight[i], self.bias[i])
            killed.append(then(x, Map(functools.partial(_kill, felt, self.kind == "square"), affine)))
        return [self._merged(killed, pieces) for pieces in self._sources]

    def _merged(self, killed: Sequence[Field], pieces: Sequence[tuple[int, int, int, bool]]) -> Field:
        if len(pieces) == 1 and pieces[0][3]:
            return killed[pieces[0][0]]
        parts = [
            whole(killed[field])
            if all_of_it
            else whole(killed[field]).narrow(-1, start * self.channels, count * self.channels)
            for field, start, count, all_of_it in pieces
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}, kind={self.kind!r}, learnable={self.weight is not None}"


def _kill(felt: Symmetry, squared: bool, x: Tensor, *affine: Tensor) -> Tensor:
    out: Tensor
    out = _Killed.apply(x, felt, squared, *affine) if affine and not watched(x) else _killed(x, felt, squared, *affine)  # type: ignore[no-untyped-call]
    return out


def _killed(
    x: Tensor, felt: Symmetry, squared: bool, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    if felt.scales:
        x = _degree_zero(x, squared)
    if felt.flips:
        x = x.abs()
    return x if weight is None or bias is None else x * weight + bias


class _Killed(torch.autograd.Function):
    """`_killed` with an affine map, some networks at a time, which stay in the cache.

    Only the input is kept for backward, which the activation before it keeps, too.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, felt: Symmetry, squared: bool, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.felt, ctx.squared = felt, squared and felt.scales
        ctx.save_for_backward(x, weight, bias)
        out = torch.empty_like(x)
        for part in _parts(x):
            unit, _ = _unit(x[part], felt)
            torch.addcmul(bias, _value(unit, felt, ctx.squared), weight, out=out[part])
        return out

    @staticmethod
    def backward(ctx: Any, by_y: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight, bias), felt, squared = ctx.saved_tensors, ctx.felt, ctx.squared
        if torch.is_grad_enabled():
            needed = (ctx.needs_input_grad[0], *ctx.needs_input_grad[3:])
            again = lambda: (_killed(x, felt, squared, weight, bias),)  # noqa: E731
            by_x, *by_affine = plain_gradients(again, (x, weight, bias), needed, (by_y,))
            return by_x, None, None, *by_affine
        found, by_weight, by_bias = torch.empty_like(x), torch.zeros_like(weight), torch.zeros_like(bias)
        for part in _parts(x):
            unit, by_norm = _unit(x[part], felt)
            by_value = (by_y[part] * _value(unit, felt, squared)).flatten(0, -2)
            by_bias += by_y[part].sum_to_size(bias.shape)
            by_weight += by_value.sum(0)
            by_unit = torch.mul(by_y[part], weight, out=found[part])
            if squared:
                by_unit.mul_(unit).mul_(2)
            elif felt.flips:
                by_unit.mul_(unit.sign())
            if by_norm is not None:
                along = (by_value @ weight).view(by_norm.shape)
                by_unit.addcmul_(unit, along, value=-2 if squared else -1).mul_(by_norm)
        return found, None, None, by_weight, by_bias


def _parts(x: Tensor) -> Iterable[slice]:
    """Some networks at a time."""
    size = max(1, BLOCK // max(1, x[0].nbytes)) if x.device.type == "cpu" else len(x)
    return (slice(i, i + size) for i in range(0, len(x), size))


def _value(unit: Tensor, felt: Symmetry, squared: bool) -> Tensor:
    return unit.square() if squared else unit.abs() if felt.flips else unit


def _unit(x: Tensor, felt: Symmetry) -> tuple[Tensor, Tensor | None]:
    """``x / ||x||`` over the last dimension and what its gradient is multiplied by: ``1 / ||x||``, 0 where that could
    overflow; where no scale acts, ``x`` itself."""
    if not felt.scales:
        return x, None
    if x.device.type == "cpu" and concrete((x,)):  # a look at values costs nothing
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        low, high = norm.aminmax()
        if low > torch.finfo(x.dtype).tiny ** 0.25 and high < torch.finfo(x.dtype).max ** 0.25:
            by_norm = norm.reciprocal_()
            return x * by_norm, by_norm
    largest = torch.maximum(x.amax(-1, keepdim=True), -x.amin(-1, keepdim=True))
    zero = largest == 0
    small = largest < torch.finfo(x.dtype).max ** (-13 / 16)
    largest.masked_fill_(zero, 1)
    unit = x / largest
    by_norm = torch.linalg.vector_norm(unit, dim=-1, keepdim=True).masked_fill_(zero, 1).reciprocal_()
    return unit.mul_(by_norm), by_norm.div_(largest).masked_fill_(small, 0)


def _degree_zero(x: Tensor, squared: bool) -> Tensor:
    """``x / ||x||`` or ``x^2 / sum x^2`` over the last dimension; 0 where x is 0."""
    # The quotient does not depend on the factor taken out first, so no gradient flows through it.
    largest = x.detach().abs().amax(-1, keepdim=True)
    zero = largest == 0
    # The gradient is of size 1 / ||x||. Where it could overflow (||x|| below 5e-32 in float32, as of dead neurons under
    # weight decay), it is taken as 0; the value stays exact.
    x = torch.where(largest < torch.finfo(x.dtype).max ** (-13 / 16), x.detach(), x) / largest.masked_fill(zero, 1)
    square = x.square()
    total = square.sum(-1, keepdim=True).masked_fill(zero, 1)  # at least 1: the largest entry is 1
    return square / total if squared else x * total.rsqrt()


def degree_zero(x: Tensor, felt: Symmetry) -> Tensor:
    """``x`` with what ``felt`` does to it undone: over its last dimension ``x / ||x||`` times the root of the number of
    entries where scales act, ``|x|`` where signs flip."""
    if felt.scales:
        x = _degree_zero(x, squared=False) * x.shape[-1] ** 0.5
    return x.abs() if felt.flips else x


def _merge_plan(
    space: WeightSpace, source: Layout, target: WeightSpace
) -> tuple[tuple[tuple[int, int, int, bool], ...], ...]:
    """For each output field, which slices (field, offset, multiplicity, whole field) of the input make it up."""
    plan: list[list[tuple[int, int, int]]] = [[] for _ in target.layout.types]
    for old, new in zip(space.segments, target.segments, strict=True):
        pieces = plan[new.field]
        if pieces and pieces[-1][0] == old.field and sum(pieces[-1][1:]) == old.offset:
            pieces[-1] = (old.field, pieces[-1][1], pieces[-1][2] + old.multiplicity)
        else:
            pieces.append((old.field, old.offset, old.multiplicity))
    return tuple(tuple((f, s, n, n == source.multiplicities[f]) for f, s, n in pieces) for pieces in plan)
