"""The rule by which two networks are called the same function: one for pairs, folders, normal forms and commands.

It answers from three questions: how much of the distance between the stored weights a move explains that leaves the
function as it is (`Move`), what else differs that no move reaches, and whether outputs agree (`Outputs`).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

import torch

EXPLAINS = 100  # a move explains a distance of which it leaves at most one part in so many
_SINGLE = torch.finfo(torch.float32).eps


class Level(enum.IntEnum):
    """Levels of knowledge about two networks, the most first."""

    SAME = 0
    ROUNDING = 1
    UNKNOWN = 2
    OTHER = 3


class Move(NamedTuple):
    """The part of the distance between two networks that a move explains which leaves the function as it is.

    Attributes:
        words: a sentence for the case that it explains all: "a symmetry makes all weights equal".
        stored: distance of the networks as they are stored.
        left: distance that is left after the move.
        off: largest relative difference that is left, of an entry or of a tensor.
        dtypes: least precise dtype of each of the two networks.
        equal: whether all entries that the move does not multiply, turn or shift are equal bit by bit; in networks of
            two dtypes, equal but for one rounding to each.
        close: whether all entries are equal within rounding.
        cast: whether the two are the same but for the dtypes they were rounded to, which needs no explanation.
    """

    words: str
    stored: float
    left: float
    off: float
    dtypes: tuple[torch.dtype, torch.dtype]
    equal: bool
    close: bool
    cast: bool = False

    @property
    def explains(self) -> bool:
        """True if at most a hundredth of the stored distance is left."""
        return self.left * EXPLAINS <= self.stored

    @property
    def narrowest(self) -> torch.dtype:
        """The less precise of the two dtypes."""
        return max(self.dtypes, key=lambda dtype: torch.finfo(dtype).eps)

    @property
    def level(self) -> Level:
        """The level by the weights alone, which never show that functions differ."""
        if self.equal and not self.left:
            return Level.SAME
        if not self.close or not (self.explains or self.cast):
            return Level.UNKNOWN
        if torch.finfo(self.narrowest).eps > _SINGLE:
            return Level.ROUNDING if self.equal else Level.UNKNOWN
        return Level.SAME if self.equal else Level.ROUNDING


class Outputs(NamedTuple):
    """The difference of the outputs of two networks on the same inputs, in float64.

    Attributes:
        largest: of any output.
        relative: to the largest output of each tensor.
        rounding: relative difference that rounding of the weights may make.
        kept: whether the move leaves the second network's outputs alone.
        eps: precision of the least precise weights.
    """

    largest: float
    relative: float
    rounding: float
    kept: bool
    eps: float

    @property
    def agree(self) -> bool:
        """True if rounding explains the difference."""
        return self.relative <= self.rounding

    @property
    def refute(self) -> bool:
        """True if functions differ: by more than rounding, and more than the root of the precision."""
        return not self.relative <= max(self.rounding, self.eps**0.5)


class Verdict(NamedTuple):
    """A statement about two networks.

    Attributes:
        level: how much is known.
        words: the same in a sentence, with the reason.
    """

    level: Level
    words: str


def verdict_on(moves: Sequence[Move], differing: Sequence[str] = (), outputs: Outputs | None = None) -> Verdict:
    """Returns what may be said about two networks.

    - **the same function**: a move explains the distance, nothing else differs, and outputs agree where there are any.
      Entries that the move does not multiply, turn or shift are equal bit by bit, all others within rounding.
    - **within the rounding of** a dtype: the same, as far as 16 bits say; or entries that nothing multiplied are equal
      within the rounding of a wider dtype.
    - **not the same**: outputs differ by more than rounding and than the root of the dtype's precision, and rounding is
      not all that lies between the weights.
    - **not known to be the same**: in all other cases.

    Args:
        moves: that were found, at least one.
        differing: sentences about what differs that no move reaches: other tensors, configurations.
        outputs: of the two, where a module runs them.
    """
    best = min(moves, key=lambda move: move.level)
    explained = best.level < Level.UNKNOWN
    agree = outputs is not None and outputs.agree
    reasons = list(differing)
    # Rounding to 16 bits may change what a network looks up, so there it is no other function for sure.
    rounded = best.level == Level.ROUNDING and not reasons
    if outputs is not None and outputs.refute and not rounded:
        reason = f"{best.words}, but the outputs differ" if explained and not reasons else "the outputs differ"
        return Verdict(Level.OTHER, f"not the same: {reason}")
    if outputs is not None and not agree:
        reasons.append("the outputs differ by more than rounding explains")
    elif outputs is not None and explained and not outputs.kept:
        reasons.append("the symmetry does not leave the outputs alone")
    if explained and not reasons:
        words = f"{best.words}, and the outputs agree" if agree else best.words
        if best.level == Level.SAME:
            return Verdict(Level.SAME, f"the same function: {words}")
        dtype = str(best.narrowest).removeprefix("torch.")
        return Verdict(Level.ROUNDING, f"within the rounding of {dtype}, to {best.off:.1e}: {words}")
    if agree:
        words, reasons = "the outputs agree on the inputs tried", reasons or ["no symmetry was found"]
    else:
        words = best.words if explained else "no symmetry was found that makes all weights equal"
    joint = ", but " if agree or explained else ", and "
    return Verdict(Level.UNKNOWN, "not known to be the same: " + joint.join([words, *reasons]))


def other_tensors(keys: Sequence[str]) -> list[str]:
    """The sentence of `verdict_on` about tensors that no move reaches; none where none differ."""
    return [f"other tensors differ: {', '.join(keys)}"] * bool(keys)
