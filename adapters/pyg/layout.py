"""Which weight spaces are chains of layers, and where each of their entries lies in the graph of one."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.checks import checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space import Specification, field_name
from nfn_monomial.space.links import Link

FLIPS, SCALES = (s.value - Symmetry.PERMUTATION.value for s in (Symmetry.SIGN, Symmetry.SCALE))
"""Bits of a node's ``symmetry``: whether its sign may flip, and whether it may be scaled."""


class Chain(NamedTuple):
    """A weight space as a chain of node sets, each with one weight to the next.

    Attributes:
        nodes: names of the node sets, inputs first.
        symmetry: `Symmetry` value of each node set, as its axes' charges feel it.
        biases: name of each node set's bias, or None.
        weights: the ``L`` weights, in order.
    """

    nodes: tuple[str, ...]
    symmetry: tuple[int, ...]
    biases: tuple[str | None, ...]
    weights: tuple[Link, ...]


@functools.lru_cache(maxsize=256)
def chain_of(space: Specification) -> Chain:
    """The chain of a feed-forward space.

    Raises:
        ValueError: naming the parameter, if it is neither a bias nor a weight from one node set to the next, if there
            are two for one place, or if a weight is missing.
    """
    nodes = tuple(space.nodes)
    steps: set[tuple[str | None, str]] = set(itertools.pairwise(nodes))
    places: dict[tuple[str, str | None], Link] = {}
    links = {link.parameter: link for link in space.links}
    for name, axes in space.axes.items():
        link = links.get(name)
        shown = f"{space}: {name} has axes [{field_name(tuple(a for a in axes if isinstance(a, Axis)))}]"
        bias = link is not None and len(link.ends) == 1 and not link.kernel
        if link is None or (not bias and (link.source, link.target) not in steps):
            raise InvalidValueError(
                f"{shown}: a graph holds biases (one axis) and weights (two axes, on node sets that follow one "
                f"another: {', '.join(nodes)}). Loops, skips and other parameters have no place in it"
            )
        taken = places.setdefault((link.target, link.source), link)
        if taken is not link:
            place = link.target if bias else f"{link.source} -> {link.target}"
            raise InvalidValueError(
                f"{shown} but {taken.parameter} is at {place} already: a graph has one edge a pair of neurons"
            )
    for source, target in itertools.pairwise(nodes):
        if (target, source) not in places:
            raise InvalidValueError(f"{space}: no weight leads from node set {source!r} to the next, {target!r}")
    return Chain(
        nodes,
        tuple(_symmetry(space, node) for node in nodes),
        tuple(places[node, None].parameter if (node, None) in places else None for node in nodes),
        tuple(places[target, source] for source, target in itertools.pairwise(nodes)),
    )


def is_chain(space: Specification) -> bool:
    """Whether `chain_of` takes a space."""
    try:
        chain_of(space)
    except ValueError:
        return False
    return True


def _symmetry(space: Specification, node: str) -> int:
    """What the axes of a node feel of its symmetry."""
    symmetry = space.nodes[node]
    ends = [(e, usual) for link in space.links for e, usual in zip(link.ends, (1, -1), strict=False) if e.node == node]
    neutral = all(symmetry.charge(end.charge) == 0 for end, _ in ends)
    if not neutral and any(symmetry.charge(end.charge) != symmetry.charge(usual) for end, usual in ends):
        raise InvalidValueError(
            f"{space}: axes of node set {node!r} have unusual charges; graphs know +1 on rows and biases, -1 on "
            "columns, or 0 on all of them (space.uncharged())"
        )
    return symmetry.acting(0 if neutral else 1).value


