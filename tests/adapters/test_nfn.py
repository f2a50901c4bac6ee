"""The layers for nfn's container: equivariant, the same maps as nfn's on permutations, and they mix with nfn's own."""

import copy

import pytest
import torch
from hypothesis import assume, given
from nfn.common import ArraySpec, NetworkSpec, WeightSpaceFeatures, network_spec_from_wsfeat
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
from nfn_networks import SIREN, arguments, features, leaves, named, seeds, spec_of
from orbits import motion_of
from strategies import spaces
from torch import nn

from nfn_monomial import Symmetry, WeightSpace, balance
from nfn_monomial.adapters.nfn import (
    MonomialActivation,
    MonomialBalance,
    MonomialCanonicalize,
    MonomialLinear,
    MonomialPool,
    MonomialStack,
    from_tensors,
    to_tensors,
)
from nfn_monomial.testing import assert_invariant, random_element, random_networks

# -- equivariance -----------------------------------------------------------------------------------------------------


@given(spaces(), seeds)
def test_a_whole_stack_is_invariant(space, seed):
    assume(space.nodes["x"].symmetry is Symmetry.FIXED)
    torch.manual_seed(seed)
    spec, given_symmetries = spec_of(space), arguments(space)
    layers = [
        MonomialLinear(spec, 1, 3, **given_symmetries),
        MonomialActivation(spec, "auto", **given_symmetries),
        MonomialLinear(spec, 3, 3, **given_symmetries),
        MonomialCanonicalize(spec, 3, **given_symmetries),
        MonomialLinear(spec, 3, 4, symmetry="permutation"),
        MonomialActivation(spec, "gelu", symmetry="permutation"),
        MonomialPool(spec),
    ]
    stack = MonomialStack(spec, *layers).double()
    inputs = random_networks(space, 8, 1, generator=torch.Generator().manual_seed(seed))
    # One neuron and no bias leave nothing that the group does not move: the answer is the same for all such networks.
    assume(float(stack(from_tensors(inputs)).detach().std(0).max()) > 1e-4)
    assert_invariant(lambda tensors: stack(from_tensors(tensors)), space, inputs=inputs, trials=1, rtol=1e-8, seed=seed)
    torch.testing.assert_close(nn.Sequential(*layers)(from_tensors(inputs)), stack(from_tensors(inputs)))


