"""Probes of templates that are no chains of layers: residual, normalised, attending, with several outputs."""

import pytest
import torch
from templates import setting
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.models import MessagePassingNFN
from nfn_monomial.read.probes import ProbeFeatures
from nfn_monomial.testing import assert_invariant, random_networks


def test_activations_of_all_readers_and_calls_are_averaged():
    template, _, probe, networks, _ = setting("residual")
    seen = []
    hooks = [m.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for m in
             (template.inner, template.out, template.value)]  # fmt: skip
    torch.func.functional_call(template, {k: v[0, 0] for k, v in networks.items()}, (probe.inputs(),))
    assert len(seen) == 4
    torch.testing.assert_close(probe(networks).hidden["s"][0], torch.stack(seen).mean(0).T)
    for hook in hooks:
        hook.remove()


def test_layers_that_run_over_something_else_first_are_left_out():
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 1)

        def forward(self, x):
            return self.b(torch.relu(self.a(x.transpose(0, 1)))).transpose(0, 1)

    space = WeightSpace.sequential([2, 3, 1], [(), ()], "relu", names=[("a.weight", "a.bias"), ("b.weight", "b.bias")])
    probe = ProbeFeatures(TimeFirst().double(), 4, input_shape=(5, 2), space=space)
    assert not probe(random_networks(space, 2)).hidden


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_activations_that_carry_a_factor_on_whole_tensors_are_left_out():
    """Behind a norm that ends a block the sign of all of the stream is free, which no axis of the next layer tells."""
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, dropout=0.0)
    template = nn.Sequential(nn.Linear(3, 4), nn.TransformerEncoder(block, 2), nn.Linear(4, 2)).double().eval()
    space = WeightSpace.from_module(template, torch.randn(2, 5, 3, dtype=torch.float64))
    assert any(node.size == 1 and node.flips for node in space.nodes.values())
    probe = ProbeFeatures(template, 2, input_shape=(5, 3), space=space).double()
    x = random_networks(space, 3, 1)
    assert probe.charges, "some activations carry none"
    assert_invariant(MessagePassingNFN(space, 3, 1, probes=probe).double(), space, inputs=x, trials=1)


def test_what_pytorch_cannot_batch_runs_one_after_the_other():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 1)

        def forward(self, x):
            return self.out(self.lstm(x)[0][:, -1])

    torch.manual_seed(0)
    template = Last().double()
    probe = ProbeFeatures(template, 4, input_shape=(5, 2)).double()
    x = random_networks(probe.space, 3, 1)
    found = probe(x).outputs
    for b in range(3):
        own = {name: t[b, 0] for name, t in x.items()}
        torch.testing.assert_close(found[b], torch.func.functional_call(template, own, (probe.inputs(),)))
