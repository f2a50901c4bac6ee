"""Probes: what the networks themselves answer, unchanged by every symmetry; hidden neurons move along with theirs."""

import copy

import pytest
import torch
from safetensors.torch import load, save
from templates import CHAINS, TEMPLATES, setting
from torch import nn

from nfn_monomial import Axis, WeightSpace
from nfn_monomial.models import MessagePassingNFN
from nfn_monomial.read.probes import ProbeFeatures
from nfn_monomial.testing import assert_invariant, random_element, random_networks

over_templates = pytest.mark.parametrize("key", TEMPLATES)


@over_templates
def test_outputs_are_invariant_and_hidden_neurons_move_along(key):
    _, space, probe, networks, charges = setting(key)
    outputs, hidden = probe(networks)
    assert probe.charges == charges
    assert list(hidden) == list(charges)
    assert probe.out_features == outputs[0].numel()
    assert float(outputs.detach().std(0).max()) > 0.01
    for seed in range(3):
        g = random_element(space, 4, generator=torch.Generator().manual_seed(seed))
        moved = probe(g.act(networks))
        torch.testing.assert_close(moved.outputs, outputs, rtol=1e-10, atol=1e-10)
        for node, h in hidden.items():
            axes = space.complete((Axis(node, charges[node]),))
            assert h.shape == (4, *(space.nodes[axis.node].size for axis in axes), 5)
            expected = g._moved(h, space.places_of(axes), leading=1)
            torch.testing.assert_close(moved.hidden[node], expected, rtol=1e-10, atol=1e-10)
            assert not torch.allclose(moved.hidden[node], h, rtol=1e-3, atol=1e-3)
    one_by_one = torch.func.vmap(lambda t: probe({k: v[None] for k, v in t.items()}).outputs[0])(networks)
    torch.testing.assert_close(one_by_one, outputs)
    outputs.square().sum().backward()
    assert bool(probe.probes.grad.any())


@over_templates
def test_the_networks_are_really_run(key):
    template, _, probe, networks, _ = setting(key)
    found, inputs = probe(networks), []
    layers = [m for m in template.modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)]
    hooks = [layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0])) for layer in layers[1:]]
    for b in range(4):
        out = torch.func.functional_call(template, {k: v[b, 0] for k, v in networks.items()}, (probe.inputs(),))
        if key == "residual":
            out = torch.cat([out["policy"], out["value"][:, None]], -1)
        torch.testing.assert_close(found.outputs[b], out)
        for h, x in zip(found.hidden.values(), inputs, strict=True) if key in CHAINS else ():
            torch.testing.assert_close(h[b], x.reshape(5, h.shape[1], -1).mean(-1).T)
        inputs.clear()
    for hook in hooks:
        hook.remove()


