"""Probes: what the networks themselves answer, unchanged by every symmetry; hidden neurons move along with theirs."""

import copy

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.read.probes import ProbeFeatures
from nfn_monomial.testing import random_element, random_networks


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(30 * x)


class Siren(nn.Module):
    """With a forward of its own, which calls functions."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 6), nn.Linear(6, 5), nn.Linear(5, 1)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.sin(layer(x))
        return self.layers[-1](x)


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, padding_mode="circular"), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 3, padding="same", dilation=2, bias=False), nn.LeakyReLU(), nn.Dropout(0.5),
        nn.Flatten(), nn.Linear(3 * 4, 5), nn.Tanh(), nn.Linear(5, 3),
    )  # fmt: skip


def dense():
    return nn.Sequential(
        nn.Linear(2, 6), nn.PReLU(), nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)
    )


# How to build it, the shape of an input, the symmetries of its hidden nodes.
TEMPLATES = {
    "dense": (dense, None, ["prelu", "gelu", "tanh"]),
    "sine": (lambda: nn.Sequential(nn.Linear(2, 6), Sine(), nn.Linear(6, 5), Sine(), nn.Linear(5, 1)), None, "sin"),
    "siren": (Siren, None, "sin"),
    "cnn": (convolutional, (2, 8, 8), ["relu", "relu", "tanh"]),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(1, 3, 3), nn.ReLU(), nn.Conv1d(3, 2, 2)), (1, 7), "relu"),
    "one layer": (lambda: nn.Linear(3, 2), None, "relu"),
    "linear": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), None, "linear"),
}
over_templates = pytest.mark.parametrize("key", TEMPLATES)


def space_of(template, symmetry):
    """Of a chain of layers, with the template's names."""
    layers = {n: m for n, m in template.named_modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)}
    shapes = [m.weight.shape for m in layers.values()]
    sizes = [shapes[0][1], *(shape[0] for shape in shapes)]
    dots = [n and f"{n}." for n in layers]
    return WeightSpace.sequential(
        sizes, [tuple(shape[2:]) for shape in shapes], symmetry,
        bias=[m.bias is not None for m in layers.values()], names=[(f"{n}weight", f"{n}bias") for n in dots],
        positions={i: shape[1] // n for i, (shape, n) in enumerate(zip(shapes, sizes, strict=False))},
    )  # fmt: skip


def setting(key, probes=5, batch=4, dtype=torch.float64, **kwargs):
    """A template, its space, probe features and a batch of random networks."""
    torch.manual_seed(0)
    build, shape, symmetry = TEMPLATES[key]
    template = build().to(dtype)
    space = space_of(template, symmetry)
    networks = random_networks(space, batch, dtype=dtype, generator=torch.Generator().manual_seed(0))
    return template, space, ProbeFeatures(template, probes, input_shape=shape, space=space, **kwargs), networks


@over_templates
def test_outputs_are_invariant_and_hidden_neurons_have_charge_one(key):
    _, space, probe, networks = setting(key)
    outputs, hidden = probe(networks)
    assert float(outputs.detach().std(0).max()) > 0.1
    assert list(hidden) == [name for name in space.nodes if name.startswith("h")]
    for seed in range(3):
        g = random_element(space, 4, generator=torch.Generator().manual_seed(seed))
        moved = probe(g.act(networks))
        torch.testing.assert_close(moved.outputs, outputs, rtol=1e-10, atol=1e-10)
        for node, h in hidden.items():
            assert h.shape == (4, space.nodes[node].size, 5)
            assert bool(h.abs().max() > 0)
            expected = g.matrices[node].act(h, 1, charge=1)
            torch.testing.assert_close(moved.hidden[node], expected, rtol=1e-10, atol=1e-10)
            assert not torch.allclose(moved.hidden[node], h, rtol=1e-3, atol=1e-3)


@over_templates
def test_the_networks_are_really_run(key):
    template, _, probe, networks = setting(key)
    template.eval()
    found = probe(networks)
    inputs = []
    layers = [m for m in template.modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)]
    hooks = [layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0])) for layer in layers[1:]]
    for b in range(4):
        out = torch.func.functional_call(template, {k: v[b, 0] for k, v in networks.items()}, (probe.inputs(),))
        torch.testing.assert_close(found.outputs[b], out)
        for (_, h), x in zip(found.hidden.items(), inputs, strict=True):
            torch.testing.assert_close(h[b], x.reshape(5, h.shape[1], -1).mean(-1).T)
        inputs.clear()
    for hook in hooks:
        hook.remove()
    assert probe.out_features == found.outputs[0].numel()


