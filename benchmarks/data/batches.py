"""Data sets that training reads batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nfn_monomial.tools.predictors.models import NetworkGroup

from .networks import Parts, accuracies, groups_of

__all__ = ["Data", "pick", "prepared"]


def pick(tree: Any, index: Tensor) -> Any:
    """Takes examples out of a pytree of tensors: ``index_select`` along the first dimension of every leaf."""
    leaves, structure = pytree.tree_flatten(tree)
    index = index.to(leaves[0].device, non_blocking=True)
    return pytree.tree_unflatten([t.index_select(0, index) for t in leaves], structure)


@dataclass(frozen=True)
class Data:
    """Inputs and targets: pytrees of tensors whose first dimension counts the examples.

    A batch is taken out by index, without work per example in Python.
    """

    inputs: Any
    targets: Any

    def __len__(self) -> int:
        return len(pytree.tree_leaves(self.targets)[0])

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs."""
        return sum(t.nbytes for t in pytree.tree_leaves(self.inputs))

    def take(self, index: Tensor) -> Data:
        """The examples with these numbers."""
        return Data(pick(self.inputs, index), pick(self.targets, index))

    def to(self, device: torch.device) -> Data:
        """The same on this device."""
        return Data(*(pytree.tree_map(lambda t: t.to(device), x) for x in (self.inputs, self.targets)))


def prepared(parts: Parts, prepare: Callable[[Sequence[NetworkGroup]], Any]) -> Data:
    """The networks as inputs of a model, with their accuracies.

    Args:
        parts: the networks.
        prepare: groups of networks, N in all -> inputs, a pytree of ``(N, ...)``: `Model.prepare_groups`.
    """
    return Data(prepare(groups_of(parts)), accuracies(parts))
