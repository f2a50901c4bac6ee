"""The signs of neurons that make what is odd in them positive."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nfn_monomial.space.axes import FieldType, powers
from nfn_monomial.space.features import Features
from nfn_monomial.space.weight_space import WeightSpace

from .charges import Charged, Gauge, along, charged_axes, flipping, onto, ordered, summed


def canonical_signs(space: WeightSpace, features: Features, noise: float) -> dict[Gauge, Tensor]:
    """The signs of `balance`, one node and gauge after the other.

    Args:
        space: the weight space.
        features: of the space.
        noise: sums of less than this part of the sum of sizes are 0.

    Returns:
        Gauge -> signs ``(B, *sizes)``, 0 where nothing settles them.
    """
    moments = _odd_moments(space, features)
    found = {gauge: x for axes, ((x, _), _) in moments for axis in axes for gauge, _ in axis.charges}
    flipped, sizes = ordered(space, found), space.node_sizes(features)
    first = features.tensors[0]
    known = {g: first.new_zeros(first.shape[0], *(sizes[node] for node in space.ancestry(g.node))) for g in flipped}
    # Incoming entries alone at first: balanced, a single incoming and a single outgoing weight may cancel.
    rounds = max([sum(gauge.node == node for gauge in flipped) for node in space.nodes], default=0)
    for gauge, lowest in [*((g, 1) for g in flipped), *((g, -math.inf) for g in reversed(flipped))] * rounds:
        sign = torch.zeros_like(known[gauge])
        for moment in range(2):
            total, size = torch.zeros_like(sign), torch.zeros_like(sign)
            for axes, sums in moments:
                own = [(axis, q) for axis in axes for g, q in axis.charges if g == gauge]
                if len(own) != 1 or own[0][1] < lowest:  # with two, it carries the signs of two neurons
                    continue
                x, absolute = sums[moment]
                for axis in axes:
                    for other, _ in axis.charges:
                        if other != gauge:
                            x = x * along(known[other], axis.dims, x.ndim)
                            absolute = absolute * along(known[other].abs(), axis.dims, x.ndim)
                dims = own[0][0].dims
                total, size = total + onto(x, dims), size + onto(absolute, dims)
            sign = torch.where(sign != 0, sign, total.sign() * (total.abs() > noise * size))
        known[gauge] = torch.where(known[gauge] != 0, known[gauge], sign)
    return known


def without_signs(space: WeightSpace, features: Features, noise: float) -> Features:
    """Features with their canonical signs; the size of an entry with a sign that nothing settles.

    Invariant under all sign flips, where the canonical form is so only as far as its signs are settled.
    """
    known, out = canonical_signs(space, features.detach(), noise), []
    for field_type, x in features.fields.items():
        signed, open_ = x, torch.zeros_like(x, dtype=torch.bool)
        for axis in charged_axes(space, field_type, flipping):
            for sign in (along(known[g], axis.dims, x.ndim) for g, _ in axis.charges if g in known):
                signed, open_ = signed * sign, open_ | (sign == 0)
        out.append(torch.where(open_, x.abs(), signed))
    return Features(features.layout, tuple(out))


def _odd_moments(
    space: WeightSpace, features: Features
) -> list[tuple[tuple[Charged, ...], list[tuple[Tensor, Tensor]]]]:
    """Sums of the entries that flip, and of their sizes; and of their cubes. Signs can be taken out of these sums."""
    needed = _independent(space, features.layout.types)
    moments: list[tuple[tuple[Charged, ...], list[tuple[Tensor, Tensor]]]] = []
    for field_type, x in features.fields.items():
        axes = []
        for axis in charged_axes(space, field_type, flipping):
            charges = tuple([(gauge, q) for gauge, q in axis.charges if gauge in needed])
            axes += [axis._replace(charges=charges)] if charges else []
        if axes:
            # No two weighted alike, or entries that balancing has made equal may cancel.
            place = 2 + len(moments)
            cubes = x * x * x * torch.linspace(1, place, x.shape[-1], dtype=x.dtype, device=x.device) / place
            sums = [(summed(y, axes)[0], summed(y.abs(), axes)[0]) for y in (x, cubes)]
            moments.append((summed(x, axes)[1], sums))
    return moments


def _independent(space: WeightSpace, types: Sequence[FieldType]) -> set[Gauge]:
    """Gauges whose signs do all that any signs do: where two flip the same entries of a node, only the first."""
    found = set()
    for name, node in space.nodes.items():
        charges = [powers(axis.charge) for field_type in types for axis in field_type if axis.node == name]
        basis: list[int] = []
        for i, gauge in enumerate(node.gauges):
            flips = sum(bool(flipping(gauge, q[i])) << bit for bit, q in enumerate(charges))
            for other in basis:
                flips = min(flips, flips ^ other)
            if flips:
                basis.append(flips)
                found.add(Gauge(name, i))
    return found
