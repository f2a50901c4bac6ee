"""The state of an unfinished training in a file."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from nfn_monomial.adapters.files import damaged
from nfn_monomial.adapters.tensor_files import Inert, read_torch_file
from nfn_monomial.errors import InvalidValueError, MonomialError
from nfn_monomial.tools.files import partial_path, write_atomically

__all__ = ["Checkpoint"]

log = logging.getLogger(__name__)

FORMAT = 1  # of the state that training saves


class Checkpoint:
    """Where an unfinished training is kept. The file's stem names the training and is stated inside, too.

    Args:
        path: of the file.
        seconds: at most one write in so many seconds; 0 writes whenever it may.
    """

    def __init__(self, path: Path, seconds: float = 0.0) -> None:
        self.path = path
        self.seconds = seconds
        self._written = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() - self._written >= self.seconds

    def save(self, state: Mapping[str, Any]) -> None:
        """Write tensors, numbers, texts, and lists and dicts of them."""
        file = io.BytesIO()
        torch.save({"format": FORMAT, "name": self.path.stem, **state}, file)
        write_atomically(self.path, file.getvalue())
        self._written = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """What was saved, on the CPU; None if there is nothing, or nothing of use, of which a warning tells."""
        if not self.path.exists():
            return None
        try:
            state: dict[str, Any] = read_torch_file(self.path)
            with damaged(self.path, "no training wrote it"):
                if any(isinstance(part, Inert) for part in pytree.tree_leaves(state)):
                    raise InvalidValueError("it holds objects of classes")
            made = [state.get(name) for name in ("format", "name")] if isinstance(state, dict) else []
            if [value for value in made if isinstance(value, int | str)] != [FORMAT, self.path.stem]:
                raise InvalidValueError("it is of another training or version")
        except MonomialError as error:
            self.reject(error)
            return None
        return state

    def reject(self, reason: object) -> None:
        """Warn that the file is of no use."""
        log.warning("%s cannot be used (%s): this training starts anew", self.path, " ".join(str(reason).split()))

    def remove(self) -> None:
        """Forget the training, and a write that was cut off."""
        for path in (self.path, partial_path(self.path)):
            path.unlink(missing_ok=True)
