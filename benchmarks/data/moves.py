"""Networks turned into others that compute the same: moved by their symmetry group, or widened.

Their accuracies stay as they are: test sets of moved and of widened networks, and training sets with moved copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from nfn_monomial import WeightSpace
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix

from .networks import Corpus, Networks, Part, Parts, groups_of
from .seeds import derive_seed
from .widen import can_widen, widen

__all__ = [
    "WIDENED",
    "augment",
    "test_sets",
    "transform",
    "widened",
]

WIDENED = "widened"  # name of the test set of networks with more neurons and the same functions


def _drawn(space: WeightSpace, count: int, scale: float, seed: int) -> GroupElement:
    """A random element of the space's group for each of ``count`` networks, with scales in ``[1, scale]``."""
    return space.sample(count, scale_range=(1.0, scale), generator=torch.Generator().manual_seed(seed))


def transform(parts: Parts, scale: float, seed: int) -> Parts:
    """Moves every network by a random element of its own: permuted, and scaled in ``[1, scale]`` or sign-flipped."""
    return tuple(_moved(part, part.info.space, scale, derive_seed(seed, i)) for i, part in enumerate(parts))


def _moved(part: Part, group: WeightSpace, scale: float, seed: int) -> Part:
    moved = _drawn(group, len(part), scale, seed).act(part.networks.tensors)
    return replace(part, networks=Networks(moved, part.networks.accuracy))


def widened(parts: Parts, factor: float, seed: int) -> Parts:
    """Gives every network ``factor`` times the hidden neurons and the same function; copies are in random places.

    A template stays that of the networks before: its functional calls take wider parameters as well.
    """
    wide = []
    for i, (part, (tensors, space)) in enumerate(zip(parts, groups_of(parts), strict=True)):
        generator = torch.Generator().manual_seed(derive_seed(seed, i, "widen"))
        larger, wider = widen(space, tensors, factor, generator)
        networks = Networks({name: t.squeeze(1) for name, t in larger.items()}, part.networks.accuracy)
        copied = Part(networks, replace(part.info, space=wider))
        wide.append(_moved(copied, wider.restricted("permutation"), 1.0, derive_seed(seed, i, "permute")))
    return tuple(wide)


def test_sets(
    corpus: Corpus, scales: Sequence[float], widen: float, seed: int
) -> Iterator[tuple[str, float | None, Parts]]:
    """Yields names, upper bounds of scales (None if nothing was scaled), and networks of test sets.

    The test networks as they are; moved once per scale, or once if no group scales; and widened, unless ``widen`` is 0
    or some cannot be widened (`can_widen`).
    """
    yield "original", None, corpus.test
    if not corpus.scales:
        name = "sign flips" if corpus.flips else "permuted"
        yield name, None, transform(corpus.test, 1.0, derive_seed(seed, "test"))
    else:
        for scale in scales:
            yield f"scale {scale:g}", scale, transform(corpus.test, scale, derive_seed(seed, "test", scale))
    if widen and all(can_widen(info.space) for info in corpus.info.architectures):
        yield WIDENED, None, widened(corpus.test, widen, derive_seed(seed, WIDENED))


test_sets.__test__ = False  # type: ignore[attr-defined]


def augment(parts: Parts, scales: Sequence[float], seed: int) -> Parts:
    """Adds to every part a moved copy of each network, whose range of scales is drawn from ``scales``."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "ranges"))
    twice = []
    for i, part in enumerate(parts):
        choice = torch.randint(len(scales), (len(part),), generator=generator)
        counts = choice.bincount(minlength=len(scales)).tolist()
        drawn = [
            _drawn(part.info.space, count, scale, derive_seed(seed, i, scale))
            for scale, count in zip(scales, counts, strict=True)
        ]
        # One element for each network: those of all ranges, one after another, brought into the order of `choice`.
        index = choice.argsort(stable=True).argsort()
        matrices = {}
        for node in drawn[0].matrices:
            batches = [element.matrices[node] for element in drawn]
            stacked = [torch.cat(scale)[index] for scale in zip(*(m.scales for m in batches), strict=True)]
            matrices[node] = MonomialMatrix(stacked, torch.cat([m.permutation for m in batches])[index])
        element = GroupElement(part.info.space, matrices)
        tensors, accuracy = part.networks.tensors, part.networks.accuracy
        both = {name: torch.cat([tensors[name], t]) for name, t in element.act(tensors).items()}
        twice.append(replace(part, networks=Networks(both, torch.cat([accuracy, accuracy]))))
    return tuple(twice)
