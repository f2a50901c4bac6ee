"""What a command leaves in its folder: tables, figures and checkpoints, never in the place of what it read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from nfn_monomial.benchmarks.files import results_folder, write_atomically
from nfn_monomial.benchmarks.report.results import Report
from nfn_monomial.errors import InvalidValueError

from .networks import Network

__all__ = ["Finding", "Written"]


@dataclass(frozen=True)
class Written:
    """A checkpoint to write.

    Attributes:
        network: whose form it takes: keys, dtypes, files.
        name: of the file or, of several, of their folder.
        tensors: parameter of the space -> value.
    """

    network: Network
    name: str
    tensors: Mapping[str, Tensor]


class Finding(ABC):
    """What a command found, to be shown and written."""

    @property
    @abstractmethod
    def networks(self) -> Sequence[Network]:
        """What was read, over which nothing is written."""

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

    def write(self, folder: str | Path, *, force: bool = False) -> list[Path]:
        """Write checkpoints and report, each file whole or not at all; returns their paths.

        Args:
            folder: where to; made if it is not there.
            force: whether files that are there may be replaced.

        Raises:
            ValueError: before anything is written, if a file is there already (without ``force``) or is one that was
                read.
        """
        place, contents = results_folder(folder), self.report().contents()
        made = [path for c in self.checkpoints for path in c.network.checkpoint.outputs(c.name)]
        found = [*made, *map(Path, contents)]
        if twice := sorted({str(path) for path in found if found.count(path) > 1}):
            raise InvalidValueError(f"{', '.join(twice)} would be written twice: give the checkpoints other names")
        paths = [place / path for path in found]
        read = {file.resolve(): network.label for network in self.networks for file in network.checkpoint.files}
        for path in paths:
            if path.resolve() in read:
                raise InvalidValueError(
                    f"{path} is {read[path.resolve()]}, which was read, and is not written over: give another --out"
                )
            if path.exists() and not force:
                raise InvalidValueError(f"{path} is there already: give another --out, or --force to replace it")
        for checkpoint in self.checkpoints:
            checkpoint.network.write(place, checkpoint.name, checkpoint.tensors)
        for name, data in contents.items():
            write_atomically(place / name, data)
        return paths
