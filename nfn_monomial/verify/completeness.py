"""Completeness of a weight space: its gauges are all scalings that leave a module's function alone.

A certificate refutes groups that are too large. Here those that are too small are seen: by the gradient, which knows no
rules of operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nfn_monomial.checks import checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.running import answers, inputs_of, random_sum, running
from nfn_monomial.space.axes import powers
from nfn_monomial.space.packing import pieces
from nfn_monomial.space.weight_space import WeightSpace

from .points import Point

WHOLE = ""
_ZERO = 1e-11  # of the largest singular value: those of eps = 1e-5 in ten norms are above it, rounding is below
_SPARE = 8  # equations more than unknowns


class Completeness(NamedTuple):
    """The scalings of one neuron of each node, and, under the name ``""``, those of all tensors as wholes.

    Attributes:
        gauges: how many independent ones the space has. Those of nodes that are nested in a node are among its own.
        scalings: how many leave the function alone.
    """

    gauges: dict[str, int]
    scalings: dict[str, int]

    @property
    def missing(self) -> dict[str, int]:
        """Node -> how many scalings the space does not have."""
        return {node: n - self.gauges[node] for node, n in self.scalings.items() if n > self.gauges[node]}

    def __str__(self) -> str:
        if not self.missing:
            return "The gauges are all scalings that leave the function alone"
        return "\n".join(
            f"{'tensors as wholes' if node == WHOLE else f'each neuron of {node}'}: {self.scalings[node]} independent "
            f"scalings leave the function alone, the space has {self.gauges[node]}"
            for node in self.missing
        )


@checked
def completeness(
    module: nn.Module, example_inputs: Any, space: WeightSpace, *, kwargs: Mapping[str, Any] | None = None
) -> Completeness:
    """Counts the scalings of each node that leave a module's function alone, and the gauges that it has.

    Let a neuron multiply its entries of each axis by a power of one factor. The function stays, for all weights, if and
    only if the sum of gradient times weight over these entries, each sum times its power, is 0 at all weights. So the
    powers of the scalings are the null space of the matrix of such sums: a column for each axis, a row for each random
    point near the module's own weights, sum of outputs, and neuron. Dead parameters are left out.

    Signs and permutations are not counted. What differs from a symmetry by less than 1e-11, as by a tiny eps, is taken
    for one; so is a tensor without influence on the outputs near the example.

    Args:
        module: the network, run in eval mode.
        example_inputs: a tensor, or a tuple of all positional arguments.
        space: of its parameters, derived or written by hand.
        kwargs: further arguments of the module.

    Raises:
        TypeError: for a module or a space that is none.
        ValueError: if the module has other tensors than the space, or does not run on the inputs; or if its outputs are
            not finite.

    >>> from nfn_monomial import WeightSpace
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> space = WeightSpace.from_module(net, torch.randn(4, 2))
    >>> print(completeness(net, torch.randn(4, 2), space))
    The gauges are all scalings that leave the function alone
    >>> completeness(net, torch.randn(4, 2), space.restricted("permutation")).missing
    {'': 1, 'layer0': 1}
    """
    sizes, generator = space.sizes(), torch.Generator().manual_seed(0)
    example = Point.of(module, inputs_of(example_inputs), kwargs)
    weights = example.weights()
    for name, shape in space.shapes().items():
        if name not in weights or tuple(weights[name].shape) != tuple(shape):
            tensor = f"{name} of shape {tuple(weights[name].shape)}" if name in weights else f"no tensor {name}"
            raise InvalidValueError(
                f"completeness: {type(module).__name__} has {tensor}; {space} expects {space.describe(name)}. "
                "WeightSpace.from_module(module, example_inputs) is a space of its own tensors"
            )
    with running(module, "the example inputs"):
        example.steady_answers()
    # An axis is a piece and the dimensions that a neuron has one place in. All is nested in the whole.
    axes: dict[str, list[tuple[str, tuple[int, ...]]]] = {WHOLE: []}
    for piece in (name for name in space.pieces if name not in space.dead):
        axes[WHOLE].append((piece, ()))
        for place in space.pieces[piece].places:
            if space.count(place.node, sizes) > 1:
                axes.setdefault(place.node, []).append((piece, place.path))
    neurons = {node: 1 if node == WHOLE else space.count(node, sizes) for node in axes}
    rows: dict[str, list[Tensor]] = {node: [] for node in axes}
    for point, _ in example.neighbours(generator, max(1 + (len(axes[n]) + _SPARE) // neurons[n] for n in axes)):
        weights = point.weights()
        leaves = [weights[name].requires_grad_() for name in space.parameters]
        total = random_sum(answers(module, weights, *point.inputs, gradients=True), generator)
        gradients = [None] * len(leaves) if total is None else torch.autograd.grad(total, leaves, allow_unused=True)
        products = {
            name: torch.zeros_like(t) if gradient is None else gradient * t.detach()
            for name, t, gradient in zip(space.parameters, leaves, gradients, strict=True)
        }
        changes = pieces(space, products, sizes)
        for node in axes:
            by_neuron = [
                changes[piece].movedim(path, tuple(range(len(path)))).reshape(neurons[node], -1)
                for piece, path in axes[node]
            ]
            rows[node].append(torch.stack([x.sum(1) for x in by_neuron], 1))
    gauges, scalings = {}, {}
    for node in axes:
        charges = [
            [
                sum(
                    powers(place.charge)[gauge]
                    for place in space.pieces[piece].places
                    if place.node == inner and place.path[: len(path)] == path
                )
                for piece, path in axes[node]
            ]
            for inner in space.nodes
            if node in (WHOLE, *space.ancestry(inner))
            for gauge, kind in enumerate(space.nodes[inner].gauges)
            if kind.scales
        ]
        gauges[node] = _rank(torch.tensor(charges, dtype=torch.float64)) if charges else 0
        matrix = torch.cat(rows[node])
        lengths = matrix.norm(dim=0)
        scalings[node] = len(axes[node]) - _rank(
            matrix / torch.where(lengths > _ZERO * lengths.max(), lengths, torch.inf)
        )
    return Completeness(gauges, scalings)


def _rank(matrix: Tensor) -> int:
    values = torch.linalg.svdvals(matrix)
    return int((values > _ZERO * values[:1]).sum())
