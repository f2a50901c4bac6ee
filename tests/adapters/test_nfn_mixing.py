"""The layers among nfn's own, in stacks, and what they refuse."""

import copy

import pytest
import torch
from nfn.common import WeightSpaceFeatures, network_spec_from_wsfeat
from nfn.layers import (
    GaussianFourierFeatureTransform,
    HNPLinear,
    HNPPool,
    LearnedScale,
    NPAttention,
    NPLinear,
    NPPool,
    TupleOp,
)
from nfn_networks import SIREN, features, leaves, spec_of
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.nfn import (
    MonomialActivation,
    MonomialCanonicalize,
    MonomialLinear,
    MonomialPool,
    MonomialStack,
    from_tensors,
    to_tensors,
)
from nfn_monomial.testing import assert_invariant, random_networks

# -- mixing with nfn --------------------------------------------------------------------------------------------------


def backward(model, x):
    """Run a model forward and backward; every parameter must get a finite gradient."""
    out = model(x)
    sum(t.square().sum() for t in ([out] if isinstance(out, torch.Tensor) else leaves(out))).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert torch.isfinite(p.grad).all(), name
    return out


def test_a_hybrid_classifier():
    """Monomial layers, canonicalised, then nfn's own: invariant under permutations and sign flips."""
    torch.manual_seed(0)
    x = features(SIREN, batch=4)
    spec = network_spec_from_wsfeat(x)
    model = nn.Sequential(
        MonomialLinear(spec, 1, 8, symmetry="sin"),
        TupleOp(torch.sin),
        MonomialLinear(spec, 8, 2, symmetry="sin"),
        MonomialCanonicalize(spec, 2, symmetry="sin"),
        GaussianFourierFeatureTransform(spec, 2, mapping_size=8, scale=1),
        HNPLinear(spec, 16, 8),
        TupleOp(nn.ReLU()),
        MonomialLinear(spec, 8, 8, symmetry="permutation"),
        NPAttention(spec, 8, num_heads=2),
        LearnedScale(spec, 0.5),
        HNPPool(spec),
        nn.Flatten(),
        nn.Linear(8 * MonomialPool.get_num_outs(spec), 3),
    ).double()
    assert backward(model, x).shape == (4, 3)
    model.requires_grad_(False)
    assert_invariant(lambda tensors: model(from_tensors(tensors)), SIREN, inputs=to_tensors(x), rtol=1e-9)


@pytest.mark.parametrize("pool", [NPPool, HNPPool, MonomialPool])
def test_nfn_layers_in_front_and_behind_on_a_cnn(pool):
    torch.manual_seed(0)
    space = WeightSpace.cnn([1, 4, 4], 3, "relu", head=[5])
    x = features(space, batch=2, dtype=torch.float32)
    spec = network_spec_from_wsfeat(x)
    model = nn.Sequential(
        LearnedScale(spec, 1.0),
        HNPLinear(spec, 1, 4),
        TupleOp(nn.ReLU()),
        MonomialStack(
            spec,
            MonomialLinear(spec, 4, 4, symmetry="relu"),
            MonomialActivation(spec, nn.ReLU(), symmetry="relu"),
            MonomialCanonicalize(spec, 4, symmetry="relu", kind="square"),
        ),
        NPLinear(spec, 4, 4),
        NPAttention(spec, 4, num_heads=2, share_projections=False),
        pool(spec),
        nn.Flatten(),
        nn.Linear(4 * pool.get_num_outs(spec), 1),
    )
    assert backward(model, x).shape == (2, 1)


def test_wider_networks_run_through_the_same_layer():
    layer = MonomialLinear(network_spec_from_wsfeat(features(SIREN)), 1, 2, symmetry="sin").double()
    wide = WeightSpace.mlp([2, 40, 30, 1], "sin")
    assert [tuple(w.shape) for w in layer(features(wide)).weights] == [(3, 2, 40, 2), (3, 2, 30, 40), (3, 2, 1, 30)]


# -- stacks -----------------------------------------------------------------------------------------------------------


def test_stack_of_stacks_keeps_parameters_and_copies():
    torch.manual_seed(0)
    spec = spec_of(SIREN, known=False)
    inner = MonomialStack(spec, MonomialLinear(spec, 1, 2, symmetry="sin"), MonomialLinear(spec, 2, 2, symmetry="sin"))
    stack = MonomialStack(spec, inner, MonomialCanonicalize(spec, 2, symmetry="sin"), MonomialPool(spec)).double()
    x = features(SIREN)
    assert [type(layer).__name__ for layer in stack.layers] == [
        "MonomialLinear", "MonomialLinear", "MonomialCanonicalize", "MonomialPool",
    ]  # fmt: skip
    assert torch.equal(copy.deepcopy(stack)(x), stack(x))
    assert all(name.startswith("layers.") and ".core." in name for name in stack.state_dict())
    backward(stack, x)


