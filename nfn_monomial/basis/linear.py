"""Which terms survive: the equivariant maps between two field types, from set partitions with balanced charges.

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

Theorem (bilinear). The same rule with two inputs of axes A1 and A2: a basis of the equivariant bilinear maps to A' are
the set partitions of A1 + A2 + A' whose blocks each lie on one node and are balanced, the charges in A1 and A2 minus
those in A' reducing to 0. `bilinear_terms` lists them as einsum equations, one letter a block.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nfn_monomial.space.features import Axis, FieldType
from nfn_monomial.symmetry import Symmetry

Block = tuple[int, ...]


class Contraction(NamedTuple):
    """How a field's axes meet the axes of a contracted type; positions count the field's axes from 0.

    Attributes:
        open: for each axis of the contracted type, the block of the field's axes that it stands for.
        closed: the blocks that are averaged over (read as an expansion: broadcast over).
    """

    open: tuple[Block, ...]
    closed: tuple[Block, ...]


def contractions(field_type: FieldType, symmetries: Mapping[str, Symmetry]) -> dict[FieldType, list[Contraction]]:
    """All ways to contract a field: contracted type -> its contractions.

    Contracted types are canonically ordered as the field's own axes are. Where a contracted type has equal axes,
    each contraction is listed in one order; `routes` adds the others.

    Args:
        field_type: the field's axes, charges reduced.
        symmetries: node -> symmetry.
    """
    nodes = list(dict.fromkeys(axis.node for axis in field_type))  # the field's order is canonical
    per_node = []
    for node in nodes:
        positions = tuple(i for i, axis in enumerate(field_type) if axis.node == node)
        per_node.append(list(_node_contractions(field_type, positions, node, symmetries[node])))
    found: dict[FieldType, list[Contraction]] = {}
    for parts in itertools.product(*per_node):
        contracted = tuple(axis for axes, _, _ in parts for axis in axes)
        opened = tuple(block for _, blocks, _ in parts for block in blocks)
        closed = tuple(block for _, _, blocks in parts for block in blocks)
        found.setdefault(contracted, []).append(Contraction(opened, closed))
    return found


def _node_contractions(
    field_type: FieldType, positions: Block, node: str, symmetry: Symmetry
) -> Iterator[tuple[FieldType, tuple[Block, ...], tuple[Block, ...]]]:
    """Contractions of the axes on one node: (axes left, open blocks, closed blocks)."""
    for partition in set_partitions(positions):
        charged = [(symmetry.charge(sum(field_type[i].charge for i in block)), block) for block in partition]
        neutral = [block for charge, block in charged if charge == 0]
        for count in range(len(neutral) + 1):
            for closed in itertools.combinations(neutral, count):
                opened = sorted((c for c in charged if c[1] not in closed), key=lambda c: (-c[0], c[1]))
                yield tuple(Axis(node, c) for c, _ in opened), tuple(b for _, b in opened), closed


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
    sources: tuple[FieldType, ...], targets: tuple[FieldType, ...], symmetries: Mapping[str, Symmetry]
) -> tuple[Route, ...]:
    """The basis of all equivariant linear maps from fields ``sources`` to fields ``targets``, grouped into routes.

    The route through the empty type comes last and exists whenever a target can be broadcast to, even without
    sources: its expansions are the affine terms, the balanced partitions of A' alone.
    """
    into: dict[FieldType, list[tuple[int, Contraction]]] = {}
    out_of: dict[FieldType, list[tuple[int, Contraction]]] = {}
    for i, source in enumerate(sources):
        for contracted, found in contractions(source, symmetries).items():
            into.setdefault(contracted, []).extend(
                (i, Contraction(order, c.closed)) for c in found for order in _orders(contracted, c.open)
            )
    for i, target in enumerate(targets):
        for contracted, found in contractions(target, symmetries).items():
            out_of.setdefault(contracted, []).extend((i, c) for c in found)
    shared = sorted((r for r in out_of if r in into or not r), key=len, reverse=True)
    return tuple(Route(r, tuple(into.get(r, ())), tuple(out_of[r])) for r in shared)


def _orders(contracted: FieldType, blocks: tuple[Block, ...]) -> Iterator[tuple[Block, ...]]:
    """``blocks`` in every order that maps equal axes of ``contracted`` to one another."""
    groups = [list(g) for _, g in itertools.groupby(range(len(blocks)), key=lambda i: contracted[i])]
    for choice in itertools.product(*(itertools.permutations(g) for g in groups)):
        yield tuple(blocks[i] for i in itertools.chain.from_iterable(choice))


def count_terms(
    sources: Mapping[FieldType, int], targets: Mapping[FieldType, int], symmetries: Mapping[str, Symmetry]
) -> tuple[int, int]:
    """Number of linear and of affine basis maps between fields with the given multiplicities.

    The dimensions of the space of equivariant maps wherever every node has at least as many neurons as a
    partition has blocks on it.
    """
    linear = affine = 0
    m_in, m_out = list(sources.values()), list(targets.values())
    for route in routes(tuple(sources), tuple(targets), symmetries):
        outputs = sum(m_out[i] for i, _ in route.targets)
        linear += sum(m_in[i] for i, _ in route.sources) * outputs
        affine += 0 if route.contracted else outputs
    return linear, affine


class BilinearTerm(NamedTuple):
    """One basis map of the theorem (bilinear), as an einsum equation between the axes of three fields.

    The blocks of the partition are letters, named in order of appearance: ``"ab,b->a"`` contracts the last axis of
    the first field with the second field. Letters on the left alone are averaged over, on the right alone broadcast
    over; a letter twice in one field takes or makes a diagonal.

    Attributes:
        first: axes of the first input.
        second: axes of the second input.
        target: axes of the output.
        equation: one letter for each axis, as above.
    """

    first: FieldType
    second: FieldType
    target: FieldType
    equation: str

    @property
    def letters(self) -> tuple[str, str, str]:
        """The letters of the first, the second and the target field."""
        first, second, target = self.equation.replace("->", ",").split(",")
        return first, second, target

    @property
    def standard(self) -> bool:
        """Whether every block joins axes of at least two of the three fields, and at most one of each.

        Contractions, alignments and outer products, that is: no diagonal of one field, no average over one input's
        axes alone, and no broadcast. What this leaves out, linear maps before or after the product can do.
        """
        fields = self.letters
        if any(len(set(field)) < len(field) for field in fields):
            return False
        return all(sum(letter in field for field in fields) > 1 for letter in "".join(fields))

    def imbalance(self, symmetries: Mapping[str, Symmetry]) -> dict[str, int]:
        """The letters whose charges do not cancel, first + second - target, and what is left. Empty: equivariant.

        Raises:
            ValueError: if the equation does not fit the axes, or a letter lies on two nodes.
        """
        left: dict[str, int] = {}
        nodes: dict[str, str] = {}
        for letters, axes, sign in zip(self.letters, self[:3], (1, 1, -1), strict=True):
            if len(letters) != len(axes):
                raise ValueError(f"term {self}: {len(letters)} letters {letters!r} for {len(axes)} axes")
            for letter, axis in zip(letters, axes, strict=True):
                if nodes.setdefault(letter, axis.node) != axis.node:
                    raise ValueError(f"term {self}: {letter!r} lies on nodes {nodes[letter]!r} and {axis.node!r}")
                left[letter] = left.get(letter, 0) + sign * axis.charge
        reduced = {letter: symmetries[nodes[letter]].charge(charge) for letter, charge in left.items()}
        return {letter: charge for letter, charge in reduced.items() if charge}

    def __str__(self) -> str:
        first, second, target = ("_".join(f"{a.node}{a.charge:+d}" for a in axes) or "const" for axes in self[:3])
        return f"{first},{second}->{target}:{self.equation}"


def bilinear_terms(
    first: FieldType, second: FieldType, target: FieldType, symmetries: Mapping[str, Symmetry]
) -> tuple[BilinearTerm, ...]:
    """The basis of all equivariant bilinear maps from two fields to a third.

    Args:
        first: axes of the first input field, charges reduced.
        second: axes of the second input field.
        target: axes of the output field.
        symmetries: node -> symmetry.

    >>> symmetries = {"h1": Symmetry.SCALE, "h2": Symmetry.SIGN}
    >>> weight, neurons, messages = (Axis("h2", 1), Axis("h1", -1)), (Axis("h1", 1),), (Axis("h2", 1),)
    >>> [str(term) for term in bilinear_terms(weight, neurons, messages, symmetries)]
    ['h2+1_h1-1,h1+1->h2+1:ab,b->a']
    """
    axes = (*first, *second, *target)
    signs = [1] * len(first + second) + [-1] * len(target)
    per_node = []
    for node in dict.fromkeys(axis.node for axis in axes):
        at = [i for i, axis in enumerate(axes) if axis.node == node]
        balanced = _balanced_partitions(tuple(signs[i] * axes[i].charge for i in at), symmetries[node])
        per_node.append([[tuple(at[k] for k in block) for block in partition] for partition in balanced])
    found = []
    for parts in itertools.product(*per_node):
        blocks = sorted(itertools.chain.from_iterable(parts))  # by first appearance
        letter = {i: chr(ord("a") + n) for n, block in enumerate(blocks) for i in block}
        text = "".join(letter[i] for i in range(len(axes)))
        one, two = len(first), len(first + second)
        found.append(BilinearTerm(first, second, target, f"{text[:one]},{text[one:two]}->{text[two:]}"))
    return tuple(sorted(found, key=lambda term: term.equation))


@functools.cache
def _balanced_partitions(charges: tuple[int, ...], symmetry: Symmetry) -> tuple[tuple[Block, ...], ...]:
    """Partitions of axes of one node, given their charges, in which the charges of every block cancel."""
    if symmetry.charge(sum(charges)):
        return ()  # they do not even cancel all together
    return tuple(
        partition
        for partition in set_partitions(tuple(range(len(charges))))
        if all(symmetry.charge(sum(charges[i] for i in block)) == 0 for block in partition)
    )


def count_bilinear_terms(
    first: Mapping[FieldType, int],
    second: Mapping[FieldType, int],
    target: Mapping[FieldType, int],
    symmetries: Mapping[str, Symmetry],
) -> int:
    """Number of bilinear basis maps between fields with the given multiplicities.

    The dimension of the space of equivariant bilinear maps wherever every node has at least as many neurons as a
    partition has blocks on it.
    """
    return sum(
        m1 * m2 * m * len(bilinear_terms(t1, t2, t, symmetries))
        for (t1, m1), (t2, m2), (t, m) in itertools.product(first.items(), second.items(), target.items())
    )
