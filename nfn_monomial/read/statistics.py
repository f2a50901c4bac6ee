"""Statistics of networks that no symmetry changes: distributions, norms and path norms of the balanced form."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nfn_monomial.canonical.balance import balance_factors, multiply
from nfn_monomial.space.features import Axis, Features
from nfn_monomial.space.weight_space import WeightSpace

_QUANTILES = 5
_MOMENTS = (1, 3, 4)
_PER_TENSOR = 3 + _QUANTILES + len(_MOMENTS)
_TINY = 1e-12  # norms below it, relative to 1, all count as 0


class InvariantStatistics(nn.Module):
    """Moments, quantiles and norms of the balanced form (`balance`): invariant under the whole group.

    Of every parameter and channel, over all entries ``x`` of the balanced tensor:

    - mean, standard deviation, and the five quantiles 0, 25, 50, 75, 100%,
    - ``(mean |x|^p)^(1/p)`` for p = 1, 3, 4,
    - the logarithm of the root mean square.

    Of every node and channel, path norms ``log mean_j sqrt(v_j)``, where ``v`` of a node is the mean over the weights
    into it, ``v_j = sum_k W_jk^2 v_k``, from ones at the inputs (sums over kernels and positions; every weight divided
    by its root mean square first). Of every channel, the mean logarithm of the weights' root mean squares: their
    product, on which the scale of the function depends.

    Means, not sums, so that wider networks have statistics of the same size. Entries pass through
    ``sign(x) log(1 + |x|)``, norms are logarithms from -27.6 (0) up: all are of order 1 for ordinary networks, and
    finite for all that float32 holds. Computed in float64, returned in the dtype of the input. Differentiable, with
    the group element of the balanced form held constant.

    Source: the statistics of Unterthiner et al. 2020 (mean, variance, quartiles of each layer's weights and biases),
    made invariant and extended.

    Args:
        space: the weight space.
        channels: channels of the networks.

    Attributes:
        out_features: length of the vector of a network.
    """

    def __init__(self, space: WeightSpace, channels: int = 1) -> None:
        super().__init__()
        self.space, self.channels = space, channels
        self.links = _links(space)
        nodes = {node for _, node, _ in self.links}
        self.out_features = channels * (_PER_TENSOR * len(space.parameters) + len(nodes) + bool(nodes))

    def forward(self, networks: Features | Mapping[str, Tensor]) -> Tensor:
        """Networks (packed, or named tensors ``(B, C, *shape)``) -> ``(B, out_features)``."""
        features = networks if isinstance(networks, Features) else self.space.pack(networks)
        # Balanced entries of large networks may lie beyond what float32 holds.
        balanced = multiply(features.to(torch.float64), balance_factors(self.space, features))
        tensors = self.space.unpack(balanced)
        channels = next(iter(tensors.values())).shape[1]
        if channels != self.channels:
            raise ValueError(
                f"InvariantStatistics: networks of {channels} channels, {self.channels} expected: channels={channels}"
            )
        parts = [_statistics(x.flatten(2)) for x in tensors.values()]
        if self.links:
            parts.append(self._path_norms(tensors, self.space.node_sizes(features)))
        return torch.cat([part.flatten(1) for part in parts], -1).to(features.tensors[0].dtype)

    def _path_norms(self, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Tensor:
        """Path norms of every node, and the mean log norm: ``(B, C, nodes + 1)``."""
        reached: dict[str, Tensor] = {}
        norms = []
        for name, node, source in self.links:
            axes = self.space.axes[name]
            squares = (
                tensors[name]
                .square()
                .reshape(
                    *tensors[name].shape[:2], *(axis if isinstance(axis, int) else sizes[axis.node] for axis in axes)
                )
            )
            row, column = (next(i for i, a in enumerate(axes, 2) if _on(a, n)) for n in (node, source))
            rest = list(range(4, squares.ndim))
            table = squares.movedim((row, column), (2, 3))
            table = table.mean(rest) if rest else table
            mean = table.mean((-1, -2), keepdim=True)
            norms.append(_log_root(mean[..., 0, 0]))
            table = table / mean.clamp_min(_TINY**2)
            total = (table if source not in reached else table * reached[source].unsqueeze(-2)).mean(-1)
            reached[node] = reached[node] + total if node in reached else total
        paths = [v.clamp_min(_TINY**2).sqrt().mean(-1).log() for v in reached.values()]
        return torch.stack([*paths, torch.stack(norms).mean(0)], -1)

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}, out_features={self.out_features}"


def _links(space: WeightSpace) -> tuple[tuple[str, str, str], ...]:
    """(parameter, node of its rows, node of its columns) of every weight, in the order in which a network runs."""
    rank = list(space.nodes)
    links = []
    for name, axes in space.axes.items():
        charged = [axis for axis in axes if isinstance(axis, Axis)]
        if len(charged) == 2 and charged[0].node != charged[1].node:
            source, node = sorted(charged, key=lambda axis: rank.index(axis.node))
            if source.charge < 0 < node.charge:
                links.append((name, node.node, source.node))
    return tuple(sorted(links, key=lambda link: rank.index(link[1])))


def _on(axis: Axis | int, node: str) -> bool:
    return isinstance(axis, Axis) and axis.node == node


def _log_root(squares: Tensor) -> Tensor:
    return squares.clamp_min(_TINY**2).log() / 2


def _statistics(x: Tensor) -> Tensor:
    """``(B, C, n)`` -> ``(B, C, 11)``. By sorting: ``torch.quantile`` refuses more than 16M entries."""
    ordered, size = x.sort(-1).values, x.abs()
    place = torch.linspace(0, x.shape[-1] - 1, _QUANTILES, dtype=x.dtype, device=x.device)
    low, high = ordered[..., place.floor().long()], ordered[..., place.ceil().long()]
    # Roots of clamped means: the gradient of a tensor of zeros is 0, not NaN.
    moments = [size.pow(p).mean(-1, keepdim=True).clamp_min(_TINY**p).pow(1 / p) for p in _MOMENTS]
    deviation = x.var(-1, correction=0, keepdim=True).clamp_min(_TINY**2).sqrt()
    entries = torch.cat(
        [x.mean(-1, keepdim=True), deviation, torch.lerp(low, high, place - place.floor()), *moments], -1
    )
    return torch.cat([entries.sign() * entries.abs().log1p(), _log_root(x.square().mean(-1, keepdim=True))], -1)
