"""The outcome of a command: printed, and written into its folder, never in the place of a file that was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib.figure import Figure
from torch import Tensor

from nfn_monomial.tools.files.atomic import write_atomically
from nfn_monomial.tools.report import Report, Table
from nfn_monomial.tools.results import Results

from .networks import Network

__all__ = ["Finding", "left_behind", "left_out"]

NewCheckpoint: TypeAlias = "tuple[Network, str, Mapping[str, Tensor]]"
"""The network whose keys, dtypes and files a new checkpoint takes, its name, and the values of its parameters."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a command: printed, written as JSON and drawn from this one record.

    Attributes:
        networks: that were read, and are not written over; in the order in which they were given.
        summary: in words.
        results: the numbers, as JSON has them.
        tables: in the order in which they are shown.
        draw: makes the figures: file name -> figure, or the text of an SVG file.
        checkpoints: to be written.
        heading: a paragraph before the tables in a file.
    """

    networks: tuple[Network, ...]
    summary: str
    results: Mapping[str, Any]
    tables: Sequence[Table] = ()
    draw: Callable[[], Mapping[str, Figure | str]] = dict
    checkpoints: Sequence[NewCheckpoint] = ()
    heading: str = ""

    def with_notes(self, skipped: Mapping[str, str] | None = None) -> Finding:
        """Adds notes on how files were read; ``skipped``: path of a file -> why it was left out."""
        notes = list(dict.fromkeys(network.doubt for network in self.networks if network.doubt))
        results = {**self.results, "notes": notes}
        if skipped is not None:
            results["skipped"] = [{"file": path, "reason": reason} for path, reason in skipped.items()]
        summary = "\n".join([self.summary, *notes])
        left = "\n".join(["```text", *left_out(skipped or {}), "```"])
        heading = "\n\n".join([*[self.heading] * bool(self.heading), *notes, *[left] * bool(skipped)])
        return replace(self, summary=summary, results=results, heading=heading)

    def to_json(self) -> dict[str, Any]:
        """Returns the numbers, as JSON has them."""
        return dict(self.results)

    def report(self) -> Report:
        """Returns tables, numbers and figures."""
        return Report(self.tables, self.results, self.draw(), self.heading)

    def write(self, folder: str | Path | Results, *, force: bool = False) -> list[Path]:
        """Writes checkpoints and report into a folder, each file whole or not at all; returns their paths.

        Beside networks of transformers it writes their ``config.json``, so that ``from_pretrained`` loads them.

        Raises:
            ValueError: before anything is written, if a file is there already (without ``force``) or is one that was
                read.
        """
        results = folder if isinstance(folder, Results) else Results(folder, force=force)
        contents = self.report().contents()
        new = []
        for network, name, _ in self.checkpoints:
            files, configuration = network.checkpoint.outputs(name), network.checkpoint.configuration
            new += files
            if configuration is not None:
                contents[str(files[0].with_name(configuration.name))] = configuration.read_bytes()
        read = {file.resolve(): network.label for network in self.networks for file in network.checkpoint.files}
        paths = results.claim([*new, *contents], read)
        for network, name, tensors in self.checkpoints:
            network.write(results.folder, name, tensors)
        for name, data in contents.items():
            write_atomically(results.folder / name, data)
        results.finish()
        return paths


def left_out(skipped: Mapping[str, str]) -> list[str]:
    """Returns a line for each file that was left out; ``skipped``: path -> reason."""
    return [" ".join(f"left out: {path}: {reason}".split("\n")) for path, reason in skipped.items()]


def left_behind(networks: Sequence[Network]) -> list[str]:
    """Names the tensors, if any, that are not moved along with the neurons because the function does not read them."""
    keys = sorted({key for network in networks for key in network.unread})
    sentence = f"Left as they are, as the network does not read them: {', '.join(keys)}"
    return [f"{sentence}. Whatever else reads them finds other neurons than before."] if keys else []
