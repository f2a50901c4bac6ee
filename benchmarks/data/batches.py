"""Data sets that training reads batch by batch: in memory, or larger than it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nfn_monomial.errors import InvalidValueError

from .networks import NetworkGroup, Parts, accuracies, group_of, groups_of
from .rows import Rows

__all__ = ["Data", "DataSet", "StreamedData", "pick", "prepared"]


def pick(tree: Any, index: Tensor) -> Any:
    """Those examples of a pytree of tensors: ``index_select`` along the first dimension of every leaf."""
    leaves, structure = pytree.tree_flatten(tree)
    index = index.to(leaves[0].device, non_blocking=True)
    return pytree.tree_unflatten([t.index_select(0, index) for t in leaves], structure)


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

    @abstractmethod
    def to(self, device: torch.device) -> DataSet:
        """The same, with everything that it gives on this device."""


@dataclass(frozen=True)
class Data(DataSet):
    """In memory: pytrees of tensors. A batch is taken out by index, without work per example in Python."""

    inputs: Any
    targets: Any

    def read(self, indices: Iterable[Tensor]) -> Iterator[Any]:
        return (pick(self.inputs, index) for index in indices)

    def to(self, device: torch.device) -> Data:
        return Data(*(pytree.tree_map(lambda t: t.to(device), x) for x in (self.inputs, self.targets)))


@dataclass(frozen=True)
class StreamedData(DataSet):
    """Read from rows when it is their turn: memory holds two batches, the one in use and the next.

    The next batch is read and prepared in a background thread meanwhile. Training and predictions are those of `Data`
    with all rows prepared at once, if ``prepare`` treats each network alone.

    Attributes:
        rows: the networks, as many as there are targets.
        prepare: parameter name -> ``(n, *shape)``, on the CPU, to inputs, a pytree of ``(n, ...)``. Not random, as it
            runs beside the training.
        targets: in memory.
        device: where batches are put.
    """

    rows: Rows
    prepare: Callable[[dict[str, Tensor]], Any]
    targets: Any
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        if len(self.rows) != len(self):
            raise InvalidValueError(f"{len(self.rows)} networks and {len(self)} targets: each network needs one")

    def read(self, indices: Iterable[Tensor]) -> Iterator[Any]:
        with ThreadPoolExecutor(1, thread_name_prefix="read-rows") as reader:
            coming: Future[Any] | None = None
            for index in indices:
                following = reader.submit(self._batch, index)
                if coming is not None:
                    yield coming.result()
                coming = following
            if coming is not None:
                yield coming.result()

    def _batch(self, index: Tensor) -> Any:
        inputs = self.prepare(self.rows.read(index.cpu()))
        return pytree.tree_map(lambda t: t.to(self.device, non_blocking=True), inputs)

    def to(self, device: torch.device) -> StreamedData:
        return replace(self, targets=pytree.tree_map(lambda t: t.to(device), self.targets), device=device)


def prepared(parts: Parts, prepare: Callable[[Sequence[NetworkGroup]], Any]) -> DataSet:
    """The networks as inputs of a model, with their accuracies; read and prepared batch by batch if they are streamed.

    A ``prepare`` that treats each network alone gives the same inputs in both cases, bit by bit but for what is
    iterated until a whole batch converges (`balance`), which is equal to rounding.

    Args:
        parts: the networks.
        prepare: groups of networks, N in all -> inputs, a pytree of ``(N, ...)``: `Model.prepare_groups`.
    """
    if len(parts) != 1 or not parts[0].streamed:
        return Data(prepare(groups_of(parts)), accuracies(parts))
    networks, space = parts[0].networks, parts[0].info.space
    return StreamedData(networks.rows, lambda tensors: prepare([group_of(tensors, space)]), networks.accuracy)
