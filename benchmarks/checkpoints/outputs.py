"""What a command leaves in its folder: tables, figures and checkpoints, never in the place of what it read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from nfn_monomial.benchmarks.files import results_folder, write_atomically
from nfn_monomial.benchmarks.report.results import Report
from nfn_monomial.errors import InvalidValueError

from .networks import Network

__all__ = ["Written", "write_outputs"]


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


def write_outputs(
    folder: str | Path,
    report: Report,
    networks: Iterable[Network],
    checkpoints: Sequence[Written] = (),
    *,
    force: bool = False,
) -> list[Path]:
    """Write a report and checkpoints, each file whole or not at all; returns their paths.

    Args:
        folder: where to; made if it is not there.
        report: tables, numbers and figures.
        networks: what was read, over which nothing is written.
        checkpoints: to write.
        force: whether files that are there may be replaced.

    Raises:
        ValueError: before anything is written, if a file is there already (without ``force``) or is one that was read.
    """
    place = results_folder(folder)
    contents = report.contents()
    found = [Path(name) for name in contents] + [p for c in checkpoints for p in c.network.checkpoint.outputs(c.name)]
    if twice := sorted({str(path) for path in found if found.count(path) > 1}):
        raise InvalidValueError(f"{', '.join(twice)} would be written twice: give the checkpoints other names")
    paths = [place / path for path in found]
    read = {file.resolve(): network.label for network in networks for file in network.checkpoint.files}
    for path in paths:
        if path.resolve() in read:
            raise InvalidValueError(
                f"{path} is {read[path.resolve()]}, which was read, and is not written over: give another --out"
            )
        if path.exists() and not force:
            raise InvalidValueError(f"{path} is there already: give another --out, or --force to replace it")
    for checkpoint in checkpoints:
        checkpoint.network.write(place, checkpoint.name, checkpoint.tensors)
    for name, data in contents.items():
        write_atomically(place / name, data)
    return paths
