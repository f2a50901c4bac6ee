import copy
import json
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces
from torch.utils import _pytree as pytree

from nfn_monomial import (
    Axis,
    Canonicalize,
    EquivariantLinear,
    Features,
    GroupElement,
    MonomialNFN,
    Symmetry,
    WeightSpace,
)
from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.space import Node, Sum, packing
from nfn_monomial.testing import assert_equivariant, random_networks

SPACE = WeightSpace.mlp([2, 4, 3, 1], "relu")


@given(all_spaces(), st.integers(1, 3), st.integers(1, 3))
def test_pack_and_unpack_are_exact_inverses(space, batch, channels):
    tensors = random_networks(space, batch, channels)
    packed = space.pack(tensors)
    back = space.unpack(packed)
    assert list(back) == list(space.parameters)
    assert all(torch.equal(back[name], x) for name, x in tensors.items())
    again = space.pack(back)
    assert all(torch.equal(a, b) for a, b in zip(again.tensors, packed.tensors, strict=True))
    assert sum(x.numel() for x in packed.tensors) == sum(x.numel() for x in tensors.values())


def test_spaces_are_values():
    again = WeightSpace.mlp([2, 4, 3, 1], Symmetry.SCALE)
    assert again == SPACE
    assert hash(again) == hash(SPACE)
    assert WeightSpace.mlp([2, 4, 3, 1], "tanh") != SPACE
    for clone in (copy.deepcopy(SPACE), pickle.loads(pickle.dumps(SPACE))):  # noqa: S301
        assert clone == SPACE
        assert clone.layout is SPACE.layout
    assert str(SPACE) == repr(SPACE) == "WeightSpace.mlp(2-4-3-1, SCALE)"
    assert SPACE.uncharged().uncharged() == SPACE.uncharged()
    assert SPACE.uncharged().layout is WeightSpace.mlp([2, 4, 3, 1], "gelu").layout


def test_a_line_of_a_long_space_is_short():
    deep = WeightSpace.mlp([2, *[32] * 12, 1], "relu")
    assert str(deep) == "WeightSpace(14 nodes, 26 tensors)"
    assert repr(deep).count("32") == 12


def double(*shape, fill=0.0):
    return torch.full(shape, fill, dtype=torch.float64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight.1": double(3, 1, 3, 5)}, r"weight\.1 has shape \(3, 5\).*axis 'h1' is 4 in weight\.0, and 5 here"),
        ({"weight.0": double(3, 1, 4, 3)}, r"weight\.0 .*x=2.*axis 'x' is 2, and 3 here"),
        ({"weight.1": double(3, 4)}, r"weight\.1 has 2 dimensions .*\(B, C, h2=3, h1=4\).*tensor\[None, None\]"),
        ({"bias.3": double(3, 1, 2)}, r"7 tensors given; not in the space: bias\.3"),
        ({"bias.0": double(3, 1, 4, fill=torch.nan)}, r"bias\.0 holds 12 NaN or infinite.*first at index \[0, 0, 0\]"),
        ({"bias.0": torch.zeros(3, 1, 4)}, r"bias\.0 is torch\.float32 on cpu but weight\.0 is torch\.float64"),
        ({"bias.1": double(2, 1, 3)}, r"bias\.1 has batch and channels \(2, 1\) but weight\.0 has \(3, 1\)"),
    ],
)
def test_bad_tensors_are_refused_by_name(change, message):
    for use in (SPACE.pack, SPACE.validate, MonomialNFN(SPACE, hidden=4).double()):
        with pytest.raises((InvalidValueError, InvalidTypeError), match=message):
            use(random_networks(SPACE) | change)


