"""Which symmetries a network has, tested, and how far its weights are from the middle of their orbit."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from matplotlib.figure import Figure
from torch import Tensor

from nfn_monomial import WeightSpace, balance
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space import packing
from nfn_monomial.space.axes import flow, powers
from nfn_monomial.space.nodes import Node
from nfn_monomial.tools.definitions.define import Definition
from nfn_monomial.tools.quantisers import recipe_of
from nfn_monomial.tools.report import Table
from nfn_monomial.verify.certificate import certify

from .findings import Finding
from .networks import Naming, Network, PathLike, read_architecture, read_networks

__all__ = ["find_symmetries"]

TWINS = 1e-6  # rows this near, relative to their length, are those of one neuron twice
ROWS = 1024  # that are compared with all others at once


def find_symmetries(
    checkpoint: PathLike | None = None, *, format: str | None = None, **naming: Unpack[Naming]
) -> Finding:
    """Which neurons of a network may be permuted, scaled and flipped, and, of a checkpoint, how its neurons lie.

    Args:
        checkpoint: weights, on which the group is tested once more; of other widths than the net's, if need be.
        format: of a quantiser, one of `nfn_monomial.tools.quantisers.FORMATS`, to be told in it alone which modules
            share a scale or a rotation.
        naming: see `Naming`; the **code** of ``net`` **runs**.

    Raises:
        FileNotFoundError: if there is no such checkpoint.
        ValueError: naming what cannot be used, and the way out; if the group changes what the network computes.
    """
    if format is not None:
        return _mapped(checkpoint, format, **naming)
    if checkpoint is None:
        definition = read_architecture(None, **naming)
        tested = "random elements of the group changed no output by more than 1e-9, on random weights, in float64"
        return _told(definition, None, tested, [])
    (network,) = read_networks([checkpoint], **naming)
    network.label = network.checkpoint.name
    return _told(network.definition, network, _certificate(network), _neurons(network))


def _mapped(checkpoint: PathLike | None, style: str, **naming: Unpack[Naming]) -> Finding:
    """The maps of a quantiser, tested near a checkpoint's weights or the architecture's own."""
    networks = () if checkpoint is None else tuple(read_networks([checkpoint], **naming))
    definition = networks[0].definition if networks else read_architecture(None, **naming)
    if not (networks[0].runs if networks else definition.inputs):
        why_not = networks[0].why_not if networks else "it has no example inputs"
        raise InvalidValueError(f"--format {style} tests every line, but {definition.name} cannot be run: {why_not}")
    module = networks[0].module() if networks else definition.template()
    recipe = recipe_of(module, definition.inputs, definition.space, lambda: definition.normal_form, style)
    results = {
        "network": definition.name,
        "checkpoint": str(networks[0].checkpoint.path) if networks else None,
        "format": style,
        **recipe.to_json(),
    }
    text = recipe.text()

    def draw() -> dict[str, Figure | str]:
        return {"mappings.yaml": f"{text}\n"}

    return Finding(networks, text, results, draw=draw, heading=f"```yaml\n{text}\n```\n")


def _told(definition: Definition, network: Network | None, certified: str, neurons: list[dict[str, Any]]) -> Finding:
    space = definition.space
    summary = space.explain()  # which says what was tested of the architecture
    form = definition.normal_form
    if isinstance(form, str):
        summary = f"{summary}\n\nNothing else was looked for: {form}."
    elif form.fibre_dimension > form.whole.group_dimension:
        summary = f"{summary}\n\n{form.explain()}"
    sizes: Mapping[str, int] = {}
    tables = []
    if network is not None:
        sizes, on = network.sizes, f"on {network.label}"
        tested = f"Tested {on}: {certified}." if certified else f"Not tested {on}: {network.why_not}."
        summary = f"{summary}\n\n{tested}"
    results = {
        "network": definition.name,
        "checkpoint": None if network is None else str(network.checkpoint.path),
        "parameters": len(space.parameters),
        "independent_scalings": space.group_dimension,
        "fibre": None if isinstance(form, str) else form.dimensions(),
        "certificate": certified or None,
        "nodes": {
            name: {
                "size": sizes.get(name, node.size),
                "permuted": node.permutes,
                "gauges": _gauges(node),
                "in": node.parent,
            }
            for name, node in space.nodes.items()
        },
        "neurons": neurons,
        "explained": space.explain(),
    }
    if network is not None and neurons:
        cells = []
        for found in neurons:
            acts = ", ".join(found["gauges"]) or "permuted only"
            spread = "-" if found["spread"] is None else f"{found['spread']:.3g}"
            cells.append((found["node"], str(found["size"]), acts, spread, str(found["dead"]), str(found["twins"])))
        note = (
            "spread: largest over smallest of the factors that balance a node's neurons; dead: with only zeros coming "
            "in or going out; twins: with the incoming weights of another neuron."
        )
        header = ("node", "neurons", "acts on each", "spread", "dead", "twins")
        title = f"The neurons of {network.label}"
        tables.append(Table(title, header, tuple(cells), text_columns=3, notes=(note,)))

    def draw() -> dict[str, Figure | str]:
        return {"symmetries.svg": space.draw()}

    networks = () if network is None else (network,)
    return Finding(networks, summary, results, tables, draw, heading=f"```\n{summary}\n```\n").with_notes()


def _certificate(network: Network) -> str:
    """What was tested of a network's symmetries on its own weights, in words; nothing, if no module runs it."""
    if not network.runs:
        return ""
    tested = certify(
        network.module(), network.definition.inputs, functools.partial(network.space.sample, sizes=network.sizes)
    )
    return (
        f"{tested.elements} random elements of the group changed no output by more than 1e-9, on these weights and "
        "around them, in float64"
    )


