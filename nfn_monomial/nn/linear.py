"""The equivariant affine layer: contract, one matrix per contracted type, expand."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
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

from .rows import Field, Map, Product, Rows, RowWise, product, whole
from .steps import FactoredMix, Step, contract, contraction_step, expand, expansion_step


class EquivariantLinear(RowWise):
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
            equivariant, not complete. It is linear in depth, too: what many tensors meet in, such as a residual
            stream, mixes all their pairs in full, and 16 residual blocks of two 3x3 convolutions whose hidden
            neurons are only permuted have 79 million parameters from 16 to 16 channels, or 47 thousand a block
            factored. A layer for a network of 1,000 blocks is planned in seconds.
        bias: whether to add the equivariant constants (balanced partitions of the output alone).
        in_types: field types (with multiplicities) of the input, if it is not the space's own parameters; or its
            layout, such as that of ``neuron_layout(space)``, whose FIXED axes stay in their places.
        out_types: likewise of the output.

    Raises:
        ValueError: if a channel number is below 1, ``io`` is unknown, or an output field cannot be reached by any
            equivariant map from the input (a charged field from uncharged ones).

    >>> space = WeightSpace.mlp([2, 3, 2], "tanh")
    >>> layer = EquivariantLinear(space, 1, 1)
    >>> sum(p.numel() for p in layer.parameters())  # DESIGN: 29 linear + 2 affine
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
    ) -> None:
        super().__init__()
        self.space, self.io = space, io
        self.in_channels, self.out_channels = in_channels, out_channels
        self.in_layout, self.out_layout = space.layout_of(in_types), space.layout_of(out_types)
        self._source, self._target = (space.once(LayoutFolding, t) for t in (self.in_layout, self.out_layout))
        self._plan = space.once(_plan, self._source.inner, self._target.inner, bias)

        self.mix = nn.ModuleDict()
        constants = 0
        for route in self._plan.routes:
            if route.sources:
                self.mix[route.key] = _mix(route, self._source.inner, self._target.inner, in_channels, out_channels, io)
            if bias and not route.rank:
                constants = sum(self._widths(route))
        self.bias = nn.Parameter(torch.empty(constants)) if constants else None
        self._split = tuple(self._widths(route) for route in self._plan.routes)
        self.reset_parameters()

    def _widths(self, route: _Route) -> list[int]:
        return [self._target.inner.multiplicities[target.field] * self.out_channels for target in route.targets]

    def reset_parameters(self) -> None:
        """Uniform weights of variance 1 / (total fan-in of the output field), biases as in ``nn.Linear``.

        All blocks that add into one output field share its fan-in, so its variance at initialisation is that of
        its inputs.
        """
        fan_in = [0] * len(self._target.inner)
        for route in self._plan.routes:
            width = sum(self._source.inner.multiplicities[s.field] for s in route.sources) * self.in_channels
            for target in route.targets:
                fan_in[target.field] += width
        with torch.no_grad():
            for route, widths in zip(self._plan.routes, self._split, strict=True):
                start = 0
                for target, width in zip(route.targets, widths, strict=True):
                    rows = slice(start, start + width)
                    start += width
                    fan = max(fan_in[target.field], 1)
                    if route.sources:
                        mix = self.mix[route.key]
                        if isinstance(mix, _PositionMix):
                            mix.reset_rows(rows, fan)
                        else:
                            nn.init.uniform_(mix.weight[rows], -math.sqrt(3 / fan), math.sqrt(3 / fan))  # type: ignore[index]
                    if self.bias is not None and not route.rank:
                        nn.init.uniform_(self.bias[rows], -1 / math.sqrt(fan), 1 / math.sqrt(fan))

    def require(self, features: Features) -> None:
        """Raise unless these are features that the layer takes, of its parameters' dtype and on their device."""
        self.in_layout.require(features, self.in_channels, "EquivariantLinear", next(self.parameters(), None))

    def on_rows(self, fields: Sequence[Field]) -> list[Field]:
        """Map features of ``in_layout`` with ``in_channels`` to ``out_layout`` with ``out_channels``."""
        source, target = self._source, self._target
        if source.folds:
            fields = source.fold(Features(source.outer, tuple(map(whole, fields)))).tensors
        out = self._mapped(fields)
        return list(target.unfold(Features(target.inner, tuple(map(whole, out)))).tensors) if target.folds else out

    def _mapped(self, fields: Sequence[Field]) -> list[Field]:
        out: list[Field | None] = [None] * len(self._target.inner)
        means: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        products: dict[str, Tensor] = {}
        inputs = [self._read(i, x, means, products) if isinstance(x, Rows) else x for i, x in enumerate(fields)]
        networks = inputs[0].shape[0]
        sizes = {node: inputs[i].shape[dim] if i >= 0 else dim for node, i, dim in self._plan.sizes}
        for route, split in zip(self._plan.routes, self._split, strict=True):
            if route.alone:
                out[route.targets[0].field] = self._alone(fields[route.sources[0].field], route.key)
                continue
            if route.sources:
                if route.key in products:
                    y = products[route.key]
                else:
                    parts = [contract(inputs[source.field], source, means) for source in route.sources]
                    y = self.mix[route.key](parts[0] if len(parts) == 1 else torch.cat(parts, -1))
                if self.bias is not None and not route.rank:
                    y = y + self.bias.to(y.dtype)
            elif self.bias is not None:
                y = self.bias.expand(networks, -1)
            for target, piece in zip(
                route.targets, (y,) if len(split) == 1 else torch.split(y, split, -1), strict=True
            ):
                piece = expand(piece, target, sizes)
                before = out[target.field]
                out[target.field] = piece if before is None else whole(before) + piece
        found = []
        for total, axes, broadcast in zip(out, self._target.inner.types, self._plan.broadcast, strict=True):
            assert total is not None, "every output field is reached: checked when the layer was built"
            found.append(whole(total).expand(networks, *(sizes[a.node] for a in axes), -1) if broadcast else total)
        return found

    def _alone(self, field: Field, key: str) -> Field:
        mix = self.mix[key]
        if isinstance(field, Tensor) or not isinstance(mix, Product):
            found: Tensor = mix(whole(field))
            return found
        if 2 * mix.out_features < field.width:  # little to keep, much to run again
            narrow = field.read(mix.weight).product
            assert narrow is not None, "it was asked for"
            return Rows(narrow)
        return field.then(Map(product, (mix.weight,), mix.out_features))

    def _read(
        self, i: int, field: Rows, means: dict[tuple[int, tuple[int, ...]], Tensor], products: dict[str, Tensor]
    ) -> Tensor:
        """Enter what routes need of a field; returns it, or where they need no more a tensor of its other sizes."""
        key, dims, more = self._plan.reads[i]
        if key is None and not dims and not more:
            return field.source
        mix = None if key is None else self.mix[key]
        weight = mix.weight if isinstance(mix, Product) else None
        found = field.read(weight, dims, more or (mix is not None and weight is None))
        means.update({(i, (dim,)): mean for dim, mean in found.means.items()})
        if key is not None and found.product is not None:
            products[key] = found.product
        return field.source if found.whole is None else found.whole

    def extra_repr(self) -> str:
        io = "" if self.io == "full" else f", io={self.io!r}"
        return f"{self.space}, {self.in_channels}, {self.out_channels}{io}, bias={self.bias is not None}"


