"""Which items of which nodes every entry of a parameter belongs to, read from a network's hand-written dimensions."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from networks.zoo import Network
from torch import Tensor

Label = tuple[str, tuple[int, ...]]
"""A node and the path of one of its items, those of its parents first; names of fixed dimensions count as nodes."""


class Place(NamedTuple):
    """A dimension of a parameter, a segment of it, an atom of its product."""

    parameter: str
    dim: int
    segment: int
    atom: int


class Labels:
    """For every parameter a list, one element per entry: the entry's label at each of its places."""

    def __init__(self, network: Network, shapes: Mapping[str, torch.Size]) -> None:
        self.network, self.shapes = network, dict(shapes)
        names = {*shapes, *(name.removesuffix(".weight") for name in shapes)}
        unused = [p for p in network.dims if not any(fnmatchcase(name, p) for name in names)]
        assert not unused, f"{network.name}: no parameter is called {unused}"
        self.entries = {name: self._read(name, shape) for name, shape in self.shapes.items()}

    def _said(self, name: str) -> list[str] | None:
        """What the network says of a parameter's dimensions."""
        for pattern, text in self.network.dims.items():
            if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.weight"):
                return text.split()
        return None

    def _text(self, name: str, shape: torch.Size) -> list[str]:
        words = self._said(name)
        if words is None and "bias" in name and (weight := name.replace("bias", "weight")) in self.shapes:
            words = (self._said(weight) or [])[:1]
        if words:
            return words + list(map(str, shape[len(words) :]))
        nodes = self.network.nodes
        nesting = {n.parent for n in nodes.values()}
        roots = {n.size: name for name, n in nodes.items() if n.parent is None and name not in nesting}
        # Dimensions behind the second are those of kernels.
        return [roots.get(n, str(n)) if i < 2 else str(n) for i, n in enumerate(shape)]

    def _read(self, name: str, shape: torch.Size) -> list[dict[Place, Label]]:
        entries: list[dict[Place, Label]] = [{}]
        for dim, (text, length) in enumerate(zip(self._text(name, shape), shape, strict=True)):
            # Behind a sum of rows, "t|s|s" are the columns of each of its segments.
            choices = [self._rows(name, dim, choice, length) for choice in text.split("|")]
            entries = [e | row for e in entries for row in choices[_segment(e) if len(choices) > 1 else 0]]
        return [self._nested(entry) for entry in entries]

    def _rows(self, name: str, dim: int, text: str, length: int) -> list[dict[Place, Label]]:
        shared, inner = text[:-1].split("*(") if text.endswith(")") else ("", text)
        parts, lead = inner.split("+"), shared.split("*") if shared else []
        whole = length if len(parts) == 1 else 0
        products = [self._product([*lead, *p.split("*")], Place(name, dim, i, 0), whole) for i, p in enumerate(parts)]
        times = len(self._product(lead, Place(name, dim, 0, 0), 0))  # side by side in every item of what they share
        sizes = [len(product) // times for product in products]
        rows = [
            row for n in range(times) for p, m in zip(products, sizes, strict=True) for row in p[n * m : (n + 1) * m]
        ]
        assert len(rows) == length, f"{self.network.name}: {name} dimension {dim} is {length}, not {text}"
        return rows

    def _product(self, atoms: list[str], place: Place, length: int) -> list[dict[Place, Label]]:
        """Labels of each entry of one segment; nested items have their own index alone as yet."""
        nodes = self.network.nodes
        rows: list[dict[Place, Label]] = [{}]
        for i, atom in enumerate(atoms):
            size = int(atom) if atom.isdigit() else nodes[atom].size if atom in nodes else length
            here = place._replace(atom=i)
            rows = [row | {here: (atom if atom in nodes else "", (k,))} for row in rows for k in range(size)]
        return rows

    def _nested(self, entry: dict[Place, Label]) -> dict[Place, Label]:
        """Every item behind the path of the nearest item of its parent before it."""
        seen: dict[str, tuple[int, ...]] = {}
        found: dict[Place, Label] = {}
        for place, (node, own) in entry.items():
            parent = self.network.nodes[node].parent if node else None
            path = (*(seen[parent] if parent else ()), *own)
            found[place] = (node, path)
            if node:
                seen[node] = path
        return found

    def places(self, node: str = "") -> list[Place]:
        """Where items of a node are; of no node: all fixed dimensions."""
        found = {p: None for entries in self.entries.values() for e in entries for p, x in e.items() if x[0] == node}
        return list(found)

    def mask(self, place: Place, label: Label) -> Tensor:
        """Of the parameter of a place: 1 where entries belong to an item there, else 0."""
        entries = self.entries[place.parameter]
        values = torch.tensor([float(e.get(place) == label) for e in entries], dtype=torch.float64)
        return values.reshape(self.shapes[place.parameter])

    def swap(
        self, first: Label, second: Label, places: list[Place] | None = None, within: Label | None = None
    ) -> dict[str, Tensor] | None:
        """For each parameter it moves, the flat position that each entry comes from, if two items change places.

        What is nested in the items goes with them. Of ``places``, only labels there change; ``within`` an item of
        another node, only entries that belong to it. An item that goes to another parent takes along none of its
        siblings: None where a tensor does not hold it apart from them.
        """
        exchanged = {first: second, second: first}

        def moved(entry: dict[Place, Label]) -> dict[Place, Label]:
            found = dict(entry)
            if within is not None and within not in entry.values():
                return found
            for place, (node, path) in entry.items():
                depth = len(first[1])
                inside = node == first[0] or first[0] in self._ancestors(node)
                other = exchanged.get((first[0], path[:depth])) if inside else None
                if other is None or (places is not None and place not in places):
                    continue
                found[place] = (node, (*other[1], *path[depth:]))
                for above in self._ancestors(node):
                    n = 1 + len(self._ancestors(above))
                    nearest = [p for p in entry if p < place and entry[p] == (above, path[:n])]
                    found[nearest[-1]] = (above, found[place][1][:n])
            return found

        sources = {}
        for name, entries in self.entries.items():
            position = {tuple(e.items()): i for i, e in enumerate(entries)}
            source = [position.get(tuple(moved(e).items()), -1) for e in entries]
            if -1 in source:
                return None
            if source != list(range(len(source))):
                sources[name] = torch.tensor(source)
        return sources

    def _ancestors(self, node: str) -> list[str]:
        parent = self.network.nodes[node].parent if node else None
        return [] if parent is None else [parent, *self._ancestors(parent)]


def _segment(entry: dict[Place, Label]) -> int:
    return next(place.segment for place in entry if place.dim == 0)
