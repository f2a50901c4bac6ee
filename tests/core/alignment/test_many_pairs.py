"""`align` and `compare` on many random networks of which the answer is known: ``make slow``, for two minutes."""

import itertools
import math
import random

import pytest
import torch
from orbits import far_element
from torch import nn
from torch.nn import functional as F

from nfn_monomial import Axis, WeightSpace, align, compare
from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.space import packing
from nfn_monomial.tools.predictors.architectures import PlainCNN

pytestmark = pytest.mark.slow
RUNS, PAIRS = 10, 10  # of every kind and change


# -- align finds what a network was moved by --------------------------------------------------------------------------


def mlp(draw):
    act = draw.choice((nn.ReLU, nn.Tanh))
    sizes = [draw.randint(2, 10), *(draw.randint(4, 48) for _ in range(draw.randint(1, 5))), draw.randint(1, 10)]
    layers = [part for n, m in itertools.pairwise(sizes) for part in (nn.Linear(n, m), act())]
    return nn.Sequential(*layers[:-1]), torch.randn(8, sizes[0])


def vgg(draw):
    widths = [3, *(min(draw.choice((16, 32)) * 2**stage, 64) for stage in range(4))]
    layers = [
        part
        for n, m in itertools.pairwise(widths)
        for part in (nn.Conv2d(n, m, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    ]
    head = (nn.Flatten(), nn.Linear(widths[-1], 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(*layers, *head), torch.randn(4, 3, 16, 16)


def resnet18(draw):
    base = draw.choice((4, 8))
    widths = (base, 2 * base, 4 * base, 8 * base)
    inner = tuple(width for width in widths for _ in range(2))
    network = ResidualCNN(3, widths, (2, 2, 2, 2), inner, normalised=True, activations=("relu",), classes=10)
    return network.module(), torch.randn(4, 3, 16, 16)


class GPTBlock(nn.Module):
    """Causal attention and an MLP, each behind a layer norm, between an embedding and a head."""

    def __init__(self, width, heads=4, vocabulary=24, length=8):
        super().__init__()
        self.heads, self.tokens = heads, nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(length, width))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places
        batch, length, width = x.shape
        query, key, value = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return self.head(self.norm3(x + self.down(F.gelu(self.up(self.norm2(x))))))


def gpt_block(draw):
    return GPTBlock(draw.choice((32, 64))), torch.randint(24, (2, 8))


def perturbed(module, generator):
    """With biases, gains and statistics that are not as initialised."""
    for name, x in (*module.named_parameters(), *module.named_buffers()):
        if x.is_floating_point() and x.ndim == 1:
            moved = x.detach() + 0.3 * torch.randn(x.shape, generator=generator)
            x.data = moved.abs() if name.endswith("running_var") else moved
    return module


ALLOWED = {"exact": 1e-6, "float32": 1e-5, "noised": 0.05}  # of an entry


@pytest.mark.parametrize("change", ALLOWED)
@pytest.mark.parametrize("kind", [mlp, vgg, resnet18, gpt_block])
def test_what_was_planted_is_found(kind, change):
    """Every entry is brought to where the inverse of the planted element brings it."""
    for seed in range(RUNS):
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        module, inputs = kind(random.Random(seed))
        module = perturbed(module, generator).eval() if seed % 2 else module.eval()
        space = WeightSpace.from_module(module, inputs)
        a = {name: x.detach().double() for name, x in module.state_dict().items() if name in space.parameters}
        planted = far_element(space, None, 6, generator)
        b = planted.act(a)
        if change == "float32":
            b = {name: x.float() for name, x in b.items()}
        elif change == "noised":
            b = {n: x * (1 + 0.01 * torch.randn(x.shape, generator=generator, dtype=x.dtype)) for n, x in b.items()}
        found, precise = align(space, a, b), {name: x.double() for name, x in b.items()}
        expected, moved = planted.inverse().act(precise), found.element.act(precise)
        off = [n for n, x in expected.items() if not bool(((moved[n] - x).abs() <= ALLOWED[change] * x.abs()).all())]
        size = math.sqrt(sum(float(x.square().sum()) for x in a.values()))
        equal_neurons = change == "exact" and found.distance <= ALLOWED[change] * size  # another element may do as well
        assert not off or equal_neurons, (seed, off)


# -- compare tells the same function from another one -----------------------------------------------------------------

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


def size(dtype, generator):
    """A relative change, with uniform logarithm, from the least that is to be seen up to 1."""
    return float(LEAST[dtype] ** torch.rand((), generator=generator, dtype=torch.float64))


def independent(space, network, generator):
    return drawn(space, next(iter(network.values())).dtype, generator)


def noise(space, network, generator):
    by = size(next(iter(network.values())).dtype, generator)
    return {n: x * (1 + by * torch.randn(x.shape, dtype=x.dtype, generator=generator)) for n, x in network.items()}


def in_one_piece(space, network, generator, edit, movable=True):
    """Edit one piece along a dimension over at least two neurons that are permuted, or any piece."""
    pieces, dims = packing.pieces(space, network, space.sizes()), {}
    for name, x in pieces.items():
        along = [
            i
            for i, axis in enumerate(space.axes[name])
            if isinstance(axis, Axis) and space.nodes[axis.node].permutes and x.shape[i] > 1
        ]
        if name not in space.dead and (along or not movable):
            dims[name] = along[0] if along else 0
    name = list(dims)[int(torch.randint(len(dims), (), generator=generator))]
    return packing.whole(space, pieces | {name: edit(pieces[name].clone(), dims[name])}, space.sizes())


def one_weight(space, network, generator):
    def edit(x, dim):
        at = int(torch.randint(x.numel(), (), generator=generator))
        x.view(-1)[at] *= 1 + size(x.dtype, generator)
        return x

    return in_one_piece(space, network, generator, edit, movable=False)


def one_sign(space, network, generator):
    """One neuron's weights on one side have the other sign."""

    def edit(x, dim):
        x.select(dim, int(torch.randint(x.shape[dim], (), generator=generator))).neg_()
        return x

    return in_one_piece(space, network, generator, edit)


def two_swapped(space, network, generator):
    """Two neurons' weights are swapped on one side, and not on the other."""

    def edit(x, dim):
        order = torch.arange(x.shape[dim])
        pair = torch.randperm(len(order), generator=generator)[:2]
        order[pair] = pair.flip(0)
        return x.index_select(dim, order)

    return in_one_piece(space, network, generator, edit)


@pytest.mark.parametrize("change", [None, independent, one_weight, noise, one_sign, two_swapped])
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