def test_layers_of_a_stack_are_called_as_modules():
    """Hooks run, and a layer may be replaced by a module that calls it."""
    torch.manual_seed(0)
    spec, x = spec_of(SIREN, known=False), features(SIREN)
    stack = MonomialStack(
        spec,
        MonomialLinear(spec, 1, 2, symmetry="sin"),
        MonomialCanonicalize(spec, 2, symmetry="sin"),
        MonomialPool(spec),
    ).double()
    expected, called = stack(x), []
    for module in stack.modules():
        module.register_forward_hook(lambda module, *_: called.append(module))
    assert torch.equal(stack(x), expected)
    layers = [stack, *stack.layers, *(layer.core for layer in stack.layers[:2])]
    assert all(called.count(layer) == 1 for layer in layers)
    stack.layers[0] = nn.Sequential(stack.layers[0])
    assert torch.equal(stack(x), expected)


def test_averages_in_half_precision_are_taken_in_float32():
    space = WeightSpace.mlp([1, 5000, 1], "permutation")
    spec, x = spec_of(space, known=False), features(space, batch=1)
    half = x.map(lambda t: t.abs().bfloat16())
    expected = MonomialPool(spec)(half.map(lambda t: t.double()))
    torch.testing.assert_close(MonomialPool(spec)(half).double(), expected, rtol=2**-8, atol=0)


def test_stack_refuses_what_does_not_fit():
    spec, other = spec_of(SIREN, known=False), spec_of(WeightSpace.mlp([2, 4, 1], "sin"), known=False)
    linear = MonomialLinear(spec, 1, 1, symmetry="sin")
    with pytest.raises(ValueError, match=r"layer 1 \(MonomialLinear\) of the MonomialStack was built for another spec"):
        MonomialStack(spec, linear, MonomialLinear(other, 1, 1, symmetry="sin"))
    with pytest.raises(ValueError, match=r"layer 1 .* takes features .* give all layers one symmetry up to"):
        MonomialStack(spec, linear, MonomialLinear(spec, 1, 1, symmetry="permutation"))
    with pytest.raises(ValueError, match=r"averages over neurons .* put a MonomialCanonicalize in front"):
        MonomialStack(spec, linear, MonomialPool(spec))
    for wrong in (TupleOp(torch.sin), HNPLinear(spec, 1, 1), MonomialPool(spec)):
        with pytest.raises(
            TypeError, match=rf"layer 0 \({type(wrong).__name__}\) of the MonomialStack cannot be stacked"
        ):
            MonomialStack(spec, wrong, linear)
    with pytest.raises(TypeError, match="cannot be stacked"):
        MonomialStack(spec, MonomialPool(spec))
    with pytest.raises(ValueError, match="needs at least one layer"):
        MonomialStack(spec)


# -- bad input --------------------------------------------------------------------------------------------------------


def test_bad_features():
    spec = spec_of(SIREN, known=False)
    layer = MonomialLinear(spec, 1, 1, symmetry="sin").double()
    pool = MonomialPool(spec)
    x = features(SIREN)
    shallow = WeightSpaceFeatures(x.weights[:2], x.biases[:2])
    for module in (layer, MonomialStack(spec, layer)):
        with pytest.raises(ValueError, match=r"missing: weight\.2, bias\.2"):
            module(shallow)
    with pytest.raises(ValueError, match=r"MonomialPool: found .* \(3, 1, 5\); the spec has \[.*"):
        pool(shallow)
    for module in (layer, pool, MonomialStack(spec, layer)):
        with pytest.raises(ValueError, match="3 weights and 2 biases"):
            module(WeightSpaceFeatures(x.weights, x.biases[:2]))
        with pytest.raises(TypeError, match="WeightSpaceFeatures are expected, found dict"):
            module(to_tensors(x))
    with pytest.raises(ValueError, match=r"missing: bias\.1"):
        layer(WeightSpaceFeatures(x.weights, (x.biases[0], None, x.biases[2])))
    assert pool(x.map(lambda t: t[:0])).shape == (0, 1, MonomialPool.get_num_outs(spec))
    with pytest.raises(ValueError, match=r"MonomialPool: found weight\.0 \(3, 1, 6, 3\)"):
        pool(features(WeightSpace.mlp([3, 6, 5, 1], "sin")))


def test_nan_is_found_in_data_and_left_alone_in_training():
    layer = MonomialLinear(spec_of(SIREN), 1, 1, symmetry="sin").double()
    x = features(SIREN)
    x.weights[1][2, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"weight\.1 holds 1 NaN or infinite values.*network 2 of the batch"):
        layer(x)
    assert layer(x.map(lambda t: t.requires_grad_())).weights[1].isnan().any()


def test_tensors_and_back():
    space = WeightSpace.mlp([2, 3, 4, 1], "relu", bias=[True, False, True])
    tensors = random_networks(space, 2, 3)
    x = from_tensors(tensors)
    assert x.biases[1] is None
    assert len(x) == 3
    again = to_tensors(x)
    assert list(again) == ["weight.0", "bias.0", "weight.1", "weight.2", "bias.2"]
    assert all(again[name] is tensors[name] for name in tensors)
    layer = MonomialLinear(spec_of(space), 3, 2, symmetry="relu").double()
    assert layer(x).biases[1] is None
    with pytest.raises(ValueError, match=r"weight\.0 to weight\.1 and their biases are expected, found weight\.2"):
        from_tensors({"weight.0": tensors["weight.0"], "weight.2": tensors["weight.2"]})
    with pytest.raises(ValueError, match="found nothing"):
        from_tensors({})