OF_H = {"h": (Axis("h"),)}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: WeightSpace.mlp([2, 3, 1], ["relu", "relu"]), "2 symmetries for 1 hidden node"),
        (lambda: WeightSpace.mlp([2, 3, 1], "relu", [True]), "1 bias flags"),
        (lambda: WeightSpace.cnn([2, 3, 3], [3], "relu"), "1 kernel sizes for 2 convolutions"),
        (lambda: WeightSpace({"a": Symmetry.FIXED}, {"w": (Axis("a"),)}), "'a' is FIXED, so its size"),
        (lambda: WeightSpace({"a": Symmetry.SCALE}, {"w": (Axis("b"),)}), "w: axis b\\^\\+1 names no node"),
        (lambda: WeightSpace({"a": Symmetry.SCALE}, {"w": (0,)}), "w: dimension 0"),
        (lambda: EquivariantLinear(SPACE, 1, 1, out_types=[(Axis("h1", 5),)]), r"no equivariant map .* \[h1\^\+5\]"),
        (lambda: EquivariantLinear(SPACE, 1, 1, out_types=[(Axis("x", 1),)]), "'x' is FIXED; its axes are"),
        (lambda: WeightSpace.sequential([2, None, 1], [(), ()], "relu").shapes(), "sizes of h1 are not known"),
        (lambda: WeightSpace({"h": Node((Symmetry.FIXED, Symmetry.SCALE), 2)}, OF_H), "'h' has gauges .*FIXED only"),
        (lambda: WeightSpace({"h": Node((Symmetry.SCALE,), 2, "g")}, OF_H), "'h' is nested in 'g', which is no node"),
        (
            lambda: WeightSpace({"x": Symmetry.SCALE, "h": Node((Symmetry.FIXED,), 2, "x")}, OF_H),
            "'h' is nested in 'x', so it may not be FIXED",
        ),
        (lambda: WeightSpace({"h": Symmetry.SCALE}, {"b": (Axis("h", (1, 1)),)}), "has 2 entries for the 1 gauges"),
        (
            lambda: WeightSpace(
                {"g": Symmetry.SCALE, "h": Node((Symmetry.SCALE,), 2, "g")}, {"b": (Axis("h"), Axis("g"))}
            ),
            "nested in 'g', which has no axis before it",
        ),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_features_add_multiply_map_index_and_are_pytrees():
    x = SPACE.pack(random_networks(SPACE, 4))
    for a, b in zip((x + x * 2.0).tensors, x.tensors, strict=True):
        torch.testing.assert_close(a, 3 * b)
    assert x.to(torch.float32).tensors[0].dtype == torch.float32
    leaves, spec = pytree.tree_flatten(x)
    assert len(leaves) == len(x.layout)
    assert isinstance(pytree.tree_unflatten(leaves, spec), Features)
    assert SPACE.layout.features(x.fields).tensors[0] is x.tensors[0]
    neutral = Canonicalize(SPACE, 1).double()(x)
    assert torch.equal((neutral * neutral).tensors[0], neutral.tensors[0] ** 2)
    with pytest.raises(ValueError, match="fields differ"):
        x + neutral
    with pytest.raises(ValueError, match="not equivariant"):
        x * x
    with pytest.raises(ValueError, match="expected"):
        SPACE.layout.features({})


@given(all_spaces(), st.randoms(use_true_random=False))
def test_in_whatever_order_parameters_stand_no_features_are_taken_for_others(space, random):
    names = list(space.parameters)
    random.shuffle(names)
    shuffled = WeightSpace(space.nodes, {name: space.parameters[name] for name in names})
    tensors = random_networks(space)
    try:
        found = shuffled.unpack(space.pack(tensors))
    except ValueError:
        assert names != list(space.parameters)
    else:
        assert all(torch.equal(found[name], x) for name, x in tensors.items())


PRODUCT = WeightSpace(
    {"a": (Symmetry.PERMUTATION, 3), "b": (Symmetry.SCALE, 4), "c": (Symmetry.SIGN, None)},
    {"w": ((Axis("a"), Axis("b")),), "v": (Axis("c"), (Axis("b", -1), 2, Axis("a")))},
)


