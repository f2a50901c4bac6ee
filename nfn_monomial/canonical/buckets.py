"""Terms of one shape in one tensor, and neurons of all unknowns in one: operators do not grow with depth."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from .charges import along, onto


class ScaleFactor(NamedTuple):
    """One unknown that scales a term.

    Attributes:
        unknown: its number.
        charge: the power, not 0.
        dims: dimensions of the term along which its neurons lie; several for a nested node, the outermost first.
    """

    unknown: int
    charge: int
    dims: tuple[int, ...]


Factors: TypeAlias = tuple[ScaleFactor, ...]
Shapes: TypeAlias = tuple[tuple[int, ...], ...]


class Bucket(NamedTuple):
    """Terms that are one tensor ``(B, terms, *sizes)``, those of one axis ``(B, 1, neurons)``, whatever their sizes.

    Attributes:
        terms: their numbers.
        shapes: for each factor, those of its neurons ``(terms, *sizes)``.
        dims: for each factor, the dimensions of the tensor along which they lie.
        ndim: of the tensor.
    """

    terms: list[int]
    shapes: list[tuple[int, ...]]
    dims: list[tuple[int, ...]]
    ndim: int


class Buckets:
    """The places of the neurons of terms' factors, their *ends* ``(B, M)``, among those of all unknowns, ``(B, N)``.

    Args:
        terms: the factors of each term.
        shapes: of the unknowns.
        like: a tensor whose dtype and device charges have.

    Attributes:
        sizes: numbers of neurons of the unknowns.
        buckets: all terms.
        charge: of every end ``(M,)``.
        bound: for each unknown's neurons ``(N,)`` the most that the charges of one of their terms add up to.
    """

    def __init__(self, terms: Sequence[Factors], shapes: Shapes, like: Tensor) -> None:
        self.terms, self.sizes = terms, [math.prod(shape) for shape in shapes]
        kinds: dict[object, list[int]] = {}
        for number, factors in enumerate(terms):
            one_axis = len({f.dims for f in factors}) == 1
            kind: object = len(factors) if one_axis else tuple((f.dims, shapes[f.unknown]) for f in factors)
            kinds.setdefault(kind, []).append(number)
        self.buckets: list[Bucket] = []
        ends: list[ScaleFactor] = []
        for kind, numbers in kinds.items():
            factors = terms[numbers[0]]
            if isinstance(kind, int):
                size = sum(self.sizes[terms[i][0].unknown] for i in numbers)
                self.buckets.append(Bucket(numbers, [(1, size)] * kind, [(1, 2)] * kind, 3))
            else:
                sizes = [(len(numbers), *shapes[f.unknown]) for f in factors]
                dims = [(1, *(1 + d for d in f.dims)) for f in factors]
                self.buckets.append(Bucket(numbers, sizes, dims, 1 + len(set().union(*dims))))
            ends += [terms[i][k] for k in range(len(factors)) for i in numbers]

        self.counts = [math.prod(shape) for bucket in self.buckets for shape in bucket.shapes]
        # An end's neurons are in their unknown's order. Those of both sides of each neuron, the next after the last
        # where there are none, which has the place of a number that changes no sum.
        counts = [self.sizes[end.unknown] for end in ends]
        starts, first = ([0, *itertools.accumulate(x)] for x in (counts, self.sizes))
        sides: dict[tuple[int, bool], list[int]] = {}
        for end, start in zip(ends, starts, strict=False):
            sides.setdefault((end.unknown, end.charge < 0), []).append(start - first[end.unknown])
        most = max(map(len, sides.values()), default=0)
        rows = [
            [[*sides.get((u, side), ()), *[starts[-1]] * most][i] for u in range(len(shapes))]
            for side in (False, True)
            for i in range(most)
        ]
        shift = [first[end.unknown] - start for end, start in zip(ends, starts, strict=False)]
        unknowns, count = torch.tensor(self.sizes), torch.tensor(counts, dtype=torch.long)
        table = (
            torch.tensor(rows, dtype=torch.long)
            .reshape(2 * most, len(shapes))
            .repeat_interleave(unknowns, 1, output_size=first[-1])
        )
        table = (table + torch.arange(first[-1])).clamp(max=starts[-1]).reshape(2, most, first[-1])
        self.places = table.to(like.device, non_blocking=True)
        neuron = torch.arange(starts[-1]) + torch.tensor(shift, dtype=torch.long).repeat_interleave(
            count, output_size=starts[-1]
        )
        self.neuron = neuron.to(like.device, non_blocking=True)
        self.charge = (
            torch.tensor([end.charge for end in ends])
            .repeat_interleave(count, output_size=starts[-1])
            .to(like, non_blocking=True)
        )
        self.simple = all(abs(end.charge) == 1 for end in ends)
        weight = [1] * len(shapes)
        for factors in terms:
            for f in factors:
                weight[f.unknown] = max(weight[f.unknown], sum(abs(g.charge) for g in factors))
        self.bound = torch.tensor(weight).repeat_interleave(unknowns, output_size=first[-1]).to(like, non_blocking=True)

    def packed(self, terms: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of terms ``(B, *sizes)`` -> those of buckets."""
        return [
            torch.cat([onto(terms[i], self.terms[i][0].dims).flatten(1) for i in bucket.terms], -1).unsqueeze(1)
            if len(set(bucket.dims)) == 1
            else torch.stack([terms[i] for i in bucket.terms], 1)
            for bucket in self.buckets
        ]

    def ends(self, neurons: Tensor) -> list[list[Tensor]]:
        """Numbers of neurons ``(B, N)`` at the ends of each bucket's factors, broadcasting against its tensor."""
        return self.along(neurons.index_select(1, self.neuron))

    def along(self, ends: Tensor) -> list[list[Tensor]]:
        """Numbers of ends ``(B, M)``, broadcasting against the tensors of buckets."""
        parts = iter(self.split(ends))
        return [
            [
                along(next(parts).reshape(len(ends), *shape), dims, b.ndim)
                for shape, dims in zip(b.shapes, b.dims, strict=True)
            ]
            for b in self.buckets
        ]

    def split(self, ends: Tensor) -> Sequence[Tensor]:
        """Numbers of ends ``(B, M)`` in parts, one for each factor of a bucket."""
        return torch.split(ends, self.counts, -1)

    @functools.cached_property
    def products(self) -> list[dict[tuple[int, int], Tensor]]:
        """For each bucket and pair of its factors the products of their charges, broadcasting against its tensor."""
        return [
            {(i, j): charges[i] * charges[j] for i, j in itertools.combinations(range(len(charges)), 2)}
            for charges in self.along(self.charge.unsqueeze(0))
        ]

    @functools.cached_property
    def pairs(self) -> Tensor:
        """The places in a matrix ``(N, N)`` of its diagonal, and of the entries of terms for each pair of factors, both
        orders."""
        size = sum(self.sizes)
        parts = [torch.arange(size, device=self.neuron.device) * (size + 1)]
        for bucket, products in zip(self.along(self.neuron.unsqueeze(0)), self.products, strict=True):
            every = torch.zeros_like(sum(bucket[1:], bucket[0]))  # entry of a term, whatever factors it has besides
            parts += [
                (size * bucket[i] + bucket[j] + every).flatten() for a, b in products for i, j in ((a, b), (b, a))
            ]
        return torch.cat(parts)


def buckets_of(terms: tuple[Factors, ...], shapes: Shapes, like: Tensor) -> Buckets:
    """Returns the buckets of terms on the device of a tensor, kept for the next call: nothing waits for a device."""
    if hasattr(like, "fake_mode"):
        return Buckets(terms, shapes, like)
    return _buckets(terms, shapes, like.dtype, like.device)


@functools.lru_cache(128)
def _buckets(terms: tuple[Factors, ...], shapes: Shapes, dtype: torch.dtype, device: torch.device) -> Buckets:
    return Buckets(terms, shapes, torch.empty(0, dtype=dtype, device=device))
