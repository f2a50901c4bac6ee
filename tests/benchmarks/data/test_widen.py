"""Widened networks compute the functions of the networks they come from, whatever the architecture."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import spaces
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.modules import network_outputs
from nfn_monomial.benchmarks.data.widen import widen
from nfn_monomial.testing import random_networks


def mlp(widths: tuple[int, ...], *activations: nn.Module) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b, activation in zip(widths[:-1], widths[1:], (*activations, nn.Identity()), strict=True):
        layers += [nn.Linear(a, b), activation]
    return nn.Sequential(*layers[:-1])


def cnn(flatten: bool) -> Callable[[int, int, int], nn.Sequential]:
    """A network with a folded flatten or a global pooling, as a function of its widths."""

    def build(a: int, b: int, c: int) -> nn.Sequential:
        pool: list[nn.Module] = [] if flatten else [nn.AdaptiveAvgPool2d(1)]
        head = nn.Linear(4 * b if flatten else b, c, bias=not flatten)
        convolutions = nn.Conv2d(2, a, 3, 2, 1), nn.GELU(), nn.Conv2d(a, b, (3, 1), padding=(1, 0)), nn.Tanh()
        return nn.Sequential(*convolutions, *pool, nn.Flatten(), head, nn.LeakyReLU(), nn.Linear(c, 3))

    return build


NETWORKS = {
    "relu": (lambda a, b, c: mlp((4, a, b, c, 3), nn.ReLU(), nn.ReLU(), nn.ReLU()), (7, 4)),
    "mixed": (lambda a, b, c: mlp((4, a, b, c, 3), nn.ReLU(), nn.Tanh(), nn.SiLU()), (7, 4)),
    "cnn-flatten": (cnn(flatten=True), (7, 2, 4, 4)),
    "cnn-pooling": (cnn(flatten=False), (7, 2, 4, 4)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_function_is_preserved(name: str) -> None:
    build, shape = NETWORKS[name]
    generator = torch.Generator().manual_seed(0)
    narrow = build(3, 4, 5).double()
    example = torch.zeros(shape, dtype=torch.float64)
    space = WeightSpace.from_module(narrow, example)
    tensors = random_networks(space, 4, generator=generator)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    expected = network_outputs(narrow, tensors, x)
    # The factor makes 5, 6 and 8 of 3, 4 and 5 neurons.
    wide, wider = widen(space, tensors, 1.5, generator)
    module = build(5, 6, 8).double()
    outputs = network_outputs(module, wide, x)
    torch.testing.assert_close(outputs, expected, rtol=1e-10, atol=1e-10)
    assert wider == WeightSpace.from_module(module, example)

    # What makes it so: copies are active alike, and each share belongs to its neuron.
    moved = wide["0.bias"].clone()
    moved[..., -1] += 0.1
    for broken in ({"0.bias": moved}, {"2.weight": wide["2.weight"].roll(1, 3)}):
        assert (network_outputs(module, wide | broken, x) - expected).abs().amax() > 1e-3


@given(spaces(), st.sampled_from([1.0, 1.5, 2.0]), st.integers(0, 10**6))
def test_any_space_gets_the_sizes_asked_for(space: WeightSpace, factor: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = random_networks(space, 2, 3, generator=generator)
    wide, wider = widen(space, tensors, factor, generator)
    wider.validate(wide)
    assert {name: tuple(t.shape[2:]) for name, t in wide.items()} == wider.shapes()
    for name, node in space.nodes.items():
        assert node.size is not None
        more = math.ceil(factor * node.size) - node.size if name not in ("x", "y") else 0
        assert wider.nodes[name] == node._replace(size=node.size + more)
    # Columns of all copies add to the column copied, so sums over a weight's columns stay as they are.
    last = list(space.parameters)[-1 if "bias" not in list(space.parameters)[-1] else -2]
    torch.testing.assert_close(wide[last].sum(3), tensors[last].sum(3))


@pytest.mark.parametrize("factor", [0.5, math.nan, math.inf])
def test_networks_never_get_narrower(factor: float) -> None:
    space = WeightSpace.mlp([2, 6, 1], "relu")
    with pytest.raises(ValueError, match=rf"factor is {factor}, but must be at least 1"):
        widen(space, random_networks(space), factor)
