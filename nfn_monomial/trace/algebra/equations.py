"""The equations that a program demands of log-scales and signs, as a value: what `demand` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .atoms import Cause
from .forms import Form, Scale


class Unknown(NamedTuple):
    """One unknown: of an axis of a parameter (``atom``), or constant on one of its segments or on all of it.

    Attributes:
        parameter: its name; none for the unknown form of zeros.
        dim, segment, position: of the index; for a constant, position is None, and so are dim and segment for that of
            the whole parameter.
        atom: of the index.
    """

    parameter: str
    dim: int | None
    segment: int | None
    position: int | None
    atom: int | None

    def __str__(self) -> str:
        """``up.weight[0]`` for an axis, ``up.weight[0.2.1]`` for the index 1 of its part 2, ``up.weight`` for all."""
        place = [n for n in (self.dim, self.segment, self.position) if n is not None]
        short = place[:1] if place[1:] == [0, 0] else place
        return (self.parameter or "zeros") + (f"[{'.'.join(map(str, short))}]" if short else "")


class Demand(NamedTuple):
    """One equation, ``form = 0``.

    Attributes:
        form: of log-scales and of signs.
        operation: that demands it, ``"module.path: operator"``.
        reason: in a few words, where the operation demands it because of what it computes; where it is only that two
            things are added, or summed over, there is none.
    """

    form: Form
    operation: str
    reason: str


@dataclass(frozen=True)
class Equations:
    """All equations of a program. Their solutions are the scales and signs that leave its function as it is.

    Attributes:
        unknowns: by number; those of parameters, and those of zeros.
        demands: in the order of execution.
    """

    unknowns: Sequence[Unknown]
    demands: Sequence[Demand]

    def forms(self, modulus: int, *, computed: bool = True) -> Iterator[Scale]:
        """Yields the forms that have to vanish: of log-scales (``modulus`` 0) or of signs (2).

        Args:
            modulus: which.
            computed: False leaves out those that an operation demands because of what it computes.
        """
        for form, _, reason in self.demands:
            part = dict.fromkeys(form.sign, 1) if modulus else form.scale
            if part and (computed or not reason):
                yield part

    def causes(self, modulus: int) -> Mapping[int, Cause]:
        """Returns, for every unknown, the first operation that wants a form with it to vanish for a reason."""
        first: dict[int, Cause] = {}
        for form, operation, reason in self.demands:
            for u in (form.sign if modulus else form.scale) if reason else ():
                first.setdefault(u, Cause(operation, reason))
        return first

    def __str__(self) -> str:
        """One line for each equation: ``up: linear: enter.weight[0] + up.weight[1] = 0 in scale and sign``."""
        return "\n".join(dict.fromkeys(line for demand in self.demands for line in self._in_words(demand)))

    def _in_words(self, demand: Demand) -> Iterator[str]:
        (scale, sign), operation, reason = (demand.form.scale, demand.form.sign), demand.operation, demand.reason
        kinds = [("scale", scale), ("sign", dict.fromkeys(sorted(sign), 1))]
        if set(scale) == sign and set(map(abs, scale.values())) <= {1}:
            kinds = [("scale and sign", scale)]
        for kind, form in kinds:
            terms = [(q > 0, ("" if abs(q) == 1 else f"{abs(q)} ") + str(self.unknowns[u])) for u, q in form.items()]
            left, right = (" + ".join(term for positive, term in terms if positive == side) for side in (True, False))
            if form:
                yield f"{operation}: {left or 0} = {right or 0} in {kind}" + (f" ({reason})" if reason else "")
