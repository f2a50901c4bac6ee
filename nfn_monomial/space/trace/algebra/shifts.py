"""Parameters that were added to values, followed until an operation subtracts them again: those are dead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .atoms import Cause
from .values import Dimension, Shift, Value, indices, indices_of, is_unit, tokens_of


class Added:
    """Parameters that are added to values: those are dead that one operation reads and all later ones subtract.

    Attributes:
        readers: unknown -> how many operations read the axis in a parameter as such.
        matter: unknowns of parameters that reach an operation that does not subtract them.
    """

    def __init__(self) -> None:
        self.readers: dict[int, int] = {}
        self.matter: set[int] = set()
        self._ignored: dict[int, Cause] = {}
        self._now: set[int] = set()

    def ignore(self, found: Value, along: frozenset[int], cause: Cause) -> None:
        """The current operation subtracts what is constant along these tokens."""
        for shift in found.shifts:
            sources = {u for _, own in shift.sources for u in own}
            if along <= shift.constant:
                self._ignored.update(dict.fromkeys(sources, cause))
                self._now |= sources
            else:
                self.matter |= sources

    def follow(self, read: Iterable[Value], given: Iterable[Value] | None) -> None:
        """What was added to arguments matters, but for what is subtracted, or the results have, if these are known."""
        self.matter |= _shifted(read) - (set() if given is None else _shifted(given) | self._now)
        self._now.clear()

    def dead(self) -> dict[int, Cause]:
        """Unknowns of parameters that do not matter, and the operation that subtracts each."""
        return {u: c for u, c in self._ignored.items() if self.readers.get(u) == 1 and u not in self.matter}


def _shifted(values: Iterable[Value]) -> set[int]:
    """Unknowns of the parameters that were added to values."""
    total = set[int]()
    for found in values:
        present = frozenset[int]().union(*map(tokens_of, found.dims)) if found.shifts else ()
        total |= {u for s in found.shifts for token, own in s.sources if token in present or token < 0 for u in own}
    return total


def added(a: Value, b: Value) -> list[Shift]:
    """A parameter ``b`` that is added to ``a``, of the same shape but where it is broadcast."""
    if a.raw or not b.raw or b.data is not None:
        return []
    sources: list[tuple[int, frozenset[int]]] = []
    constant: frozenset[int] = frozenset()
    for da, db in zip(a.dims, b.dims, strict=True):
        if is_unit(db):
            constant |= tokens_of(da)
        elif not is_unit(da):
            sources += [(i.token, j.sources) for i, j in zip(indices(da), indices(db), strict=True)]
    return [Shift(tuple(sources), constant)]


def broadcast(found: Value, other: Value, names: Value | None = None) -> list[Shift]:
    """What was added to a value, as added to its sum with another; in the tokens of ``names``."""
    constant = frozenset[int]()
    token: dict[int, int] = {}
    for own, beside in zip(found.dims, other.dims, strict=True) if found.shifts else ():
        if is_unit(own):
            constant |= tokens_of(beside)
        elif names is not None and not is_unit(beside):
            token |= {i.token: j.token for i, j in zip(indices(own), indices(beside), strict=True)}
    return [_told(shift, token, constant) for shift in found.shifts]


def _told(shift: Shift, token: Mapping[int, int], constant: frozenset[int] = frozenset()) -> Shift:
    """The same with other tokens, constant along more."""
    sources = tuple((token.get(t, t), us) for t, us in shift.sources)
    return Shift(sources, constant.union(token.get(t, t) for t in shift.constant))


def retold(found: Value, dims: Sequence[Dimension]) -> tuple[Shift, ...]:
    """What was added to a value whose dimensions have other tokens now."""
    if not found.shifts:
        return ()
    pairs = zip(indices_of(found), indices_of(Value(tuple(dims))), strict=False)
    token = {i.token: j.token for i, j in pairs}
    return tuple(_told(shift, token) for shift in found.shifts)


def carried(found: Value, letters: str, roles: Mapping[str, Dimension], others: str, out: str) -> list[Shift]:
    """What was added to one factor, as added to a product: constant along what only this factor has."""
    shifts = []
    for shift in found.shifts:
        present = frozenset[int]().union(*map(tokens_of, found.dims))
        constant: frozenset[int] = frozenset()
        for letter, dim in zip(letters, found.dims, strict=True):
            if letter in out and letter not in others and tokens_of(dim) <= shift.constant:
                constant |= tokens_of(roles[letter])
        sources = tuple((-1, us) for token, us in shift.sources if token in present or token < 0)
        shifts.append(Shift(sources, constant))
    return shifts