class _Route(NamedTuple):
    key: str
    rank: int
    sources: tuple[Step, ...]
    targets: tuple[Step, ...]
    alone: bool  # it maps rows of one field to those of another, and no other route meets these two


class _Reads(NamedTuple):
    """What routes need of a field, but for one that is alone."""

    key: str | None = None  # of the route through which the field goes as it is, and no other does
    means: tuple[int, ...] = ()  # the dimensions over which it is averaged first
    more: bool = False  # whether anything else is needed


class _Plan(NamedTuple):
    routes: tuple[_Route, ...]
    sizes: tuple[tuple[str, int, int], ...]  # node -> (input field, dimension), or (-1, known size)
    broadcast: tuple[bool, ...]  # per output field: whether no term spans it fully
    reads: tuple[_Reads, ...]  # per input field


def _plan(space: WeightSpace, source: Layout, target: Layout, bias: bool) -> _Plan:
    found = []
    reached = [-1] * len(target)  # the largest number of aligned axes that any term brings to a field
    # Least aligned first: small terms are added up before they meet the full-size one.
    for route in sorted(routes(source.types, target.types, space.nodes), key=lambda r: len(r.contracted)):
        if not route.sources and not bias:
            continue
        steps = [contraction_step(i, source.types[i], c) for i, c in route.sources]
        ends = [expansion_step(i, target.types[i], c) for i, c in route.targets]
        for end in ends:
            full = not end.unsqueeze
            reached[end.field] = max(reached[end.field], len(target.types[end.field]) if full else 0)
        found.append(_Route(field_key(route.contracted), len(route.contracted), tuple(steps), tuple(ends), False))
    for field_type, rank in zip(target.types, reached, strict=True):
        if rank < 0:
            raise InvalidValueError(
                f"no equivariant map leads to field [{field_name(field_type)}] from [{source}]: a charge cannot be "
                "made from fields without it. Choose other out_types, or add a field of that charge to the input"
            )
    broadcast = tuple(rank < len(t) for rank, t in zip(reached, target.types, strict=True))
    needed = {a.node for t, b in zip(target.types, broadcast, strict=True) if b for a in t}
    needed |= {node for route in found for end in route.targets for _, _, node in end.eyes}
    seen: dict[str, tuple[int, int]] = {}
    for i, field_type in enumerate(source.types):
        for dim, axis in enumerate(field_type, start=1):
            seen.setdefault(axis.node, (i, dim))
    sizes = []
    for node in sorted(needed):
        size = space.nodes[node].size
        if node not in seen and size is None:
            raise InvalidValueError(
                f"the size of node {node!r} is neither known to {space} nor seen in the input fields"
            )
        sizes.append((node, *seen.get(node, (-1, size or 0))))
    leaving = Counter(step.field for route in found for step in route.sources)
    coming = Counter(step.field for route in found for step in route.targets)
    marked = tuple(route._replace(alone=_is_alone(route, leaving, coming)) for route in found)
    return _Plan(marked, tuple(sizes), broadcast, _reads(len(source), marked))


