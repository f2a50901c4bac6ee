"""What a command found, and leaves in its folder: never in the place of what it read."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils import _pytree as pytree

from nfn_monomial.errors import MonomialError
from nfn_monomial.running import answers, doubled, largest_change, steady_answers
from nfn_monomial.tools.files.folders import write_atomically
from nfn_monomial.tools.files.strangers import FileError
from nfn_monomial.tools.report import Report, Table
from nfn_monomial.tools.results import Results

from .networks import Network

__all__ = ["Finding", "Written", "difference_as_written", "left_behind", "naming_files"]

KEPT = 1e-8  # change of outputs in float64 that is one of rounding


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

    def write(self, folder: str | Path | Results, *, force: bool = False) -> list[Path]:
        """Write checkpoints and report into a folder, each file whole or not at all; returns their paths.

        Raises:
            ValueError: before anything is written, if a file is there already (without ``force``) or is one that was
                read.
        """
        results = folder if isinstance(folder, Results) else Results(folder, force=force)
        contents = self.report().contents()
        made = [path for c in self.checkpoints for path in c.network.checkpoint.outputs(c.name)]
        read = {file.resolve(): network.label for network in self.networks for file in network.checkpoint.files}
        paths = results.claim([*made, *contents], read)
        for network, name, tensors in self.checkpoints:
            network.write(results.folder, name, tensors)
        for name, data in contents.items():
            write_atomically(results.folder / name, data)
        results.finish()
        return paths


def difference_as_written(network: Network, tensors: Mapping[str, Tensor]) -> float | None:
    """By how much a network's outputs differ from those of what the group made of it, relative to the largest.

    ``tensors`` are that, in float64; they are compared in the dtypes that they are written in, on the example inputs.
    None where no module runs the network.

    Raises:
        FileError: if the function is another one: the group does not keep it, or rounding changes it too much.
    """
    if not network.runs:
        return None
    module = network.module()
    own = {name: doubled(t) for name, t in (*module.named_parameters(), *module.named_buffers())}
    inputs = pytree.tree_map_only(Tensor, doubled, network.definition.inputs)
    before = steady_answers(module, own | {name: doubled(t) for name, t in network.items()}, inputs)
    written = {name: t.to(network.stored_dtype(name)) for name, t in tensors.items()}
    exact, rounded = (
        largest_change(answers(module, own | {name: doubled(t) for name, t in values.items()}, inputs), before)
        for values in (tensors, written)
    )
    reason, most = "", math.sqrt(max(torch.finfo(network[name].dtype).eps for name in written))
    if exact > KEPT:
        reason = f"the group of --net does not keep it; build {', '.join(network.unmoved) or 'it'} into the module"
    elif rounded > most:
        reason = f"it is rounded to {', '.join({str(t.dtype) for t in written.values()})}; convert it to float32 first"
    if reason:
        change = f"outputs would change by {max(exact, rounded):.1e} of the largest"
        raise FileError(f"{network.checkpoint.path}: {change}, as {reason}")
    return rounded


def left_behind(networks: Sequence[Network]) -> list[str]:
    """In words, if there is any, what is not moved along with the neurons, as the function does not read it."""
    keys = sorted({key for network in networks for key in network.unread})
    said = f"Left as they are, as the network does not read them: {', '.join(keys)}"
    return [f"{said}. Whatever else reads them finds other neurons than before."] if keys else []


@contextlib.contextmanager
def naming_files(networks: Sequence[Network]) -> Iterator[None]:
    """An error that one of some networks is to blame for names its file."""
    try:
        yield
    except FileError:
        raise
    except MonomialError:
        for network in networks:
            network.check()  # or it is the error
        raise
