"""Which symmetries a network has, tested, and how far its weights are from the middle of their orbit."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from nfn_monomial import WeightSpace, balance
from nfn_monomial.adapters.definitions import Definition
from nfn_monomial.space import packing
from nfn_monomial.space.axes import flow, powers
from nfn_monomial.space.certificate import certify
from nfn_monomial.tools.calls import ALONE, Call
from nfn_monomial.tools.report import Report, Table

from .files import read_checkpoint
from .networks import Net, Network, PathLike, read_architecture
from .outputs import Finding

__all__ = ["Neurons", "Symmetries", "find_symmetries", "neurons_of"]

TWINS = 1e-6  # rows this near, relative to their length, are those of one neuron twice
ROWS = 1024  # that are compared with all others at once


@dataclass(frozen=True)
class Neurons:
    """The neurons of one node, in a given network.

    Attributes:
        node: its name.
        size: how many there are.
        gauges: what acts on each beside permutations, ``scale``, ``sign``, ``monomial`` or nothing.
        spread: by how much their scales differ: the largest of the factors that balance them, divided by the smallest;
            1 in a balanced network. None where nothing scales.
        dead: how many of them have only zeros on one side, coming in or going out.
        twins: how many have the incoming weights of another neuron before them, up to what the group may do to it.
    """

    node: str
    size: int
    gauges: tuple[str, ...]
    spread: float | None
    dead: int
    twins: int


@dataclass(frozen=True)
class Symmetries(Finding):
    """What `symmetries` found.

    Attributes:
        definition: of the architecture.
        certified: in words, what was tested on which weights; empty for a chain of layers without a module.
        neurons: of the network, by node, if one was given.
    """

    definition: Definition
    certified: str
    neurons: tuple[Neurons, ...] = ()

    @property
    def network(self) -> Network | None:
        """The checkpoint's, if one was given."""
        return self.networks[0] if self.networks else None

    @property
    def summary(self) -> str:
        explained = self.definition.space.explain()
        if self.network is None:  # then it says what was tested
            return explained
        on = f"on {self.network.label}"
        tested = f"Tested {on}: {self.certified}." if self.certified else f"Not tested {on}: {self.network.why_not}."
        return f"{explained}\n\n{tested}"

    def to_json(self) -> dict[str, Any]:
        sizes = {} if self.network is None else self.network.sizes
        return {
            "network": self.definition.name,
            "checkpoint": None if self.network is None else str(self.network.checkpoint.path),
            "parameters": len(self.definition.space.parameters),
            "independent_scalings": self.definition.space.group_dimension,
            "certificate": self.certified or None,
            "nodes": {
                name: {
                    "size": sizes.get(name, node.size),
                    "permuted": node.permutes,
                    "gauges": [str(gauge).lower() for gauge in node.gauges if gauge.scales or gauge.flips],
                    "in": node.parent,
                }
                for name, node in self.definition.space.nodes.items()
            },
            "neurons": [asdict(found) for found in self.neurons],
            "explained": self.definition.space.explain(),
        }

    def report(self) -> Report:
        lines = [
            (
                found.node, str(found.size), ", ".join(found.gauges) or "permuted only",
                "-" if found.spread is None else f"{found.spread:.3g}", str(found.dead), str(found.twins),
            )
            for found in self.neurons
        ]  # fmt: skip
        notes = (
            "spread: largest over smallest of the factors that balance a node's neurons; dead: with only zeros coming "
            "in or going out; twins: with the incoming weights of another neuron.",
        )
        header = ("node", "neurons", "acts on each", "spread", "dead", "twins")
        title = "" if self.network is None else f"The neurons of {self.network.label}"
        tables = [Table(title, header, tuple(lines), text_columns=3, notes=notes)] if lines else []
        return Report(
            tables, self.to_json(), {"symmetries.svg": self.definition.space.draw()}, f"```\n{self.summary}\n```\n"
        )


def find_symmetries(
    checkpoint: PathLike | None = None,
    *,
    net: Net = None,
    input_shape: Sequence[int] | None = None,
    activation: str | None = None,
    key: str | None = None,
    call: Call = ALONE,
) -> Symmetries:
    """Which neurons of a network may be permuted, scaled and flipped, and, of a checkpoint, how its neurons lie.

    Args:
        checkpoint: weights, on which the group is tested once more; of other widths than the net's, if need be.
        net: see `read_architecture`; **its code runs**. Not needed for the checkpoint of a chain of layers.
        input_shape: of the example inputs, batch included; of a module that does not state any.
        activation: between the layers of a chain, by name.
        key: of the state dict in a file of ``torch.save``, where it has several.
        call: which keeps what is finished.

    Raises:
        FileNotFoundError: if there is no such checkpoint.
        ValueError: naming what cannot be used, and the way out; if the group changes what the network computes.
    """
    found = None if checkpoint is None else read_checkpoint(checkpoint, key)
    definition = read_architecture(net, input_shape=input_shape, activation=activation, like=found)
    if found is None:
        tested = "random elements of the group changed no output by more than 1e-9, on random weights, in float64"
        return Symmetries((), definition, tested)
    network = Network(definition, found, found.name)

    def make() -> tuple[Any, Mapping[str, Tensor]]:
        tensors = {name: t.double() for name, t in network.items()}
        return [certificate(network), [asdict(neurons) for neurons in neurons_of(network, tensors)]], {}

    (certified, neurons), _ = call.piece("neurons", make)
    told = tuple(Neurons(**values | {"gauges": tuple(values["gauges"])}) for values in neurons)
    return Symmetries((network,), definition, certified, told)


def certificate(network: Network) -> str:
    """What was tested of a network's symmetries on its own weights, in words; nothing, if no module runs it.

    Raises:
        ValueError: if the group changes what it computes.
    """
    if not network.runs:
        return ""
    trials = certify(
        network.module(), network.definition.inputs, functools.partial(network.space.sample, sizes=network.sizes)
    )
    return (
        f"{trials} random elements of the group changed no output by more than 1e-9, on these weights and around them, "
        "in float64"
    )


def neurons_of(network: Network, tensors: Mapping[str, Tensor]) -> tuple[Neurons, ...]:
    """The neurons of every node that is permuted, of a network in float64."""
    space, sizes = network.space, network.sizes
    batch = {name: t[None, None] for name, t in tensors.items()}
    balanced, element = balance(batch, space)
    dead = _dead(space, packing.pieces(space, batch, sizes), sizes)
    twins = _twins(space, packing.pieces(space, balanced, sizes), sizes)
    found = []
    for name, node in space.nodes.items():
        if not node.permutes:
            continue
        gauges = tuple(str(gauge).lower() for gauge in node.gauges if gauge.scales or gauge.flips)
        spread = None
        if any(gauge.scales for gauge in node.gauges):
            scales = element.matrices[name].scales if name in element.matrices else (torch.ones(1),)
            spread = max(float(s.abs().max() / s.abs().min()) for s in scales)
        size = math.prod(sizes[above] for above in space.ancestry(name))
        found.append(Neurons(name, size, gauges, spread, dead.get(name, 0), twins.get(name, 0)))
    return tuple(found)


def _rows(space: WeightSpace, pieces: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Any:
    """Node, charge, and entries ``(neurons, rest)`` of every end of every parameter."""
    for link in space.links:
        for end in link.ends:
            if space.nodes[end.node].permutes:
                count = math.prod(sizes[above] for above in space.ancestry(end.node))
                moved = pieces[link.parameter].movedim([2 + i for i in end.at], list(range(len(end.at))))
                yield end.node, end.charge, moved.reshape(count, -1)


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
