"""Statistics of networks that no symmetry changes: distributions, norms and path norms of the balanced form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from nfn_monomial.canonical.balance import rescaling
from nfn_monomial.canonical.signs import sign_noise, without_signs
from nfn_monomial.checks import Count, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.nn.steps import packed
from nfn_monomial.space.axes import flow
from nfn_monomial.space.features import Features
from nfn_monomial.space.links import Link
from nfn_monomial.space.packing import pieces
from nfn_monomial.space.weight_space import WeightSpace

_QUANTILES = 5
_MOMENTS = (1, 3, 4)
PER_TENSOR = 3 + _QUANTILES + len(_MOMENTS)
_TINY = 1e-12  # norms below it, relative to 1, all count as 0


class InvariantStatistics(nn.Module):
    """Moments, quantiles and norms of the balanced form (`balance`): invariant under the whole group.

    Of every parameter and channel, over all entries ``x`` of the balanced tensor (their sizes, where they carry a sign
    that nothing settles, see `balance`):

    - mean, standard deviation, and the five quantiles 0, 25, 50, 75, 100%,
    - ``(mean |x|^p)^(1/p)`` for p = 1, 3, 4,
    - the logarithm of the root mean square.

    Of every node and channel, path norms ``log mean_j sqrt(v_j)``, where ``v`` of a node is the mean over the weights
    into it, ``v_j = sum_k W_jk^2 v_k``, from ones at the inputs (sums over kernels and positions; every weight divided
    by its root mean square first). Those weights count that lead from an earlier node to a later one and join each
    neuron of one to each of the other: no stacks of weights, no grouped convolutions. Of every channel, the mean
    logarithm of their root mean squares: their product, on which the scale of the function depends.

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

    @checked
    def __init__(self, space: WeightSpace, channels: Count = 1) -> None:
        super().__init__()
        self.space, self.channels = space, channels
        self.links = joining(space)
        nodes = {link.target for link, _ in self.links}
        self.out_features = channels * (PER_TENSOR * len(space.parameters) + len(nodes) + bool(nodes))

    def forward(self, networks: Features | Mapping[str, Tensor]) -> Tensor:
        """Networks (packed, or named tensors ``(B, C, *shape)``) -> ``(B, out_features)``."""
        return torch.cat([part.flatten(1) for part in self.parts(networks)], -1)

    def parts(self, networks: Features | Mapping[str, Tensor]) -> list[Tensor]:
        """Networks -> the statistics of each parameter, then path norms, ``(B, C, n)`` each."""
        networks = packed(self.space, networks)
        tensors = settled(self.space, networks, self.channels, type(self).__name__)
        parts = [distribution(x) for x in tensors.values()]
        if self.links:
            parts.append(self._path_norms(tensors, self.space.node_sizes(networks)))
        return [part.to(networks.tensors[0].dtype) for part in parts]

    def _path_norms(self, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Tensor:
        """Path norms of every node, and the mean log norm: ``(B, C, nodes + 1)``."""
        reached: dict[str, Tensor] = {}
        norms = []
        for link, source, x in tables(self.space, self.links, tensors, sizes):
            table = x.square().mean(list(range(4, x.ndim))) if link.kernel else x.square()
            mean = table.mean((-1, -2), keepdim=True)
            norms.append(_log_root(mean[..., 0, 0]))
            table = table / mean.clamp_min(_TINY**2)
            total = (table if source not in reached else table * reached[source].unsqueeze(-2)).mean(-1)
            reached[link.target] = reached[link.target] + total if link.target in reached else total
        paths = [v.clamp_min(_TINY**2).sqrt().mean(-1).log() for v in reached.values()]
        return torch.stack([*paths, torch.stack(norms).mean(0)], -1)

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}, out_features={self.out_features}"


def joining(space: WeightSpace) -> list[tuple[Link, str]]:
    """Weights that join each neuron of a node to each of an earlier one, and that one."""
    rank = list(space.nodes)
    return [
        (link, link.ends[1].node)
        for link in space.links
        if len(link.ends) == 2
        and not set(link.ends[0].path) & set(link.ends[1].path)
        and flow(link.charges[0]) >= 0 >= flow(link.charges[1])
        and rank.index(link.ends[1].node) < rank.index(link.target)
    ]


def settled(space: WeightSpace, networks: Features, channels: int, reader: str) -> dict[str, Tensor]:
    """Balanced networks in float64, their signs settled, or the sizes of entries with a sign that nothing settles.

    Raises:
        ValueError: if they have another number of channels than the reader of this name.
    """
    # Balanced entries of large networks may lie beyond what float32 holds.
    balanced = rescaling(space, networks, signs=False).act(networks.to(torch.float64))
    tensors = space.unpack(without_signs(space, balanced, sign_noise(networks.tensors[0].dtype)))
    count = next(iter(tensors.values())).shape[1]
    if count != channels:
        raise InvalidValueError(f"{reader}: networks of {count} channels, {channels} expected: channels={count}")
    return tensors


def tables(
    space: WeightSpace, links: Sequence[tuple[Link, str]], tensors: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> Iterator[tuple[Link, str, Tensor]]:
    """Yields the weights ``(B, C, target neurons, source neurons, *kernel)`` of each link of `joining`."""
    taken = pieces(space, tensors, sizes)
    for link, source in links:
        x = taken[link.parameter].permute(link.order).movedim(-1, 1)
        first, second = (len(end.path) for end in link.ends)
        yield link, source, x.flatten(2, 1 + first).flatten(3, 2 + second)


def _log_root(squares: Tensor) -> Tensor:
    return squares.clamp_min(_TINY**2).log() / 2


def distribution(x: Tensor) -> Tensor:
    """Moments, quantiles and norm of all entries of a tensor, as `InvariantStatistics` has them.

    float64 ``(B, C, *shape)`` -> ``(B, C, 11)``. By sorting: ``torch.quantile`` refuses more than 16M entries.
    """
    x = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
    ordered, size = x.sort(-1).values, x.abs()
    place = torch.linspace(0, x.shape[-1] - 1, _QUANTILES, dtype=x.dtype, device=x.device)
    low, high = ordered[..., place.floor().long()], ordered[..., place.ceil().long()]
    # Roots of clamped means: the gradient of a tensor of zeros is 0, not NaN.
    moments = [size.pow(p).mean(-1, keepdim=True).clamp_min(_TINY**p).pow(1 / p) for p in _MOMENTS]
    mean = x.mean(-1, keepdim=True)
    deviation = (x - mean).square().mean(-1, keepdim=True).clamp_min(_TINY**2).sqrt()
    entries = torch.cat([mean, deviation, torch.lerp(low, high, place - place.floor()), *moments], -1)
    return torch.cat([entries.sign() * entries.abs().log1p(), _log_root(x.square().mean(-1, keepdim=True))], -1)
