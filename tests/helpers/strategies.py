"""Random weight spaces for property tests: depths, architectures, symmetries, biases, kernels and widths."""

from hypothesis import strategies as st

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.space import Node, Sum

HIDDEN = [Symmetry.PERMUTATION, Symmetry.SIGN, Symmetry.SCALE, Symmetry.MONOMIAL]
IO = [Symmetry.FIXED, Symmetry.FIXED, Symmetry.PERMUTATION]


@st.composite
def mlps(draw, max_depth=5, max_size=4, min_hidden=1):
    depth = draw(st.integers(1, max_depth))
    hidden = [draw(st.integers(min_hidden, max_size)) for _ in range(depth - 1)]
    sizes = [draw(st.integers(1, 3)), *hidden, draw(st.integers(1, 3))]
    bias = [draw(st.booleans()) for _ in range(depth)]
    return WeightSpace.mlp(sizes, draw(_symmetries(depth - 1)), bias, io_symmetry=draw(st.sampled_from(IO)))


@st.composite
def cnns(draw, max_depth=5):
    ndim = draw(st.integers(1, 3))
    convs = draw(st.integers(1, max_depth - 1))
    head = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, max_depth - convs)))]
    channels = [draw(st.integers(1, 3)) for _ in range(convs + 1)]
    kernels = [tuple(draw(st.integers(1, 3)) for _ in range(ndim)) for _ in range(convs)]
    depth = convs + len(head)
    return WeightSpace.cnn(
        channels,
        kernels,
        draw(_symmetries(depth - 1)),
        head,
        positions=draw(st.integers(1, 3)),
        bias=[draw(st.booleans()) for _ in range(depth)],
        io_symmetry=draw(st.sampled_from(IO)),
    )


@st.composite
def input_first(draw):
    """Kernels as other frameworks store them: spatial dimensions and inputs first, outputs last."""
    space = draw(st.one_of(mlps(), cnns()))
    return WeightSpace(space.nodes, {name: dims[::-1] for name, dims in space.parameters.items()})


def spaces():
    """Feed-forward networks of depth 1 to 5, dense and convolutional, every symmetry, mixed, as torch stores them."""
    return st.one_of(mlps(), cnns())


def any_spaces():
    """The same in any order of dimensions, and recurrent cells."""
    return st.one_of(mlps(), cnns(), input_first(), recurrent())


def all_spaces():
    """The same, and what other networks than chains have, see `general`."""
    return st.one_of(any_spaces(), general())


@st.composite
def general(draw, max_size=3):
    """Nodes of several gauges, nested nodes, dimensions that are sums or products, axes on one node, in any mixture."""
    size = st.integers(1, max_size)
    nodes = {"x": Node((Symmetry.FIXED,), draw(st.integers(1, 2)))}
    nodes["stream"] = Node(draw(_gauges(3)), draw(size))
    nodes["heads"] = Node(draw(_gauges(1)), draw(st.integers(1, 2)))
    nodes["q"] = Node(draw(_gauges(2)), draw(st.integers(1, 2)), "heads")
    nodes["v"] = Node(draw(_gauges(1)), draw(st.integers(1, 2)), "heads")
    nodes["hidden"] = Node(draw(_gauges(2)), draw(size))

    def axis(name):
        count = len(nodes[name].gauges)
        charges = [draw(st.integers(-1, 1)) for _ in range(count)]
        return Axis(name, tuple(charges) if count > 1 else charges[0])

    parameters = {
        "embed": (axis("x"), axis("stream")),
        "gain": (axis("stream"),),
        "qkv": (Sum((axis("q"), axis("q"), axis("v"))), axis("stream")),
        "side": (Sum(tuple((Axis("heads", 0), axis(n)) for n in "qqv"), 1), axis("stream")),
        "out": (axis("stream"), axis("v")),
        "up": (Sum((axis("hidden"), (axis("hidden"), 2))), axis("stream")),
        "grouped": ((Axis("heads", 0), axis("q")), axis("v"), 2),
        "shared": (axis("hidden"), axis("hidden")),
    }
    kept = draw(st.lists(st.sampled_from(sorted(parameters)), min_size=1, max_size=4, unique=True))
    return WeightSpace(nodes, {name: parameters[name] for name in parameters if name in kept})


def _gauges(most):
    kinds = [Symmetry.PERMUTATION, Symmetry.SIGN, Symmetry.SCALE, Symmetry.MONOMIAL]
    return st.lists(st.sampled_from(kinds), min_size=1, max_size=most).map(tuple)


@st.composite
def recurrent(draw):
    """A cell whose hidden weight has both axes on one node, and one parameter of higher charge."""
    symmetry = draw(st.sampled_from(HIDDEN))
    return WeightSpace(
        {"x": (Symmetry.FIXED, 2), "h": (symmetry, draw(st.integers(2, 4))), "y": (Symmetry.FIXED, 1)},
        {
            "inward": (Axis("h", 1), Axis("x", -1)),
            "loop": (Axis("h", 1), Axis("h", -1)),
            "outward": (Axis("y", 1), Axis("h", -1)),
            "square": (Axis("h", 2),),
        },
    )


def _symmetries(count):
    one_each = st.lists(st.sampled_from(HIDDEN), min_size=count, max_size=count)
    return st.one_of(st.sampled_from(HIDDEN).map(lambda s: [s] * count), one_each)
