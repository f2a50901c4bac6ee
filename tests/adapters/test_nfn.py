"""The layers for nfn's container: equivariant, the same maps as nfn's on permutations, and they mix with nfn's own."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from nfn.common import ArraySpec, NetworkSpec
from nfn.layers import (
    HNPLinear,
    HNPPool,
    NPLinear,
    TupleOp,
)
from nfn_networks import SIREN, arguments, channels, features, named, seeds, spec_of
from strategies import spaces
from torch import nn

from nfn_monomial import GroupElement, MonomialMatrix, Symmetry, WeightSpace, balance
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
from nfn_monomial.testing import assert_equivariant, assert_invariant, random_element, random_networks

# -- equivariance -----------------------------------------------------------------------------------------------------


@given(spaces(), channels, channels, st.sampled_from(["full", "factored"]), st.booleans(), seeds)
def test_linear_is_equivariant(space, c_in, c_out, io, bias, seed):
    torch.manual_seed(seed)
    layer = MonomialLinear(spec_of(space), c_in, c_out, io=io, bias=bias, **arguments(space)).double()
    assert layer.space == space
    inputs = random_networks(space, 2, c_in, generator=torch.Generator().manual_seed(seed))
    assert_equivariant(named(layer), space, inputs=inputs, trials=1, seed=seed)


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
    permutation = GroupElement(
        space, {n: MonomialMatrix(torch.ones_like(m.scale), m.permutation) for n, m in g.matrices.items()}
    )
    found, balanced = named(layer)(g.act(inputs)), balance(inputs, space)[0]
    for name, t in permutation.act(expected).items():
        torch.testing.assert_close(found[name], t, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(expected[name], balanced[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("symmetry", ["relu", "sin", "linear", ["relu", "sin"]])
def test_nfns_own_layers_are_invariant_behind_a_balanced_form(symmetry):
    space = WeightSpace.mlp([2, 6, 5, 1], symmetry)
    spec = spec_of(space)
    torch.manual_seed(0)
    behind = [HNPLinear(spec, 1, 4), TupleOp(nn.ReLU()), HNPLinear(spec, 4, 3), HNPPool(spec)]
    inputs = random_networks(space, 4, 1)
    balanced = nn.Sequential(MonomialBalance(spec, symmetry=symmetry), *behind).double()
    assert not MonomialBalance(spec, symmetry=symmetry).state_dict()
    assert_invariant(lambda tensors: balanced(from_tensors(tensors)), space, inputs=inputs)
    plain = nn.Sequential(*behind).double()
    with pytest.raises(AssertionError, match="not invariant"):
        assert_invariant(lambda tensors: plain(from_tensors(tensors)), space, inputs=inputs)


def test_balance_in_a_stack():
    spec = spec_of(SIREN)
    torch.manual_seed(0)
    layers = [
        MonomialBalance(spec, symmetry="sin"),
        MonomialLinear(spec, 1, 3, symmetry="permutation"),
        MonomialActivation(spec, "gelu", symmetry="permutation"),
        MonomialPool(spec),
    ]
    stack = MonomialStack(spec, *layers).double()
    inputs = random_networks(SIREN, 4, 1)
    assert_invariant(lambda tensors: stack(from_tensors(tensors)), SIREN, inputs=inputs)
    torch.testing.assert_close(stack(from_tensors(inputs)), nn.Sequential(*layers)(from_tensors(inputs)))
    with pytest.raises(ValueError, match="takes features"):
        MonomialStack(spec, layers[0], MonomialLinear(spec, 1, 3, symmetry="sin"))


def test_the_wrong_symmetry_breaks():
    inputs = random_networks(SIREN, 3, 2)
    layer = MonomialLinear(spec_of(SIREN), 2, 2, symmetry="permutation").double()
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(named(layer), SIREN, inputs=inputs)


@pytest.mark.parametrize("symmetry", [Symmetry.SIGN, "sign", "sin", nn.Tanh(), torch.sin, ["sin", Symmetry.SIGN]])
def test_ways_to_name_a_symmetry(symmetry):
    assert MonomialLinear(spec_of(SIREN), 1, 1, symmetry=symmetry).space == SIREN


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
    "mlp 3": WeightSpace.mlp([2, 3, 4, 1], "permutation"),
    "mlp 4": WeightSpace.mlp([2, 3, 3, 3, 2], "permutation"),
    "cnn": WeightSpace.cnn([1, 3, 3], [(1, 2), (2, 1)], "permutation", head=[2]),
    "cnn, one convolution": WeightSpace.cnn([1, 3], [(1, 2)], "permutation", head=[2]),
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
        (WeightSpace.cnn([2, 4, 4], 3, "relu", ndim=1, head=[5]), (6 + 1) + (3 + 1) + (5 + 5)),
        (WeightSpace.cnn([2, 4, 4], 2, "relu", ndim=3, head=[5], bias=[True, False, True]), (16 + 1) + 8 + (5 + 5)),
        (WeightSpace.cnn([2, 4], 3, "relu", head=[5], positions=4), (18 + 1) + (5 + 5)),
        (WeightSpace.cnn([2, 4, 3], (2, 2), "relu"), (8 + 1) + (12 + 3)),
    ],
)
def test_pool_where_nfn_has_none(space, count):
    spec = spec_of(space)
    assert MonomialPool.get_num_outs(spec) == count
    out = MonomialPool(spec)(features(space, batch=2, c=3))
    assert out.shape == (2, 3, count)
    if len(spec) > 1:
        assert_invariant(lambda t: MonomialPool(spec)(from_tensors(t)), WeightSpace.from_network_spec(spec, "gelu"),
                         inputs=random_networks(space, 4, 2))  # fmt: skip


def test_pool_asks_for_what_it_must_know():
    spec = NetworkSpec([ArraySpec((-1, -1)), ArraySpec((1, -1))], [ArraySpec((-1,)), ArraySpec((1,))])
    with pytest.raises(ValueError, match=r"weight_spec\[0\] is \(-1, -1\): inputs, outputs and kernels must be known"):
        MonomialPool(spec)
