"""Canonical forms: least norm, one for every network of an orbit, of chains and of any other network."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from orbits import difference, element_of, far_element, generator, motion_of, networks
from scipy.optimize import linprog
from strategies import all_spaces, any_spaces, spaces
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from nfn_monomial import Axis, GroupElement, MonomialMatrix, Symmetry, WeightSpace
from nfn_monomial.canonical import newton
from nfn_monomial.canonical.balance import Balance, balance
from nfn_monomial.canonical.buckets import ScaleFactor
from nfn_monomial.canonical.least_norm import encoded, supported
from nfn_monomial.canonical.signs import canonical_signs
from nfn_monomial.space import Node, Sum
from nfn_monomial.testing import random_element

FIXED, PERMUTATION, SIGN, SCALE = Symmetry.FIXED, Symmetry.PERMUTATION, Symmetry.SIGN, Symmetry.SCALE
seeds = st.integers(0, 10**6)
ZOO = WeightSpace.cnn([1, 16, 16, 16], 3, "relu", head=[10])
CHAIN = WeightSpace.mlp([1, 1, 1, 1], "relu", bias=False)
MIXED = WeightSpace.mlp([2, 5, 4, 6, 3], ["relu", "tanh", "linear"])


def alone(fn):  # of a batch, as a function of one network
    return lambda t: {k: v[0] for k, v in fn({k: v[None] for k, v in t.items()}).items()}


def norm(tensors):
    return sum(x.square().flatten(1).sum(1) for x in tensors.values())


# -- one network of each orbit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [ZOO, MIXED, WeightSpace.mlp([2, 32, 32, 1], "relu")], ids=str)
def test_float32_at_extreme_scales(space):
    x = networks(space, 20, dtype=torch.float32)
    expected = balance(x, space)[0]
    for exponent in (4, 8):
        scales = {}
        for name, m in element_of(space, 20).matrices.items():
            if space.nodes[name].scales:
                powers = torch.empty(20, m.size, dtype=torch.float64).uniform_(
                    -exponent, exponent, generator=torch.Generator().manual_seed(0)
                )
                scales[name] = MonomialMatrix(10**powers, torch.arange(m.size).expand(20, -1))
        found = balance(GroupElement(space, scales).act(x), space)[0]
        assert difference(found, expected) < 1e-5


# -- least norm -------------------------------------------------------------------------------------------------------


def sides(space, tensors):
    """Node -> squared norms of what a neuron's scale multiplies, and of what it divides, straight from the tensors."""
    for name, node in space.nodes.items():
        if not node.scales:
            continue
        total = {1: 0.0, -1: 0.0}
        for parameter, axes in space.axes.items():
            own = [axis for axis in axes if isinstance(axis, Axis) and axis.node == name]
            if len(own) == 1:
                extents = [a if isinstance(a, int) else space.nodes[a.node].size for a in axes]
                x = tensors[parameter].reshape(*tensors[parameter].shape[:2], *extents).square().double()
                x = x.movedim(2 + axes.index(own[0]), 1).flatten(2).sum(-1)
                sign = 1 if own[0].charge > 0 else -1
                total[sign] = total[sign] + abs(own[0].charge) * x
        yield total[1], total[-1]


def imbalance(space, tensors):
    return max(float(((a - b).abs() / (a + b)).max()) for a, b in sides(space, tensors))


DEEP = WeightSpace.mlp([2, *[6] * 12, 1], "relu")


@pytest.mark.parametrize("space", [DEEP, WeightSpace.mlp([3, 40, 2], "relu"), CHAIN, MIXED], ids=str)
@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_norms_are_balanced_in_deep_and_sparse_networks(space, spread):
    generator = torch.Generator().manual_seed(0)
    assert imbalance(space, networks(space)) > 0.1
    x = {k: v * (spread * torch.randn(v.shape, generator=generator).double()).exp() for k, v in networks(space).items()}
    assert imbalance(space, balance(x, space)[0]) < 1e-11


