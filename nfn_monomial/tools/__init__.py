"""Tools for networks of one's own, in Python and as the command ``nfn-monomial``.

`find_symmetries`, `compare_checkpoints`, `align_checkpoints` and `balance_checkpoint` are what the commands
``symmetries``, ``compare``, ``align`` and ``balance`` do. Architectures and checkpoints are named as on the command
line; ``net=define(module, example_inputs)`` takes a module that is there. A `Predictor` is what ``predict`` asks.

They are looked up when they are first asked for: who reads checkpoints only does not wait for what draws.
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
