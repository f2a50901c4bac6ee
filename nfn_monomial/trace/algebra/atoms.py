"""Index sets of dimensions: atoms that operations tie to one another, fix, cut into sums and factor into products.

An atom is a set of indices that one permutation group may permute. Ties are a union-find; where an operation looks at
parts of an atom, its class is *bound* to what it consists of: a concatenation (sum) of row-major products of atoms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

Factor = TypeVar("Factor")


class Term(NamedTuple):
    """A row-major product, as one term of a sum.

    Attributes:
        factors: atoms, or their sizes.
        lead: size of the leading factors that it shares with the product before it: it stands beside that in each of
            their items; after it, where that is 1.
    """

    factors: tuple[int, ...]
    lead: int = 1


Structure: TypeAlias = tuple[Term, ...]
"""A sum of products: of atoms, or of their sizes."""


def row_major(
    sums: Iterable[Iterable[tuple[tuple[Factor, ...], int]]], extent: Callable[[tuple[Factor, ...]], int]
) -> list[tuple[tuple[Factor, ...], int]]:
    """Multiplies sums of products out, row-major: ``(a + b) (c + d)`` is ``ac``, beside it ``ad``, and so on."""
    whole: list[tuple[tuple[Factor, ...], int]] = [((), 1)]
    for parts in sums:
        whole = [
            ((*left, *right), extent(left) * beside if n else lead)
            for left, lead in whole
            for n, (right, beside) in enumerate(parts)
        ]
    return whole


class Cause(NamedTuple):
    """Why an atom is FIXED, or what cost it a symmetry: the operation, with the module it is in, and a few words."""

    operation: str
    reason: str


class Atoms:
    """Union-find over atoms ``0, 1, ...``, each with a size, perhaps FIXED, perhaps bound to finer ones."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._size: list[int] = []
        self._fixed: list[Cause | None] = []
        self._bound: dict[int, Structure] = {}

    def new(self, size: int, fixed: Cause | None = None) -> int:
        """Returns a new atom."""
        self._parent.append(len(self._parent))
        self._size.append(size)
        self._fixed.append(fixed)
        return len(self._parent) - 1

    def find(self, atom: int) -> int:
        """Returns the atom that stands for its class."""
        parent = self._parent
        while parent[atom] != atom:
            parent[atom] = parent[parent[atom]]
            atom = parent[atom]
        return atom

    def size(self, atom: int) -> int:
        """Returns its number of indices."""
        return self._size[atom]

    def cause(self, atom: int) -> Cause | None:
        """Returns why its class is FIXED; None where it is not."""
        return self._fixed[self.find(atom)]

    def is_bound(self, atom: int) -> bool:
        """Returns whether its class consists of finer atoms."""
        return self.find(atom) in self._bound

    def bind(self, atom: int, *structure: Term) -> None:
        """Says what a class consists of; once."""
        root = self.find(atom)
        assert root not in self._bound, "a class is bound once, its parts are bound after that"
        self._bound[root] = structure
        if (cause := self._fixed[root]) is not None:
            self._fix_parts(root, cause)

    def fix(self, atom: int, cause: Cause) -> None:
        """Lets no permutation act on its class: the first cause stays."""
        root = self.find(atom)
        if self._fixed[root] is None:
            self._fixed[root] = cause
            self._fix_parts(root, cause)

    def _fix_parts(self, root: int, cause: Cause) -> None:
        for product in self._bound.get(root, ()):
            for part in product.factors:
                self.fix(part, cause)

    def unite(self, a: int, b: int) -> None:
        """Ties two atoms of one size, of which at most one is bound."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        assert self._size[a] == self._size[b], "tied atoms have one size"
        if b in self._bound or (b < a and a not in self._bound):  # what is older, or bound, stays
            a, b = b, a
        assert b not in self._bound, "of two bound classes the parts are tied"
        cause = self._fixed[a] or self._fixed[b]
        self._parent[b] = a
        if cause is not None:
            self.fix(a, cause)

    def leaves(self, atom: int) -> Structure:
        """Returns an atom as a sum of products of atoms that are not bound."""
        root = self.find(atom)
        if root not in self._bound:
            return (Term((root,)),)
        return self.sum(self._bound[root])

    def sum(self, products: Sequence[Term]) -> Structure:
        """Returns a sum of products of atoms with all atoms taken apart.

        An atom that is a sum stays whole and FIXED in what several of them share, which has to be of one piece, and
        where all its parts are FIXED.
        """
        total: list[Term] = []
        for product, behind in zip(products, (*products[1:], Term(())), strict=True):
            parts: list[Structure] = []
            for n, factor in enumerate(product.factors):
                parts.append(self.leaves(factor))
                if self.whole(parts[-1], product.factors[:n], max(product.lead, behind.lead)):
                    self.fix(factor, Cause("", "a concatenation inside of what others share"))
                    parts[-1] = (Term((self.find(factor),)),)
            (first, _), *rest = row_major(parts, self.extent)
            total += [Term(first, product.lead), *(Term(*part) for part in rest)]
        return tuple(total)

    def whole(self, parts: Sequence[tuple[tuple[int, ...], int]], before: tuple[int, ...], shared: int) -> bool:
        """Returns whether an atom of these parts stays whole, after other factors of a product.

        Args:
            parts: sums of products that it consists of.
            before: the factors before it.
            shared: size of the leading factors that the product shares with others.
        """
        atoms = [self.find(atom) for factors, _ in parts for atom in factors]
        apart = len(set(atoms)) == len(atoms)  # of what parts share nobody knows yet whose operation fixed it
        fixed = apart and all(map(self.cause, atoms or before[-1:]))  # single entries are as what they are in
        size = self.extent(before)
        return len(parts) > 1 and (size < shared or (size > 1 and fixed))

    def sizes(self, structure: Structure) -> Structure:
        """Returns a sum of products of sizes, in place of atoms."""
        return tuple(Term(tuple(self._size[a] for a in product.factors), product.lead) for product in structure)

    def extent(self, factors: tuple[int, ...]) -> int:
        """Returns the number of indices of a product."""
        return math.prod(self._size[atom] for atom in factors)
