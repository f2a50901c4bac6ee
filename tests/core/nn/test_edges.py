"""Messages in blocks: the formulas on all edges at once, and their derivatives, whatever the blocks are."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nfn_monomial.nn import edges as of_edges
from nfn_monomial.nn.edges import Ends, Scale, exchange, plain_exchange
from nfn_monomial.nn.incidence import Grid, Pairs, Places

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
    scale = [random(*shared, seed=next(numbers)) for _ in range(2)]
    # For each network one of the two is 0.
    scale = [(x * (torch.arange(len(x)) % 2 == i).view(-1, *[1] * (x.ndim - 1))).detach() for i, x in enumerate(scale)]
    return places, (edges, *(x.requires_grad_() for x in scale), *matrices, *(x for xs in brought for x in xs))


def outputs(function, places, inputs, out="update", scaled=True):
    edges, constant, factor, mix, gate, *brought = inputs
    count = len(brought) // 3
    ends = Ends(*(tuple(brought[i * count : (i + 1) * count]) for i in range(3)))
    sums, updated = function(places, edges, mix, gate, ends, Scale(constant, factor) if scaled else None, out)
    return *sums.messages, *sums.hidden, updated


def unfused(places, edges, mix, gate, ends, scale, out):
    """The scaled edges a tensor, as a norm makes it, and what comes of them another one."""
    e = edges if scale is None else edges.detach() * scale.constant + edges * scale.factor
    sums, update = plain_exchange(places, e, mix, gate, ends)
    return sums, {"update": update, "sum": edges + (e + update), "none": edges}[out]


OUTS = ["update", "sum", "none"]


@given(
    st.sampled_from(KINDS),
    st.sampled_from([0, 50, 100, 300, 500]),
    st.sampled_from(OUTS),
    st.booleans(),
    st.integers(0, 10**4),
    st.data(),
)
def test_blocks_of_any_size_give_values_and_gradients_of_the_formulas(kind, size, out, scaled, seed, data):
    places, inputs = case(kind, seed)
    expected = outputs(unfused, places, inputs, out, scaled)
    used = data.draw(st.sets(st.integers(0, len(expected) - 1), min_size=1), label="outputs that are used")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_edges, "BLOCK", size)
        found = outputs(exchange, places, inputs, out, scaled)
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
    none, factor = torch.zeros_like(inputs[1]), torch.full_like(inputs[1], 1.3)

    def function(edges, factor, *others):
        found = outputs(exchange, places, (edges, none, factor, *others), out)
        return found[:-1] if out == "none" else found

    at = (inputs[0], factor.requires_grad_(), *inputs[3:])
    assert torch.autograd.gradcheck(function, at)
    assert torch.autograd.gradgradcheck(function, at)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_size_of_the_edges_is_kept_but_the_edges(kind):
    places, inputs = case(kind)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        outputs(exchange, places, inputs)
    given_pointers = {x.data_ptr() for x in inputs}
    assert kept
    assert {x.data_ptr() for x in kept} == given_pointers


@pytest.mark.usefixtures("small_blocks")
def test_edges_that_are_not_contiguous_and_gradients_that_are_expanded():
    places, (edges, *others) = case("two ends")
    turned = edges.detach().movedim(-1, 0).contiguous().movedim(0, -1).requires_grad_()
    for function in (exchange, plain_exchange):
        sum(y.sum() for y in outputs(function, places, (edges, *others))).backward()
        sum(y.sum() for y in outputs(exchange, places, (turned, *others))).backward()
    torch.testing.assert_close(turned.grad, edges.grad)


@pytest.mark.parametrize("sizes", [(0, 2), (4, 0)], ids=str)
def test_without_edges_sums_are_zero(sizes):
    grid = Grid([(0,), (1,)], 2)
    ends = Ends(*((torch.ones(2, sizes[0], 3), torch.ones(2, sizes[1], 3)) for _ in range(3)))
    sums, updated = exchange(Places(grid, grid, grid), torch.ones(2, *sizes, 3), torch.eye(3), torch.eye(3), ends)
    assert updated.shape == (2, *sizes, 3)
    assert not any(x.any() for x in (*sums.messages, *sums.hidden))
