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

from .operators import entry_of, ruled, short


class Like(NamedTuple):
    """A tensor of this shape and type, whatever is in it."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def decomposed(target: Any, args: Any, kwargs: Any) -> fx.GraphModule | None:
    """Returns an operator's parts, as a graph whose placeholders are its tensors; None where it has none.

    Args:
        target: the operator.
        args, kwargs: of the call, a `Like` for each tensor.
    """
    if not isinstance(target, OpOverload):
        return None
    leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf=lambda v: isinstance(v, Like))
    try:
        parts = _traced(target, spec, ruled(), *leaves)
    except Exception:  # of an operator that needs values, or of none that can be traced, nothing is known
        return None
    return None if any(node.target is target for node in parts.graph.nodes) else parts


@functools.lru_cache(maxsize=1)
def _table(whole: frozenset[str]) -> dict[Any, Any]:
    """Returns torch's decompositions of all operators but those that have a rule."""
    every = default_decompositions()
    return {op: every[op] for op in every if short(str(op)) not in whole}


@functools.lru_cache(maxsize=1024, typed=True)
def _traced(target: OpOverload, spec: Any, whole: frozenset[str], *leaves: Any) -> fx.GraphModule:
    def call(*tensors: Tensor) -> Any:
        left = iter(tensors)
        filled = [next(left) if isinstance(leaf, Like) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return target(*args, **kwargs)

    table = _table(whole)
    with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        warnings.simplefilter("ignore")
        tensors = [torch.empty(leaf.shape, dtype=leaf.dtype) for leaf in leaves if isinstance(leaf, Like)]
        graph = make_fx(call, decomposition_table=table)(*tensors)
        if any(node.op == "call_function" and mutates(node) for node in graph.graph.nodes):
            graph = make_fx(torch.func.functionalize(graph), decomposition_table=table)(*tensors)
    return graph


def mutates(node: fx.Node) -> bool:
    """Returns whether an operation changes its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def is_linear(node: fx.Node) -> bool:
    """Returns whether an operation, or else each of its parts, is linear in its first argument."""
    if node.op != "call_function" or node.target is operator.getitem:
        return True
    if (entry := entry_of(short(str(node.target)))).rule is not None:
        return entry.linear
    parts = decomposed(node.target, *likes_of(node))
    return parts is not None and all(map(is_linear, parts.graph.nodes))


def likes_of(node: fx.Node) -> Any:
    """Returns the arguments of a node, a `Like` for each tensor."""
    return fx.map_arg((node.args, node.kwargs), _like)


def _like(node: fx.Node) -> Any:
    return pytree.tree_map(
        lambda v: Like(shapes_of(v)[0], v.dtype) if isinstance(v, Tensor) else number(v), node.meta.get("val")
    )


def shapes_of(outputs: Any) -> tuple[tuple[int, ...], ...]:
    parts = outputs if isinstance(outputs, list | tuple) else [outputs]
    return tuple(tuple(map(number, part.shape)) for part in parts if isinstance(part, Tensor))


def number(known: Any) -> Any:
    """Returns a size as it is in the example; each size that depends on values is a number of its own."""
    if not isinstance(known, torch.SymInt):
        return known
    node = known.node
    if node.has_hint():
        return int(node.hint)
    symbols = sorted(node.expr.free_symbols, key=str)
    return int(node.expr.xreplace({s: 1009 + 2 * int(re.sub(r"\D", "", str(s)) or 0) for s in symbols}))
