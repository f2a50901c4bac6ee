"""Any network's symmetries, derived from its computation: docs/any-network.md."""

from .algebra.equations import Equations
from .algebra.ties import Ties
from .batchnorm import fold_batchnorm
from .derive import Derivation, derive
from .graph import program_of
from .operators import OPERATORS, register_operator
from .passes import demand, tie
from .solve.gauges import Gauges

__all__ = [
    "OPERATORS",
    "Derivation",
    "Equations",
    "Gauges",
    "Ties",
    "demand",
    "derive",
    "fold_batchnorm",
    "program_of",
    "register_operator",
    "tie",
]
