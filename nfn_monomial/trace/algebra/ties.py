"""The index sets of a program, as a value: what `tie` returns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .atoms import Atoms, Cause, Structure
from .values import Dimension, Segment, Value, indices, indices_of, is_unit

POSITIONS = {"kernel", "position", "time"}
"""Reasons for which an index set is FIXED and is shown by its size alone."""


@dataclass(frozen=True, eq=False)
class Ties:
    """The dimensions of a program's parameters that run over the same index sets.

    Attributes:
        atoms: all index sets; those that are tied are one class, named by one of its atoms.
        parameters: name -> value, whose dimensions are sums of products of indices.
        structures: name -> dimensions as sums of products of sizes, which no operation cuts or factors any further.
        opened: atoms that were cut or factored: their indices have no forms.
        parents: nested class -> the class that it is nested in.
        flows: unknown of an axis -> +1 if the axis is written to, -1 if it is read along, 0 if it scales.
        operations: those that a rule says something of, with the values that they read, in order.
        unknown: operators without a rule that met something other than inputs and constants, which are FIXED by it.
        probed: those that were run alone on random tensors, where they keep some permutations.
        short: operations of which the example does not show what they do, as it has one place along their dimension.
    """

    atoms: Atoms
    parameters: Mapping[str, Value]
    structures: Mapping[str, tuple[Structure, ...]]
    opened: frozenset[int]
    parents: Mapping[int, int]
    flows: Mapping[int, int]
    operations: Sequence[tuple[str, tuple[Value, ...]]]
    unknown: Sequence[str]
    probed: Sequence[str]
    short: Sequence[str]

    def find(self, atom: int) -> int:
        """Returns the class of an atom."""
        return self.atoms.find(atom)

    def cause(self, atom: int) -> Cause | None:
        """Returns why the class of an atom is FIXED; None where it is not."""
        return self.atoms.cause(atom)

    def fixed(self, dim: Dimension) -> bool:
        """Returns whether all of a dimension is FIXED."""
        return all(self.cause(index.atom) is not None for index in indices(dim))

    def __str__(self) -> str:
        """Dimensions of every parameter, sizes and nests of the index sets, and why some are FIXED."""
        names = self.names()

        def product(segment: Segment) -> str:
            return "*".join(names.get(self.find(i.atom), str(i.size)) for i in segment.indices) or "1"

        lines = {n: f"({', '.join(' + '.join(map(product, d)) for d in x.dims)})" for n, x in self.parameters.items()}
        width = max(map(len, (*lines, *names.values())), default=0)
        text = [f"{name:{width}}  {line}" for name, line in lines.items()]
        for c, name in names.items():
            nested = f", nested in {names.get(self.parents[c], 'positions')}" if c in self.parents else ""
            cause = self.cause(c)
            fixed = f", FIXED by {cause.operation}: {cause.reason}" if cause else ""
            text.append(f"{name:{width}}  size {self.atoms.size(c)}{nested}{fixed}")
        return "\n".join(text)

    def names(self) -> dict[int, str]:
        """Names the classes that parameters run over: by the first one whose rows they are, else by the first one."""
        names: dict[int, str] = {}
        for rows in (True, False):
            for name, x in self.parameters.items():
                stem = re.sub(r"\.?(weight|bias)$", "", name) or "h"
                dims = [dim for dim in x.dims[:1] if not is_unit(dim)] if rows else x.dims
                for index in indices_of(Value(tuple(dims))):
                    c, cause = self.find(index.atom), self.cause(index.atom)
                    if c in names or (cause is not None and cause.reason in POSITIONS):
                        continue
                    of_whole = cause is not None and cause.reason in ("input", "output")
                    first = cause.operation if of_whole and cause is not None else stem if rows else f"{stem}_in"
                    others = (f"{first}_{k}" for k in range(2, len(names) + 3))
                    names[c] = next(n for n in (first, *others) if n not in names.values())
        return names
