"""Kinds of directions besides the monomial group, found on every node of a weight space by one gradient.

Whatever reads a network's outputs has a gradient that is orthogonal to all directions in which the function stays as it
is. So at generic weights, buffers and inputs, in float64, the gradient ``G`` of a random sum of outputs tells for every
node whether a whole group of matrices acts there: with writers ``P`` (tensors that lead to its neurons) and readers
``Q``, every invertible matrix does where ``G_P P^T = Q G_Q^T``, every rotation where ``G_P P^T + G_Q Q^T`` is
symmetric. What a gradient shows at random points holds at all points near, since groups and networks
are analytic there; `NormalForm` tests whole elements of it besides.

Each kind is one class. ``candidates`` are where charges allow it, and it acts where it ``survives`` the gradient at
every random point. Matrices are on a node of ``n`` neurons: any invertible ``G`` where linear maps alone touch these,
an orthogonal one, which is its own ``G^-T``, where norms look at them besides; tensors that write to the node are
multiplied by ``G``, those that read it by ``G^-T``. They have a ``dimension``, act ``on`` the space of normal forms in
the same way, and give pairs ``G``, ``G^-T``: those that lead to the ``normal`` form, and ``random`` ones.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor, nn

from nfn_monomial.space.axes import Axis, combined, flow, powers
from nfn_monomial.space.places import Place
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Symmetry

from .slopes import Slope, small, vanishes

Pieces: TypeAlias = Mapping[str, Tensor]
Remaining: TypeAlias = tuple[tuple[int, ...], list[Axis]]


@dataclass
class _OnNode:
    """Matrices ``(B, *what the node is nested in, n, n)`` on the axes of a node.

    Attributes:
        node: its name.
        places: the axes that they act on; in `Linear` and `Rotary` with the charge +1 or -1 that counts.
        kind: as `NormalForm.dimensions` has it.
    """

    kind: ClassVar[str]

    node: str
    places: tuple[Place, ...]

    def side(self, writes: bool) -> list[Place]:
        """The places that write to the node, or those that read it."""
        return [place for place in self.places if place.writes == writes]

    def moved(self, pieces: Pieces, matrix: Tensor, inverse: Tensor) -> dict[str, Tensor]:
        """Pieces with a matrix on axes that write, and the transpose of its inverse on those that read."""
        turned = dict(pieces)
        for place in self.places:
            turned[place.piece] = place.turned(turned[place.piece], matrix if place.writes else inverse)
        return turned

    def nearest(self, product: Tensor) -> Tensor:
        """The orthogonal ``G`` that brings rows ``b`` nearest to ``a``, from ``a b^T`` (Procrustes)."""
        u, _, vh = torch.linalg.svd(product)
        nearest: Tensor = u @ vh
        return nearest


@dataclass
class Linear(_OnNode):
    """All invertible matrices.

    Attributes:
        gauge: the number of the node's gauge that they contain.
    """

    kind: ClassVar[str] = "linear"

    gauge: int

    @classmethod
    def candidates(cls, space: WeightSpace, places: Mapping[str, Sequence[Place]]) -> list[Linear]:
        """Nodes of several neurons with one scale and sign, of which each axis has the charge +1 or -1."""
        turns = []
        for name, on_node in places.items():
            node = space.nodes[name]
            scales = [n for n, gauge in enumerate(node.gauges) if gauge.scales]
            if len(scales) == 1 and node.gauges[scales[0]] is Symmetry.MONOMIAL and (node.size or 0) > 1:
                charged = _by_gauge(name, on_node, scales[0])
                if all(abs(flow(place.axis.charge)) == 1 for place in charged):
                    turns.append(cls(name, charged, scales[0]))
        return turns

    def survives(self, slope: Slope) -> bool:
        """``G_P P^T = Q G_Q^T``."""
        products = [(place, *slope.product(place)) for place in self.places]
        difference = sum((x if place.writes else -x.mT for place, x, _ in products), torch.zeros(()))
        return vanishes(difference, sum((size for *_, size in products), torch.zeros(())))

    def on(self, space: WeightSpace) -> Linear:
        return replace(self, places=_by_gauge(self.node, places_of(space)[self.node], self.gauge))

    def dimension(self, space: WeightSpace, emptied: Collection[str]) -> int:
        """``n^2`` for each item of what the node is nested in, less those that move neither writers nor readers."""
        n, count = space.sizes()[self.node], space.count(self.node, space.sizes())
        sides = ([place.piece for place in self.side(writes) if place.piece not in emptied] for writes in (True, False))
        vectors = (sum(math.prod(shape_of(space, piece)) for piece in side) // count for side in sides)
        return count // n * (n * n - math.prod(max(n - number, 0) for number in vectors))

    def normal(self, pieces: Pieces) -> tuple[Tensor, Tensor]:
        """Squares of writers and readers are least and diagonal.

        With ``P = L Q_1`` and ``Q = R^T Q_2``, and ``L^T R^T = U S V^T``, ``G`` and ``G^-T`` are ``S^-1/2 V^T R`` and
        ``S^-1/2 U^T L^T``; ``(G P)(G P)^T = S`` is then that of the readers, too. Directions in which there is nothing
        on one side become 0 on both, which is the limit.
        """
        writers, readers = (stacked(pieces, self.side(writes)) for writes in (True, False))
        left, right = (torch.linalg.qr(x.mT).R for x in (writers, readers))
        u, s, vh = torch.linalg.svd(left @ right.mT, full_matrices=False)
        size = left.norm(dim=(-2, -1)) * right.norm(dim=(-2, -1))
        there = s > s.shape[-1] * torch.finfo(s.dtype).eps * size.unsqueeze(-1)
        root = torch.where(there, s, 1).rsqrt().where(there, 0).unsqueeze(-1)
        empty = (0, 0, 0, writers.shape[-2] - s.shape[-1])
        return nn.functional.pad(root * (vh @ right), empty), nn.functional.pad(root * (u.mT @ left), empty)

    def random(self, space: WeightSpace, batch: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        *above, n = (space.sizes()[node] for node in space.ancestry(self.node))
        scale = torch.randn(batch, *above, n, 1, dtype=torch.float64, generator=generator).mul(0.5).exp()
        left, right = (_random_orthogonal(batch, *above, n, generator=generator) for _ in range(2))
        return left @ (scale * right), left @ (right / scale)


@dataclass
class Rotary(_OnNode):
    """Complex numbers that multiply pairs of entries: these lie in the vectors that the node's neurons consist of.

    Attributes:
        gauge: the number of the node's gauge that they contain.
        pairs: which two entries are the parts of one complex number, by all points so far.
    """

    kind: ClassVar[str] = "rotary"

    gauge: int
    pairs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def candidates(cls, space: WeightSpace, places: Mapping[str, Sequence[Place]]) -> list[Rotary]:
        """Nodes whose queries and keys may be made of rotary pairs: one scale multiplies some tensors, divides others.

        The pairs lie along an axis of theirs on which nothing acts, of one even size in all of them.
        """
        turns = []
        for name, on_node in places.items():
            for number, gauge in enumerate(space.nodes[name].gauges):
                charged = [place for place in _by_gauge(name, on_node, number) if place.axis.charge]
                if gauge.flips and {place.axis.charge for place in charged} == {1, -1}:
                    inner = [inside for place in charged if (inside := _inside(space, place))]
                    sizes = {shape_of(space, place.piece)[place.at] for place in inner}
                    if len(inner) == len(charged) and len(sizes) == 1:
                        turns.append(cls(name, tuple(inner), number))
        return turns

    def survives(self, slope: Slope) -> bool:
        """Pairs of entries may be turned and stretched together, and no entry is without a pair."""
        angles, scales, size = torch.zeros(()), torch.zeros(()), torch.zeros(())
        for place in self.places:
            product, terms = slope.product(place)
            product = product.flatten(0, -3)
            angles = angles + product
            scales = scales + (product if place.writes else -product)
            size = size + terms
        diagonal = scales.diagonal(dim1=-2, dim2=-1)
        turns = small((angles - angles.mT).abs().amax(0), size)
        stretches = small((diagonal.unsqueeze(-1) + diagonal.unsqueeze(-2)).abs().amax(0), size)
        fits = (turns & stretches).triu(1)
        pairs = [(i, j) for i, j in fits.nonzero().tolist()]
        self.pairs = tuple(pair for pair in pairs if not self.pairs or pair in self.pairs)
        return sorted(sum(self.pairs, ())) == list(range(len(fits)))

    def on(self, space: WeightSpace) -> Rotary:
        (left,) = (
            turn
            for turn in Rotary.candidates(space, places_of(space))
            if (turn.node, turn.gauge) == (self.node, self.gauge)
        )
        return replace(self, places=left.places)

    def dimension(self, space: WeightSpace, emptied: Collection[str]) -> int:
        """A factor and an angle for each pair."""
        return 2 * len(self.pairs) * (space.count(self.node, space.sizes()) if self._in_neurons else 1)

    @property
    def _in_neurons(self) -> bool:
        """True if each neuron has pairs of its own."""
        return any(place.over for place in self.places)

    def normal(self, pieces: Pieces) -> tuple[Tensor, Tensor]:
        """Equal norms of both sides, and a sum of squares of writers (queries) that is real and positive."""
        sides = [stacked(pieces, self.side(writes)) for writes in (True, False)]
        (real, imaginary), keys = ([x[..., end, :] for end in self._ends] for x in sides)
        norms = [(x.square() + y.square()).sum(-1) for x, y in ((real, imaginary), keys)]
        there = (norms[0] > 0) & (norms[1] > 0)
        size = torch.where(there, norms[1] / norms[0].where(there, 1), 1).pow(0.25)
        angle = -torch.atan2(2 * (real * imaginary).sum(-1), (real.square() - imaginary.square()).sum(-1)) / 2
        return self._matrix(size, angle), self._matrix(1 / size, angle)

    def nearest(self, product: Tensor) -> Tensor:
        first, second = self._ends
        real = product[..., first, first] + product[..., second, second]
        imaginary = product[..., second, first] - product[..., first, second]
        angle = torch.atan2(imaginary, real)
        return self._matrix(torch.ones_like(angle), angle)

    def random(self, space: WeightSpace, batch: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        *above, n = (space.sizes()[node] for node in space.ancestry(self.node))
        inner = (n,) if self._in_neurons else ()
        angle, log = torch.randn(2, batch, *above, *inner, len(self.pairs), dtype=torch.float64, generator=generator)
        return self._matrix((log / 2).exp(), 4 * angle), self._matrix((-log / 2).exp(), 4 * angle)

    @property
    def _ends(self) -> list[list[int]]:
        """The entries that are real parts, and those that are imaginary parts."""
        return [[pair[i] for pair in self.pairs] for i in (0, 1)]

    def _matrix(self, size: Tensor, angle: Tensor) -> Tensor:
        """Multiplies each pair by the complex number of this size and angle, ``(..., pairs)``."""
        first, second = self._ends
        matrix = angle.new_zeros(*angle.shape[:-1], 2 * len(first), 2 * len(first))
        matrix[..., first, first] = matrix[..., second, second] = size * angle.cos()
        matrix[..., second, first] = size * angle.sin()
        matrix[..., first, second] = -size * angle.sin()
        return matrix


@dataclass
class Rotation(_OnNode):
    """All orthogonal matrices, or those of them that leave ``(1, ..., 1)`` where it is.

    Attributes:
        centred: whether they leave it there, as layer norms subtract the mean.
    """

    kind: ClassVar[str] = "rotations"

    centred: bool

    @classmethod
    def candidates(cls, space: WeightSpace, places: Mapping[str, Sequence[Place]]) -> list[Rotation]:
        """Nodes of several neurons, or coordinates, that are permuted."""
        return [
            cls(name, tuple(on_node), centred)
            for name, on_node in places.items()
            if on_node and space.nodes[name].permutes
            for centred in (False, True)
            if (space.nodes[name].size or 0) > 1 + centred
        ]

    def survives(self, slope: Slope) -> bool:
        """``G_P P^T + G_Q Q^T`` is symmetric."""
        products, sizes = zip(*map(slope.product, self.places), strict=True)
        total = sum(products, torch.zeros(()))
        if self.centred:
            basis = complement(total.shape[-1])
            total = basis.mT @ total @ basis
        return vanishes(total - total.mT, sum(sizes, torch.zeros(())))

    def on(self, space: WeightSpace) -> Rotation:
        return replace(self, places=tuple(places_of(space)[self.node]))

    def dimension(self, space: WeightSpace, emptied: Collection[str]) -> int:
        """That of O(n), or O(n - 1), for each item of what the node is nested in."""
        n = space.sizes()[self.node]
        return space.count(self.node, space.sizes()) // n * math.comb(n - self.centred, 2)

    def normal(self, pieces: Pieces) -> tuple[Tensor, Tensor]:
        """The Gram matrix of everything on the node is diagonal, the largest entry first."""
        flat = [place.flatten(pieces[place.piece]) for place in self.places]
        vectors = torch.linalg.eigh(sum((x @ x.mT for x in flat[1:]), flat[0] @ flat[0].mT)).eigenvectors
        return vectors.flip(-1).mT, vectors.flip(-1).mT

    def random(self, space: WeightSpace, batch: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        *above, n = (space.sizes()[node] for node in space.ancestry(self.node))
        rotation = _random_orthogonal(batch, *above, n - self.centred, generator=generator)
        if self.centred:
            basis = complement(n)
            rotation = basis @ rotation @ basis.mT + torch.full((n, n), 1 / n, dtype=torch.float64)
        return rotation, rotation


Turn: TypeAlias = Linear | Rotary | Rotation


class Gain(NamedTuple):
    """A parameter with one factor for each neuron, which others can take over.

    Attributes:
        place: its axis.
        gauge: number of the node's gauge by which it becomes 1.
        powers: other axes on the node, and with what power of the factor they are multiplied then.
    """

    place: Place
    gauge: int
    powers: tuple[tuple[Place, int], ...]


class Mean(NamedTuple):
    """An axis along which anything may be added to all entries alike, once gains are folded.

    Attributes:
        place: the axis.
    """

    place: Place

    @classmethod
    def candidates(cls, space: WeightSpace, places: Mapping[str, Sequence[Place]]) -> list[Self]:
        """Returns all axes of several entries."""
        return [cls(p) for on_node in places.values() for p in on_node if shape_of(space, p.piece)[p.at] > 1]

    def survives(self, slope: Slope) -> bool:
        """True if the function stays as it is at one more point, to first order."""
        return slope.ignores_mean(self.place)


class Shift(NamedTuple):
    """A bias that a norm adds and no later bias can take: it becomes 1, and the means of its readers carry it.

    Attributes:
        place: its axis.
        readers: axes whose means nothing but the bias sees.
    """

    place: Place
    readers: tuple[Place, ...]

    @classmethod
    def candidates(
        cls,
        space: WeightSpace,
        places: Mapping[str, Sequence[Place]],
        gains: Sequence[Gain],
        means: Collection[Place],
    ) -> Iterator[Self]:
        """Returns the bias beside a gain, if there are readers whose means it keeps from vanishing."""
        for gain in gains:
            beside = [place for place, _ in gain.powers if place in places.get(gain.place.axis.node, ())]
            added = []
            for place in (place for place in beside if place.writes):
                sizes = (n for i, n in enumerate(shape_of(space, place.piece)) if i not in place.over)
                added += [place] * (sum(n > 1 for n in sizes) == 1)
            readers = tuple(place for place in beside if not place.writes and place not in means)
            if len(added) == 1 and readers:
                yield cls(added[0], readers)

    def survives(self, slope: Slope) -> bool:
        """True if nothing sees the means at one more point, at which the bias is 0."""
        return all(map(slope.ignores_mean, self.readers))


def fold(space: WeightSpace, places: Sequence[Place]) -> tuple[list[Gain], dict[Place, Remaining]]:
    """Folds the gains on a node into its other parameters, one after the other.

    A gain f on an axis with charges c, of which ``c_k`` is 1 or -1 for a gauge k of any scale and sign, becomes 1 by
    the factors ``d_k = f^(-c_k)`` of that gauge, which multiply an axis with charges q by ``f^(-q_k c_k)``. What leaves
    a gain of 1 as it is has ``d_k = prod_(i != k) d_i^(-c_k c_i)``. So charges q become ``q - q_k c_k c``: 0 on gauge
    k, and 0 on the gain.

    Returns:
        The gains; and axis -> its charge under what is left when these are 1, and axes of what acted on them as wholes.
    """
    gains: list[Gain] = []
    charges = {place: powers(place.axis.charge) for place in places}
    extra: dict[Place, list[Axis]] = {place: [] for place in places}
    for place in places:
        gain, gauges = charges[place], space.nodes[place.axis.node].gauges
        fits = (k for k, (c, g) in enumerate(zip(gain, gauges, strict=True)) if abs(c) == 1 and g is Symmetry.MONOMIAL)
        k = next(fits, None) if _is_gain(space, place) else None
        if k is None:
            continue
        shares = {other: q[k] * gain[k] for other, q in charges.items()}
        taking = tuple((other, -share) for other, share in shares.items() if share and other != place)
        gains.append(Gain(place, k, taking))
        charges = {p: tuple(a - shares[p] * c for a, c in zip(q, gain, strict=True)) for p, q in charges.items()}
        # What acted on the gain as a whole acts on the others in its place.
        axes = space.axes[place.piece]
        constants = [axis for i, axis in enumerate(axes) if i not in place.path and isinstance(axis, Axis)]
        constants += extra[place]
        for other, share in shares.items():
            extra[other] = [*extra[other], *(Axis(a.node, combined([a.charge], [-share])) for a in constants if share)]
    return gains, {place: (charge, extra[place]) for place, charge in charges.items()}


def _is_gain(space: WeightSpace, place: Place) -> bool:
    """Returns True for a parameter with one entry for each neuron, on which no scale of these themselves acts.

    Factors of what the neurons are nested in are not taken over: a gain that has one stays.
    """
    axes = space.axes[place.piece]
    along = [axis for i in place.path if isinstance(axis := axes[i], Axis)]
    sizes = shape_of(space, place.piece)
    return (
        space.pieces_of[space.pieces[place.piece].parameter] == [place.piece]
        and all(n == 1 for i, n in enumerate(sizes) if i not in place.path)
        and not any(flow(axis.charge) for axis in along if (space.nodes[axis.node].size or 0) > 1)
        and not any(any(powers(axis.charge)) for axis in along[:-1])
    )


def places_of(space: WeightSpace) -> dict[str, list[Place]]:
    """Node -> all axes on it."""
    places: dict[str, list[Place]] = {name: [] for name in space.nodes}
    for place in space.places:
        places[place.node].append(place)
    return places


def shape_of(space: WeightSpace, piece: str) -> list[int]:
    """Sizes of a piece's axes."""
    sizes = space.sizes()
    return [axis if isinstance(axis, int) else sizes[axis.node] for axis in space.axes[piece]]


