"""What a quantiser does to a module's weights before it rounds them, done at random, and by how much outputs change.

All is computed in float64, at random weights near the module's own, where no bias is 0 and no gain is 1 by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial.space import GroupElement, MonomialMatrix, SharedScale, WeightSpace
from nfn_monomial.space.certificate import Point, answers, doubled, largest_change

__all__ = ["KEPT", "Trial"]

Tensors: TypeAlias = dict[str, Tensor]
KEPT = 1e-9  # change of outputs, relative to the largest, that is one of rounding
_POINTS, _DRAWS = 2, 8


class Trial:
    """A module on which maps are tried out; it is not changed.

    Attributes:
        paths: of all its modules.
        linears, embeddings: of those that are one, and have a weight.
    """

    def __init__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.paths = [path for path, _ in module.named_modules() if path]
        self._module, self._generator = module, torch.Generator().manual_seed(0)
        first = {id(t): name for name, t in module.named_parameters()}
        self._names = {n: first[id(t)] for n, t in module.named_parameters(remove_duplicate=False)}
        self.linears, self.embeddings = (
            {p for p, found in module.named_modules() if isinstance(found, kind) and f"{p}.weight" in self._names}
            for kind in (nn.Linear, nn.Embedding)
        )
        own = Point(module, pytree.tree_map_only(Tensor, doubled, (inputs, {})))
        drawn = [found for _ in range(_POINTS) for found in own.near(self._generator, _DRAWS)]
        self._points = [(p.inputs, p.weights(), expected) for p, expected in drawn or [(own, own.steady_answers())]]

    def shape(self, path: str, part: str = "weight") -> tuple[int, ...]:
        """Of a module's weight, or its bias; empty for one without."""
        name = self._names.get(f"{path}.{part}")
        return () if name is None else tuple(self._points[0][1][name].shape)

    def change(self, move: Callable[[Tensors], Mapping[str, Tensor]]) -> float:
        """The largest change of an output, relative to its largest entry, by what takes all weights to new ones."""
        changes = []
        for inputs, weights, expected in self._points:
            moved = weights | dict(move(dict(weights)))
            changes.append(largest_change(answers(self._module, moved, *inputs), expected))
        return max(changes)

    def shared(self, space: WeightSpace, scale: SharedScale) -> float:
        """The change by random scales in the group, through exactly the axes that share them."""
        numbers = self._scales(scale.size or 1)
        gauges = space.nodes[scale.node].gauges
        factors = [numbers if n == scale.gauge else torch.ones_like(numbers) for n in range(len(gauges))]
        element = GroupElement(space, {scale.node: MonomialMatrix(factors, torch.arange(len(numbers)))})
        return self.change(lambda weights: {name: element.act({name: t})[name] for name, t in weights.items()})

    def smoothed(self, smooth: str, balance: Iterable[str]) -> float:
        """The change by dividing the last rows of one layer, or a norm's gain, and multiplying columns of others.

        There is a random scale for every column; layers with more rows are those that are several in one.
        """
        balance = list(balance)
        scales = self._scales(self.shape(balance[0])[1])

        def move(weights: Tensors) -> Tensors:
            for part in ("weight", "bias"):
                if (name := self._names.get(f"{smooth}.{part}")) is not None:
                    t = weights[name]
                    factor = torch.cat([scales.new_ones(len(t) - len(scales)), scales])
                    weights[name] = t / factor.reshape(-1, *[1] * (t.ndim - 1))
            for path in balance:
                name = self._names[f"{path}.weight"]
                weights[name] = weights[name] * scales
            return weights

        return self.change(move)

    def folded(self, norms: Mapping[str, Sequence[str]]) -> float:
        """The change by gains of norms that become 1, and are multiplied to the columns of linear layers instead."""
        return self.change(lambda weights: self._folded(weights, norms))

    def rotated(self, norms: Mapping[str, Sequence[str]], writers: Sequence[str], readers: Sequence[str]) -> float:
        """The change by a random rotation of the stream that some layers write to and others read, gains folded."""
        rotation = self._rotation(self.shape(readers[0])[1])

        def move(weights: Tensors) -> Tensors:
            return self._turned(self._folded(weights, norms), writers, readers, rotation)

        return self.change(move)

    def rotated_heads(self, writer: str, reader: str, size: int) -> float:
        """The change by one random rotation in each head, of so many rows of one layer and columns of another."""
        rotation = self._rotation(size)
        return self.change(lambda weights: self._turned(weights, [writer], [reader], rotation))

    def _turned(self, weights: Tensors, writers: Sequence[str], readers: Sequence[str], rotation: Tensor) -> Tensors:
        for path in writers:
            columns = path not in self.linears  # an embedding has the stream as its columns
            for part in ("weight", "bias"):
                if (name := self._names.get(f"{path}.{part}")) is not None:
                    rows = weights[name] if columns else weights[name].movedim(0, -1)
                    rows = _by_blocks(rows, rotation)
                    weights[name] = rows if columns else rows.movedim(-1, 0)
        for path in readers:
            name = self._names[f"{path}.weight"]
            weights[name] = _by_blocks(weights[name], rotation)
        return weights

    def _folded(self, weights: Tensors, norms: Mapping[str, Sequence[str]]) -> Tensors:
        for norm, linears in norms.items():
            gain = weights[self._names[f"{norm}.weight"]]
            for path in linears:
                name = self._names[f"{path}.weight"]
                weights[name] = weights[name] * gain
            weights[self._names[f"{norm}.weight"]] = torch.ones_like(gain)
        return weights

    def _scales(self, count: int) -> Tensor:
        return torch.randn(count, dtype=torch.float64, generator=self._generator).mul(2).exp()

    def _rotation(self, size: int) -> Tensor:
        noise = torch.randn(size, size, dtype=torch.float64, generator=self._generator)
        found: Tensor = torch.linalg.qr(noise).Q
        return found


def _by_blocks(rows: Tensor, rotation: Tensor) -> Tensor:
    """Rows with a matrix at each of the blocks of its size that they consist of."""
    return (rows.reshape(*rows.shape[:-1], -1, len(rotation)) @ rotation).reshape(rows.shape)
