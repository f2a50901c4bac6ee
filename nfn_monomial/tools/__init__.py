"""Tools for networks of one's own, in Python and as the command ``nfn-monomial``.

`find_symmetries`, `compare_checkpoints`, `align_checkpoints` and `balance_checkpoint` do the work of the commands
``symmetries``, ``compare``, ``align`` and ``balance``. Architectures and checkpoints are named as on the command line;
``net=define(module, example_inputs)`` takes a module of the program instead. ``predict`` asks a `Predictor`.

A module is imported when one of its names is first asked for: reading checkpoints does not wait for drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nfn_monomial.doors import lazy

from .experiments import missing_extra

if TYPE_CHECKING:
    from .checkpoints.alignments import align_checkpoints
    from .checkpoints.balancing import balance_checkpoint
    from .checkpoints.comparison import compare_checkpoints
    from .checkpoints.inspection import find_symmetries
    from .definitions.define import define, read_definition
    from .predictors import Predictor
else:
    lazy(
        __name__,
        {
            "checkpoints.alignments": ["align_checkpoints"],
            "checkpoints.balancing": ["balance_checkpoint"],
            "checkpoints.comparison": ["compare_checkpoints"],
            "checkpoints.inspection": ["find_symmetries"],
            "definitions.define": ["define", "read_definition"],
            "predictors": ["Predictor"],
        },
        missing=missing_extra,
    )

__all__ = [
    "Predictor",
    "align_checkpoints",
    "balance_checkpoint",
    "compare_checkpoints",
    "define",
    "find_symmetries",
    "read_definition",
]
