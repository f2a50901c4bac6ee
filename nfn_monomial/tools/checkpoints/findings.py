"""What a command found, and leaves in its folder: never in the place of what it read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from torch import Tensor

from nfn_monomial.tools.calls import Call
from nfn_monomial.tools.files import write_atomically
from nfn_monomial.tools.report import Report, Table

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
class Finding:
    """What a command found: printed, written as JSON and drawn from this one record.

    Attributes:
        networks: what was read, over which nothing is written; in the order in which they were given.
        summary: what was found, in words.
        results: the numbers, as JSON has them.
        tables: in the order in which they are shown.
        draw: makes the figures: file name -> figure, or the text of an SVG file.
        checkpoints: that were made.
        heading: a paragraph above the tables in a file.
    """

    networks: tuple[Network, ...]
    summary: str
    results: Mapping[str, Any]
    tables: Sequence[Table] = ()
    draw: Callable[[], Mapping[str, Figure | str]] = dict
    checkpoints: Sequence[Written] = ()
    heading: str = ""

    def with_notes(self, skipped: Mapping[str, str] | None = None) -> Finding:
        """The same, and what has to be known of what was read; ``skipped``: path of a file -> why it was left out."""
        notes = list(dict.fromkeys(network.doubt for network in self.networks if network.doubt))
        results = {**self.results, "notes": notes}
        tables = list(self.tables)
        if skipped is not None:
            results["skipped"] = [{"file": path, "reason": reason} for path, reason in skipped.items()]
        if skipped:
            tables.append(Table("Left out", ("file", "reason"), tuple(skipped.items()), text_columns=2))
        words = "\n".join([self.summary, *notes])
        heading = "\n\n".join([self.heading, *notes]) if notes else self.heading
        return replace(self, summary=words, results=results, tables=tables, heading=heading)

    def to_json(self) -> dict[str, Any]:
        """The numbers, as JSON has them."""
        return dict(self.results)

    def report(self) -> Report:
        """Tables, numbers and figures."""
        return Report(self.tables, self.results, self.draw(), self.heading)

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
        for network, name, tensors in self.checkpoints:
            network.write(Path(folder), name, tensors)
        for name, data in contents.items():
            write_atomically(Path(folder) / name, data)
        return paths
