"""Monomial-matrix-group equivariant neural functionals: layers that read networks and respect all their symmetries.

The core is pure torch: ``space`` (weight spaces, groups and features), ``basis`` (which maps are equivariant), ``nn``
(layers), ``canonical`` (canonical forms), ``read`` (statistics and probes), ``models`` and ``testing``; each of these
packages has more names than are shown here. Above the core are ``trace`` (spaces derived from modules), ``verify``
(spaces tested), ``alignment`` (two networks in one frame) and ``fibre`` (all changes that keep a function). Every error
is a `MonomialError`. Converters are in ``nfn_monomial.adapters``, tools for checkpoints in ``nfn_monomial.tools``,
experiments in ``nfn_monomial.benchmarks``.

A module is imported when one of its names is first asked for: a program that needs none does not wait for torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .doors import lazy

if TYPE_CHECKING:
    from .alignment import Alignment, Comparison, align, compare
    from .canonical import balance, fingerprint
    from .errors import MonomialError
    from .fibre import normal_form
    from .models import EquivariantNFN, MonomialNFN
    from .nn import (
        Canonicalize,
        EquivariantLinear,
        EquivariantNorm,
        GatedActivation,
        InvariantPool,
        MessagePassing,
        PointwiseActivation,
        TensorProduct,
    )
    from .read import InvariantStatistics, ProbeFeatures
    from .space import (
        Axis,
        Features,
        GroupElement,
        MonomialMatrix,
        WeightSpace,
    )
    from .symmetry import Symmetry, register_activation, symmetry_of
    from .trace import fold_batchnorm, register_operator
else:
    lazy(
        __name__,
        {
            "alignment": ["Alignment", "Comparison", "align", "compare"],
            "basis": [],
            "canonical": ["balance", "fingerprint"],
            "errors": ["MonomialError"],
            "fibre": ["normal_form"],
            "models": ["EquivariantNFN", "MonomialNFN"],
            "nn": [
                "Canonicalize",
                "EquivariantLinear",
                "EquivariantNorm",
                "GatedActivation",
                "InvariantPool",
                "MessagePassing",
                "PointwiseActivation",
                "TensorProduct",
            ],
            "read": ["InvariantStatistics", "ProbeFeatures"],
            "space": ["Axis", "Features", "GroupElement", "MonomialMatrix", "WeightSpace"],
            "symmetry": ["Symmetry", "register_activation", "symmetry_of"],
            "trace": ["fold_batchnorm", "register_operator"],
            "verify": [],
        },
    )

__version__ = "0.1.0"

# In a clone, `adapters` and `benchmarks` lie beside this folder and not in it. Python that is started in the clone
# imports this folder, even if the package is installed elsewhere.
_folder = os.path.dirname(__file__)
_clone = os.path.dirname(_folder)
_ours = ("pyproject.toml", "adapters/nfn/__init__.py", "benchmarks/cli/commands.py")
if all(os.path.isfile(os.path.join(_clone, *name.split("/"))) for name in _ours):
    __path__.append(_clone)

__all__ = [
    "Alignment",
    "Axis",
    "Canonicalize",
    "Comparison",
    "EquivariantLinear",
    "EquivariantNFN",
    "EquivariantNorm",
    "Features",
    "GatedActivation",
    "GroupElement",
    "InvariantPool",
    "InvariantStatistics",
    "MessagePassing",
    "MonomialError",
    "MonomialMatrix",
    "MonomialNFN",
    "PointwiseActivation",
    "ProbeFeatures",
    "Symmetry",
    "TensorProduct",
    "WeightSpace",
    "align",
    "balance",
    "compare",
    "fingerprint",
    "fold_batchnorm",
    "normal_form",
    "register_activation",
    "register_operator",
    "symmetry_of",
]
