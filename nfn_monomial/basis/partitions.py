"""Set partitions whose blocks are balanced, and what they do to a field: the arithmetic behind every basis.

A block of axes lies on one node, and its charges, those of outputs subtracted, reduce to 0 (`Node.charge`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nfn_monomial.space.axes import Axis, Charge, FieldType, combined, opposite, powers
from nfn_monomial.space.specification import Node

Block = tuple[int, ...]


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
def balanced_partitions(charges: tuple[Charge, ...], node: Node) -> tuple[tuple[Block, ...], ...]:
    """Partitions of axes of one node, given their charges, in which the charges of every block cancel."""
    if any(powers(node.charge(combined(charges)))):
        return ()  # they do not even cancel all together
    return tuple(
        partition
        for partition in set_partitions(tuple(range(len(charges))))
        if not any(any(powers(node.charge(combined([charges[i] for i in block])))) for block in partition)
    )


class Contraction(NamedTuple):
    """How a field's axes meet the axes of a contracted type; positions count the field's axes from 0.

    Attributes:
        open: for each axis of the contracted type, the block of the field's axes that it stands for.
        closed: the blocks that are averaged over (read as an expansion: broadcast over).
    """

    open: tuple[Block, ...]
    closed: tuple[Block, ...]


def contractions(field_type: FieldType, nodes: Mapping[str, Node]) -> dict[FieldType, list[Contraction]]:
    """All ways to contract a field: contracted type -> its contractions.

    Contracted types are canonically ordered as the field's own axes are. Where a contracted type has equal axes,
    each contraction is listed in one order; `routes` adds the others.

    Args:
        field_type: the field's axes, charges reduced.
        nodes: of the weight space.
    """
    names = list(dict.fromkeys(axis.node for axis in field_type))  # the field's order is canonical
    per_node = []
    for node in names:
        positions = tuple(i for i, axis in enumerate(field_type) if axis.node == node)
        per_node.append(list(_node_contractions(field_type, positions, node, nodes[node])))
    found: dict[FieldType, list[Contraction]] = {}
    for parts in itertools.product(*per_node):
        contracted = tuple(axis for axes, _, _ in parts for axis in axes)
        opened = tuple(block for _, blocks, _ in parts for block in blocks)
        closed = tuple(block for _, _, blocks in parts for block in blocks)
        found.setdefault(contracted, []).append(Contraction(opened, closed))
    return found


def _node_contractions(
    field_type: FieldType, positions: Block, name: str, node: Node
) -> Iterator[tuple[FieldType, tuple[Block, ...], tuple[Block, ...]]]:
    """Contractions of the axes on one node: (axes left, open blocks, closed blocks)."""
    for partition in set_partitions(positions):
        charged = [(node.charge(combined([field_type[i].charge for i in block])), block) for block in partition]
        neutral = [block for charge, block in charged if not any(powers(charge))]
        for count in range(len(neutral) + 1):
            for closed in itertools.combinations(neutral, count):
                opened = sorted(
                    (c for c in charged if c[1] not in closed), key=lambda c: (powers(opposite(c[0])), c[1])
                )
                yield tuple(Axis(name, c) for c, _ in opened), tuple(b for _, b in opened), closed
