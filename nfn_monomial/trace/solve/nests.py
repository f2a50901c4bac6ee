"""Which index sets are nested in which: indices that, wherever they occur, belong to an item of another set.

The channels ``d`` of attention heads ``H`` are an example: an operation that ties ``d`` to ``d`` ties the heads that
they belong to as well, so in every head they may be permuted on their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nfn_monomial.trace.algebra.ledger import Step
from nfn_monomial.trace.algebra.moves import Run
from nfn_monomial.trace.algebra.values import Index, Segment, Value, indices


def nests_of(run: Run, classes: Iterable[int], roots: Iterable[Value]) -> dict[int, int]:
    """Class -> the class that it is nested in, for those of ``classes`` that are; after the last pass.

    What they are nested in may be FIXED: then they move in each of its items on their own, and these stay.

    Args:
        run: the pass.
        classes: that may be nested.
        roots: the parameters: in each a nested index has to stand behind the one that it belongs to.
    """
    steps = [Step(tuple(map(run.resolved, step.values)), step.ties) for step in run.steps]
    candidates, ahead = _candidates(run, steps, set(classes))
    for step in steps:
        _filter(run, step, candidates)
    for root in roots:
        _filter_layout(run, root, candidates)
    for child, above in candidates.items():  # of two that always occur together, the one in front is the parent
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
    """Of several candidates the one that is itself nested in most of the others, the first where this says nothing."""
    return max(above, key=lambda p: (sum(other in candidates.get(p, ()) for other in above), -above.index(p)))


def segments(found: Value) -> Iterable[tuple[Segment, list[Segment]]]:
    """Every segment with those of other dimensions that all its entries meet."""
    single = [dim[0] for dim in found.dims if len(dim) == 1]
    for dim in found.dims:
        for segment in dim:
            yield segment, [other for other in single if other is not segment]


def _candidates(run: Run, steps: Iterable[Step], wanted: set[int]) -> tuple[dict[int, list[int]], set[tuple[int, int]]]:
    """Class -> those that occur wherever it does, and pairs of which the first stands in front in a product."""
    found: dict[int, list[int]] = {}
    ahead: set[tuple[int, int]] = set()
    find = run.atoms.find
    for step in steps:
        for seen in step.values:
            for segment, others in segments(seen):
                own = [find(i.atom) for i in segment.indices]
                beside = list(dict.fromkeys(own + [find(i.atom) for o in others for i in o.indices]))
                for n, child in enumerate(own):
                    if child not in wanted:
                        continue
                    ahead.update((p, child) for p in own[:n])
                    near = own[:n][::-1]  # in front of it in the same product first
                    order = [p for p in dict.fromkeys(near + beside) if p != child]
                    found[child] = [p for p in found[child] if p in order] if child in found else order
    return found, ahead


def parent_index(run: Run, segment: Segment, others: Sequence[Segment], child: Index, parent: int) -> Index | None:
    """The index that one of a nested class belongs to: the only one of its parent's, or the one in front of it."""
    find = run.atoms.find
    at = segment.indices.index(child)
    near = [i for i in segment.indices[:at] if find(i.atom) == parent]
    every = [i for s in (segment, *others) for i in s.indices if find(i.atom) == parent]
    if len(every) == 1:
        return every[0]
    return near[-1] if near else None


def _filter(run: Run, step: Step, candidates: dict[int, list[int]]) -> None:
    """Strike out parents of a class whose indices a step ties without tying the parent's."""
    find = run.atoms.find
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
                    above = parent_index(run, segment, others, index, parent)
                    key = root(index.token), parent
                    if above is None or belongs.setdefault(key, root(above.token)) != root(above.token):
                        candidates[child].remove(parent)


def _filter_layout(run: Run, root: Value, candidates: dict[int, list[int]]) -> None:
    """Strike out parents that a parameter has behind their children."""
    find = run.atoms.find
    before: list[Index] = []
    for dim in root.dims:
        single = [other[0] for other in root.dims if len(other) == 1 and other is not dim]
        for segment in dim:
            for n, index in enumerate(segment.indices):
                for parent in list(candidates.get(find(index.atom), ())):
                    near = [i for i in (*before, *segment.indices[:n]) if find(i.atom) == parent]
                    if not near or near[-1] != parent_index(run, segment, single, index, parent):
                        candidates[find(index.atom)].remove(parent)
        before += indices(dim) if len(dim) == 1 else []
