"""The equivariant bilinear layer: one einsum for each balanced partition of two inputs and an output."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from nfn_monomial.basis import BilinearTerm, bilinear_terms
from nfn_monomial.basis.bilinear import standard_terms
from nfn_monomial.basis.partitions import Contraction
from nfn_monomial.checks import Count, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.axes import field_name
from nfn_monomial.space.features import Features, Layout, Types
from nfn_monomial.space.folding import LayoutFolding
from nfn_monomial.space.weight_space import WeightSpace

from .steps import Layer, Step, draw, expand, expansion_step, require_sizes

Terms: TypeAlias = Literal["standard", "all"] | Callable[[BilinearTerm], bool]


class TensorProduct(Layer):
    r"""Equivariant bilinear maps of weight-space features: ``T(g x, g y) = g T(x, y)`` for all g of the space's group.

    A sum over terms, each a balanced partition of the axes of a field of x, a field of y and an output field (see
    `nfn_monomial.basis` for the theorem) with a bilinear map of channels. For the term ``"ab,b->a"``,

        T(x, y)_ao = mean over b, sum over i and j of W_oij x_abi y_bj

    where i, j and o run over channels x multiplicity. This is what a linear layer cannot do: messages forward (a
    weight's column, charge -1, contracted with neurons' features of charge +1) and backward (its row, with features of
    charge -1), outer products of neurons into edges, and the invariants ``h_j g_j`` of charge 0.

    Shapes: x ``(B, *node sizes, m_1 x C_in)``, y ``(B, *node sizes, m_2 x C_second)`` ->
    ``(B, *node sizes, m_out x C_out)`` for each field, any number of neurons.

    Args:
        space: the weight space.
        in_channels: channels of the first input.
        out_channels: channels of the output.
        second_channels: channels of the second input, if they are not those of the first.
        first_types: field types (with multiplicities) of the first input, if it is not the space's own parameters; or
            its layout. FIXED axes of a layout that keeps them (``neuron_layout(space)``) are multiplicity for terms.
            Where other nodes are nested in them, entries have their terms in common: there could be more.
        second_types: likewise of the second.
        out_types: likewise of the output.
        terms: ``"standard"`` (`BilinearTerm.standard`: contractions, alignments and outer products, without diagonals
            inside one field, averages of one input alone and broadcasts), ``"all"``, or a predicate on `BilinearTerm`,
            whose text is ``str(term)``. For squares ``lambda t: t.standard and t.first <= t.second`` leaves
            out the terms that the swapped pair of fields has anyway.
        mix: ``"full"`` gives each term a weight ``(m_out C_out, m_1 C_in, m_2 C_second)``: with all terms, every
            equivariant bilinear map there is (but see ``first_types``), and a cost that is cubic in channels and
            multiplicities. ``"factored"`` multiplies as many linear combinations of each input as the largest of the
            channel numbers, entry by entry, and maps the products to the output: linear in channels and multiplicities,
            equally equivariant, not complete. Prefer it wherever fields have many fixed entries (kernels, wide FIXED
            inputs): from 16 to 16 channels, the standard terms of ``WeightSpace.cnn([1, 4, 4], 3, "relu", head=[3])``
            have 5.6 million parameters in full and 46 thousand factored. Every term has maps of its own: where many
            tensors lie in one field, as those of all blocks do on a residual stream, that is quadratic in depth (16
            blocks of an MLP, 4 channels: 0.2 million; 64: 2.7).

    Raises:
        ValueError: if a channel number is below 1, an option is unknown, or no term leads to an output field.

    >>> from nfn_monomial import Axis
    >>> weight, neurons, messages = (Axis("h2", 1), Axis("h1", -1)), (Axis("h1", 1),), (Axis("h2", 1),)
    >>> space = WeightSpace.mlp([2, 8, 8, 1], "relu")
    >>> layer = TensorProduct(space, 1, 4, first_types=[weight], second_types=[neurons], out_types=[messages])
    >>> list(layer.state_dict())
    ['mix.h2+1_h1-1,h1+1->h2+1:ab,b->a.weight']
    """

    @checked
    def __init__(
        self,
        space: WeightSpace,
        in_channels: Count,
        out_channels: Count,
        *,
        second_channels: Count | None = None,
        first_types: Types = None,
        second_types: Types = None,
        out_types: Types = None,
        terms: Terms = "standard",
        mix: Literal["full", "factored"] = "full",
    ) -> None:
        super().__init__()
        second_channels = in_channels if second_channels is None else second_channels
        self.space, self.kind = space, mix
        self.in_channels, self.second_channels, self.out_channels = in_channels, second_channels, out_channels
        self.in_layout, self.second_layout, self.out_layout = map(
            space.layout_of, (first_types, second_types, out_types)
        )
        self._foldings = [LayoutFolding(space, t) for t in (self.in_layout, self.second_layout, self.out_layout)]
        first, second, out = (folding.inner for folding in self._foldings)
        self.terms = _choose(terms, space, first, second, out)
        self._plan = [_product(t, first, second, out) for t in self.terms]
        require_sizes(space, (*first.types, *second.types), out.types)

        rank = max(in_channels, second_channels, out_channels)
        self.mix = nn.ModuleDict()
        for term, product in zip(self.terms, self._plan, strict=True):
            widths = (
                first.multiplicities[product.first] * in_channels,
                second.multiplicities[product.second] * second_channels,
                out.multiplicities[product.expansion.field] * out_channels,
            )
            if mix == "full":
                # Typical sizes, to choose an order of multiplication by.
                axes = zip("".join(term.letters), term.first + term.second + term.target, strict=True)
                sizes = {letter: space.nodes[axis.node].size or 32 for letter, axis in axes}
                self.mix[str(term)] = _FullMix(product, widths, sizes)
            else:
                self.mix[str(term)] = _ProductMix(product, widths, rank)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform weights; the terms of an output field share its variance, that of a product of unit-variance inputs.

        As in `EquivariantLinear`, averages count as entries: where a term averages, it starts smaller.
        """
        count = collections.Counter(product.expansion.field for product in self._plan)
        for product, mix in zip(self._plan, self.mix.values(), strict=True):
            assert isinstance(mix, _FullMix | _ProductMix), "made above"
            mix.reset(1 / count[product.expansion.field])

    def forward(self, x: Features, y: Features | None = None) -> Features:
        """The bilinear map of x and y; without y, of x with itself.

        Args:
            x: features of ``in_layout`` with ``in_channels``.
            y: features of ``second_layout`` with ``second_channels``, of the same networks.

        Raises:
            ValueError: if layouts, channels, numbers of networks or of neurons do not fit.
        """
        y = x if y is None else y
        like = next(self.parameters(), None)
        self.in_layout.require(x, self.in_channels, "TensorProduct, first input", like)
        self.second_layout.require(y, self.second_channels, "TensorProduct, second input", like)
        first, second, target = self._foldings
        x, y = first.fold(x), second.fold(y)
        sizes = self._node_sizes(x, y)
        sums: dict[int, Tensor] = {}
        for product, mix in zip(self._plan, self.mix.values(), strict=True):
            count = math.prod([sizes[node] for node in product.averaged])
            piece = mix(x.tensors[product.first], y.tensors[product.second], count)
            piece, field = expand(piece, product.expansion, sizes), product.expansion.field
            sums[field] = sums[field] + piece if field in sums else piece
        # Along an axis on which no term lies, there is one number so far.
        whole = [sums[i].expand(-1, *(sizes[a.node] for a in t), -1) for i, t in enumerate(target.inner.types)]
        return target.unfold(Features(target.inner, tuple(whole)))

    def _node_sizes(self, x: Features, y: Features) -> dict[str, int]:
        # Not their lengths: Python wants a number of these, which torch.export would keep for all batches.
        if x.tensors[0].shape[0] != y.tensors[0].shape[0]:
            raise InvalidValueError(f"TensorProduct: {len(x)} networks in the first input, {len(y)} in the second")
        seen: dict[str, int] = {}
        for features in (x, y):
            for field_type, tensor in zip(features.layout.types, features.tensors, strict=True):
                for axis, size in zip(field_type, tensor.shape[1:-1], strict=True):
                    if seen.setdefault(axis.node, size) != size:
                        raise InvalidValueError(
                            f"TensorProduct: node {axis.node!r} has {size} neurons in field [{field_name(field_type)}] "
                            f"of shape {tuple(tensor.shape)}, {seen[axis.node]} in a field before it; both inputs must "
                            "be features of the same networks"
                        )
        return {name: node.size for name, node in self.space.nodes.items() if node.size is not None} | seen

    def extra_repr(self) -> str:
        channels = f"{self.in_channels} x {self.second_channels}, {self.out_channels}"
        return f"{self.space}, {channels}, {len(self.terms)} terms, mix={self.kind!r}"


