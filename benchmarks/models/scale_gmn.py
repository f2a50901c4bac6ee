"""ScaleGMN (Kalogeropoulos et al. 2024), forward only, in plain torch-geometric: whole models against ours.

Written from the paper; embeddings and the readout are as small as they can be. Vectors of a neuron are equivariant to
its own scale or sign; every function of them is a linear map, without a bias, times a function of invariants.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, global_mean_pool

__all__ = ["ScaleGMN"]


class Equivariant(nn.Module):
    """``ScaleEq``: a linear map of a vector times ``ScaleInv`` of it and of others.

    Args:
        inputs: widths; the first is mapped, the others, of other scales, count by their invariants.
        width: of the output.
        flips: whether signs act: invariants are then ``f(x) + f(-x)``, else ``f(x / |x|)``.
    """

    def __init__(self, inputs: list[int], width: int, flips: bool) -> None:
        super().__init__()
        self.flips = flips
        self.linear = nn.Linear(inputs[0], width, bias=False)
        self.parts = nn.ModuleList(_mlp(n, width) for n in inputs)
        self.join = _mlp(len(inputs) * width, width)

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        """Vectors ``(n, inputs[i])`` -> ``(n, width)``."""
        return torch.as_tensor(self.linear(x) * self.invariant(x, *others))

    def invariant(self, *vectors: Tensor) -> Tensor:
        """``ScaleInv``."""
        parts = [
            part(x) + part(-x) if self.flips else part(nn.functional.normalize(x))
            for part, x in zip(self.parts, vectors, strict=True)
        ]
        return torch.as_tensor(self.join(torch.cat(parts, -1)))


class ScaleGMNLayer(MessagePassing):  # type: ignore[misc]  # torch_geometric is not typed
    """One round: messages ``ScaleEq([x_i, (A x_j) * (B e_ij)])``, and updates of neurons and of edges."""

    def __init__(self, width: int, flips: bool) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.source, self.edge = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.sent, self.node = (Equivariant([2 * width], width, flips) for _ in range(2))
        self.changed = Equivariant([width] * 3, width, flips)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> tuple[Tensor, Tensor]:
        """``x (N, width)``, ``edge_attr (E, width)`` -> the same."""
        source, target = edge_index
        total = self.propagate(edge_index, x=x, edge_attr=edge_attr)
        return self.node(torch.cat([x, total], -1)), self.changed(edge_attr, x[target], x[source])

    def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor) -> Tensor:
        """What an edge sends to its target."""
        message: Tensor = self.sent(torch.cat([x_i, self.source(x_j) * self.edge(edge_attr)], -1))
        return message


class ScaleGMN(nn.Module):
    """Graphs of `to_graph` -> ``(B, out_features)``, whatever scales or signs of hidden neurons are.

    Args:
        width: of all features.
        layers: number of rounds.
        fixed: number of input and output neurons of a network, which have vectors of their own.
        flips: whether signs act on hidden neurons, or scales do.
        entries: of ``edge_attr``, those of a kernel.
        out_features: of the answer.
    """

    def __init__(
        self, width: int, layers: int, fixed: int, flips: bool, entries: int = 1, out_features: int = 1
    ) -> None:
        super().__init__()
        self.bias, self.weight = (nn.Linear(n, width, bias=False) for n in (1, entries))
        self.fixed = nn.Embedding(fixed, width)
        self.layers = nn.ModuleList(ScaleGMNLayer(width, flips) for _ in range(layers))
        self.readout = Equivariant([width], width, flips)
        self.head = nn.Linear(width, out_features)

    def forward(self, graph: Any) -> Tensor:
        """A batch of graphs."""
        fixed = graph.symmetry == 0
        number = (fixed.cumsum(0) - 1) % self.fixed.num_embeddings
        x = self.bias(graph.x) + torch.where(fixed[:, None], self.fixed(number.clamp(min=0)), 0.0)
        edges = self.weight(graph.edge_attr)
        for layer in self.layers:
            x, edges = layer(x, graph.edge_index, edges)
        out: Tensor = self.head(global_mean_pool(self.readout.invariant(x), graph.batch))
        return out


def _mlp(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width))
