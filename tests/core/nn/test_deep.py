"""Deep residual networks: what a layer for them costs, in parameters and in terms, is linear in depth."""

import itertools

import pytest

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.basis.linear import routes


def residual(blocks, hidden, kernel=(3, 3), width=4):
    """A permuted stream, and blocks of two convolutions on it, with biases and the gain of a norm."""
    nodes = {"x": (Symmetry.FIXED, 3), "stream": (Symmetry.PERMUTATION, width), "y": (Symmetry.FIXED, 10)}
    parameters = {
        "in.weight": (Axis("stream", 1), Axis("x", -1), *kernel),
        "out.weight": (Axis("y", 1), Axis("stream", -1)),
        "out.bias": (Axis("y", 1),),
    }
    for i in range(blocks):
        nodes[f"h{i}"] = (hidden, width)
        parameters |= {
            f"{i}.gain": (Axis("stream", 0),),
            f"{i}.shift": (Axis("stream", 0),),
            f"{i}.up.weight": (Axis(f"h{i}", 1), Axis("stream", -1), *kernel),
            f"{i}.up.bias": (Axis(f"h{i}", 1),),
            f"{i}.down.weight": (Axis("stream", 1), Axis(f"h{i}", -1), *kernel),
            f"{i}.down.bias": (Axis("stream", 1),),
        }
    return WeightSpace(nodes, parameters)


over_hidden = pytest.mark.parametrize("hidden", [Symmetry.SCALE, Symmetry.PERMUTATION], ids=str)


@over_hidden
def test_terms_are_linear_in_depth(hidden):
    """Blocks meet in the stream and in what is averaged over; nothing is looked for in pairs of blocks."""
    sizes = []
    for blocks in (10, 20, 40, 80):
        space = residual(blocks, hidden, ())
        found = routes(space.layout.types, space.layout.types, space.nodes)
        sizes.append((len(found), sum(len(r.sources) + len(r.targets) for r in found)))
    for found in zip(*sizes, strict=True):
        increments = [b - a for a, b in itertools.pairwise(found)]
        assert [b / a for a, b in itertools.pairwise(increments)] == [2, 2]
