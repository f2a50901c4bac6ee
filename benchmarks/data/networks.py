"""Networks to predict the accuracies of: one shape for zoos of one and of many architectures.

Networks may stay where they are (`Part.streamed`): then they are read batch by batch, and no function here holds more
than a block of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.models import MixedInfo, NetworkGroup, NetworkInfo

from .rows import IN_MEMORY_BYTES, Rows, TensorRows, checksum

__all__ = [
    "Corpus",
    "Networks",
    "Part",
    "Parts",
    "accuracies",
    "fingerprint",
    "group_of",
    "groups_of",
    "looked_at",
]

BLOCK_BYTES = 2**26  # of networks that are read at once for the fingerprint
LOOKED_AT = 10_000  # training networks that input statistics are taken of, at most


class Networks:
    """Trained networks of one architecture and their accuracies.

    Args:
        tensors: ``weight.0`` ``(N, out, in, *kernel)``, ``bias.0`` ``(N, out)``, ... in order of execution and in
            torch's order of axes, dense layers as ``(N, out, in)``; float32. Or rows of such networks, which may lie
            anywhere.
        accuracy: float32 ``(N,)``, the test accuracy in [0, 1].

    Raises:
        ValueError: if there are not as many accuracies as networks.
    """

    def __init__(self, tensors: Mapping[str, Tensor] | Rows, accuracy: Tensor) -> None:
        self.rows = tensors if isinstance(tensors, Rows) else TensorRows(tensors)
        self.accuracy = accuracy
        if len(self.rows) != len(accuracy):
            raise InvalidValueError(f"{len(self.rows)} networks and {len(accuracy)} accuracies: each network needs one")

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All networks at once; read now, if they are not in memory."""
        return self.rows.read_all()

    def __len__(self) -> int:
        return len(self.accuracy)

    def subset(self, index: Tensor | Sequence[int] | slice) -> Networks:
        """The networks with these numbers, in this order."""
        if not isinstance(index, slice):
            index = torch.as_tensor(index)
        return Networks(self.rows.subset(index), self.accuracy[index])


@dataclass(frozen=True)
class Part:
    """Networks of one architecture and what is known of them."""

    networks: Networks
    info: NetworkInfo

    def __len__(self) -> int:
        return len(self.networks)

    @property
    def streamed(self) -> bool:
        """Whether the networks are not in memory, but read when they are asked for."""
        return not isinstance(self.networks.rows, TensorRows)


Parts = tuple[Part, ...]


@dataclass(frozen=True)
class Corpus:
    """The networks of a zoo, split; ``activation`` is its name in tables, ``mixed`` for many architectures.

    ``source``: where they come from, how they were split and what was left out, for the record.
    """

    activation: str
    train: Parts
    val: Parts
    test: Parts
    info: NetworkInfo | MixedInfo
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mixed(self) -> bool:
        """Whether only models that read different architectures can be trained on it."""
        return isinstance(self.info, MixedInfo)

    @property
    def scales(self) -> bool:
        """Whether the group of any network scales."""
        return self._any("scales")

    @property
    def flips(self) -> bool:
        """Whether the group of any network flips signs."""
        return self._any("flips")

    def _any(self, what: str) -> bool:
        nodes = [node for info in self.info.architectures for node in info.space.nodes.values()]
        return any(getattr(node.symmetry, what) for node in nodes)


def group_of(tensors: Mapping[str, Tensor], space: WeightSpace) -> NetworkGroup:
    """Networks, parameter name -> ``(N, *shape)``, with a channel: what models read."""
    return {name: t.unsqueeze(1) for name, t in tensors.items()}, space


def groups_of(parts: Parts) -> list[NetworkGroup]:
    """All networks, read into memory."""
    return [group_of(part.networks.tensors, part.info.space) for part in parts]


def accuracies(parts: Parts) -> Tensor:
    """``(N,)``, all networks in order."""
    return torch.cat([part.networks.accuracy for part in parts])


def looked_at(parts: Parts) -> Parts:
    """Networks to take input statistics of: all, or of many some from all over, 10,000 and 2 GiB at most."""
    count, size = sum(map(len, parts)), sum(part.networks.rows.nbytes for part in parts)
    share = min(1.0, LOOKED_AT / count, IN_MEMORY_BYTES / size)
    if share == 1:
        return parts

    def some(part: Part) -> Part:
        n = max(1, int(share * len(part)))
        return replace(part, networks=part.networks.subset(torch.arange(n) * len(part) // n))

    return tuple(map(some, parts))


def fingerprint(corpus: Corpus) -> str:
    """A hash over all networks and accuracies, so that results are never taken for those of other data.

    Sets that are too large for memory are not read for it, where their files state checksums (`Rows.stated`).
    """
    digest = hashlib.sha256(corpus.activation.encode())
    every = (*corpus.train, *corpus.val, *corpus.test)
    large = sum(part.networks.rows.nbytes for part in every) > IN_MEMORY_BYTES
    for parts in (corpus.train, corpus.val, corpus.test):
        for part in parts:
            digest.update(part.info.activation.encode())
            rows = part.networks.rows
            if large and (stated := rows.stated) is not None:
                digest.update(checksum(stated, part.networks.accuracy).encode())
                continue
            block = max(1, BLOCK_BYTES * len(rows) // max(1, rows.nbytes))
            for index in torch.split(torch.arange(len(rows)), block):
                tensors = {**rows.read(index), "accuracy": part.networks.accuracy[index]}
                for name, tensor in sorted(tensors.items()):
                    digest.update(f"{name}{tuple(tensor.shape)}".encode())
                    digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()[:16]
