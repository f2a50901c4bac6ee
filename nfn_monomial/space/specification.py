"""What a weight space is, as data: nodes, parameters and their axes, checked; no tensors and no group elements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nfn_monomial.symmetry import Symmetry

from .axes import Axis, Dim, FieldType, flatten_dims
from .links import links_of


class Node(NamedTuple):
    """A set of neurons: the group that acts on it, and its size where it is known (always for FIXED)."""

    symmetry: Symmetry
    size: int | None = None


class Specification:
    """Nodes and parameters of a network architecture; what `WeightSpace` adds layouts, packing and a group to.

    Immutable and hashable; see `WeightSpace` for arguments, attributes and errors.
    """

    def __init__(
        self,
        nodes: Mapping[str, Symmetry | tuple[Symmetry, int | None]],
        parameters: Mapping[str, Sequence[Dim]],
        *,
        label: str = "",
    ) -> None:
        self.nodes = {name: Node(node) if isinstance(node, Symmetry) else Node(*node) for name, node in nodes.items()}
        self.parameters: dict[str, tuple[Dim, ...]] = {name: tuple(dims) for name, dims in parameters.items()}
        self.label = label
        self._check()
        self._rank = {name: position for position, name in enumerate(self.nodes)}
        self.axes = {name: flatten_dims(dims) for name, dims in self.parameters.items()}
        self.parts = {name: [flatten_dims((dim,)) for dim in dims] for name, dims in self.parameters.items()}
        self.links = links_of(self.nodes, self.parameters)

    def _check(self) -> None:
        for name, node in self.nodes.items():
            if not name.isidentifier():
                raise ValueError(f"node name {name!r}: names must be identifiers, as h1 or conv_2")
            if not node.symmetry.permutes and node.size is None:
                raise ValueError(f"node {name!r} is FIXED, so its size must be given: its axes become channels")
            if node.size is not None and node.size < 1:
                raise ValueError(f"node {name!r} has size {node.size}; at least 1 is needed")
        if not self.parameters:
            raise ValueError("a weight space needs at least one parameter")
        for name, dims in self.parameters.items():
            for dim in flatten_dims(dims):
                if isinstance(dim, Axis) and dim.node not in self.nodes:
                    raise ValueError(f"{name}: axis {dim} names no node; nodes: {', '.join(self.nodes)}")
                if isinstance(dim, int) and dim < 1:
                    raise ValueError(f"{name}: dimension {dim} must be at least 1")

    @property
    def symmetries(self) -> dict[str, Symmetry]:
        """Node name -> symmetry."""
        return {name: node.symmetry for name, node in self.nodes.items()}

    def canonical(self, axes: Sequence[Axis]) -> tuple[FieldType, tuple[int, ...]]:
        """The field type of some axes (charges reduced, canonical order), and the order in which they were taken."""
        reduced = [Axis(a.node, self.nodes[a.node].symmetry.charge(a.charge)) for a in axes]
        order = sorted(range(len(axes)), key=lambda i: (-self._rank[reduced[i].node], -reduced[i].charge))
        return tuple(reduced[i] for i in order), tuple(order)

    def acting(self, axes: FieldType) -> tuple[Symmetry, ...]:
        """What each of some axes feels of its node's symmetry."""
        return tuple(self.nodes[axis.node].symmetry.acting(axis.charge) for axis in axes)

    def shape_of(self, name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """A parameter's shape, without batch and channels, for given node sizes."""
        dims = self.parts[name]
        return tuple([math.prod([p if isinstance(p, int) else sizes[p.node] for p in parts]) for parts in dims])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape, without batch and channels; needs every node's size."""
        unknown = [name for name, node in self.nodes.items() if node.size is None]
        if unknown:
            raise ValueError(f"{self}: sizes of {', '.join(unknown)} are not known; give them to the constructor")
        sizes = {name: node.size for name, node in self.nodes.items() if node.size is not None}
        return {name: self.shape_of(name, sizes) for name in self.parameters}

    def describe(self, name: str, sizes: Mapping[str, int] | None = None) -> str:
        """A parameter and the shape it is expected to have, as text."""
        known = {n: s.size for n, s in self.nodes.items()} | dict(sizes or {})

        def text(dim: Axis | int) -> str:
            if isinstance(dim, int):
                return str(dim)
            return dim.node if known[dim.node] is None else f"{dim.node}={known[dim.node]}"

        shown = ["*".join(map(text, parts)) for parts in self.parts[name]]
        return f"{name} (B, C, {', '.join(shown)})"

    def _key(self) -> tuple[object, ...]:
        return tuple(self.nodes.items()), tuple(self.parameters.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Specification) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        if self.label:
            return f"WeightSpace.{self.label}"
        nodes = ", ".join(f"{n}: {s.symmetry}" + (f" {s.size}" if s.size else "") for n, s in self.nodes.items())
        return f"WeightSpace({nodes}; {', '.join(self.parameters)})"
