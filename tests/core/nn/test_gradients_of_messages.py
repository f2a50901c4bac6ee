"""Gradients of whole models of messages: first ones by both ways of computing them, and by finite differences."""

import pytest
import torch
from neuron_features import generator

from nfn_monomial import WeightSpace
from nfn_monomial.models import MessagePassingEditor, MessagePassingNFN
from nfn_monomial.nn import edges as of_edges
from nfn_monomial.testing import random_networks

MODELS = pytest.mark.parametrize("kind", [MessagePassingNFN, MessagePassingEditor])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several of them even of few edges."""
    monkeypatch.setattr(of_edges, "BLOCK", 500)


def loss_of(kind, sizes, activation, batch):
    """A smooth number of a model's output, the networks, and what it can be differentiated by."""
    torch.manual_seed(0)
    space = WeightSpace.mlp(sizes, activation)
    model = kind(space, 3, 2).double()
    networks = random_networks(space, batch, generator=generator(0))
    inputs = [*(x.requires_grad_() for x in networks.values()), *model.parameters()]

    def loss():
        out = model(networks)
        tensors = (out,) if isinstance(out, torch.Tensor) else out.tensors
        return sum(((i + 1) * t).sin().sum() for i, t in enumerate(tensors))

    return loss, inputs


def gradients(loss, inputs, create_graph):
    return torch.autograd.grad(loss(), inputs, create_graph=create_graph, allow_unused=True, materialize_grads=True)


@MODELS
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_first_gradients_are_the_same_with_and_without_a_graph_of_their_own(kind, activation):
    loss, inputs = loss_of(kind, [2, 6, 6, 1], activation, 4)
    expected, found = (gradients(loss, inputs, create_graph) for create_graph in (False, True))
    size = max(float(g.abs().max()) for g in expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10 * size)


@MODELS
@pytest.mark.parametrize("create_graph", [False, True])
def test_first_gradients_are_those_of_finite_differences(kind, create_graph):
    """Along directions over all inputs and parameters at once."""
    loss, inputs = loss_of(kind, [2, 4, 4, 1], "tanh", 3)
    found = gradients(loss, inputs, create_graph)
    step, draws = 1e-5, generator(1)
    for _ in range(3):
        along = [torch.randn(x.shape, dtype=x.dtype, generator=draws) for x in inputs]
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                for x, d in zip(inputs, along, strict=True):
                    x += sign * step * d
                ends.append(float(loss().detach()))
                for x, d in zip(inputs, along, strict=True):
                    x -= sign * step * d
        slope = float(sum((g.detach() * d).sum() for g, d in zip(found, along, strict=True)))
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5)
