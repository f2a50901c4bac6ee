"""Any network's symmetries, derived from its computation: docs/any-network.md."""

from .batchnorm import fold_batchnorm
from .derive import Derivation, derive
from .operators import OPERATORS, register_operator

__all__ = ["OPERATORS", "Derivation", "derive", "fold_batchnorm", "register_operator"]
