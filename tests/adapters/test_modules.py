"""Networks in and out: any keys in any order, round trips to the bit, and one clear error for what does not fit."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from modules_of_torch import SPACE, cnn, shuffled, siren, states
from strategies import spaces
from torch import nn
from torch.func import functional_call

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.adapters.modules import (
    match_names,
    network_outputs,
    stack_networks,
    unstack_networks,
)
from nfn_monomial.space import Node

# -- round trips ------------------------------------------------------------------------------------------------------


@given(spaces(), st.integers(1, 3), st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
def test_round_trip_is_exact(space, count, dtype):
    networks = states(space, count, dtype)
    tensors = stack_networks([shuffled(n, i) for i, n in enumerate(networks)], space)
    assert all(t.shape[:2] == (count, 1) and t.dtype == dtype for t in tensors.values())
    assert list(tensors) == list(space.parameters)
    back = unstack_networks(tensors, space)
    assert [list(n) for n in back] == [list(space.parameters)] * count
    for given_network, found in zip(networks, back, strict=True):
        assert all(torch.equal(given_network[name], found[name]) for name in space.parameters)
    packed = space.unpack(space.pack(tensors))
    assert all(torch.equal(packed[name], tensors[name]) for name in tensors)


def test_modules_in_and_out():
    networks = [cnn() for _ in range(3)]
    space = WeightSpace.from_module(networks[0], torch.zeros(2, 1, 5, 5))
    tensors = stack_networks(networks, space)
    assert list(tensors) == ["0.weight", "0.bias", "1.weight", "2.weight", "3.weight", "5.weight", "5.bias"]
    assert not any(t.requires_grad for t in tensors.values())
    x = torch.randn(4, 1, 5, 5)
    for network, state in zip(networks, unstack_networks(tensors, space), strict=True):
        torch.testing.assert_close(functional_call(networks[0], state, (x,)), network(x))
        network.load_state_dict(state)
    state["0.weight"].zero_()
    assert tensors["0.weight"][2].any()  # unstacked tensors are copies
    assert stack_networks(nn.ModuleList(networks), space)["5.bias"].shape == (3, 1, 2)
    assert stack_networks(networks[0], space)["5.bias"].shape == (1, 1, 2)
    assert stack_networks(networks[0].state_dict(), space)["5.bias"].shape == (1, 1, 2)


def test_modules_into_a_space_of_other_names():
    network = cnn()
    space = WeightSpace.cnn([1, 4, 3], [3, 2], "relu", head=[2], positions=4, bias=[True, False, True])
    tensors = stack_networks([network], space)  # without the slopes of the PReLUs, which it does not have
    for name, key in {"weight.0": "0.weight", "bias.0": "0.bias", "weight.1": "2.weight", "bias.2": "5.bias"}.items():
        assert torch.equal(tensors[name][0, 0], dict(network.named_parameters())[key])


def test_the_order_of_a_sequential_counts_whatever_its_names():
    layers = {"zero": nn.Linear(2, 5), "one": nn.Linear(5, 5), "two": nn.Linear(5, 5), "three": nn.Linear(5, 1)}
    network = nn.Sequential()
    for name, layer in layers.items():
        network.add_module(name, layer)
    tensors = stack_networks([network], SPACE)
    for i, layer in enumerate(layers.values()):
        assert torch.equal(tensors[f"weight.{i}"][0, 0], layer.weight)
    with pytest.raises(ValueError, match=r"both '(one|two)\.weight' and '(one|two)\.weight' fit weight\.1"):
        stack_networks([network.state_dict()], SPACE)


class Normalised(nn.Module):
    """A residual block with batch norm: buffers move with its parameters, and the order of its layers is not known."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x, gate=None):
        x = x + self.outer(self.norm(self.inner(x)).relu())
        return x if gate is None else x * gate


