"""Data sets that training reads batch by batch: in memory, or larger than it."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.models import NetworkGroup

from .networks import Parts, accuracies, group_of, groups_of
from .rows import IN_MEMORY_BYTES, MixedRows, Mixture, Rows, Source

__all__ = [
    "BLOCK_BYTES",
    "BUFFER_BYTES",
    "KEPT_BYTES",
    "Data",
    "DataSet",
    "Made",
    "StreamedData",
    "pick",
    "prepared",
    "shuffled_blocks",
]

BLOCK_BYTES = 2**22
"""Of networks that lie side by side and stay together when a set is shuffled that is too large for memory."""
BUFFER_BYTES = 2**26
"""Of networks that are read at once, from blocks all over the set, and shuffled among one another."""
KEPT_BYTES, KEPT_SHARE = 2**29, 1 / 8
"""Prepared inputs of a streamed set stay in memory if they take at most so much, and such a share of the networks."""

T = TypeVar("T")
U = TypeVar("U")


def pick(tree: Any, index: Tensor) -> Any:
    """Those examples of a pytree of tensors: ``index_select`` along the first dimension of every leaf."""
    leaves, structure = pytree.tree_flatten(tree)
    index = index.to(leaves[0].device, non_blocking=True)
    return pytree.tree_unflatten([t.index_select(0, index) for t in leaves], structure)


def _bytes(tree: Any) -> int:
    return sum(t.nbytes for t in pytree.tree_leaves(tree))


class DataSet(ABC):
    """Inputs, and ``targets``: pytrees of tensors whose first dimension counts the examples."""

    targets: Any

    def __len__(self) -> int:
        return len(pytree.tree_leaves(self.targets)[0])

    def take(self, index: Tensor) -> Data:
        """The examples with these numbers."""
        (inputs,) = self.read([index])
        return Data(inputs, pick(self.targets, index))

    @abstractmethod
    def read(self, indices: Iterable[Tensor]) -> Iterator[Any]:
        """Inputs only, of the examples with these numbers: one batch for each of ``indices``, in order."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """What all inputs take, or the networks that they are made of."""

    def order(self, generator: torch.Generator) -> Tensor:
        """The numbers of all examples, shuffled for an epoch, int64 ``(N,)``."""
        return torch.randperm(len(self), generator=generator)

    @abstractmethod
    def to(self, device: torch.device) -> DataSet:
        """The same, with everything that it gives on this device."""


@dataclass(frozen=True)
class Data(DataSet):
    """In memory: pytrees of tensors. A batch is taken out by index, without work per example in Python."""

    inputs: Any
    targets: Any

    @property
    def nbytes(self) -> int:
        return _bytes(self.inputs)

    def read(self, indices: Iterable[Tensor]) -> Iterator[Any]:
        return (pick(self.inputs, index) for index in indices)

    def to(self, device: torch.device) -> Data:
        return Data(*(pytree.tree_map(lambda t: t.to(device), x) for x in (self.inputs, self.targets)))


class Made:
    """Targets that are made when it is their turn: a leaf that `pick` takes rows out of, as of a tensor.

    Args:
        count: how many.
        make: their numbers, int64 ``(n,)`` on the CPU, to ``(n, ...)``; the same for the same numbers.
        device: where they are put.
    """

    def __init__(self, count: int, make: Callable[[Tensor], Tensor], device: torch.device | None = None) -> None:
        self.count, self.make, self.device = count, make, device or torch.device("cpu")

    def __len__(self) -> int:
        return self.count

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """Those with these numbers; ``dim`` is 0."""
        if dim:
            raise InvalidValueError(f"targets are taken out along dimension 0, not {dim}")
        return self.make(index.cpu()).to(self.device, non_blocking=True)

    def to(self, device: torch.device) -> Made:
        """The same on another device."""
        return Made(self.count, self.make, device)


@dataclass(frozen=True)
class StreamedData(DataSet):
    """Read when it is its turn: memory holds the networks of two buffers, and two batches, in use and next.

    The next buffer is read in one background thread, in the order in which networks lie, and the next batch prepared in
    another. Training and predictions are those of `Data` with all networks prepared at once, if ``prepare`` treats each
    network alone; of sets that are too large for memory the order of training is another, see `order`.

    Where prepared inputs are far smaller than the networks (`KEPT_BYTES`, `KEPT_SHARE`; of one architecture, as others
    are padded by the batch), all are made before the first batch is read, once, and stay in memory (`kept`).

    Attributes:
        rows: the networks, as many as there are targets.
        prepare: what ``rows`` read, on the CPU, to inputs, a pytree of ``(n, ...)``. Not random, as it runs beside the
            training.
        targets: in memory, or `Made`.
        device: where batches are put.
        buffer_bytes: of networks that are read at once; a batch of larger ones is read by itself.
    """

    rows: Source
    prepare: Callable[[Any], Any]
    targets: Any
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    buffer_bytes: int = field(default_factory=lambda: BUFFER_BYTES)

    def __post_init__(self) -> None:
        if len(self.rows) != len(self):
            raise InvalidValueError(f"{len(self.rows)} networks and {len(self)} targets: each network needs one")

    def order(self, generator: torch.Generator) -> Tensor:
        """As of data in memory, if they fit there. Otherwise by blocks of neighbours, so that no disk has to jump for
        every network: blocks are shuffled, and networks among those of all blocks that fit into a buffer.
        """
        if self.nbytes <= IN_MEMORY_BYTES:
            return super().order(generator)
        return shuffled_blocks(self._places, self._block, self._buffered, generator)

    @property
    def _block(self) -> int:
        """How many networks are in a block."""
        return max(1, int(len(self) * BLOCK_BYTES / max(1, self.nbytes)))

    @property
    def _buffered(self) -> int:
        """How many networks fit into a buffer."""
        return max(1, int(len(self) * self.buffer_bytes / max(1, self.nbytes)))

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    @functools.cached_property
    def kept(self) -> Data | None:
        """All inputs, prepared block by block in the order in which networks lie; None if these are read every time."""
        if not len(self) or not isinstance(self.rows, Rows):
            return None
        places = self._places.argsort()
        one = self.prepare(self.rows.read(places[:1]))
        if _bytes(one) * len(self) > min(KEPT_BYTES, KEPT_SHARE * self.nbytes):
            return None
        inputs = pytree.tree_map(lambda t: t.new_empty((len(self), *t.shape[1:]), device=self.device), one)
        blocks = torch.split(places, self._block)
        for index, block in zip(blocks, self._streamed(blocks), strict=True):
            for all_of, own in zip(pytree.tree_leaves(inputs), pytree.tree_leaves(block), strict=True):
                all_of[index.to(all_of.device)] = own
        return Data(inputs, self.targets)

    def read(self, indices: Iterable[Tensor]) -> Iterator[Any]:
        yield from self._streamed(indices) if self.kept is None else self.kept.read(indices)

    def _streamed(self, indices: Iterable[Tensor]) -> Iterator[Any]:
        with (
            ThreadPoolExecutor(1, thread_name_prefix="read-rows") as reader,
            ThreadPoolExecutor(1, thread_name_prefix="prepare-rows") as preparer,
        ):
            held = itertools.chain.from_iterable(_ahead(reader, self._hold, self._groups(indices)))
            yield from _ahead(preparer, self._batch, held)

    def _groups(self, indices: Iterable[Tensor]) -> Iterator[list[Tensor]]:
        """Batches that are read at once: those that end within one buffer of all that is asked for."""
        group: list[Tensor] = []
        done = current = 0
        for index in indices:
            done += len(index)
            buffer = (done - 1) // self._buffered
            if group and buffer != current:
                yield group
                group = []
            group.append(index.cpu())
            current = buffer
        if group:
            yield group

    def _hold(self, group: list[Tensor]) -> Iterator[tuple[Source, Tensor]]:
        """What each batch of a group is to be read from, and its numbers there."""
        if len(group) == 1:
            return iter([(self.rows, group[0])])
        numbers: Tensor = torch.cat(group).unique()  # type: ignore[no-untyped-call]
        by_place = self._places[numbers].argsort()
        held = self.rows.held(numbers[by_place])
        rank = torch.empty_like(by_place).scatter_(0, by_place, torch.arange(len(numbers)))
        return iter([(held, rank[torch.searchsorted(numbers, index)]) for index in group])

    @functools.cached_property
    def _places(self) -> Tensor:
        return self.rows.places

    def _batch(self, place: tuple[Source, Tensor]) -> Any:
        inputs = self.prepare(place[0].read(place[1]))
        # As `pick` lays them out in memory: another layout takes other kernels, which round differently.
        return pytree.tree_map(lambda t: t.contiguous().to(self.device, non_blocking=True), inputs)

    def to(self, device: torch.device) -> StreamedData:
        return replace(self, targets=pytree.tree_map(lambda t: t.to(device), self.targets), device=device)


def _ahead(pool: ThreadPoolExecutor, work: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
    """What work makes of every item, in order; that of the next is made while one is in use."""
    coming: Future[U] | None = None
    for item in items:
        following = pool.submit(work, item)
        if coming is not None:
            yield coming.result()
        coming = following
    if coming is not None:
        yield coming.result()


def shuffled_blocks(places: Tensor, block: int, buffered: int, generator: torch.Generator) -> Tensor:
    """Numbers of all networks in an order that is random, and yet can be read block by block.

    Args:
        places: int64 ``(N,)``, see `Source.places`.
        block: networks in a block.
        buffered: networks that are shuffled with one another; at least those of a block.
        generator: of the order.
    """
    blocks = torch.split(places.argsort(), block)
    order = torch.randperm(len(blocks), generator=generator).tolist()
    out = []
    together = max(1, buffered // block)
    for start in range(0, len(order), together):
        numbers = torch.cat([blocks[k] for k in order[start : start + together]])
        out.append(numbers[torch.randperm(len(numbers), generator=generator)])
    return torch.cat(out)


def prepared(parts: Parts, prepare: Callable[[Sequence[NetworkGroup]], Any]) -> DataSet:
    """The networks as inputs of a model, with their accuracies; read and prepared batch by batch if any are streamed.

    A ``prepare`` that treats each network alone gives the same inputs in both cases, bit by bit but for what is
    iterated until a whole batch converges (`balance`), which is equal to rounding, and for what pads networks of
    several architectures to one size.

    Args:
        parts: the networks.
        prepare: groups of networks, N in all -> inputs, a pytree of ``(N, ...)``: `Model.prepare_groups`.
    """
    if not any(part.streamed for part in parts):
        return Data(prepare(groups_of(parts)), accuracies(parts))
    spaces = [part.info.space for part in parts]

    def of_mixture(found: Mixture) -> Any:
        return pick(prepare([group_of(tensors, spaces[k]) for k, tensors in found.groups]), found.order)

    def of_one(tensors: dict[str, Tensor]) -> Any:
        return prepare([group_of(tensors, spaces[0])])

    if len(parts) == 1:
        return StreamedData(parts[0].networks.rows, of_one, parts[0].networks.accuracy)
    return StreamedData(MixedRows([part.networks.rows for part in parts]), of_mixture, accuracies(parts))
