"""Probes of templates that are no chains of layers: residual, normalised, attending, with several outputs."""

import copy

import pytest
import torch
from torch import nn

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.models import MessagePassingNFN
from nfn_monomial.read.probes import ProbeFeatures
from nfn_monomial.space import Node, Sum
from nfn_monomial.testing import assert_function_preserved, assert_invariant, random_element, random_networks

FIXED, PERMUTATION, SIGN, SCALE, MONOMIAL = (
    Symmetry.FIXED, Symmetry.PERMUTATION, Symmetry.SIGN, Symmetry.SCALE, Symmetry.MONOMIAL,
)  # fmt: skip


class Residual(nn.Module):
    """A stream of tanh neurons with a branch that runs twice; two outputs."""

    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.back = nn.Linear(2, 5), nn.Linear(5, 4), nn.Linear(4, 5)
        self.out, self.value = nn.Linear(5, 3), nn.Linear(5, 1)

    def forward(self, x):
        x = torch.tanh(self.embed(x))
        for _ in range(2):
            x = x + self.back(torch.relu(self.inner(x)))
        return {"policy": self.out(x), "value": self.value(x)[:, 0]}


def residual_space():
    return WeightSpace(
        {"x": (FIXED, 2), "s": (SIGN, 5), "h": (SCALE, 4), "y": (FIXED, 3), "v": (FIXED, 1)},
        {
            "embed.weight": (Axis("s"), Axis("x", -1)), "embed.bias": (Axis("s"),),
            "inner.weight": (Axis("h"), Axis("s", -1)), "inner.bias": (Axis("h"),),
            "back.weight": (Axis("s"), Axis("h", -1)), "back.bias": (Axis("s"),),
            "out.weight": (Axis("y"), Axis("s", -1)), "out.bias": (Axis("y"),),
            "value.weight": (Axis("v"), Axis("s", -1)), "value.bias": (Axis("v"),),
        },
    )  # fmt: skip


def normalised():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 2, bias=False), nn.ReLU(), nn.Flatten(),
        nn.Linear(3 * 9, 2),
    )  # fmt: skip


def normalised_space():
    c, h = Axis("c", (1, 0)), Axis("c", (0, 1))
    return WeightSpace(
        {"x": (FIXED, 1), "c": Node((PERMUTATION, SCALE), 4), "d": (SCALE, 3), "y": (FIXED, 2)},
        {
            "0.weight": (c, Axis("x", -1), 3, 3), "0.bias": (c,), "1.weight": (h,), "1.bias": (h,),
            "1.running_mean": (c,), "1.running_var": (c,),
            "3.weight": (Axis("d"), Axis("c", (-1, -1)), 2, 2), "6.weight": (Axis("y"), (Axis("d", -1), 9)),
            "6.bias": (Axis("y"),),
        },
    )  # fmt: skip


class Attention(nn.Module):
    """Tokens of two numbers, two heads of three; queries, keys and values of one fused layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv = nn.Linear(2, 4), nn.Linear(4, 18, bias=False)
        self.mix, self.out = nn.Linear(6, 4), nn.Linear(4, 1)

    def forward(self, x):
        x = nn.functional.gelu(self.embed(x))
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.mT).softmax(-1) @ v
        return self.out((x + self.mix(mixed.transpose(1, 2).flatten(-2))).mean(1))


def attention_space():
    s, columns = Axis("s"), Axis("s", -1)
    return WeightSpace(
        {"x": (FIXED, 2), "s": (PERMUTATION, 4), "heads": (PERMUTATION, 2), "q": Node((MONOMIAL,), 3, "heads"),
         "v": Node((MONOMIAL,), 3, "heads"), "y": (FIXED, 1)},
        {
            "embed.weight": (s, Axis("x", -1)), "embed.bias": (s,),
            "qkv.weight": (Sum((Axis("q"), Axis("q", -1), Axis("v"))), columns),
            "mix.weight": (s, Axis("v", -1)), "mix.bias": (s,), "out.weight": (Axis("y"), columns),
            "out.bias": (Axis("y"),),
        },
    )  # fmt: skip


class Joined(nn.Module):
    """Two branches whose outputs are concatenated, as in a U-Net."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Conv1d(1, 3, 2), nn.Conv1d(1, 2, 2), nn.Conv1d(5, 2, 2)

    def forward(self, x):
        return self.out(torch.cat([torch.relu(self.a(x)), torch.tanh(self.b(x))], 1))