NO_CHAINS = [
    WeightSpace(  # the gains of two norms against what reads them, and a depthwise kernel, which scales twice
        {"x": (FIXED, 2), "stream": Node((PERMUTATION, SCALE, SCALE), 5), "c": Node((SCALE, SCALE), 4)},
        {
            "embed": (Axis("stream", (1, 0, 0)), Axis("x")), "gain": (Axis("stream", (0, 1, 0)),),
            "up": (Axis("c", (1, 0)), Axis("stream", (-1, -1, 0))), "depth": (Axis("c", (-1, 1)), 1, 3, 3),
            "down": (Axis("stream", (1, 0, 0)), Axis("c", (0, -1))),
            "last": (Axis("stream", (0, 0, 1)),), "out": (Axis("x"), Axis("stream", (-1, 0, -1))),
        },
    ),
    WeightSpace(  # heads, in which queries and keys, values and outputs balance; grouped channels
        {
            "s": (PERMUTATION, 4), "heads": (PERMUTATION, 2), "q": Node((SCALE,), 3, "heads"),
            "v": Node((SCALE,), 3, "heads"),
        },
        {
            "qkv": (Sum((Axis("q", 1), Axis("q", -1), Axis("v", 1))), Axis("s", 0)),
            "grouped": ((Axis("heads", 0), Axis("q")), Axis("v", -1), 2), "o": (Axis("s", 0), Axis("v", -1)),
        },
    ),
]  # fmt: skip


@given(st.one_of(any_spaces(), st.sampled_from(NO_CHAINS)), seeds, st.sampled_from([0.1, 1.0]))
@example(NO_CHAINS[0], 0, 0.1)
@example(NO_CHAINS[1], 0, 0.1)
def test_every_other_scale_has_a_larger_norm(space, seed, size):
    assume(any(gauge.scales for node in space.nodes.values() for gauge in node.gauges))
    best = balance(networks(space, 3, 1, seed), space)[0]
    moved = {}  # every neuron's by as much, up or down
    for n, m in element_of(space, 3, seed).matrices.items():
        gauges = zip(m.scales, space.nodes[n].gauges, strict=True)
        scales = [(size * (s.abs() - 1).sign()).exp() ** gauge.scales for s, gauge in gauges]
        moved[n] = MonomialMatrix(scales, m.permutation)
    assert bool((norm(GroupElement(space, moved).act(best)) > norm(best) * (1 + 1e-9)).all())


charges = st.sampled_from([-2, -1, -1, 1, 1, 2, 3])


@given(st.integers(1, 6), st.data())
def test_supported_terms_are_those_of_a_linear_programme(unknowns, data):
    """Coefficients that are 1 or more are looked for, of as many terms as can have them at once."""
    factors = st.builds(ScaleFactor, st.integers(0, unknowns - 1), charges, st.just((1,)))
    terms = data.draw(st.lists(st.lists(factors, min_size=1, max_size=3).map(tuple), min_size=1, max_size=12))
    matrix = np.zeros((unknowns, len(terms)))
    for number, term in enumerate(terms):
        for factor in term:
            matrix[factor.unknown, number] += factor.charge
    bounds = [(0, 1)] * len(terms) + [(0, None)] * len(terms)
    most = linprog(
        [-1.0] * len(terms) + [0.0] * len(terms), A_eq=np.hstack([matrix, matrix]), b_eq=[0.0] * unknowns, bounds=bounds
    )
    assert supported(tuple(terms)) == tuple(x > 0.5 for x in most.x[: len(terms)])


def test_supported_terms_of_a_deep_network_and_of_a_cycle():
    """A term that nothing takes back could shrink for ever, and so could what needs it."""
    deep = [(ScaleFactor(i, 1, (1,)), *([ScaleFactor(i - 1, -1, (2,))] if i else [])) for i in range(300)]
    assert not any(supported(tuple(deep)))
    assert all(supported((*deep, (ScaleFactor(299, -1, (1,)),))))
    there, back, away = (
        (ScaleFactor(0, 2, (1,)), ScaleFactor(1, -1, (2,))),
        (ScaleFactor(0, -2, (1,)), ScaleFactor(1, 1, (2,))),
        (ScaleFactor(1, 1, (1,)),),
    )
    assert supported((there, back, there, away)) == (True, True, True, False)


