"""Networks whose accuracies are predicted, in one form for zoos of one and of many architectures."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.models import MixedInfo, NetworkGroup, NetworkInfo

__all__ = [
    "SIDES",
    "Corpus",
    "Networks",
    "Part",
    "Parts",
    "accuracies",
    "fingerprint",
    "groups_of",
    "row_order",
    "split_rows",
]


class Networks:
    """Trained networks of one architecture and their accuracies.

    Args:
        tensors: ``weight.0`` ``(N, out, in, *kernel)``, ``bias.0`` ``(N, out)``, ... in order of execution and in
            torch's order of axes, dense layers as ``(N, out, in)``; float32.
        accuracy: float32 ``(N,)``, the test accuracy in [0, 1].

    Raises:
        ValueError: if there are not as many accuracies as networks, of every parameter.
    """

    def __init__(self, tensors: Mapping[str, Tensor], accuracy: Tensor) -> None:
        self.tensors, self.accuracy = dict(tensors), accuracy
        for name, t in self.tensors.items():
            if len(t) != len(accuracy):
                raise InvalidValueError(
                    f"{name} of {len(t)} networks and {len(accuracy)} accuracies: each network needs one"
                )

    def __len__(self) -> int:
        return len(self.accuracy)

    def subset(self, index: Tensor | Sequence[int] | slice) -> Networks:
        """The networks with these numbers, in this order."""
        if not isinstance(index, slice):
            index = torch.as_tensor(index)
        return Networks({name: t[index] for name, t in self.tensors.items()}, self.accuracy[index])


@dataclass(frozen=True)
class Part:
    """Networks of one architecture, and its description."""

    networks: Networks
    info: NetworkInfo

    def __len__(self) -> int:
        return len(self.networks)


Parts = tuple[Part, ...]
SIDES = ("train", "val", "test")


@dataclass(frozen=True)
class Corpus:
    """The networks of a zoo, split; ``activation`` is its name in tables, ``mixed`` for many architectures.

    ``source``: where they come from, how they were split and which were left out, for the record.
    """

    activation: str
    train: Parts
    val: Parts
    test: Parts
    info: NetworkInfo | MixedInfo
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mixed(self) -> bool:
        """True if only models that read different architectures can be trained on it."""
        return isinstance(self.info, MixedInfo)

    @property
    def scales(self) -> bool:
        """True if the group of any network scales."""
        return self._any("scales")

    @property
    def flips(self) -> bool:
        """True if the group of any network flips signs."""
        return self._any("flips")

    def _any(self, what: str) -> bool:
        nodes = [node for info in self.info.architectures for node in info.space.nodes.values()]
        return any(getattr(node.symmetry, what) for node in nodes)


def groups_of(parts: Parts) -> list[NetworkGroup]:
    """Returns all networks with a channel, parameter name -> ``(N, 1, *shape)``, the input of models."""
    return [({name: t.unsqueeze(1) for name, t in p.networks.tensors.items()}, p.info.space) for p in parts]


def accuracies(parts: Parts) -> Tensor:
    """Returns the accuracies ``(N,)`` of all networks in order."""
    return torch.cat([part.networks.accuracy for part in parts])


def fingerprint(corpus: Corpus) -> str:
    """A hash over all networks and accuracies, so that results are never taken for those of other data."""
    # What networks compute that a user has defined stands in no tensor; of others the architecture is all.
    digest = hashlib.sha256(f"{corpus.activation}{corpus.source.get('definition', '')}".encode())
    for part in (*corpus.train, *corpus.val, *corpus.test):
        digest.update(part.info.activation.encode())
        for name, tensor in sorted({**part.networks.tensors, "accuracy": part.networks.accuracy}.items()):
            digest.update(f"{name}{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()[:16]


def row_order(rows: int) -> list[int]:
    """Returns the order of rows that is split when there is no split file: one permutation per number of rows."""
    order = list(range(rows))
    random.Random(0).shuffle(order)
    return order


def split_rows(rows: Sequence[int], tested: float = 0.5) -> dict[str, list[int]]:
    """Splits rows as nfn does: the second half is for testing, of the first four fifths for training.

    The first half is shuffled by ``random.Random(0)`` before. ``tested``: the share for testing, if not half.
    """
    kept = int(round((1 - tested) * len(rows), 6))  # 0.93 of 1,000 are 930, whatever 1 - 0.07 is rounded to
    first = list(range(kept))
    random.Random(0).shuffle(first)
    train = int(0.8 * kept)
    parts = {"train": first[:train], "val": first[train:], "test": range(kept, len(rows))}
    return {name: [rows[place] for place in part] for name, part in parts.items()}
