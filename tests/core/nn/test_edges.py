"""Messages in blocks: the formulas on all edges at once, and their derivatives, whatever the blocks are."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

from nfn_monomial.adapters.pyg.conv import Pairs
from nfn_monomial.nn import edges as of_edges
from nfn_monomial.nn.edges import Ends, exchange, plain_exchange
from nfn_monomial.nn.incidence import Grid, Places

KINDS = ["two ends", "three ends", "nested", "pairs", "streams"]
CHANNELS = 3


@pytest.fixture
def small_blocks(monkeypatch):
    """Several of them even of few edges."""
    monkeypatch.setattr(of_edges, "BLOCK", 100)


def random(*shape, seed):
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x.requires_grad_()


def case(kind, seed=0):
    """Places, and the edges, matrices, and what the ends bring."""
    numbers = itertools.count(100 * seed)
    if kind in ("pairs", "streams"):
        nodes, count = 5, 7
        generator = torch.Generator().manual_seed(seed)
        at = [tuple(torch.randint(0, n, (count,), generator=generator) for _ in range(2)) for n in (15, 15, nodes)]
        at = at if kind == "streams" else [at[-1]] * 3
        places, sizes = Places(*map(Pairs, at)), (15, 15, nodes) if kind == "streams" else (nodes,) * 3
        edges = random(count, CHANNELS, seed=next(numbers))
        brought = [[random(n, CHANNELS, seed=next(numbers)) for _ in range(2)] for n in sizes]
    else:
        batch, axes = 3, {"two ends": (4, 2), "three ends": (2, 3, 2), "nested": (2, 3, 2)}[kind]
        at = {"two ends": [(0,), (1,)], "three ends": [(0,), (1,), (2,)], "nested": [(0, 1), (0, 2)]}[kind]
        grid = Grid(at, len(axes))
        places, edges = Places(grid, grid, grid), random(batch, *axes, CHANNELS, seed=next(numbers))
        shapes = [(batch, *(axes[i] for i in own), CHANNELS) for own in at]
        brought = [[random(*shape, seed=next(numbers)) for shape in shapes] for _ in range(3)]
    matrices = [random(CHANNELS, CHANNELS, seed=next(numbers)) for _ in range(2)]
    shared = [1 if kind in ("pairs", "streams") else len(edges), *[1] * (edges.ndim - 2), CHANNELS]
    scale, bias = random(*shared, seed=next(numbers)), random(CHANNELS, seed=next(numbers))
    return places, (edges, scale, bias, *matrices, *(x for xs in brought for x in xs))


def linear_with(weight, bias=None):
    """A layer with these tensors as its parameters."""
    layer = nn.Linear(CHANNELS, CHANNELS)
    del layer.weight, layer.bias
    layer.weight, layer.bias = weight, bias
    return layer


def outputs(function, places, inputs, out="update", scaled=True, invariant=True):
    edges, scale, bias, mix, gate, *brought = inputs
    count = len(brought) // 3
    messages, products, invariants = (tuple(brought[i * count : (i + 1) * count]) for i in range(3))
    messages = messages if invariant else tuple(0 * x for x in messages)
    ends = Ends(messages, () if out == "none" else products, invariants)
    hidden = linear_with(mix, bias) if invariant else nn.Identity()
    gates = None if out == "none" else linear_with(gate)
    sums, updated = function(places, edges, hidden, gates, ends, scale if scaled else None, out == "sum")
    return *sums.messages, *sums.hidden, updated


def unfused(places, edges, hidden, gate, ends, scale, residual):
    """The scaled edges a tensor, as a norm makes it, and what comes of them another one."""
    e = edges if scale is None else edges * scale
    sums, update = plain_exchange(places, e, hidden, gate, ends)
    return sums, edges if gate is None else edges + (e + update) if residual else update


OUTS = ["update", "sum", "none"]


@given(
    st.sampled_from(KINDS),
    st.sampled_from([0, 50, 100, 300, 500]),
    st.sampled_from(OUTS),
    st.booleans(),
    st.booleans(),
    st.integers(0, 10**4),
    st.data(),
)
def test_blocks_of_any_size_give_values_and_gradients_of_the_formulas(kind, size, out, scaled, invariant, seed, data):
    places, (edges, *others) = case(kind, seed)
    turned = edges.detach().movedim(-1, 0).contiguous().movedim(0, -1).requires_grad_()  # not contiguous
    inputs = (turned, *others)
    expected = outputs(unfused, places, inputs, out, scaled, invariant)
    used = data.draw(st.sets(st.integers(0, len(expected) - 1), min_size=1), label="outputs that are used")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_edges, "BLOCK", size)
        found = outputs(exchange, places, inputs, out, scaled, invariant)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        by = [random(*y.shape, seed=seed + i).detach() for i, y in enumerate(expected)]
        grads = [
            torch.autograd.grad(
                [y[i] for i in used], inputs, [by[i] for i in used], allow_unused=True, materialize_grads=True
            )
            for y in (found, expected)
        ]
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("out", OUTS)
def test_derivatives_and_derivatives_of_derivatives(kind, out):
    places, inputs = case(kind)

    def function(*inputs):
        found = outputs(exchange, places, inputs, out)
        return found[:-1] if out == "none" else found

    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_size_of_the_edges_is_kept_but_the_edges(kind):
    places, inputs = case(kind)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        outputs(exchange, places, inputs)
    made = [x.numel() for x in kept if x.data_ptr() not in {given.data_ptr() for given in inputs}]
    assert len(made) == 1  # the bias is added to what the neurons of one end bring


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("change", ["hook", "mask", "method", "class"])
def test_layers_that_were_changed_are_called(change):
    """Blocks know the matrices of plain layers only."""
    places, (edges, _, _, _, gate, *brought) = case("two ends")
    ends = Ends(*(tuple(brought[2 * i : 2 * i + 2]) for i in range(3)))
    layer, twice = nn.Linear(CHANNELS, CHANNELS).double(), linear_with(2 * gate)
    expected = plain_exchange(places, edges, layer, twice, ends)
    changed = linear_with(gate)
    if change == "hook":
        changed.register_forward_hook(lambda module, given, out: 2 * out)
    elif change == "mask":
        changed = nn.Linear(CHANNELS, CHANNELS, bias=False).double()
        changed.weight.data = 2 * gate.detach()
        prune.identity(changed, "weight")
    elif change == "method":
        changed.forward = lambda z: 2 * nn.functional.linear(z, gate)
    else:
        changed = nn.Sequential(linear_with(2 * gate))
    torch.testing.assert_close(exchange(places, edges, layer, changed, ends), expected)
    turned = plain_exchange(places, edges, twice, layer, ends)
    torch.testing.assert_close(exchange(places, edges, changed, layer, ends), turned)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["grid", "pairs"])
@pytest.mark.parametrize("size", [2**9, 2**30])
def test_sums_over_many_neurons_are_exact_in_half_precision(monkeypatch, dtype, kind, size):
    """Ones are added up to 2000; half precision alone ends at 256 or 2048."""
    monkeypatch.setattr(of_edges, "BLOCK", size)
    count, one = 2000, torch.ones(1, dtype=dtype)
    if kind == "grid":
        at, shape = Grid([(0,), (1,)], 2), (1, 1, count, CHANNELS)
        neurons = [one.expand(1, 1, CHANNELS), one.expand(1, count, CHANNELS)]
    else:
        at, shape = Pairs((torch.zeros(count, dtype=torch.long), torch.arange(count))), (count, CHANNELS)
        neurons = [one.expand(1, CHANNELS), one.expand(count, CHANNELS)]
    edges = torch.ones(shape, dtype=dtype, requires_grad=True)
    ends = [tuple(x.clone().requires_grad_() for x in neurons) for _ in range(3)]
    layers = [linear_with(torch.eye(CHANNELS, dtype=dtype)) for _ in range(2)]
    sums, _ = exchange(Places(at, at, at), edges, *layers, Ends(*ends))
    expected = torch.full_like(sums.messages[0], count)
    torch.testing.assert_close(sums.messages[0], expected, rtol=1e-2, atol=0)
    (by,) = torch.autograd.grad(sums.messages[1].sum(), ends[0][0])
    torch.testing.assert_close(by, expected, rtol=1e-2, atol=0)