VIEWS = {
    "alias", "as_strided", "detach", "diagonal", "expand", "permute", "select", "slice", "split", "split_with_sizes",
    "t", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view",
}  # fmt: skip


class Operators(TorchDispatchMode):
    """Counts operators, views aside."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.__name__.split(".")[0] not in VIEWS
        return function(*args, **(kwargs or {}))


def operators(space):
    x = networks(space, 8, dtype=torch.float32)
    with Operators() as counted:
        balance(x, space)
    return counted.count


def test_operators_do_not_grow_with_depth():
    """But those that read parameters and write them, some 20 a layer."""
    few, many = operators(WeightSpace.mlp([8] * 5, "relu")), operators(WeightSpace.mlp([8] * 14, "relu"))
    assert many - few < 30 * 9 + 200  # and a few more steps
    assert operators(ZOO) < 600
    assert operators(WeightSpace.mlp([32] * 14, "relu")) < 1200


TIED = WeightSpace(  # several gauges on both axes of a weight, and three nodes on one
    {"a": Node((SCALE, SCALE), 3), "b": Node((SCALE, SCALE), 4), "c": (SCALE, 2), "x": (FIXED, 2)},
    {
        "into": (Axis("a", (1, 0)), Axis("x")), "between": (Axis("b", (1, 1)), Axis("a", (-1, 1))),
        "back": (Axis("b", (-1, -1)), Axis("a", (1, -1))), "out": (Axis("x"), Axis("b", (0, -1))),
        "three": (Axis("a", (-1, 0)), Axis("b", (0, 1)), Axis("c")), "last": (Axis("x"), Axis("c", -1)),
    },
)  # fmt: skip


@pytest.mark.parametrize("spread", [0.5, 1.0])
@pytest.mark.parametrize("space", [ZOO, MIXED, TIED, *NO_CHAINS], ids=str)
def test_a_network_has_one_form_whatever_is_beside_it(space, spread):
    """Solved at once or by conjugate gradients, near its form or far from it."""
    draws = torch.Generator().manual_seed(0)
    x = {k: v * (spread * torch.randn(v.shape, generator=draws).double()).exp() for k, v in networks(space, 80).items()}
    together, first = balance(x, space)[0], balance({k: v[:2] for k, v in x.items()}, space)[0]
    assert difference({k: v[:2] for k, v in together.items()}, first) < 1e-11


# -- dead neurons -----------------------------------------------------------------------------------------------------


def kill(x, layer, neuron, incoming=True, outgoing=False):
    x = {k: v.clone() for k, v in x.items()}
    if incoming:
        x[f"weight.{layer}"][:, :, neuron] = 0
        x[f"bias.{layer}"][:, :, neuron] = 0
    if outgoing:
        x[f"weight.{layer + 1}"][:, :, :, neuron] = 0
    return x


@given(st.lists(st.sampled_from(["relu", "tanh", "linear"]), min_size=3, max_size=3), st.data(), seeds)
def test_dead_neurons_have_one_form_too(symmetries, data, seed):
    space = WeightSpace.mlp([2, 4, 3, 4, 2], symmetries)
    x = networks(space, 2, 1, seed)
    for layer in range(3):
        incoming, outgoing = data.draw(st.booleans()), data.draw(st.booleans())
        x = kill(x, layer, data.draw(st.integers(0, 2)), incoming, outgoing)
    g = element_of(space, 2, seed)
    assert all(bool(t.isfinite().all()) for t in balance(x, space)[0].values())
    assert invariance_error(space, x, g) < 1e-10


def test_what_becomes_of_dead_neurons():
    space = WeightSpace.mlp([2, 3, 4, 1], "relu")
    x = kill(kill(kill(networks(space), 0, 0), 0, 1, False, True), 0, 2, True, True)
    balanced, element = balance(x, space)
    ones = torch.ones(3, dtype=torch.float64)
    torch.testing.assert_close(balanced["weight.1"][:, 0, :, 0].norm(dim=-1), ones)  # no incoming: outgoing norm 1
    torch.testing.assert_close(balanced["weight.0"][:, 0, 1].square().sum(-1) + balanced["bias.0"][:, 0, 1] ** 2, ones)
    assert torch.equal(element.matrices["h1"].scale[:, 2], ones)  # neither: as it is
    # A dead neuron's weights do not count where others are balanced.
    far = {**x, "weight.1": x["weight.1"].clone()}
    far["weight.1"][:, :, :, 0] *= torch.rand(4) * 1e3
    torch.testing.assert_close(balance(far, space)[0]["weight.2"], balanced["weight.2"], rtol=1e-12, atol=0)


# -- signs ------------------------------------------------------------------------------------------------------------


def test_degenerate_signs():
    space = WeightSpace.mlp([2, 2, 2, 2], "tanh")
    x = networks(space)
    x["weight.0"][:, :, 0] = torch.tensor([1.5, -1.5])  # from inputs, which have places: weighted cubes tell
    x["bias.0"][:, :, 0] = 0
    assert invariance_error(space, x, element_of(space)) < 1e-10
    x["weight.1"][:, :, :, 0] = torch.tensor([-2.0, 2.0])  # and outgoing ones, of which cubes tell as well
    assert difference(balance(flip(space, "h1", 0).act(x), space)[0], balance(x, space)[0]) < 1e-10
    x["weight.0"], x["bias.0"] = x["weight.0"].abs(), x["bias.0"].abs()
    x["weight.1"][:, :, 0] = torch.tensor([2.0, -2.0])  # from neurons, which can be exchanged
    x["bias.1"][:, :, 0] = 0
    x["weight.2"][:, :, :, 0] = 0
    _, element = balance(x, space)
    assert bool((element.matrices["h2"].scale[:, 0] == 1).all())
    _, element = balance(flip(space, "h2", 0).act(x), space)
    assert bool((element.matrices["h2"].scale[:, 0] == 1).all())


def flip(space, node, neuron):
    scale = torch.ones(space.nodes[node].size, dtype=torch.float64)
    scale[neuron] = -1
    return GroupElement(space, {node: MonomialMatrix(scale, torch.arange(len(scale)))})


def test_rounding_errors_decide_no_sign():
    space = WeightSpace.mlp([3, 2, 2], "tanh")
    x = networks(space, dtype=torch.float32)
    x["weight.0"][:, :, 0] = torch.tensor([0.1, 0.2, -0.3])  # 0.1 + 0.2 - 0.3 is 1e-8 here, and noise
    x["bias.0"][:, :, 0] = 0
    x["weight.1"][:, :, :, 0] = 0
    assert bool((x["weight.0"][0, 0, 0].double().sum() != 0).all())
    noisy = {**x, "weight.0": x["weight.0"].nextafter(torch.tensor(torch.inf))}
    quiet = {**x, "weight.0": x["weight.0"].nextafter(torch.tensor(-torch.inf))}
    assert torch.equal(balance(noisy, space)[1].matrices["h1"].scale, balance(quiet, space)[1].matrices["h1"].scale)


HEADS = WeightSpace(
    {"heads": (PERMUTATION, 2), "q": Node((SIGN,), 3, "heads"), "v": Node((SIGN, SCALE), 3, "heads"), "x": (FIXED, 4)},
    {
        "q": ((Axis("heads", 0), Axis("q")), Axis("x")), "k": ((Axis("heads", 0), Axis("q")), Axis("x")),
        "v": ((Axis("heads", 0), Axis("v", (1, 1))), Axis("x")),
        "o": (Axis("x"), (Axis("heads", 0), Axis("v", (1, -1)))),
    },
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("space", [MIXED, WeightSpace.mlp([2, 32, 32, 1], "tanh"), HEADS], ids=str)
def test_forms_in_16_bits_are_those_of_the_same_numbers(space, dtype):
    """Sums of a few entries that are a quarter of their sizes are no rounding errors."""
    x = {name: t.to(dtype) for name, t in networks(space, 50).items()}
    expected, element = balance({name: t.float() for name, t in x.items()}, space)
    balanced, moved = balance(x, space)
    for name, m in moved.matrices.items():
        assert all(map(torch.equal, m.scales, element.matrices[name].scales))
    assert all(torch.equal(t, expected[name].to(dtype)) for name, t in balanced.items())


# -- the layer --------------------------------------------------------------------------------------------------------


def test_the_function_works_where_values_cannot_be_looked_at():
    x = networks(MIXED, dtype=torch.float32)
    expected, element = balance(x, MIXED)
    assert difference(torch.func.vmap(alone(lambda t: balance(t, MIXED)[0]))(x), expected) < 1e-5
    shapes, moves = balance({k: v.to("meta") for k, v in x.items()}, MIXED)
    assert {k: v.shape for k, v in shapes.items()} == {k: v.shape for k, v in x.items()}
    assert {k: m.scale.shape for k, m in moves.matrices.items()} == {
        k: m.scale.shape for k, m in element.matrices.items()
    }


def test_shapes_of_fake_tensors_leave_nothing_for_true_ones():
    space = WeightSpace.mlp([2, 7, 1], "relu")  # that no other test has seen
    x = networks(space, dtype=torch.float32)
    with FakeTensorMode() as fake:
        shapes = Balance(space)({k: fake.from_tensor(v) for k, v in x.items()})
    assert {k: v.shape for k, v in shapes.items()} == {k: v.shape for k, v in x.items()}
    assert difference(Balance(space)(x), balance(x, space)[0]) < 1e-5


def test_gradients_hold_the_element_constant():
    x = {k: v.requires_grad_() for k, v in networks(MIXED).items()}
    balanced, element = balance(x, MIXED)
    gradient = torch.autograd.grad(balanced["weight.1"].sum(), x["weight.1"])[0]
    expected = element.act({"weight.1": torch.ones_like(x["weight.1"])})["weight.1"]
    torch.testing.assert_close(gradient, expected)
    assert not any(m.scale.requires_grad for m in element.matrices.values())
    torch.testing.assert_close(torch.autograd.grad(Balance(MIXED)(x)["weight.1"].sum(), x["weight.1"])[0], expected)
    in_functorch = torch.func.grad(lambda t: Balance(MIXED)({**x, "weight.1": t})["weight.1"].sum())(x["weight.1"])
    torch.testing.assert_close(in_functorch, expected)


# -- sizes of any dtype -----------------------------------------------------------------------------------------------


def chain_of(sizes, dtype):
    x = {f"weight.{i}": torch.full((1, 1, 1, 1), 1.0, dtype=torch.float64) * size for i, size in enumerate(sizes)}
    return {name: t.to(dtype) for name, t in x.items()}


def require_least_norm(x):
    """Of three weights in a row, all have the size of their geometric mean."""
    expected = math.exp(sum(float(t.double().abs().log()) for t in x.values()) / 3)
    for name, t in Balance(CHAIN)(x).items():
        assert t.dtype == x[name].dtype
        eps = max(torch.finfo(t.dtype).eps, 1e-12)
        assert float(t) == pytest.approx(expected, rel=eps)


@given(
    st.sampled_from([(torch.float64, 300), (torch.float32, 44), (torch.float32, 37), (torch.bfloat16, 37)]), st.data()
)
def test_sizes_may_be_all_that_a_dtype_holds(kind, data):
    dtype, most = kind
    exponents = [data.draw(st.floats(-most, min(most, 37) if dtype != torch.float64 else most)) for _ in range(3)]
    require_least_norm(chain_of([10.0**e for e in exponents], dtype))


@given(spaces(), seeds, st.sampled_from([30, 60]))
def test_entries_of_any_sizes_have_least_norm(space, seed, decades):
    generator = torch.Generator().manual_seed(seed)
    x = {
        name: t * 10 ** (decades * (2 * torch.rand((1,) * t.ndim, generator=generator, dtype=t.dtype) - 1))
        for name, t in networks(space, 2, 1, seed).items()
    }
    x["weight.0"][:, :, 0] = 0
    assert all(bool(t.isfinite().all()) for t in Balance(space, signs=False)(x).values())


# -- values that nobody looks at --------------------------------------------------------------------------------------


def test_what_is_left_after_few_rounds_does_not_depend_on_the_frame(monkeypatch):
    monkeypatch.setattr(newton, "_ROUNDS", -9)  # none at all
    for space in (MIXED, DEEP):
        x, g = networks(space), element_of(space)
        layer = Balance(space)
        assert difference(layer(g.act(x)), motion_of(g).act(layer(x))) < 1e-10
    assert imbalance(space, layer(x)) > 1e-3


def pruned(space, batch, share=0.85):
    mask = torch.Generator().manual_seed(1)
    return {name: t * (torch.rand(t.shape, generator=mask) > share) for name, t in networks(space, batch).items()}


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8, 0.85, 0.9, 0.95])
@pytest.mark.parametrize(
    "space",
    [DEEP, WeightSpace.mlp([2, 8, 8, 8, 2], "relu"), WeightSpace.mlp([2, 8, 8, 8, 2], "relu", bias=False), ZOO],
    ids=["deep", "mlp", "no bias", "zoo"],
)
@pytest.mark.parametrize("decades", [1, 6])
def test_pruned_networks_have_one_form_with_the_same_function(space, share, decades):
    """However far zeros cut neurons off from all others, in the layer's fixed number of rounds, too."""
    x, g = pruned(space, 30, share), far_element(space, 30, decades)
    for form in (Balance(space), lambda tensors: balance(tensors, space)[0]):
        assert difference(form(g.act(x)), motion_of(g).act(form(x))) < 1e-10 * decades**2


