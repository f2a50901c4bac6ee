"""Many networks of one architecture, wherever they lie: in memory, in a memory-mapped file, in one file each.

An experiment asks for the networks of one minibatch at a time, so that a set may be larger than memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["Rows", "TensorRows"]


class Rows(ABC):
    """N networks of one architecture; `read` gives any of them."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: Tensor) -> dict[str, Tensor]:
        """The networks with these numbers, in this order: parameter name -> ``(len(index), *shape)``, float32, CPU.

        ``index``: int64 ``(n,)``, each in ``range(len(self))``.
        """

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape of one network's, in order of execution."""

    def read_all(self) -> dict[str, Tensor]:
        """All networks at once."""
        return self.read(torch.arange(len(self)))

    @property
    def nbytes(self) -> int:
        """What `read_all` takes in memory."""
        return 4 * len(self) * sum(torch.Size(shape).numel() for shape in self.shapes.values())


class TensorRows(Rows):
    """Networks in memory: parameter name -> ``(N, *shape)``."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        lengths = {name: len(t) for name, t in tensors.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"all parameters need the same number of networks, found {lengths}")
        self.tensors = dict(tensors)

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def read(self, index: Tensor) -> dict[str, Tensor]:
        return {name: t[index] for name, t in self.tensors.items()}

    def read_all(self) -> dict[str, Tensor]:
        return self.tensors

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(t.shape[1:]) for name, t in self.tensors.items()}
