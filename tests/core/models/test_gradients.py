"""First gradients of whole models: those of finite differences, whether or not they can be differentiated again."""

import pytest
import torch

from nfn_monomial import WeightSpace
from nfn_monomial.models import EquivariantNFN, MessagePassingEditor, MessagePassingNFN, MonomialNFN
from nfn_monomial.testing import random_networks

# Wide enough that all weights of a batch are several blocks where there are blocks.
TANH, RELU = (WeightSpace.mlp([2, 32, 32, 1], activation) for activation in ("tanh", "relu"))
MODELS = {
    "MonomialNFN": lambda: MonomialNFN(RELU, (8, 4), hidden=8),
    "MonomialNFN, square": lambda: MonomialNFN(RELU, (4,), hidden=8, kind="square", io="factored"),
    "EquivariantNFN": lambda: EquivariantNFN(TANH, (4,), init_scale=1.0),
    "MessagePassingNFN": lambda: MessagePassingNFN(TANH, 8, 2, hidden=8),
    "MessagePassingNFN, tied": lambda: MessagePassingNFN(TANH, 4, 1, hidden=8, tied=True, norm=False),
    "MessagePassingEditor": lambda: MessagePassingEditor(TANH, 4, 1, init_scale=1.0),
}
STEP = 1e-6


@pytest.fixture(params=MODELS)
def problem(request):
    """A loss without arguments, and what it depends on: name -> parameter or input."""
    torch.manual_seed(0)
    model = MODELS[request.param]().double()
    networks = {name: t.requires_grad_() for name, t in random_networks(model.space, 5).items()}
    tensors = {**dict(model.named_parameters()), **networks}
    with torch.no_grad():
        out = model(networks)
    targets = torch.randn_like(out) if isinstance(out, torch.Tensor) else out.map(torch.randn_like)

    def loss():
        out = model(networks)
        pairs = [(out, targets)] if isinstance(out, torch.Tensor) else zip(out.tensors, targets.tensors, strict=True)
        return sum((y - t).square().sum() for y, t in pairs)

    return loss, tensors


def gradients(loss, tensors, create_graph=False):
    found = torch.autograd.grad(loss(), list(tensors.values()), create_graph=create_graph, allow_unused=True)
    return {name: g for name, g in zip(tensors, found, strict=True) if g is not None}


def test_gradients_are_those_of_finite_differences_and_of_a_graph(problem):
    loss, tensors = problem
    found, with_graph = gradients(loss, tensors), gradients(loss, tensors, create_graph=True)
    top = max(float(g.abs().max()) for g in found.values())
    torch.testing.assert_close(with_graph, found, rtol=1e-10, atol=1e-12 * top)
    largest = max(float(g.norm()) for g in found.values())
    for name, gradient in found.items():
        tensor, size = tensors[name], float(gradient.norm())
        if size < 1e-6 * largest:
            continue  # lost in the rounding errors of the loss
        direction = torch.randn_like(tensor)
        direction = direction / direction.norm() + gradient / size
        values = []
        with torch.no_grad():
            before = tensor.clone()
            for step in (STEP, -STEP):
                tensor.copy_(before + step * direction)
                values.append(float(loss()))
            tensor.copy_(before)
        expected = (values[0] - values[1]) / (2 * STEP)
        slope = float((gradient * direction).sum())
        # Differences of the loss are exact to its own rounding errors.
        rounding = 100 * torch.finfo(torch.float64).eps * abs(values[0]) / STEP
        assert abs(slope - expected) <= 1e-6 * abs(expected) + rounding, f"{name}: {slope} for {expected}"
