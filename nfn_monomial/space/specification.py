"""What a weight space is, as data: nodes, parameters and their axes, checked; no tensors and no group elements."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from torch import nn

from nfn_monomial.checks import Size, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.symmetry import Symmetry

from .axes import (
    Axis,
    Charge,
    Dim,
    FieldType,
    Sum,
    each_axis,
    flatten_dims,
    parents_of,
    powers,
    segments_of,
    size_of,
    sums_in,
)
from .links import SharedScale, links_of

Made = TypeVar("Made")

TAKEN = frozenset((*dir(nn.ModuleDict()), *dir(nn.ParameterDict())))
"""Names that no node can have."""


class Node(NamedTuple):
    """A set of neurons: what acts on each of them besides the permutations of all, its size, what it is nested in.

    Attributes:
        gauges: independent factors on every neuron, over one permutation: a positive number (SCALE), a sign (SIGN), or
            both with equal charges (MONOMIAL). PERMUTATION is no factor: charges on it only say which way a network
            runs. FIXED neurons have no other gauge.
        size: number of neurons, where it is known (always for FIXED); of a nested node, in each neuron of its parent.
        parent: the node in whose neurons these are nested, as the channels of an attention head in the head: they are
            permuted and scaled in each of the parent's neurons on its own, and move along with it. A parent may be
            FIXED, as experts that are told apart: then fields have its axis, though nothing acts on it.
    """

    gauges: tuple[Symmetry, ...]
    size: Size | None = None
    parent: str | None = None

    @property
    def symmetry(self) -> Symmetry:
        """The smallest symmetry that contains what acts: that of the one gauge, of most nodes."""
        return functools.reduce(operator.or_, self.gauges)

    @property
    def permutes(self) -> bool:
        """Whether neurons are permuted: all but FIXED."""
        return self.gauges[0].permutes

    @property
    def scales(self) -> bool:
        """Whether a positive factor acts on a neuron."""
        return any(gauge.scales for gauge in self.gauges)

    @property
    def flips(self) -> bool:
        """Whether a sign acts on a neuron."""
        return any(gauge.flips for gauge in self.gauges)

    def charge(self, charge: Charge) -> Charge:
        """``charge`` reduced to what the gauges can tell apart, see `Symmetry.charge`; a number for one gauge.

        A number on a node of several gauges is a charge on the first of them.
        """
        reduced = tuple([q and g.charge(q) for g, q in zip(self.gauges, self.spelled(charge), strict=True)])
        return reduced if len(reduced) > 1 else reduced[0]

    def spelled(self, charge: Charge) -> tuple[int, ...]:
        """``charge`` with one number for each gauge, not reduced."""
        given = powers(charge)
        if len(given) > len(self.gauges) or (not isinstance(charge, int) and len(given) < len(self.gauges)):
            raise InvalidValueError(
                f"charge {charge} has {len(given)} entries for the {len(self.gauges)} gauges of a node"
            )
        return (*given, *[0] * (len(self.gauges) - len(given)))

    def acting(self, charge: Charge) -> Symmetry:
        """What an axis of this charge feels of the node's group."""
        # Of hundreds of gauges, as on the stream of a deep network, an axis feels one or two.
        felt = (gauge.acting(q) for gauge, q in zip(self.gauges, self.spelled(charge), strict=True) if q)
        return functools.reduce(operator.or_, felt, self.gauges[0].acting(0))

    def restricted(self, group: Symmetry) -> Node:
        """The same neurons under a smaller group, all gauges intersected with it; charges mean what they did."""
        return self._replace(gauges=tuple(gauge & group for gauge in self.gauges))


class Piece(NamedTuple):
    """A parameter, or of one with dimensions that are sums, the part that lies in one segment of each of them.

    Attributes:
        parameter: its name.
        dims: the dimensions of the piece, without sums.
    """

    parameter: str
    dims: tuple[Dim, ...]


