"""The table of places agrees with the axes of every piece, nested ones and sums included."""

import math

import pytest
import torch
from hypothesis import given
from strategies import all_spaces, general

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.space import Node, Place, Sum
from nfn_monomial.space.packing import pieces
from nfn_monomial.testing import random_networks


@given(all_spaces())
def test_every_axis_has_its_place(space):
    for name, piece in space.pieces.items():
        axes = space.axes[name]
        assert [(place.at, place.axis) for place in piece.places] == [
            (i, axis) for i, axis in enumerate(axes) if isinstance(axis, Axis)
        ]
        for place in piece.places:
            assert place.piece == name
            assert tuple(axes[i].node for i in place.path) == space.ancestry(place.node)
            assert list(place.path) == sorted(place.path)
            for outer, inner in zip(place.path, place.path[1:], strict=False):
                between = axes[outer + 1 : inner]
                assert all(isinstance(axis, int) or axis.node != axes[outer].node for axis in between)
    assert space.places == tuple(place for piece in space.pieces.values() for place in piece.places)


@given(all_spaces())
def test_pieces_are_what_parameters_consist_of(space):
    sizes = space.sizes()
    for name, names in space.pieces_of.items():
        shapes = [space.shape_of(piece, sizes) for piece in names]
        assert sum(map(math.prod, shapes)) == math.prod(space.shapes()[name])
        assert all(space.pieces[piece].parameter == name for piece in names)
    assert [piece for names in space.pieces_of.values() for piece in names] == list(space.pieces)


@given(general())
def test_flattening_brings_neurons_first_and_back(space):
    sizes = space.sizes()
    taken = pieces(space, random_networks(space, 2), sizes)
    for place in space.places:
        x = taken[place.piece]
        flat = place.flatten(x, 2)
        neurons = [sizes[node] for node in space.ancestry(place.node)]
        assert flat.shape == (2, 1, *neurons, x[0, 0].numel() // math.prod(neurons))
        last = x
        for dim in reversed(place.dims(2)):
            last = last.select(dim, -1)
        assert torch.equal(flat[(slice(None), slice(None), *[-1] * len(neurons))], last.reshape(2, 1, -1))
        assert torch.equal(place.unflatten(flat, x, 2), x)


@given(all_spaces())
def test_ends_of_links_are_places(space):
    nested = {(place.piece, i) for place in space.places for i in place.over}
    ends = [end for link in space.links for end in link.ends]
    assert set(ends) == {place for place in space.places if (place.piece, place.at) not in nested}
    assert len(ends) == len(set(ends))


def test_two_axes_may_be_nested_in_one():
    nodes = {"x": (Symmetry.FIXED, 2), "g": (Symmetry.SIGN, 2)}
    nodes |= {name: Node((Symmetry.SCALE,), 3, "g") for name in "oi"}
    space = WeightSpace(
        nodes, {"w": ((Axis("g", 0), Axis("o")), (Axis("i", -1), 5)), "b": (Sum((Axis("o"), Axis("x"))),)}
    )
    assert space.pieces["w"].places == (
        Place("w", Axis("g", 0), (0,)),
        Place("w", Axis("o", 1), (0, 1)),
        Place("w", Axis("i", -1), (0, 2)),
    )
    assert [(place.node, place.over, place.at) for place in space.pieces["b[0]"].places] == [
        ("g", (), 0),
        ("o", (0,), 1),
    ]
    assert [place.writes for place in space.pieces["w"].places] == [False, True, False]
    with pytest.raises(ValueError, match=r"nested in 'g', which has no axis before it"):
        space.places_of((Axis("o"), Axis("g")))