def test_scales_do_not_drift_along_a_line_of_least_norms():
    """What scales of a and b in opposite directions leave alone has a least norm; the other parameters shrink for ever,
    and show where on that line the scales are."""
    space = WeightSpace(
        {"a": (SCALE, 1), "b": (SCALE, 4), "c": (SCALE, 2)},
        {
            "down": (Axis("b", -2), Axis("a", -2)), "up": (Axis("a", 1), Axis("b", 1)),
            "loop": (Axis("b", -1), Axis("b", 2)), "out": (Axis("a", -2), Axis("c", 2), 3),
        },
    )  # fmt: skip
    x, g = networks(space, 30), far_element(space, 30, 1)
    for form in (Balance(space), lambda tensors: balance(tensors, space)[0]):
        assert difference(form(g.act(x)), motion_of(g).act(form(x))) < 1e-10


def test_balanced_pruned_networks_keep_their_function():
    space = DEEP
    x = pruned(space, 20)
    balanced = Balance(space)(x)
    before = after = torch.randn(5, 2, dtype=torch.float64)
    for layer in range(13):
        before, after = (
            h @ tensors[f"weight.{layer}"][:, 0].mT + tensors[f"bias.{layer}"]
            for h, tensors in ((before, x), (after, balanced))
        )
        if layer < 12:
            before, after = before.relu(), after.relu()
    torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-10)


