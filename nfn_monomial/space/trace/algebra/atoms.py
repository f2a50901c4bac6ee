"""Index sets of dimensions: atoms that operations tie to one another, fix, cut into sums and factor into products.

An atom is a set of indices that one permutation group may permute. Ties are a union-find; where an operation looks at
parts of an atom, its class is *bound* to what it consists of: a concatenation (sum) of row-major products of atoms.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

Structure: TypeAlias = tuple[tuple[int, ...], ...]
"""A sum of products: of atoms, or of their sizes."""


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
        """A new atom."""
        self._parent.append(len(self._parent))
        self._size.append(size)
        self._fixed.append(fixed)
        return len(self._parent) - 1

    def find(self, atom: int) -> int:
        """The atom that stands for its class."""
        parent = self._parent
        while parent[atom] != atom:
            parent[atom] = parent[parent[atom]]
            atom = parent[atom]
        return atom

    def size(self, atom: int) -> int:
        """Its number of indices."""
        return self._size[atom]

    def cause(self, atom: int) -> Cause | None:
        """Why its class is FIXED; None where it is not."""
        return self._fixed[self.find(atom)]

    def is_bound(self, atom: int) -> bool:
        """Whether its class consists of finer atoms."""
        return self.find(atom) in self._bound

    def bind(self, atom: int, structure: Structure) -> None:
        """Say what a class consists of; once."""
        root = self.find(atom)
        assert root not in self._bound, "a class is bound once, its parts are bound after that"
        self._bound[root] = structure
        if (cause := self._fixed[root]) is not None:
            self._fix_parts(root, cause)

    def fix(self, atom: int, cause: Cause) -> None:
        """No permutation may act on its class: the first cause stays."""
        root = self.find(atom)
        if self._fixed[root] is None:
            self._fixed[root] = cause
            self._fix_parts(root, cause)

    def _fix_parts(self, root: int, cause: Cause) -> None:
        for product in self._bound.get(root, ()):
            for part in product:
                self.fix(part, cause)

    def unite(self, a: int, b: int) -> None:
        """Tie two atoms of one size, of which at most one is bound."""
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
        """What an atom consists of in the end: a sum of products of atoms that are not bound.

        A sum inside a product, behind its first factor, is no sum of products: its atom stays whole and FIXED.
        """
        root = self.find(atom)
        if root not in self._bound:
            return ((root,),)
        return tuple(leaf for product in self._bound[root] for leaf in self.product(product))

    def product(self, factors: tuple[int, ...]) -> Structure:
        """Row-major product of atoms, taken apart as `leaves` does it."""
        if not factors:
            return ((),)
        tail: list[int] = []
        for factor in factors[1:]:
            found = self.leaves(factor)
            if len(found) == 1:
                tail.extend(found[0])
            else:
                self.fix(factor, Cause("", "a concatenation inside a product"))
                tail.append(self.find(factor))
        return tuple((*lead, *tail) for lead in self.leaves(factors[0]))

    def sizes(self, structure: Structure) -> Structure:
        """The same with sizes in place of atoms."""
        return tuple(tuple(self._size[atom] for atom in product) for product in structure)

    def extent(self, product: tuple[int, ...]) -> int:
        """Number of indices of a product."""
        return math.prod(self._size[atom] for atom in product)
