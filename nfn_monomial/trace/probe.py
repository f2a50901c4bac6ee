"""Operators that have neither a rule nor parts, run alone on random tensors: which permutations do they keep?

For permutations of one dimension it is enough to look at a transposition and a cycle, which generate all others. What
holds at several random tensors, in float64, is taken to hold. Scales and signs are not looked at: that a function is
odd or homogeneous where it was tried says nothing of larger numbers.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from .decomposed import Like

_SIZES = (1.0, 0.1, 100.0)  # of random entries: some operators do other things with large ones
_MOST_ENTRIES = 2**16  # of all arguments together: there are some hundred calls, and no clock may decide on a group
_TOLERANCE = 1e-10  # of the largest entry of an output

Side: TypeAlias = tuple[int, int]  # number of a tensor, and one of its dimensions
Call: TypeAlias = Callable[[Sequence[Tensor]], list[Tensor]]


class Tie(NamedTuple):
    """Dimensions of inputs that are permuted together, and those of outputs that are then permuted likewise."""

    inputs: tuple[Side, ...]
    outputs: tuple[Side, ...]


class Probe(NamedTuple):
    """Permutations that an operator keeps.

    Attributes:
        pointwise: whether it is one function of each entry of its only tensor.
        ties: see `Tie`; a dimension that is in none of them keeps its order.
    """

    pointwise: bool
    ties: tuple[Tie, ...]


def probe(target: Any, args: Any, kwargs: Any) -> Probe | None:
    """Returns which permutations an operator keeps; None where there are none, or it cannot be run alone.

    It cannot if it draws random numbers, changes its arguments, reads or returns whole numbers, has no kernel for
    float64 on a CPU, or reads more than 65,536 entries.

    Args:
        target: the operator.
        args, kwargs: of the call, a `Like` for each tensor.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf=lambda v: isinstance(v, Like))
    likes = [leaf for leaf in leaves if isinstance(leaf, Like)]
    small = sum(torch.Size(like.shape).numel() for like in likes) <= _MOST_ENTRIES
    if not isinstance(target, OpOverload) or target._schema.is_mutable or not likes or not small:
        return None
    if not all(like.dtype.is_floating_point for like in likes):
        return None
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad():
            warnings.simplefilter("ignore")
            return _probed(target, spec, *leaves)
    except Exception:  # of any kind: operators may want anything of their arguments
        return None


@functools.lru_cache(maxsize=256, typed=True)
def _probed(target: OpOverload, spec: Any, *leaves: Any) -> Probe | None:
    def call(tensors: Sequence[Tensor]) -> list[Tensor]:
        copies = iter([tensor.clone() for tensor in tensors])
        args, kwargs = pytree.tree_unflatten([next(copies) if isinstance(v, Like) else v for v in leaves], spec)
        outputs = target(*args, **kwargs)
        return list(outputs) if isinstance(outputs, list | tuple) else [outputs]

    generator = torch.Generator().manual_seed(0)
    likes = [leaf for leaf in leaves if isinstance(leaf, Like)]
    draws = [
        [torch.randn(like.shape, dtype=torch.float64, generator=generator) * size for like in likes] for size in _SIZES
    ]
    draws.append([tensor.abs() for tensor in draws[0]])  # for operators of positive numbers
    known = []
    for tensors in draws:
        random = torch.get_rng_state()
        outputs = call(tensors)
        if not torch.equal(random, torch.get_rng_state()) or not _same(outputs, call(tensors)):
            return None
        if all(bool(output.isfinite().all()) for output in outputs):
            known.append((tensors, outputs))
    if len(known) < 2:
        return None
    if not all(output.is_floating_point() for output in known[0][1]):
        return None
    if _is_pointwise(call, known):
        return Probe(True, ())
    ties = list(_ties(call, known))
    onto = [place for tie in ties for place in tie.outputs]
    ties = [tie for tie in ties if all(onto.count(place) == 1 for place in tie.outputs)]  # one order cannot follow two
    return Probe(False, tuple(ties)) if ties else None