def joined_space():
    return WeightSpace(
        {"x": (FIXED, 1), "a": (SCALE, 3), "b": (SIGN, 2), "y": (FIXED, 2)},
        {
            "a.weight": (Axis("a"), Axis("x", -1), 2), "a.bias": (Axis("a"),),
            "b.weight": (Axis("b"), Axis("x", -1), 2), "b.bias": (Axis("b"),),
            "out.weight": (Axis("y"), Sum((Axis("a", -1), Axis("b", -1))), 2), "out.bias": (Axis("y"),),
        },
    )  # fmt: skip


TEMPLATES = {
    "residual": (Residual, residual_space, (2,), {"s": 1, "h": 1}),
    "normalised": (normalised, normalised_space, (1, 6, 6), {"c": (1, 1), "d": 1}),
    "attention": (Attention, attention_space, (5, 2), {"s": 1, "v": 1}),
    "joined": (Joined, joined_space, (1, 7), {"a": 1, "b": 1}),
}
SLOW = pytest.mark.slow
over_templates = pytest.mark.parametrize("key", TEMPLATES)


def setting(key, dtype=torch.float64):
    torch.manual_seed(0)
    build, space, shape, charges = TEMPLATES[key]
    template, space = build().to(dtype).eval(), space()
    networks = random_networks(space, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    if key == "normalised":
        networks["1.running_var"] = networks["1.running_var"].square() + 0.1
    return template, space, ProbeFeatures(template, 5, input_shape=shape, space=space), networks, charges


@over_templates
def test_outputs_are_invariant_and_hidden_neurons_move_along(key):
    template, space, probe, networks, charges = setting(key)
    if key == "joined":
        assert_function_preserved(template, space, probe.inputs().detach())
    outputs, hidden = probe(networks)
    assert probe.charges == charges
    assert list(hidden) == list(charges)
    assert probe.out_features == outputs[0].numel()
    for seed in range(3):
        g = random_element(space, 3, generator=torch.Generator().manual_seed(seed))
        moved = probe(g.act(networks))
        torch.testing.assert_close(moved.outputs, outputs, rtol=1e-10, atol=1e-10)
        for node, h in hidden.items():
            axes = space.complete((Axis(node, charges[node]),))
            assert h.shape == (3, *(space.nodes[axis.node].size for axis in axes), 5)
            expected = g._moved(h, axes, behind=1)
            torch.testing.assert_close(moved.hidden[node], expected, rtol=1e-10, atol=1e-10)
            assert not torch.allclose(moved.hidden[node], h, rtol=1e-3, atol=1e-3)


@over_templates
def test_the_networks_are_really_run(key):
    template, _, probe, networks, _ = setting(key)
    outputs = probe(networks).outputs
    for b in range(3):
        state = {name: t[b, 0] for name, t in networks.items()}
        found = torch.func.functional_call(template, state, (probe.inputs(),))
        if key == "residual":
            found = torch.cat([found["policy"], found["value"][:, None]], -1)
        torch.testing.assert_close(outputs[b], found)


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


@pytest.mark.parametrize("key", [key if key == "attention" else pytest.param(key, marks=SLOW) for key in TEMPLATES])
def test_compiles(key):
    _, _, probe, networks, _ = setting(key, torch.float32)
    outputs, hidden = probe(networks)
    compiled = torch.compile(probe, fullgraph=True, backend="eager")(networks)
    torch.testing.assert_close(compiled.outputs, outputs)
    assert all(torch.allclose(compiled.hidden[node], h, atol=1e-6) for node, h in hidden.items())


@over_templates
def test_vmaps_copies_and_has_gradients(key):
    _, _, probe, networks, _ = setting(key, torch.float32)
    outputs, hidden = probe(networks)
    one_by_one = torch.func.vmap(lambda t: probe({k: v[None] for k, v in t.items()}).outputs[0])(networks)
    torch.testing.assert_close(one_by_one, outputs)
    copied = copy.deepcopy(probe)
    assert torch.equal(copied(networks).hidden[next(iter(hidden))], hidden[next(iter(hidden))])
    networks = {k: v.requires_grad_() for k, v in networks.items()}
    outputs, hidden = probe(networks)
    (outputs.square().sum() + sum(h.square().sum() for h in hidden.values())).backward()
    assert bool(probe.probes.grad.any())
    assert all(bool(v.grad.any()) for name, v in networks.items() if "running" not in name)


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


def test_the_space_is_that_of_the_module_by_default():
    template = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    probe = ProbeFeatures(template, 3)
    assert list(probe.space.parameters) == [name for name, _ in template.named_parameters()]
    assert list(probe.charges.values()) == [1]


def test_parameters_that_the_template_has_not_are_refused():
    with pytest.raises(ValueError, match=r"the template has 4 parameters \(0\.weight.*, the space 10 \(embed\.weight"):
        ProbeFeatures(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)), 3, space=residual_space())


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
