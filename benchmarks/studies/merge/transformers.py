"""Ways to bring two transformers into one frame before they are merged.

All but *naive* and *weight matching*, which permutes alone, start from normal forms (`nfn_monomial.fibre`), written as
networks of the architecture: gains are 1 and shifts 0, nothing has a mean that a norm subtracts, queries and keys, and
values and outputs, are balanced. What is left to be found is an orthogonal matrix for the stream, one for queries and
keys and one for values and outputs of every head, and the order of heads and of the MLP's neurons.

- *generalized LMC*: weight matching of Theus et al. 2025, *Generalized Linear Mode Connectivity for Transformers*,
  after the code they published. Every head is written as its two products, of queries and keys and of values and
  outputs, which no matrix inside a head changes; it is as wide as the stream then, and these products are averaged. In
  turns, the stream is rotated so that all that writes and reads it agrees (Procrustes), at first embedding, positions
  and the last layer alone; heads are assigned by distances of their products, neurons by those of their weights.
- *generalized LMC by activations*: the same products, but the stream is rotated, and neurons are ordered, so that what
  layers read agrees.
- *normal forms* in four variants. Heads keep their factors, so that the merged network is one of the architecture, and
  the orthogonal matrices between these are found as well. By: ``fibre``, what `align_fibres` does; ``weights``, which
  alternates as above, where each tensor counts as much as another; ``activations``, as above; ``activations of the
  stream``, which orders neurons by weights.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nfn_monomial import Axis, WeightSpace
from nfn_monomial.fibre import NormalForm, align_fibres, normal_form

from .methods import BASELINES, Family, Method, Pair, correlations, fitting, permuting, seen_in
from .networks import Network

__all__ = ["TRANSFORMERS", "products_of"]

_ROUNDS = 15  # as published


class _Block(NamedTuple):
    """Weights of a block: of heads ``(heads, d, .)``, outputs transposed, and of neurons ``(n, .)``, with biases."""

    query: Tensor
    key: Tensor
    value: Tensor
    out: Tensor
    neurons: Tensor

    @property
    def products(self) -> tuple[Tensor, Tensor]:
        """What of queries and keys, and of values and outputs, heads are: ``(heads, ., .)``."""
        return self.key.mT @ self.query, self.out.mT @ self.value


def _blocks(space: WeightSpace) -> range:
    return range(sum(name.startswith("m") for name in space.nodes))


def _block(space: WeightSpace, network: Network, number: int) -> _Block:
    def part(name: str) -> Tensor:
        return network[f"blocks.{number}.{name}"]

    def heads(x: Tensor) -> Tensor:
        return x.view(space.nodes[f"a{number}"].size or 1, -1, x.shape[1])

    query = torch.cat([part("query.weight"), part("query.bias").unsqueeze(1)], 1)
    neurons = torch.cat([part("up.weight"), part("up.bias").unsqueeze(1), part("down.weight").mT], 1)
    key, value, out = part("key.weight"), part("value.weight"), part("out.weight").mT.contiguous()
    return _Block(heads(query), heads(key), heads(value), heads(out), neurons)


def _with_heads(network: Network, number: int, query: Tensor, key: Tensor, value: Tensor, out: Tensor) -> Network:
    """A network with other heads in a block; none of these adds anything to values."""
    found = {
        "query.weight": query[..., :-1].flatten(0, 1),
        "query.bias": query[..., -1].flatten(),
        "key.weight": key.flatten(0, 1),
        "value.weight": value.flatten(0, 1),
        "value.bias": value.new_zeros(value.shape[:2]).flatten(),
        "out.weight": out.flatten(0, 1).mT,
    }
    return network | {f"blocks.{number}.{name}": x for name, x in found.items()}


def products_of(space: WeightSpace, network: Network) -> Network:
    """A network in normal form with heads as wide as the stream, whose keys and values are what they read."""
    for number in _blocks(space):
        own = _block(space, network, number)
        query, out = own.products
        unit = torch.eye(own.key.shape[2]).to(query).expand(len(query), -1, -1)
        scale = math.sqrt(own.key.shape[2] / own.key.shape[1])  # scores are divided by the root of the width
        network = _with_heads(network, number, scale * query, unit, unit, out.mT)
    return network


@functools.lru_cache(maxsize=1)
def _form(module: nn.Module, size: int) -> NormalForm:
    return normal_form(module, next(module.parameters()).new_zeros(2, 1, size, size))


def _normal(pair: Pair) -> tuple[Network, Network]:
    """Both normal forms as networks of the architecture, in float64."""
    form = _form(pair.module, pair.inputs.shape[-1])
    a, b = (form.write(form({n: x.double() for n, x in t.items()})) for t in (pair.a, pair.b))
    return a, b


def _nearest(product: Tensor) -> Tensor:
    """The orthogonal matrix that brings one stack of rows nearest to another, from ``a b^T``."""
    u, _, vh = torch.linalg.svd(product)
    nearest: Tensor = u @ vh
    return nearest


def _rotation(product: Tensor) -> Tensor:
    """Likewise, but of those that leave ``(1, ..., 1)`` where it is."""
    n = len(product)
    means = torch.full((n, n), 1 / n).to(product)
    rest = torch.eye(n).to(product) - means
    return _nearest(rest @ product @ rest + product.norm() * means)


def _rotated(space: WeightSpace, network: Network, rotation: Tensor) -> Network:
    """A network whose stream is rotated."""
    found = {}
    for name, x in network.items():
        for at, axis in enumerate(space.parameters[name]):
            if isinstance(axis, Axis) and axis.node == "t":
                x = torch.tensordot(x, rotation, ([at], [1])).movedim(-1, at)
        found[name] = x
    return found


def _stream(space: WeightSpace, network: Network, size: Callable[[str, Tensor], float], *, blocks: bool) -> Tensor:
    """All weights that write or read the stream ``(t, .)``, each divided by its size; with those of blocks or not."""
    found = []
    for name, dims in space.parameters.items():
        at = [i for i, axis in enumerate(dims) if isinstance(axis, Axis) and axis.node == "t"]
        if at and network[name].ndim > 1 and (blocks or not name.startswith("blocks")):
            rows = network[name].movedim(at[0], 0).flatten(1)
            found.append(rows / size(name, rows))
    return torch.cat(found, 1)


def _root_of_columns(name: str, rows: Tensor) -> float:
    """As published: queries, keys and values are one tensor there."""
    together = 3 if name.endswith(("query.weight", "key.weight", "value.weight")) else 1
    return math.sqrt(together * rows.shape[1])


def _norm(name: str, rows: Tensor) -> float:
    return float(rows.norm())


def _ordered(space: WeightSpace, a: Network, b: Network, *, neurons: bool = True) -> Network:
    """b with heads, and neurons, in the order of those of a that they are nearest to."""
    orders = {}
    for number in _blocks(space):
        one, other = _block(space, a, number), _block(space, b, number)
        products = zip(one.products, other.products, strict=True)
        apart = [torch.cdist(x.flatten(1), y.flatten(1)) for x, y in products]
        orders[f"a{number}"] = fitting(-torch.stack(apart).sum(0))
        if neurons:
            mine, theirs = (nn.functional.normalize(x.neurons, dim=1) for x in (one, other))
            orders[f"m{number}"] = fitting(-torch.cdist(mine, theirs, p=1))
    return permuting(space, orders).act(b)


def _inside(space: WeightSpace, a: Network, b: Network) -> Network:
    """b with factors of heads nearest to those of a."""
    for number in _blocks(space):
        one, other = _block(space, a, number), _block(space, b, number)
        seen = _nearest(one.query @ other.query.mT + one.key @ other.key.mT)
        handed = _nearest(one.value @ other.value.mT + one.out @ other.out.mT)
        moved = (seen @ other.query, seen @ other.key, handed @ other.value, handed @ other.out)
        b = _with_heads(b, number, *moved)
    return b


def _published(pair: Pair) -> tuple[Network, Network]:
    a, b = (products_of(pair.space, x) for x in _normal(pair))
    for number in range(_ROUNDS):
        one, other = (_stream(pair.space, x, _root_of_columns, blocks=number > 0) for x in (a, b))
        b = _rotated(pair.space, b, _rotation(one @ other.mT))
        b = products_of(pair.space, _ordered(pair.space, a, b))
    return a, b


def _by_fibre(pair: Pair) -> tuple[Network, Network]:
    return align_fibres(_form(pair.module, pair.inputs.shape[-1]), pair.a, pair.b)


def _by_weights(pair: Pair) -> tuple[Network, Network]:
    a, b = _normal(pair)
    for number in range(_ROUNDS):
        one, other = (_stream(pair.space, x, _norm, blocks=number > 0) for x in (a, b))
        b = _rotated(pair.space, b, _rotation(one @ other.mT))
        b = _inside(pair.space, a, _ordered(pair.space, a, b))
    return a, b


def _by_activations(pair: Pair, *, neurons: bool) -> tuple[Network, Network]:
    a, b = _normal(pair)
    one, other = (seen_in(pair.space, pair.module, x, pair.inputs.double()).read for x in (a, b))
    b = _rotated(pair.space, b, _rotation(torch.cat([*one["t"]], 1) @ torch.cat([*other["t"]], 1).mT))
    if neurons:
        names = [f"m{number}" for number in _blocks(pair.space)]
        b = permuting(pair.space, {n: fitting(correlations(one[n][0], other[n][0])) for n in names}).act(b)
    return a, _inside(pair.space, a, _ordered(pair.space, a, b, neurons=not neurons))


def _published_by_activations(pair: Pair) -> tuple[Network, Network]:
    a, b = (products_of(pair.space, x) for x in _by_activations(pair, neurons=True))
    return a, b


def _as_given(method: Method) -> Method:
    """A method whose networks have the dtypes of those that it is given."""

    def given(pair: Pair) -> tuple[Network, Network]:
        a, b = ({n: x.to(pair.a[n]) for n, x in network.items()} for network in method(pair))
        return a, b

    return given


TRANSFORMERS = Family(
    {name: BASELINES[name] for name in ("naive", "weight matching")}
    | {
        "generalized LMC": _as_given(_published),
        "generalized LMC by activations": _as_given(_published_by_activations),
    },
    {
        "fibre": _by_fibre,
        "weights": _as_given(_by_weights),
        "activations": _as_given(functools.partial(_by_activations, neurons=True)),
        "activations of the stream": _as_given(functools.partial(_by_activations, neurons=False)),
    },
    ours="normal forms",
    rival="generalized LMC",
    chosen="aligned by",
)
