"""Sine networks as input: the frequency absorbed into the weights, and a canonical form of the phases.

``sin(z + pi) = -sin z``, so besides permutations and sign flips a hidden neuron ``sin(w x + b)`` with outgoing weights
``a`` has the symmetry ``(w, b, a) -> (w, b + k pi, (-1)^k a)`` for every integer k. It acts on biases by addition, so
it is not part of the monomial group and no equivariant layer respects it; it is removed from the input instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from nfn_monomial.checks import FLOATING, WHOLE, checked, shown
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.axes import Axis, Charge, flow
from nfn_monomial.space.packing import check_tensors, concrete, pieces, require_finite, whole
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
        tensors: parameter name -> ``(B, C, *shape)``.
        space: the weight space; its sine nodes may have the symmetry SIGN or a smaller one.
        omega_0: the frequency, one or one per sine layer.
        layers: the hidden nodes whose activation is the sine, all by default.

    Returns:
        Tensors of the same shapes and dtype.

    Raises:
        ValueError: if tensors do not fit the space, frequencies are not one per layer or one is 0 or not finite, or a
            node is no layer ``sin(W x + b)``: it is nested, has several gauges, other axes than rows (+1) and columns
            (-1), or a symmetry that sine has not (SCALE, MONOMIAL).

    >>> space = WeightSpace.mlp([1, 1, 1], "sin")
    >>> tensors = {name: torch.ones(1, 1, *shape) for name, shape in space.shapes().items()}
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
    sizes, out = check_tensors(space, tensors), {}
    for name, x in pieces(space, tensors, sizes).items():
        rows = [axis.node for axis in space.axes[name] if isinstance(axis, Axis) and flow(axis.charge) > 0]
        out[name] = x * math.prod([factors.get(node, 1.0) for node in rows])
    return whole(space, out, sizes)


@checked
def canonical_phase(
    tensors: Mapping[str, Tensor], space: WeightSpace, *, layers: Sequence[str] | None = None
) -> dict[str, Tensor]:
    """The sine network with b in (-pi/2, pi/2], of all that differ by ``b -> b + k pi``, ``a -> (-1)^k a``.

    The frequency must be absorbed first (`absorb_omega`). The function stays, in exact arithmetic; phases are reduced
    in float64 with sine and cosine, so that a bias is off by the rounding of its new value only, however large it was
    (by up to 4 machine epsilons at the end points, see below). Idempotent, permutation-equivariant. Biases have the
    gradient 1, signs are constants.

    **Sign flips.** ``canonical_phase``, then `balance` (in this order: the signs depend on the biases) is one form for
    all networks that permutations, sign flips and phases turn into one another, up to the permutation: a flip maps the
    open interval to itself. The exception are biases that are odd multiples of pi/2, a set of measure 0, where the
    neuron is ``a cos(w x)``: a flip with a phase leaves ``(-w, pi/2, a)`` of ``(w, pi/2, a)``, and nothing here
    chooses between the two. A bias within 4 machine epsilons of such a multiple counts as one, in 16 bits those of
    float32.

    Args:
        tensors: parameter name -> ``(B, C, *shape)``; channels are independent networks.
        space: the weight space.
        layers: the hidden nodes whose activation is the sine, all by default. The space knows their symmetry, not
            their activation: for another odd function, such as tanh, **this changes what the network computes**.

    Returns:
        Tensors of the same shapes and dtype. Weights that read layers without a bias stay.

    Raises:
        ValueError: as `absorb_omega`; for NaN or infinite values; or if a node with a bias is no plain layer, since it
            has more than one bias, or more than one weight leads to it (in residual and in recurrent networks, which
            the space cannot tell apart).

    >>> space = WeightSpace.mlp([1, 1, 1], "sin")
    >>> tensors = {name: torch.ones(1, 1, *shape) for name, shape in space.shapes().items()}
    >>> tensors["bias.0"] += torch.pi
    >>> [round(x.item(), 5) for x in canonical_phase(tensors, space).values()]
    [1.0, 1.0, -1.0, 1.0]
    """

    def reduced(_: str, bias: Tensor) -> tuple[Tensor, Tensor]:
        wide = bias.to(torch.float64)
        cos = wide.cos()
        sign = torch.where(cos.detach() < 0, -1.0, 1.0)
        phase = torch.where(wide.abs() <= math.pi / 2, wide, torch.atan2(wide.sin() * sign, cos * sign))
        phase = phase.to(bias.dtype)
        # Both ends are one point of the circle, and rounding may put a phase at either.
        end = phase.abs() >= math.pi / 2 - 4 * min(torch.finfo(dtype).eps for dtype in (bias.dtype, torch.float32))
        return torch.where(end, math.pi / 2, phase), torch.where(end & (phase < 0), -sign, sign)

    return _with_phases(tensors, space, phase_biases(space, layers), reduced)


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
        tensors: parameter name -> ``(B, C, *shape)``.
        space: the weight space.
        shifts: node -> integers k, ``(B, C, n)`` as the node's bias, or what broadcasts to it.
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

    def shifted(node: str, bias: Tensor) -> tuple[Tensor, Tensor]:
        k = shifts[node]
        sizes = zip(reversed(k.shape), reversed(bias.shape), strict=False)
        broadcasts = k.ndim <= bias.ndim and all(size in (1, whole) for size, whole in sizes)
        numbers = k.dtype in (*FLOATING, *WHOLE) and (bias.is_meta or not k.is_meta)
        if not (broadcasts and numbers) or (concrete((k,)) and k.is_floating_point() and not torch.equal(k, k.round())):
            raise InvalidValueError(
                f"shift_phase: shifts[{node!r}] must be whole numbers, as others change the function, of shape "
                f"{tuple(bias.shape)} or what broadcasts to it, found {shown(k)}"
            )
        k = k.to(bias.device, torch.float64).expand(bias.shape)
        return (bias + k * math.pi).to(bias.dtype), 1 - 2 * k.remainder(2)

    return _with_phases(tensors, space, {node: biases[node] for node in shifts}, shifted)


def _with_phases(
    tensors: Mapping[str, Tensor],
    space: WeightSpace,
    biases: Mapping[str, str],
    change: Callable[[str, Tensor], tuple[Tensor, Tensor]],
) -> dict[str, Tensor]:
    """Replaces biases: ``change`` makes of a node and its bias ``(B, C, n)`` another bias and signs for readers."""
    sizes = check_tensors(space, tensors)
    require_finite(tensors)
    parts, signs = pieces(space, tensors, sizes), {}
    for node, name in biases.items():
        parts[name], signs[node] = change(node, parts[name])
    for name, axes in space.axes.items():
        for dim, axis in enumerate(axes, start=2):
            if isinstance(axis, Axis) and flow(axis.charge) < 0 and axis.node in signs:
                x = parts[name]
                parts[name] = x * along(signs[axis.node].to(x.dtype), (1, dim), x.ndim)
    return whole(space, parts, sizes)


def phase_biases(space: WeightSpace, layers: Sequence[str] | None = None) -> dict[str, str]:
    """Sine node -> its bias, for those that have one; see `canonical_phase`.

    Raises:
        ValueError: if the neurons of a node with a bias need not be ``sin(W x + b)`` and nothing else, because other
            parameters lie on it than that bias, one weight from another node, and weights to other nodes.
    """
    biases_of: dict[str, str] = {}
    weights = [link for link in space.links if len(link.ends) == 2 and flow(link.charges[0]) > flow(link.charges[1])]
    for node in _sines(space, layers):
        biases = [link.parameter for link in space.links if link.target == node and link.charges == (1,)]
        into = [link.parameter for link in weights if link.target == node != link.source]
        out_of = [link.parameter for link in weights if link.source == node != link.target]
        on = {
            name for name, axes in space.axes.items() for axis in axes if isinstance(axis, Axis) and axis.node == node
        }
        others = sorted(on - {*biases, *into, *out_of})
        if biases and (len(biases) != 1 or len(into) != 1 or others):
            raise InvalidValueError(
                f"node {node!r} of {space} has {', '.join(biases + into + others)}, so what its neurons hand on need "
                "not be the one sine sin(W x + b), whose phase may move: several layers that share a node are added "
                "up, as in a residual connection. Name the nodes that are plain layers: layers=[...]"
            )
        if biases:
            biases_of[node] = biases[0]
    return biases_of


def _sines(space: WeightSpace, layers: Sequence[str] | None) -> list[str]:
    """The sine nodes, checked, in the order of the space: of one gauge, not nested, on rows and columns alone."""
    charges: dict[str, set[Charge]] = {
        name: set() for name, node in space.nodes.items() if len(node.gauges) == 1 and node.parent is None
    }
    for axis in itertools.chain.from_iterable(space.axes.values()):
        if isinstance(axis, Axis) and axis.node in charges:
            charges[axis.node].add(axis.charge)
    hidden = [name for name, powers in charges.items() if powers not in (set(), {1}, {-1})]
    chosen = hidden if layers is None else list(layers)
    for name in chosen:
        if name not in hidden:
            reason = f"is not one of its hidden nodes that have one gauge and no parent: {', '.join(hidden) or 'none'}"
        elif charges[name] != {1, -1}:
            reason = f"lies on axes of charges {charges[name]}, not on rows (+1) and columns (-1) alone"
        elif space.nodes[name].scales:
            reason = f"has the symmetry {space.nodes[name].symmetry}, which the sine has not"
        else:
            continue
        raise InvalidValueError(
            f"node {name!r} of {space} is no layer sin(W x + b): it {reason}. Give the space that packed the "
            "networks, not uncharged() or another, and name the sine layers: layers=[...]"
        )
    return [name for name in hidden if name in chosen]
