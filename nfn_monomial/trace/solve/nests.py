"""Nests of index sets: indices that, wherever they occur, belong to an item of another set.

The channels ``d`` of attention heads ``H`` are an example: an operation that ties ``d`` to ``d`` ties the heads that
they belong to as well, so in every head they may be permuted on their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from nfn_monomial.trace.algebra.run import Meeting, Run
from nfn_monomial.trace.algebra.values import Index, Segment, Value, indices

Find: TypeAlias = Callable[[int], int]  # the class of an atom


def nests_of(run: Run, classes: Iterable[int], parameters: Iterable[Value]) -> dict[int, int]:
    """Returns, for those of ``classes`` that are nested, the class that each is nested in.

    What they are nested in may be FIXED: then they move in each of its items on their own, and these stay.

    Args:
        run: the last pass that ties.
        classes: those that may be nested.
        parameters: in each a nested index has to come after the one that it belongs to.
    """
    find = run.sets.atoms.find
    steps = [Meeting(tuple(map(run.sets.resolved, step.values)), step.ties) for step in run.steps]
    candidates, ahead = _candidates(find, steps, set(classes))
    for step in steps:
        _filter(find, step, candidates)
    for parameter in parameters:
        _filter_layout(find, parameter, candidates)
    for child, above in candidates.items():  # of two that always occur together, the first is the parent
        for other in [p for p in above if child in candidates.get(p, ())]:
            if ((child, other) in ahead, child) > ((other, child) in ahead, other):
                above.remove(other)
            else:
                candidates[other].remove(child)
    parents: dict[int, int] = {}
    for child in sorted(candidates):
        above = [p for p in candidates[child] if not _reaches(parents, p, child)]
        if above:
            parents[child] = _deepest(above, candidates)
    return parents


def _reaches(parents: dict[int, int], start: int, goal: int) -> bool:
    node: int | None = start
    while node is not None:
        if node == goal:
            return True
        node = parents.get(node)
    return False


def _deepest(above: Sequence[int], candidates: dict[int, list[int]]) -> int:
    """Returns the candidate that is itself nested in most of the others, the first where this says nothing."""
    return max(above, key=lambda p: (sum(other in candidates.get(p, ()) for other in above), -above.index(p)))


def segments(x: Value) -> Iterable[tuple[Segment, list[Segment]]]:
    """Yields every segment with those of other dimensions that all its entries meet."""
    single = [dim[0] for dim in x.dims if len(dim) == 1]
    for dim in x.dims:
        for segment in dim:
            yield segment, [other for other in single if other is not segment]


def _candidates(
    find: Find, steps: Iterable[Meeting], wanted: set[int]
) -> tuple[dict[int, list[int]], set[tuple[int, int]]]:
    """Returns, for each class, those that occur wherever it does; and pairs of which one comes first in products."""
    candidates: dict[int, list[int]] = {}
    ahead: set[tuple[int, int]] = set()
    for step in steps:
        for seen in step.values:
            for segment, others in segments(seen):
                factors = [find(i.atom) for i in segment.indices]
                beside = list(dict.fromkeys(factors + [find(i.atom) for o in others for i in o.indices]))
                for n, child in enumerate(factors):
                    if child not in wanted:
                        continue
                    ahead.update((p, child) for p in factors[:n])
                    near = factors[:n][::-1]  # those before it in the same product first
                    order = [p for p in dict.fromkeys(near + beside) if p != child]
                    candidates[child] = [p for p in candidates.get(child, order) if p in order]
    return candidates, ahead


def parent_index(find: Find, segment: Segment, others: Sequence[Segment], child: Index, parent: int) -> Index | None:
    """Returns the index that a nested one belongs to: the only one of the parent's, or the last one before it."""
    at = segment.indices.index(child)
    near = [i for i in segment.indices[:at] if find(i.atom) == parent]
    every = [i for s in (segment, *others) for i in s.indices if find(i.atom) == parent]
    if len(every) == 1:
        return every[0]
    return near[-1] if near else None


def _filter(find: Find, step: Meeting, candidates: dict[int, list[int]]) -> None:
    """Strikes out parents of a class whose indices a step ties without tying the parent's."""
    tied: dict[int, int] = {}

    def root(token: int) -> int:
        while token in tied:
            token = tied[token]
        return token

    for a, b in step.ties:
        if root(a) != root(b):
            tied[root(a)] = root(b)
    belongs: dict[tuple[int, int], int] = {}
    for seen in step.values:
        for segment, others in segments(seen):
            for index in segment.indices:
                child = find(index.atom)
                for parent in list(candidates.get(child, ())):
                    above = parent_index(find, segment, others, index, parent)
                    key = root(index.token), parent
                    if above is None or belongs.setdefault(key, root(above.token)) != root(above.token):
                        candidates[child].remove(parent)


def _filter_layout(find: Find, parameter: Value, candidates: dict[int, list[int]]) -> None:
    """Strikes out parents that a parameter has after their children."""
    before: list[Index] = []
    for dim in parameter.dims:
        single = [other[0] for other in parameter.dims if len(other) == 1 and other is not dim]
        for segment in dim:
            for n, index in enumerate(segment.indices):
                for parent in list(candidates.get(find(index.atom), ())):
                    near = [i for i in (*before, *segment.indices[:n]) if find(i.atom) == parent]
                    if not near or near[-1] != parent_index(find, segment, single, index, parent):
                        candidates[find(index.atom)].remove(parent)
        before += indices(dim) if len(dim) == 1 else []
