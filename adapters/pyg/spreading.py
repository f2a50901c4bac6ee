"""Factors on whole tensors as gauges of neurons, so that no edge of a graph needs a third end for them.

A factor on whole tensors is a node of size 1 (`nfn_monomial.WeightSpace.from_module` finds such, as the sign of all of
a transformer's stream). A parameter with two other ends has three then. In a graph the factor is one more gauge of the
neurons at one of these ends. The group that lets every neuron have a factor of its own there contains the group that is
meant, in which they are all the same: layers that respect the one respect the other.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from nfn_monomial import Axis, GroupElement, MonomialMatrix, WeightSpace
from nfn_monomial.space.axes import Dim, Sum, segments_of


class _Spread(NamedTuple):
    space: WeightSpace
    hosts: dict[str, tuple[str, ...]]  # node -> the nodes of size 1 whose gauges it has besides its own


def spread(space: WeightSpace) -> WeightSpace:
    """The space in which axes of size 1 beside two others are gauges of one of these; others stay as they are."""
    return _spread(space).space


def spread_element(element: GroupElement) -> GroupElement:
    """An element of a space as one of `spread` of it: the same on all tensors."""
    assert isinstance(element.space, WeightSpace), "of which graphs are made"
    to, hosts = _spread(element.space)
    if to is element.space:
        return element
    matrices = {name: matrix for name, matrix in element.matrices.items() if name in to.nodes}
    for host, factors in hosts.items():
        own = matrices.get(host)
        if own is None:
            continue
        scales = list(own.scales)
        for name in factors:
            given = element.matrices.get(name)
            for i in range(len(element.space.nodes[name].gauges)):
                one = torch.ones_like(own.scales[0][..., :1]) if given is None else given.scales[i]
                scales.append(one.expand(own.permutation.shape).to(own.scales[0]))
        matrices[host] = MonomialMatrix(scales, own.permutation, own.permutes)
    return GroupElement(to, matrices)


@functools.lru_cache(maxsize=256)
def _spread(space: WeightSpace) -> _Spread:
    small = {
        name
        for name, node in space.nodes.items()
        if node.size == 1 and node.permutes and node.parent is None and name not in space.nesting.values()
    }
    wide = {link.parameter for link in space.links if len(link.ends) > 2 and any(e.node in small for e in link.ends)}
    chosen = {
        name: _hosts(space, dims, small) if wide & set(space.pieces_of[name]) else {}
        for name, dims in space.parameters.items()
    }
    if not any(chosen.values()):
        return _Spread(space, {})
    pairs = {(factor.node, host.node) for found in chosen.values() for factor, host in found.values()}
    rank = list(space.nodes)
    hosts = {host: tuple(sorted({c for c, h in pairs if h == host}, key=rank.index)) for _, host in pairs}
    parameters = {name: _rewritten(space, dims, chosen[name], hosts) for name, dims in space.parameters.items()}
    used = {axis.node for dims in parameters.values() for _, axis in _axes(dims)}
    nodes = {
        name: node._replace(gauges=(*node.gauges, *(g for c in hosts.get(name, ()) for g in space.nodes[c].gauges)))
        for name, node in space.nodes.items()
        if name not in small or name in used
    }
    return _Spread(WeightSpace(nodes, parameters, label=space.label), hosts)


_Place = tuple[int, int, int]  # dimension, segment, factor of the product


def _axes(dims: Sequence[Dim]) -> Iterator[tuple[_Place, Axis]]:
    for i, dim in enumerate(dims):
        for j, segment in enumerate(segments_of(dim)):
            for k, axis in enumerate(segment):
                if isinstance(axis, Axis):
                    yield (i, j, k), axis


class _Host(NamedTuple):
    place: _Place
    node: str


def _hosts(space: WeightSpace, dims: Sequence[Dim], small: set[str]) -> dict[_Place, tuple[Axis, _Host]]:
    """Place of each axis of size 1 -> that axis, and an axis of neurons that is in all pieces that it is in.

    That is one of the same segment, or of a dimension that is no sum. Where neurons are FIXED there is none.
    """
    axes = list(_axes(dims))
    neurons = [_Host(at, axis.node) for at, axis in axes if axis.node not in small and space.nodes[axis.node].permutes]
    found = {}
    for at, axis in axes:
        if axis.node in small:
            near = [host for host in neurons if host.place[:2] == at[:2]]
            plain = [host for host in neurons if len(segments_of(dims[host.place[0]])) == 1]
            if near or plain:
                found[at] = axis, (near or plain)[-1]
    return found


def _rewritten(
    space: WeightSpace,
    dims: Sequence[Dim],
    found: dict[_Place, tuple[Axis, _Host]],
    hosts: dict[str, tuple[str, ...]],
) -> list[Dim]:
    """Dimensions with the charges of factors on the axes of their hosts."""
    changed: dict[_Place, Axis] = {}
    for at, axis in _axes(dims):
        own = list(space.nodes[axis.node].spelled(axis.charge))
        for name in hosts.get(axis.node, ()):
            charges = [
                space.nodes[name].spelled(a.charge) for a, h in found.values() if h.place == at and a.node == name
            ]
            own += [sum(q) for q in zip(*charges, strict=True)] or [0] * len(space.nodes[name].gauges)
        changed[at] = Axis(axis.node, tuple(own) if len(own) > 1 else own[0])
    out: list[Dim] = []
    for i, dim in enumerate(dims):
        segments: list[Axis | int | tuple[Axis | int, ...]] = []
        for j, segment in enumerate(segments_of(dim)):
            left = [changed.get((i, j, k), axis) for k, axis in enumerate(segment) if (i, j, k) not in found]
            segments.append(tuple(left) if len(left) > 1 else left[0] if left else 1)
        out.append(segments[0] if len(segments) == 1 else Sum(tuple(segments)))
    return out