@checked
def common_kernel(*spaces: WeightSpace) -> tuple[int, ...]:
    """The smallest kernel shape into which the weights of all these spaces fit; ``()`` where all are linear.

    Kernels of fewer dimensions count as ones of size 1 in the leading dimensions. Positions folded by a flatten need
    no shape, only room: where there are more of them than entries, a leading dimension is added.

    >>> common_kernel(WeightSpace.cnn([1, 8, 8], [3, 5], "relu", head=[10]), WeightSpace.mlp([2, 8, 1], "sin"))
    (5, 5)
    """
    weights = [link for space in spaces for link in space.links]
    kernels = [w.kernel[::-1] for w in weights if not w.folded]
    shape = tuple(max(sizes) for sizes in itertools.zip_longest(*kernels, fillvalue=1))[::-1]
    positions = max((math.prod(w.kernel) for w in weights if w.folded), default=1)
    room = math.prod(shape)
    return shape if room >= positions else (-(-positions // room), *shape)


def pad(values: Tensor, weight: Link, kernel: Sequence[int]) -> Tensor:
    """``(B, rows, columns, *entries, C)`` -> edges ``(B, rows * columns, K * C)``, zeros around the kernel."""
    *lead, channels = values.shape[0], values.shape[1] * values.shape[2], values.shape[-1]
    inner, outer, before = _frame(weight, kernel)
    values = values.reshape(*lead, *inner, channels)
    widths = [(b, o - i - b) for i, o, b in zip(inner, outer, before, strict=True)]
    if any(map(any, widths)):
        values = F.pad(values, [0, 0, *itertools.chain(*reversed(widths))])
    return values.reshape(*lead, -1)


def crop(edges: Tensor, weight: Link, kernel: Sequence[int], channels: int) -> Tensor:
    """Edges ``(B, rows * columns, K * C)`` -> ``(B, rows * columns, entries, C)``; the inverse of `pad`."""
    inner, outer, before = _frame(weight, kernel)
    values = edges.reshape(*edges.shape[:2], *outer, channels)
    for dim, (i, b) in enumerate(zip(inner, before, strict=True), start=2):
        values = values.narrow(dim, b, i)
    return values.reshape(*edges.shape[:2], -1, channels)


def _frame(weight: Link, kernel: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Shape inside, shape outside, and what lies before: kernels in the centre, folded positions at the start."""
    inner, outer = weight.kernel, tuple(kernel)
    if weight.folded:
        inner, outer = (math.prod(inner),), (math.prod(outer),)
    fits = len(inner) <= len(outer)
    inner = (1,) * (len(outer) - len(inner)) + inner
    if not fits or any(i > o for i, o in zip(inner, outer, strict=True)):
        what = "positions" if weight.folded else "kernel"
        raise InvalidValueError(
            f"{weight.parameter} has {what} {weight.kernel}, which do not fit into kernel={tuple(kernel)}; "
            "common_kernel(*spaces) gives the smallest that holds the weights of all given spaces"
        )
    before = tuple(0 if weight.folded else (o - i) // 2 for i, o in zip(inner, outer, strict=True))
    return inner, outer, before


def skeleton(
    chain: Chain, sizes: Sequence[int], device: torch.device | None = None
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """One network without its values: node attributes ``(n,)``, ``edge_index (2, E)`` and ``edge_layer (E,)``."""

    def arange(n: int) -> Tensor:
        return torch.arange(n, device=device)

    layer = torch.cat([torch.full((n,), i, device=device) for i, n in enumerate(sizes)])
    nodes = {
        "symmetry": torch.tensor(chain.symmetry, device=device)[layer],
        "layer": layer,
        "neuron": torch.cat([arange(n) for n in sizes]),
        "depth": torch.full_like(layer, len(chain.weights)),
        "has_bias": torch.tensor([b is not None for b in chain.biases], device=device)[layer],
    }
    sources, targets, start = [], [], 0
    for columns, rows in itertools.pairwise(sizes):
        sources.append(start + arange(columns).repeat(rows))
        targets.append(start + columns + arange(rows).repeat_interleave(columns))
        start += columns
    edge_layer = torch.cat([torch.full_like(s, i) for i, s in enumerate(sources)])
    return nodes, torch.stack([torch.cat(sources), torch.cat(targets)]), edge_layer
