"""Networks in and out: any keys in any order, round trips to the bit, and one clear error for what does not fit."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from modules_of_torch import SPACE, cnn, shuffled, siren, states
from networks.zoo import Of
from strategies import spaces
from torch import nn
from torch.func import functional_call
from torch.nn.utils import prune

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.adapters.modules import match_names, network_outputs, stack_networks, unstack_networks
from nfn_monomial.testing import random_networks


@given(spaces(), st.integers(1, 3), st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
def test_round_trip_is_exact(space, count, dtype):
    networks = states(space, count, dtype)
    tensors = stack_networks([shuffled(n, i) for i, n in enumerate(networks)], space)
    assert all(t.shape[:2] == (count, 1) and t.dtype == dtype for t in tensors.values())
    back = unstack_networks(tensors, space)
    assert [list(n) for n in back] == [list(tensors)] * count == [list(space.parameters)] * count
    for network, found in zip(networks, back, strict=True):
        assert all(torch.equal(network[name], found[name]) for name in space.parameters)


def test_modules_in_and_out():
    networks = [cnn() for _ in range(3)]
    space = WeightSpace.from_module(networks[0], torch.zeros(2, 1, 5, 5))
    tensors = stack_networks(networks, space)
    assert list(tensors) == ["0.weight", "0.bias", "1.weight", "2.weight", "3.weight", "5.weight", "5.bias"]
    x = torch.randn(4, 1, 5, 5)
    for network, state in zip(networks, unstack_networks(tensors, space), strict=True):
        torch.testing.assert_close(functional_call(networks[0], state, (x,)), network(x))
    tensors["0.weight"].requires_grad_()
    outputs = network_outputs(networks[0], tensors, x)
    torch.testing.assert_close(outputs, torch.stack([network(x) for network in networks]))
    outputs.sum().backward()
    assert tensors["0.weight"].grad.any()
    state["0.weight"].zero_()
    assert tensors["0.weight"][2].any()  # unstacked tensors are copies
    assert stack_networks(nn.ModuleList(networks), space)["5.bias"].shape == (3, 1, 2)
    for one in (networks[0], networks[0].state_dict()):
        assert stack_networks(one, space)["5.bias"].shape == (1, 1, 2)


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
    with pytest.raises(ValueError, match="fit weight"):  # of another module, whose order nobody knows
        stack_networks([Of(len, **layers)], SPACE)


class Normalised(nn.Module):
    """A residual block with batch norm: buffers move with its parameters, and the order of its layers is not known."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x, gate=None):
        x = x + self.outer(self.norm(self.inner(x)).relu())
        return x if gate is None else x * gate


def test_statistics_that_move_with_the_parameters():
    networks = [Normalised().double().eval() for _ in range(3)]
    x, gate = torch.randn(2, 4, 3, dtype=torch.float64)
    space = WeightSpace.from_module(networks[0], (x, gate))
    for network in networks:
        network.norm.running_mean.normal_()
        network.norm.running_var.uniform_(0.5, 2)
    tensors = stack_networks(networks, space)
    assert list(tensors) == list(space.parameters)
    moved = space.sample(3).act(tensors)
    assert not torch.equal(moved["norm.running_mean"], tensors["norm.running_mean"])
    outputs = network_outputs(networks[0], moved, (x, gate))
    for network, output in zip(networks, outputs, strict=True):
        torch.testing.assert_close(output, network(x, gate), rtol=1e-10, atol=1e-10)
    states = [network.state_dict() for network in networks]
    counted = stack_networks(states, space, ignore=("*.num_batches_tracked",))
    assert torch.equal(counted["norm.running_var"][2, 0], networks[2].norm.running_var)
    torch.testing.assert_close(stack_networks(states, space), counted, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"network 2 of 2: .*unexpected: 'label' \(\)\. .*ignore=\(key, \.\.\.\)"):
        stack_networks([states[0], states[1] | {"label": torch.zeros(())}], space)


