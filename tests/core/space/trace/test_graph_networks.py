"""Networks on graphs: neurons are permuted and scaled through messages that an index adds up."""

import pytest
import torch
from derived_groups import Of, error, permutations, scalings
from torch import nn

from nfn_monomial.space.trace import derive

torch_geometric = pytest.importorskip("torch_geometric.nn")

# An edge from a vertex to itself among them, which some layers take out.
X, EDGES = torch.randn(5, 4), torch.tensor([[0, 1, 2, 3, 4, 0, 2, 2], [1, 2, 3, 4, 0, 2, 0, 2]])


def passing(add) -> nn.Module:
    """Message passing of one's own."""

    def layer(linear: nn.Module, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return add(torch.zeros(len(x), linear.out_features, dtype=x.dtype), edges[1], linear(x)[edges[0]])

    return Of(lambda s, x, edges: layer(s.b, layer(s.a, x, edges).relu(), edges), a=nn.Linear(4, 6), b=nn.Linear(6, 3))


def rows(index: torch.Tensor, messages: torch.Tensor) -> torch.Tensor:
    return index[:, None].expand_as(messages)


OWN = {
    "index_add": lambda out, index, messages: out.index_add(0, index, messages),
    "scatter_add": lambda out, index, messages: out.scatter_add(0, rows(index, messages), messages),
    "mean": lambda out, index, messages: out.scatter_reduce(0, rows(index, messages), messages, "mean"),
    "index_reduce": lambda out, index, messages: torch.index_reduce(out, 0, index, messages, "mean"),
    "index_put": lambda out, index, messages: out.index_put((index,), messages, accumulate=True),
    "largest": lambda out, index, messages: out.scatter_reduce(0, rows(index, messages), messages, "amax"),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", OWN)
def test_messages_carry_neurons(name):
    module = passing(OWN[name])
    found = derive(module, (X, EDGES))
    assert (scalings(found), permutations(found)) == (6, ["6"])
    assert error(module, found, (X, EDGES)) < 1e-9


def test_vertices_are_not_permuted():
    module = Of(
        lambda s, x, edges: s.b((s.places + x).index_add(0, edges[1], x[edges[0]])).relu(),
        places=nn.Parameter(torch.randn(5, 4)), b=nn.Linear(4, 3),
    )  # fmt: skip
    assert permutations(derive(module, (X, EDGES))) == []


class Two(nn.Module):
    def __init__(self, layer) -> None:
        super().__init__()
        self.a, self.b = layer(4, 6), layer(6, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x, edges).relu(), edges)


def isomorphism(inputs: int, outputs: int) -> nn.Module:
    return torch_geometric.GINConv(nn.Sequential(nn.Linear(inputs, 5), nn.ReLU(), nn.Linear(5, outputs)))


SHIPPED = {
    "GCN": (lambda n, m: torch_geometric.GCNConv(n, m), 6, ["6"]),  # self-loops: masks, sizes that depend on values
    "SAGE": (lambda n, m: torch_geometric.SAGEConv(n, m), 6, ["6"]),
    "SAGE, largest": (lambda n, m: torch_geometric.SAGEConv(n, m, aggr="max"), 6, ["6"]),
    "GIN": (isomorphism, 16, ["5", "5", "6"]),
    "GAT": (lambda n, m: torch_geometric.GATConv(n, m), 6, ["6"]),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_layers_of_torch_geometric_keep_their_neurons(name):
    layer, count, permuted = SHIPPED[name]
    module = Two(layer)
    found = derive(module, (X, EDGES))
    assert (scalings(found), permutations(found)) == (count, permuted)
    assert error(module, found, (X, EDGES)) < 1e-9


BIASES = {
    "added up": lambda s, x, edges: s.c(x).index_add(0, edges[1], s.a(x)[edges[0]] + s.bias),
    "written over": lambda s, x, edges: (s.c(x) + s.bias).index_copy(0, edges[1][:3], s.a(x)[:3]),
    "bounded": lambda s, x, edges: torch.maximum(s.a(x) + s.bias, s.c(x)),
}


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_that_is_not_the_same_everywhere_matters_to_a_softmax(name):
    def network(function) -> nn.Module:
        layers = {layer: nn.Linear(4, 6, bias=False) for layer in "ac"}
        return Of(lambda *given: function(*given).softmax(0), **layers, bias=nn.Parameter(torch.randn(6)))

    assert derive(network(BIASES[name]), (X, EDGES)).report.dead == ()
    (dead,) = derive(network(lambda s, x, edges: s.a(x) + s.c(x) + s.bias), (X, EDGES)).report.dead
    assert dead.parameter == "bias"