def stacked(tensors: Mapping[str, Tensor], places: Iterable[Place]) -> Tensor:
    """Everything along a node's axes, as one matrix ``(B, *what it is nested in, n, everything)``."""
    return torch.cat([place.flatten(tensors[place.piece]) for place in places], -1)


def complement(n: int) -> Tensor:
    """Returns an orthonormal basis ``(n, n - 1)`` of the vectors that are orthogonal to ``(1, ..., 1)``."""
    k = torch.arange(1, n, dtype=torch.float64)
    basis = torch.ones(n, n - 1, dtype=torch.float64).triu() - torch.diag(k, -1)[:, : n - 1]
    return basis / (k * (k + 1)).sqrt()


def _inside(space: WeightSpace, place: Place) -> Place | None:
    """The first axis of a piece along which nothing acts and which is written to, in a node's neurons."""
    axes, shape = space.axes[place.piece], shape_of(space, place.piece)
    over = place.path if shape[place.at] > 1 else ()
    for at, axis in enumerate(axes):
        still = isinstance(axis, int) or (flow(axis.charge) > 0 and not space.nodes[axis.node].permutes)
        if still and at not in over and shape[at] % 2 == 0:
            return place._replace(path=(*over, at))
    return None


def _by_gauge(node: str, places: Sequence[Place], gauge: int) -> tuple[Place, ...]:
    """Places with the charge of one gauge alone."""
    return tuple(place._replace(axis=Axis(node, powers(place.axis.charge)[gauge])) for place in places)


def _random_orthogonal(*shape: int, generator: torch.Generator | None) -> Tensor:
    """Orthogonal matrices, ``(*shape, n, n)`` for a last size n."""
    q: Tensor = torch.linalg.qr(torch.randn(*shape, shape[-1], dtype=torch.float64, generator=generator)).Q
    return q