def test_a_dimension_of_two_nodes_has_the_sizes_that_the_space_declares():
    tensors = random_networks(PRODUCT, sizes={"c": 5})
    assert tensors["w"].shape == (3, 1, 12)
    packed = PRODUCT.pack(tensors)
    assert PRODUCT.node_sizes(packed) == {"a": 3, "b": 4, "c": 5}
    assert all(torch.equal(x, tensors[name]) for name, x in PRODUCT.unpack(packed).items())
    element = PRODUCT.sample(sizes={"c": 5})
    for a, b in zip(PRODUCT.pack(element.act(tensors)).tensors, element.act(packed).tensors, strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(ValueError, match=r"w has shape \(13,\).*axis 'a' is 3 times axis 'b' is 4 in v, and 13 here"):
        PRODUCT.pack({**tensors, "w": double(3, 1, 13)})


def test_sums_split_into_pieces_and_join_again():
    nodes = {"x": (Symmetry.FIXED, 2), "q": (Symmetry.SCALE, 3), "h": (Symmetry.SIGN, 2)}
    parts = Sum((Axis("q"), (Axis("h"), 2), Axis("q")))
    space = WeightSpace(nodes, {"w": (parts, Sum((Axis("h", -1), Axis("x", -1)))), "b": (Axis("q"),)})
    assert list(space.pieces) == ["w[0,0]", "w[0,1]", "w[1,0]", "w[1,1]", "w[2,0]", "w[2,1]", "b"]
    assert space.shapes() == {"w": (10, 4), "b": (3,)}
    assert space.describe("w") == "w (B, C, q=3 + h=2*2 + q=3, h=2 + x=2)"
    tensors = random_networks(space)
    assert torch.equal(space.unpack(space.pack(tensors))["w"], tensors["w"])
    wider = random_networks(space, sizes={"q": 5})  # nodes need not have the sizes of the space
    assert space.node_sizes(space.pack(wider)) == {"x": 2, "q": 5, "h": 2}
    with pytest.raises(ValueError, match=r"axis 'q' is 3 in b plus axis 'h' is 2 times folded positions 2 plus"):
        space.pack(tensors | {"w": tensors["w"][..., :9, :]})


def test_sizes_of_nodes_that_lie_in_sums_alone_are_declared():
    parameters = {"w": (Sum((Axis("q"), Axis("h"))), Axis("x", -1))}
    nodes = {"x": (Symmetry.FIXED, 2), "q": (Symmetry.SCALE, 3), "h": Symmetry.SIGN}
    message = (
        r"w has shape \(7, 2\) .*: dimension 0 is a sum, w \(B, C, q=3 \+ h, x=2\), .* of h can .* WeightSpace\(\{'h'"
    )
    with pytest.raises(ValueError, match=message):
        WeightSpace(nodes, parameters).pack({"w": double(3, 1, 7, 2)})
    declared = WeightSpace(nodes | {"h": (Symmetry.SIGN, 4)}, parameters)
    assert declared.node_sizes(declared.pack({"w": double(3, 1, 7, 2)})) == {"x": 2, "q": 3, "h": 4}
    with pytest.raises(ValueError, match="axis 'q' is 3 plus axis 'h' is 4, and 8 here"):
        declared.pack({"w": double(3, 1, 8, 2)})


def test_parts_of_a_sum_lie_side_by_side_in_what_they_share():
    """Rows (heads, (3, q) + k), of which the first part is queries, rotated and not, and values, in this order."""
    nodes = {"x": (Symmetry.FIXED, 2), "heads": (Symmetry.SIGN, 4), "k": (Symmetry.SCALE, 5)}
    nodes["q"] = Node((Symmetry.SCALE,), 2, "heads")
    queries = Sum(((Axis("heads", 0), Axis("q"), 3), (Axis("heads", 0), Axis("q", -1))), shared=2)
    rows = Sum((queries, (Axis("heads"), Axis("k")), (Axis("heads"), 3)), shared=1)
    own = Sum(((Axis("q"), 3), Axis("q", -1)), shared=1)  # heads are put in front
    space = WeightSpace(nodes, {"w": (rows, Axis("x", -1)), "b": (rows,), "k": (Axis("k"),), "own": (own,)})
    assert space.parameters["own"] == (queries,)
    assert space.describe("w") == "w (B, C, heads=4*(q=2*(3 + 1) + k=5 + 3), x=2)"
    assert list(space.pieces) == [f"{name}[{n}]" for name in "wb" for n in range(4)] + ["k", "own[0]", "own[1]"]
    assert WeightSpace.from_json(json.loads(json.dumps(space.to_json()))) == space
    bias = torch.arange(4 * 16.0)
    heads = bias.view(4, 16)
    q, k, rest = heads[:, :8].view(4, 2, 4), heads[:, 8:13], heads[:, 13:]
    tensors = random_networks(space, 2, 1) | {"b": bias.double().expand(2, 1, -1)}
    pieces = dict(packing.cut(space, "b", bias, space.sizes()))
    for found, expected in zip(pieces.values(), (q[..., :3], q[..., 3:], k, rest), strict=True):
        assert torch.equal(found.squeeze(-1), expected.squeeze(-1))
    packed = space.pack(tensors)
    assert all(torch.equal(space.unpack(packed)[name], x) for name, x in tensors.items())
    wider = random_networks(space, sizes={"k": 7})
    assert space.node_sizes(space.pack(wider)) == {"x": 2, "heads": 4, "k": 7, "q": 2}
    element = space.sample()
    moved = space.unpack(element.act(packed))
    assert all(torch.allclose(moved[name], x) for name, x in element.act(tensors).items())
    assert_equivariant(EquivariantLinear(space, 1, 1).double(), space)


@given(all_spaces(), st.integers(0, 10**6))
def test_a_space_with_fixed_nodes_has_a_smaller_group(space, seed):
    nested = set(space.nesting) | set(space.nesting.values())
    free = [name for name in space.nodes if name not in nested]
    fixed = space.fixed(*free[:2])
    assert fixed.shapes() == space.shapes()
    assert not any(fixed.nodes[n].permutes for n in free[:2] if n in fixed.nodes)
    tensors = random_networks(space)
    element = fixed.sample(generator=torch.Generator().manual_seed(seed))
    same = GroupElement(space, element.matrices).act(tensors)
    assert all(torch.equal(x, same[name]) for name, x in element.act(tensors).items())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bias.0", lambda x: x[:, :, :2]),
        ("weight.1", lambda x: x.float()),
        ("weight.0", lambda x: x[:1]),
        ("weight.0", lambda x: x.to_sparse()),
        ("bias.1", lambda x: x.tolist()),
    ],
)
def test_tensors_that_look_otherwise_than_the_last_are_checked(name, change):
    space = WeightSpace.mlp([2, 3, 1], "relu")
    good = random_networks(space, 2)
    for _ in range(2):
        space.pack(good)
        bad = {**good, name: change(good[name])}
        with pytest.raises((InvalidValueError, InvalidTypeError), match=name.replace(".", r"\.")):
            space.pack(bad)
    with pytest.raises(InvalidValueError, match=r"missing: bias\.1"):
        space.pack({n: x for n, x in good.items() if n != "bias.1"})
    wide = random_networks(space, 3, sizes={"h1": 7})
    assert space.node_sizes(space.pack(wide))["h1"] == 7
    assert space.node_sizes(space.pack(good))["h1"] == 3


def test_flatten_heads_fold_positions_as_torch_flattens():
    space = WeightSpace.cnn([1, 4], 3, "relu", head=[5], positions=6)
    assert space.shapes()["weight.1"] == (5, 24)
    tensors = random_networks(space)
    weight = tensors["weight.1"]
    field = space.pack(tensors).fields[(Axis("h1", -1),)]  # (B, h1, 5 x 6)
    torch.testing.assert_close(field, weight.view(3, 5, 4, 6).permute(0, 2, 1, 3).flatten(2))