class Specification:
    """Nodes and parameters of a network architecture; what `WeightSpace` adds layouts, packing and a group to.

    Immutable and hashable; see `WeightSpace` for arguments, attributes and errors.
    """

    @checked
    def __init__(
        self,
        nodes: Mapping[str, Symmetry | tuple[Symmetry, Size | None] | Node],
        parameters: Mapping[str, Sequence[Dim]],
        *,
        label: str = "",
        dead: Sequence[str] = (),
        ties: Mapping[str, str] | None = None,
    ) -> None:
        self.nodes = {name: _node(node) for name, node in nodes.items()}
        self.nesting = {name: node.parent for name, node in self.nodes.items() if node.parent is not None}
        self.label, self.dead, self.ties = label, tuple(dead), dict(ties or {})
        self._check_nodes()
        self._rank = {name: position for position, name in enumerate(self.nodes)}
        self._check_parameters(parameters)
        self.parameters = {name: self._completed(dims) for name, dims in parameters.items()}
        self.concatenated = {name: [segments_of(dim) for dim in dims] for name, dims in self.parameters.items()}
        found = {name: list(self._pieces(name)) for name in self.parameters}
        self.pieces_of = {name: [piece for piece, _ in pieces] for name, pieces in found.items()}
        self.pieces = dict(itertools.chain.from_iterable(found.values()))
        self.axes = {name: flatten_dims(piece.dims) for name, piece in self.pieces.items()}
        self._check_names()
        dims_of = {name: piece.dims for name, piece in self.pieces.items()}
        self.links = links_of(list(self.nodes), dims_of, self.nesting)
        self.uncut = {name for name, dims in self.parameters.items() if self.axes.get(name) == dims}
        self.passed: tuple[object, dict[str, int]] = (None, {})
        self._made: dict[tuple[Hashable, ...], Any] = {}

    def once(self, make: Callable[..., Made], *given: Hashable) -> Made:
        """``make(self, *given)``, which all layers on the space share: made the first time, never to be changed."""
        key = (make, *given)
        if key not in self._made:
            self._made[key] = make(self, *given)
        return self._made[key]  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}, "passed": (None, {})}

    def _check_nodes(self) -> None:
        for name, node in self.nodes.items():
            if not name.isidentifier():
                raise InvalidValueError(f"node name {name!r}: names must be identifiers, as h1 or conv_2")
            if name in TAKEN:
                raise InvalidValueError(
                    f"node name {name!r}: torch's containers of modules, in which layers keep what belongs to a node, "
                    f"have an attribute of that name; use {name}_"
                )
            if not node.gauges or (len(node.gauges) > 1 and Symmetry.FIXED in node.gauges):
                raise InvalidValueError(f"node {name!r} has gauges {node.gauges}: one or more, FIXED only alone")
            if not node.permutes and node.size is None:
                raise InvalidValueError(f"node {name!r} is FIXED, so its size must be given: its axes become channels")
            if node.size is not None and node.size < 1:
                raise InvalidValueError(f"node {name!r} has size {node.size}; at least 1 is needed")
        for name, parent in self.nesting.items():
            if parent not in self.nodes:
                raise InvalidValueError(
                    f"node {name!r} is nested in {parent!r}, which is no node; nodes: {', '.join(self.nodes)}"
                )
            if not self.nodes[name].permutes:
                raise InvalidValueError(
                    f"node {name!r} is nested in {parent!r}, so it may not be FIXED; use a size instead"
                )
            path = [name]
            while (above := self.nesting.get(path[-1])) is not None:
                if above in path:
                    raise InvalidValueError(f"node {above!r} is nested in itself")
                path.append(above)

    def _check_parameters(self, parameters: Mapping[str, Sequence[Dim]]) -> None:
        if not parameters:
            raise InvalidValueError("a weight space needs at least one parameter")
        for name, dims in parameters.items():
            for dim in _factors(dims):
                if isinstance(dim, Axis) and dim.node not in self.nodes:
                    raise InvalidValueError(f"{name}: axis {dim} names no node; nodes: {', '.join(self.nodes)}")
                if isinstance(dim, int) and not 1 <= dim < 2**63:
                    raise InvalidValueError(f"{name}: dimension {dim} must be at least 1, and what a tensor can have")
            for found in itertools.chain.from_iterable(map(sums_in, dims)):
                if found.shared < 0 or len(found.lead) < found.shared:
                    raise InvalidValueError(f"{name}: {found.shared} factors are shared, of {found.parts[0]}")

    def _check_names(self) -> None:
        if unknown := [name for name in self.dead if name not in self.pieces]:
            raise InvalidValueError(f"dead={', '.join(unknown)}: no parameters or pieces of {', '.join(self.pieces)}")
        for name, own in self.ties.items():
            if own not in self.parameters or name in self.parameters:
                raise InvalidValueError(
                    f"ties={{{name!r}: {own!r}}}: another name of a parameter is expected, then the parameter, one of "
                    f"{', '.join(self.parameters)}"
                )

    def _completed(self, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        """The same with charges for all gauges, and in front of an axis those that it is nested in and that lack."""
        named = {factor.node for factor in _factors(dims) if isinstance(factor, Axis)}

        def spelled(name: str, charge: Charge) -> Axis:
            charges = self.nodes[name].spelled(charge)
            return Axis(name, charges if len(charges) > 1 else charges[0])

        def complete(axis: Axis) -> list[Axis]:
            above = itertools.takewhile(lambda name: name not in named, self.ancestry(axis.node)[-2::-1])
            return [*reversed([spelled(name, 0) for name in above]), spelled(*axis)]

        return tuple([each_axis(dim, complete) for dim in dims])

    def _pieces(self, name: str) -> Iterator[tuple[str, Piece]]:
        segments = self.concatenated[name]
        sums = [i for i, dim in enumerate(self.parameters[name]) if isinstance(dim, Sum)]
        for choice in itertools.product(*(range(len(parts)) for parts in segments)):
            chosen = [parts[i] for parts, i in zip(segments, choice, strict=True)]
            own = f"{name}[{','.join(str(choice[i]) for i in sums)}]" if sums else name
            yield own, Piece(name, tuple([part[0] if len(part) == 1 else part for part in chosen]))

    @property
    def group_dimension(self) -> int:
        """Number of independent continuous scalings: scale gauges times neurons; needs every such node's size."""
        sizes = self.sizes()
        return sum(
            sum(gauge.scales for gauge in node.gauges) * self.count(name, sizes) for name, node in self.nodes.items()
        )

    def mappings(self) -> list[SharedScale]:
        """Which parameters share a scale: what one of them is multiplied by, others are divided by.

        One for each scale gauge of each node. Quantisers smooth activations along such maps; docs/quantisers.md.

        >>> from nfn_monomial import WeightSpace
        >>> [(found.smooth, found.balance) for found in WeightSpace.mlp([2, 8, 1], "relu").mappings()]
        [(('weight.0', 'bias.0'), ('weight.1',))]
        """
        found: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for piece, axes in self.axes.items():
            for axis in (axis for axis in axes if isinstance(axis, Axis)):
                for gauge, (kind, power) in enumerate(
                    zip(self.nodes[axis.node].gauges, powers(axis.charge), strict=True)
                ):
                    if kind.scales and power:
                        found.setdefault((axis.node, gauge), []).append((piece, power))
        sized = {n: None not in [self.nodes[above].size for above in self.ancestry(n)] for n in self.nodes}
        sizes = {name: node.size or 0 for name, node in self.nodes.items()}
        return [
            SharedScale(node, gauge, tuple(shares), self.count(node, sizes) if sized[node] else None)
            for (node, gauge), shares in found.items()
        ]

    def sizes(self) -> dict[str, int]:
        """Node -> its size; of a nested one, in each neuron of its parent.

        Raises:
            ValueError: if one is not known.
        """
        unknown = [name for name, node in self.nodes.items() if node.size is None]
        if unknown:
            raise InvalidValueError(
                f"{self}: sizes of {', '.join(unknown)} are not known; give them to the constructor"
            )
        return {name: node.size for name, node in self.nodes.items() if node.size is not None}

    def lies_in_fields(self, name: str) -> bool:
        """Whether axes on a node are axes of fields: others, FIXED ones in which none are nested, are multiplicity."""
        return self.nodes[name].permutes or name in self.nesting.values()

    def declared(self, given: Mapping[str, int] | None = None) -> dict[str, int | None]:
        """Node -> its size, as given or else as declared.

        Raises:
            ValueError: for a size of a node that there is not.
        """
        if unknown := [name for name in given or {} if name not in self.nodes]:
            raise InvalidValueError(f"sizes= has {', '.join(unknown)}; nodes of {self}: {', '.join(self.nodes)}")
        return {name: node.size for name, node in self.nodes.items()} | dict(given or {})

    def ancestry(self, name: str) -> tuple[str, ...]:
        """A node behind all that it is nested in, the outermost first."""
        above = self.nesting.get(name)
        return (name,) if above is None else (*self.ancestry(above), name)

    def count(self, name: str, sizes: Mapping[str, int]) -> int:
        """Number of a node's neurons in all: for a nested one, over all of its parent's."""
        return math.prod(sizes[node] for node in self.ancestry(name))

    def complete(self, axes: Iterable[Axis]) -> FieldType:
        """Axes with those that they are nested in, where none of these is among them, and charges for all gauges."""
        return tuple(axis for axis in flatten_dims(self._completed(tuple(axes))) if isinstance(axis, Axis))

    def canonical(self, axes: Sequence[Axis]) -> tuple[FieldType, tuple[int, ...]]:
        """The field type of some axes (charges reduced, canonical order), and the order in which they were taken.

        Axes of nested nodes stand behind those that they are nested in, in front of the next one of those.
        """
        reduced = [Axis(a.node, self.nodes[a.node].charge(a.charge)) for a in axes]
        parents = parents_of(axes, self.nesting)

        def subtree(i: int) -> tuple[tuple[object, ...], list[int]]:
            below = sorted(map(subtree, (j for j, parent in enumerate(parents) if parent == i)))
            own = (-self._rank[reduced[i].node], tuple(-q for q in powers(reduced[i].charge)))
            return (own, tuple(key for key, _ in below)), [i, *(j for _, taken in below for j in taken)]

        roots = sorted(subtree(i) for i, parent in enumerate(parents) if parent is None)
        order = tuple(i for _, taken in roots for i in taken)
        return tuple(reduced[i] for i in order), order

    def acting(self, axes: FieldType) -> tuple[Symmetry, ...]:
        """What each of some axes feels of its node's symmetry."""
        return tuple(self.nodes[axis.node].acting(axis.charge) for axis in axes)

    def shape_of(self, name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of a parameter or a piece, without batch and channels, for given node sizes."""
        dims = self.parameters[name] if name in self.parameters else self.pieces[name].dims
        return tuple([size_of(dim, sizes) for dim in dims])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape, without batch and channels; needs every node's size."""
        sizes = self.sizes()
        return {name: self.shape_of(name, sizes) for name in self.parameters}

    def describe(self, name: str, sizes: Mapping[str, int] | None = None) -> str:
        """A parameter and the shape it is expected to have, as text."""
        known = self.declared(sizes)

        def text(dim: Axis | int) -> str:
            if isinstance(dim, int):
                return str(dim)
            return dim.node if known[dim.node] is None else f"{dim.node}={known[dim.node]}"

        def spelled(dim: Dim, shared: int) -> str:
            if not isinstance(dim, Sum):
                return "*".join(map(text, flatten_dims((dim,))[shared:])) or "1"
            inside = " + ".join(spelled(part, dim.shared) for part in dim.parts)
            lead = dim.lead[shared:]
            return "*".join((*map(text, lead), f"({inside})")) if lead else inside

        shown = [spelled(dim, 0) for dim in self.parameters[name]]
        return f"{name} (B, C, {', '.join(shown)})"

    def _key(self) -> tuple[object, ...]:
        unordered = frozenset(self.dead), frozenset(self.ties.items())
        return tuple(self.nodes.items()), tuple(self.parameters.items()), *unordered

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Specification) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        if self.label:
            return f"WeightSpace.{self.label}"
        nodes = ", ".join(map(_described, self.nodes.items()))
        return f"WeightSpace({nodes}; {', '.join(self.parameters)})"


def _node(node: Symmetry | tuple[Symmetry, int | None] | Node) -> Node:
    if isinstance(node, Node):
        return node._replace(gauges=tuple(node.gauges))
    return Node((node,)) if isinstance(node, Symmetry) else Node((node[0],), *node[1:])


def _described(item: tuple[str, Node]) -> str:
    name, node = item
    size = f" {node.size}" if node.size else ""
    return f"{name}: {'+'.join(map(str, node.gauges))}{size}{f' in {node.parent}' if node.parent else ''}"


def _factors(dims: Sequence[Dim]) -> Iterator[Axis | int]:
    """All axes and sizes, sums and products taken apart."""
    return itertools.chain.from_iterable(itertools.chain.from_iterable(map(segments_of, dims)))
