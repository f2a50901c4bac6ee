"""Sine networks as input: the frequency absorbed into the weights, and a canonical form of the phases.

``sin(z + pi) = -sin z``, so besides permutations and sign flips a hidden neuron ``sin(w x + b)`` with outgoing weights
``a`` has the symmetry ``(w, b, a) -> (w, b + k pi, (-1)^k a)`` for every integer k. It acts on biases by addition, so
it is not part of the monomial group and no equivariant layer respects it; it is removed from the input instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nfn_monomial.checks import FLOATING, WHOLE, checked, shown
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.axes import Axis, Charge, flow
from nfn_monomial.space.packing import check_tensors, concrete, pieces, require_finite, whole
from nfn_monomial.space.specification import Node
from nfn_monomial.space.weight_space import WeightSpace

from .charges import along


@checked
def absorb_omega(
    tensors: Mapping[str, Tensor],
    space: WeightSpace,
    omega_0: float | Sequence[float],
    *,
    layers: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """Networks ``sin(omega_0 (W x + b))`` -> the same functions as ``sin(W x + b)``.

    Weights and biases of every layer that a sine follows are multiplied by its ``omega_0``; the others, such as the
    last one, stay. Commutes with the group. The inverse, up to rounding, is ``absorb_omega(tensors, space,
    1 / omega_0)``, as for weights that a model edited.

    Args:
        tensors: parameter name -> ``(..., *shape)`` with any leading dimensions, the same for all: ``(B, C, *shape)``,
            ``(N, *shape)``, or one network.
        space: the weight space; its sine nodes may have the symmetry SIGN or a smaller one.
        omega_0: the frequency, one or one per sine layer.
        layers: the hidden nodes whose activation is the sine, all by default.

    Returns:
        Tensors of the same shapes and dtype.

    Raises:
        ValueError: if tensors do not fit the space, frequencies are not one per layer or one is 0 or not finite, or a
            layer is no hidden node or has a symmetry that sine has not (SCALE, MONOMIAL).

    >>> space = WeightSpace.mlp([1, 1, 1], "sin")
    >>> tensors = {name: torch.ones(shape) for name, shape in space.shapes().items()}
    >>> [x.item() for x in absorb_omega(tensors, space, 30.0).values()]
    [30.0, 30.0, 1.0, 1.0]
    """
    sines = _sines(space, layers)
    omegas = [float(o) for o in omega_0] if isinstance(omega_0, Sequence) else [float(omega_0)] * len(sines)
    if len(omegas) != len(sines):
        raise InvalidValueError(
            f"{len(omegas)} frequencies for {len(sines)} sine layers ({', '.join(sines)} of {space})"
        )
    if not all(math.isfinite(o) and o for o in omegas):
        raise InvalidValueError(f"omega_0 must be finite and not 0, found {omega_0}")
    factors = dict(zip(sines, omegas, strict=True))
    flat, sizes = _flat(tensors, space)
    out = {}
    for name, x in pieces(space, flat, sizes).items():
        rows = [axis.node for axis in space.axes[name] if isinstance(axis, Axis) and flow(axis.charge) > 0]
        out[name] = x * math.prod([factors.get(node, 1.0) for node in rows])
    return _shaped(whole(space, out, sizes), tensors)


@checked
def canonical_phase(
    tensors: Mapping[str, Tensor], space: WeightSpace, *, layers: Sequence[str] | None = None
) -> dict[str, Tensor]:
    """Of all sine networks that differ by ``b -> b + k pi``, ``a -> (-1)^k a``, the one with b in (-pi/2, pi/2].

    The frequency must be absorbed first (`absorb_omega`). The function stays, in exact arithmetic; phases are reduced
    in float64 with sine and cosine, so that a bias is off by the rounding of its new value only, however large it was
    (by up to 4 machine epsilons at the end points, see below). Idempotent, permutation-equivariant. Biases have the
    gradient 1, signs are constants.

    **Sign flips.** ``canonical_phase``, then `balance` (in this order: the signs depend on the biases) is one form for
    all networks that permutations, sign flips and phases turn into one another, up to the permutation: a flip maps the
    open interval to itself. The exception are biases that are odd multiples of pi/2, a set of measure 0, where the
    neuron is ``a cos(w x)``: a flip with a phase leaves ``(-w, pi/2, a)`` of ``(w, pi/2, a)``, and nothing here
    chooses between the two. A bias within 4 machine epsilons of such a multiple counts as one.

    Args:
        tensors: as in `absorb_omega`. Leading dimensions are independent networks.
        space: the weight space.
        layers: the hidden nodes whose activation is the sine, all by default. The space knows their symmetry, not
            their activation: for another odd function, such as tanh, **this changes what the network computes**.

    Returns:
        Tensors of the same shapes and dtype. What is read from layers without a bias stays.

    Raises:
        ValueError: as `absorb_omega`; for NaN or infinite values; or if a node with a bias is no plain layer, since it
            has more than one bias, or more than one weight leads to it (in residual and in recurrent networks, which
            the space cannot tell apart).

    >>> space = WeightSpace.mlp([1, 1, 1], "sin")
    >>> tensors = {name: torch.ones(shape) for name, shape in space.shapes().items()}
    >>> tensors["bias.0"] += torch.pi
    >>> [round(x.item(), 5) for x in canonical_phase(tensors, space).values()]
    [1.0, 1.0, -1.0, 1.0]
    """
    biases, (flat, sizes) = phase_biases(space, layers), _flat(tensors, space)
    parts, signs = pieces(space, flat, sizes), {}
    for node, name in biases.items():
        bias = parts[name]
        wide = bias.to(torch.float64)
        cos = wide.cos()
        sign = torch.where(cos.detach() < 0, -1.0, 1.0)
        phase = torch.where(wide.abs() <= math.pi / 2, wide, torch.atan2(wide.sin() * sign, cos * sign))
        phase = phase.to(bias.dtype)
        # Both ends are one point of the circle, and rounding may put a phase at either.
        end = phase.abs() >= math.pi / 2 - 4 * torch.finfo(bias.dtype).eps
        parts[name] = torch.where(end, math.pi / 2, phase)
        signs[node] = torch.where(end & (phase < 0), -sign, sign)
    return _signed(tensors, space, parts, sizes, signs)


@checked
def shift_phase(
    tensors: Mapping[str, Tensor],
    space: WeightSpace,
    shifts: Mapping[str, Tensor],
    *,
    layers: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """The same sine networks with other phases: ``b -> b + k pi`` and ``a -> (-1)^k a``.

    Args:
        tensors: as in `absorb_omega`.
        space: the weight space.
        shifts: node -> integers k, ``(..., n)`` as the node's bias, or what broadcasts to it.
        layers: see `canonical_phase`.

    Raises:
        ValueError: as `canonical_phase`; or if a shifted node is no sine layer with a bias.
    """
    biases = phase_biases(space, layers)
    for node in shifts:
        if node not in biases:
            raise InvalidValueError(
                f"shift_phase: {node!r} is no sine layer with a bias; those of {space}: {list(biases)}"
            )
    flat, sizes = _flat(tensors, space)
    first = next(iter(space.parameters))
    lead = tensors[first].shape[: tensors[first].ndim - len(space.parameters[first])]
    parts, signs = pieces(space, flat, sizes), {}
    for node, k in shifts.items():
        bias = parts[biases[node]]
        shape = (*lead, bias.shape[-1])
        if k.dtype not in (*FLOATING, *WHOLE) or (k.is_meta and not bias.is_meta) or not _broadcasts(k.shape, shape):
            raise InvalidValueError(
                f"shift_phase: shifts[{node!r}] must be whole numbers of shape {shape}, or what broadcasts to it, "
                f"found {shown(k)}"
            )
        if concrete((k,)) and k.is_floating_point() and not torch.equal(k, k.round()):
            raise InvalidValueError(f"shift_phase: shifts[{node!r}] must be whole numbers: others change the function")
        k = k.to(bias.device, torch.float64).expand(*lead, bias.shape[-1]).reshape(bias.shape)
        parts[biases[node]] = (bias + k * math.pi).to(bias.dtype)
        signs[node] = 1 - 2 * k.remainder(2)
    return _signed(tensors, space, parts, sizes, signs)


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))


def phase_biases(space: WeightSpace, layers: Sequence[str] | None = None) -> dict[str, str]:
    """Sine node -> its bias, for those that have one; see `canonical_phase`.

    Raises:
        ValueError: if a node has several biases; or if its neurons may not be ``sin(W x + b)`` and nothing else, since
            other parameters lie on it than that bias, one weight from another node, and weights to other nodes.
    """
    biases_of: dict[str, str] = {}
    weights = [link for link in space.links if len(link.ends) == 2 and flow(link.charges[0]) > flow(link.charges[1])]
    for node in _sines(space, layers):
        biases = [link.parameter for link in space.links if link.target == node and link.charges == (1,)]
        if not biases:
            continue
        if len(biases) > 1:
            raise InvalidValueError(
                f"{' and '.join(biases)} are {'both' if len(biases) == 2 else 'all'} biases of {node!r}: which takes "
                "the phase? Add them first"
            )
        into = [link.parameter for link in weights if link.target == node != link.source]
        out_of = [link.parameter for link in weights if link.source == node != link.target]
        known = {*biases, *into, *out_of}
        others = [p for p, axes in space.axes.items() if p not in known and node in _nodes(axes)]
        if len(into) != 1 or others:
            raise InvalidValueError(
                f"node {node!r} of {space} has {', '.join(into + others)}, so what its neurons hand on need not be the "
                "one sine sin(W x + b), whose phase may move: several layers that share a node are added up, as in a "
                "residual connection. Name the nodes that are plain layers: layers=[...]"
            )
        biases_of[node] = biases[0]
    return biases_of


def _nodes(axes: Sequence[Axis | int]) -> list[str]:
    return [axis.node for axis in axes if isinstance(axis, Axis)]


def _sines(space: WeightSpace, layers: Sequence[str] | None) -> list[str]:
    """The sine nodes, checked, in the order of the space: of one gauge, nested in nothing, between rows and columns."""
    charges: dict[str, set[Charge]] = {n: set() for n, node in space.nodes.items() if _plain(node)}
    for name, axes in space.axes.items():
        for axis in axes:
            if not isinstance(axis, Axis) or axis.node not in charges:
                continue
            if axis.charge not in (1, -1) and (layers is None or axis.node in layers):
                raise InvalidValueError(
                    f"{name}: axis {axis} is neither a row (+1) nor a column (-1) of a layer sin(W x + b) of "
                    f"{space}; give the space that packed the networks, not uncharged() or another, or name the sine "
                    "layers: layers=[...]"
                )
            charges[axis.node].add(axis.charge)
    hidden = [name for name, signs in charges.items() if signs == {1, -1}]
    chosen = hidden if layers is None else list(layers)
    for name in chosen:
        if name in space.nodes and not _plain(space.nodes[name]):
            raise InvalidValueError(
                f"layers: node {name!r} of {space} has several gauges or is nested, so what its neurons hand on is not "
                "the sine of one layer sin(W x + b)"
            )
        if name not in hidden:
            raise InvalidValueError(
                f"layers: {name!r} is no hidden node of {space}; those are: {', '.join(hidden) or 'none'}"
            )
        if space.nodes[name].scales:
            raise InvalidValueError(
                f"node {name!r} of {space} has the symmetry {space.nodes[name].symmetry}, so its activation is not the "
                "sine; name the sine layers: layers=[...]"
            )
    return [name for name in hidden if name in chosen]


def _plain(node: Node) -> bool:
    return len(node.gauges) == 1 and node.parent is None


def _flat(tensors: Mapping[str, Tensor], space: WeightSpace) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Tensors ``(..., *shape)``, checked, as ``(N, 1, *shape)``; and the sizes of all nodes."""
    leads = {
        name: tuple(x.shape[: max(x.ndim - len(space.parameters[name]), 0)])
        for name, x in tensors.items()
        if name in space.parameters
    }
    first = next(iter(leads), "")
    flat = dict(tensors)
    for name, lead in leads.items():
        if lead != leads[first]:
            raise InvalidValueError(
                f"{name} has shape {tuple(tensors[name].shape)}, so leading dimensions {lead}, but {first} has "
                f"{leads[first]}; {space.describe(name)} is expected, with any leading dimensions that are the same "
                "for all"
            )
        flat[name] = tensors[name].reshape(math.prod(lead), 1, *tensors[name].shape[len(lead) :])
    return flat, check_tensors(space, flat)


def _signed(
    tensors: Mapping[str, Tensor],
    space: WeightSpace,
    parts: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    signs: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Pieces put together, what is read from a node's neurons times ``signs`` (node -> (N, 1, n)), shaped as before."""
    if concrete(tensors.values()):
        require_finite(tensors)
    out = {}
    for name, x in parts.items():
        for dim, axis in enumerate(space.axes[name], start=2):
            if isinstance(axis, Axis) and flow(axis.charge) < 0 and axis.node in signs:
                x = x * along(signs[axis.node][:, 0].to(x.dtype), (dim,), x.ndim)
        out[name] = x
    return _shaped(whole(space, out, sizes), tensors)


def _shaped(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.reshape(like[name].shape) for name, x in tensors.items()}