def _is_alone(route: _Route, leaving: Counter[int], coming: Counter[int]) -> bool:
    if not route.rank or len(route.sources) != 1 or len(route.targets) != 1:
        return False
    (source,), (target,) = route.sources, route.targets
    return source.identity and target.identity and leaving[source.field] == coming[target.field] == 1


def _reads(fields: int, routes: Sequence[_Route]) -> tuple[_Reads, ...]:
    reads = [_Reads()] * fields
    for route in routes:
        for step in () if route.alone else route.sources:
            key, means, more = reads[step.field]
            if step.identity and len(route.sources) == 1:
                key = route.key
            elif step.mean and step.diagonal is None:
                means = tuple(sorted({*means, step.mean[-1]}))
            else:
                more = True
            reads[step.field] = _Reads(key, means, more)
    return tuple(reads)


def _mix(route: _Route, source: Layout, target: Layout, in_channels: int, out_channels: int, io: str) -> nn.Module:
    m_in = [source.multiplicities[s.field] for s in route.sources]
    m_out = [target.multiplicities[t.field] for t in route.targets]
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
        if factored.count() < sum(m_in) * sum(m_out) * in_channels * out_channels:
            return factored
    return Product(sum(m_in) * in_channels, sum(m_out) * out_channels)


class _PositionMix(FactoredMix):
    """A factored map, and maps of their own for the fixed positions that are kept, see ``io="factored"``."""

    def __init__(
        self, m_in: int, m_out: int, in_channels: int, out_channels: int, kept: list[tuple[int, int, int]]
    ) -> None:
        super().__init__([m_in * in_channels], m_out * out_channels, max(in_channels, out_channels))
        self.in_channels, self.out_channels, self.kept = in_channels, out_channels, tuple(kept)
        self.position = nn.ParameterList(torch.empty(m, in_channels, out_channels) for _, _, m in kept)
        self.reset_down()

    def count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def reset_rows(self, rows: slice, fan_in: int) -> None:
        """Initialise some outputs so that they get the share in_features / fan_in of their field's variance."""
        share = self.down[0].shape[1] / fan_in
        start = rows.start // self.out_channels
        own = [p for p, (_, at, _) in zip(self.position, self.kept, strict=True) if at == start]
        share /= 1 + len(own)
        self.reset_up(rows, share)
        for p in own:
            bound = math.sqrt(3 * share / self.in_channels)
            nn.init.uniform_(p, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.linear(nn.functional.linear(x, self.down[0]), self.up)
        for weight, (at_in, at_out, m) in zip(self.position, self.kept, strict=True):
            part = x.narrow(-1, at_in * self.in_channels, m * self.in_channels)
            part = torch.einsum("...mc,mcd->...md", part.reshape(*x.shape[:-1], m, self.in_channels), weight).flatten(
                -2
            )
            before, after = at_out * self.out_channels, y.shape[-1] - (at_out + m) * self.out_channels
            y = y + (part if not before and not after else nn.functional.pad(part, (before, after)))
        return y
