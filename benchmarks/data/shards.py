"""Networks in several safetensors files, of which only rows that are asked for are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from nfn_monomial.adapters.tensor_files import read_safetensors
from nfn_monomial.errors import InvalidValueError

from .rows import Rows, checksum

__all__ = ["OpenedShards", "ShardRows", "require_finite"]


class OpenedShards(Sequence[Mapping[str, Tensor]]):
    """Files whose tensors are mapped when it is their turn, and only as long: what is read of them takes no memory."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Mapping[str, Tensor]:  # type: ignore[override]  # no slices
        return read_safetensors(self.paths[number])[0]


class ShardRows(Rows):
    """Networks in several parts, which may be memory-mapped: only rows that are asked for are read.

    Args:
        paths: where the shards come from, for messages.
        shards: parameter name -> ``(n, *shape)`` each; other entries than ``shapes`` names do not matter.
        lengths: networks in each.
        shapes: parameter name -> shape of one network's.
        chosen: int64 ``(N,)``, numbers of the networks among those of all shards, one after another.
        way_out: what can be done about numbers that are not finite.
        checksums: of the shards, where files state them and they were held against the contents; empty where not.

    Raises:
        ValueError: in `read`, naming file and tensor, if a number that is read is NaN or infinite.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        shards: Sequence[Mapping[str, Tensor]],
        lengths: Sequence[int],
        shapes: Mapping[str, tuple[int, ...]],
        chosen: Tensor,
        way_out: str,
        checksums: Sequence[str] = (),
    ) -> None:
        self.paths, self.shards, self.chosen, self._shapes = paths, shards, chosen, dict(shapes)
        self.ends, self.way_out, self.checksums = torch.tensor(lengths).cumsum(0), way_out, tuple(checksums)

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def stated(self) -> str | None:
        return checksum(self.checksums, self._shapes, self.chosen) if self.checksums else None

    @property
    def places(self) -> Tensor:
        return self.chosen

    def subset(self, index: Tensor | slice) -> ShardRows:
        lengths = self.ends.diff(prepend=torch.zeros(1, dtype=torch.int64)).tolist()
        chosen = self.chosen[index]
        return ShardRows(self.paths, self.shards, lengths, self._shapes, chosen, self.way_out, self.checksums)

    def read(self, index: Tensor) -> dict[str, Tensor]:
        rows = self.chosen[index]
        shard_of = torch.searchsorted(self.ends, rows, right=True)
        result = {name: torch.empty(len(index), *shape) for name, shape in self._shapes.items()}
        for k in torch.unique(shard_of).tolist():
            here = (shard_of == k).nonzero().flatten()
            within = rows[here] - (self.ends[k - 1] if k else 0)
            shard = self.shards[k]
            found = {name: shard[name][within] for name in result}
            require_finite(self.paths[k], found, self.way_out, within)
            for name, tensor in result.items():
                tensor[here] = found[name].float()
        return result

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes


def require_finite(path: Path, tensors: Mapping[str, Tensor], way_out: str, rows: Tensor | None = None) -> None:
    """Check numbers of networks in a shard.

    Args:
        path: of the shard.
        tensors: name -> ``(n, ...)``.
        way_out: what can be done, for the message.
        rows: int64 ``(n,)``, where in the shard the networks are; by default they are all of it.

    Raises:
        ValueError: naming file, tensor and row, if one is NaN or infinite.
    """
    for name, tensor in tensors.items():
        finite = tensor.isfinite()
        if not finite.all():
            bad = int(finite.logical_not().nonzero()[0, 0])
            row = bad if rows is None else int(rows[bad])
            raise InvalidValueError(f"{path}: {name} holds NaN or infinite values in row {row}: {way_out}")