def _gauges(node: Node) -> list[str]:
    """What acts on each neuron of a node beside permutations: ``scale``, ``sign``, ``monomial`` or nothing."""
    return [str(gauge).lower() for gauge in node.gauges if gauge.scales or gauge.flips]


def _neurons(network: Network) -> list[dict[str, Any]]:
    """The neurons of every node that is permuted, in float64.

    ``spread`` is by how much their scales differ: the largest of the factors that balance them, divided by the
    smallest; None where nothing scales. ``dead`` have only zeros on one side, coming in or going out. ``twins`` have
    the incoming weights of another neuron before them, up to what the group may do to it.
    """
    space, sizes = network.space, network.sizes
    batch = {name: t.double()[None, None] for name, t in network.items()}
    balanced, element = balance(batch, space)
    dead = _dead(space, packing.pieces(space, batch, sizes), sizes)
    twins = _twins(space, packing.pieces(space, balanced, sizes), sizes)
    found = []
    for name, node in space.nodes.items():
        if not node.permutes:
            continue
        spread = None
        if any(gauge.scales for gauge in node.gauges):
            scales = element.matrices[name].scales if name in element.matrices else (torch.ones(1),)
            spread = max(float(s.abs().max() / s.abs().min()) for s in scales)
        found.append(
            {
                "node": name,
                "size": math.prod(sizes[above] for above in space.ancestry(name)),
                "gauges": _gauges(node),
                "spread": spread,
                "dead": dead.get(name, 0),
                "twins": twins.get(name, 0),
            }
        )
    return found


def _rows(space: WeightSpace, pieces: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Any:
    """Node, charge, and entries ``(neurons, rest)`` of every end of every parameter."""
    for link in space.links:
        for end in link.ends:
            if space.nodes[end.node].permutes:
                count = math.prod(sizes[above] for above in space.ancestry(end.node))
                rows = end.flatten(pieces[link.parameter][0, 0], 0)
                yield end.node, end.charge, rows.reshape(count, -1)


def _dead(space: WeightSpace, pieces: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, int]:
    """Node -> neurons on one side of which, where a gauge multiplies or where it divides, are only zeros."""
    lives: dict[str, dict[tuple[int, bool], Tensor]] = {}
    for node, charge, rows in _rows(space, pieces, sizes):
        for gauge, q in enumerate(powers(charge)):
            if q:
                sides = lives.setdefault(node, {})
                alive = (rows != 0).any(1)
                sides[gauge, q > 0] = sides[gauge, q > 0] | alive if (gauge, q > 0) in sides else alive
    return {node: int((~torch.stack(list(sides.values())).all(0)).sum()) for node, sides in lives.items()}


def _twins(space: WeightSpace, pieces: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, int]:
    """Node -> neurons that a balanced network has twice, by their incoming weights."""
    incoming: dict[str, list[Tensor]] = {}
    for node, charge, rows in _rows(space, pieces, sizes):
        if flow(charge) > 0:
            incoming.setdefault(node, []).append(rows)
    return {node: _repeated(torch.cat(rows, 1), space.nodes[node].scales) for node, rows in incoming.items()}


def _repeated(rows: Tensor, directions: bool) -> int:
    """How many rows are equal to one before them; of directions, those without a length are none."""
    norms = rows.square().sum(1)
    alive = norms > 0
    if directions:
        rows, norms = rows[alive] / norms[alive].sqrt()[:, None], torch.ones(int(alive.sum()), dtype=rows.dtype)
    else:
        rows, norms = rows[alive], norms[alive]
    repeated = 0
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        gap = norms[start : start + ROWS, None] + norms - 2 * part @ rows.T
        same = gap <= TWINS**2 * norms
        repeated += int(same.tril(start - 1).any(1).sum())
    return repeated
