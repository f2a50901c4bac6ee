"""The change of outputs when a module's weights are scaled or rotated at random, as a quantiser does before rounding.

All is computed in float64, at random weights near the module's own, where no bias is 0 and no gain is 1 by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from nfn_monomial.running import answers, largest_change
from nfn_monomial.space import GroupElement, MonomialMatrix, SharedScale, WeightSpace
from nfn_monomial.verify.points import Point

__all__ = ["KEPT", "MappingTrial"]

Tensors: TypeAlias = dict[str, Tensor]
KEPT = 1e-9  # change of outputs, relative to the largest, that is one of rounding
_POINTS, _DRAWS = 2, 8


class MappingTrial:
    """A module on which mappings are tried out; it is not changed.

    Attributes:
        paths: of all its modules.
        linears, embeddings: paths of those that are one, and have a weight.
    """

    def __init__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.paths = [path for path, _ in module.named_modules() if path]
        self._module, self._generator = module, torch.Generator().manual_seed(0)
        first = {id(t): name for name, t in module.named_parameters()}
        self._names = {n: first[id(t)] for n, t in module.named_parameters(remove_duplicate=False)}
        self.linears, self.embeddings = (
            {p for p, part in module.named_modules() if isinstance(part, kind) and f"{p}.weight" in self._names}
            for kind in (nn.Linear, nn.Embedding)
        )
        own = Point.of(module, inputs)
        drawn = list(own.neighbours(self._generator, _POINTS, _DRAWS))
        self._points = [(p.inputs, p.weights(), expected) for p, expected in drawn or [(own, own.steady_answers())]]

    def shape(self, path: str, part: str = "weight") -> tuple[int, ...]:
        """Returns the shape of a module's weight, or bias; empty if it has none."""
        name = self._names.get(f"{path}.{part}")
        return () if name is None else tuple(self._points[0][1][name].shape)

    def change(self, move: Callable[[Tensors], Mapping[str, Tensor]]) -> float:
        """Computes the largest change of an output, relative to its largest entry, by a move of all weights."""
        changes = []
        for inputs, weights, expected in self._points:
            moved = weights | dict(move(dict(weights)))
            changes.append(largest_change(answers(self._module, moved, *inputs), expected))
        return max(changes)

    def shared(self, space: WeightSpace, scale: SharedScale) -> float:
        """Computes the change by random scales in the group, through exactly the axes that share them."""
        numbers = self._scales(scale.size or 1)
        gauges = space.nodes[scale.node].gauges
        factors = [numbers if n == scale.gauge else torch.ones_like(numbers) for n in range(len(gauges))]
        element = GroupElement(space, {scale.node: MonomialMatrix(factors, torch.arange(len(numbers)))})
        return self.change(lambda weights: {name: element.act({name: t})[name] for name, t in weights.items()})

    def smoothed(self, smooth: str, balance: Iterable[str]) -> float:
        """Computes the change by dividing the last rows of a layer, or a norm's gain, and multiplying others' columns.

        There is a random scale for every column; a layer with more rows is several in one.
        """
        balance = list(balance)
        scales = self._scales(self.shape(balance[0])[1])

        def move(weights: Tensors) -> Tensors:
            for name in (self._names[key] for key in (f"{smooth}.weight", f"{smooth}.bias") if key in self._names):
                t = weights[name]
                factor = torch.cat([scales.new_ones(len(t) - len(scales)), scales])
                weights[name] = t / factor.reshape(-1, *[1] * (t.ndim - 1))
            for name in (self._names[f"{path}.weight"] for path in balance):
                weights[name] = weights[name] * scales
            return weights

        return self.change(move)

    def rotated(
        self, gains: Mapping[str, Sequence[str]], writers: Sequence[str], readers: Sequence[str], size: int
    ) -> float:
        """Computes the change by a random rotation of each block of entries that some layers write and others read.

        Before it, gains of norms become 1, and the columns of their linear layers are multiplied by them instead.
        """
        rotation: Tensor = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=self._generator)).Q

        def move(weights: Tensors) -> Tensors:
            for norm, linears in gains.items():
                gain = weights[self._names[f"{norm}.weight"]]
                weights[self._names[f"{norm}.weight"]] = torch.ones_like(gain)
                for name in (self._names[f"{path}.weight"] for path in linears):
                    weights[name] = weights[name] * gain
            for path in writers:
                rows = path in self.linears  # an embedding has the stream as its columns
                for name in (self._names[key] for key in (f"{path}.weight", f"{path}.bias") if key in self._names):
                    turned = _by_blocks(weights[name].movedim(0, -1) if rows else weights[name], rotation)
                    weights[name] = turned.movedim(-1, 0) if rows else turned
            for name in (self._names[f"{path}.weight"] for path in readers):
                weights[name] = _by_blocks(weights[name], rotation)
            return weights

        return self.change(move)

    def _scales(self, count: int) -> Tensor:
        return torch.randn(count, dtype=torch.float64, generator=self._generator).mul(2).exp()


def _by_blocks(rows: Tensor, rotation: Tensor) -> Tensor:
    """Multiplies each block of rows, of the size of the matrix, by the matrix."""
    return (rows.reshape(*rows.shape[:-1], -1, len(rotation)) @ rotation).reshape(rows.shape)