def test_names_of_a_space_and_wider_networks():
    template, _, _, networks = setting("cnn")
    named = WeightSpace.cnn(
        [2, 4, 3], 3, ["relu", "relu", "tanh"], head=[5, 3], positions=4, bias=[True, False, True, True]
    )
    probe = ProbeFeatures(template, 5, input_shape=(2, 8, 8), space=named)
    renamed = dict(zip(named.parameters, networks.values(), strict=True))
    assert torch.equal(probe(renamed).outputs, probe(networks).outputs)
    wide = random_networks(named, 2, sizes={"x": 2, "h1": 7, "h2": 6, "h3": 4, "y": 3})
    assert probe(wide).hidden["h2"].shape == (2, 6, 5)


def test_layers_that_share_a_node():
    """Every layer's weights are the network's own; of the activations of one node, the mean."""
    torch.manual_seed(0)
    template = nn.Sequential(
        nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)
    ).double()
    rows, h = {"x": (Symmetry.FIXED, 2), "h": (Symmetry.SIGN, 4), "y": (Symmetry.FIXED, 1)}, Axis("h")
    space = WeightSpace(
        rows,
        {
            "w0": (h, Axis("x", -1)), "b0": (h,), "w1": (h, Axis("h", -1)), "b1": (h,),
            "w2": (h, Axis("h", -1)), "b2": (h,), "w3": (Axis("y"), Axis("h", -1)), "b3": (Axis("y"),),
        },
    )  # fmt: skip
    own = space_of(template, "tanh")
    networks = random_networks(space, 3, generator=torch.Generator().manual_seed(0))
    named = dict(zip(own.parameters, networks.values(), strict=True))
    inputs = torch.randn(5, 2, dtype=torch.float64)
    apart, shared = ProbeFeatures(template, inputs, space=own), ProbeFeatures(template, inputs, space=space)
    expected, found = apart(named), shared(networks)
    torch.testing.assert_close(found.outputs, expected.outputs)
    assert list(found.hidden) == ["h"]
    torch.testing.assert_close(found.hidden["h"], torch.stack(list(expected.hidden.values())).mean(0))
    g = random_element(space, 3, generator=torch.Generator().manual_seed(1))
    moved = shared(g.act(networks))
    torch.testing.assert_close(moved.outputs, found.outputs, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(moved.hidden["h"], g.matrices["h"].act(found.hidden["h"], 1), rtol=1e-10, atol=1e-10)


def test_a_space_that_leaves_open_what_a_layer_reads():
    template = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    space = WeightSpace({"h": (Symmetry.SIGN, 4)}, {"w0": (Axis("h"), 2), "b0": (Axis("h"),), "w1": (1, 4), "b1": (1,)})
    assert not ProbeFeatures(template, 3, space=space).charges
    space = WeightSpace(
        {"h": (Symmetry.SIGN, 4)},
        {"w0": (Axis("h"), 2), "b0": (Axis("h"),), "w1": (1, Axis("h", -1)), "b1": (1,)},
    )
    probe = ProbeFeatures(template.double(), 3, space=space).double()
    networks = random_networks(space, 2)
    g = random_element(space, 2)
    torch.testing.assert_close(probe(g.act(networks)).outputs, probe(networks).outputs, rtol=1e-10, atol=1e-10)
    assert list(probe(networks).hidden) == ["h"]


@over_templates
def test_gradients_reach_inputs_and_networks(key):
    _, _, probe, networks = setting(key, probes=3, batch=2)
    networks = {k: v.requires_grad_() for k, v in networks.items()}
    outputs, hidden = probe(networks)
    (outputs.square().sum() + sum(h.square().sum() for h in hidden.values())).backward()
    assert bool(probe.probes.grad.any())
    assert all(bool(v.grad.any()) for v in networks.values())


def test_a_generator_makes_the_inputs_and_learns():
    template, space, _, networks = setting("cnn")
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
    with pytest.raises(ValueError, match=r"probes must be a floating point tensor .* found tuple"):
        ProbeFeatures(template, Pair(), space=space)


class Pair(nn.Module):
    def forward(self):
        return torch.zeros(2, 2), torch.zeros(2, 2)


def test_the_template_stays_outside():
    template, _, probe, networks = setting("dense", dtype=torch.float32)
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


def test_dropout_stays_off():
    _, _, probe, networks = setting("cnn")
    probe.train()
    assert torch.equal(probe(networks).outputs, probe(networks).outputs)


@pytest.mark.parametrize("key", ["cnn", "siren"])
def test_compiles_and_vmaps(key):
    _, _, probe, networks = setting(key, dtype=torch.float32)
    outputs, hidden = probe(networks)
    compiled = torch.compile(probe, fullgraph=True, backend="eager")(networks)
    torch.testing.assert_close(compiled.outputs, outputs)
    for node, h in hidden.items():
        torch.testing.assert_close(compiled.hidden[node], h)
    one_by_one = torch.func.vmap(lambda t: probe({k: v[None] for k, v in t.items()}).outputs[0])(networks)
    torch.testing.assert_close(one_by_one, outputs)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(
            probe(networks).outputs.float(), outputs, rtol=0.1, atol=0.3 * float(outputs.detach().std())
        )


def test_what_does_not_fit_is_refused():
    template, _, probe, networks = setting("cnn")
    with pytest.raises(ValueError, match=r"give input_shape="):
        ProbeFeatures(template, 5)
    with pytest.raises(ValueError, match=r"template does not take inputs of shape \(3, 8, 8\)"):
        ProbeFeatures(template, 5, input_shape=(3, 8, 8))
    with pytest.raises(ValueError, match=r"give what comes behind its embedding"):
        ProbeFeatures(nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2)), 5, input_shape=(3,))
    with pytest.raises(ValueError, match=r"probes must be at least 1, found 0"):
        ProbeFeatures(template, 0, input_shape=(2, 8, 8))
    with pytest.raises(ValueError, match=r"the template has 7 parameters \(0\.weight.*, the space 4 \(weight\.0"):
        ProbeFeatures(template, 5, input_shape=(2, 8, 8), space=WeightSpace.mlp([2, 3, 1], "relu"))
    with pytest.raises(ValueError, match=r"weight\.1 has shape"):
        ProbeFeatures(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), 5, space=WeightSpace.mlp([2, 3, 2], "relu"))
    with pytest.raises(ValueError, match=r"missing: 0\.bias"):
        probe({k: v for k, v in networks.items() if k != "0.bias"})
    with pytest.raises(ValueError, match=r"of 1 channel; found 2 channels"):
        probe({k: v.expand(-1, 2, *v.shape[2:]) for k, v in networks.items()})
    with pytest.raises(TypeError, match=r"the networks are torch\.float32 on cpu, their inputs torch\.float64 on cpu"):
        probe({k: v.float() for k, v in networks.items()})


def test_replicas_run_templates_of_their_own():
    """Those of DataParallel run at the same time."""
    _, _, probe, networks = setting("dense")
    replica = probe._replicate_for_data_parallel()
    assert replica._template[0] is not probe._template[0]
    replica.probes = probe.probes
    for found, expected in zip(replica(networks)[1].values(), probe(networks)[1].values(), strict=True):
        torch.testing.assert_close(found, expected)
    assert not any(site.seen for site in (*replica._sites, *probe._sites))
