"""Gauges of every index set: the two kernels of the equations that a program demands."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nfn_monomial.linear_algebra import Span, Vector, kernel, shortened
from nfn_monomial.symmetry import Symmetry
from nfn_monomial.trace.algebra.equations import Equations
from nfn_monomial.trace.algebra.forms import Scale
from nfn_monomial.trace.algebra.ties import Ties
from nfn_monomial.trace.algebra.values import Dimension, indices

from .nests import parent_index, segments


@dataclass(frozen=True)
class Gauge:
    """One factor that acts on every item: SCALE, SIGN, or MONOMIAL; unknown of an axis (or piece) -> charge."""

    symmetry: Symmetry
    charges: Mapping[int, int]


class Gauges:
    """The gauges of all index sets: solutions of a program's equations.

    Args:
        ties: which axes of parameters run over which class of index sets.
        equations: what scales and signs have to fulfil.

    Attributes:
        by_class: class -> its gauges. Those of a FIXED class act on each of its entries, which stay where they are.
        constants: gauges that act on all of a parameter: `Gauge.charges` has numbers of ``pieces``.
        pieces: all pieces of parameters.
        numbers: parameter -> numbers of its pieces.
    """

    def __init__(self, ties: Ties, equations: Equations) -> None:
        self._ties, self._equations = ties, equations
        opened = set(map(ties.find, ties.opened))  # of these, forms are lost; where they are FIXED, so are gauges
        self._class = {
            u: c
            for u, unknown in enumerate(equations.unknowns)
            if unknown.atom is not None and ((c := ties.find(unknown.atom)) not in opened or not ties.cause(c))
        }
        self.pieces: list[tuple[str, tuple[int, ...]]] = [  # name, and for each dimension which segment
            (name, choice)
            for name, parameter in ties.parameters.items()
            for choice in itertools.product(*(range(len(dim)) for dim in parameter.dims))
        ]
        self.numbers: dict[str, list[int]] = {}
        for n, (name, _) in enumerate(self.pieces):
            self.numbers.setdefault(name, []).append(n)
        self.by_class: dict[int, list[Gauge]] = {}
        self._owner = self._owners()
        self._forms = {modulus: self._sorted(equations.forms(modulus)) for modulus in (0, 2)}
        self.constants = self._solve()

    def __str__(self) -> str:
        """One line for each gauge: the index set that it acts on, its kind, and the charges of axes."""
        names, unknowns = self._ties.names(), self._equations.unknowns
        lines = [
            (names.get(c, "positions"), gauge.symmetry.name, {str(unknowns[u]): q for u, q in gauge.charges.items()})
            for c, gauges in self.by_class.items()
            for gauge in gauges
        ]
        lines += [("1", g.symmetry.name, {self.pieces[n][0]: q for n, q in g.charges.items()}) for g in self.constants]
        return "\n".join(f"{c}: {kind}: {', '.join(f'{a} {q:+}' for a, q in axes.items())}" for c, kind, axes in lines)

    def _owners(self) -> dict[int, int]:
        """Returns, for the unknown of a nested index, that of the index that it belongs to."""
        owners: dict[int, int] = {}
        for parameter in self._ties.parameters.values():
            for segment, others in segments(parameter):
                for index in segment.indices:
                    parent = self._ties.parents.get(self._ties.find(index.atom))
                    if parent is not None:
                        above = parent_index(self._ties.find, segment, others, index, parent)
                        assert above is not None, "nests were checked on all parameters"
                        owners[min(index.sources)] = min(above.sources)
        return owners

    def _solve(self) -> list[Gauge]:
        """Finds the gauges of all classes, nested ones first, and returns those that act on all of a parameter.

        A gauge of a nested class, equal on all its items, is one of what it is nested in, and of whole parameters: only
        what is outside the span of these is new there.
        """
        variables: dict[int, list[int]] = {}
        for u, c in self._class.items():
            variables.setdefault(c, []).append(u)
        inside: dict[int | None, list[Gauge]] = {}
        for c in sorted(variables, key=lambda c: len(self._ancestors(c)), reverse=True):
            gauges = self._beyond(inside.get(c, ()), c, variables[c], self._of_parameters)
            self.by_class[c] = gauges
            for above in filter(variables.__contains__, self._ancestors(c)):
                inside.setdefault(above, []).extend(_moved(gauges, functools.partial(self._owner_in, above)))
            inside.setdefault(None, []).extend(_moved(gauges, self._pieces_of))
        constants = []
        for u, (parameter, dim, _, _, atom) in enumerate(self._equations.unknowns):
            if atom is None and (dim is None or not self.still(self._ties.parameters[parameter].dims[dim])):
                constants.append(u)  # segments of a dimension on which nothing acts become one, without constants
        return self._beyond(inside.get(None, ()), None, constants, self._piecewise)

    def _beyond(
        self, known: Iterable[Gauge], c: int | None, variables: Sequence[int], written: Callable[[Vector, int], Vector]
    ) -> list[Gauge]:
        """Returns short gauges of a class (of constants, for None) outside the span of those that are known."""
        bases = []
        for modulus in (0, 2):
            span = Span(modulus, [g.charges for g in known if (g.symmetry.flips if modulus else g.symmetry.scales)])
            basis = [written(v, modulus) for v in kernel(self._forms[modulus].get(c, ()), variables, modulus)]
            bases.append(shortened([vector for vector in basis if span.add(vector)], modulus))
        return _joined(*bases)

    def lost(self, c: int, modulus: int) -> set[int]:
        """Returns unknowns in gauges of scales (0) or signs (2) that a class would have if operations only added."""
        variables = [u for u, other in self._class.items() if other == c]
        span = Span(modulus, kernel(self._forms[modulus].get(c, ()), variables, modulus))
        free = self._sorted(self._equations.forms(modulus, computed=False))
        return {u for vector in kernel(free.get(c, ()), variables, modulus) if span.add(vector) for u in vector}

    def still(self, dim: Dimension) -> bool:
        """Returns whether nothing acts on any entry of a dimension."""
        ties = self._ties
        return ties.fixed(dim) and not any(self.by_class.get(ties.find(i.atom)) for i in indices(dim))

    def _sorted(self, forms: Iterable[Scale]) -> dict[int | None, list[Scale]]:
        """Sorts forms by the class of their unknowns, None for those between constants; those without a class are 0."""
        by_class: dict[int | None, list[Scale]] = {}
        for form in forms:
            first = next(iter(form))
            if self._equations.unknowns[first].atom is None:
                by_class.setdefault(None, []).append(form)
            elif first in self._class:
                by_class.setdefault(self._class[first], []).append(form)
        return by_class

    def _of_parameters(self, vector: Vector, _: int) -> Vector:
        """Returns a vector without the unknowns of zeros."""
        return {u: q for u, q in vector.items() if self._equations.unknowns[u].parameter}

    def _ancestors(self, c: int) -> list[int]:
        above = self._ties.parents.get(c)
        return [] if above is None else [above, *self._ancestors(above)]

    def _owner_in(self, ancestor: int, u: int) -> list[int]:
        """Returns the unknown of the index of a class that a nested one belongs to."""
        while self._class[u] != ancestor:
            u = self._owner[u]
        return [u]

    def _pieces_of(self, u: int) -> list[int]:
        """Returns the numbers of the whole pieces that an index belongs to."""
        parameter, dim, segment, *_ = self._equations.unknowns[u]
        assert dim is not None, "of an axis"
        return [n for n in self.numbers[parameter] if self.pieces[n][1][dim] == segment]

    def _piecewise(self, vector: Vector, modulus: int) -> Vector:
        """Returns constants of parameters and of their segments as those of pieces."""
        constants = {self._equations.unknowns[u][:3]: q for u, q in vector.items()}
        total: Vector = {}
        for n in sorted({n for name, _, _ in constants for n in self.numbers.get(name, ())}):
            name, choice = self.pieces[n]
            q = constants.get((name, None, None), 0)
            q += sum(constants.get((name, d, s), 0) for d, s in enumerate(choice))
            if q % modulus if modulus else q:
                total[n] = q % modulus if modulus else q
        return total


def _moved(gauges: Iterable[Gauge], places: Callable[[int], Iterable[int]]) -> Iterable[Gauge]:
    """Yields gauges as they act on something larger, where they are equal on all items."""
    for gauge in gauges:
        total: Vector = {}
        for u, q in gauge.charges.items():
            for at in places(u):
                total[at] = total.get(at, 0) + q
        yield Gauge(gauge.symmetry, total)


def _joined(scales: Sequence[Vector], signs: Sequence[Vector]) -> list[Gauge]:
    """Returns scale and sign gauges; a scale whose parity is a sign becomes MONOMIAL with it."""
    taken, flips = Span(2), Span(2, signs)
    gauges = []
    for scale in scales:
        odd = {u: 1 for u, q in scale.items() if q % 2}
        both = bool(odd) and odd in flips and taken.add(odd)
        gauges.append(Gauge(Symmetry.MONOMIAL if both else Symmetry.SCALE, scale))
    gauges += [Gauge(Symmetry.SIGN, sign) for sign in signs if taken.add(sign)]
    return gauges
