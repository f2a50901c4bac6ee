"""A weight space as a picture: its nodes on the left, the tensors that join them on the right, charges between."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nfn_monomial.space.axes import powers

from .explain import AlikeNodes, acting_charges, by_charge, charge_text, group_name, rows_of
from .names import folded

if TYPE_CHECKING:
    from nfn_monomial.space.weight_space import WeightSpace

_LINE, _GAP, _LETTER, _BETWEEN = 15, 12, 6.6, 190
_COLOURS = {1: "#1668b8", -1: "#c2571a", 0: "#8a8f98"}  # of charges: up, down, none


class Drawing(str):
    """An SVG image as text; notebooks show it, `save` writes it."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the image to a file, whose name should end in ``.svg``."""
        Path(path).write_text(self, encoding="utf-8")


class _Box(NamedTuple):
    lines: tuple[str, ...]
    top: float
    ends: int = 0

    @property
    def height(self) -> int:
        return _LINE * max(len(self.lines), self.ends) + 10

    @property
    def middle(self) -> float:
        return self.top + self.height / 2

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * _LETTER + 16


def draw(space: WeightSpace) -> Drawing:
    """See `WeightSpace.draw`."""
    rows = rows_of(space)
    row_of = {name: i for i, row in enumerate(rows) for name in row.names}
    joints = _joints(space, row_of)
    nodes = _stacked([(_node_lines(space, row), 0) for row in rows])
    tensors = _stacked([((_cut(", ".join(folded(j.names))),), len(j.ends)) for j in joints])
    left = max(box.width for box in nodes)
    right = max((box.width for box in tensors), default=0)
    height = max((box.top + box.height for box in (*nodes, *tensors)), default=0) + _GAP
    shapes = []
    for box, joint in zip(tensors, joints, strict=True):
        for i, (at, charges) in enumerate(joint.ends):
            y = box.top + box.height / 2 + _LINE * (i - (len(joint.ends) - 1) / 2)
            shapes.append(_curve(left + _GAP, nodes[at].middle, left + _GAP + _BETWEEN, y, charges))
    for box, row in zip(nodes, rows, strict=True):
        shapes.append(_rectangle(box, _GAP, left, "#eef4fb" if row.node.permutes else "#f1f1f1", len(row.names)))
    for box, joint in zip(tensors, joints, strict=True):
        shapes.append(_rectangle(box, left + _GAP + _BETWEEN, right, "#fff", len(joint.names)))
    width = left + _BETWEEN + right + 2 * _GAP
    return Drawing(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="ui-monospace, monospace" font-size="11" style="background:#fff">'
        f"<title>{len(rows)} nodes, "
        f"{len(space.parameters)} tensors</title>" + "".join(shapes) + "</svg>"
    )


class _Joint(NamedTuple):
    """Tensors that join the same rows, with the row and all charges of each end."""

    names: list[str]
    ends: list[tuple[int, set[tuple[int, ...]]]]


def _joints(space: WeightSpace, row_of: dict[str, int]) -> list[_Joint]:
    joints: dict[str, _Joint] = {}
    for link in space.links:
        if len(link.ends) > 1:
            ends = [(row_of[end.node], acting_charges(space.nodes[end.node], powers(end.charge))) for end in link.ends]
            alike = repr([(row, sorted(q for q in charge if q)) for row, charge in ends])
            joint = joints.setdefault(alike, _Joint([], [(row, set()) for row, _ in ends]))
            joint.names.append(link.parameter)
            for (_, charges), (_, charge) in zip(joint.ends, ends, strict=True):
                charges.add(charge)
    return list(joints.values())


def _node_lines(space: WeightSpace, row: AlikeNodes) -> tuple[str, ...]:
    times = f" ({len(row.names)} alike)" if len(row.names) > 1 else ""
    inside = "" if row.node.parent is None else f" in each of {row.node.parent}"
    alone = {link.parameter for link in space.links if len(link.ends) == 1}
    lines = [_cut(" ".join(folded(row.names)[:1]) + times), f"{row.node.size or '?'} {group_name(row.node)}{inside}"]
    lines += [_cut(f"{charge} {', '.join(folded(names))}".strip()) for charge, names in by_charge(row, alone).items()]
    return tuple(lines)


def _stacked(contents: list[tuple[tuple[str, ...], int]]) -> list[_Box]:
    boxes: list[_Box] = []
    top = float(_GAP)
    for lines, ends in contents:
        boxes.append(_Box(lines, top, ends))
        top += boxes[-1].height + _GAP
    return boxes


def _rectangle(box: _Box, x: float, width: float, fill: str, copies: int) -> str:
    size = f'width="{width:.1f}" height="{box.height}" rx="5" fill="{fill}"'
    shapes = [f'<rect x="{x + 3:.1f}" y="{box.top + 3:.1f}" {size} stroke="#8a8f98"/>'] if copies > 1 else []
    shapes.append(f'<rect x="{x:.1f}" y="{box.top:.1f}" {size} stroke="#5a6472"/>')
    for i, line in enumerate(box.lines):
        weight = "normal" if i else "600"
        y = box.top + 16 + _LINE * i
        shapes.append(f'<text x="{x + 8:.1f}" y="{y:.1f}" font-weight="{weight}">{escape(line)}</text>')
    return "".join(shapes)


def _curve(x1: float, y1: float, x2: float, y2: float, charges: set[tuple[int, ...]]) -> str:
    total = next((q for charge in charges for q in charge if q), 0)
    colour, bend = _COLOURS[(total > 0) - (total < 0)], (x1 + x2) / 2
    return (
        f'<path d="M{x1:.1f} {y1:.1f} C{bend:.1f} {y1:.1f} {bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}" fill="none" '
        f'stroke="{colour}" stroke-width="1.4"/><text x="{x2 - 4:.1f}" y="{y2 - 3:.1f}" text-anchor="end" '
        f'paint-order="stroke" stroke="#fff" stroke-width="3" fill="{colour}">{escape(charge_text(charges))}</text>'
    )


def _cut(text: str) -> str:
    return text if len(text) <= 64 else f"{text[:63]}…"
