"""Linear equivariant layers, and the terms of the bilinear basis that lift what they cannot do, each on or off.

A linear equivariant map sends a hidden weight to a multiple of itself: nothing else has its charges. What a bilinear
map makes of two fields, the theorem (bilinear) of `nfn_monomial.basis` lists. Of the fields of a chain of layers,
weights ``e_jk``, charged streams ``h_j`` (charge +1) and ``g_j`` (charge -1; one stream where only signs act) and
invariants ``s_j`` of neurons, these are all standard terms:

==============  =========================================  =================================
kind            term                                       charges
==============  =========================================  =================================
``forward``     ``e_jk h_k``, mean over k                  +1 at j
``backward``    ``e_jk g_j``, mean over j                  -1 at k
``outer``       ``h_j g_k``                                a weight: +1 at j, -1 at k
``invariants``  ``h_j g_j``; where only signs act also     0
                ``e_jk e_jk``, mean over j or k
``gates``       any of them times ``s_j``                  its own
==============  =========================================  =================================
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from nfn_monomial import EquivariantLinear, Features, TensorProduct, WeightSpace
from nfn_monomial.basis import BilinearTerm, bilinear_terms, count_terms
from nfn_monomial.benchmarks.experiments.ablation import KINDS, TERMS
from nfn_monomial.nn.canonicalize import degree_zero
from nfn_monomial.nn.pool import pool_field
from nfn_monomial.space.axes import Axis, FieldType, powers
from nfn_monomial.space.features import Layout
from nfn_monomial.tools.predictors.models import Model, NetworkInfo, logits, register

__all__ = ["TermLayer", "TermStack", "kind_of", "stream_types", "terms_of"]

DEPTH = 3  # of layers behind the first one, which is linear: messages pass all of the zoo's layers, and then multiply
WIDE = 8  # channels, half of those of the paper's layers
HEAD, DROPOUT = 256, 0.3  # as behind message passing


def stream_types(space: WeightSpace) -> Layout:
    """The types of a space's parameters, and of each hidden node streams of charges +1, -1 and 0."""
    hidden = [name for name, node in space.nodes.items() if node.permutes]
    streams = [(Axis(name, charge),) for name in hidden for charge in (1, -1, 0)]
    return space.layout_of(list(dict.fromkeys([*space.layout.types, *streams])))


def kind_of(term: BilinearTerm) -> str:
    """Which of `KINDS` a standard term is of, see above."""
    first, second, target = (any(any(powers(axis.charge)) for axis in axes) for axes in term[:3])
    if not (first and second):
        return "gates"
    if not target:
        return "invariants"
    if len(term.target) > 1:
        return "outer"
    weight = max(term.first, term.second, key=len)
    return "forward" if term.target[0].node == weight[0].node else "backward"


def terms_of(space: WeightSpace, types: Collection[FieldType], kinds: Collection[str]) -> list[BilinearTerm]:
    """The standard terms of these kinds from fields of these types to those of `stream_types`; of two that differ in
    the order of the factors, one. Without those of the field that has no axis, whose part linear maps from and to
    invariants of neurons have."""
    pairs = [(one, two) for one, two in itertools.product(filter(None, types), repeat=2) if one <= two]
    every = list(filter(None, stream_types(space).types))
    found = [t for pair in pairs for to in every for t in bilinear_terms(*pair, to, space.nodes)]
    return [term for term in found if term.standard and kind_of(term) in kinds]