def test_a_generator_makes_the_inputs_and_learns():
    template, space, _, networks, _ = setting("cnn")
    generator = nn.Sequential(nn.Linear(3, 2 * 8 * 8), nn.Unflatten(1, (2, 8, 8)))
    codes = torch.randn(6, 3, dtype=torch.float64)

    class Generated(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = generator

        def forward(self):
            return self.layers(codes)

    probe = ProbeFeatures(template, Generated().double(), space=space)
    assert probe.count == 6
    expected = generator(codes)
    torch.testing.assert_close(probe.inputs(), expected)
    torch.testing.assert_close(
        probe(networks).outputs, ProbeFeatures(template, expected, space=space)(networks).outputs
    )
    probe(networks).outputs.square().sum().backward()
    assert all(bool(p.grad.any()) for p in generator.parameters())
    assert set(dict(probe.named_parameters())) == {f"generator.layers.0.{name}" for name in ("weight", "bias")}
    with pytest.raises(ValueError, match=r"probes must be a floating point tensor .* found \(Tensor, Tensor\)"):
        ProbeFeatures(template, Pair(), space=space)


class Pair(nn.Module):
    def forward(self):
        return torch.zeros(2, 2), torch.zeros(2, 2)


def test_the_template_stays_outside():
    template, _, probe, networks, _ = setting("dense", dtype=torch.float32)
    assert [name for name, _ in probe.named_parameters()] == ["probes"]
    assert list(probe.state_dict()) == ["probes"]
    expected = probe(networks)
    with torch.no_grad():
        for p in template.parameters():
            p.zero_()
    assert torch.equal(probe(networks).outputs, expected.outputs)
    double = copy.deepcopy(probe).double()  # the slope of PReLU follows
    found = double({k: v.double() for k, v in networks.items()})
    torch.testing.assert_close(found.outputs.float(), expected.outputs)
    assert probe.probes.dtype == torch.float32
    other = setting("dense", dtype=torch.float32)[2]
    torch.nn.init.zeros_(other.probes)
    other.load_state_dict(load(save(probe.state_dict())))
    assert torch.equal(other(networks).outputs, expected.outputs)
    probe.train()
    assert torch.equal(probe(networks).outputs, expected.outputs)


def test_what_does_not_fit_is_refused():
    template, _, probe, networks, _ = setting("cnn")
    with pytest.raises(ValueError, match=r"give input_shape="):
        ProbeFeatures(template, 5)
    with pytest.raises(ValueError, match=r"template does not take inputs of shape \(3, 8, 8\)"):
        ProbeFeatures(template, 5, input_shape=(3, 8, 8))
    with pytest.raises(ValueError, match=r"give the part after its embedding"):
        ProbeFeatures(nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2)), 5, input_shape=(3,))
    with pytest.raises(ValueError, match=r"the template has 7 parameters \(0\.weight.*, the space 4 \(weight\.0"):
        ProbeFeatures(template, 5, input_shape=(2, 8, 8), space=WeightSpace.mlp([2, 3, 1], "relu"))
    with pytest.raises(ValueError, match=r"weight\.1 has shape"):
        ProbeFeatures(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), 5, space=WeightSpace.mlp([2, 3, 2], "relu"))
    with pytest.raises(ValueError, match=r"of 1 channel; found 2 channels"):
        probe({k: v.expand(-1, 2, *v.shape[2:]) for k, v in networks.items()})
    with pytest.raises(TypeError, match=r"the networks are torch\.float32 on cpu, their inputs torch\.float64 on cpu"):
        probe({k: v.float() for k, v in networks.items()})


def test_replicas_run_templates_of_their_own():
    """Those of DataParallel run at the same time."""
    _, _, probe, networks, _ = setting("dense")
    replica = probe._replicate_for_data_parallel()
    assert replica._template[0] is not probe._template[0]
    replica.probes = probe.probes
    for found, expected in zip(replica(networks)[1].values(), probe(networks)[1].values(), strict=True):
        torch.testing.assert_close(found, expected)
    assert not any(site.seen for site in (*replica._sites, *probe._sites))


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


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_inputs_of_encoders_are_learned():
    """In eval mode PyTorch takes one operation for an encoder layer, which has no derivative."""

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 4)
            self.encoder = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
            self.out = nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.encoder(self.first(x)).mean(1))

    torch.manual_seed(0)
    template = Mean().double().eval()
    probe = ProbeFeatures(template, 2, input_shape=(5, 3)).double()
    x = random_networks(probe.space, 3, 1)
    (found,) = torch.autograd.grad(probe(x).outputs.sum(), probe.probes)
    inputs = probe.inputs().detach().requires_grad_()
    template.train()
    for module in template.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    template.encoder.self_attn.dropout = 0.0
    own = [{name: t[b, 0] for name, t in x.items()} for b in range(3)]
    outputs = [torch.func.functional_call(template, network, (inputs,)).sum() for network in own]
    torch.testing.assert_close(found, torch.autograd.grad(sum(outputs), inputs)[0])
    assert torch.backends.mha.get_fastpath_enabled()


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