def _is_pointwise(call: Call, known: Sequence[tuple[list[Tensor], list[Tensor]]]) -> bool:
    """Returns whether an operator is one function of each entry: all entries may be permuted, and do not see others."""
    if any([t.shape for t in tensors] != [t.shape for t in outputs] or len(tensors) > 1 for tensors, outputs in known):
        return False
    for (x,), (out,) in known:
        for order in _generators(x.numel()):
            if not _same(call([x.flatten()[order].view(x.shape)]), [out.flatten()[order].view(x.shape)]):
                return False
        others = torch.arange(x.numel()).view(x.shape) % 2 == 0
        changed = call([torch.where(others, 2 * x + 1, x)])[0]
        if not _same([changed[~others]], [out[~others]]) or _same([changed], [out]):
            return False
    return known[0][0][0].numel() > 1


def _ties(call: Call, known: Sequence[tuple[list[Tensor], list[Tensor]]]) -> Iterator[Tie]:
    """Yields what is permuted together: one dimension alone, else those at one place counted from the last or first."""
    inputs, outputs = known[0]
    taken = set[Side]()
    for places in _candidates([tensor.shape for tensor in inputs]):
        if not taken.isdisjoint(places) or any(_ignores(call, known, place) for place in places):
            continue  # what nobody reads shows nothing
        size = inputs[places[0][0]].shape[places[0][1]]
        onto: list[Side] = []
        for o, output in enumerate(outputs):
            sides = [None, *((o, j) for j, n in enumerate(output.shape) if n == size)]
            following = [side for side in sides if _follows(call, known, places, o, side)]
            if not following:
                break
            if following[0] is not None:
                onto.append(following[0])
        else:
            taken.update(places)
            yield Tie(places, tuple(onto))


def _candidates(shapes: Sequence[Sequence[int]]) -> Iterator[tuple[Side, ...]]:
    """Yields dimensions of inputs that may have to be permuted together, fewer first."""
    alone = [(i, d) for i, shape in enumerate(shapes) for d, n in enumerate(shape) if n > 1]
    yield from ((place,) for place in alone)
    for from_last in (True, False):
        by_place: dict[Side, list[Side]] = {}
        for i, d in alone:
            by_place.setdefault((d - len(shapes[i]) if from_last else d, shapes[i][d]), []).append((i, d))
        yield from (tuple(places) for places in by_place.values() if len(places) > 1)


def _ignores(call: Call, known: Sequence[tuple[list[Tensor], list[Tensor]]], place: Side) -> bool:
    """Returns whether outputs stay as they are where entries at the first place of a dimension change."""
    for tensors, outputs in known:
        changed = [tensor.clone() for tensor in tensors]
        changed[place[0]].select(place[1], 0).mul_(1.5)
        if not _same(call(changed), outputs):
            return False
    return True


def _follows(
    call: Call,
    known: Sequence[tuple[list[Tensor], list[Tensor]]],
    places: Sequence[Side],
    number: int,
    side: Side | None,
) -> bool:
    """Returns whether an output follows permutations of inputs along one dimension, or stays as it is for None."""
    for (tensors, outputs), n in itertools.product(known, (0, 1)):
        permuted = list(tensors)
        for i, d in places:
            order = _generators(tensors[i].shape[d])[n]
            permuted[i] = permuted[i].index_select(d, order)
        expected = outputs[number].index_select(side[1], order) if side else outputs[number]
        if not _same([call(permuted)[number]], [expected]):
            return False
    return True


def _generators(size: int) -> tuple[Tensor, Tensor]:
    """Returns a transposition and a cycle: they generate all permutations."""
    swap = torch.arange(size)
    swap[:2] = swap[:2].flip(0)
    return swap, torch.arange(size).roll(1)


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(
        a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=_TOLERANCE * float(b.abs().max()) if b.numel() else 0)
        for a, b in zip(some, others, strict=True)
    )
