"""The equivariant bilinear maps of two field types to a third, from set partitions with balanced charges.

Theorem (bilinear). The rule of the linear maps with two inputs of axes A1 and A2: a basis of the equivariant bilinear
maps to A' are the set partitions of A1 + A2 + A' whose blocks each lie on one node and are balanced, the charges in A1
and A2 minus those in A' reducing to 0; axes of nested nodes share a block only where those that they are nested in do.
`bilinear_terms` lists them as einsum equations, one letter a block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nfn_monomial.checks import Size, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.axes import Axis, Charge, FieldType, combined, opposite, powers
from nfn_monomial.space.nodes import Node
from nfn_monomial.space.places import places_of

from .partitions import balanced_partitions, field_key, require_nodes


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
        """True if every block joins axes of at least two of the three fields, and at most one of each.

        So these terms are contractions, alignments and outer products: none takes a diagonal of one field, an average
        over axes of one input alone, or a broadcast, which linear maps before or after the product can do.
        """
        fields = self.letters
        if any(len(set(field)) < len(field) for field in fields):
            return False
        return all(sum(letter in field for field in fields) > 1 for letter in "".join(fields))

    def imbalance(self, nodes: Mapping[str, Node]) -> dict[str, Charge]:
        """The letters whose charges, first + second - target, do not cancel, and their sums; empty if equivariant.

        Raises:
            ValueError: if the equation does not fit the axes, or a letter lies on two nodes, or in two letters.
        """
        charges: dict[str, list[tuple[Charge, int]]] = {}
        at: dict[str, str] = {}
        above: dict[str, str | None] = {}
        for letters, axes, sign in zip(self.letters, self[:3], (1, 1, -1), strict=True):
            if len(letters) != len(axes):
                raise InvalidValueError(f"term {self}: {len(letters)} letters {letters!r} for {len(axes)} axes")
            for letter, place in zip(letters, places_of(axes, nodes), strict=True):
                if at.setdefault(letter, place.node) != place.node:
                    raise InvalidValueError(f"term {self}: {letter!r} lies on nodes {at[letter]!r} and {place.node!r}")
                inside = letters[place.over[-1]] if place.over else None
                if above.setdefault(letter, inside) != inside:
                    raise InvalidValueError(f"term {self}: {letter!r} is nested in {above[letter]!r} and in {inside!r}")
                charges.setdefault(letter, []).append((place.charge, sign))
        rest = {
            letter: nodes[at[letter]].charge(combined(*zip(*signed, strict=True))) for letter, signed in charges.items()
        }
        return {letter: charge for letter, charge in rest.items() if any(powers(charge))}

    def __str__(self) -> str:
        first, second, target = map(field_key, self[:3])
        return f"{first},{second}->{target}:{self.equation}"


@checked
def bilinear_terms(
    first: FieldType, second: FieldType, target: FieldType, nodes: Mapping[str, Node]
) -> tuple[BilinearTerm, ...]:
    """The basis of all equivariant bilinear maps from two fields to a third.

    Args:
        first: axes of the first input field, charges reduced.
        second: axes of the second input field.
        target: axes of the output field.
        nodes: of the weight space.

    >>> from nfn_monomial.space import Axis
    >>> from nfn_monomial import Symmetry
    >>> nodes = {"h1": Node((Symmetry.SCALE,)), "h2": Node((Symmetry.SIGN,))}
    >>> weight, neurons, messages = (Axis("h2", 1), Axis("h1", -1)), (Axis("h1", 1),), (Axis("h2", 1),)
    >>> [str(term) for term in bilinear_terms(weight, neurons, messages, nodes)]
    ['h2+1_h1-1,h1+1->h2+1:ab,b->a']
    """
    require_nodes((first, second, target), nodes)
    return _terms(first, second, target, nodes)


def _terms(
    first: FieldType, second: FieldType, target: FieldType, nodes: Mapping[str, Node]
) -> tuple[BilinearTerm, ...]:
    opposed = tuple(Axis(axis.node, opposite(axis.charge)) for axis in target)
    one, two = len(first), len(first + second)
    terms = []
    for partition in balanced_partitions((first, second, opposed), nodes):
        letter = {i: chr(ord("a") + n) for n, block in enumerate(sorted(partition)) for i in block}
        text = "".join(letter[i] for i in range(two + len(target)))  # letters by first appearance
        terms.append(BilinearTerm(first, second, target, f"{text[:one]},{text[one:two]}->{text[two:]}"))
    return tuple(sorted(terms, key=lambda term: term.equation))


def standard_terms(
    first: Sequence[FieldType], second: Sequence[FieldType], target: Sequence[FieldType], nodes: Mapping[str, Node]
) -> list[BilinearTerm]:
    """All `BilinearTerm.standard` terms between any of these fields.

    Few fields meet: a node has axes in two of the three at least, so the nodes of two of them leave few third ones.
    """
    lying: dict[frozenset[str], list[int]] = {}
    for i, field_type in enumerate(target):
        lying.setdefault(_nodes_of(field_type), []).append(i)
    most = max(map(len, lying))
    terms = []
    on_second = [_nodes_of(field_type) for field_type in second]
    for one in first:
        here = _nodes_of(one)
        for two, there in zip(second, on_second, strict=True):
            alone = here ^ there
            if len(alone) > most:
                continue
            at = [lying.get(alone.union(also), []) for also in _subsets(here & there)]
            for i in sorted(itertools.chain.from_iterable(at)):
                terms += [term for term in _terms(one, two, target[i], nodes) if term.standard]
    return terms


def _nodes_of(field_type: FieldType) -> frozenset[str]:
    return frozenset(axis.node for axis in field_type)


def _subsets(names: frozenset[str]) -> Iterator[tuple[str, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(names, n) for n in range(len(names) + 1))


@checked
def count_bilinear_terms(
    first: Mapping[FieldType, Size],
    second: Mapping[FieldType, Size],
    target: Mapping[FieldType, Size],
    nodes: Mapping[str, Node],
) -> int:
    """Number of bilinear basis maps between fields with the given multiplicities.

    The dimension of the space of equivariant bilinear maps wherever every node has at least as many neurons as a
    partition has blocks on it, see `count_terms`.
    """
    require_nodes((*first, *second, *target), nodes)
    return sum(
        m1 * m2 * m * len(_terms(t1, t2, t, nodes))
        for (t1, m1), (t2, m2), (t, m) in itertools.product(first.items(), second.items(), target.items())
    )
