"""Gauges of every index set: the two kernels of the equations that a program demands."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nfn_monomial.space.trace.algebra.forms import Scale
from nfn_monomial.space.trace.algebra.moves import Run
from nfn_monomial.space.trace.algebra.values import Value
from nfn_monomial.symmetry import Symmetry

from .kernels import Span, Vector, kernel, shortened
from .nests import parent_index

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
        gauges: class -> its gauges. FIXED classes have none.
        constants: gauges that act on all of a parameter: `Gauge.charges` has numbers of ``pieces``.
        pieces: all pieces of parameters.
        numbers: parameter -> numbers of its pieces.
    """

    def __init__(self, run: Run, roots: Mapping[str, Value], parents: Mapping[int, int]) -> None:
        self._run, self._roots, self._parents = run, roots, parents
        self._class = {
            u: run.atoms.find(found.atom)
            for u, found in enumerate(run.unknowns)
            if found.atom is not None and run.atoms.cause(found.atom) is None
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
            single = [dim[0] for dim in root.dims if len(dim) == 1]
            for dim in root.dims:
                for segment in dim:
                    others = [other for other in single if other is not segment]
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
        constants = [u for u, found in enumerate(self._run.unknowns) if found.atom is None and not self._uniform(u)]
        scales = self._sorted(self._run.equations.scales)
        signs = self._sorted([dict.fromkeys(sign, 1) for sign in self._run.equations.signs])
        inside: dict[int, list[tuple[list[Vector], list[Vector]]]] = {}
        for found in sorted(variables, key=lambda c: len(self._ancestors(c)), reverse=True):
            images = inside.get(found, [])
            bases = [
                _beyond(
                    self._owned(kernel(eqs.get(found, ()), variables[found], m)),
                    [v for i in images for v in i[m // 2]],
                    m,
                )
                for m, eqs in ((0, scales), (2, signs))
            ]
            self.gauges[found] = _joined(bases[0], bases[1])
            for above in self._ancestors(found):
                inside.setdefault(above, []).append(self._image(found, above))
        images = [self._on_pieces(found) for found in variables]
        bases = [
            _beyond(
                [self._piecewise(vector, m) for vector in kernel(eqs.get(None, ()), constants, m)],
                [v for image in images for v in image[m // 2]],
                m,
            )
            for m, eqs in ((0, scales), (2, signs))
        ]
        self.constants = _joined(bases[0], bases[1])

    def _uniform(self, u: int) -> bool:
        """Whether a constant belongs to a segment of a dimension of which all parts are FIXED: such become one."""
        found = self._run.unknowns[u]
        return found.dim is not None and self._run.fixed(self._roots[found.parameter].dims[found.dim])

    def _sorted(self, equations: Iterable[Scale]) -> dict[int | None, list[Scale]]:
        """Equations by the class of their unknowns, None for those between constants; unknowns of FIXED ones are 0."""
        found: dict[int | None, list[Scale]] = {}
        unknowns = self._run.unknowns
        for equation in equations:
            first = next(iter(equation))
            if unknowns[first].atom is None:
                found.setdefault(None, []).append(equation)
            elif first in self._class:
                found.setdefault(self._class[first], []).append(equation)
        return found

    def _owned(self, basis: Iterable[Vector]) -> list[Vector]:
        """What vectors say of parameters."""
        return [{u: q for u, q in vector.items() if self._run.unknowns[u].parameter} for vector in basis]

    def _ancestors(self, found: int) -> list[int]:
        above = self._parents.get(found)
        return [] if above is None else [above, *self._ancestors(above)]

    def _image(self, child: int, ancestor: int) -> tuple[list[Vector], list[Vector]]:
        """Gauges of a nested class as they act on one above it, equal on all items in each of its own."""

        def owner(u: int) -> int:
            while self._class[u] != ancestor:
                u = self._above[u]
            return u

        return self._images(self.gauges[child], owner)

    def _images(self, gauges: Iterable[Gauge], place: object) -> tuple[list[Vector], list[Vector]]:
        scales, signs = [], []
        for gauge in gauges:
            total: Vector = {}
            for u, q in gauge.charges.items():
                for at in _several(place(u)):  # type: ignore[operator]
                    total[at] = total.get(at, 0) + q
            if gauge.symmetry.scales:
                scales.append(total)
            if gauge.symmetry.flips:
                signs.append(total)
        return scales, signs

    def _on_pieces(self, found: int) -> tuple[list[Vector], list[Vector]]:
        """Gauges of a class as they act on whole pieces, where they are equal on all items."""

        def place(u: int) -> list[int]:
            unknown = self._run.unknowns[u]
            assert unknown.dim is not None, "of an axis"
            return [n for n in self.numbers[unknown.parameter] if self.pieces[n][1][unknown.dim] == unknown.segment]

        return self._images(self.gauges[found], place)

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


def _several(place: int | Sequence[int]) -> Sequence[int]:
    return (place,) if isinstance(place, int) else place


def _pieces(name: str, root: Value) -> list[Entry]:
    return [(name, choice) for choice in itertools.product(*(range(len(dim)) for dim in root.dims))]


def _beyond(basis: Sequence[Vector], images: Iterable[Vector], modulus: int) -> list[Vector]:
    """Vectors of a basis outside the span of others, short ones."""
    span = Span(modulus, images)
    return shortened([vector for vector in basis if span.add(vector)], modulus)


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
