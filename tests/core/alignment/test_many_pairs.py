"""`align` and `compare` on many random networks of which the answer is known: ``make slow``."""

import pytest
import torch
from orbits import far_element

from nfn_monomial import Axis, WeightSpace, align, compare
from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.space import packing
from nfn_monomial.tools.predictors.architectures import PlainCNN

pytestmark = pytest.mark.slow
PAIRS = 10  # of every kind and change
NETWORKS = {
    "MLP, ReLU": lambda: WeightSpace.mlp([4, 16, 16, 3], "relu"),
    "MLP, tanh": lambda: WeightSpace.mlp([4, 16, 16, 3], "tanh"),
    "CNN": lambda: PlainCNN((1, 8, 8), (3, 3), (1, 1), (0, 0), (8, 4), ("relu", "tanh", "gelu")).space,
    "residual": lambda: ResidualCNN(1, (4, 6), (1, 1), (4, 6), True, ("relu",), 4).space,
    "transformer": lambda: Transformer(1, 4, 2, 6, (2,), 3, (8,), ("gelu",), 4).space,
}
DECADES = {torch.float64: 6, torch.float32: 3}  # of the scales that move networks, each way
LEAST = {torch.float64: 1e-8, torch.float32: 1e-3}  # relative changes


def drawn(space, dtype, generator):
    return {n: torch.randn(shape, dtype=dtype, generator=generator) for n, shape in space.shapes().items()}


@pytest.mark.parametrize("noise", [0, 0.01])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_was_planted_is_found(name, noise):
    """Every entry is brought to where the inverse of the planted element brings it."""
    space = NETWORKS[name]()
    for seed in range(PAIRS):
        generator = torch.Generator().manual_seed(seed)
        a = drawn(space, torch.float64, generator)
        planted = far_element(space, None, 6, generator)
        b = {n: x * (1 + noise * torch.randn_like(x)) for n, x in planted.act(a).items()}
        expected, moved = planted.inverse().act(b), align(space, a, b).element.act(b)
        for n in expected.keys() - {space.pieces[piece].parameter for piece in space.dead}:
            torch.testing.assert_close(moved[n], expected[n], rtol=5 * noise or 1e-6, atol=0)


def size(dtype, generator):
    """A relative change, with uniform logarithm, from the least that is to be seen up to 1."""
    return float(LEAST[dtype] ** torch.rand((), generator=generator, dtype=torch.float64))


def in_one_piece(space, network, generator, edit, movable=True):
    """Edit one piece along a dimension over at least two neurons that are permuted, or any piece."""
    pieces, dims = packing.pieces(space, network, space.sizes()), {}
    for name, x in pieces.items():
        axes = enumerate(space.axes[name])
        along = [i for i, a in axes if isinstance(a, Axis) and space.nodes[a.node].permutes and x.shape[i] > 1]
        if name not in space.dead and (along or not movable):
            dims[name] = along[0] if along else 0
    name = list(dims)[int(torch.randint(len(dims), (), generator=generator))]
    return packing.whole(space, pieces | {name: edit(pieces[name].clone(), dims[name])}, space.sizes())


def one_weight(space, network, generator):
    def edit(x, dim):
        x.view(-1)[int(torch.randint(x.numel(), (), generator=generator))] *= 1 + size(x.dtype, generator)
        return x

    return in_one_piece(space, network, generator, edit, movable=False)


def two_swapped(space, network, generator):
    """Two neurons' weights are swapped on one side, and not on the other."""

    def edit(x, dim):
        order = torch.arange(x.shape[dim])
        pair = torch.randperm(len(order), generator=generator)[:2]
        order[pair] = pair.flip(0)
        return x.index_select(dim, order)

    return in_one_piece(space, network, generator, edit)


@pytest.mark.parametrize("change", [None, one_weight, two_swapped])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_function_and_no_other(name, change):
    space = NETWORKS[name]()
    for seed in range(PAIRS):
        generator = torch.Generator().manual_seed(seed)
        dtype = (torch.float64, torch.float32)[seed % 2]
        a = drawn(space, dtype, generator)
        changed = change(space, a, generator) if change else a
        b = far_element(space, None, DECADES[dtype], generator).act(changed)
        assert compare(space, a, b).same_function is (change is None), seed
