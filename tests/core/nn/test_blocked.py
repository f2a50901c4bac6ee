"""The exchange by hand: values and derivatives of the plain formulas, whatever the blocks are."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nfn_monomial.nn import blocked
from nfn_monomial.nn.blocked import Size, exchange
from nfn_monomial.nn.edges import Matrices
from nfn_monomial.nn.incidence import Grid

SETS, BATCH, CHANNELS = 2, 2, 3
KINDS = {  # sizes of the axis that all ends share, and of one of each end
    "two ends": (1, 3, 2),
    "nested": (2, 3, 2),
    "three ends": (1, 2, 3, 2),
    "four ends, nested": (2, 1, 2, 1, 2),
}
OUTS = ["update", "sum", "none"]


def random(*shape, seed):
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x.requires_grad_()


def case(kind, out="sum", normed=True, padded=False, seed=0):
    """A function of tensors to all outputs of the exchange, and the tensors."""
    axes, numbers = KINDS[kind], itertools.count(100 * seed)
    count = len(axes) - 1
    grid = Grid([(0, 1 + i) for i in range(count)], len(axes))
    mask = None
    if padded:
        mask = torch.ones(SETS, *axes, 1, 1, dtype=torch.bool)
        mask[1, :, 1:] = False
        ones = [1] * 4
        grid.shares = [torch.rand(SETS, *ones, dtype=torch.float64) for _ in range(count)]
    tensors = [random(SETS, *axes, BATCH, CHANNELS, seed=next(numbers)), random(CHANNELS, seed=next(numbers))]
    tensors += [random(SETS, *shape, CHANNELS, seed=next(numbers)) for shape in ((CHANNELS,), (), (CHANNELS,))]
    kinds = 2 if out == "none" else 3
    tensors += [random(SETS, kinds, axes[0], n, BATCH, CHANNELS, seed=next(numbers)) for n in axes[1:]]
    roots = 1 + torch.arange(SETS, dtype=torch.float64).view(SETS, *[1] * (len(axes) + 2))

    def function(edges, gain, hidden, bias, gate, *ends):
        matrices = Matrices(hidden, bias, None if out == "none" else gate)
        size = Size(gain, roots) if normed else None
        sums, new = exchange(grid, edges, ends, matrices, size, residual=out == "sum", mask=mask)
        return *(t for pair in sums for t in pair), *(() if out == "none" else (new,))

    return function, tensors


def plainly(function, tensors):
    """The outputs of `plain_exchange`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked, "watched", lambda x: True)
        return function(*tensors)


@given(
    st.sampled_from(list(KINDS)),
    st.sampled_from([0, 50, 100, 300, 500, 2**19]),
    st.sampled_from(OUTS),
    st.booleans(),
    st.booleans(),
    st.integers(0, 10**4),
    st.data(),
)
def test_blocks_of_any_size_give_values_and_gradients_of_the_formulas(kind, size, out, normed, padded, seed, data):
    function, (edges, *others) = case(kind, out, normed, padded, seed)
    turned = edges.detach().movedim(-1, 0).contiguous().movedim(0, -1).requires_grad_()  # not contiguous
    tensors = (turned, *others)
    expected = plainly(function, tensors)
    used = data.draw(st.sets(st.integers(0, len(expected) - 1), min_size=1), label="outputs that are used")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked, "BLOCK", size)
        outputs = function(*tensors)
        torch.testing.assert_close(outputs, expected, rtol=1e-10, atol=1e-12)
        by = [random(*y.shape, seed=seed + i).detach() for i, y in enumerate(expected)]
        gradients = [
            torch.autograd.grad(
                [y[i] for i in used], tensors, [by[i] for i in used], allow_unused=True, materialize_grads=True
            )
            for y in (outputs, expected)
        ]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_gradients_may_come_in_any_order_of_dimensions():
    function, tensors = case("two ends" if "two ends" in KINDS else next(iter(KINDS)))
    *_, out = function(*tensors)
    by = torch.randn(out.shape[::-1], dtype=out.dtype).permute(*reversed(range(out.ndim)))
    expected = torch.autograd.grad(plainly(function, tensors)[-1], tensors[0], by)
    torch.testing.assert_close(torch.autograd.grad(out, tensors[0], by), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 2**19])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("out", OUTS)
def test_derivatives_and_derivatives_of_derivatives(monkeypatch, kind, out, size):
    monkeypatch.setattr(blocked, "BLOCK", size)
    function, tensors = case(kind, out)
    used = tensors if out != "none" else [t for i, t in enumerate(tensors) if i != 4]
    whole = function if out != "none" else lambda *rest: function(*rest[:4], None, *rest[4:])
    assert torch.autograd.gradcheck(whole, used, fast_mode=True)
    assert torch.autograd.gradgradcheck(whole, used, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_size_of_the_edges_is_kept_but_the_edges(monkeypatch, kind):
    monkeypatch.setattr(blocked, "BLOCK", 100)
    function, tensors = case(kind)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        outputs = function(*tensors)
    made = [x for x in kept if x.data_ptr() not in {given.data_ptr() for given in tensors}]
    assert all(x.numel() <= SETS * BATCH for x in made), "the factors of sizes"
    assert outputs[0].grad_fn.kept is None
    monkeypatch.setattr(blocked, "BLOCK", 2**19)
    assert function(*tensors)[0].grad_fn.kept is not None, "of few edges two tensors are"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sums_over_many_neurons_are_exact_in_half_precision(dtype):
    """Ones are added up to 2000; half precision alone ends at 256 or 2048."""
    count, grid = 2000, Grid([(0, 1), (0, 2)], 3)
    edges = torch.ones(1, 1, 1, count, 1, CHANNELS, dtype=dtype, requires_grad=True)
    ends = [torch.ones(1, 3, 1, n, 1, CHANNELS, dtype=dtype, requires_grad=True) for n in (1, count)]
    eye = torch.eye(CHANNELS, dtype=dtype).unsqueeze(0)
    sums, _ = exchange(grid, edges, ends, Matrices(eye, torch.zeros(1, CHANNELS, dtype=dtype), eye))
    expected = torch.full_like(sums[0][0], count)
    torch.testing.assert_close(sums[0][0], expected, rtol=1e-2, atol=0)
    (by,) = torch.autograd.grad(sums[1][0].sum(), ends[0])
    torch.testing.assert_close(by[:, 0], expected, rtol=1e-2, atol=0)
