"""The symmetries of a network, tested, and how far its weights are from the middle of their orbit."""

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
from nfn_monomial.tools.definitions.architectures import read_architecture
from nfn_monomial.tools.definitions.define import Definition
from nfn_monomial.tools.quantisers import recipe_of
from nfn_monomial.tools.report import Table
from nfn_monomial.verify.certificate import certify

from .finding import Finding
from .networks import Naming, Network, PathLike, read_networks

__all__ = ["find_symmetries"]

TWINS = 1e-6  # relative distance up to which two rows are those of one neuron that is there twice
ROWS = 1024  # that are compared with all others at once


def find_symmetries(
    checkpoint: PathLike | None = None, *, format: str | None = None, **naming: Unpack[Naming]
) -> Finding:
    """Finds which neurons of a network may be permuted, scaled and flipped, and looks at the neurons of a checkpoint.

    Args:
        checkpoint: weights, on which the group is tested once more; of other widths than the net's, if need be.
        format: of a quantiser, one of `nfn_monomial.tools.quantisers.FORMATS`: the result is then only which modules
            share a scale or a rotation, in this format.
        naming: see `Naming`; the **code** of ``net`` **runs**.

    Raises:
        FileNotFoundError: if there is no such checkpoint.
        ValueError: naming what cannot be used, and the way out; if the group changes what the network computes.
    """
    network = None
    if checkpoint is not None:
        (network,) = read_networks([checkpoint], **naming)
    definition = read_architecture(None, **naming) if network is None else network.definition
    if format is not None:
        return _mappings(definition, network, format)
    space, tables = definition.space, list[Table]()
    summary = space.explain()
    form = definition.normal_form
    if isinstance(form, str):
        summary = f"{summary}\n\nNo other symmetries were looked for: {form}."
    elif form.fibre_dimension > form.whole.group_dimension:
        summary = f"{summary}\n\n{form.explain()}"
    certificate = "random elements of the group changed no output by more than 1e-9, on random weights, in float64"
    sizes: Mapping[str, int] = {}
    neurons: list[dict[str, Any]] = []
    if network is not None:
        network.label = network.checkpoint.name
        sizes, neurons, certificate = network.sizes, _neurons(network), ""
        if network.runs:
            draw_element = functools.partial(space.sample, sizes=network.sizes)
            tested = certify(network.module(), definition.inputs, draw_element)
            certificate = (
                f"{tested.elements} random elements of the group changed no output by more than 1e-9, on these weights "
                "and around them, in float64"
            )
            summary = f"{summary}\n\nTested on {network.label}: {certificate}."
        else:
            summary = f"{summary}\n\nNot tested on {network.label}: {network.why_not}."
    results = {
        "network": definition.name,
        "checkpoint": None if network is None else str(network.checkpoint.path),
        "parameters": len(space.parameters),
        "independent_scalings": space.group_dimension,
        "fibre": None if isinstance(form, str) else form.dimensions(),
        "certificate": certificate or None,
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
        for row in neurons:
            gauges = ", ".join(row["gauges"]) or "permuted only"
            spread = "-" if row["spread"] is None else f"{row['spread']:.3g}"
            cells.append((row["node"], str(row["size"]), gauges, spread, str(row["dead"]), str(row["twins"])))
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


def _mappings(definition: Definition, network: Network | None, format: str) -> Finding:
    """Writes the mappings of a quantiser, tested near a checkpoint's weights or the architecture's own."""
    if not (definition.inputs if network is None else network.runs):
        why_not = "it has no example inputs" if network is None else network.why_not
        raise InvalidValueError(f"--format {format} tests every line, but {definition.name} cannot be run: {why_not}")
    module = definition.template() if network is None else network.module()
    recipe = recipe_of(module, definition.inputs, definition.space, lambda: definition.normal_form, format)
    results = {
        "network": definition.name,
        "checkpoint": None if network is None else str(network.checkpoint.path),
        "format": format,
        **recipe.to_json(),
    }
    text = recipe.text()

    def draw() -> dict[str, Figure | str]:
        return {"mappings.yaml": f"{text}\n"}

    return Finding(() if network is None else (network,), text, results, draw=draw, heading=f"```yaml\n{text}\n```\n")


def _gauges(node: Node) -> list[str]:
    """Names the gauges that act on each neuron of a node: ``scale``, ``sign``, ``monomial`` or none."""
    return [str(gauge).lower() for gauge in node.gauges if gauge.scales or gauge.flips]


def _neurons(network: Network) -> list[dict[str, Any]]:
    """Looks at the neurons of every node that is permuted, in float64.

    ``spread`` is the largest of the factors that balance their scales, divided by the smallest; None if nothing scales.
    ``dead`` is the number of neurons with only zeros on one side, coming in or going out. ``twins`` is the number of
    those with the incoming weights of another neuron before them, up to the group.
    """
    space, sizes = network.space, network.sizes
    batch = {name: t.double()[None, None] for name, t in network.items()}
    balanced, element = balance(batch, space)
    alive: dict[str, dict[tuple[int, bool], Tensor]] = {}  # node -> neurons by gauge, and whether it multiplies
    for node, charge, rows in _rows(space, packing.pieces(space, batch, sizes), sizes):
        sides = alive.setdefault(node, {})
        nonzero = (rows != 0).any(1)
        for gauge, q in enumerate(powers(charge)):
            if q:
                sides[gauge, q > 0] = sides.get((gauge, q > 0), torch.zeros_like(nonzero)) | nonzero
    incoming: dict[str, list[Tensor]] = {}
    for node, charge, rows in _rows(space, packing.pieces(space, balanced, sizes), sizes):
        if flow(charge) > 0:
            incoming.setdefault(node, []).append(rows)
    neurons = []
    for name, node in space.nodes.items():
        if not node.permutes:
            continue
        spread = None
        if any(gauge.scales for gauge in node.gauges):
            scales = element.matrices[name].scales if name in element.matrices else (torch.ones(1),)
            spread = max(float(s.abs().max() / s.abs().min()) for s in scales)
        alive_sides = list(alive.get(name, {}).values())
        neurons.append(
            {
                "node": name,
                "size": math.prod(sizes[above] for above in space.ancestry(name)),
                "gauges": _gauges(node),
                "spread": spread,
                "dead": int((~torch.stack(alive_sides).all(0)).sum()) if alive_sides else 0,
                "twins": _repeated(torch.cat(incoming[name], 1), node.scales) if name in incoming else 0,
            }
        )
    return neurons


def _rows(space: WeightSpace, pieces: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Any:
    """Yields the node, charge, and entries ``(neurons, rest)`` of every end of every parameter."""
    for link in space.links:
        for end in link.ends:
            if space.nodes[end.node].permutes:
                count = math.prod(sizes[above] for above in space.ancestry(end.node))
                rows = end.flatten(pieces[link.parameter][0, 0], 0)
                yield end.node, end.charge, rows.reshape(count, -1)


def _repeated(rows: Tensor, directions: bool) -> int:
    """Counts the rows that are equal to one before them; rows of 0 are left out, and ``directions`` have length 1."""
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
