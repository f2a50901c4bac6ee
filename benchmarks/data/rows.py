"""Many networks of one architecture, wherever they lie: in memory, in a memory-mapped file, in one file each.

An experiment asks for the networks of one minibatch at a time, so that a set may be larger than memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nfn_monomial.errors import InvalidValueError

__all__ = ["IN_MEMORY_BYTES", "ChosenRows", "ConcatRows", "Rows", "TensorRows"]

IN_MEMORY_BYTES = 2 * 1024**3
"""Sets up to this size are held in memory; of larger ones only the networks of a batch are."""


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

    def subset(self, index: Tensor | slice) -> Rows:
        """The networks with these numbers, in this order; read when they are asked for, unless they are in memory."""
        return ChosenRows(self, index)

    @property
    def nbytes(self) -> int:
        """What `read_all` takes in memory."""
        return 4 * len(self) * sum(torch.Size(shape).numel() for shape in self.shapes.values())


class TensorRows(Rows):
    """Networks in memory: parameter name -> ``(N, *shape)``."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        lengths = {name: len(t) for name, t in tensors.items()}
        if len(set(lengths.values())) != 1:
            raise InvalidValueError(f"all parameters need the same number of networks, found {lengths}")
        self.tensors = dict(tensors)

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def read(self, index: Tensor) -> dict[str, Tensor]:
        return {name: t[index] for name, t in self.tensors.items()}

    def read_all(self) -> dict[str, Tensor]:
        return self.tensors

    def subset(self, index: Tensor | slice) -> TensorRows:
        return TensorRows({name: t[index] for name, t in self.tensors.items()})

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(t.shape[1:]) for name, t in self.tensors.items()}


class ChosenRows(Rows):
    """Some of other rows, read when they are asked for."""

    def __init__(self, rows: Rows, index: Tensor | slice) -> None:
        self.rows, self.index = rows, torch.arange(len(rows))[index]

    def __len__(self) -> int:
        return len(self.index)

    def read(self, index: Tensor) -> dict[str, Tensor]:
        return self.rows.read(self.index[index])

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self.rows.shapes


class ConcatRows(Rows):
    """Rows one after another, all of the same shapes.

    Raises:
        ValueError: if the shapes differ.
    """

    def __init__(self, parts: Sequence[Rows]) -> None:
        for part in parts:
            if part.shapes != parts[0].shapes:
                raise InvalidValueError(
                    f"networks of different shapes cannot be joined: {parts[0].shapes} and {part.shapes}"
                )
        self.parts = tuple(parts)
        self.ends = torch.tensor([len(part) for part in parts]).cumsum(0)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def read(self, index: Tensor) -> dict[str, Tensor]:
        owner = torch.searchsorted(self.ends, index, right=True)
        places = [(owner == k).nonzero().flatten() for k in range(len(self.parts))]
        starts = (self.ends - torch.tensor([len(part) for part in self.parts])).tolist()
        asked = [ask for ask in zip(self.parts, places, starts, strict=True) if len(ask[1]) or not len(index)]
        found = [part.read(index[place] - start) for part, place, start in asked]
        back = torch.cat(places).argsort()
        return {name: torch.cat([tensors[name] for tensors in found])[back] for name in self.shapes}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self.parts[0].shapes
