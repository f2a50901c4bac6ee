"""What two networks have in common: the verdict, the distances, and what explains them."""

import json
import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from orbits import changed, difference
from single_networks import drawn
from strategies import all_spaces, general
from torch import nn
from torch.nn import functional as F

from nfn_monomial import WeightSpace, compare
from nfn_monomial.alignment.comparison import _explained
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix

RELU = WeightSpace.mlp([2, 12, 12, 3], "relu")
TANH = WeightSpace.mlp([2, 12, 12, 3], "tanh")
over_spaces = pytest.mark.parametrize("space", [RELU, TANH], ids=["relu", "tanh"])
X = torch.randn(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def sampled(space, seed=0):
    return space.sample(generator=torch.Generator().manual_seed(seed)).proper()


def only(element, kind):
    """Of an element the permutations, the scales or the signs."""
    return GroupElement(
        element.space,
        {
            name: MonomialMatrix(
                [s.abs() if kind == "scale" else s.sign() if kind == "sign" else torch.ones_like(s) for s in m.scales],
                m.permutation if kind == "permutation" else torch.arange(m.size),
            )
            for name, m in element.matrices.items()
        },
    )


def perceptron(activation):
    return nn.Sequential(
        nn.Linear(2, 12), activation(), nn.Linear(12, 12), activation(), nn.Linear(12, 3)
    ).double()  # fmt: skip


@given(st.one_of(all_spaces(), general()), st.integers(0, 2**31))
def test_an_orbit_is_one_function(space, seed):
    a = drawn(space, seed)
    b = sampled(space, seed).act(a)
    # A scale that is divided by itself rounds, and does nothing else: no element says that it was there.
    assume(all(map(torch.equal, a.values(), b.values())) or difference(b, a) > 1e-12)
    comparison = compare(space, a, b)
    assert comparison.same_function, comparison
    assert comparison.max_weight_difference < 1e-10
    assert sum(comparison.explained.values()) == pytest.approx(1) or not any(
        x.raw_l2 for x in comparison.layers.values()
    )
    assert all(share >= 0 for share in comparison.explained.values())
    assert comparison.explained["rest"] < 1e-15
    json.dumps(comparison.to_json())


@given(all_spaces(), st.integers(0, 2**31))
def test_shares_of_any_two_networks(space, seed):
    a, b = drawn(space, seed), drawn(space, seed + 1)
    comparison = compare(space, a, b)
    assert sum(comparison.explained.values()) == pytest.approx(1)
    assert all(0 <= share <= 1 for share in comparison.explained.values())
    raw, aligned = (sum(x[i] ** 2 for x in comparison.layers.values()) for i in range(2))
    assert aligned <= raw * (1 + 1e-12)
    assert comparison.explained["rest"] == pytest.approx(aligned / raw)
    moved = comparison.group_element.act(b)
    for name, (raw_l2, aligned_l2) in comparison.layers.items():
        assert raw_l2 == pytest.approx(float((a[name] - b[name]).norm()))
        assert aligned_l2 == pytest.approx(float((a[name] - moved[name]).norm()))


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        # Permutations take off 4 when first and 7 when second; signs 1 and 4.
        ((10.0, 6.0, 9.0, 2.0), (0.55, 0.25, 0.2)),
        # A part that is better than the whole takes off no more than that, a part that is worse than nothing, nothing.
        ((10.0, 1.0, 90.0, 2.0), (0.8, 0, 0.2)),
    ],
)
def test_shares_are_what_is_added_on_average(left, expected):
    kinds = [frozenset(kind) for kind in ((), ("permutation",), ("sign",), ("permutation", "sign"))]
    permutation, sign, rest = expected
    shares = _explained(dict(zip(kinds, left, strict=True)))
    assert shares == pytest.approx({"permutation": permutation, "scale": 0, "sign": sign, "rest": rest})