def test_sums_of_incoming_entries_are_positive():
    space = WeightSpace.mlp([2, 5, 4, 3, 1], "tanh")
    balanced, _ = balance(networks(space), space)
    for layer in (0, 1):
        total = balanced[f"weight.{layer}"].sum(-1) + balanced[f"bias.{layer}"]
        assert bool((total > 0).all())


def test_the_operator_passes_the_checks_of_torch():
    logs = [(t.double().square() + 0.1).log() for t in (torch.rand(2, 2), torch.rand(2, 2, 2), torch.rand(2, 2))]
    factors = encoded(
        [(ScaleFactor(0, 1, (1,)),), (ScaleFactor(1, 1, (1,)), ScaleFactor(0, -1, (2,))), (ScaleFactor(1, -1, (1,)),)]
    )
    torch.library.opcheck(torch.ops.nfn_monomial.log_scales.default, (logs, factors))


def invariance_error(space, x, g, of=lambda x: x):
    moved, expected = balance(g.act(x), space)[0], motion_of(g).act(balance(x, space)[0])
    return difference({k: of(v) for k, v in moved.items()}, {k: of(v) for k, v in expected.items()})


@given(all_spaces(), st.integers(1, 2), st.integers(0, 10**6))
def test_one_form_for_all_of_an_orbit_up_to_the_permutation(space, channels, seed):
    x = networks(space, 2, channels, seed)
    signs = canonical_signs(space, space.pack(x), 1e-13)
    # Of networks some of whose signs nothing settles, sizes have one form.
    settled = all(bool((sign != 0).all()) for sign in signs.values())
    of = torch.clone if settled else torch.abs
    assert invariance_error(space, x, far_element(space, 2, draws=generator(seed)), of) < 1e-10


