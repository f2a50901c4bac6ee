"""Lines of SmoothQuant and AWQ: one layer or norm whose output is divided by scales, and linear layers that make up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nfn_monomial.space import SharedScale, WeightSpace

from .trial import KEPT, Trial

__all__ = ["LeftOut", "Line", "scale_lines"]


class Line(NamedTuple):
    """A map that a quantiser can take.

    Attributes:
        smooth: path of the module whose output is divided.
        balance: paths of the linear layers whose columns are multiplied, in the order of the network.
        error: the largest change of an output when random scales act so.
    """

    smooth: str
    balance: tuple[str, ...]
    error: float


class LeftOut(NamedTuple):
    """Parameters that share a scale which a quantiser has no line for.

    Attributes:
        smooth, balance: their modules.
        reason: why there is none.
        error: the largest change of an output when random scales act on exactly these parameters.
    """

    smooth: tuple[str, ...]
    balance: tuple[str, ...]
    reason: str
    error: float


def scale_lines(trial: Trial, space: WeightSpace, *, parts: bool) -> tuple[list[Line], list[LeftOut]]:
    """All scales that parameters of a network share: as lines, and those for which there is none.

    Args:
        trial: the network.
        space: its weight space.
        parts: whether the tool divides the last rows of a layer that is several in one, as values behind queries.
    """
    lines, left = [], []
    for shared in space.mappings():
        smooth, balance = (_modules(space, pieces) for pieces in (shared.smooth, shared.balance))
        found = _line(trial, space, shared, smooth, balance, parts)
        if isinstance(found, Line):
            lines.append(found)
        else:
            left.append(LeftOut(smooth, balance, found, trial.shared(space, shared)))
    return lines, left


def _modules(space: WeightSpace, pieces: Sequence[str]) -> tuple[str, ...]:
    """The modules of parameters; of those that the network itself holds, the parameters."""
    names = [space.pieces[piece].parameter for piece in pieces]
    return tuple(dict.fromkeys(name.rpartition(".")[0] or name for name in names))


def _line(
    trial: Trial, space: WeightSpace, shared: SharedScale, smooth: Sequence[str], balance: Sequence[str], parts: bool
) -> Line | str:
    """A line, or why there is none."""
    if len(smooth) != 1 or not balance:
        return f"a line divides one module and has some that make up, here there are {len(smooth)} and {len(balance)}"
    if odd := [path for path in balance if path not in trial.linears]:
        return f"{_own(odd[0])} is no nn.Linear"
    if len(shape := trial.shape(smooth[0])) not in (1, 2):
        return f"{_own(smooth[0])} is no norm or nn.Linear"
    (rows, *_), columns = shape, [trial.shape(path)[1] for path in balance]
    several = parts and rows > columns[0] and not trial.shape(smooth[0], "bias")
    if {*columns} != {shared.size} or not (rows == columns[0] or several):
        told = ", ".join(map(str, dict.fromkeys(columns)))
        return f"a line has a scale for each row and column, here {shared.size} are for {rows} rows and {told} columns"
    error = trial.smoothed(smooth[0], balance)
    if not error <= KEPT:
        return "it is not the rows of one module that are divided and the columns of others that make up"
    return Line(smooth[0], tuple(balance), error)


def _own(path: str) -> str:
    """A module's name in its block."""
    return path.rpartition(".")[2]