@over_spaces
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_planted_elements_are_recognised_and_one_weight_is_seen(space, dtype):
    eps = torch.finfo(dtype).eps
    change = {torch.float64: 1e-8, torch.float32: 1e-3}.get(dtype, 4 * eps)
    a = drawn(space, 3, dtype)
    wide = {name: x.double() for name, x in a.items()}
    moved = sampled(space, 3).act(wide)
    comparison = compare(space, a, {name: x.to(dtype) for name, x in moved.items()})
    narrow = dtype in (torch.bfloat16, torch.float16)
    exact = narrow and space is TANH  # signs and permutations round nothing
    begins = f"within the rounding of {str(dtype)[6:]}, to" if narrow and not exact else "the same function"
    assert comparison.verdict.startswith(begins)
    assert comparison.same_function == comparison.verdict.startswith("the same function")
    assert comparison.max_weight_difference < 8 * eps
    for name in ("weight.1", "bias.2"):
        other = changed(moved, name, (0,) * moved[name].ndim, 1 + change)
        assert not compare(space, a, {n: x.to(dtype) for n, x in other.items()}).same_function


@over_spaces
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_tolerate_three_half_units(space, dtype):
    a = drawn(space, 3, dtype)
    eps = torch.finfo(dtype).eps
    wide = {name: x.double() for name, x in a.items()}
    generator = torch.Generator().manual_seed(0)
    tuned = {n: x * (1 + 4 * eps * torch.randn(x.shape, generator=generator)) for n, x in wide.items()}
    others = [{n: x * factor for n, x in wide.items()} for factor in (1.06, 1 + 4 * eps, 1 + 1.1 * eps)]
    for other in (*others, sampled(space, 3).act(tuned)):
        assert not compare(space, a, {name: x.to(dtype) for name, x in other.items()}).same_function


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_was_not_scaled_has_equal_bits(dtype):
    """Not moved at all, or permuted only: trained on by single units of the last place, maybe in another order."""
    a = drawn(RELU, 3, dtype)
    for element in (GroupElement(RELU, {}), only(sampled(RELU), "permutation")):
        assert compare(RELU, a, element.act(a)).same_function
        b = changed(a, "weight.1", (0, 3), 1 + torch.finfo(dtype).eps)
        comparison = compare(RELU, a, element.act(b))
        assert not comparison.same_function
        # Canonical forms, which have been computed, may be permuted.
        computed = bool(element.matrices) and dtype != torch.bfloat16
        assert comparison.verdict.startswith("within the rounding of float" if computed else "not known to be the same")


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
def test_dtypes_of_two_networks(narrow):
    wide = drawn(RELU, 3, torch.float32)
    rounded = {name: x.to(narrow) for name, x in wide.items()}
    said = f"within the rounding of {str(narrow)[6:]}"
    eps = torch.finfo(narrow).eps
    moves = (GroupElement(RELU, {}), 1), (sampled(RELU), 4), (only(sampled(RELU), "permutation"), 1)
    for element, units in moves:
        a = element.act(wide)
        assert compare(RELU, a, rounded).verdict.startswith(said)
        changes = changed(rounded, "weight.1", (1, 2), 1 + units * eps)
        assert compare(RELU, a, changes).verdict.startswith("not known")
    double = {name: x.double() for name, x in wide.items()}
    assert compare(RELU, double, wide).same_function


def subnormal(t, seed):
    """Whole multiples of the smallest number of float32, at random."""
    return torch.randint(0, 16, t.shape, generator=torch.Generator().manual_seed(seed)).float() * 1.4e-45


@pytest.mark.parametrize("scaled", [("h2",), ("h1", "h2")], ids=["behind", "itself"])
def test_entries_too_small_to_be_exact(scaled):
    """Subnormal weights lose their last digit where they are multiplied, and no more: weights behind may be large."""
    a = drawn(RELU, 0, torch.float32)
    a["weight.0"], a["weight.1"] = subnormal(a["weight.0"], 0), a["weight.1"] * 1e37
    nodes = dict(zip(("h1", "h2"), [n for n, node in RELU.nodes.items() if node.permutes], strict=True))
    scale = torch.rand(12, generator=torch.Generator().manual_seed(0)) + 2
    element = GroupElement(RELU, {nodes[n]: MonomialMatrix.diagonal(scale ** (i + 1)) for i, n in enumerate(scaled)})
    b = element.act(a)
    assert compare(RELU, a, b).same_function
    other = element.act(a | {"weight.0": subnormal(a["weight.0"], 1)})
    assert compare(RELU, a, other).verdict.startswith("not known")


