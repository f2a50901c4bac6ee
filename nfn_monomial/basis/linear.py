"""The equivariant linear maps between two field types, from set partitions with balanced charges.

Theorem (linear). Let a field have the axes A, another A'. The linear maps between them that commute with every
group element have as a basis the set partitions of A + A' whose blocks each lie on one node and are balanced: the
charges of the block's axes in A minus those in A' reduce to 0 for each of the node's gauges (`Node.charge`). Axes of
a nested node may share a block only if the axes that they are nested in share one: for two fields of pairs (head,
channel of the head), both may be aligned, the heads alone, or nothing. A block in A alone is averaged over, a block
in A' alone is broadcast over, a mixed block is aligned. This contains the parameter sharing of paper Tables 5 to 8 for
every depth, and that of NP and HNP.

A mixed block has a charge of its own, the one that its A part and its A' part agree on. So every such map factors
through one *contracted type* R, the tuple of its mixed blocks, and the maps through R are all pairs of

* a contraction of A to R: close some blocks of A (average), leave others open, one for each axis of R; what is
  nested in a closed block is closed, so R is nested as fields are;
* an expansion of R to A': the same read backwards (broadcast over the closed blocks).

Where nodes are nested in FIXED ones, whose entries are told apart, there is one such map for each of these entries that
R has; and a FIXED axis in which R has nothing is no axis of R but as many channels.

A layer therefore contracts, multiplies by one matrix per R, and expands. This module finds the pairs; it does not
know tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from nfn_monomial.checks import Size, checked
from nfn_monomial.space.axes import Axis, FieldType
from nfn_monomial.space.nodes import Node

from .partitions import Block, Contraction, alignments, contractions, ranks, require_nodes


class Route(NamedTuple):
    """All maps through one contracted type: every source contraction feeds every target expansion.

    Attributes:
        contracted: the contracted type R.
        sources: (index of the source field, contraction).
        targets: (index of the target field, expansion).
        chosen: see `Contraction`, of all sources.
    """

    contracted: FieldType
    sources: tuple[tuple[int, Contraction], ...]
    targets: tuple[tuple[int, Contraction], ...]
    chosen: frozenset[int]


def routes(
    sources: tuple[FieldType, ...], targets: tuple[FieldType, ...], nodes: Mapping[str, Node]
) -> tuple[Route, ...]:
    """The basis of all equivariant linear maps from fields ``sources`` to fields ``targets``, grouped into routes.

    The route through the empty type comes last and exists whenever a target can be broadcast to, even without
    sources: its expansions are the affine terms, the balanced partitions of A' alone.
    """
    rank = ranks(nodes)
    into: dict[FieldType, list[tuple[int, Contraction]]] = {}
    out_of: dict[FieldType, list[tuple[int, Contraction]]] = {}
    for i, source in enumerate(sources):
        for contracted, found in contractions(source, nodes, rank).items():
            orders = alignments(contracted, nodes, rank)
            into.setdefault(contracted, []).extend((i, _ordered(c, order)) for c in found for order in orders)
    for i, target in enumerate(targets):
        for contracted, found in contractions(target, nodes, rank).items():
            out_of.setdefault(contracted, []).extend((i, c) for c in found)
    shared = sorted((r for r in out_of if r in into or not r), key=len, reverse=True)
    return tuple(itertools.chain.from_iterable(_through(r, into.get(r, []), out_of[r]) for r in shared))


def _ordered(contraction: Contraction, order: Block) -> Contraction:
    """The same for another order of the contracted type's axes."""
    chosen = frozenset(n for n, k in enumerate(order) if k in contraction.chosen)
    return contraction._replace(open=tuple(contraction.open[k] for k in order), chosen=chosen)


def _through(
    contracted: FieldType, sources: list[tuple[int, Contraction]], targets: list[tuple[int, Contraction]]
) -> Iterator[Route]:
    """The routes through a type: what both ends choose to be one entry is a case of what neither does."""
    for chosen in dict.fromkeys([frozenset[int](), *(c.chosen for _, c in sources)]):
        rows = tuple((i, c) for i, c in sources if c.chosen == chosen)
        ends = tuple((i, c) for i, c in targets if not c.chosen & chosen)
        if ends and (rows or not contracted):
            yield Route(contracted, rows, ends, chosen)


@checked
def count_terms(
    sources: Mapping[FieldType, Size], targets: Mapping[FieldType, Size], nodes: Mapping[str, Node]
) -> tuple[int, int]:
    """Number of linear and of affine basis maps between fields with the given multiplicities.

    The dimensions of the space of equivariant maps wherever every node has at least as many neurons as a
    partition has blocks on it; a nested one, in each neuron of its parent, as a block of the parent has nested in it.
    """
    require_nodes((*sources, *targets), nodes)
    linear = affine = 0
    types_in, types_out = tuple(sources), tuple(targets)

    def channels(field_type: FieldType, multiplicity: int, contraction: Contraction) -> int:
        return multiplicity * entries([field_type[block[0]] for block in contraction.apart], nodes)

    for route in routes(types_in, types_out, nodes):
        inputs = sum(channels(types_in[i], sources[types_in[i]], c) for i, c in route.sources)
        outputs = sum(channels(types_out[i], targets[types_out[i]], c) for i, c in route.targets)
        linear += inputs * outputs * entries(route.contracted, nodes)
        affine += 0 if route.contracted else outputs
    return linear, affine


def entries(axes: Iterable[Axis], nodes: Mapping[str, Node]) -> int:
    """Into how many parts the FIXED ones among these axes take a field, all of which are told apart."""
    return math.prod(nodes[axis.node].size or 0 for axis in axes if not nodes[axis.node].permutes)