def normalised_space():
    flow, gain, shift, statistics = (Axis("h", charges) for charges in [(1, 0), (0, 1), (1, 1), (0, 0)])
    return WeightSpace(
        {"x": (Symmetry.FIXED, 3), "h": Node((Symmetry.PERMUTATION, Symmetry.SCALE), 5)},
        {
            "inner.weight": (flow, Axis("x", -1)), "inner.bias": (flow,), "norm.weight": (gain,), "norm.bias": (shift,),
            "outer.weight": (Axis("x", 1), Axis("h", (-1, -1))), "outer.bias": (Axis("x", 1),),
            "norm.running_mean": (flow,), "norm.running_var": (statistics,),
        },
    )  # fmt: skip


def test_statistics_that_move_with_the_parameters():
    space, networks = normalised_space(), [Normalised().double().eval() for _ in range(3)]
    for network in networks:
        network.norm.running_mean.normal_()
        network.norm.running_var.uniform_(0.5, 2)
    tensors = stack_networks(networks, space)
    assert list(tensors) == list(space.parameters)
    element = space.sample(3)
    moved = element.act(tensors)
    assert not torch.equal(moved["norm.running_mean"], tensors["norm.running_mean"])
    x, gate = torch.randn(2, 4, 3, dtype=torch.float64)
    outputs = network_outputs(networks[0], moved, (x, gate))
    for network, output in zip(networks, outputs, strict=True):
        torch.testing.assert_close(output, network(x, gate), rtol=1e-10, atol=1e-10)
    assert not any(networks[0].load_state_dict(unstack_networks(moved, space)[1], strict=False))
    torch.testing.assert_close(networks[0](x), networks[1](x))
    states = [network.state_dict() for network in networks]
    assert torch.equal(
        stack_networks(states, space, ignore=("*.num_batches_tracked",))["norm.running_var"][2],
        networks[2].norm.running_var[None],
    )
    with pytest.raises(ValueError, match=r"unexpected: 'norm\.num_batches_tracked' \(\)\. .*ignore=\(key, \.\.\.\)"):
        stack_networks(states, space)
    with pytest.raises(ValueError, match=r"network 0: .*unexpected: .*'6\.weight' .* Missing: inner\.weight \(h"):
        stack_networks(siren(), space)
    with pytest.raises(ValueError, match=r"the module has no parameter 0\.weight"):
        network_outputs(networks[0], {"0.weight": torch.zeros(1, 1, 5, 2)}, x)


def test_modules_that_are_no_chain_go_by_their_names():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(3))
            self.inner = nn.Linear(3, 3)

    h = (Symmetry.PERMUTATION, 3)
    space = WeightSpace({"h": h}, {"gain": (Axis("h", 0),), "inner.weight": (Axis("h", 1), Axis("h", -1)),
                                   "inner.bias": (Axis("h", 1),)})  # fmt: skip
    assert stack_networks([Residual(), Residual()], space)["gain"].shape == (2, 1, 3)
    other = WeightSpace({"h": h}, {"a": (Axis("h", 0),), "b": (Axis("h", 1), Axis("h", -1)), "c": (Axis("h", 1),)})
    with pytest.raises(ValueError, match="network 0: the keys of the state dict do not fit"):
        stack_networks([Residual()], other)
    names = {"a": "gain", "b": "inner.weight", "c": "inner.bias"}
    assert stack_networks([Residual()], other, names=names)["a"].shape == (1, 1, 3)


def test_outputs_of_many_networks_at_once():
    networks = [cnn().double() for _ in range(3)]
    x = torch.randn(4, 1, 5, 5, dtype=torch.float64)
    tensors = stack_networks(networks, WeightSpace.from_module(networks[0], x))
    tensors["0.weight"].requires_grad_()
    outputs = network_outputs(networks[0], tensors, x)
    torch.testing.assert_close(outputs, torch.stack([network(x) for network in networks]))
    outputs.sum().backward()
    assert tensors["0.weight"].grad.any()


