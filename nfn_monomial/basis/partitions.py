"""Set partitions whose blocks are balanced, and how they contract a field: the arithmetic of every basis.

A block of axes lies on one node, and its charges, those of outputs subtracted, reduce to 0 for every gauge
(`Node.charge`). Axes of a nested node may share a block only if the axes that they are nested in share one: neurons in
different neurons of the parent are different. So blocks are nested as axes are, and without nested nodes every block
is on its own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.axes import Axis, Charge, FieldType, combined, powers
from nfn_monomial.space.nodes import Node
from nfn_monomial.space.places import places_of

Block: TypeAlias = tuple[int, ...]


def require_nodes(fields: Iterable[FieldType], nodes: Mapping[str, Node]) -> None:
    """Raises for an axis on a node that is not among these."""
    for axis in itertools.chain.from_iterable(fields):
        if axis.node not in nodes:
            raise InvalidValueError(f"axis {axis} names no node; nodes: {', '.join(nodes) or 'none'}")


def set_partitions(items: Block) -> Iterator[tuple[Block, ...]]:
    """All partitions of ``items`` into non-empty blocks.

    >>> sorted(set_partitions((0, 1)))
    [((0,), (1,)), ((0, 1),)]
    """
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for partition in set_partitions(rest):
        yield ((first,), *partition)
        for i, block in enumerate(partition):
            yield (*partition[:i], (first, *block), *partition[i + 1 :])


@functools.cache
def _balanced(charges: tuple[Charge, ...], node: Node) -> tuple[tuple[Block, ...], ...]:
    """Partitions of axes of one node, given their charges, in which the charges of every block cancel."""
    if any(powers(node.charge(combined(charges)))):
        return ()  # they do not even cancel all together
    return tuple(
        partition
        for partition in set_partitions(tuple(range(len(charges))))
        if not any(any(powers(node.charge(combined([charges[i] for i in block])))) for block in partition)
    )


def field_key(field_type: FieldType) -> str:
    """A field type as the name of parameters: ``h2+1_h1-1``, or ``const`` where no axis is left."""
    return "_".join(a.node + "".join(f"{q:+d}" for q in powers(a.charge)) for a in field_type) or "const"


class Contraction(NamedTuple):
    """A map from a field's axes to the axes of a contracted type; positions count the field's axes from 0.

    Attributes:
        open: for each axis of the contracted type, the block of the field's axes that it stands for.
        closed: the blocks that are averaged over (read as an expansion: broadcast over).
        apart: blocks of axes on FIXED nodes, in which nothing is open: their entries become channels.
        chosen: numbers of the open blocks of axes on FIXED nodes that could be several blocks, because axes nested in
            different axes of the block share no block.
    """

    open: tuple[Block, ...]
    closed: tuple[Block, ...]
    apart: tuple[Block, ...] = ()
    chosen: frozenset[int] = frozenset()


class _Tree(NamedTuple):
    """An open block and the open blocks nested in it.

    Attributes:
        key: sorts trees canonically; the same of two trees that could be aligned.
        axis: the axis of the contracted type that the block becomes.
        block: positions of the field's axes.
        below: the trees nested in it, sorted.
    """

    key: tuple[object, ...]
    axis: Axis
    block: Block
    below: tuple[_Tree, ...]

    def flat(self) -> Iterator[_Tree]:
        """The tree as a sequence of blocks, each before the blocks nested in it."""
        yield self
        for tree in self.below:
            yield from tree.flat()


def ranks(nodes: Mapping[str, Node]) -> dict[str, int]:
    """Node -> its place in the order of contracted types, which is that of fields: the last node first."""
    return {name: -i for i, name in enumerate(nodes)}


class _Nest:
    """The axes of one or several fields as trees, in which an axis is above the axes nested in it.

    Attributes:
        axes: of all the fields, one after the other.
        roots: positions of the axes that are nested in none.
        below: for each position, the positions of the axes nested in it.
    """

    def __init__(
        self, fields: tuple[FieldType, ...], nodes: Mapping[str, Node], rank: Mapping[str, int] | None = None
    ) -> None:
        self.axes = tuple(itertools.chain.from_iterable(fields))
        self.nodes, self._rank = nodes, rank
        roots: list[int] = []
        self.below: list[list[int]] = [[] for _ in self.axes]
        start = 0
        for field_type in fields:
            for i, place in enumerate(places_of(field_type, nodes), start):
                (self.below[start + place.over[-1]] if place.over else roots).append(i)
            start += len(field_type)
        self.roots = tuple(roots)

    @functools.cached_property
    def rank(self) -> Mapping[str, int]:
        """The order of the nodes, see `ranks`."""
        return ranks(self.nodes) if self._rank is None else self._rank

    def nested_in(self, block: Block) -> Block:
        """Positions of the axes that are nested in those of a block."""
        return tuple(i for above in block for i in self.below[above])

    def meeting(self, block: Block, blocks: Iterable[Block]) -> list[set[int]]:
        """The axes of a block in groups; axes are in one group if axes nested in them share blocks."""
        groups = [{i} for i in block]
        for other in blocks:
            linked = [group for group in groups if self.inside(other, group)]
            groups = [group for group in groups if group not in linked] + [set[int]().union(*linked)] * bool(linked)
        return groups

    def inside(self, block: Block, above: Iterable[int]) -> bool:
        """True for a block with axes nested in one of these."""
        return any(not set(self.below[i]).isdisjoint(block) for i in above)

    def by_node(self, positions: Block) -> Iterator[tuple[str, Block]]:
        """Positions grouped by their node, in the order of the nodes."""
        names = dict.fromkeys(self.axes[i].node for i in positions)
        for name in sorted(names, key=self.rank.__getitem__) if len(names) > 1 else names:
            yield name, tuple(i for i in positions if self.axes[i].node == name)

    def closings(self, positions: Block) -> list[tuple[Block, ...]]:
        """All ways to put axes, and all axes nested in them, into balanced blocks."""
        ways: list[tuple[Block, ...]] = [()]
        for name, group in self.by_node(positions):
            on_node = []
            for partition in _balanced(tuple(self.axes[i].charge for i in group), self.nodes[name]):
                blocks = tuple(tuple(group[k] for k in block) for block in partition)
                below = (self.closings(self.nested_in(block)) for block in blocks)
                on_node += [blocks + tuple(itertools.chain.from_iterable(way)) for way in itertools.product(*below)]
            if not on_node:
                return []
            ways = [one + other for one in ways for other in on_node]
        return ways

    def openings(self, positions: Block) -> list[tuple[tuple[_Tree, ...], tuple[Block, ...]]]:
        """All ways to put axes, and all axes nested in them, into open and closed blocks.

        A closed block is balanced and closes all axes nested in it; the open blocks are sorted.
        """
        ways: list[tuple[tuple[_Tree, ...], tuple[Block, ...]]] = [((), ())]
        for name, group in self.by_node(positions):
            on_node = [way for partition in set_partitions(group) for way in self._opened(name, partition)]
            ways = [(a + c, b + d) for a, b in ways for c, d in on_node]
        return ways

    def _opened(self, name: str, partition: tuple[Block, ...]) -> Iterator[tuple[tuple[_Tree, ...], tuple[Block, ...]]]:
        node = self.nodes[name]
        axes = {b: Axis(name, node.charge(combined([self.axes[i].charge for i in b]))) for b in partition}
        neutral = [block for block, axis in axes.items() if node.permutes and not any(powers(axis.charge))]
        for count in range(len(neutral) + 1):
            for closed in itertools.combinations(neutral, count):
                opened = [block for block in partition if block not in closed]
                inside = (self.openings(self.nested_in(block)) for block in opened)
                under = (self.closings(self.nested_in(block)) for block in closed)
                for chosen, ended in itertools.product(itertools.product(*inside), itertools.product(*under)):
                    trees = []
                    for block, (below, _) in zip(opened, chosen, strict=True):
                        of_block = (self.rank[name], tuple(-q for q in powers(axes[block].charge)))
                        key = (of_block, tuple(tree.key for tree in below))
                        trees.append(_Tree(key, axes[block], block, below))
                    within = itertools.chain.from_iterable(blocks for _, blocks in chosen)
                    yield (
                        tuple(sorted(trees, key=lambda tree: (tree.key, tree.block))),
                        (*closed, *within, *itertools.chain.from_iterable(ended)),
                    )


def balanced_partitions(fields: tuple[FieldType, ...], nodes: Mapping[str, Node]) -> list[tuple[Block, ...]]:
    """Partitions of the axes of fields in which every block is balanced; positions count on through the fields.

    Args:
        fields: of inputs, and of outputs with opposite charges.
        nodes: of the weight space.
    """
    nest = _Nest(fields, nodes)
    return nest.closings(nest.roots)


def contractions(
    field_type: FieldType, nodes: Mapping[str, Node], rank: Mapping[str, int] | None = None
) -> dict[FieldType, list[Contraction]]:
    """All ways to contract a field: contracted type -> its contractions.

    An axis of a nested node stays open only where the axis that it is nested in does. Contracted types have the
    canonical order of field types. Where axes of a contracted type can change places, each contraction is listed in one
    order; `alignments` gives the others. FIXED axes are never averaged over, because nothing permutes their entries.

    Args:
        field_type: the field's axes, charges reduced.
        nodes: of the weight space, in its order.
        rank: `ranks` of the nodes, if they are known.
    """
    nest = _Nest((field_type,), nodes, rank)
    by_type: dict[FieldType, list[Contraction]] = {}

    def open_in(tree: _Tree, axes: set[int]) -> bool:
        return any(nest.inside(below.block, axes) for below in tree.below)

    for trees, closed in nest.openings(nest.roots):
        still = [tree for tree in trees if not nodes[tree.axis.node].permutes]
        flat = [tree for root in trees if root.below or root not in still for tree in root.flat()]
        groups = {tree.block: nest.meeting(tree.block, [*(t.block for t in flat), *closed]) for tree in still}
        # FIXED axes in separate blocks keep all pairs of their entries, so also the pairs of equal ones. One block for
        # them is another map only if something is open in each group: one axis of the type has all of that in it.
        if all(len(groups[t.block]) == 1 or all(open_in(t, group) for group in groups[t.block]) for t in still):
            apart = tuple(tree.block for tree in still if not tree.below)
            chosen = frozenset(n for n, tree in enumerate(flat) if len(groups.get(tree.block, ())) > 1)
            contraction = Contraction(tuple(tree.block for tree in flat), closed, apart, chosen)
            by_type.setdefault(tuple(tree.axis for tree in flat), []).append(contraction)
    return by_type


def alignments(contracted: FieldType, nodes: Mapping[str, Node], rank: Mapping[str, int] | None = None) -> list[Block]:
    """The permutations of a type's axes that leave it as it is; axes nested in an axis move along with it.

    >>> from nfn_monomial import Symmetry
    >>> nodes = {"h": Node((Symmetry.SCALE,)), "q": Node((Symmetry.SIGN,), parent="h")}
    >>> alignments((Axis("h", 1), Axis("q", 1), Axis("h", 1), Axis("q", 1), Axis("h", 0)), nodes)
    [(0, 1, 2, 3, 4), (2, 3, 0, 1, 4)]
    """
    nest = _Nest((contracted,), nodes, rank)

    def last(i: int) -> int:
        return last(nest.below[i][-1]) if nest.below[i] else i

    def orders(siblings: Block) -> Iterator[Block]:
        alike = [list(g) for _, g in itertools.groupby(siblings, key=lambda i: contracted[i : last(i) + 1])]
        for moved in itertools.product(*map(itertools.permutations, alike)):
            order = tuple(itertools.chain.from_iterable(moved))
            for below in itertools.product(*(orders(nest.nested_in((i,))) for i in order)):
                yield tuple(itertools.chain.from_iterable((i, *rest) for i, rest in zip(order, below, strict=True)))

    return list(orders(nest.roots))
