"""Classes and gauges as nodes, axes and charges, with names that tell where they come from."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from nfn_monomial.space.axes import Axis, Dim, Sum
from nfn_monomial.space.nodes import TAKEN, Node
from nfn_monomial.space.origin import Dead, Loss, NodeReport, Origin
from nfn_monomial.symmetry import Symmetry

from .algebra.equations import Equations
from .algebra.ties import POSITIONS, Ties
from .algebra.values import Dimension, Index, Segment, blocks, extent, indices_of, is_unit
from .graph import Program
from .solve.gauges import Gauge, Gauges

_MOST_LOSSES = 3
Part = Axis | int | tuple[Axis | int, ...]
Entries: TypeAlias = tuple[str, tuple[int, ...]]
"""A part of a parameter: its name, and for each dimension the number of a segment; -1 for all those entries
of a FIXED vector that have no gradient, where others have one."""


class Ending(NamedTuple):
    """The end of a change of a part.

    Attributes:
        reason: ``"module.path: operator: reason"``.
        places: the part's entries along each dimension.
    """

    reason: str
    places: list[Tensor]


class Writer:
    """The nodes and dimensions of a derivation.

    Args:
        program: that was run.
        ties, equations: what the two passes over it returned.
        gauges: of the classes of index sets.
        dead: parts of parameters that do not matter.

    Attributes:
        nodes, parameters: see `Derivation`.
    """

    def __init__(
        self, program: Program, ties: Ties, equations: Equations, gauges: Gauges, dead: Mapping[Entries, Ending]
    ) -> None:
        self._ties, self._equations, self._gauges, self._dead = ties, equations, gauges, dead
        self._parents, self._above, self._unused = ties.parents, set(ties.parents.values()), program.unused
        kept = [
            name
            for name, parameter in ties.parameters.items()
            if name not in program.optional or not all(map(self._fixed, indices_of(parameter)))
        ]
        reads: dict[str, int] = {}  # parameter -> number of the first operation that reads it
        for n, (_, values) in enumerate(ties.operations):
            for value in values:
                for u in (u for index in indices_of(value) for u in index.sources) if value.raw else ():
                    reads.setdefault(equations.unknowns[u].parameter, n)
        order = sorted(kept, key=lambda name: reads.get(name, len(ties.operations)))
        self._parameters = {name: ties.parameters[name] for name in order}
        # Class, FIXED ones too -> unknowns on it and their parameters, in the order of execution.
        self._uses: dict[int, list[tuple[int, str]]] = {}
        for name, parameter in self._parameters.items():
            for index in indices_of(parameter):
                self._uses.setdefault(ties.find(index.atom), []).append((min(index.sources), name))
        self._flowing = {c: self._with_flow(c, gauges.by_class[c]) for c in self._uses if c in gauges.by_class}
        # Unknown of an axis -> its charge in every gauge of its class.
        self._charge_of = {
            u: tuple(gauge.charges.get(u, 0) for gauge in flowing)
            for c, flowing in self._flowing.items()
            for u, _ in self._uses[c]
        }
        self._names: dict[tuple[int, ...], str] = {}
        self._entries: dict[int, str] = {}
        self._constants = {n: f"c{n + 1}" for n in range(len(gauges.constants))}
        self._name_all()
        written = {name: self._dims(name) for name in self._parameters}
        self.parameters = {name: written[name] for name in ties.parameters if name in written}
        self.nodes = self._nodes()

    # What is where.

    def _fixed(self, index: Index) -> bool:
        return self._ties.cause(index.atom) is not None

    def _still(self, index: Index) -> bool:
        """Returns whether no group acts on an index, nor on what is nested in it."""
        return self._ties.find(index.atom) not in self._above and self._gauges.still(((Segment((index,))),))

    def _flow(self, u: int) -> int:
        return self._ties.flows.get(u, 1)

    def _with_flow(self, c: int, gauges: Sequence[Gauge]) -> list[Gauge]:
        """Turns gauges so that rows have the positive charge, and puts one for the flow first, if none of them is it.

        Entries of FIXED classes have that one beside them.
        """
        flow = {u: self._flow(u) for u, _ in self._uses[c]}
        turned = []
        for gauge in gauges:
            along = sum(flow.get(u, 0) * q for u, q in gauge.charges.items())
            backwards = along < 0 or (along == 0 and next(iter(gauge.charges.values())) < 0)
            sign = -1 if gauge.symmetry.scales and backwards else 1
            turned.append(Gauge(gauge.symmetry, {u: sign * q for u, q in gauge.charges.items()}))
        if self._ties.cause(c) is not None:
            return turned
        if len(turned) == 1:
            only = turned[0]
            if all(only.charges.get(u, 0) == f for u, f in flow.items()):
                return turned
            if not only.symmetry.scales and all(only.charges.get(u, 0) == f % 2 for u, f in flow.items()):
                return [Gauge(only.symmetry, flow)]
        return [Gauge(Symmetry.PERMUTATION, flow), *turned]

    # Names.

    def _name_all(self) -> None:
        taken = {*self._constants.values(), *TAKEN}
        keys: dict[tuple[int, ...], list[tuple[str, int, bool]]] = {}
        for name, parameter in self._parameters.items():
            for dim in parameter.dims:
                for s, segment in enumerate(dim):
                    for group in self._grouped(dim, segment):
                        if not self._is_size(segment, group):
                            flow = self._flow(min(group[0].sources))
                            number = s if len(dim) > 1 else -1
                            keys.setdefault(self._key(group), []).append((name, number, flow > 0))
        for key, seen in keys.items():
            cause = self._ties.cause(key[0])
            rows = [entry for entry in seen if entry[2]]
            name, number, _ = (rows or seen)[0]
            stem = _stem(name) + (f"_{number}" if number >= 0 else "")
            of_whole = cause is not None and (cause.reason == "output" or (cause.reason == "input" and not rows))
            if cause is not None and of_whole and cause.operation.isidentifier():  # no operation, but the name of it
                stem = cause.operation
            elif not rows:
                stem += "_in"
            if key[0] in self._above:
                stem += "_heads"
            self._names[key] = _unique(stem, taken)
            if cause is not None and self._flowing.get(key[0]):
                self._entries[key[0]] = _unique(f"{self._names[key]}_entries", taken)

    def _key(self, group: Sequence[Index]) -> tuple[int, ...]:
        return tuple(self._ties.find(index.atom) for index in group)

    def _grouped(self, dim: Dimension, segment: Segment) -> list[tuple[Index, ...]]:
        """Groups the indices of a segment: adjacent FIXED ones are one, except where segments share some."""
        groups: list[tuple[Index, ...]] = []
        size, leads = 1, {segment.lead for segment in dim}
        for index in segment.indices:
            if groups and all(map(self._still, (index, groups[-1][-1]))) and size not in leads:
                groups[-1] = (*groups[-1], index)
            else:
                groups.append((index,))
            size *= index.size
        return groups

    def _is_size(self, segment: Segment, group: Sequence[Index]) -> bool:
        """Returns whether FIXED indices are written as a number: kernels, and positions in a product with channels."""
        if not self._still(group[0]):
            return False
        causes = [self._ties.cause(index.atom) for index in group]
        return len(group) < len(segment.indices) or all(c is not None and c.reason in POSITIONS for c in causes)

    # Dimensions.

    def _dims(self, name: str) -> tuple[Dim, ...]:
        parameter = self._parameters[name]
        extra = self._constant_axes(name)
        if (some := self._dead.get((name, (-1,)))) is not None and self._gauges.still(parameter.dims[0]):
            runs = self._runs(name, some)
            return (Sum(tuple(_one((length, *extra.get((0, 0), []))) for length, _ in runs)),)
        parts = math.prod(map(len, parameter.dims))
        apart = 0 < sum(other == name for other, _ in self._dead) < parts  # a part that does not matter is a piece
        dims: list[Dim] = []
        for d, dim in enumerate(parameter.dims):
            constants = [extra.get((d, s), []) for s in range(len(dim))]
            if len(dim) > 1 and self._gauges.still(dim) and not apart:
                dims.append(_one((extent(dim), *constants[0])))
            else:
                factors = [(*self._factors(dim, s), *more) for s, more in zip(dim, constants, strict=True)]
                dims.append(self._sum(dim, dim, factors))
        return tuple(dims)

    def _runs(self, name: str, some: Ending) -> list[tuple[int, bool]]:
        """Returns the lengths of the parts of a vector of which some entries are dead, and whether each part is."""
        dead = torch.zeros(extent(self._parameters[name].dims[0]), dtype=torch.bool)
        dead[some.places[0]] = True
        return [(len(list(run)), one) for one, run in itertools.groupby(dead.tolist())]

    def _sum(self, dim: Dimension, segments: Dimension, parts: Sequence[Sequence[Axis | int]]) -> Dim:
        """Writes some segments of a dimension, with the factors of each."""
        if len(segments) == 1:
            return _one(parts[0])
        lead = min(segment.lead for segment in segments[1:])
        ends = [0, *itertools.accumulate(map(len, blocks(segments, lead)))]
        sums = [self._sum(dim, segments[a:b], parts[a:b]) for a, b in itertools.pairwise(ends)]
        factors = [math.prod(index.size for index in group) for group in self._grouped(dim, segments[0])]
        shared = sum(size <= lead for size in itertools.accumulate(factors, operator.mul)) if lead > 1 else 0
        return Sum(tuple(sums), shared)

    def _factors(self, dim: Dimension, segment: Segment) -> Iterable[Axis | int]:
        if is_unit((segment,)):
            return (1,)
        factors: list[Axis | int] = []
        entries: list[Axis | int] = []  # after all others where segments share some: they are none of these
        for group in self._grouped(dim, segment):
            if self._is_size(segment, group):
                factors.append(math.prod(index.size for index in group))
            else:
                axis, *beside = self._axes(group)
                factors.append(axis)
                (factors if all(part.lead == 1 for part in dim) else entries).extend(beside)
        return [*factors, *entries]

    def _axes(self, group: Sequence[Index]) -> Iterable[Axis]:
        """Yields the axis of a group of indices, and a second one for what acts on its entries if they are FIXED."""
        u, name = min(group[0].sources), self._names[self._key(group)]
        charge = self._charge_of.get(u, (0,))
        if not self._fixed(group[0]):
            yield Axis(name, charge if len(charge) > 1 else charge[0])
            return
        yield Axis(name, self._flow(u))
        if any(charge):
            yield Axis(self._entries[self._ties.find(group[0].atom)], charge if len(charge) > 1 else charge[0])

    def _constant_axes(self, name: str) -> dict[tuple[int, int], list[Axis]]:
        """Returns axes on nodes of size 1, by dimension and segment."""
        axes: dict[tuple[int, int], list[Axis]] = {}
        numbers = {self._gauges.pieces[n][1]: n for n in self._gauges.numbers[name]}
        rank = len(self._parameters[name].dims)
        for c, gauge in enumerate(self._gauges.constants):
            base = gauge.charges.get(numbers[(0,) * rank], 0)
            for d, dim in enumerate(self._parameters[name].dims):
                for s in range(len(dim)):
                    choice = tuple(s if n == d else 0 for n in range(rank))
                    q = gauge.charges.get(numbers[choice], 0) - (base if d else 0)
                    if q:
                        axes.setdefault((d, s), []).append(Axis(self._constants[c], q))
        return axes

    # Nodes.

    def _nodes(self) -> dict[str, Node]:
        inputs: dict[str, Node] = {}
        hidden: dict[str, Node] = {}
        outputs: dict[str, Node] = {}
        for key, name in self._names.items():
            cause = self._ties.cause(key[0])
            size = self._ties.atoms.extent(key)
            if cause is not None:
                place = inputs if cause.reason == "input" else outputs if cause.reason == "output" else hidden
                place[name] = Node((Symmetry.FIXED,), size)
                if key[0] in self._entries:
                    gauges = tuple(gauge.symmetry for gauge in self._flowing[key[0]])
                    place[self._entries[key[0]]] = Node(gauges, 1, name)
                continue
            parent = self._parents.get(key[0])
            above = None if parent is None else self._names[(parent,)]
            hidden[name] = Node(tuple(gauge.symmetry for gauge in self._flowing[key[0]]), size, above)
        for n, gauge in enumerate(self._gauges.constants):
            hidden[self._constants[n]] = Node((gauge.symmetry,), 1)
        return inputs | hidden | outputs

    # What there is to say.

    def origin(self) -> Origin:
        """Returns nodes, losses, dead parameters, unknown operators, and those for which the example is too short."""
        operations: dict[int, dict[str, None]] = {}
        for operation, values in self._ties.operations:
            for value in values:
                for index in indices_of(value):
                    operations.setdefault(self._ties.find(index.atom), {})[operation] = None
        names = {name: key for key, name in self._names.items()}
        nodes = []
        for name, node in self.nodes.items():
            key = names.get(name, ())
            tensors = tuple(dict.fromkeys(parameter for atom in key for _, parameter in self._uses.get(atom, ())))
            through = tuple(dict.fromkeys(op for atom in key for op in operations.get(atom, ())))
            nodes.append(NodeReport(name, node.size or 0, node.gauges, node.parent, tensors, through))
        dead = [Dead(name, "no operation reads it", True) for name in self._unused]
        ties = self._ties
        unknown, short, probed = (tuple(dict.fromkeys(labels)) for labels in (ties.unknown, ties.short, ties.probed))
        return Origin(tuple(nodes), tuple(self._losses()), (*dead, *self._ignored()), unknown, short, probed=probed)

    def _ignored(self) -> Iterable[Dead]:
        """Yields parameters, or pieces of them, all of whose parts do not matter."""
        for name, dims in self.parameters.items():
            if (some := self._dead.get((name, (-1,)))) is not None and isinstance(dims[0], Sum):
                dead = [n for n, (_, one) in enumerate(self._runs(name, some)) if one]
                yield from (Dead(f"{name}[{n}]", some.reason, False) for n in dead)
                continue
            endings: dict[str, list[Ending | None]] = {}
            for choice in itertools.product(*(range(len(dim)) for dim in self._parameters[name].dims)):
                piece = ",".join(str(n) for n, dim in zip(choice, dims, strict=True) if isinstance(dim, Sum))
                endings.setdefault(f"{name}[{piece}]" if piece else name, []).append(self._dead.get((name, choice)))
            for piece, parts in endings.items():
                if parts[0] is not None and None not in parts:
                    yield Dead(piece, parts[0].reason, False)

    def _losses(self) -> Iterable[Loss]:
        first_causes = self._equations.causes(0), self._equations.causes(2)
        for key, name in self._names.items():
            cause = self._ties.cause(key[0])
            if cause is not None:
                yield Loss(name, "permutation", cause.operation, cause.reason)
                continue
            node = self.nodes[name]
            for n, (symmetry, there) in enumerate((("scale", node.scales), ("sign", node.flips))):
                causes = first_causes[n]
                lost = [u for u, _ in self._uses[key[0]] if u in causes]
                if there:  # of several gauges one may have what another has lost
                    gone = self._gauges.lost(key[0], 2 * n) if len(node.gauges) > 1 and lost else set()
                    lost = [u for u in lost if u in gone]
                for operation, reason in list(dict.fromkeys(causes[u] for u in lost))[:_MOST_LOSSES]:
                    yield Loss(name, symmetry, operation, reason)


def _stem(parameter: str) -> str:
    """Returns the name of a node whose rows a parameter has: ``layer1.0.conv1.weight`` -> ``layer1_0_conv1``."""
    stem = re.sub(r"\.parametrizations\.(\w+)\.original\d*$", r".\1", "." + parameter)
    stem = re.sub(r"[._](weight|bias)(_[gv])?$", "", stem).strip(".")
    stem = re.sub(r"\W", "_", stem)
    if not stem:
        return "h"
    return stem if stem.isidentifier() else f"layer{stem}"


def _unique(stem: str, taken: set[str]) -> str:
    """Returns a name that is not taken, and takes it."""
    name, n = stem, 2
    while name in taken:
        name, n = f"{stem}_{n}", n + 1
    taken.add(name)
    return name


def _one(factors: Sequence[Axis | int]) -> Part:
    """Returns factors as a dimension, without a 1 beside others."""
    kept = [f for f in factors if f != 1] or [1]
    return kept[0] if len(kept) == 1 else tuple(kept)