class TermLayer(nn.Module):
    """All linear terms, and the bilinear ones of some kinds, each part divided by its size when training began.

    The output has the fields that terms lead to. Sizes are constants, one for each field of each part: the median over
    256 training networks, so that products do not start many times smaller than what they are added to.

    Args:
        space: the networks' weight space.
        layout: of the input.
        channels: of input and output.
        kinds: of `KINDS`.
    """

    linear_sizes: Tensor
    product_sizes: Tensor

    def __init__(self, space: WeightSpace, layout: Layout, channels: tuple[int, int], kinds: Collection[str]) -> None:
        super().__init__()
        every, inputs = stream_types(space), dict.fromkeys(layout.types, 1)
        terms = terms_of(space, layout.types, kinds)
        linear = {t for t in every.types if count_terms(inputs, {t: 1}, space.nodes)[0]}
        bilinear = {term.target for term in terms}
        number = dict(zip(every.types, every.multiplicities, strict=True))

        def of(types: Collection[FieldType]) -> Layout:
            return space.layout_of({t: n for t, n in number.items() if t in types})

        self.out_layout = of(linear | bilinear)
        self.linear = EquivariantLinear(space, *channels, in_types=layout, out_types=of(linear))
        self.product: TensorProduct | None = None
        if terms:
            self.product = TensorProduct(
                space, *channels, first_types=layout, second_types=layout, out_types=of(bilinear),
                terms=set(terms).__contains__, mix="factored",
            )  # fmt: skip
        self.register_buffer("linear_sizes", torch.ones(len(linear)))
        self.register_buffer("product_sizes", torch.ones(len(bilinear)))

    def forward(self, x: Features, fit: bool = False) -> Features:
        """Features of the layout -> those of ``out_layout``; ``fit``: with sizes taken from them."""
        fields: dict[FieldType, Tensor] = {}
        for part, sizes in ((self.linear, self.linear_sizes), (self.product, self.product_sizes)):
            if part is None:
                continue
            y = part(x)
            if fit:
                sizes.copy_(torch.stack([_size(t) for t in y.tensors]))
            for axes, tensor, size in zip(y.layout.types, y.tensors, sizes, strict=True):
                fields[axes] = fields[axes] + tensor / size if axes in fields else tensor / size
        return self.out_layout.features(fields)


def _size(x: Tensor) -> Tensor:
    """The median over networks of the root mean square; 1 in place of 0."""
    size = x.flatten(1).square().mean(1).sqrt().median()
    return torch.where(size > 0, size, 1)


class TermStack(Model):
    """A linear layer, layers of linear and bilinear terms, with activations; charges killed, average, MLP.

    ReLU is applied to fields that scale, tanh to others. With no kind of bilinear terms this is the paper's network,
    but for the streams, the widths and the MLP.

    Attributes:
        kinds: of the bilinear terms that are there.
    """

    invariant_under, task = "group", "ablation"
    kinds: ClassVar[tuple[str, ...]] = KINDS

    def __init__(self, networks: NetworkInfo, out_features: int = 1) -> None:
        super().__init__()
        self.space = networks.space
        layers = [TermLayer(self.space, self.space.layout, (1, WIDE), ())]
        for _ in range(DEPTH):
            layers.append(TermLayer(self.space, layers[-1].out_layout, (WIDE, WIDE), self.kinds))
        self.body = nn.ModuleList(layers)
        width = WIDE * sum(layers[-1].out_layout.multiplicities)
        self.head = nn.Sequential(
            nn.Dropout(DROPOUT), nn.Linear(width, HEAD), nn.SiLU(),
            nn.Dropout(DROPOUT), nn.Linear(HEAD, HEAD), nn.SiLU(), nn.Linear(HEAD, out_features),
        )  # fmt: skip

    def prepare(self, tensors: Mapping[str, Tensor]) -> Features:
        return self.space.pack(tensors)

    @torch.no_grad()
    def fit_inputs(self, prepared: Features) -> None:
        self.fields(prepared[:256], fit=True)

    def fields(self, x: Features, fit: bool = False) -> Features:
        """What the layers make of the networks, before charges are killed."""
        for layer in self.body:
            x = layer(x, fit)
            pairs = zip(x.tensors, x.layout.felt, strict=True)
            x = Features(x.layout, tuple(torch.relu(t) if felt.scales else torch.tanh(t) for t, felt in pairs))
        return x

    def forward(self, batch: Features) -> Tensor:
        x = self.fields(batch)
        killed = [degree_zero(t, felt) for t, felt in zip(x.tensors, x.layout.felt, strict=True)]
        pooled = [pool_field(t, range(1, t.ndim - 1), "mean") for t in killed]
        return logits(self.head(torch.cat(pooled, -1)))


for _name, (_label, _kinds) in TERMS.items():
    _values = {"__doc__": TermStack.__doc__, "__module__": __name__, "label": _label, "kinds": _kinds}
    register(_name)(type(_name, (TermStack,), _values))
