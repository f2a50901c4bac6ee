"""The equivariant linear maps between two field types, from set partitions with balanced charges.

Theorem (linear). Let a field have the axes A, another A'. The linear maps between them that commute with every
group element have as a basis the set partitions of A + A' whose blocks each lie on one node and are balanced: the
charges of the block's axes in A minus those in A' reduce to 0 (`Symmetry.charge`). A block in A alone is averaged
over, a block in A' alone is broadcast over, a mixed block is aligned. This contains the parameter sharing of paper
Tables 5 to 8 for every depth, and that of NP and HNP.

A mixed block has a charge of its own, the one that its A part and its A' part agree on. So every such map factors
through one *contracted type* R, the tuple of its mixed blocks, and the maps through R are all pairs of

* a contraction of A to R: close some blocks of A (average), leave others open, one for each axis of R;
* an expansion of R to A': the same read backwards (broadcast over the closed blocks).

A layer therefore contracts, multiplies by one matrix per R, and expands. This module finds the pairs; it does not
know tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nfn_monomial.space.axes import FieldType
from nfn_monomial.space.specification import Node

from .partitions import Block, Contraction, contractions


class Route(NamedTuple):
    """All maps through one contracted type: every source contraction feeds every target expansion.

    Attributes:
        contracted: the contracted type R.
        sources: (index of the source field, contraction).
        targets: (index of the target field, expansion).
    """

    contracted: FieldType
    sources: tuple[tuple[int, Contraction], ...]
    targets: tuple[tuple[int, Contraction], ...]


def routes(
    sources: tuple[FieldType, ...], targets: tuple[FieldType, ...], nodes: Mapping[str, Node]
) -> tuple[Route, ...]:
    """The basis of all equivariant linear maps from fields ``sources`` to fields ``targets``, grouped into routes.

    The route through the empty type comes last and exists whenever a target can be broadcast to, even without
    sources: its expansions are the affine terms, the balanced partitions of A' alone.
    """
    into: dict[FieldType, list[tuple[int, Contraction]]] = {}
    out_of: dict[FieldType, list[tuple[int, Contraction]]] = {}
    for i, source in enumerate(sources):
        for contracted, found in contractions(source, nodes).items():
            into.setdefault(contracted, []).extend(
                (i, Contraction(order, c.closed)) for c in found for order in _orders(contracted, c.open)
            )
    for i, target in enumerate(targets):
        for contracted, found in contractions(target, nodes).items():
            out_of.setdefault(contracted, []).extend((i, c) for c in found)
    shared = sorted((r for r in out_of if r in into or not r), key=len, reverse=True)
    return tuple(Route(r, tuple(into.get(r, ())), tuple(out_of[r])) for r in shared)


def _orders(contracted: FieldType, blocks: tuple[Block, ...]) -> Iterator[tuple[Block, ...]]:
    """``blocks`` in every order that maps equal axes of ``contracted`` to one another."""
    groups = [list(g) for _, g in itertools.groupby(range(len(blocks)), key=lambda i: contracted[i])]
    for choice in itertools.product(*(itertools.permutations(g) for g in groups)):
        yield tuple(blocks[i] for i in itertools.chain.from_iterable(choice))


def count_terms(
    sources: Mapping[FieldType, int], targets: Mapping[FieldType, int], nodes: Mapping[str, Node]
) -> tuple[int, int]:
    """Number of linear and of affine basis maps between fields with the given multiplicities.

    The dimensions of the space of equivariant maps wherever every node has at least as many neurons as a
    partition has blocks on it.
    """
    linear = affine = 0
    m_in, m_out = list(sources.values()), list(targets.values())
    for route in routes(tuple(sources), tuple(targets), nodes):
        outputs = sum(m_out[i] for i, _ in route.targets)
        linear += sum(m_in[i] for i, _ in route.sources) * outputs
        affine += 0 if route.contracted else outputs
    return linear, affine
