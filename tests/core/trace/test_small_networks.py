"""Small networks, each with something of its own: what may be scaled and permuted, and that this keeps the function."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from derived_groups import Of, error, permutations, scalings
from deriving import derive
from torch import Tensor, nn
from versions_of_torch import since_2_13

geometric = pytest.importorskip("torch_geometric.nn")
IMAGE, SEQUENCE = torch.randn(2, 2, 7, 7), torch.randn(2, 4, 3)
VECTOR = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
# An edge from a vertex to itself among them, which some layers take out.
EDGES = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 2], [1, 2, 3, 4, 0, 2, 0, 2]])


class Case(NamedTuple):
    """A network, its inputs, the number of scalings, and what is permuted."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    scales: int
    permuted: list[str]


def between(function: Callable[[Any, Tensor], Tensor], out: int = 6, **parts: Any) -> nn.Module:
    """``b(function(s, a(x)))`` over 6 neurons."""
    return Of(lambda s, x: s.b(function(s, s.a(x))), a=nn.Linear(4, 6), b=nn.Linear(out, 3), **parts)


def shared_gain(s: Any, x: Tensor) -> Tensor:
    q, k, v = (t.view(2, 4, 2, 3).transpose(1, 2) for t in s.qkv(x).chunk(3, -1))
    out = F.scaled_dot_product_attention(s.norm(q), k, v)
    return s.out(out.transpose(1, 2).reshape(2, 4, 6))


def beside_others(s: Any, x: Tensor) -> Tensor:
    first = s.a(x)
    both = torch.cat([first + s.b(first).relu(), first], 1)
    return s.c(F.silu(s.norm(both))).mean((2, 3))


def outer(s: Any, h: Tensor) -> Tensor:
    pairs = (h[:, :, None] * h[:, None, :]).view(5, 36).view(5, 2, 3, 2, 3)
    return pairs.sum(1).flatten(1).relu()


def zeros_between(s: Any, x: Tensor) -> Tensor:
    bias = torch.cat([s.q, torch.zeros_like(s.q), s.v])
    q, k, v = F.linear(x, s.weight, bias).view(5, 3, 2, 3).unbind(1)
    return s.out(((q @ k.mT).softmax(-1) @ v).flatten(1))


def sizes_of_values(s: Any, x: Tensor) -> Tensor:
    rows = s.a(x)[x[:, 0] > 0].relu()
    zeros = torch.zeros(rows.shape[0] + 2, 6, dtype=x.dtype)
    return s.b(torch.cat([rows, zeros[:2]]) + zeros).sum(0)


def passing(add: Callable[[Tensor, Tensor, Tensor], Tensor]) -> nn.Module:
    """Message passing of one's own."""

    def layer(linear: Any, x: Tensor, edges: Tensor) -> Tensor:
        return add(torch.zeros(len(x), linear.out_features, dtype=x.dtype), edges[1], linear(x)[edges[0]])

    return Of(lambda s, x, edges: layer(s.b, layer(s.a, x, edges).relu(), edges), a=nn.Linear(4, 6), b=nn.Linear(6, 3))


def rows(index: Tensor, messages: Tensor) -> Tensor:
    return index[:, None].expand_as(messages)


def two(layer: Callable[[int, int], nn.Module]) -> nn.Module:
    """Two layers of torch_geometric."""
    return Of(lambda s, x, edges: s.b(s.a(x, edges).relu(), edges), a=layer(4, 6), b=layer(6, 3))


def on_graph(module: nn.Module, scales: int = 6, permuted: tuple[str, ...] = ("6",)) -> Case:
    return Case(module, (VECTOR, EDGES), scales, list(permuted))


