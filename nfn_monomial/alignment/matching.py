"""Which neurons of two networks are the same, by the features that their neighbours tell them (`Refinement`)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nfn_monomial.canonical.charges import Gauge
from nfn_monomial.canonical.neuron_features import Parity, Streams
from nfn_monomial.canonical.signs import parity, sign_bases
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.weight_space import WeightSpace

from .assignment import element_of

_ROWS = 1024  # of neurons, compared with all others at a time
_MOST = 4096  # neurons that are assigned to one another where the nearest are taken by several


class Match:
    """Which of b's neurons are a's, by their features.

    Attributes:
        sources: node -> for every neuron of a its place in b.
        signs: node -> the signs ``(rank, neurons)`` that turn b's features into a's, of the classes of `SignBasis`.
    """

    def __init__(
        self, space: WeightSpace, sizes: Mapping[str, int], a: Mapping[str, Streams], b: Mapping[str, Streams]
    ) -> None:
        self.space, self.sizes, self.bases = space, sizes, sign_bases(space)
        self.sources = _sources(space, a, b, sizes)
        self.signs: dict[str, Tensor] = {}
        for name, basis in self.bases.items():
            if not basis.rank:
                continue
            sums: dict[int, Tensor] = {}
            for path, h in a[name].items() if name in a else ():
                if path in b[name]:
                    fits = (h.flatten(0, -2) * b[name][path].flatten(0, -2)[self.sources[name]]).sum(-1)
                    fits, key = fits * self._sign(name, path[:-1], len(fits)), _class(space, name, path[-1])
                    sums[key] = sums[key] + fits if key in sums else fits
            count = space.count(name, sizes)
            self.signs[name] = basis.best(sums)[1] if sums else torch.ones(basis.rank, count, dtype=torch.float64)

    def _sign(self, name: str, path: Parity, count: int) -> Tensor:
        """Of a stream: the signs of a node's neurons, and of those that they are nested in, as far as the path goes."""
        total = torch.ones(count, dtype=torch.float64)
        for above, odd in zip(self.space.ancestry(name), path, strict=False):
            if any(odd):
                sign = self.bases[above].sign(self.signs[above], _class(self.space, above, odd))
                total = total * sign.repeat_interleave(count // len(sign))
        return total

    def carried(self, a: Mapping[str, Streams]) -> dict[str, Streams]:
        """The features of a, for the neurons of b that match."""
        carried: dict[str, Streams] = {}
        for name, streams in a.items():
            places = self.sources[name].argsort()
            for path, h in streams.items():
                flat = h.flatten(0, -2)
                signed = flat * self._sign(name, path, len(flat))[:, None]
                carried.setdefault(name, {})[path] = signed[places].reshape(h.shape)
        return carried

    def changes(self, other: Match) -> int:
        """The number of neurons that another match has in another place, or with another sign."""
        total = sum(int((x != other.sources[name]).sum()) for name, x in self.sources.items())
        return total + sum(int((x != other.signs[name]).sum()) for name, x in self.signs.items())

    def element(self) -> GroupElement:
        """What brings b's neurons to the places and signs of a's."""
        signs: dict[Gauge, Tensor] = {}
        for name, of_node in self.signs.items():
            signs |= self.bases[name].of_gauges(of_node)
        # Neurons that others are nested in have moved already.
        inside = {
            name: places % self.sizes[name] + torch.arange(len(places)) // self.sizes[name] * self.sizes[name]
            for name, places in self.sources.items()
        }
        return element_of(self.space, self.sizes, sources=inside, scales=signs)


def _class(space: WeightSpace, node: str, odd: tuple[int, ...]) -> int:
    return parity(space, node, odd if len(odd) > 1 else odd[0])


def _sources(
    space: WeightSpace, a: Mapping[str, Streams], b: Mapping[str, Streams], sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    """Node -> for every neuron of a the place of b's that is most like it, among those of a parent's like one."""
    sources: dict[str, Tensor] = {}
    for name in sorted(space.nodes, key=lambda name: len(space.ancestry(name))):
        n, above = sizes[name], space.nesting.get(name)
        one, other = (_apart(_colours(space, x, name, sizes), n) for x in (a, b))
        blocks = torch.arange(len(one)) if above is None else sources[above]
        inside = torch.arange(n).expand(len(one), n)
        if space.nodes[name].permutes and one.shape[-1]:
            inside = torch.stack([_nearest(one[i], other[block]) for i, block in enumerate(blocks.tolist())])
        sources[name] = (inside + n * blocks[:, None]).flatten()
    return sources


def _colours(space: WeightSpace, streams: Mapping[str, Streams], name: str, sizes: Mapping[str, int]) -> Tensor:
    """What no sign changes of a node's neurons, ``(neurons, colours)``: their own, and means over those inside."""
    parts = [h.flatten(0, -2) for path, h in streams.get(name, {}).items() if not any(map(any, path))]
    inner = [child for child, parent in space.nesting.items() if parent == name]
    parts += [_apart(_colours(space, streams, child, sizes), sizes[child]).mean(1) for child in inner]
    return torch.cat([torch.zeros(space.count(name, sizes), 0, dtype=torch.float64), *parts], -1)


def _apart(x: Tensor, n: int) -> Tensor:
    """``(blocks x n, ..)`` as ``(blocks, n, ..)``."""
    return x.reshape(len(x) // n, n, *x.shape[1:])


def _nearest(a: Tensor, b: Tensor) -> Tensor:
    """For each of a's rows the row of b that is nearest, each taken once: what several want is assigned among these."""
    nearest = torch.cat([torch.cdist(rows, b).argmin(-1) for rows in torch.split(a, _ROWS)])
    wanted = torch.bincount(nearest, minlength=len(b))
    rows, free = (wanted[nearest] > 1).nonzero()[:, 0], (wanted != 1).nonzero()[:, 0]
    if 0 < len(rows) <= _MOST:
        from scipy.optimize import linear_sum_assignment

        free = free[torch.from_numpy(linear_sum_assignment(torch.cdist(a[rows], b[free]).numpy())[1])]
    nearest[rows] = free  # of more than that none can be told from the others: no symmetry turns one into the other
    return nearest
