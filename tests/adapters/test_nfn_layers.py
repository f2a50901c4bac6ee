"""Counterparts of nfn's pools, norms, channel maps and statistics; messages and probes between its features."""

import copy
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nfn.layers import ChannelLinear, NPLinear, NPPool, SimpleLayerNorm, StatFeaturizer
from nfn_networks import SIREN, arguments, features, leaves, seeds, spec_of
from strategies import spaces
from torch import nn

from nfn_monomial import Symmetry, WeightSpace
from nfn_monomial.adapters.nfn import (
    MonomialActivation,
    MonomialCanonicalize,
    MonomialChannelLinear,
    MonomialLayerNorm,
    MonomialLinear,
    MonomialMessagePassing,
    MonomialPool,
    MonomialProbes,
    MonomialStack,
    MonomialStatistics,
    check_invariant,
    from_tensors,
    to_tensors,
)
from nfn_monomial.read import InvariantStatistics, ProbeFeatures
from nfn_monomial.testing import assert_equivariant, assert_invariant, random_networks

RELU = WeightSpace.mlp([2, 6, 5, 1], "relu")
CNN = WeightSpace.cnn([1, 4, 3], 3, "relu", head=[2])
CHAINS = {
    "relu": RELU,
    "tanh": WeightSpace.mlp([3, 5, 2], "tanh"),
    "relu, then sin": WeightSpace.mlp([2, 4, 3, 2], ["relu", "sin"]),
    "cnn, relu": CNN,
    "cnn, tanh": WeightSpace.cnn([2, 3, 3], (3, 1), "tanh", ndim=1, head=[2]),
    "linear": WeightSpace.mlp([2, 4, 2], "linear"),
}


def drawn(module, seed=0):
    """The module in float64, none of whose parameters is 0, as after training."""
    generator = torch.Generator().manual_seed(seed)
    for p in module.parameters():
        p.data = torch.randn(p.shape, generator=generator)
    return module.double()


EQUIVARIANT = {
    "norm": lambda spec, c, given: MonomialLayerNorm(spec, c, **given),
    "channels": lambda spec, c, given: MonomialChannelLinear(spec, c, 2, **given),
    "channels without a bias": lambda spec, c, given: MonomialChannelLinear(spec, c, 4, bias=False, **given),
    "messages": lambda spec, c, given: MonomialMessagePassing(spec, c, 2, channels=3, layers=2, **given),
    "messages, tied": lambda spec, c, given: MonomialMessagePassing(
        spec, c, 1, channels=2, tied=True, norm=False, **given
    ),
    "kaiming": lambda spec, c, given: MonomialLinear(spec, c, 2, init_type="kaiming_normal", **given),
}


@pytest.mark.parametrize("layer", EQUIVARIANT)
@given(space=spaces(), seed=seeds, batch=st.integers(1, 3), c=st.integers(2, 5))
def test_layers_keep_the_symmetries(layer, space, seed, batch, c):
    made = drawn(EQUIVARIANT[layer](spec_of(space), c, arguments(space)), seed)
    inputs = features(space, batch, c, seed=seed)
    assert_equivariant(made, space, inputs=inputs, trials=1, seed=seed, rtol=1e-9 if "messages" in layer else 1e-10)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("layer", EQUIVARIANT)
def test_a_layer_answers_alike_in_a_stack_and_alone(name, layer):
    space = CHAINS[name]
    spec, given_symmetry = spec_of(space, known=False), arguments(space)
    made = drawn(EQUIVARIANT[layer](spec, 3, given_symmetry))
    x, stack = features(space, c=3), MonomialStack(spec, made)
    for found, expected in zip(leaves(stack(x)), leaves(made(x)), strict=True):
        torch.testing.assert_close(found, expected)
    outside = x.map(lambda t: t.requires_grad_())
    sum(t.square().sum() for t in leaves(made(outside))).backward()
    assert all(t.grad.isfinite().all() and t.grad.any() for t in leaves(outside))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in made.parameters())


# -- NPPool -----------------------------------------------------------------------------------------------------------

FREE = {
    "mlp": WeightSpace.mlp([3, 5, 4], "relu", io_symmetry="permutation"),
    "one layer": WeightSpace.mlp([3, 4], (), io_symmetry="permutation"),
    "cnn": WeightSpace.cnn([2, 4, 3], (3, 2), "tanh", head=[2], io_symmetry="permutation"),
}