def test_outputs_are_compared_and_the_module_is_left_alone():
    net = perceptron(nn.Tanh)
    space = WeightSpace.from_module(net, X)
    a, other = drawn(space, 0), drawn(space, 1)
    before = {name: t.clone() for name, t in net.state_dict().items()}
    same = compare(space, a, sampled(space).act(a), module=net, inputs=X)
    assert same.same_function
    assert same.verdict == "the same function: a symmetry makes all weights equal, and the outputs agree"
    assert same.relative_output_difference < 1e-12
    different = compare(space, a, other, module=net, inputs=X)
    outputs = [torch.func.functional_call(net, n, (X,)) for n in (a, other)]
    assert different.max_output_difference == pytest.approx(float((outputs[0] - outputs[1]).abs().max().detach()))
    assert "the outputs differ" in str(different)
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    single = compare(space, a, a, module=net, inputs=torch.ones(2).double())  # an input without a batch
    assert single.same_function


def test_answers_alone_prove_nothing_and_contradict():
    """Neurons that no input tried wakes up may be anything; a space may be wrong about its module."""
    net = perceptron(nn.ReLU)
    space = WeightSpace.from_module(net, X)
    a = drawn(space)
    a["0.bias"][0], a["0.weight"][0] = -1, -1
    comparison = compare(space, a, changed(a, "2.weight", (3, 0), 2), module=net, inputs=X.abs())
    assert comparison.max_output_difference == 0
    assert not comparison.same_function
    assert "the outputs agree on the inputs tried, but no symmetry was found" in comparison.verdict
    a = drawn(RELU)
    comparison = compare(RELU, a, sampled(RELU).act(a), module=perceptron(nn.Tanh), inputs=X)
    assert not comparison.same_function
    assert comparison.verdict == "not the same: a symmetry makes all weights equal, but the outputs differ"


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(len(x), -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_what_does_not_matter_is_left_out():
    x = torch.randn(2, 3, 8)
    net = Attention()
    space = WeightSpace.from_module(net, x)
    a = {name: t.double() for name, t in drawn(space).items()}
    b = sampled(space).act(a)
    b["qkv.bias"][8:16] += 100
    comparison = compare(space, a, b, module=net, inputs=x)
    assert comparison.same_function, comparison
    assert comparison.layers["qkv.bias"].aligned_l2 < 1e-12
    b["qkv.bias"][:8] += 1e-3
    assert not compare(space, a, b).same_function


def test_infinite_numbers_are_no_json():
    a = drawn(RELU)
    silent = a | {"weight.2": 0 * a["weight.2"], "bias.2": 0 * a["bias.2"]}
    comparison = compare(RELU, silent, a, module=perceptron(nn.ReLU), inputs=X)
    assert comparison.relative_output_difference == math.inf
    written = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert written["relative_output_difference"] is None


class Masked(nn.Module):
    """Reads a mask and an order that no symmetry moves; has a head and a copy that nothing reads."""

    def __init__(self, width=12):
        super().__init__()
        self.hidden, self.out, self.auxiliary = nn.Linear(4, width), nn.Linear(width, 3), nn.Linear(width, 2)
        self.register_buffer("mask", torch.ones(3))
        self.register_buffer("order", torch.arange(4))
        self.register_buffer("average", torch.zeros(width, 4))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x[:, self.order]))) * self.mask


@pytest.fixture(scope="module")
def masked():
    """A module, its inputs, its space, and its state."""
    torch.manual_seed(0)
    net, x = Masked().double(), torch.randn(20, 4, dtype=torch.float64)
    return net, x, WeightSpace.from_module(net, x), {name: t.clone() for name, t in net.state_dict().items()}


MASK, ORDER = torch.tensor([1.0, 0.0, 1.0]).double(), torch.tensor([2, 0, 3, 1])


