"""Networks of one's own: which symmetries they have, what two have in common, one moved next to another.

Each function is what the command of its name does: `symmetries`, `compare`, `align`, `balance`. Architectures and
checkpoints are named as on the command line; in Python ``net=define(module, example_inputs)`` takes a module that is
there.

They are looked up when they are first asked for: who reads checkpoints only does not wait for what draws.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nfn_monomial.benchmarks.data.definitions import define, read_definition

    from .alignments import align
    from .balancing import balance
    from .comparison import compare
    from .inspection import symmetries

__all__ = ["align", "balance", "compare", "define", "read_definition", "symmetries"]

_DEFINITIONS = "nfn_monomial.benchmarks.data.definitions"
_HOMES = {
    "align": ".alignments",
    "balance": ".balancing",
    "compare": ".comparison",
    "define": _DEFINITIONS,
    "read_definition": _DEFINITIONS,
    "symmetries": ".inspection",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name], __name__), name)
    return found