@given(all_spaces(), st.integers(0, 10**6))
def test_the_element_is_the_one_used_and_again_it_changes_nothing(space, seed):
    x = networks(space, 2, 1, seed)
    balanced, element = balance(x, space)
    assert difference(element.act(x), balanced) < 1e-12
    assert difference(balance(balanced, space)[0], balanced) < 1e-10
    few = Balance(space)(x)  # after a fixed number of rounds, by which most networks, not all, are balanced to rounding
    assert difference(few, balanced) < 1e-5
    assert difference(balance(few, space)[0], balanced) < 1e-9
    for m in element.matrices.values():
        assert (m.batch, {scale.dtype for scale in m.scales}) == (2, {torch.float64})
        assert torch.equal(m.permutation, torch.arange(m.size).expand(2, -1))


def test_gauges_that_do_the_same_and_parameters_that_could_shrink_for_ever():
    """Neither makes the form less unique, nor the scales large."""
    both, other = Axis("h", (1, 1)), Axis("h", (-1, -1))
    twice = WeightSpace({"h": Node((SCALE, SCALE), 3)}, {"a": (both, 2), "b": (2, other)})
    once = WeightSpace({"h": (SCALE, 3)}, {"a": (Axis("h"), 2), "b": (2, Axis("h", -1))})
    x = networks(twice)
    assert difference(balance(x, twice)[0], balance(x, once)[0]) < 1e-12
    # Of (1, -1), (-1, 1) and (-1, 0), the last tends to 0 while the others keep their sizes.
    vanishing = WeightSpace(
        {"h": Node((SCALE, SCALE), 3)},
        {"a": (Axis("h", (1, -1)),), "b": (Axis("h", (-1, 1)),), "c": (Axis("h", (-1, 0)),)},
    )
    x = networks(vanishing)
    balanced, element = balance(x, vanishing)
    torch.testing.assert_close(balanced["a"].abs(), balanced["b"].abs())
    assert max(float(s.log().abs().max()) for s in element.matrices["h"].scales) < 10
    assert invariance_error(vanishing, x, far_element(vanishing, 3)) < 1e-10


