"""Networks turned into others that compute the same when they are read: moved by their symmetry group, or widened.

Their accuracies stay as they are: test sets of moved and of widened networks, and training sets with moved copies.

What happens to each network is drawn beforehand for all of them: numbers per neuron, which are few beside the weights.
So a network does not depend on the batch that it is read in, and is the same as if all were turned at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix

from .networks import Corpus, Networks, Part, Parts
from .rows import ConcatRows, Rows, TensorRows
from .seeds import derive_seed
from .widen import Widening, can_widen, draw_widening

__all__ = [
    "WIDENED",
    "TestSet",
    "TurnedRows",
    "augment",
    "draw_elements",
    "draw_wider",
    "elements_of",
    "joined",
    "moved_rows",
    "test_sets",
    "transform",
    "widened",
    "widened_rows",
]

WIDENED = "widened"  # name of the test set of networks with more neurons and the same functions


@dataclass(frozen=True)
class TestSet:
    """Test networks, as they are (``scale`` None, name ``original``), moved by the group, or widened."""

    __test__ = False  # not a test case, whatever pytest makes of the name

    name: str
    scale: float | None
    parts: Parts


class TurnedRows(Rows):
    """Other rows, each network turned into another.

    Args:
        rows: N networks.
        turn: numbers of networks, and what was read of these -> what becomes of them.
        shapes: of a network's parameters afterwards.
    """

    def __init__(
        self,
        rows: Rows,
        turn: Callable[[Tensor, dict[str, Tensor]], dict[str, Tensor]],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.rows, self.turn, self._shapes = rows, turn, dict(shapes)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def places(self) -> Tensor:
        return self.rows.places

    def read(self, index: Tensor) -> dict[str, Tensor]:
        return self.turn(index, self.rows.read(index))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes


def moved_rows(rows: Rows, element: GroupElement) -> TurnedRows:
    """Each network moved by an element of its own, of a batch of N elements of the group of their weight space.

    Raises:
        ValueError: if there are not as many elements as networks.
    """
    if wrong := {node: m.batch for node, m in element.matrices.items() if m.batch != len(rows)}:
        raise InvalidValueError(f"{len(rows)} networks to move by {wrong} elements: each network needs one")
    return TurnedRows(rows, lambda index, tensors: elements_of(element, index).act(tensors), rows.shapes)


def widened_rows(rows: Rows, widening: Widening) -> TurnedRows:
    """Each network with more hidden neurons, as `draw_wider` has drawn it."""

    def turn(index: Tensor, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        wide = widening[index].apply({name: t.unsqueeze(1) for name, t in tensors.items()})
        return {name: t.squeeze(1) for name, t in wide.items()}

    return TurnedRows(rows, turn, {name: widening.wider.shape_of(name, widening.wide) for name in rows.shapes})


def draw_elements(space: WeightSpace, count: int, scale: float, seed: int) -> GroupElement:
    """A random element of the space's group for each of ``count`` networks, with scales in ``[1, scale]``."""
    return space.sample(count, scale_range=(1.0, scale), generator=torch.Generator().manual_seed(seed))


def draw_wider(rows: Rows, space: WeightSpace, factor: float, seed: int) -> Widening:
    """How each of these networks gets ``factor`` times the hidden neurons; see `Widening`."""
    sizes = space.node_sizes(space.pack({name: torch.zeros(1, 1, *shape) for name, shape in rows.shapes.items()}))
    return draw_widening(space, sizes, len(rows), factor, torch.Generator().manual_seed(seed))


def elements_of(element: GroupElement, index: Tensor) -> GroupElement:
    """Those with these numbers of a batch of elements, in this order."""
    matrices = {
        node: MonomialMatrix([d[index] for d in m.scales], m.permutation[index]) for node, m in element.matrices.items()
    }
    return GroupElement(element.space, matrices)


def joined(elements: Sequence[GroupElement]) -> GroupElement:
    """Batches of elements of one group, one after another."""
    matrices = {}
    for node in elements[0].matrices:
        parts = [element.matrices[node] for element in elements]
        scales = [torch.cat(scale) for scale in zip(*(m.scales for m in parts), strict=True)]
        matrices[node] = MonomialMatrix(scales, torch.cat([m.permutation for m in parts]))
    return GroupElement(elements[0].space, matrices)


def transform(parts: Parts, scale: float, seed: int) -> Parts:
    """Every network moved by a random element of its own: permuted, and scaled in ``[1, scale]`` or sign-flipped."""
    return tuple(_moved(part, part.info.space, scale, derive_seed(seed, i)) for i, part in enumerate(parts))


def _moved(part: Part, group: WeightSpace, scale: float, seed: int) -> Part:
    networks = part.networks
    rows = moved_rows(networks.rows, draw_elements(group, len(part), scale, seed))
    return replace(part, networks=Networks(_placed(networks.rows, rows), networks.accuracy))


def _placed(origin: Rows, rows: Rows) -> Rows:
    """Rows made of others: in memory if those are."""
    return TensorRows(rows.read_all()) if isinstance(origin, TensorRows) else rows


def widened(parts: Parts, factor: float, seed: int) -> Parts:
    """Every network with ``factor`` times the hidden neurons and the same function; copies in random places.

    A template stays that of the networks before: its functional calls take wider parameters as well.
    """
    wide = []
    for i, part in enumerate(parts):
        networks, space = part.networks, part.info.space
        drawn = draw_wider(networks.rows, space, factor, derive_seed(seed, i, "widen"))
        rows = _placed(networks.rows, widened_rows(networks.rows, drawn))
        larger = Part(Networks(rows, networks.accuracy), replace(part.info, space=drawn.wider))
        wide.append(_moved(larger, drawn.wider.restricted("permutation"), 1.0, derive_seed(seed, i, "permute")))
    return tuple(wide)


def test_sets(corpus: Corpus, scales: Sequence[float], widen: float, seed: int) -> Iterator[TestSet]:
    """The test networks as they are; moved: once per scale, or once if no group scales; and widened unless by 0, or
    there are some of which it is not known how (`can_widen`).
    """
    yield TestSet("original", None, corpus.test)
    if not corpus.scales:
        name = "sign flips" if corpus.flips else "permuted"
        yield TestSet(name, None, transform(corpus.test, 1.0, derive_seed(seed, "test")))
    else:
        for scale in scales:
            yield TestSet(f"scale {scale:g}", scale, transform(corpus.test, scale, derive_seed(seed, "test", scale)))
    if widen and all(can_widen(info.space) for info in corpus.info.architectures):
        yield TestSet(WIDENED, None, widened(corpus.test, widen, derive_seed(seed, WIDENED)))


test_sets.__test__ = False  # type: ignore[attr-defined]


def augment(parts: Parts, scales: Sequence[float], seed: int) -> Parts:
    """In every part its networks, then a moved copy of each whose range of scales is drawn from ``scales``."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "ranges"))
    twice = []
    for i, part in enumerate(parts):
        choice = torch.randint(len(scales), (len(part),), generator=generator)
        counts = choice.bincount(minlength=len(scales)).tolist()
        drawn = [
            draw_elements(part.info.space, count, scale, derive_seed(seed, i, scale))
            for scale, count in zip(scales, counts, strict=True)
        ]
        element = elements_of(joined(drawn), choice.argsort(stable=True).argsort())
        rows, accuracy = part.networks.rows, part.networks.accuracy
        both = _placed(rows, ConcatRows([rows, moved_rows(rows, element)]))
        twice.append(replace(part, networks=Networks(both, torch.cat([accuracy, accuracy]))))
    return tuple(twice)
