"""The table of links: from which node to which every parameter leads, whatever its tensor looks like."""

import torch
from hypothesis import given
from strategies import cnns, mlps

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.space import Link
from nfn_monomial.space.links import End
from nfn_monomial.space.packing import pieces
from nfn_monomial.testing import random_networks


def ends(space):
    return [(link.parameter, link.source, link.target) for link in space.links]


def test_a_chain_is_listed_from_inputs_to_outputs():
    space = WeightSpace.cnn([1, 4], 3, "relu", head=[5], positions=6)
    assert space.links == (
        Link("weight.0", (End("h1", 1, (0,)), End("x", -1, (1,))), (3, 3), False),
        Link("bias.0", (End("h1", 1, (0,)),), (), False),
        Link("weight.1", (End("y", 1, (0,)), End("h1", -1, (1,))), (6,), True),
        Link("bias.1", (End("y", 1, (0,)),), (), False),
    )


@given(mlps() | cnns())
def test_charges_tell_direction_whatever_the_order_of_dimensions_and_parameters(space):
    turned = WeightSpace(space.nodes, {name: space.parameters[name][::-1] for name in reversed(space.parameters)})
    assert sorted(ends(turned), key=str) == sorted(ends(space), key=str)
    assert [link.target for link in turned.links] == [link.target for link in space.links]
    assert sorted(ends(space.uncharged()), key=str) == sorted(ends(space), key=str)
    sizes = {name: node.size for name, node in space.nodes.items()}
    tensors = random_networks(space, 2, 3)
    taken = pieces(turned, {name: torch.empty(2, 3, *shape) for name, shape in turned.shapes().items()}, sizes)
    for link in turned.links:
        moved = taken[link.parameter].permute(link.order)
        assert moved.shape == (2, *(sizes[end.node] for end in link.ends), *link.kernel, 3)
    taken = pieces(space, tensors, sizes)
    for link in space.links:
        found = taken[link.parameter].permute(link.order)
        assert torch.equal(found.movedim(-1, 1).reshape(tensors[link.parameter].shape), tensors[link.parameter])


def test_loops_skips_ties_and_parameters_without_a_place():
    nodes = {"x": (Symmetry.FIXED, 2), "h": (Symmetry.SCALE, 3), "g": (Symmetry.SCALE, 3)}
    space = WeightSpace(
        nodes,
        {
            "cube": (Axis("h", 1), Axis("g", 1), Axis("x", 1)),
            "skip": (Axis("x", -1), Axis("g", 1)),
            "loop": (Axis("h", -1), Axis("h", 1)),
            "back": (Axis("h", 1), Axis("g", -1)),
            "tie": (Axis("h", 0), Axis("g", 0)),
            "gain": (Axis("g", 2), 4),
            "constant": (5,),
        },
    )
    assert ends(space) == [
        ("loop", "h", "h"), ("back", "g", "h"), ("cube", None, "g"), ("skip", "x", "g"), ("tie", "h", "g"),
        ("gain", None, "g"),
    ]  # fmt: skip
    by_name = {link.parameter: link for link in space.links}
    assert by_name["loop"].axes == (1, 0)
    assert [end.node for end in by_name["cube"].ends] == ["g", "h", "x"]
    assert by_name["gain"].charges == (2,)
    assert by_name["gain"].kernel == (4,)
