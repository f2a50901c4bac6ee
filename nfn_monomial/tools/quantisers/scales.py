"""Lines of SmoothQuant and AWQ: a layer or norm whose output is divided by scales, and linear layers that undo it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nfn_monomial.space import WeightSpace

from .names import modules_of
from .trial import KEPT, MappingTrial

__all__ = ["ScaleLine", "scale_lines"]


class ScaleLine(NamedTuple):
    """A scale that parameters share.

    Attributes:
        smooth: paths of the modules whose output is divided; one for a line of a quantiser.
        balance: paths of those whose columns are multiplied, in the order of the network.
        reason: why a quantiser has no line for it; empty if it has one.
        error: the largest change of an output by random scales, as the quantiser uses them if it has a line.
    """

    smooth: tuple[str, ...]
    balance: tuple[str, ...]
    reason: str
    error: float


def scale_lines(trial: MappingTrial, space: WeightSpace, *, parts: bool) -> list[ScaleLine]:
    """Returns all scales that parameters of a network share.

    Args:
        trial: the network.
        space: its weight space.
        parts: whether the quantiser divides the last rows of a layer that is several in one, such as values after
            queries.
    """
    lines = []
    for shared in space.mappings():
        smooth, balance = (modules_of(space, pieces) for pieces in (shared.smooth, shared.balance))
        reason = _why_not(trial, shared.size, smooth, balance, parts)
        error = trial.shared(space, shared) if reason else trial.smoothed(smooth[0], balance)
        if not reason and not error <= KEPT:
            reason = "it is not the rows of one module that are divided and the columns of others that make up"
            error = trial.shared(space, shared)
        lines.append(ScaleLine(smooth, balance, reason, error))
    return lines


def _why_not(trial: MappingTrial, size: int | None, smooth: Sequence[str], balance: Sequence[str], parts: bool) -> str:
    """Says why shapes and kinds of modules do not fit a line; empty if they do."""
    if len(smooth) != 1 or not balance:
        return f"a line divides one module and has some that make up, here there are {len(smooth)} and {len(balance)}"
    if odd := [path for path in balance if path not in trial.linears]:
        return f"{odd[0].rpartition('.')[2]} is no nn.Linear"
    if len(shape := trial.shape(smooth[0])) not in (1, 2):
        return f"{smooth[0].rpartition('.')[2]} is no norm or nn.Linear"
    (rows, *_), columns = shape, [trial.shape(path)[1] for path in balance]
    several = parts and rows > columns[0] and not trial.shape(smooth[0], "bias")
    if {*columns} != {size} or not (rows == columns[0] or several):
        counts = ", ".join(map(str, dict.fromkeys(columns)))
        return f"a line has a scale for each row and column, here {size} are for {rows} rows and {counts} columns"
    return ""
