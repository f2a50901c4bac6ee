"""The rule of scaled dot-product attention, written out."""

from __future__ import annotations

from typing import Any

from nfn_monomial.space.trace.algebra.moves import Run
from nfn_monomial.space.trace.algebra.values import UNIT, Value

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
            run.fix(run.resolve(side.dims[-2]), "causal mask")
    heads = "h" if options.get("enable_gqa") and q.shape[-3] != k.shape[-3] else ""
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
    weights = softmax(run, scores)
    out = run.contract(weights, lead + heads + "ts", v, lead + "sd", lead + heads + "td")
    if heads:
        out = run.viewed(out, (*out.shape[:-4], out.shape[-4] * out.shape[-3], *out.shape[-2:]))
    return out


def _additive(mask: Value) -> bool:
    return mask.data is None or mask.data.is_floating_point()
