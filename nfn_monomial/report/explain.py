"""A weight space in words: its nodes and their groups, where symmetry was lost, and why; repetitions folded."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from nfn_monomial.space.axes import Axis, powers
from nfn_monomial.space.nodes import Node
from nfn_monomial.space.origin import Loss, Origin
from nfn_monomial.symmetry import Symmetry

if TYPE_CHECKING:
    from nfn_monomial.space.weight_space import WeightSpace
from .names import folded, kind_of, pattern_of, ranges

_MOST = 6  # names in a cell, after folding
_SCREENS = 100  # lines that two screens hold
_WIDTH = 118
Fold: TypeAlias = Callable[[Iterable[str]], list[str]]
_STILL = (Symmetry.PERMUTATION, Symmetry.FIXED)
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


class AlikeNodes(NamedTuple):
    """Nodes that are alike, as those of repeated blocks.

    Attributes:
        names: of the nodes.
        nodes: in the same order.
        tensors: a piece of a parameter for each axis on them, and the charges of the axis that act.
    """

    names: tuple[str, ...]
    nodes: tuple[Node, ...]
    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def node(self) -> Node:
        """The first of them."""
        return self.nodes[0]

    @property
    def parent(self) -> str | None:
        """The node that they are nested in, without its numbers."""
        return None if self.node.parent is None else pattern_of(self.node.parent)


def _grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _merged(rows: Iterable[AlikeNodes], alike: Callable[[AlikeNodes], Hashable]) -> list[AlikeNodes]:
    groups = _grouped(rows, alike).values()
    return [
        AlikeNodes(*(tuple(itertools.chain.from_iterable(part)) for part in zip(*rows, strict=True))) for rows in groups
    ]


def rows_of(space: WeightSpace) -> list[AlikeNodes]:
    """Returns all nodes, with those together that have one group and tensors whose names differ in numbers alone."""
    tensors_of: dict[str, list[tuple[str, tuple[int, ...]]]] = {name: [] for name in space.nodes}
    for piece, axes in space.axes.items():
        inner = {space.nesting.get(axis.node) for axis in axes if isinstance(axis, Axis)}
        for axis in axes:
            if isinstance(axis, Axis) and not (axis.node in inner and not any(powers(axis.charge))):
                tensors_of[axis.node].append((piece, acting_charges(space.nodes[axis.node], powers(axis.charge))))

    def alike(row: AlikeNodes) -> Hashable:
        tensors = tuple(sorted((pattern_of(piece), charge) for piece, charge in row.tensors))
        return row.node.gauges, row.node.size, row.parent, tensors

    return _merged((AlikeNodes((name,), (node,), tuple(tensors_of[name])) for name, node in space.nodes.items()), alike)


def outlined(rows: Iterable[AlikeNodes]) -> list[AlikeNodes]:
    """Merges rows of nodes with one kind of symmetry whose first tensor is the same in every block.

    Blocks may repeat them with other sizes, and any number of other blocks may read them.
    """

    def alike(row: AlikeNodes) -> Hashable:
        first = next((kind_of(piece) for piece, _ in row.tensors), row.names[0])
        return row.node.symmetry, row.parent, first

    return _merged(rows, alike)


def group_name(*nodes: Node) -> str:
    """Writes the group of nodes, as ``S(64) scale x2, sign``; of nested ones, in each of their parent's neurons."""
    if not nodes[0].permutes:
        return "fixed"
    gauges = []
    for kind in (Symmetry.SCALE, Symmetry.SIGN, Symmetry.MONOMIAL):
        counts = [node.gauges.count(kind) for node in nodes]
        if any(counts):
            gauges.append(kind.name.lower() + ("" if {*counts} == {1} else f" x{_extent(counts)}"))
    return f"S({_extent([node.size for node in nodes], 'n')})" + (f" {', '.join(gauges)}" if gauges else "")


def _extent(numbers: Sequence[int | None], unknown: str = "?") -> str:
    known = sorted({n for n in numbers if n is not None})
    return unknown if not known else f"{known[0]}" if len(known) == 1 else f"{known[0]}-{known[-1]}"


def explain(space: WeightSpace, origin: Origin | None = None, *, full: bool = False) -> str:
    """See `WeightSpace.explain`."""
    rows = rows_of(space)
    text = _text(space, rows, origin, folded, full=full)
    lines = text.count("\n") + 1
    if full or lines <= _SCREENS:
        return text
    note = (
        f"Alike here are blocks of any size, read by any number of others: explain(full=True) tells all, {lines} lines"
    )
    return f"{_text(space, outlined(rows), origin, ranges)}\n\n{note}"


