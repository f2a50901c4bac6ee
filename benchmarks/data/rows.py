"""Many networks of one architecture, wherever they lie: in memory, in a memory-mapped file, in one file each.

An experiment asks for the networks of one minibatch at a time, so that a set may be larger than memory.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nfn_monomial.adapters.tensor_files import read_safetensors
from nfn_monomial.errors import InvalidValueError

__all__ = [
    "IN_MEMORY_BYTES",
    "WAY_OUT",
    "ChosenRows",
    "ConcatRows",
    "MixedRows",
    "Mixture",
    "Rows",
    "ShardRows",
    "Source",
    "TensorRows",
    "checksum",
]

IN_MEMORY_BYTES = 2 * 1024**3
"""Sets up to this size are held in memory; of larger ones only the networks of a batch are."""


WAY_OUT = "the command that made these networks, given the same options, makes what is missing or damaged"


def checksum(*parts: object) -> str:
    """Of tensors, and of what prints as what it is."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.numpy().tobytes() if isinstance(part, Tensor) else repr(part).encode())
    return digest.hexdigest()


class Source(ABC):
    """N networks; `read` gives any of them."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: Tensor) -> Any:
        """The networks with these numbers, int64 ``(n,)``, in this order."""

    @property
    def places(self) -> Tensor:
        """int64 ``(N,)``: the order in which networks lie where they are; neighbours are read the fastest together."""
        return torch.arange(len(self))

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """What all networks take in memory."""

    @abstractmethod
    def held(self, index: Tensor) -> Source:
        """The networks with these numbers, in memory; ``index`` is in the order of their places."""


class Rows(Source):
    """N networks of one architecture."""

    @abstractmethod
    def read(self, index: Tensor) -> dict[str, Tensor]:
        """The networks with these numbers, in this order: parameter name -> ``(len(index), *shape)``, float32, CPU.

        ``index``: int64 ``(n,)``, each in ``range(len(self))``.
        """

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape of one network's, in order of execution."""

    @property
    def stated(self) -> str | None:
        """A checksum of all networks, made of those that their files state and that were found true when these were
        opened; None where no file states one.
        """
        return None

    def read_all(self) -> dict[str, Tensor]:
        """All networks at once."""
        return self.read(torch.arange(len(self)))

    def subset(self, index: Tensor | slice) -> Rows:
        """The networks with these numbers, in this order; read when they are asked for, unless they are in memory."""
        return ChosenRows(self, index)

    def held(self, index: Tensor) -> Rows:
        return TensorRows(self.read(index))

    @property
    def nbytes(self) -> int:
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
    def stated(self) -> str | None:
        return None if (whole := self.rows.stated) is None else checksum(whole, self.index)

    @property
    def places(self) -> Tensor:
        return self.rows.places[self.index]

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

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def stated(self) -> str | None:
        found = [part.stated for part in self.parts]
        return None if None in found else checksum(found)

    @property
    def places(self) -> Tensor:
        return _one_after_another(self.parts)

    def read(self, index: Tensor) -> dict[str, Tensor]:
        asked, back = _shared_out(self.parts, index)
        found = [self.parts[k].read(own) for k, own in asked if len(own) or not len(index)]
        return {name: torch.cat([tensors[name] for tensors in found])[back] for name in self.shapes}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self.parts[0].shapes


class ShardRows(Rows):
    """Networks in several files, which are mapped when it is their turn, and only as long.

    Args:
        paths: of the shards; other tensors in them than ``shapes`` names do not matter.
        lengths: networks in each.
        shapes: parameter name -> shape of one network's.
        chosen: int64 ``(N,)``, numbers of the networks among those of all shards, one after another.
        checksums: of the shards, which were held against the contents.

    Raises:
        ValueError: in `read`, naming file and tensor, if a number that is read is NaN or infinite.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        lengths: Sequence[int],
        shapes: Mapping[str, tuple[int, ...]],
        chosen: Tensor,
        checksums: Sequence[str],
    ) -> None:
        self.paths, self.lengths, self.chosen, self.checksums = paths, lengths, chosen, tuple(checksums)
        self._shapes, self.ends = dict(shapes), torch.tensor(lengths).cumsum(0)

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def stated(self) -> str:
        return checksum(self.checksums, self._shapes, self.chosen)

    @property
    def places(self) -> Tensor:
        return self.chosen

    def subset(self, index: Tensor | slice) -> ShardRows:
        return ShardRows(self.paths, self.lengths, self._shapes, self.chosen[index], self.checksums)

    def read(self, index: Tensor) -> dict[str, Tensor]:
        rows = self.chosen[index]
        shard_of = torch.searchsorted(self.ends, rows, right=True)
        result = {name: torch.empty(len(index), *shape) for name, shape in self._shapes.items()}
        for k in torch.unique(shard_of).tolist():
            here = (shard_of == k).nonzero().flatten()
            within = rows[here] - (self.ends[k - 1] if k else 0)
            shard, _ = read_safetensors(self.paths[k])
            for name, tensor in result.items():
                tensor[here] = found = shard[name][within]
                if bad := (~found.isfinite()).flatten(1).any(1).nonzero().flatten().tolist():
                    row = int(within[bad[0]])
                    raise InvalidValueError(
                        f"{self.paths[k]}: {name} holds NaN or infinite values in row {row}: {WAY_OUT}"
                    )
        return result

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes


class Mixture(NamedTuple):
    """Networks of several architectures.

    Attributes:
        groups: the number of an architecture and its networks, parameter name -> ``(n, *shape)``.
        order: where those that were asked for are among the networks of all groups, one after another.
    """

    groups: list[tuple[int, dict[str, Tensor]]]
    order: Tensor


class MixedRows(Source):
    """Rows of several architectures, one after another."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts = tuple(parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def read(self, index: Tensor) -> Mixture:
        asked, back = _shared_out(self.parts, index)
        return Mixture([(k, self.parts[k].read(own)) for k, own in asked if len(own)], back)

    @property
    def places(self) -> Tensor:
        return _one_after_another(self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def held(self, index: Tensor) -> MixedRows:
        asked, _ = _shared_out(self.parts, index)
        return MixedRows([self.parts[k].held(own) for k, own in asked])


def _one_after_another(parts: Sequence[Rows]) -> Tensor:
    """Places of all: first those of the first part."""
    out, start = [], 0
    for part in parts:
        places = part.places
        out.append(places + start)
        start += 1 + int(places.max()) if len(places) else 0
    return torch.cat(out)


def _shared_out(parts: Sequence[Rows], index: Tensor) -> tuple[list[tuple[int, Tensor]], Tensor]:
    """Numbers within each part, and where the networks asked for are among those of all parts, one after another."""
    ends = torch.tensor([len(part) for part in parts]).cumsum(0)
    owner = torch.searchsorted(ends, index, right=True)
    places = [(owner == k).nonzero().flatten() for k in range(len(parts))]
    starts = [0, *ends[:-1].tolist()]
    return [(k, index[place] - starts[k]) for k, place in enumerate(places)], torch.cat(places).argsort()
