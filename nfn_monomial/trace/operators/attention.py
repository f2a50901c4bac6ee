"""The rule of scaled dot-product attention, written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch.utils import _pytree as pytree

from nfn_monomial.trace.algebra.run import Run
from nfn_monomial.trace.algebra.values import UNIT, Value

from .reduce import softmax
from .table import operator


@operator("scaled_dot_product_attention")
def _attention(
    run: Run,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    **options: Any,
) -> Value:
    if causal:
        for side in (q, k):
            run.sets.fix(run.sets.resolve(side.dims[-2]), "causal mask")
    return _attended(run, q, k, v, mask, grouped=bool(options.get("enable_gqa")))


@operator("flex_attention")
def _flex_attention(
    run: Run, q: Value, k: Value, v: Value, score: fx.GraphModule, mask: Sequence[Any], *rest: Any
) -> Value:
    """With functions of scores and their places, of which all is known if they change none."""
    for read in pytree.tree_leaves(rest, is_leaf=lambda leaf: isinstance(leaf, Value)):
        if isinstance(read, Value):
            run.pin(read, "read by a function of scores")
    changed, masked = not _gives(score, _first), not _gives(mask[-1], _all)
    if changed or masked:
        for side in (q, k):  # batch, heads, places
            run.placed(side, range(len(side.dims) - 1), "a function of places")
    return _attended(run, q, k, v, None, grouped=True, changed=changed)


def _gives(function: fx.GraphModule, known: Callable[[fx.Node], bool]) -> bool:
    (out,) = (node.args[0] for node in function.graph.nodes if node.op == "output")
    return isinstance(out, fx.Node) and known(out)


def _first(out: fx.Node) -> bool:
    """Returns whether an output is the first argument."""
    return out is next(iter(out.graph.nodes))


def _all(out: fx.Node) -> bool:
    """Returns whether an output is true everywhere."""
    return str(out.target).startswith("aten.new_ones") or (
        str(out.target).startswith(("aten.full", "aten.new_full")) and out.args[-1] is True
    )


def _attended(
    run: Run, q: Value, k: Value, v: Value, mask: Value | None, *, grouped: bool, changed: bool = False
) -> Value:
    """Attention; ``grouped`` where heads may share keys, ``changed`` where scores are put through any function."""
    heads = "h" if grouped and q.shape[-3] != k.shape[-3] else ""
    if heads:
        ratio = q.shape[-3] // k.shape[-3]
        q = run.viewed(q, (*q.shape[:-3], k.shape[-3], ratio, *q.shape[-2:]))
    lead = "uvwxyz"[: len(k.dims) - 2]
    scores = run.contract(q, lead + heads + "td", k, lead + "sd", lead + heads + "ts")
    if mask is not None:
        if heads and len(mask.dims) > 2 and mask.shape[-3] > 1:
            mask = run.viewed(mask, (*mask.shape[:-3], k.shape[-3], ratio, *mask.shape[-2:]))
        elif heads and len(mask.dims) > 2:
            mask = mask.put(-2, len(mask.dims) - 2, UNIT)
        scores = run.add(scores, mask) if _additive(mask) else run.multiply(scores, mask)
    if changed:
        scores = run.unary(scores, "any", reason="a function of scores")
    weights = softmax(run, scores)
    out = run.contract(weights, lead + heads + "ts", v, lead + "sd", lead + heads + "td")
    if heads:
        out = run.viewed(out, (*out.shape[:-4], out.shape[-4] * out.shape[-3], *out.shape[-2:]))
    return out


def _additive(mask: Value) -> bool:
    return mask.data is None or mask.data.is_floating_point()