def _text(
    space: WeightSpace, rows: Sequence[AlikeNodes], origin: Origin | None, fold: Fold, *, full: bool = False
) -> str:
    ran = {} if origin is None else {node.name: node.operations for node in origin.nodes}
    table = [("node", "size", "group", "runs through")]
    below: list[list[str]] = [["    its tensors, by their charges"]]
    for row in rows:
        operations = dict.fromkeys(_kind(op) for name in row.names for op in ran.get(name, ()))
        tensors = [f"{charge} {_cell(pieces, fold)}".strip() for charge, pieces in by_charge(row).items()]
        times = f" ({len(row.names)} alike)" if len(row.names) > 1 else ""
        inside = "" if row.node.parent is None else f" in each of {' '.join(_short([row.node.parent], fold))}"
        size = _extent([node.size for node in row.nodes])
        name = " ".join(_short(row.names, fold)) + times
        table.append((name, size, group_name(*row.nodes) + inside, ", ".join(operations)))
        below.append([_wrapped(line, "    ") for line in tensors])
    parts = [_headline(space), _aligned(table, below)]
    if space.ties:
        parts.append(_wrapped(f"Tied: {', '.join(fold(f'{name} to {first}' for name, first in space.ties.items()))}"))
    if origin is not None:
        if losses := [loss for loss in origin.losses if loss.reason not in ("input", "output")]:
            parts.append(_losses(losses, fold))
        for title, left_out in (("Does not matter to the function", False), ("Not in the space", True)):
            if those := [dead for dead in origin.dead if dead.left_out == left_out]:
                reasons = "; ".join(dict.fromkeys(dead.reason for dead in those))
                names = [dead.parameter for dead in those]  # each of those that are left out, if all is to be said
                parts.append(_wrapped(f"{title}: {', '.join(names if full and left_out else fold(names))} ({reasons})"))
        if origin.unknown:
            listed = ", ".join(fold(origin.unknown))
            parts.append(f"Operators without a rule: {listed}; give them one with register_operator(name, rule)")
        if origin.probed:
            parts.append(
                _wrapped(
                    f"Probed: {', '.join(fold(origin.probed))}. Operators without a rule are run alone on random "
                    "tensors: the group has the permutations that they keep there; register_operator(name, rule) can "
                    "add to it"
                )
            )
        if origin.short:
            parts.append(
                _wrapped(
                    f"Too short to tell: {', '.join(fold(origin.short))}. The example has one place there; what they "
                    "make is FIXED, and nothing in front of them counts as dead. Give an example with two or more"
                )
            )
        if origin.tested:
            parts.append(_wrapped(origin.tested))
    return "\n\n".join(parts)


def _kind(operation: str) -> str:
    """Returns the operator of ``module.path: operator``."""
    return operation.rsplit(": ", 1)[-1]


def _headline(space: WeightSpace) -> str:
    free = [node for node in space.nodes.values() if node.permutes]
    known = all(node.size is not None for node in space.nodes.values())
    scalings = f", {space.group_dimension} independent scalings" if known else ""
    count = len(space.parameters)
    return f"{count} parameter tensors on {len(space.nodes)} nodes, {len(free)} of them permuted{scalings}"


def _short(names: Sequence[str], fold: Fold) -> list[str]:
    short = fold(names)
    return short if len(short) <= 2 else [short[0], f"and {len(short) - 1} more"]


def _cell(names: Sequence[str], fold: Fold) -> str:
    short = fold(names)
    more = [] if len(short) <= _MOST else [f"{len(short) - _MOST} more"]
    return ", ".join(short[:_MOST] + more)


def by_charge(row: AlikeNodes, only: Container[str] | None = None) -> dict[str, list[str]]:
    """Returns charges as text -> the tensors on a row's nodes that have them, in whichever of several gauges."""
    tensors = (tensor for tensor in row.tensors if only is None or tensor[0] in only)
    groups = _grouped(tensors, lambda tensor: tuple(sorted(q for q in tensor[1] if q))).values()
    return {charge_text({acting for _, acting in pieces}): [piece for piece, _ in pieces] for pieces in groups}


def acting_charges(node: Node, charge: Sequence[int]) -> tuple[int, ...]:
    """Returns a charge without the gauges that only say which way a network runs."""
    return tuple([q for gauge, q in zip(node.gauges, charge, strict=True) if gauge not in _STILL])


def charge_text(charges: Collection[tuple[int, ...]]) -> str:
    """Writes charges that are alike but for the gauge, as ``[+1]``, or ``[+1 in gauge 2]`` where all have the same."""
    first = next(iter(charges))
    if not first:
        return ""
    shown = [
        f"{q:+d} in gauge {i}" if len(first) > 1 and len(charges) == 1 else f"{q:+d}"
        for i, q in enumerate(first, 1)
        if q
    ]
    return f"[{', '.join(shown) or '0'}]"


def _losses(losses: Sequence[Loss], fold: Fold) -> str:
    table = [("operation", "cost", "why", "where", "node")]
    alike = _grouped(losses, lambda loss: (_kind(loss.operation), loss.symmetry, loss.reason))
    for (kind, cost, reason), group in alike.items():
        where = [loss.operation.rsplit(": ", 1)[0] for loss in group if ": " in loss.operation]
        table.append((kind, cost, reason, _cell(where, fold), _cell([loss.node for loss in group if loss.node], fold)))
    return "What operations cost\n" + _aligned(table)


def _aligned(table: Sequence[tuple[str, ...]], below: Sequence[Sequence[str]] = ()) -> str:
    """Writes a table with lines below its rows, and wraps the widest columns until a line fits."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    room = _WIDTH - 2 * (len(widths) - 1)
    while sum(widths) > room and max(widths) > 12:
        widths[max(range(len(widths)), key=widths.__getitem__)] -= 1
    lines = []
    for i, row in enumerate(table):
        cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        wrapped = itertools.zip_longest(*cells, fillvalue="")
        lines += ["  ".join(map(str.ljust, line, widths)).rstrip() for line in wrapped]
        lines += below[i] if below else ()
        if not i:
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _wrapped(line: str, indent: str = "") -> str:
    return textwrap.fill(
        line, _WIDTH, initial_indent=indent, subsequent_indent=indent + "    " * bool(indent),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
