"""Gauges of every index set: the two kernels of the equations that a program demands."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nfn_monomial.linear_algebra import Span, Vector, kernel, shortened
from nfn_monomial.symmetry import Symmetry
from nfn_monomial.trace.algebra.forms import Scale
from nfn_monomial.trace.algebra.moves import Run
from nfn_monomial.trace.algebra.values import Dimension, Value, indices

from .nests import parent_index, segments

Entry: TypeAlias = tuple[str, tuple[int, ...]]
"""A piece of a parameter: its name, and for each dimension which segment."""


@dataclass(frozen=True)
class Gauge:
    """One factor that acts on every item: SCALE, SIGN, or MONOMIAL; unknown of an axis (or piece) -> charge."""

    symmetry: Symmetry
    charges: Mapping[int, int]


class Charges:
    """Gauges of all classes, found on the equations of the last pass.

    Args:
        run: that pass.
        roots: parameters.
        parents: nested class -> what it is nested in.

    Attributes:
        gauges: class -> its gauges. Those of a FIXED class act on each of its entries, which stay where they are.
        constants: gauges that act on all of a parameter: `Gauge.charges` has numbers of ``pieces``.
        pieces: all pieces of parameters.
        numbers: parameter -> numbers of its pieces.
    """

    def __init__(self, run: Run, roots: Mapping[str, Value], parents: Mapping[int, int]) -> None:
        self._run, self._roots, self._parents = run, roots, parents
        lost = set(map(run.atoms.find, run.opened))
        self._class = {
            u: c
            for u, found in enumerate(run.unknowns)
            if found.atom is not None
            and ((c := run.atoms.find(found.atom)) not in lost or run.atoms.cause(found.atom) is None)
        }
        self.pieces = [piece for name, root in roots.items() for piece in _pieces(name, root)]
        self.numbers: dict[str, list[int]] = {}
        for n, (name, _) in enumerate(self.pieces):
            self.numbers.setdefault(name, []).append(n)
        self.gauges: dict[int, list[Gauge]] = {}
        self._above = self._owners()
        self._solve()

    def _owners(self) -> dict[int, int]:
        """Unknown of a nested index -> that of the index that it belongs to."""
        found: dict[int, int] = {}
        for root in self._roots.values():
            for segment, others in segments(root):
                for index in segment.indices:
                    parent = self._parents.get(self._run.atoms.find(index.atom))
                    if parent is not None:
                        above = parent_index(self._run, segment, others, index, parent)
                        assert above is not None, "nests were checked on all parameters"
                        found[min(index.sources)] = min(above.sources)
        return found

    def _solve(self) -> None:
        variables: dict[int, list[int]] = {}
        for u, found in self._class.items():
            variables.setdefault(found, []).append(u)
        self._equations = {modulus: self._sorted(self._forms(modulus)) for modulus in (0, 2)}
        inside: dict[int | None, list[Gauge]] = {}
        for found in sorted(variables, key=lambda c: len(self._ancestors(c)), reverse=True):
            gauges = self._beyond(inside.get(found, ()), found, variables[found], self._owned)
            self.gauges[found] = gauges
            for above in filter(variables.__contains__, self._ancestors(found)):
                inside.setdefault(above, []).extend(_moved(gauges, functools.partial(self._owner, above)))
            inside.setdefault(None, []).extend(_moved(gauges, self._pieces_of))
        constants = [u for u, found in enumerate(self._run.unknowns) if found.atom is None and not self._uniform(u)]
        self.constants = self._beyond(inside.get(None, ()), None, constants, self._piecewise)

    def _beyond(
        self, known: Iterable[Gauge], found: int | None, variables: Sequence[int], told: Callable[[Vector, int], Vector]
    ) -> list[Gauge]:
        """Gauges of a class (of constants, for None) outside the span of those that are known, short ones."""
        bases = []
        for modulus in (0, 2):
            span = Span(modulus, [g.charges for g in known if (g.symmetry.flips if modulus else g.symmetry.scales)])
            basis = [told(v, modulus) for v in kernel(self._equations[modulus].get(found, ()), variables, modulus)]
            bases.append(shortened([vector for vector in basis if span.add(vector)], modulus))
        return _joined(*bases)

    def lost(self, found: int, modulus: int) -> set[int]:
        """Unknowns in gauges that a class has not because of what operations compute: of scales (0), or signs (2)."""
        own = [u for u, c in self._class.items() if c == found]
        span = Span(modulus, kernel(self._equations[modulus].get(found, ()), own, modulus))
        costs = self._run.equations.costs[modulus // 2]
        free = self._sorted(form for n, form in enumerate(self._forms(modulus)) if n not in costs)
        return {u for vector in kernel(free.get(found, ()), own, modulus) if span.add(vector) for u in vector}

    def _forms(self, modulus: int) -> Iterable[Scale]:
        equations = self._run.equations
        return (dict.fromkeys(sign, 1) for sign in equations.signs) if modulus else equations.scales

    def _uniform(self, u: int) -> bool:
        """Whether a constant belongs to a segment of a dimension on which nothing acts: all its parts become one."""
        found = self._run.unknowns[u]
        return found.dim is not None and self.still(self._roots[found.parameter].dims[found.dim])

    def still(self, dim: Dimension) -> bool:
        """Whether nothing acts on any entry of a dimension."""
        return self._run.fixed(dim) and not any(self.gauges.get(self._run.atoms.find(i.atom)) for i in indices(dim))

    def _sorted(self, equations: Iterable[Scale]) -> dict[int | None, list[Scale]]:
        """Equations by the class of their unknowns, None for those between constants; those without a class are 0."""
        found: dict[int | None, list[Scale]] = {}
        unknowns = self._run.unknowns
        for equation in equations:
            first = next(iter(equation))
            if unknowns[first].atom is None:
                found.setdefault(None, []).append(equation)
            elif first in self._class:
                found.setdefault(self._class[first], []).append(equation)
        return found

    def _owned(self, vector: Vector, _: int) -> Vector:
        """What a vector says of parameters."""
        return {u: q for u, q in vector.items() if self._run.unknowns[u].parameter}

    def _ancestors(self, found: int) -> list[int]:
        above = self._parents.get(found)
        return [] if above is None else [above, *self._ancestors(above)]

    def _owner(self, ancestor: int, u: int) -> list[int]:
        """The unknown of the index of a class that a nested one belongs to."""
        while self._class[u] != ancestor:
            u = self._above[u]
        return [u]

    def _pieces_of(self, u: int) -> list[int]:
        """Numbers of the whole pieces that an index belongs to."""
        found = self._run.unknowns[u]
        assert found.dim is not None, "of an axis"
        return [n for n in self.numbers[found.parameter] if self.pieces[n][1][found.dim] == found.segment]

    def _piecewise(self, vector: Vector, modulus: int) -> Vector:
        """Constants of parameters and of their segments as those of pieces."""
        whole: dict[tuple[str, int | None, int | None], int] = {}
        for u, q in vector.items():
            found = self._run.unknowns[u]
            whole[found.parameter, found.dim, found.segment] = q
        total: Vector = {}
        for n in sorted({n for name, _, _ in whole for n in self.numbers.get(name, ())}):
            name, choice = self.pieces[n]
            q = whole.get((name, None, None), 0) + sum(whole.get((name, d, s), 0) for d, s in enumerate(choice))
            if q % modulus if modulus else q:
                total[n] = q % modulus if modulus else q
        return total


def _pieces(name: str, root: Value) -> list[Entry]:
    return [(name, choice) for choice in itertools.product(*(range(len(dim)) for dim in root.dims))]


def _moved(gauges: Iterable[Gauge], places: Callable[[int], Iterable[int]]) -> Iterable[Gauge]:
    """Gauges as they act on something larger, where they are equal on all items."""
    for gauge in gauges:
        total: Vector = {}
        for u, q in gauge.charges.items():
            for at in places(u):
                total[at] = total.get(at, 0) + q
        yield Gauge(gauge.symmetry, total)


def _joined(scales: Sequence[Vector], signs: Sequence[Vector]) -> list[Gauge]:
    """Scale and sign gauges; a scale whose parity is a sign becomes MONOMIAL with it."""
    taken, flips = Span(2), Span(2, signs)
    gauges = []
    for scale in scales:
        odd = {u: 1 for u, q in scale.items() if q % 2}
        both = bool(odd) and odd in flips and taken.add(odd)
        gauges.append(Gauge(Symmetry.MONOMIAL if both else Symmetry.SCALE, scale))
    gauges += [Gauge(Symmetry.SIGN, sign) for sign in signs if taken.add(sign)]
    return gauges
