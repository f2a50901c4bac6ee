"""Operators that have no rule, taken apart into smaller ones."""

from __future__ import annotations

import functools
import operator
import re
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import default_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from .operators import OPERATORS, short


class Like(NamedTuple):
    """A tensor of this shape and type, whatever is in it."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def decomposed(target: Any, args: Any, kwargs: Any) -> fx.GraphModule | None:
    """What an operator consists of, as a graph whose placeholders are its tensors; None where it has no parts.

    Args:
        target: the operator.
        args, kwargs: of the call, a `Like` for each tensor.
    """
    if not isinstance(target, OpOverload):
        return None
    leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf=lambda v: isinstance(v, Like))
    try:
        found = _traced(target, spec, frozenset(OPERATORS), *leaves)
    except Exception:  # of an operator that needs values, or of none that can be traced, nothing is known
        return None
    return None if any(node.target is target for node in found.graph.nodes) else found


@functools.lru_cache(maxsize=1)
def _table(ruled: frozenset[str]) -> dict[Any, Any]:
    """Torch's decompositions of all operators but those that have a rule."""
    every = default_decompositions()
    return {op: every[op] for op in every if short(str(op)) not in ruled}


@functools.lru_cache(maxsize=1024, typed=True)
def _traced(target: OpOverload, spec: Any, ruled: frozenset[str], *leaves: Any) -> fx.GraphModule:
    def call(*tensors: Tensor) -> Any:
        given = iter(tensors)
        filled = [next(given) if isinstance(leaf, Like) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return target(*args, **kwargs)

    table = _table(ruled)
    with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        warnings.simplefilter("ignore")
        tensors = [torch.empty(leaf.shape, dtype=leaf.dtype) for leaf in leaves if isinstance(leaf, Like)]
        graph = make_fx(call, decomposition_table=table)(*tensors)
        if any(node.op == "call_function" and mutates(node) for node in graph.graph.nodes):
            graph = make_fx(torch.func.functionalize(graph), decomposition_table=table)(*tensors)
    return graph


def mutates(node: fx.Node) -> bool:
    """Whether an operation changes its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def is_linear(node: fx.Node) -> bool:
    """Whether an operation is linear in its first argument, as the table has it, or all parts that it consists of."""
    if node.op != "call_function" or node.target is operator.getitem:
        return True
    if (entry := OPERATORS.get(short(str(node.target)))) is not None:
        return entry.linear
    parts = decomposed(node.target, *likes_of(node))
    return parts is not None and all(map(is_linear, parts.graph.nodes))


def likes_of(node: fx.Node) -> Any:
    """Arguments of a node, and those with names; of tensors what is known before any rule."""
    return fx.map_arg((node.args, node.kwargs), _like)


def _like(node: fx.Node) -> Any:
    return pytree.tree_map(
        lambda v: Like(shapes_of(v)[0], v.dtype) if isinstance(v, Tensor) else number(v), node.meta.get("val")
    )


def shapes_of(outputs: Any) -> tuple[tuple[int, ...], ...]:
    parts = outputs if isinstance(outputs, list | tuple) else [outputs]
    return tuple(tuple(map(number, part.shape)) for part in parts if isinstance(part, Tensor))


def number(known: Any) -> Any:
    """A size as it is in the example; what depends on values has numbers of its own, alike wherever it is the same."""
    if not isinstance(known, torch.SymInt):
        return known
    node = known.node
    if node.has_hint():
        return int(node.hint)
    symbols = sorted(node.expr.free_symbols, key=str)
    return int(node.expr.xreplace({s: 1009 + 2 * int(re.sub(r"\D", "", str(s)) or 0) for s in symbols}))