CASES: dict[str, Callable[[], Case]] = {
    "a power": lambda: Case(between(lambda s, h: h**3 * 2), (VECTOR,), 6, ["6"]),
    "a gain shared by heads": lambda: Case(
        Of(shared_gain, qkv=nn.Linear(3, 18), norm=nn.LayerNorm(3), out=nn.Linear(6, 2)), (SEQUENCE,), 9, ["2[3]", "3"]
    ),
    "groups of channels": lambda: Case(
        nn.Sequential(nn.Conv2d(2, 6, 1), nn.ReLU(), nn.Conv2d(6, 8, 3, groups=2), nn.ReLU(), nn.Conv2d(8, 3, 1)),
        (IMAGE,), 14, ["2[3, 4]"],
    ),
    "groups behind their channels": lambda: Case(
        Of(
            lambda s, x: s.b(F.channel_shuffle(F.group_norm(s.a(x), 2), 2).relu()),
            a=nn.Conv2d(2, 6, 1), b=nn.Conv2d(6, 3, 1),
        ),
        (IMAGE,), 0, ["2", "3"],
    ),
    "channels beside others of their node": lambda: Case(
        Of(
            beside_others, a=nn.Conv2d(2, 8, 1), b=nn.Conv2d(8, 8, 1), norm=nn.GroupNorm(4, 16), c=nn.Conv2d(16, 3, 1)
        ),
        (IMAGE,), 0, ["2", "4"],
    ),
    "both sides of an outer product": lambda: Case(between(outer, 18), (VECTOR,), 3, ["2", "3"]),
    "zeros between biases": lambda: Case(
        Of(
            zeros_between, q=nn.Parameter(torch.randn(6)), v=nn.Parameter(torch.randn(6)),
            weight=nn.Parameter(torch.randn(18, 4)), out=nn.Linear(6, 3),
        ),
        (VECTOR,), 6, ["2", "2", "3", "3"],
    ),
    "rows that a mask leaves": lambda: Case(
        Of(lambda s, x: s.b(s.a(x)[x[:, 0] > 0].relu()), a=nn.Linear(4, 6), b=nn.Linear(6, 3)), (VECTOR,), 6, ["6"]
    ),
    "sizes that depend on values": lambda: Case(
        Of(sizes_of_values, a=nn.Linear(4, 6), b=nn.Linear(6, 3)), (VECTOR,), 6, ["6"]
    ),
    "both branches of a condition": lambda: Case(
        between(lambda s, h: torch.cond(h.isnan().any(), torch.relu, torch.tanh, (h,))), (VECTOR,), 0, ["6"]
    ),
    "a power read from a parameter": lambda: Case(
        between(lambda s, h: h.abs() ** s.power.item(), power=nn.Parameter(torch.tensor(1.5))), (VECTOR,), 0, ["6"]
    ),
    "a factor read from a parameter": lambda: Case(
        between(lambda s, h: h.relu() * s.factor.item(), factor=nn.Parameter(torch.tensor(1.5))), (VECTOR,), 6, ["6"]
    ),
    "a number of a neuron that is an input": lambda: Case(
        Of(lambda s, x, t: s.b(s.a(x).select(1, t.item())[:, None]), a=nn.Linear(4, 6), b=nn.Linear(1, 3)),
        (VECTOR, torch.tensor(2)), 1, [],
    ),
    "index_add": lambda: on_graph(passing(lambda out, at, messages: out.index_add(0, at, messages))),
    "scatter_add": lambda: on_graph(
        passing(lambda out, at, messages: out.scatter_add(0, rows(at, messages), messages))
    ),
    "the largest message": lambda: on_graph(
        passing(lambda out, at, messages: out.scatter_reduce(0, rows(at, messages), messages, "amax"))
    ),
    "vertices": lambda: on_graph(
        Of(
            lambda s, x, edges: s.b((s.places + x).index_add(0, edges[1], x[edges[0]])).relu(),
            places=nn.Parameter(torch.randn(5, 4)), b=nn.Linear(4, 3),
        ),
        0, (),
    ),
    "GCN": lambda: on_graph(two(geometric.GCNConv)),  # self-loops: masks, sizes that depend on values
    "SAGE, largest": lambda: on_graph(two(lambda n, m: geometric.SAGEConv(n, m, aggr="max"))),
}  # fmt: skip


LATE = ("a power read from a parameter", "GCN")


@pytest.mark.parametrize("name", [pytest.param(name, marks=since_2_13) if name in LATE else name for name in CASES])
def test_groups_are_as_large_as_they_are_and_keep_the_function(name: str) -> None:
    module, inputs, scales, permuted = CASES[name]()
    found = derive(module, inputs)
    assert not found.origin.unknown
    assert (scalings(found), permutations(found)) == (scales, permuted)
    assert error(module, found, inputs) < 1e-9


BIASES = {
    "added up": lambda s, x, edges: s.c(x).index_add(0, edges[1], s.a(x)[edges[0]] + s.bias),
    "written over": lambda s, x, edges: (s.c(x) + s.bias).index_copy(0, edges[1][:3], s.a(x)[:3]),
    "bounded": lambda s, x, edges: torch.maximum(s.a(x) + s.bias, s.c(x)),
}


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_that_is_not_the_same_everywhere_matters_to_a_softmax(name: str) -> None:
    def network(function: Any) -> nn.Module:
        layers = {layer: nn.Linear(4, 6, bias=False) for layer in "ac"}
        return Of(lambda *given: function(*given).softmax(0), **layers, bias=nn.Parameter(torch.randn(6)))

    assert derive(network(BIASES[name]), (VECTOR, EDGES)).origin.dead == ()
    (dead,) = derive(network(lambda s, x, edges: s.a(x) + s.c(x) + s.bias), (VECTOR, EDGES)).origin.dead
    assert dead.parameter == "bias"