@pytest.mark.parametrize("charge", [(1, 0), (0, 1)], ids=str)
def test_scales_that_are_settled_in_any_order(charge):
    """Those of `v` settle one of the two gauges of `h`, and that the other: no value is cut off."""
    space = WeightSpace(
        {"x": (Symmetry.FIXED, 2), "h": Node((SCALE, SCALE), 2), "v": (SCALE, 3)},
        {"a": (Axis("h", (1, 1)),), "b": (Axis("h", charge), Axis("v")), "c": (Axis("v", -1), Axis("x"))},
    )
    x = networks(space)
    assert difference(Balance(space)(x), balance(x, space)[0]) < 1e-12


@pytest.mark.parametrize("charges", [((1, 0), (0, 1)), ((1, 1), (0, 1)), ((1, 1), (1, 1))], ids=str)
def test_signs_of_several_gauges(charges):
    space = WeightSpace(
        {"h": Node((SIGN, SIGN), 4)}, {"a": (Axis("h", charges[0]), 2), "b": (Axis("h", charges[1]), 3)}
    )
    x = networks(space)
    g = random_element(space, 3)
    assert difference(balance(g.act(x), space)[0], motion_of(g).act(balance(x, space)[0])) < 1e-12
    changed = {**x, "a": -x["a"]}
    same = charges[0] != charges[1]  # then a can be flipped without b
    assert (difference(balance(changed, space)[0], balance(x, space)[0]) < 1e-12) == same