class _Product(NamedTuple):
    """One term, prepared for tensors ``(B, *axes, F)``."""

    first: int  # field of the first input
    second: int
    letters: tuple[str, str, str]  # of the inputs' axes, and of those of the output that the inputs have
    averaged: tuple[str, ...]  # nodes of the blocks to average over
    expansion: Step  # from those axes to the output field's


def _choose(terms: Terms, space: WeightSpace, first: Layout, second: Layout, out: Layout) -> tuple[BilinearTerm, ...]:
    if terms == "standard":
        candidates = standard_terms(first.types, second.types, out.types, space.nodes)
    else:
        fields = itertools.product(first.types, second.types, out.types)
        candidates = [term for three in fields for term in bilinear_terms(*three, space.nodes)]
    chosen = candidates if isinstance(terms, str) else [term for term in candidates if terms(term)]
    reached = {term.target for term in chosen}
    for field_type in out.types:
        if field_type not in reached:
            pairs = itertools.product(first.types, second.types)
            possible = [str(term) for pair in pairs for term in bilinear_terms(*pair, field_type, space.nodes)]
            way_out = "its charges cannot be made from theirs. Choose other out_types, or give the inputs other charges"
            if possible:
                way_out = f"choose some of its {len(possible)} terms, as {possible[0]}"
            raise InvalidValueError(
                f"no term leads to field [{field_name(field_type)}] from [{first}] x [{second}]: {way_out}"
            )
    return tuple(chosen)