def test_outputs_refuse_tensors_of_another_module():
    tensors = stack_networks([siren()], SPACE)
    with pytest.raises(ValueError, match=r"no parameter weight\.0, .*; it has 0\.weight, .*WeightSpace\.from_module"):
        network_outputs(siren(), tensors, torch.zeros(1, 2))
    with pytest.raises(ValueError, match="none given"):
        network_outputs(siren(), {}, torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"0\.weight has shape \(2, 3, 5, 2\); \(2, 1, \*shape\) is expected"):
        network_outputs(siren(), {"0.weight": torch.zeros(2, 3, 5, 2)}, torch.zeros(1, 2))


# -- names ------------------------------------------------------------------------------------------------------------


KEYS = {
    "torch": ["{0}.weight", "{0}.bias"],
    "siren": ["net.{0}.linear.weight", "net.{0}.linear.bias"],
    "lists": ["weights.{0}", "biases.{0}"],
    "numbered": ["fc{0}/kernel:0", "fc{0}/bias:0"],
    "letters": ["layers.{0}.W", "layers.{0}.b"],
    "gaps": ["seq.{1}.weight", "seq.{1}.bias"],
}


@pytest.mark.parametrize("style", KEYS)
@given(spaces(), st.integers(0, 10**6))
@settings(max_examples=20)
def test_any_order_and_naming_of_keys(style, space, seed):
    network = states(space)[0]
    keys = {}
    for name in space.parameters:
        role, index = name.split(".")
        keys[name] = KEYS[style][role == "bias"].format(index, 3 * int(index) + 8)
    state = shuffled({keys[name]: t for name, t in network.items()}, seed)
    assert match_names(state, space) == keys
    renamed = unstack_networks(stack_networks([state], space), space, names=keys)
    assert renamed[0].keys() == state.keys()
    assert all(torch.equal(renamed[0][key], state[key]) for key in state)


def test_numbers_in_keys_may_be_of_any_length():
    space = WeightSpace.mlp([3] * 4, "relu", bias=False)
    numbers = ["9", "10", "1" + "0" * 5000]
    state = {f"{number}.weight": torch.eye(3) for number in reversed(numbers)}
    assert list(match_names(state, space).values()) == [f"{number}.weight" for number in numbers]


def test_groups_of_layers_are_ordered_by_shape():
    space = WeightSpace.cnn([1, 4, 4, 6], 3, "relu", head=[7, 2])
    keys = ["features.0", "features.3", "features.10", "classifier.1", "classifier.2"]
    network = states(space)[0]
    state = {}
    for i, key in enumerate(keys):
        state |= {f"{key}.bias": network[f"bias.{i}"], f"{key}.weight": network[f"weight.{i}"]}
    matched = match_names(shuffled(state), space)
    assert [matched[f"weight.{i}"] for i in range(5)] == [f"{key}.weight" for key in keys]


@given(st.lists(st.booleans(), min_size=4, max_size=4), st.integers(0, 10**6))
def test_a_missing_bias_never_moves_the_others(bias, seed):
    space = WeightSpace.mlp([5] * 5, "tanh", bias=bias)
    network = states(space)[0]
    state = {}
    for name, tensor in network.items():
        role, index = name.split(".")
        state[f"net.{index}.{role}"] = tensor
    matched = match_names(shuffled(state, seed), space)
    assert all(matched[f"bias.{i}"] == f"net.{i}.bias" for i in range(4) if bias[i])
    for other in itertools.product([False, True], repeat=4):
        if list(other) != bias:
            with pytest.raises(ValueError, match="do not fit"):
                match_names(state, WeightSpace.mlp([5] * 5, "tanh", bias=other))


