"""Which weight spaces have a graph, and where each of their entries lies in it."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nfn_monomial import Axis, WeightSpace
from nfn_monomial.space.features import field_name


class Weight(NamedTuple):
    """One weight, the edges from one node set to the next.

    Attributes:
        name: the parameter.
        order: permutation of ``(B, C, *axes and entries)`` to ``(B, rows, columns, *entries, C)``.
        entries: kernel dimensions and folded positions.
        folded: whether there are positions among them that a flatten folded into the columns.
    """

    name: str
    order: tuple[int, ...]
    entries: tuple[int, ...]
    folded: bool


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
    weights: tuple[Weight, ...]


@functools.lru_cache(maxsize=256)
def chain_of(space: WeightSpace) -> Chain:
    """The chain of a feed-forward space.

    Raises:
        ValueError: naming the parameter, if it is neither a bias nor a weight from one node set to the next, if there
            are two for one place, or if a weight is missing.
    """
    nodes = tuple(space.nodes)
    biases: list[str | None] = [None] * len(nodes)
    weights: list[Weight | None] = [None] * (len(nodes) - 1)
    charges: dict[str, set[tuple[int, int]]] = {name: set() for name in nodes}  # (found, usual), reduced
    for name, axes in space.axes.items():
        ends = sorted((nodes.index(a.node), i) for i, a in enumerate(axes) if isinstance(a, Axis))
        entries = tuple(a for a in axes if isinstance(a, int))
        shown = f"{space}: {name} has axes [{field_name(tuple(a for a in axes if isinstance(a, Axis)))}]"
        if len(ends) == 1 and not entries:
            place, taken = nodes[ends[0][0]], biases[ends[0][0]]
            biases[ends[0][0]] = name
        elif len(ends) == 2 and ends[1][0] == ends[0][0] + 1:
            (column, at_column), (row, at_row) = ends
            place, old = f"{nodes[column]} -> {nodes[row]}", weights[column]
            taken = None if old is None else old.name
            others = (2 + i for i, a in enumerate(axes) if isinstance(a, int))
            folded = any(isinstance(d, tuple) and not isinstance(d, Axis) for d in space.parameters[name])
            weights[column] = Weight(name, (0, 2 + at_row, 2 + at_column, *others, 1), entries, folded)
        else:
            raise ValueError(
                f"{shown}: a graph holds biases (one axis) and weights (two axes, on node sets that follow one "
                f"another: {', '.join(nodes)}). Loops, skips and other parameters have no place in it"
            )
        if taken is not None:
            raise ValueError(f"{shown} but {taken} is at {place} already: a graph has one edge a pair of neurons")
        for i, (position, at) in enumerate(reversed(ends)):
            axis, symmetry = axes[at], space.nodes[nodes[position]].symmetry
            assert isinstance(axis, Axis), "ends are axes"
            charges[axis.node].add((symmetry.charge(axis.charge), symmetry.charge(-1 if i else 1)))
    for i, weight in enumerate(weights):
        if weight is None:
            raise ValueError(f"{space}: no weight leads from node set {nodes[i]!r} to the next, {nodes[i + 1]!r}")
    symmetries = []
    for name, pairs in charges.items():
        neutral = all(found == 0 for found, _ in pairs)
        if not neutral and any(found != usual for found, usual in pairs):
            raise ValueError(
                f"{space}: axes of node set {name!r} have unusual charges; graphs know +1 on rows and biases, -1 on "
                "columns, or 0 on all of them (space.uncharged())"
            )
        symmetries.append(space.nodes[name].symmetry.acting(0 if neutral else 1).value)
    return Chain(nodes, tuple(symmetries), tuple(biases), tuple(w for w in weights if w is not None))


def common_kernel(*spaces: WeightSpace) -> tuple[int, ...]:
    """The smallest kernel shape into which the weights of all these spaces fit; ``()`` where all are linear.

    Kernels of fewer dimensions count as ones of size 1 in the leading dimensions. Positions folded by a flatten need
    no shape, only room: where there are more of them than entries, a leading dimension is added.

    >>> common_kernel(WeightSpace.cnn([1, 8, 8], [3, 5], "relu", head=[10]), WeightSpace.mlp([2, 8, 1], "sin"))
    (5, 5)
    """
    weights = [w for space in spaces for w in chain_of(space).weights]
    kernels = [w.entries[::-1] for w in weights if not w.folded]
    shape = tuple(max(sizes) for sizes in itertools.zip_longest(*kernels, fillvalue=1))[::-1]
    positions = max((math.prod(w.entries) for w in weights if w.folded), default=1)
    room = math.prod(shape)
    return shape if room >= positions else (-(-positions // room), *shape)


def pad(values: Tensor, weight: Weight, kernel: Sequence[int]) -> Tensor:
    """``(B, rows, columns, *entries, C)`` -> edges ``(B, rows * columns, K * C)``, zeros around the kernel."""
    *lead, channels = values.shape[0], values.shape[1] * values.shape[2], values.shape[-1]
    inner, outer, before = _frame(weight, kernel)
    values = values.reshape(*lead, *inner, channels)
    widths = [(b, o - i - b) for i, o, b in zip(inner, outer, before, strict=True)]
    if any(map(any, widths)):
        values = F.pad(values, [0, 0, *itertools.chain(*reversed(widths))])
    return values.reshape(*lead, -1)


def crop(edges: Tensor, weight: Weight, kernel: Sequence[int], channels: int) -> Tensor:
    """Edges ``(B, rows * columns, K * C)`` -> ``(B, rows * columns, entries, C)``; the inverse of `pad`."""
    inner, outer, before = _frame(weight, kernel)
    values = edges.reshape(*edges.shape[:2], *outer, channels)
    for dim, (i, b) in enumerate(zip(inner, before, strict=True), start=2):
        values = values.narrow(dim, b, i)
    return values.reshape(*edges.shape[:2], -1, channels)


def _frame(weight: Weight, kernel: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Shape inside, shape outside, and what lies before: kernels in the centre, folded positions at the start."""
    inner, outer = weight.entries, tuple(kernel)
    if weight.folded:
        inner, outer = (math.prod(inner),), (math.prod(outer),)
    fits = len(inner) <= len(outer)
    inner = (1,) * (len(outer) - len(inner)) + inner
    if not fits or any(i > o for i, o in zip(inner, outer, strict=True)):
        what = "positions" if weight.folded else "kernel"
        raise ValueError(
            f"{weight.name} has {what} {weight.entries}, which do not fit into kernel={tuple(kernel)}; "
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
