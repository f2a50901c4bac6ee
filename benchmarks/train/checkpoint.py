"""The state of an unfinished training after an epoch, kept by the store of finished work."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from nfn_monomial.tools.files.atomic import partial_path
from nfn_monomial.tools.store import SUFFIX, Store

__all__ = ["UnfinishedTraining"]

log = logging.getLogger(__name__)


class UnfinishedTraining:
    """The file of an unfinished training: a piece of a `Store`, whose key is the name of the training.

    Args:
        path: of the file, without the store's suffix; its last part names the training.
        seconds: at most one write in so many seconds; 0 writes after every epoch.
    """

    def __init__(self, path: Path, seconds: float = 0.0) -> None:
        self.name, self.seconds = path.name, seconds
        self.file = path.with_name(f"{path.name}{SUFFIX}")
        self._store = Store(path.parent, path.name)
        self._written = time.monotonic()

    @property
    def due(self) -> bool:
        """True if it is time to write."""
        return time.monotonic() - self._written >= self.seconds

    def save(self, state: Mapping[str, Any]) -> None:
        """Writes tensors, numbers, texts, and lists and dicts of them."""
        leaves, tree = pytree.tree_flatten(dict(state))
        tensors = {str(i): leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        # Floats are texts, since JSON knows no NaN.
        stated = [{"float": repr(leaf)} if isinstance(leaf, float) else leaf for leaf in leaves]
        stated = [None if isinstance(leaf, Tensor) else leaf for leaf in stated]
        self._store.put(self.name, {"tree": pytree.treespec_dumps(tree), "leaves": stated}, tensors)
        self._written = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """Returns the saved state, on the CPU; None if there is none, or with a warning if it is of no use."""
        if (piece := self._store.get(self.name)) is None:
            return None
        stated, tensors = piece
        leaves = [float(leaf["float"]) if isinstance(leaf, dict) else leaf for leaf in stated["leaves"]]
        leaves = [tensors.get(str(i), leaf) for i, leaf in enumerate(leaves)]
        state: dict[str, Any] = pytree.tree_unflatten(leaves, pytree.treespec_loads(stated["tree"]))
        return state

    def reject(self, reason: str) -> None:
        """Warns that the file is of no use."""
        log.warning("%s cannot be used (%s): this training starts again", self.file, reason)

    def remove(self) -> None:
        """Forgets the training, and a write that was cut off."""
        for path in (self.file, partial_path(self.file)):
            path.unlink(missing_ok=True)