def test_modules_that_are_no_chain_go_by_their_names():
    module, h = Normalised(), (Symmetry.PERMUTATION, 3)
    space = WeightSpace({"h": h}, {"a": (Axis("h", 0),), "b": (Axis("h", 0),)})
    with pytest.raises(ValueError, match="network 1 of 1: the keys of the state dict do not fit"):
        stack_networks([module], space)
    other = WeightSpace({"h": (Symmetry.PERMUTATION, 5)}, {"a": (Axis("h", 0),), "b": (Axis("h", 0),)})
    found = stack_networks([module], other, names={"a": "norm.weight", "b": "inner.bias"})
    assert torch.equal(found["b"][0, 0], module.inner.bias)


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


@given(st.lists(st.booleans(), min_size=3, max_size=3), st.integers(0, 10**6))
def test_a_missing_bias_never_moves_the_others(bias, seed):
    space = WeightSpace.mlp([5] * 4, "tanh", bias=bias)
    state = {f"net.{name[-1]}.{name[:-2]}": tensor for name, tensor in states(space)[0].items()}
    matched = match_names(shuffled(state, seed), space)
    assert all(matched[f"bias.{i}"] == f"net.{i}.bias" for i in range(3) if bias[i])
    for other in itertools.product([False, True], repeat=3):
        if list(other) != bias:
            with pytest.raises(ValueError, match="do not fit"):
                match_names(state, WeightSpace.mlp([5] * 4, "tanh", bias=other))


WORDS = ["first", "inner", "deep", "last"]


def test_names_given_by_hand():
    network = states(SPACE)[0]
    keys = {name: f"{WORDS[int(name[-1])]}.{name[:-2]}" for name in network}
    state = {keys[name]: tensor for name, tensor in network.items()}
    with pytest.raises(ValueError, match=r"fit weight\.1, and their keys carry no number .* names=\{'weight\.1': '"):
        stack_networks([state], SPACE)
    tensors = stack_networks([state], SPACE, names=keys)
    assert all(torch.equal(tensors[name][0, 0], network[name]) for name in network)
    wrong = {
        r"unexpected: 'last\.weight' \(1, 5\)\. Missing: weight\.3 \(y=1, h3=5\)\. .*names=\{'weight\.3': 'its": {
            name: key for name, key in keys.items() if name != "weight.3"
        },
        r"network 1 of 1: names= has weight\.9, which .* has not; its parameters: weight\.0": keys | {"weight.9": "q"},
        r"unexpected: 'first\.bias' \(5,\)\. Missing: none": keys | {"bias.0": "first.weight"},
    }
    for message, names in wrong.items():
        with pytest.raises(ValueError, match=message):
            stack_networks([state], SPACE, names=names)
    with pytest.raises(ValueError, match=r"names= has weight\.9, which .* has not; its parameters: weight\.0"):
        unstack_networks(tensors, SPACE, names={"weight.9": "q"})


def test_matching_gives_up_where_there_are_too_many_orders():
    words = [chr(ord("a") + i) * 3 for i in range(13)]
    state = {f"{word}.weight": torch.zeros(3, 3) for word in words} | {f"{w}.bias": torch.zeros(3) for w in words}
    with pytest.raises(ValueError, match=r"do not fit .* in any order"):
        match_names(state, WeightSpace.mlp([3] * 13 + [1], "relu"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"2.bias": None}, r"unexpected: '0\.weight' \(5, 2\), .*Missing: weight\.0 \(h1=5, x=2\)"),
        ({"9.weight": (1, 1)}, r"unexpected: .*'9\.weight' \(1, 1\)"),
        ({"1.steps": ()}, r"'1\.steps' \(\)"),
        ({"7.bias": (1,)}, r"'7\.bias' \(1,\).*ignore="),
        ({"0.weight": (5, 2, 3, 3)}, r"'0\.weight' \(5, 2, 3, 3\)"),
        ({"2.bias": (4,)}, r"do not fit WeightSpace\.mlp.* in any order"),
    ],
)
def test_keys_that_do_not_fit(changes, message):
    state = {key: t for key, t in siren().state_dict().items() if changes.get(key, ()) is not None}
    state |= {key: torch.zeros(shape) for key, shape in changes.items() if shape is not None}
    with pytest.raises(ValueError, match=message):
        stack_networks([state], SPACE)