@given(spaces(), seeds)
def test_balanced_networks_are_only_permuted(space, seed):
    layer = MonomialBalance(spec_of(space), **arguments(space))
    inputs = random_networks(space, 2, 1, generator=torch.Generator().manual_seed(seed))
    g = random_element(space, 2, generator=torch.Generator().manual_seed(seed))
    expected = named(layer)(inputs)
    found, balanced = named(layer)(g.act(inputs)), balance(inputs, space)[0]
    for name, t in motion_of(g).act(expected).items():
        torch.testing.assert_close(found[name], t, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(expected[name], balanced[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("symmetry", ["relu", "sin", "linear", ["relu", "sin"]])
def test_nfns_own_layers_are_invariant_after_a_balanced_form(symmetry):
    space = WeightSpace.mlp([2, 6, 5, 1], symmetry)
    spec = spec_of(space)
    torch.manual_seed(0)
    after = [HNPLinear(spec, 1, 4), TupleOp(nn.ReLU()), HNPLinear(spec, 4, 3), HNPPool(spec)]
    inputs = random_networks(space, 4, 1)
    balanced = nn.Sequential(MonomialBalance(spec, symmetry=symmetry), *after).double()
    assert not MonomialBalance(spec, symmetry=symmetry).state_dict()
    assert_invariant(lambda tensors: balanced(from_tensors(tensors)), space, inputs=inputs)
    plain = nn.Sequential(*after).double()
    with pytest.raises(AssertionError, match="not invariant"):
        assert_invariant(lambda tensors: plain(from_tensors(tensors)), space, inputs=inputs)


# -- parity with nfn --------------------------------------------------------------------------------------------------


def maps(layer, space, draws):
    """Linear and constant parts of a layer for random parameters: ``(draws, N * N)`` and ``(draws, N)``."""
    shapes = space.shapes()
    lengths = [torch.Size(s).numel() for s in shapes.values()]
    n = sum(lengths)
    columns = torch.cat([torch.zeros(1, n), torch.eye(n)]).double().split(lengths, 1)
    inputs = from_tensors({k: c.reshape(-1, 1, *s) for (k, s), c in zip(shapes.items(), columns, strict=True)})
    linear, constant = [], []
    for _ in range(draws):
        for p in layer.parameters():
            nn.init.normal_(p)
        with torch.no_grad():
            out = to_tensors(layer(inputs))
        flat = torch.cat([out[name].flatten(1) for name in space.parameters], 1)
        constant.append(flat[0])
        linear.append((flat[1:] - flat[0]).flatten())
    return torch.stack(linear), torch.stack(constant)


def rank(matrix):
    """Number of singular values that are not rounding errors, by the smaller of the two Gram matrices."""
    values = torch.linalg.eigvalsh(matrix @ matrix.T).flip(0)
    return int((values > 1e-9 * values[0]).sum())


PARITY = {
    "mlp 2": WeightSpace.mlp([2, 4, 3], "permutation"),
    "mlp 4": WeightSpace.mlp([2, 3, 2, 3, 2], "permutation"),
    "cnn": WeightSpace.cnn([1, 3], [(1, 2)], "permutation", head=[2]),
}


@pytest.mark.parametrize("name", PARITY)
@pytest.mark.parametrize(("theirs", "io_symmetry"), [(HNPLinear, "fixed"), (NPLinear, "permutation")])
def test_the_same_maps_as_nfn(name, theirs, io_symmetry):
    torch.manual_seed(0)
    space = PARITY[name]
    spec = spec_of(space, known=False)
    ours = MonomialLinear(spec_of(space), 1, 1, symmetry="permutation", io_symmetry=io_symmetry).double()
    count = sum(p.numel() for p in ours.parameters()) + 5
    linear, constant = maps(ours, space, count)
    nfn_linear, nfn_constant = maps(theirs(spec, 1, 1).double(), space, count)
    assert rank(constant) == rank(nfn_constant) == rank(torch.cat([constant, nfn_constant])) > 0
    if theirs is HNPLinear:
        missing = last_bias_to_last_weight(space)
        assert rank(nfn_linear) == rank(linear) - len(missing)
        nfn_linear = torch.cat([nfn_linear, missing])
    assert rank(linear) == rank(nfn_linear) == rank(torch.cat([linear, nfn_linear])) > 0


def last_bias_to_last_weight(space):
    """The maps that nfn's HNPLinear leaves out (its NPLinear has them): last hidden bias to each row of last weight."""
    shapes = space.shapes()
    lengths = {name: torch.Size(s).numel() for name, s in shapes.items()}
    starts = dict(zip(lengths, torch.tensor([0, *lengths.values()]).cumsum(0).tolist(), strict=False))
    *_, bias, weight, _ = shapes
    rows, hidden = shapes[weight]
    maps = torch.zeros(rows, sum(lengths.values()), sum(lengths.values()), dtype=torch.float64)
    for row in range(rows):
        for j in range(hidden):
            maps[row, starts[bias] + j, starts[weight] + row * hidden + j] = 1
    return maps.flatten(1)


@pytest.mark.parametrize("name", PARITY)
def test_pool_is_hnp_pool(name):
    space = PARITY[name]
    spec = spec_of(space, known=False)
    x = features(space, c=3)
    assert MonomialPool.get_num_outs(spec) == HNPPool.get_num_outs(spec)
    torch.testing.assert_close(MonomialPool(spec)(x), HNPPool(spec)(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("space", "count"),
    [
        (WeightSpace.mlp([3, 2], ()), 8),
        (WeightSpace.mlp([3, 2], (), bias=False), 6),
        (WeightSpace.cnn([2, 4, 4], 2, "relu", ndim=3, head=[5], bias=[True, False, True]), (16 + 1) + 8 + (5 + 5)),
        (WeightSpace.cnn([2, 4], 3, "relu", head=[5], positions=4), (18 + 1) + (5 + 5)),
    ],
)
def test_pool_where_nfn_has_none(space, count):
    spec = spec_of(space)
    assert MonomialPool.get_num_outs(spec) == count
    assert MonomialPool(spec)(features(space, batch=2, c=3)).shape == (2, 3, count)
    if len(spec) > 1:
        free = space.restricted("permutation")
        assert_invariant(lambda t: MonomialPool(spec)(from_tensors(t)), free, inputs=random_networks(space, 4, 2))


def test_averages_in_half_precision_are_taken_in_float32():
    space = WeightSpace.mlp([1, 5000, 1], "permutation")
    spec, x = spec_of(space, known=False), features(space, batch=1)
    half = x.map(lambda t: t.abs().bfloat16())
    expected = MonomialPool(spec)(half.map(lambda t: t.double()))
    torch.testing.assert_close(MonomialPool(spec)(half).double(), expected, rtol=2**-8, atol=0)


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
        MonomialLinear(spec, 1, 8, symmetry="sin"), TupleOp(torch.sin), MonomialLinear(spec, 8, 2, symmetry="sin"),
        MonomialCanonicalize(spec, 2, symmetry="sin"),
        GaussianFourierFeatureTransform(spec, 2, mapping_size=8, scale=1),
        HNPLinear(spec, 16, 8), TupleOp(nn.ReLU()), MonomialLinear(spec, 8, 8, symmetry="permutation"),
        NPAttention(spec, 8, num_heads=2), LearnedScale(spec, 0.5), HNPPool(spec), nn.Flatten(),
        nn.Linear(8 * MonomialPool.get_num_outs(spec), 3),
    ).double()  # fmt: skip
    assert backward(model, x).shape == (4, 3)
    model.requires_grad_(False)
    assert_invariant(lambda tensors: model(from_tensors(tensors)), SIREN, inputs=to_tensors(x), rtol=1e-9)


@pytest.mark.parametrize("pool", [NPPool, MonomialPool])
def test_nfn_layers_before_and_after_on_a_cnn(pool):
    torch.manual_seed(0)
    x = features(WeightSpace.cnn([1, 4, 4], 3, "relu", head=[5]), batch=2, dtype=torch.float32)
    spec = network_spec_from_wsfeat(x)
    stack = MonomialStack(
        spec,
        MonomialLinear(spec, 4, 4, symmetry="relu"),
        MonomialActivation(spec, nn.ReLU(), symmetry="relu"),
        MonomialCanonicalize(spec, 4, symmetry="relu", kind="square"),
    )
    model = nn.Sequential(
        LearnedScale(spec, 1.0), HNPLinear(spec, 1, 4), TupleOp(nn.ReLU()), stack, NPLinear(spec, 4, 4), pool(spec),
        nn.Flatten(), nn.Linear(4 * pool.get_num_outs(spec), 1),
    )  # fmt: skip
    assert backward(model, x).shape == (2, 1)


def test_wider_networks_run_through_the_same_layer():
    layer = MonomialLinear(network_spec_from_wsfeat(features(SIREN)), 1, 2, symmetry="sin").double()
    wide = WeightSpace.mlp([2, 40, 30, 1], "sin")
    assert [tuple(w.shape) for w in layer(features(wide)).weights] == [(3, 2, 40, 2), (3, 2, 30, 40), (3, 2, 1, 30)]


def test_layers_of_a_stack_are_called_as_modules():
    """Hooks run, a layer may be replaced by a module that calls it, and stacks in it are taken apart."""
    torch.manual_seed(0)
    spec, x = spec_of(SIREN, known=False), features(SIREN)
    linear, canonical = MonomialLinear(spec, 1, 2, symmetry="sin"), MonomialCanonicalize(spec, 2, symmetry="sin")
    stack = MonomialStack(spec, MonomialStack(spec, linear), canonical, MonomialPool(spec)).double()
    assert list(stack.layers)[:2] == [linear, canonical]
    expected, called = stack(x), []
    for module in stack.modules():
        module.register_forward_hook(lambda module, *_: called.append(module))
    assert torch.equal(stack(x), expected)
    assert all(called.count(layer) == 1 for layer in (stack, *stack.layers, linear.core, canonical.core))
    stack.layers[0] = nn.Sequential(linear)
    assert torch.equal(copy.deepcopy(stack)(x), expected)


def test_tensors_and_back():
    space = WeightSpace.mlp([2, 3, 4, 1], "relu", bias=[True, False, True])
    tensors = random_networks(space, 2, 3)
    x = from_tensors(tensors)
    assert x.biases[1] is None
    again = to_tensors(x)
    assert list(again) == ["weight.0", "bias.0", "weight.1", "weight.2", "bias.2"]
    assert all(again[name] is tensors[name] for name in tensors)
    assert MonomialLinear(spec_of(space), 3, 2, symmetry="relu").double()(x).biases[1] is None


def test_nan_is_found_in_data_and_left_alone_in_training():
    layer = MonomialLinear(spec_of(SIREN), 1, 1, symmetry="sin").double()
    x = features(SIREN)
    x.weights[1][2, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"weight\.1 holds 1 NaN or infinite values.*network 2 of the batch"):
        layer(x)
    assert layer(x.map(lambda t: t.requires_grad_())).weights[1].isnan().any()


# -- what does not fit ------------------------------------------------------------------------------------------------

SPEC, X = spec_of(SIREN, known=False), features(SIREN)
LINEAR, POOL = MonomialLinear(SPEC, 1, 1, symmetry="sin").double(), MonomialPool(SPEC)
OTHER = MonomialLinear(spec_of(WeightSpace.mlp([2, 4, 1], "sin"), known=False), 1, 1, symmetry="sin")
FREE = MonomialLinear(SPEC, 1, 1, symmetry="permutation")
SHALLOW = WeightSpaceFeatures(X.weights[:2], X.biases[:2])
REFUSED = {
    r"layer 1 \(MonomialLinear\) of the MonomialStack was built for another spec": lambda: MonomialStack(
        SPEC, LINEAR, OTHER
    ),
    "layer 1 .* takes features .* give all layers one symmetry up to": lambda: MonomialStack(SPEC, LINEAR, FREE),
    r"layer 1 \(MonomialPool\) .* breaks scalings and .* put a MonomialCanonicalize before": lambda: MonomialStack(
        SPEC, LINEAR, POOL
    ),
    r"layer 1 \(TupleOp\) of the MonomialStack: unknown activation": lambda: MonomialStack(
        SPEC, LINEAR, TupleOp(lambda x: x)
    ),
    r"layer 1 \(Tanh\) of the MonomialStack: it cannot be stacked.*check_invariant": lambda: MonomialStack(
        SPEC, LINEAR, nn.Tanh()
    ),
    r"layer 1 \(MonomialLinear\) .* cannot come after MonomialPool": lambda: MonomialStack(
        SPEC, POOL, MonomialLinear(SPEC, 1, 1, symmetry="permutation")
    ),
    "needs at least one layer": lambda: MonomialStack(SPEC, POOL),
    r"missing: weight\.2, bias\.2": lambda: MonomialStack(SPEC, LINEAR)(SHALLOW),
    r"missing: bias\.1": lambda: LINEAR(WeightSpaceFeatures(X.weights, (X.biases[0], None, X.biases[2]))),
    r"MonomialPool: found .* \(3, 1, 5\); the spec has \[.*": lambda: POOL(SHALLOW),
    r"MonomialPool: found weight\.0 \(3, 1, 6, 3\)": lambda: POOL(features(WeightSpace.mlp([3, 6, 5, 1], "sin"))),
    "3 weights and 2 biases": lambda: LINEAR(WeightSpaceFeatures(X.weights, X.biases[:2])),
    r"weight\.0 to weight\.1 and their biases are expected, found weight\.2": lambda: from_tensors(
        {"weight.0": X.weights[0], "weight.2": X.weights[2]}
    ),
    r"weight_spec\[0\] is \(-1, -1\): inputs, outputs and kernels must be known": lambda: MonomialPool(
        NetworkSpec([ArraySpec((-1, -1)), ArraySpec((1, -1))], [ArraySpec((-1,)), ArraySpec((1,))])
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit(message):
    with pytest.raises((ValueError, TypeError), match=message):
        REFUSED[message]()
