"""Sums over many neurons and networks are added up in float32: in bfloat16 they would stop growing at 256 ones."""

import copy

import pytest
import torch
from torch import nn

from nfn_monomial import Canonicalize, EquivariantLinear, InvariantPool, WeightSpace
from nfn_monomial.nn import NeuronEmbedding, NeuronPool, NeuronReadout

WIDE = 4096
RELU, GELU = (WeightSpace.mlp([1, WIDE, 1], activation) for activation in ("relu", "gelu"))


def positive(space, count, layout=None, channels=1):
    """Networks without any sign: nothing cancels in sums."""
    generator = torch.Generator().manual_seed(0)
    shapes = {name: (count, channels, *shape) for name, shape in space.shapes().items()}
    return space.pack({n: torch.rand(s, generator=generator) + 0.5 for n, s in shapes.items()})


LAYERS = {
    "linear": (EquivariantLinear(RELU, 1, 2), positive(RELU, 32)),
    "linear, permuted": (EquivariantLinear(GELU, 1, 2), positive(GELU, 32)),
    "factored": (EquivariantLinear(GELU, 1, 2, io="factored"), positive(GELU, 32)),
    "canonicalize": (Canonicalize(RELU, 1), positive(RELU, 512)),
    "canonicalize, permuted": (Canonicalize(GELU, 1), positive(GELU, 512)),
    "mean": (InvariantPool(GELU, 1), positive(GELU, 4)),
    "sum": (InvariantPool(GELU, 1, "sum"), positive(GELU, 4)),
    "moments": (NeuronPool(GELU, 2), NeuronEmbedding(GELU, 1, 2)(positive(GELU, 4)).detach().map(torch.abs)),
    "readout": (NeuronReadout(GELU, 2, 1), NeuronEmbedding(GELU, 1, 2)(positive(GELU, 4)).detach().map(torch.abs)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_sums_over_neurons_and_networks(name):
    torch.manual_seed(0)
    layer, features = LAYERS[name]
    layer = copy.deepcopy(layer).bfloat16()
    for p in layer.parameters():
        nn.init.uniform_(p, 0.5, 1.0)
    outputs, gradients = [], []
    for dtype in (torch.bfloat16, torch.float64):
        module = copy.deepcopy(layer).to(dtype)
        x = features.map(lambda t: t.bfloat16().to(dtype).requires_grad_())  # noqa: B023
        out = module(x)
        tensors = [out] if isinstance(out, torch.Tensor) else list(out.tensors)
        sum(t.sum() for t in tensors).backward()
        outputs.append(tensors)
        gradients.append({n: p.grad for n, p in module.named_parameters()})
    for found, expected in zip(*outputs, strict=True):
        assert float((found.double() - expected).detach().norm()) <= 0.01 * float(expected.detach().norm())
    for key, expected in gradients[1].items():
        error = float((gradients[0][key].double() - expected).norm()) / float(expected.norm())
        assert error <= 0.01, f"the gradient of {key} is off by {error:.1%}"