def _product(term: BilinearTerm, first: Layout, second: Layout, out: Layout) -> _Product:
    one, two, target = term.letters
    nodes = dict(zip(one + two, (axis.node for axis in term.first + term.second), strict=True))
    blocks = {letter: tuple(i for i, t in enumerate(target) if t == letter) for letter in target}
    opened = {letter: block for letter, block in blocks.items() if letter in nodes}
    closed = tuple(block for letter, block in blocks.items() if letter not in nodes)
    field = out.types.index(term.target)
    expansion = expansion_step(field, term.target, Contraction(tuple(opened.values()), closed), {})
    averaged = tuple(node for letter, node in nodes.items() if letter not in target)
    indices = first.types.index(term.first), second.types.index(term.second)
    return _Product(*indices, (one, two, "".join(opened)), averaged, expansion)


class _FullMix(nn.Module):
    """Any bilinear map of channels x multiplicity; an average divides the result by ``count``."""

    def __init__(self, product: _Product, widths: tuple[int, int, int], sizes: Mapping[str, int]) -> None:
        super().__init__()
        i, j, o = widths
        self.weight = nn.Parameter(torch.empty(o, i, j))
        first, second, kept = product.letters
        operands = (f"Y{first}I", f"Y{second}J", "OIJ")
        self._order = _cheapest_order(operands, f"Y{kept}O", {"Y": 1, "I": i, "J": j, "O": o, **sizes})
        self._equation = ",".join(operands[k] for k in self._order) + f"->Y{kept}O"

    def reset(self, variance: float) -> None:
        draw(self.weight, variance / self.weight[0].numel())

    def forward(self, x: Tensor, y: Tensor, count: int) -> Tensor:
        operands = (x, y, self.weight / count)
        return torch.einsum(self._equation, *(operands[k] for k in self._order))


def _cheapest_order(operands: Sequence[str], result: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The order of three operands with the fewest multiply-adds: ``torch.einsum`` takes them from left to right.

    Contractions multiply x by y first; outer products, one of them by the weight. The wrong order is 20 to 70 times
    slower already at 32 neurons and 16 channels.
    """

    def cost(order: tuple[int, ...]) -> int:
        first, second, third = (set(operands[k]) for k in order)
        product = (first | second) & (third | set(result))
        steps = (first | second, product), (product | third, set(result))
        return sum(math.prod([sizes[t] for t in letters]) * (1 if letters == kept else 2) for letters, kept in steps)

    return min([(0, 1, 2), (0, 2, 1), (1, 2, 0)], key=cost)


class _ProductMix(nn.Module):
    """``up @ ((down_0 @ x) * (down_1 @ y))``: a bilinear map of channels x multiplicity of bounded rank."""

    def __init__(self, product: _Product, widths: tuple[int, int, int], rank: int) -> None:
        super().__init__()
        self.down_0, self.down_1 = (nn.Parameter(torch.empty(rank, width)) for width in widths[:2])
        self.up = nn.Parameter(torch.empty(widths[2], rank))
        one, two, kept = product.letters
        # Axes of one input alone are averaged over before the product.
        a, b = (
            "".join(t for t in dict.fromkeys(mine) if t in other + kept) for mine, other in ((one, two), (two, one))
        )
        self._equations = f"Y{one}I,RI->Y{a}R", f"Y{two}J,RJ->Y{b}R", f"Y{a}R,Y{b}R->Y{kept}R"

    def reset(self, variance: float) -> None:
        for down in (self.down_0, self.down_1):
            draw(down, 1 / down.shape[1])
        draw(self.up, variance / self.up.shape[1])

    def forward(self, x: Tensor, y: Tensor, count: int) -> Tensor:
        first, second, multiply = self._equations
        x, y = torch.einsum(first, x, self.down_0), torch.einsum(second, y, self.down_1)
        return nn.functional.linear(torch.einsum(multiply, x, y), self.up / count)
