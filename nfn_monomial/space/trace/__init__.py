"""Any network's symmetries, derived from its computation: docs/any-network.md."""

from .batchnorm import fold_batchnorm
from .derive import Derivation, derive
from .operators import OPERATORS, register_operator
from .report import Dead, Loss, NodeReport, Report

__all__ = [
    "OPERATORS",
    "Dead",
    "Derivation",
    "Loss",
    "NodeReport",
    "Report",
    "derive",
    "fold_batchnorm",
    "register_operator",
]
