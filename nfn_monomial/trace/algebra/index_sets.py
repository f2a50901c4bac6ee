"""Dimensions side by side: tied, cut, factored and regrouped, until both sides consist of the same atoms.

Where an atom is cut or factored, the forms of its indices are lost. `tie` then runs the program once more, with
parameters whose dimensions have the new parts from the start.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from .atoms import Atoms, Cause, Structure, Term, row_major
from .forms import Form
from .values import UNIT, Dimension, Index, Segment, Value, blocks, extent, indices, is_unit, sizes


class IndexSets:
    """The index sets that dimensions run over, and what operations do to dimensions.

    Args:
        equate: is called with a form that has to vanish, where segments become one and their constants equal.

    Attributes:
        atoms: all index sets.
        operation: the current operation, named as the cause of what becomes FIXED: ``"module.path: operator"``.
        ties: pairs of tokens that the current step says are the same index.
        opened: atoms that were cut, factored or made one with others, which loses their forms.
    """

    def __init__(self, equate: Callable[[Form], None]) -> None:
        self.atoms = Atoms()
        self.operation = ""
        self.ties: list[tuple[int, int]] = []
        self.opened: set[int] = set()
        self._equate = equate
        self._tokens = itertools.count()
        self._taken_apart: dict[int, dict[Structure, list[tuple[tuple[Index, ...], int]]]] = {}

    def index(self, size: int, reason: str | None = None, atom: int | None = None) -> Index:
        """Returns a new index over a new atom (FIXED for that reason) or over one that exists."""
        if atom is None:
            atom = self.atoms.new(size, None if reason is None else Cause(self.operation, reason))
        return Index(atom, size, next(self._tokens))

    def fresh(self, size: int, reason: str | None = None) -> Dimension:
        """Returns a new dimension, FIXED where there is a reason."""
        return UNIT if size == 1 else (Segment((self.index(size, reason),)),)

    def renamed(self, index: Index) -> Index:
        """Returns the same index in another role."""
        return index._replace(token=next(self._tokens))

    def fixed(self, dim: Dimension) -> bool:
        """Returns whether every atom of a dimension is FIXED."""
        cause = self.atoms.cause
        return all(cause(index.atom) is not None for index in indices(dim))

    def fix(self, dim: Dimension, reason: str) -> None:
        """Makes every atom of a dimension FIXED."""
        cause = Cause(self.operation, reason)
        for index in indices(dim):
            self.atoms.fix(index.atom, cause)

    def resolve(self, dim: Dimension) -> Dimension:
        """Returns a dimension with every atom taken apart into what it consists of; see `Atoms.sum`."""
        bound = self.atoms.is_bound
        if not any(bound(index.atom) for index in indices(dim)):
            return dim
        whole: list[Segment] = []
        for segment, behind in zip(dim, (*dim[1:], Segment(())), strict=True):
            factors: list[list[tuple[tuple[Index, ...], int]]] = []
            before: tuple[int, ...] = ()
            for index in segment.indices:
                factors.append(self._parts(index))
                atoms = [(tuple(i.atom for i in part), lead) for part, lead in factors[-1]]
                if self.atoms.whole(atoms, before, max(segment.lead, behind.lead)):
                    self.fix((Segment((index,)),), "a concatenation inside of what others share")
                    factors[-1] = [((index,), 1)]
                before = (*before, index.atom)
            (first, _), *rest = row_major(factors, _size)
            whole += [segment._replace(indices=first), *(Segment(part, segment.const, lead) for part, lead in rest)]
        return tuple(whole)

    def _parts(self, index: Index) -> list[tuple[tuple[Index, ...], int]]:
        """Returns the parts of an index: the same ones whenever it is asked."""
        if not self.atoms.is_bound(index.atom):
            return [((index,), 1)]
        self.opened.add(index.atom)
        leaves = self.atoms.leaves(index.atom)
        known = self._taken_apart.setdefault(index.token, {})
        shape = self.atoms.sizes(leaves)
        if shape not in known:
            known[shape] = [
                (tuple(self.index(self.atoms.size(a), atom=a) for a in leaf.factors), leaf.lead) for leaf in leaves
            ]
        return known[shape]

    def resolved(self, x: Value) -> Value:
        """Returns a value with all its dimensions resolved."""
        dims = tuple(map(self.resolve, x.dims))
        return x if dims == x.dims else replace(x, dims=dims, data=None)

    def collapse(self, dim: Dimension, reason: str) -> Dimension:
        """Returns a dimension as one FIXED index: its segments' constants become equal."""
        self.fix(dim, reason)
        self.opened.update(index.atom for segment in dim for index in segment.indices)
        for segment in dim[1:]:
            self._equate(segment.const - dim[0].const)
        flat = self.fresh(extent(dim), reason)
        return (Segment(flat[0].indices, dim[0].const),)

    def align(self, a: Dimension, b: Dimension, reason: str = "tied to what is FIXED") -> tuple[Dimension, Dimension]:
        """Ties two dimensions of one size, and returns both as products and sums of the same atoms."""
        while True:
            a, b = self.resolve(a), self.resolve(b)
            if sizes(a) == sizes(b):
                break
            if self.fixed(a) or self.fixed(b):
                a, b = self.collapse(a, reason), self.collapse(b, reason)
                break
            a, b = self._refined(a, b)
        for i, j in zip(indices(a), indices(b), strict=True):
            self.atoms.unite(i.atom, j.atom)
            self.ties.append((i.token, j.token))
        return a, b

    def _refined(self, a: Dimension, b: Dimension) -> tuple[Dimension, Dimension]:
        """Returns both dimensions after one step towards equal sizes, at the first difference."""
        left, right = blocks(a), blocks(b)
        n = next(n for n, pair in enumerate(zip(left, right, strict=False)) if sizes(pair[0]) != sizes(pair[1]))
        one, other = left[n], right[n]
        if (size := min(extent(one), extent(other))) < max(extent(one), extent(other)):
            one, other = (self._cut(dim, size) if extent(dim) > size else dim for dim in (one, other))
        elif len(one) == len(other) == 1:
            one, other = ((segment,) for segment in self._factored(one[0], other[0]))
        elif not (self._bound_like(one, other) or self._bound_like(other, one)):
            one, other = (self.collapse(dim, "side by side in two ways") for dim in (one, other))
        left[n], right[n] = one, other
        return tuple(itertools.chain(*left)), tuple(itertools.chain(*right))

    def _bound_like(self, dim: Dimension, other: Dimension) -> bool:
        """Takes one index apart as another dimension is, or is in all that its parts share; False where it may not."""
        if len(dim) > 1 or self.fixed(dim):
            return False
        *shared, _ = (i.size for i in dim[0].indices)
        lead, products = math.prod(shared), sizes(other)
        if any(product.factors[: len(shared)] != (*shared,) for product in products):
            return False
        if any(product.lead % lead for product in products[1:]) or self.atoms.cause(dim[0].indices[-1].atom):
            return False
        parts = [
            Term(tuple(map(self.atoms.new, factors[len(shared) :])), max(beside // lead, 1))
            for factors, beside in products
        ]
        self.atoms.bind(dim[0].indices[-1].atom, *parts)
        return True

    def _cut(self, dim: Dimension, size: int) -> Dimension:
        """Returns a segment, or several side by side, as the concatenation of two, the first of that size."""
        whole = dim if len(dim) == 1 else self.collapse(dim, "cut across what lies side by side")
        return self.cut(whole[0], size)

    def _factored(self, a: Segment, b: Segment) -> tuple[Segment, Segment]:
        """Factors two segments of one size at the first difference between their products."""
        n = next(n for n, (i, j) in enumerate(zip(a.indices, b.indices, strict=False)) if i.size != j.size)
        ends = _same_product([i.size for i in a.indices[n:]], [j.size for j in b.indices[n:]])
        parts = a.indices[n : n + ends[0]], b.indices[n : n + ends[1]]
        small, large = sorted((parts[0][0], parts[1][0]), key=lambda index: index.size)
        if large.size % small.size or self.atoms.cause(large.atom):
            flat = [self.collapse((Segment(part),), "tied to what is FIXED")[0].indices for part in parts]
        else:
            self.factor(large, small.size)
            flat = list(parts)
        return (
            Segment((*a.indices[:n], *flat[0], *a.indices[n + ends[0] :]), a.const),
            Segment((*b.indices[:n], *flat[1], *b.indices[n + ends[1] :]), b.const),
        )

    def factor(self, index: Index, lead: int) -> tuple[Index, ...]:
        """Returns an index as a product whose first factor has that size; FIXED where it does not divide."""
        cause = self.atoms.cause(index.atom)
        self.opened.add(index.atom)
        if index.size % lead:
            self.fix(((Segment((index,))),), "a view that does not divide its channels")
            return (index,)
        parts = self.atoms.new(lead, cause), self.atoms.new(index.size // lead, cause)
        if cause is None:
            self.atoms.bind(index.atom, Term(parts))
        return tuple(self.index(self.atoms.size(part), atom=part) for part in parts)

    def cut(self, segment: Segment, size: int) -> tuple[Segment, Segment]:
        """Returns a segment as the concatenation of two, the first of that size."""
        lead, *rest = segment.indices
        inner = math.prod(index.size for index in rest)
        if size % inner:
            flat = self.collapse((segment,), "cut at no multiple of its parts")[0].indices[0]
            lead, rest, inner = flat, [], 1
        self.opened.add(lead.atom)
        counts = size // inner, lead.size - size // inner
        cause = self.atoms.cause(lead.atom)
        parts = [self.atoms.new(n, cause) if n > 1 else None for n in counts]
        if cause is None:
            self.atoms.bind(lead.atom, *(Term(() if part is None else (part,)) for part in parts))
        first, second = (() if p is None else (self.index(n, atom=p),) for p, n in zip(parts, counts, strict=True))
        # the same inner atoms on both sides: another role, so other tokens
        return (Segment((*first, *rest), segment.const), Segment((*second, *map(self.renamed, rest)), segment.const))

    def split(self, dim: Dimension, size: int) -> tuple[Dimension, Dimension]:
        """Returns a dimension as the concatenation of two, the first of that size (which may be 0 or all)."""
        left: list[Dimension] = []
        right = blocks(self.resolve(dim))
        while right and size >= extent(right[0]):
            size -= extent(right[0])
            left.append(right.pop(0))
        if size:
            first, second = self._cut(right[0], size)
            right = [(second,), *right[1:]]
            left.append((first,))
        return tuple(itertools.chain(*left)), tuple(itertools.chain(*right))

    def merged(self, dims: Sequence[Dimension]) -> Dimension:
        """Returns the row-major product of dimensions."""
        whole = UNIT
        for dim in map(self.resolve, dims):
            behind = len(dim) > 1 and not is_unit(whole) and any(segment.indices for segment in dim)
            flat = self.collapse(dim, "a view of what is FIXED") if behind and self.fixed(dim) else dim
            whole = tuple(
                Segment((*s.indices, *t.indices), s.const + t.const, s.size * t.lead if n else s.lead)
                for s in whole
                for n, t in enumerate(flat)
            )
        return whole

    def spread(self, segment: Segment, target: Sequence[int]) -> list[Dimension]:
        """Returns one segment as several dimensions of these sizes."""
        left = list(segment.indices)
        dims: list[Dimension] = []
        for size in target:
            taken: list[Index] = []
            need = size
            while need > 1:
                index = left.pop(0)
                if self.atoms.is_bound(index.atom):  # by another index of its class, just now
                    left[:0] = self._parts(index)[0][0]
                elif need % index.size == 0:
                    taken.append(index)
                    need //= index.size
                elif index.size % need == 0:
                    left[:0] = self.factor(index, need)
                else:
                    self.fix(((Segment(segment.indices)),), "a view that does not divide its channels")
                    self.opened.update(index.atom for index in segment.indices)
                    return [self.fresh(n, "a view that does not divide its channels") for n in target]
            dims.append((Segment(tuple(taken)),))
        if segment.const.scale or segment.const.sign:
            dims[0] = (Segment(dims[0][0].indices, segment.const),)
        return dims


def _size(factors: Sequence[Index]) -> int:
    return math.prod(index.size for index in factors)


def _same_product(a: Sequence[int], b: Sequence[int]) -> tuple[int, int]:
    """Returns how many leading factors of each have the same product, as few as possible."""
    n, m, left, right = 1, 1, a[0], b[0]
    while left != right:
        if left < right:
            left, n = left * a[n], n + 1
        else:
            right, m = right * b[m], m + 1
    return n, m
