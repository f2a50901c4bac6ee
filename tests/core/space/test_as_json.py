"""Weight spaces as JSON: exact both ways, and every number checked before it is used."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_spaces

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space import Node

SPACE = WeightSpace.cnn([1, 4, 5], 3, "relu", head=[3], positions=4)
VALUE = json.loads(json.dumps(SPACE.to_json()))


@given(all_spaces())
def test_a_space_is_what_is_read_back(space):
    read = WeightSpace.from_json(json.loads(json.dumps(space.to_json())))
    assert read == space
    assert list(read.nodes) == list(space.nodes)
    assert repr(read) == repr(space)
    assert read.layout == space.layout


def _changed(path, value):
    changed = copy.deepcopy(VALUE)
    *outer, last = path
    place = changed
    for step in outer:
        place = place[step]
    place[last] = value
    return changed


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "a weight space has the entries label, nodes, parameters; found list"),
        ({**VALUE, "extra": 1}, "found label, nodes, parameters, dead, ties, extra"),
        (_changed(["nodes", 1, "size"], True), "size of node 'h1': expected an integer"),
        (_changed(["nodes", 1, "size"], 2**60), "found 1152921504606846976"),
        (_changed(["nodes", 1, "gauges"], ["RELU"]), "node 'h1' has the gauge 'RELU', expected one of FIXED"),
        (_changed(["nodes", 1, "gauges"], []), "one or more, FIXED only alone"),
        (_changed(["nodes", 1, "name"], "x"), "node 'x' is there twice"),
        (_changed(["nodes", 1, "parent"], "h1"), "node 'h1' is nested in itself"),
        (_changed(["parameters", 0, "dims", 0, "charge"], 2**40), "charge of an axis of parameter 'weight.0'"),
        (_changed(["parameters", 0, "dims", 0, "charge"], [1, 2]), "charge \\(1, 2\\) has 2 entries"),
        (_changed(["parameters", 0, "dims", 0], {"sum": []}), "a dimension of parameter 'weight.0'"),
        (_changed(["parameters", 0, "dims"], [{"sum": [1] * 99}] * 9), "is made of 913517247483640899 pieces"),
    ],
)  # fmt: skip
def test_what_is_not_a_space_is_refused_in_words(value, said):
    with pytest.raises(InvalidValueError, match=said):
        WeightSpace.from_json(value)


@given(st.data())
def test_any_value_put_anywhere_is_a_space_or_refused(data):
    """No other error, whatever stands in its place."""
    odd = st.sampled_from([None, True, -1, 0, 1.5, 10**30, float("nan"), "", "x", [], [1], {}, {"sum": [1]}, VALUE])
    places = list(_places(VALUE))
    try:
        space = WeightSpace.from_json(_changed(data.draw(st.sampled_from(places)), data.draw(odd)))
    except InvalidValueError:
        return
    assert WeightSpace.from_json(space.to_json()) == space


def _places(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield [*path, key]
        yield from _places(inner, [*path, key])


def test_nests_that_lead_in_a_circle_are_refused():
    """Also where the circle does not pass the node that is looked at first."""
    nodes = {name: Node((Symmetry.PERMUTATION,), 2, parent) for name, parent in [("a", "b"), ("b", "c"), ("c", "b")]}
    with pytest.raises(InvalidValueError, match="is nested in itself"):
        WeightSpace(nodes, {"w": (Axis("a"),)})
