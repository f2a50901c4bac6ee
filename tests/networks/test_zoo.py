"""The zoo: groups written by hand are those of the numeric oracles, and those that weight spaces derive."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from networks.derived import require_kept, require_maximal, weight_space
from networks.everything import NETWORKS, QUICK
from networks.oracle import Function, scalings
from networks.verify import Verified
from networks.zoo import Items, Network, gaussian
from torch import nn

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.verify.completeness import WHOLE, completeness

ZOO = [pytest.param(n, id=n.name, marks=[] if n.name in QUICK else pytest.mark.networks) for n in NETWORKS.values()]


@pytest.mark.networks
@pytest.mark.slow  # the package has no part in it: only another zoo gives other answers
@pytest.mark.parametrize("network", NETWORKS.values(), ids=lambda network: network.name)
def test_groups_by_hand_are_those_of_the_oracles(network: Network) -> None:
    verified = Verified(network)
    verified.require_scalings()
    verified.require_signs()
    verified.require_permutations()
    verified.require_connected()
    verified.require_fixed()


MISSING: dict[str, dict[str, int]] = {  # network -> node -> scalings that are not in the derived group
    "normalize": {WHOLE: 1},  # one factor of a whole layer, above eps
    "rezero_number": {WHOLE: 1},  # a tensor without dimensions has no axis
    "experts_gathered": {"router": 1},  # which expert a row belongs to is in its values
    "encoder_decoder": {"source": 1},  # the rows of one matrix read two streams
}


@pytest.mark.parametrize("network", ZOO)
def test_derived_groups_are_those_by_hand(network: Network) -> None:
    module, space = weight_space(network)
    require_right(network, module, space)
    inputs = tuple(x.double() if x.is_floating_point() else x for x in network.inputs())
    complete = completeness(module, inputs, space)
    assert complete.missing == MISSING.get(network.name, {})
    assert all(complete.scalings[node] >= gauges for node, gauges in complete.gauges.items())


def require_right(network: Network, module: nn.Module, space: WeightSpace) -> None:
    require_kept(network, module, space)
    require_maximal(network, space)


def with_node(network: Network, name: str, *items: int) -> Network:
    return replace(network, nodes={**network.nodes, name: Items(*items)})


def without_node(network: Network, name: str) -> Network:
    return replace(network, nodes={n: items for n, items in network.nodes.items() if n != name})


PIECES = {"fc1.weight": "h*k 2", "fc1.bias": "h*k", "fc2.weight": "2 h"}
WRONG: dict[str, tuple[str, Callable[[Network], Network], Callable[[Verified], None], str]] = {
    "a scale too many": ("mlp_tanh", lambda n: with_node(n, "a", 4, 1, 1), Verified.require_scalings, "scalings"),
    "a scale too few": ("mlp_relu", lambda n: with_node(n, "a", 4), Verified.require_scalings, "scalings"),
    "a scale on another node": (
        "mlp_relu", lambda n: replace(n, nodes={"a": Items(4), "b": Items(5, 1)}, constants=4),
        Verified.require_scalings, "an item of a",
    ),
    "nothing is dead": ("preln_gelu", lambda n: replace(n, dead=0), Verified.require_scalings, "dead"),
    "a sign too many": ("mlp_relu", lambda n: with_node(n, "a", 4, 1, 1), Verified.require_signs, "flips"),
    "a sign too few": ("siren", lambda n: with_node(n, "b", 5), Verified.require_signs, "flips"),
    "a node left out": ("mlp_gelu", lambda n: without_node(n, "a"), Verified.require_fixed, "change places"),
    "pieces that are no nest": (
        "maxout", lambda n: replace(with_node(n, "k", 3), dims=PIECES), Verified.require_permutations,
        "would be nested",
    ),
    "two nodes as one": (
        "two_of_one_size",
        lambda n: replace(without_node(n, "b"), dims={key: text.replace("b", "a") for key, text in n.dims.items()}),
        Verified.require_connected, "several nodes",
    ),
    "positions that are permuted": (
        "mixer", lambda n: with_node(n, "p", 4), Verified.require_permutations, "change places",
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_groups_are_refused(wrong: str) -> None:
    name, change, claim, message = WRONG[wrong]
    claim(Verified(NETWORKS[name]))
    with pytest.raises(AssertionError, match=message):
        claim(Verified(change(NETWORKS[name])))


def perceptron(symmetry: Symmetry, first: Symmetry | None = None) -> WeightSpace:
    """A space of the zoo's perceptrons of two hidden layers."""
    nodes = {"x": (Symmetry.FIXED, 2), "a": (first or symmetry, 4), "b": (symmetry, 5), "y": (Symmetry.FIXED, 3)}
    parameters = {}
    for i, (column, row) in enumerate(itertools.pairwise(nodes), 1):
        parameters |= {f"fc{i}.weight": (Axis(row, 1), Axis(column, -1)), f"fc{i}.bias": (Axis(row, 1),)}
    return WeightSpace(nodes, parameters)


@pytest.mark.parametrize(
    ("name", "space", "message"),
    [
        ("mlp_relu", perceptron(Symmetry.MONOMIAL), "changes the function"),
        ("mlp_relu", perceptron(Symmetry.SIGN), "changes the function"),
        ("mlp_relu", perceptron(Symmetry.SCALE, first=Symmetry.PERMUTATION), "5 scalings, not 9"),
        ("mlp_tanh", perceptron(Symmetry.SIGN, first=Symmetry.PERMUTATION), "5 signs, not 9"),
        ("mlp_gelu", perceptron(Symmetry.PERMUTATION, first=Symmetry.FIXED), r"permuted \['5'\], not \['4', '5'\]"),
    ],
)
def test_spaces_with_too_large_or_too_small_a_group_are_refused(name: str, space: WeightSpace, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        require_right(NETWORKS[name], NETWORKS[name].build(), space)


@pytest.mark.parametrize(("norm_first", "entries"), [(True, 12), (False, 0)])
def test_entries_that_stay_where_they_are_have_scales(norm_first: bool, entries: int) -> None:
    """Of a stream that is returned: the gains of two norms against what reads them."""
    layer = partial(nn.TransformerEncoderLayer, 6, 2, 5, batch_first=True, norm_first=norm_first)
    network = Network("stream", layer, gaussian((8, 4, 6)), {})
    _, space = weight_space(network)
    still = [name for name in space.nodes if name.endswith("_entries")]
    assert sum(space.count(name, space.sizes()) * len(space.nodes[name].gauges) for name in still) == entries
    assert space.group_dimension == scalings(Function(network.build(), network.inputs)).count