@pytest.mark.parametrize("name", FREE)
def test_pool_of_permuted_inputs_and_outputs_is_np_pool(name):
    space = FREE[name]
    spec, x = spec_of(space, known=False), features(space, c=3)
    pool = MonomialPool(spec, io_symmetry="permutation")
    assert pool.num_outs == NPPool.get_num_outs(spec) == MonomialPool.get_num_outs(spec, io_symmetry="permutation")
    torch.testing.assert_close(pool(x), NPPool(spec)(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FREE)
def test_a_network_of_permuted_inputs_and_outputs_is_invariant(name):
    space = FREE[name]
    spec, given_symmetry = spec_of(space, known=False), arguments(space)
    layers = [MonomialLinear(spec, 1, 4, **given_symmetry), MonomialCanonicalize(spec, 4, **given_symmetry)]
    stack = drawn(MonomialStack(spec, *layers, MonomialPool(spec, io_symmetry="permutation")))
    assert_invariant(stack, space, inputs=features(space))
    apart = nn.Sequential(*layers, MonomialPool(spec_of(space)))
    with pytest.raises(AssertionError, match=r"layer 2 \(MonomialPool\) breaks permutations of inputs and outputs"):
        check_invariant(apart, spec, inputs=features(space))
    with pytest.raises(ValueError, match=r"layer 2 \(MonomialPool\) .* breaks permutations of inputs and outputs"):
        MonomialStack(spec, *layers, MonomialPool(spec))


def test_sizes_that_are_averaged_over_need_not_be_known():
    space = WeightSpace.mlp([3, 5, 4], "relu", io_symmetry="permutation")
    spec = spec_of(space)
    for array in (spec.weight_spec[0], spec.weight_spec[1]):
        object.__setattr__(array, "shape", (-1, -1))
    assert MonomialPool(spec, io_symmetry="permutation")(features(space)).shape == (3, 1, 4)


# -- io_embed and init_type -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHAINS)
def test_embeddings_tell_inputs_and_outputs_apart_and_keep_hidden_symmetries(name):
    space = CHAINS[name]
    spec = spec_of(space, known=False)
    layer = drawn(MonomialLinear(spec, 2, 3, io_embed=True, symmetry=arguments(space)["symmetry"]))
    assert_equivariant(layer, space, inputs=features(space, c=2))
    ends = {node: ("permutation", m.size) if node in "xy" else m for node, m in space.nodes.items()}
    free = WeightSpace({n: (Symmetry.PERMUTATION, m[1]) if isinstance(m, tuple) else m for n, m in ends.items()},
                       space.parameters)  # fmt: skip
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(layer, free, inputs=features(space, c=2))


@pytest.mark.parametrize("shape", ["mlp", "cnn"])
def test_embeddings_are_those_of_np_linear(shape):
    space = CNN if shape == "cnn" else WeightSpace.mlp([3, 5, 4], "relu")
    spec = spec_of(space, known=False)
    theirs = NPLinear(spec, 2, 3, io_embed=True)
    ours = MonomialLinear(spec, 2, 3, True, symmetry="permutation")
    for name in ("in_embed", "out_embed", "out_bias_embed"):
        assert getattr(ours.core, name).numel() == getattr(theirs, name).numel()
    # With embeddings of 0 it is the layer without them.
    for name in ("in_embed", "out_embed", "out_bias_embed"):
        nn.init.zeros_(getattr(ours.core, name))
    plain = MonomialLinear(spec, 2, 3, symmetry="permutation", io_symmetry="permutation")
    plain.core.load_state_dict(ours.core.linear.state_dict())
    x = features(space, c=2, dtype=torch.float32)
    for found, expected in zip(leaves(ours(x)), leaves(plain(x)), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_number_of_maps_with_embeddings_does_not_grow_with_inputs():
    def count(inputs, **more):
        spec = spec_of(WeightSpace.mlp([inputs, 5, 1], "relu"), known=False)
        return sum(p.numel() for p in MonomialLinear(spec, 1, 1, symmetry="permutation", **more).parameters())

    assert count(20, io_embed=True) - count(10, io_embed=True) == 10
    assert count(20) - count(10) > 300


def test_kaiming_normal_doubles_the_variance_and_starts_biases_at_0():
    torch.manual_seed(0)
    spec = spec_of(SIREN, known=False)
    plain, kaiming = (
        MonomialLinear(spec, 64, 64, init_type=kind, symmetry="permutation")
        for kind in ("pytorch_default", "kaiming_normal")
    )
    for name, p in kaiming.named_parameters():
        if name.endswith("bias"):
            assert not p.any()
        else:
            ratio = p.detach().var() / plain.get_parameter(name).detach().var()
            assert 1.7 < float(ratio) < 2.3, name
    before = copy.deepcopy(kaiming.state_dict())
    torch.manual_seed(1)
    kaiming.core.reset_parameters()
    assert all(t.var() > 0.7 * before[name].var() for name, t in kaiming.state_dict().items() if "mix" in name)


# -- what nfn's own layers give ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["relu", "tanh", "cnn, relu"])
def test_the_norm_is_simple_layer_norm_where_nothing_acts(name):
    space = CHAINS[name].restricted("permutation")
    spec = spec_of(space, known=False)
    ours, theirs = MonomialLayerNorm(spec, 4, symmetry="permutation").double(), SimpleLayerNorm(spec, 4).double()
    x = features(space, c=4)
    for found, expected in zip(leaves(ours(x)), leaves(theirs(x)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_norm_brings_scaled_networks_to_size_one():
    spec = spec_of(RELU, known=False)
    norm, x = MonomialLayerNorm(spec, 4, symmetry="relu").double(), features(RELU, c=4)
    small = x.map(lambda t: 1e-9 * t)
    for found, expected in zip(leaves(norm(small))[:-1], leaves(norm(x))[:-1], strict=True):
        torch.testing.assert_close(found, expected)
    out = norm(x)
    assert 0.1 < float(torch.cat([t.detach().flatten() for t in leaves(out)]).square().mean()) < 10
    zero = norm(x.map(torch.zeros_like))
    assert not any(t.any() for t in leaves(zero))


@pytest.mark.parametrize("scale", [1e-3, 1e25])
def test_layer_norms_of_numbers_whose_squares_overflow(scale):
    space = WeightSpace.mlp([3, 5, 4], "tanh")
    norm = MonomialLayerNorm(spec_of(space), 4, symmetry="tanh", eps=0.0)
    x = features(space, c=4).map(lambda t: t.float())
    for found, expected in zip(leaves(norm(x.map(lambda t: scale * t))), leaves(norm(x)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_the_gradient_of_the_norm_is_that_of_finite_differences():
    spec = spec_of(RELU, known=False)
    norm = MonomialLayerNorm(spec, 2, symmetry="relu").double()
    tensors = random_networks(RELU, 2, 2, generator=torch.Generator().manual_seed(0))
    step = random_networks(RELU, 2, 2, generator=torch.Generator().manual_seed(1))

    def size(t):
        moved = from_tensors({name: x + t * step[name] for name, x in tensors.items()})
        return sum(x.sin().sum() for x in leaves(norm(moved)))

    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(size(t), t)
    with torch.no_grad():
        expected = (size(torch.tensor(1e-5)) - size(torch.tensor(-1e-5))) / 2e-5
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_channel_linear_is_nfns_where_nothing_acts(bias):
    theirs = ChannelLinear(3, 2, bias).double()
    for name, space in CHAINS.items():
        ours = MonomialChannelLinear(spec_of(space, known=False), 3, 2, bias, symmetry="permutation").double()
        ours.core.linear.load_state_dict(theirs.linear.state_dict())
        x = features(space, c=3)
        for found, expected in zip(leaves(ours(x)), leaves(x.map(theirs)), strict=True):
            torch.testing.assert_close(found, expected, msg=name)


@pytest.mark.parametrize("name", CHAINS)
def test_statistics(name):
    space = CHAINS[name]
    spec, x = spec_of(space, known=False), features(space, batch=4, c=2)
    layer = MonomialStatistics(spec, 2, **arguments(space))
    out = layer(x)
    assert out.shape == (4, 2, MonomialStatistics.get_num_outs(spec)) == (4, 2, layer.num_outs)
    core = InvariantStatistics(space, 2)(to_tensors(x))
    assert sorted(out.flatten(1)[0].tolist()) == sorted(core[0].tolist())
    assert_invariant(layer, space, inputs=x)
    if name == "cnn, relu":
        with pytest.raises(AssertionError, match="not invariant"):
            assert_invariant(StatFeaturizer(), space, inputs=x.map(torch.Tensor.float))


# -- probes -----------------------------------------------------------------------------------------------------------


def mlp(sizes, activation):
    pairs = list(itertools.pairwise(sizes))
    layers = [part for pair in pairs for part in (nn.Linear(*pair), activation())]
    return nn.Sequential(*layers[:-1])


TEMPLATES = {
    "relu": (RELU, mlp([2, 6, 5, 1], nn.ReLU), None),
    "tanh": (CHAINS["tanh"], mlp([3, 5, 2], nn.Tanh), None),
    "cnn": (
        CNN,
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(3, 2),
        ),
        (1, 7, 7),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_probes_are_more_channels_of_biases(name):
    space, template, input_shape = TEMPLATES[name]
    spec, x, given_symmetry = spec_of(space), features(space), arguments(space)["symmetry"]
    torch.manual_seed(0)
    layer = MonomialProbes(spec, template.double(), 3, input_shape=input_shape, symmetry=given_symmetry)
    assert_equivariant(layer, space, inputs=x)
    out = layer(x)
    assert all(t.shape[1] == 4 for t in leaves(out))
    assert all(torch.equal(t[:, :1], u) for t, u in zip(leaves(out), leaves(x), strict=True))
    assert not any(w[:, 1:].any() for w in out.weights)
    answers = ProbeFeatures(template, layer.core.probes.probes.detach(), space=space)(to_tensors(x))
    torch.testing.assert_close(out.biases[-1][:, 1:], answers.outputs)
    for node, bias in zip(answers.hidden, out.biases, strict=False):
        torch.testing.assert_close(bias[:, 1:], answers.hidden[node].mT)
    model = MonomialStack(
        spec, layer, MonomialLinear(spec, 4, 2, symmetry=given_symmetry),
        MonomialCanonicalize(spec, 2, symmetry=given_symmetry), MonomialPool(spec),
    ).double()  # fmt: skip
    assert_invariant(model, space, inputs=x)
    model(x).sum().backward()
    assert layer.core.probes.probes.grad.any()


# -- what does not fit ------------------------------------------------------------------------------------------------

SPEC = spec_of(RELU, known=False)
NO_BIAS = spec_of(WeightSpace.mlp([2, 3, 1], "relu", [True, False]))
REFUSED = {
    r"io_embed=True\) tells inputs and outputs apart": lambda: MonomialLinear(
        SPEC, 1, 1, io_embed=True, symmetry="relu", io_symmetry="permutation"
    ),
    "MonomialLinear: init_type must be": lambda: MonomialLinear(SPEC, 1, 1, False, "xavier", symmetry="relu"),
    "a norm over 1 channel": lambda: MonomialLayerNorm(SPEC, 1, symmetry="relu"),
    r"bias_spec\[1\] is None": lambda: MonomialProbes(NO_BIAS, mlp([2, 3, 1], nn.ReLU), 2, symmetry="relu"),
    "MonomialLayerNorm: .* 2 channels": lambda: MonomialLayerNorm(SPEC, 2, symmetry="relu")(features(RELU)),
    "MonomialChannelLinear: .* 2 channels": lambda: MonomialChannelLinear(SPEC, 2, 1, symmetry="relu")(features(RELU)),
    "channels=1": lambda: MonomialStatistics(SPEC, 2, symmetry="relu")(features(RELU)),
    r'abs is illegal .*MonomialCanonicalize\(kind="abs", learnable=False\)': (
        lambda: MonomialActivation(SPEC, torch.abs, symmetry="tanh")
    ),
    r'cos is illegal .*kind="abs", learnable=False\)': lambda: MonomialActivation(SPEC, "cos", symmetry="sin"),
    r'abs is illegal .*MonomialCanonicalize\(kind="norm", learnable=False\)': (
        lambda: MonomialActivation(SPEC, torch.abs, symmetry=["relu", "tanh"])
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit(message):
    with pytest.raises((ValueError, TypeError), match=message):
        REFUSED[message]()


@pytest.mark.parametrize(("fn", "symmetry"), [("square", "relu"), (torch.relu, "tanh"), ("gelu", "sin")])
def test_other_illegal_functions_are_not_sent_to_sizes(fn, symmetry):
    with pytest.raises(ValueError, match="is illegal") as raised:
        MonomialActivation(SPEC, fn, symmetry=symmetry)
    assert "MonomialCanonicalize" not in str(raised.value)


def test_sizes_are_what_abs_was_meant_to_be():
    spec = spec_of(SIREN, known=False)
    sizes = MonomialCanonicalize(spec, 2, symmetry="sin", kind="abs", learnable=False)
    x = features(SIREN, c=2)
    for name, found in to_tensors(sizes(x)).items():
        given_tensor = to_tensors(x)[name]
        torch.testing.assert_close(found, given_tensor if name == "bias.2" else given_tensor.abs())