def test_keys_to_ignore():
    state = siren().state_dict() | {"1.num_batches_tracked": torch.zeros(()), "label": "7"}
    tensors = stack_networks([state, state], SPACE, ignore=("*.num_batches_tracked", "label"))
    assert tensors["weight.0"].shape == (2, 1, 5, 2)
    with pytest.raises(
        TypeError, match=r"network 1 of 1: no tensors: 'label' \(str\); leave such entries out by ignore="
    ):
        stack_networks([state], SPACE, ignore=("*.num_batches_tracked",))


def diverged(value):
    networks = states(SPACE, 2)
    networks[1]["bias.2"][0] = value
    return networks


def stacked(*networks):
    return lambda: stack_networks(networks, SPACE)


X, GOOD = torch.zeros(1, 2), siren().state_dict()
REFUSED = {
    r"network 2 of 2: 0\.weight has shape \(6, 2\) but in network 1 of 2 it is \(5, 2\)": stacked(GOOD, siren(6)),
    r"network 3 of 3: 0\.weight is torch\.float64 on cpu but in network 1 of 3 it is": stacked(
        GOOD, GOOD, siren().double()
    ),
    r"network 1 of 1: .* has dtype torch\.int32; floating": stacked({key: t.int() for key, t in GOOD.items()}),
    "network 2 of 2: it is a list; a module or a state dict is expected": stacked(GOOD, [1.0]),
    "no networks given": stacked(),
    r"network 2 of 2: bias\.2 holds NaN or infinite": stacked(*diverged(math.nan)),
    r"network 2 of 2: bias\.2 holds NaN or infinite .alues": stacked(*diverged(-math.inf)),
    r"weight\.0 has 2 channels; a network has one": lambda: unstack_networks(random_networks(SPACE, 3, 2), SPACE),
    "missing: bias": lambda: unstack_networks({"weight.0": torch.zeros(1, 1, 5, 2)}, SPACE),
    r"no parameter weight\.0, .*; it has 0\.weight, .*WeightSpace\.from_module": lambda: network_outputs(
        siren(), stack_networks([GOOD], SPACE), X
    ),
    "none given": lambda: network_outputs(siren(), {}, X),
    r"0\.weight has shape \(2, 3, 5, 2\); \(2, 1, \*shape\) is expected": lambda: network_outputs(
        siren(), {"0.weight": torch.zeros(2, 3, 5, 2)}, X
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_networks_that_do_not_go_into_one_batch(message):
    with pytest.raises((ValueError, TypeError), match=message):
        REFUSED[message]()


def reparametrised(kind):
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    {
        "prune": lambda layer: prune.random_unstructured(layer, "weight", amount=0.5),
        "weight_norm": torch.nn.utils.weight_norm,
        "spectral_norm": torch.nn.utils.spectral_norm,
        "parametrize": torch.nn.utils.parametrizations.weight_norm,
    }[kind](network[0])
    return network


KINDS = {
    "prune": r"0\.weight_mask is of pruned weights, which torch\.nn\.utils\.prune\.remove",
    "weight_norm": r"0\.weight_g is of weight norm, which .*remove_weight_norm",
    "spectral_norm": r"0\.weight_u is of spectral norm, which .*remove_spectral_norm",
    "parametrize": r"0\.parametrizations\.weight\.original0 is of .*remove_parametrizations",
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_made_of_others(kind):
    networks = [reparametrised(kind).double() for _ in range(2)]
    x = torch.randn(5, 3, dtype=torch.float64)
    space = WeightSpace.from_module(networks[0], x)
    tensors = stack_networks(networks, space)
    moved = space.sample(2).act(tensors)
    for i, network in enumerate(networks):
        expected = network.eval()(x)
        output = functional_call(network, {name: t[i, 0] for name, t in moved.items()}, x)
        torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match=f"network 1 of 1: .*{KINDS[kind]}"):
        stack_networks([networks[0].state_dict()], WeightSpace.mlp([3, 4, 2], "relu"))
    if kind in ("prune", "spectral_norm"):  # of a module the masks and vectors are left out, as buffers are
        with pytest.raises(ValueError, match=r"0\.weight_orig is of pruned weights or of spectral norm"):
            stack_networks(networks[:1], WeightSpace.mlp([3, 4, 2], "relu"))
