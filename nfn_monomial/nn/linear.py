"""The equivariant affine layer: contract, one matrix per contracted type, expand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from nfn_monomial.basis.linear import routes
from nfn_monomial.basis.partitions import field_key
from nfn_monomial.checks import Count, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.axes import field_name
from nfn_monomial.space.features import Features, Layout, Types
from nfn_monomial.space.folding import LayoutFolding
from nfn_monomial.space.weight_space import WeightSpace

from .steps import (
    InitType,
    Layer,
    Means,
    Product,
    Step,
    contract,
    contraction_step,
    draw,
    expand,
    expansion_step,
    require_sizes,
)


class EquivariantLinear(Layer):
    r"""Every equivariant affine map between weight-space features: ``E(g x) = g E(x)`` for all g of the space's group.

    The layer of paper Eq. (equi_layer) for SCALE, of Table 8 (equi-layer-sin) for SIGN, of NP and HNP for
    PERMUTATION, and of anything mixed: one code path, see `nfn_monomial.basis` for the theorem. For each contracted
    type R,

        y_R = A_R concat(contract(x, R)),    out_t = sum over R of expand(y_R, t) + expand(bias, t)

    where contractions average over closed axes and expansions broadcast. On charged fields most of these vanish and
    the layer is one matrix product per field type.

    Shapes: a field ``(B, *node sizes, m_in x C_in)`` -> ``(B, *node sizes, m_out x C_out)``, any number of neurons.

    Args:
        space: the weight space.
        in_channels: channels of the input features.
        out_channels: channels of the output features.
        io: ``"full"`` has all equivariant maps. Its matrices are quadratic in a field's multiplicity, so in the
            sizes of FIXED nodes: ``(n_0 + 1)^2`` blocks of ``C_in x C_out`` for the first layer's field.
            ``"factored"`` replaces each matrix, where that saves parameters, by one map per fixed position plus a
            product of rank ``max(C_in, C_out)`` that mixes positions: linear in ``n_0`` and ``n_L``, equally
            equivariant, not complete. It is linear in depth, too: a residual stream, in which many
            tensors meet, mixes all their pairs in full, and 16 residual blocks of two 3x3 convolutions whose hidden
            neurons are only permuted have 79 million parameters from 16 to 16 channels, or 47 thousand a block
            factored. A layer for a network of 1,000 blocks is planned in seconds.
        bias: whether to add the equivariant constants (balanced partitions of the output alone).
        in_types: field types (with multiplicities) of the input, if it is not the space's own parameters; or its
            layout, such as that of ``neuron_layout(space)``, whose FIXED axes stay in their places.
        out_types: likewise of the output.
        init_type: ``"kaiming_normal"`` draws normal weights of twice the variance, and sets biases to 0; see
            `reset_parameters`.

    Raises:
        ValueError: if a channel number is below 1, ``io`` is unknown, or an output field cannot be reached by any
            equivariant map from the input (a charged field from uncharged ones).

    >>> space = WeightSpace.mlp([2, 3, 2], "tanh")
    >>> layer = EquivariantLinear(space, 1, 1)
    >>> sum(p.numel() for p in layer.parameters())  # 29 linear maps and 2 constants
    31
    """

    @checked
    def __init__(
        self,
        space: WeightSpace,
        in_channels: Count,
        out_channels: Count,
        *,
        io: Literal["full", "factored"] = "full",
        bias: bool = True,
        in_types: Types = None,
        out_types: Types = None,
        init_type: InitType = "pytorch_default",
    ) -> None:
        super().__init__()
        self.space, self.io, self.init_type = space, io, init_type
        self.in_channels, self.out_channels = in_channels, out_channels
        self.in_layout, self.out_layout = space.layout_of(in_types), space.layout_of(out_types)
        self._source, self._target = (space.once(LayoutFolding, t) for t in (self.in_layout, self.out_layout))
        self._routes = space.once(_routes, self._source.inner, self._target.inner, bias)

        self._widths = [[_parts(self._target.inner, t) * out_channels for t in r.targets] for r in self._routes]
        self.mix = nn.ModuleDict()
        self.bias = None
        for route, widths in zip(self._routes, self._widths, strict=True):
            if route.sources:
                self.mix[route.key] = _mix(route, self._source.inner, self._target.inner, in_channels, out_channels, io)
            if bias and not route.rank:
                self.bias = nn.Parameter(torch.empty(sum(widths)))
        self._reset_outputs()

    def reset_parameters(self) -> None:
        """Uniform weights of variance 1 / (total fan-in of the output field), biases as in ``nn.Linear``.

        All blocks that add into one output field share its fan-in, so its variance at initialisation is that of
        its inputs. With ``init_type="kaiming_normal"`` it is twice that.

        Raises:
            ValueError: if parameters are sharded: their rows, which are drawn one block after another, are copies.
        """
        if any(hasattr(p, "full_tensor") for p in self.parameters()):
            raise InvalidValueError(
                "EquivariantLinear: sharded parameters cannot be drawn; call reset_parameters before fully_shard, or "
                "load a state dict"
            )
        for mix in self.mix.values():
            if isinstance(mix, _PositionMix):
                mix.reset_parameters()
        self._reset_outputs()

    @torch.no_grad()
    def _reset_outputs(self) -> None:
        """Draws all but the inner maps of factored ones, which draw theirs when they are made."""
        fan_in = [0] * len(self._target.inner)
        for route in self._routes:
            width = sum(_parts(self._source.inner, s) for s in route.sources) * self.in_channels
            for target in route.targets:
                fan_in[target.field] += width
        for route, widths in zip(self._routes, self._widths, strict=True):
            ends = itertools.accumulate(widths)
            for target, width, end in zip(route.targets, widths, ends, strict=True):
                rows, fan = slice(end - width, end), max(fan_in[target.field], 1)
                if route.sources:
                    mix = self.mix[route.key]
                    assert isinstance(mix, Product | _PositionMix | _EntryMix), "made by _mix"
                    mix.reset_rows(rows, fan, self.init_type)
                if self.bias is not None and not route.rank:
                    bound = 0.0 if self.init_type == "kaiming_normal" else 1 / math.sqrt(fan)
                    nn.init.uniform_(self.bias[rows], -bound, bound)

    def forward(self, features: Features) -> Features:
        """Features of ``in_layout`` with ``in_channels`` -> features of ``out_layout`` with ``out_channels``."""
        self.in_layout.require(features, self.in_channels, "EquivariantLinear", next(self.parameters(), None))
        fields, sizes = self._source.fold(features).tensors, self.space.node_sizes(features)
        means: Means = {}
        sums: list[Tensor | None] = [None] * len(self._target.inner)
        for route, widths in zip(self._routes, self._widths, strict=True):
            y = self._mixed(route, fields, means)
            pieces = torch.split(y, widths, -1) if len(widths) > 1 else [y]
            for target, piece in zip(route.targets, pieces, strict=True):
                term, total = expand(piece, target, sizes), sums[target.field]
                sums[target.field] = term if total is None else total + term
        out = []
        for total, axes in zip(sums, self._target.inner.types, strict=True):
            assert total is not None, "every output field is reached: checked when the layer was built"
            out.append(total.expand(-1, *(sizes[a.node] for a in axes), -1))
        return self._target.unfold(Features(self._target.inner, tuple(out)))

    def _mixed(self, route: _Route, fields: Sequence[Tensor], means: Means) -> Tensor:
        """``y_R`` of one contracted type, with the constants where it has no axis."""
        if not route.sources:
            assert self.bias is not None, "without a bias there is no such route"
            return self.bias.expand(fields[0].shape[0], -1)
        parts = [contract(fields[source.field], source, means) for source in route.sources]
        y: Tensor = self.mix[route.key](torch.cat(parts, -1) if len(parts) > 1 else parts[0])
        return y if self.bias is None or route.rank else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        io = "" if self.io == "full" else f", io={self.io!r}"
        bias = "" if self.bias is not None else ", bias=False"
        return f"{self.space}, {self.in_channels}, {self.out_channels}{io}{bias}"


class _Route(NamedTuple):
    """A contracted type, with the contractions to it and the expansions from it."""

    key: str
    rank: int
    sources: tuple[Step, ...]
    targets: tuple[Step, ...]
    apart: dict[int, int]  # FIXED axes of the type -> their sizes


def _parts(layout: Layout, step: Step) -> int:
    """The number of parts of ``C`` channels that a field has in between."""
    return math.prod(step.apart, start=layout.multiplicities[step.field])


def _routes(space: WeightSpace, source: Layout, target: Layout, bias: bool) -> tuple[_Route, ...]:
    """All routes from one layout to another, with the least aligned axes first: small terms are added up before they
    meet the full-size one."""
    plan = []
    for route in sorted(routes(source.types, target.types, space.nodes), key=lambda r: len(r.contracted)):
        if route.sources or bias:
            contractions = (contraction_step(i, source.types[i], c, space.nodes) for i, c in route.sources)
            expansions = (expansion_step(i, target.types[i], c, space.nodes) for i, c in route.targets)
            ends = [space.nodes[axis.node] for axis in route.contracted]
            apart = {k: node.size or 0 for k, node in enumerate(ends) if not node.permutes}
            key = "_".join([field_key(route.contracted), *(f"one{k}" for k in sorted(route.chosen))])
            plan.append(_Route(key, len(ends), tuple(contractions), tuple(expansions), apart))
    reached = {end.field for route in plan for end in route.targets}
    for i, field_type in enumerate(target.types):
        if i not in reached:
            raise InvalidValueError(
                f"no equivariant map leads to field [{field_name(field_type)}] from [{source}]: a charge cannot be "
                "made from fields without it. Choose other out_types, or add a field of that charge to the input"
            )
    require_sizes(space, source.types, target.types)
    return tuple(plan)


def _mix(route: _Route, source: Layout, target: Layout, in_channels: int, out_channels: int, io: str) -> nn.Module:
    m_in = [_parts(source, s) for s in route.sources]
    m_out = [_parts(target, t) for t in route.targets]
    if route.apart:
        return _EntryMix(route.rank, route.apart, sum(m_in) * in_channels, sum(m_out) * out_channels)
    if io == "factored":
        # The same field seen on both sides as a whole keeps a map of its own at every fixed position.
        starts, ends = (itertools.accumulate(m[:-1], initial=0) for m in (m_in, m_out))
        at_end = zip(route.targets, ends, m_out, strict=True)
        whole = {target.types[t.field]: (end, m) for t, end, m in at_end if t.identity}
        kept = []
        for s, start, m in zip(route.sources, starts, m_in, strict=True):
            end, length = whole.get(source.types[s.field], (0, 0))
            if s.identity and length == m:
                kept.append((start, end, m))
        factored = _PositionMix(sum(m_in), sum(m_out), in_channels, out_channels, kept)
        if sum(p.numel() for p in factored.parameters()) < sum(m_in) * sum(m_out) * in_channels * out_channels:
            return factored
    return Product(sum(m_in) * in_channels, sum(m_out) * out_channels)


class _EntryMix(nn.Module):
    """A matrix for each entry of the FIXED axes of a contracted type: axis -> size."""

    def __init__(self, rank: int, sizes: Mapping[int, int], in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*sizes.values(), out_features, in_features))
        axes = "".join(chr(ord("a") + k) for k in range(rank))
        self._product = f"Z{axes}X,{''.join(axes[k] for k in sizes)}YX->Z{axes}Y"

    def reset_rows(self, rows: slice, fan_in: int, init_type: InitType) -> None:
        """Initialise some outputs, which are sums of so many inputs."""
        draw(self.weight[..., rows, :], 1 / fan_in, init_type)

    def forward(self, x: Tensor) -> Tensor:
        """Rows ``(B, *axes, in_features)`` -> ``(B, *axes, out_features)``."""
        return torch.einsum(self._product, x, self.weight)


class _PositionMix(nn.Module):
    """``up @ down_0 @ x``, and maps of their own for the fixed positions that are kept, see ``io="factored"``."""

    def __init__(
        self, m_in: int, m_out: int, in_channels: int, out_channels: int, kept: list[tuple[int, int, int]]
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.kept = in_channels, out_channels, tuple(kept)
        rank = max(in_channels, out_channels)
        self.down_0 = nn.Parameter(torch.empty(rank, m_in * in_channels))
        self.up = nn.Parameter(torch.empty(m_out * out_channels, rank))
        self.position = nn.ParameterList(torch.empty(m, in_channels, out_channels) for _, _, m in kept)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the inner map."""
        draw(self.down_0, 1 / self.down_0.shape[1])

    def reset_rows(self, rows: slice, fan_in: int, init_type: InitType) -> None:
        """Initialise some outputs so that they get the share in_features / fan_in of their field's variance."""
        share = self.down_0.shape[1] / fan_in
        at_rows = [p for p, k in zip(self.position, self.kept, strict=True) if k[1] * self.out_channels == rows.start]
        share /= 1 + len(at_rows)
        draw(self.up[rows], share / self.up.shape[1], init_type)
        for p in at_rows:
            draw(p, share / self.in_channels, init_type)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.linear(nn.functional.linear(x, self.down_0), self.up)
        for weight, (at_in, at_out, m) in zip(self.position, self.kept, strict=True):
            part = x.narrow(-1, at_in * self.in_channels, m * self.in_channels)
            part = part.reshape(*x.shape[:-1], m, self.in_channels)
            part = torch.einsum("...mc,mcd->...md", part, weight).flatten(-2)
            before, after = at_out * self.out_channels, y.shape[-1] - (at_out + m) * self.out_channels
            y = y + (part if not before and not after else nn.functional.pad(part, (before, after)))
        return y
