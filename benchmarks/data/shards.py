"""Networks in several safetensors files, of which only rows that are asked for are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from nfn_monomial.adapters.tensor_files import read_safetensors
from nfn_monomial.errors import InvalidValueError

from .rows import Rows, checksum

__all__ = ["WAY_OUT", "ShardRows"]

WAY_OUT = "the command that made these networks, given the same options, makes what is missing or damaged"


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
