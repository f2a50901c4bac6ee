"""What a command leaves in its folder: tables, figures and checkpoints, never in the place of what it read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from nfn_monomial.tools.calls import Call
from nfn_monomial.tools.files import write_atomically
from nfn_monomial.tools.report import Report

from .networks import Network

__all__ = ["Finding", "Written"]


class Written(NamedTuple):
    """A checkpoint to write.

    Attributes:
        network: whose form it takes: keys, dtypes, files.
        name: of the file or, of several, of their folder.
        tensors: parameter of the space -> value.
    """

    network: Network
    name: str
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class Finding(ABC):
    """What a command found, to be shown and written.

    Attributes:
        networks: what was read, over which nothing is written; in the order in which they were given.
    """

    networks: tuple[Network, ...]

    @property
    @abstractmethod
    def summary(self) -> str:
        """What was found, in words."""

    @property
    def checkpoints(self) -> Sequence[Written]:
        """Checkpoints that were made."""
        return ()

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""

    @abstractmethod
    def report(self) -> Report:
        """As tables, JSON and figures."""

    def write(self, folder: str | Path, *, force: bool = False, call: Call | None = None) -> list[Path]:
        """Write checkpoints and report into a folder, each file whole or not at all; returns their paths.

        Files that are there are replaced with ``force``, or by the ``call`` whose results these are.

        Raises:
            ValueError: before anything is written, if a file is there already (without ``force``) or is one that was
                read.
        """
        call, contents = call or Call(folder, force=force), self.report().contents()
        made = [path for c in self.checkpoints for path in c.network.checkpoint.outputs(c.name)]
        read = {file.resolve(): network.label for network in self.networks for file in network.checkpoint.files}
        paths = call.claim([*made, *contents], read)
        for checkpoint in self.checkpoints:
            checkpoint.network.write(Path(folder), checkpoint.name, checkpoint.tensors)
        for name, data in contents.items():
            write_atomically(Path(folder) / name, data)
        return paths
