"""Tools for networks of one's own, in Python and as the command ``nfn-monomial``.

`find_symmetries`, `compare_checkpoints`, `align_checkpoints` and `balance_checkpoint` are what the commands
``symmetries``, ``compare``, ``align`` and ``balance`` do. Architectures and checkpoints are named as on the command
line; ``net=define(module, example_inputs)`` takes a module that is there. A `Predictor` is what ``predict`` asks.

They are looked up when they are first asked for: who reads checkpoints only does not wait for what draws.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .experiments import missing_extra

if TYPE_CHECKING:
    from nfn_monomial.tools.definitions.define import define, read_definition

    from .checkpoints.alignments import align_checkpoints
    from .checkpoints.balancing import balance_checkpoint
    from .checkpoints.comparison import compare_checkpoints
    from .checkpoints.inspection import find_symmetries
    from .predictors import Predictor

__all__ = [
    "Predictor",
    "align_checkpoints",
    "balance_checkpoint",
    "compare_checkpoints",
    "define",
    "find_symmetries",
    "read_definition",
]

_HOMES = {
    "Predictor": ".predictors",
    "align_checkpoints": ".checkpoints.alignments",
    "balance_checkpoint": ".checkpoints.balancing",
    "compare_checkpoints": ".checkpoints.comparison",
    "define": "nfn_monomial.tools.definitions.define",
    "find_symmetries": ".checkpoints.inspection",
    "read_definition": "nfn_monomial.tools.definitions.define",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = globals()[name] = getattr(import_module(_HOMES[name], __name__), name)
    except ModuleNotFoundError as error:
        raise missing_extra(error, f"{__name__}.{name}") from error
    return found