def test_names_given_by_hand():
    network = states(SPACE)[0]
    keys = dict(zip(SPACE.parameters, ["q", "r", "s", "t", "u", "v", "w", "x"], strict=True))
    state = {keys[name]: tensor for name, tensor in network.items()}
    tensors = stack_networks([state], SPACE, names=keys)
    assert all(torch.equal(tensors[name][0, 0], network[name]) for name in network)
    with pytest.raises(
        ValueError, match=r"unexpected: 'w' \(1, 5\)\. Missing: weight\.3 \(y=1, h3=5\)\. .*names=\{'weight\.3': 'its"
    ):
        stack_networks([state], SPACE, names={n: k for n, k in keys.items() if n != "weight.3"})
    with pytest.raises(
        ValueError, match=r"network 0: names= has weight\.9, which .* has not; its parameters: weight\.0"
    ):
        stack_networks([state], SPACE, names=keys | {"weight.9": "q"})
    with pytest.raises(ValueError, match=r"unexpected: 'r' \(5,\)\. Missing: none"):
        stack_networks([state], SPACE, names=keys | {"bias.0": "q"})
    with pytest.raises(ValueError, match=r"names= has weight\.9, which .* has not; its parameters: weight\.0"):
        unstack_networks(tensors, SPACE, names={"weight.9": "q"})


def test_layers_of_equal_shape_and_unordered_names():
    network = states(SPACE)[0]
    words = ["first", "inner", "deep", "last"]
    state = {f"{words[int(n[-1])]}.{n[:-2]}": t for n, t in network.items()}
    with pytest.raises(ValueError, match=r"fit weight\.1, and their keys carry no number .* names=\{'weight\.1': '"):
        stack_networks([state], SPACE)
    names = {n: f"{words[int(n[-1])]}.{n[:-2]}" for n in network}
    assert torch.equal(stack_networks([state], SPACE, names=names)["weight.2"][0, 0], network["weight.2"])
    many = WeightSpace.mlp([3] * 13 + [1], "relu")
    words = [chr(ord("a") + i) * 3 for i in range(13)]
    state = {f"{words[i]}.weight": torch.zeros(3, 3) for i in range(13)} | {f"{w}.bias": torch.zeros(3) for w in words}
    with pytest.raises(ValueError, match=r"do not fit .* in any order"):
        match_names(state, many)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("2.bias"), r"unexpected: '0\.weight' \(5, 2\), .*Missing: weight\.0 \(h1=5, x=2\)"),
        (lambda s: s.update({"9.weight": torch.zeros(1, 1)}), r"unexpected: .*'9\.weight' \(1, 1\)"),
        (lambda s: s.update({"1.num_batches_tracked": torch.zeros(())}), r"'1\.num_batches_tracked' \(\)"),
        (lambda s: s.update({"7.bias": torch.zeros(1)}), r"'7\.bias' \(1,\).*ignore="),
        (lambda s: s.update({"0.weights": torch.zeros(5, 2)}), r"'0\.weights' \(5, 2\)"),
        (lambda s: s.update({"0.weight": torch.zeros(5, 3)}), r"'0\.weight' \(5, 3\)"),
        (lambda s: s.update({"0.weight": torch.zeros(5, 2, 3, 3)}), r"'0\.weight' \(5, 2, 3, 3\)"),
        (lambda s: s.update({"2.bias": torch.zeros(4)}), r"do not fit WeightSpace\.mlp.* in any order"),
    ],
)
def test_keys_that_do_not_fit(change, message):
    state = dict(siren().state_dict())
    change(state)
    with pytest.raises(ValueError, match=message):
        stack_networks([state], SPACE)


def test_keys_to_ignore():
    state = siren().state_dict() | {"1.num_batches_tracked": torch.zeros(()), "label": "7"}
    tensors = stack_networks([state, state], SPACE, ignore=("*.num_batches_tracked", "label"))
    assert tensors["weight.0"].shape == (2, 1, 5, 2)
    with pytest.raises(TypeError, match=r"network 0: no tensors: 'label' \(str\); leave such entries out by ignore="):
        stack_networks([state], SPACE, ignore=("*.num_batches_tracked",))