@pytest.mark.parametrize("change", [{"mask": MASK}, {"order": ORDER}, {"mask": torch.ones(3).double() * (1 + 1e-12)}])
def test_what_no_symmetry_moves_has_to_be_equal(masked, change):
    net, x, space, a = masked
    b = sampled(space).act(a) | change
    (name,) = change
    alone, run = compare(space, a, b), compare(space, a, b, module=net, inputs=x)
    for found in (alone, run):
        assert not found.same_function, found
        assert found.unmoved == (name,)
        assert name in found.verdict or "the outputs differ" in found.verdict
    outputs = [torch.func.functional_call(net, n, (x,)) for n in (a, b)]
    assert run.max_output_difference == pytest.approx(float((outputs[0] - outputs[1]).abs().max().detach()), abs=1e-12)


def test_what_nothing_reads_is_left_out_and_named(masked):
    net, x, space, a = masked
    b = sampled(space).act(a) | {"num_batches_tracked": torch.tensor(7), "average": torch.ones(12, 4).double()}
    b["auxiliary.weight"] = b["auxiliary.weight"] + 1
    comparison = compare(space, a, b, module=net, inputs=x)
    assert comparison.same_function
    assert comparison.unread == ("auxiliary.weight", "average", "num_batches_tracked")
    # What is no tensor of the module may reach its function when it is loaded.
    comparison = compare(space, a, b | {"nowhere": torch.ones(1)}, module=net, inputs=x)
    assert (comparison.same_function, comparison.unmoved) == (False, ("nowhere",))
    comparison = compare(space, a, b)  # without the module nobody knows
    assert not comparison.same_function
    assert comparison.unmoved == ("auxiliary.weight", "average", "num_batches_tracked")


class Counting(nn.Module):
    """Reads a buffer that is called as a batch norm's counter, which a batch norm does not read in eval mode."""

    def __init__(self, name, reads):
        super().__init__()
        self.hidden, self.norm, self.out, self.reads = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3), reads
        self.name = name
        self.register_buffer(name, torch.tensor(5))

    def forward(self, x):
        x = self.out(torch.relu(self.norm(self.hidden(x))))
        return x * (getattr(self, self.name) > 3) if self.reads else x


@pytest.mark.parametrize("name", ["warm_num_batches_tracked", "num_batches_tracked"])
@pytest.mark.parametrize("reads", [True, False])
def test_counters_of_batches_are_left_out_where_they_are_not_read(name, reads):
    net, x = Counting(name, reads).double(), torch.randn(20, 4, dtype=torch.float64)
    space, a = WeightSpace.from_module(net, x), net.state_dict()
    steps = {"norm.num_batches_tracked": torch.tensor(9)}
    counted = compare(space, a, {**a, **steps})  # a forward of one's own might read it
    assert (counted.same_function, counted.unmoved) == (False, ("norm.num_batches_tracked",))
    counted = compare(space, a, {**a, **steps}, module=net, inputs=x)
    assert (counted.same_function, counted.unread) == (True, ())
    b = {**a, name: torch.tensor(1)}
    assert compare(space, a, b).verdict.endswith(f"other tensors differ: {name}")
    run = compare(space, a, b, module=net, inputs=x)
    assert run.same_function != reads
    assert (name in run.unread) != reads


def test_keys_of_one_network_alone(masked):
    net, x, space, a = masked
    b = {name: t for name, t in sampled(space).act(a).items() if name != "mask"}
    assert compare(space, a, b, module=net, inputs=x).same_function, "the module's own"
    assert compare(space, a | {"mask": MASK}, b, module=net, inputs=x).unmoved == ("mask",)
    assert compare(space, b, a).unmoved == ("mask",)


class Pruned(nn.Sequential):
    """A mask of neurons near 1, which no space of the network without it knows."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.register_buffer("mask", torch.arange(12).double().div(12).mul(1e-6).add(1))

    def forward(self, x):
        return self[2](self[1](self[0](x)) * self.mask)


def test_a_group_that_the_buffers_break():
    """The space was found where no mask was; these networks have one, which the group does not move."""
    net, x = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3)).double(), torch.randn(20, 4).double()
    space = WeightSpace.from_module(net, x)
    a = {name: t.float() for name, t in net.state_dict().items()}
    comparison = compare(space, a, sampled(space).act(a), module=Pruned(*net).double(), inputs=x)
    assert not comparison.same_function, comparison
