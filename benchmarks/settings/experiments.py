"""The register of experiments: the name of each, and the configurations that it comes with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .generalization import ABLATION, AUGMENT, PREDICT, TUNE
from .inrs import CLASSIFY, EDIT
from .measurements import COST, EXPRESSIVITY, LAYERS, PARAMS
from .merging import MERGE

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: Mapping[str, Mapping[str, Any]] = {
    "predict-generalization": PREDICT,
    "ablation": ABLATION,
    "augment": AUGMENT,
    "tune": TUNE,
    "classify-inr": CLASSIFY,
    "edit-inr": EDIT,
    "cost": COST,
    "params": PARAMS,
    "expressivity": EXPRESSIVITY,
    "layers": LAYERS,
    "merge": MERGE,
}
"""Name -> preset -> configuration; every experiment has the preset ``small``."""
