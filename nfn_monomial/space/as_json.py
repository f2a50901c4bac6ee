"""A weight space as JSON: nodes and parameters as lists, dicts, texts and numbers; read back with every check.

    {"label": "mlp(2-8-1, SCALE)",
     "nodes": [{"name": "x", "gauges": ["FIXED"], "size": 2, "parent": null}, ...],
     "parameters": [{"name": "weight.0", "dims": [{"node": "h1", "charge": 1}, {"node": "x", "charge": -1}]}, ...],
     "dead": [], "ties": {}}

"dead" and "ties" may be left out. A dimension is a number, an axis, ``{"product": [...]}`` of both, or
``{"sum": [...], "shared": 0}`` of all of these and of sums; "shared" may be left out where it is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.symmetry import Symmetry

from .axes import Axis, Dim, Sum, segments_of
from .nodes import Node

if TYPE_CHECKING:
    from .weight_space import WeightSpace

MOST_SIZE = 2**31 - 1  # of a dimension or node
MOST_CHARGE = 2**20
MOST_DEPTH = 8  # of sums in sums
MOST_PIECES = 4096  # of a parameter whose dimensions are sums
LONGEST = 500  # name or label
_TEXT = f"a text of at most {LONGEST} characters"
_EXPECTED: dict[type, str] = {list: "a list", dict: "an object, names by names", str: _TEXT}

T = TypeVar("T")


def to_json(space: WeightSpace) -> dict[str, Any]:
    """A weight space as JSON holds it, in the form above."""
    return {
        "label": space.label,
        "nodes": [
            {"name": name, "gauges": [*map(str, node.gauges)], "size": node.size, "parent": node.parent}
            for name, node in space.nodes.items()
        ],
        "parameters": [{"name": name, "dims": [*map(dim_to_json, dims)]} for name, dims in space.parameters.items()],
        "dead": list(space.dead),
        "ties": dict(space.ties),
    }


def dim_to_json(dim: Dim) -> Any:
    """A dimension, as in a parameter's ``dims``."""
    if isinstance(dim, int):
        return dim
    if isinstance(dim, Axis):
        return {"node": dim.node, "charge": dim.charge if isinstance(dim.charge, int) else list(dim.charge)}
    if isinstance(dim, Sum):
        return {"sum": [*map(dim_to_json, dim.parts)], **({"shared": dim.shared} if dim.shared else {})}
    return {"product": [*map(dim_to_json, dim)]}


def from_json(value: Any) -> dict[str, Any]:
    """The arguments of a weight space, as `to_json` writes them; no tensor of the sizes that it states is allocated.

    Raises:
        ValueError: naming the place, the value there and the values expected.
    """
    fields = _fields(value, ("label", "nodes", "parameters"), "a weight space", may_have=("dead", "ties"))
    nodes: dict[str, Node] = {}
    for entry in _typed(list, fields["nodes"], "nodes"):
        node = _fields(entry, ("name", "gauges", "size", "parent"), "a node")
        name = _new(node["name"], nodes, "node")
        gauges = _typed(list, node["gauges"], f"gauges of node {name!r}")
        for gauge in gauges:
            if not isinstance(gauge, str) or gauge not in Symmetry.__members__:
                raise InvalidValueError(
                    f"node {name!r} has the gauge {repr(gauge)[:40]}, expected one of {', '.join(Symmetry.__members__)}"
                )
        size = None if node["size"] is None else _number(node["size"], 1, MOST_SIZE, f"size of node {name!r}")
        parent = None if node["parent"] is None else _typed(str, node["parent"], f"parent of node {name!r}")
        nodes[name] = Node(tuple(Symmetry[gauge] for gauge in gauges), size, parent)
    parameters: dict[str, tuple[Dim, ...]] = {}
    for entry in _typed(list, fields["parameters"], "parameters"):
        parameter = _fields(entry, ("name", "dims"), "a parameter")
        name = _new(parameter["name"], parameters, "parameter")
        dims = _typed(list, parameter["dims"], f"dims of {name!r}")
        parameters[name] = tuple(dim_from_json(dim, f"parameter {name!r}") for dim in dims)
        pieces = math.prod(len(segments_of(dim)) for dim in parameters[name])
        if not 1 <= pieces <= MOST_PIECES:
            raise InvalidValueError(f"parameter {name!r} is made of {pieces} pieces, expected 1 to {MOST_PIECES}")
    ties = _typed(dict, fields.get("ties", {}), "ties")
    return {
        "nodes": nodes,
        "parameters": parameters,
        "label": _typed(str, fields["label"], "label"),
        "dead": [_typed(str, name, "a name in dead") for name in _typed(list, fields.get("dead", []), "dead")],
        "ties": {_typed(str, n, "a name in ties"): _typed(str, tied, f"ties of {n!r}") for n, tied in ties.items()},
    }


def dim_from_json(value: Any, where: str, depth: int = MOST_DEPTH) -> Any:
    """A dimension, in which as many sums, and a product in them, may be opened as ``depth`` says."""
    match value:
        case {"node": node, "charge": charge, **rest} if not rest:
            name, what = _typed(str, node, f"node of an axis of {where}"), f"the charge of an axis of {where}"
            if isinstance(charge, list):
                return Axis(name, tuple(_number(q, -MOST_CHARGE, MOST_CHARGE, what) for q in charge))
            return Axis(name, _number(charge, -MOST_CHARGE, MOST_CHARGE, what))
        case {"sum": list(parts), **rest} if not rest.keys() - {"shared"} and parts and depth > 1:
            shared = _number(rest.get("shared", 0), 0, MOST_SIZE, f"shared of a sum of {where}")
            return Sum(tuple(dim_from_json(part, where, depth - 1) for part in parts), shared)
        case {"product": list(factors), **rest} if not rest and factors and depth > 0:
            return tuple(dim_from_json(factor, where, 0) for factor in factors)
    return _number(value, 1, MOST_SIZE, f"a dimension of {where}")


def _fields(value: Any, names: tuple[str, ...], what: str, may_have: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(value, dict) or not set(names) <= set(value) <= {*names, *may_have}:
        entries = ", ".join(map(str, value))[:200] if isinstance(value, dict) else type(value).__name__
        raise InvalidValueError(f"{what} has the entries {', '.join(names)}; found {entries or 'none'}")
    return value


def _typed(kind: type[T], value: Any, what: str) -> T:
    if not isinstance(value, kind) or (isinstance(value, str) and len(value) > LONGEST):
        text = f"{len(value)} characters" if isinstance(value, str) and kind is str else type(value).__name__
        raise InvalidValueError(f"{what}: expected {_EXPECTED[kind]}, found {text}")
    return value


def _new(value: Any, known: Mapping[str, object], what: str) -> str:
    name = _typed(str, value, f"name of a {what}")
    if name in known:
        raise InvalidValueError(f"{what} {name!r} is there twice")
    return name


def _number(value: Any, least: int, most: int, what: str) -> int:
    if type(value) is not int or not least <= value <= most:
        text = repr(value)[:40] if isinstance(value, int | float) else type(value).__name__
        raise InvalidValueError(f"{what}: expected an integer from {least} to {most}, found {text}")
    return value
