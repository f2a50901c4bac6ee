"""Recipes: how models are trained, in a file that `tune` writes and other experiments read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

from nfn_monomial.adapters.files import listed, read_json, shown
from nfn_monomial.benchmarks.files import write_json
from nfn_monomial.benchmarks.settings.training import RUNTIME, LossName, TrainConfig
from nfn_monomial.errors import InvalidValueError, MonomialError

__all__ = ["Recipe", "read_recipes", "write_recipes"]

SETTABLE = tuple(field.name for field in fields(TrainConfig) if field.name not in RUNTIME)


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        loss: its name.
        training: fields of `TrainConfig`, but those that decide no result; the others stay as the experiment has them.

    Raises:
        ValueError: for another loss or field, or a value that a field does not take.
    """

    loss: str
    training: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.loss not in get_args(LossName):
            raise InvalidValueError(f"loss is {shown(self.loss)}, but should be one of {listed(get_args(LossName))}")
        if not isinstance(self.training, Mapping) or not set(self.training) <= set(SETTABLE):
            raise InvalidValueError(f"training has {shown(self.training)}, but should have only {', '.join(SETTABLE)}")
        self.apply(TrainConfig())

    def apply(self, training: TrainConfig) -> dict[str, Any]:
        """``loss`` and ``training`` of a model in an experiment."""
        return {"loss": self.loss, "training": replace(training, **self.training)}


def write_recipes(path: Path, recipes: Mapping[str, Recipe]) -> None:
    """Write recipes by model; the file appears whole or not at all."""
    write_json(path, {"recipes": {model: asdict(recipe) for model, recipe in recipes.items()}})


def read_recipes(path: str | Path) -> dict[str, Recipe]:
    """Recipes by model.

    Raises:
        ValueError: if there is no such file, or it is not what `write_recipes` writes.
    """
    found = read_json(Path(path))
    recipes = found.get("recipes") if isinstance(found, dict) else None
    if not isinstance(recipes, dict):
        raise InvalidValueError(f"{path} has no recipes: give a recipe.json that `nfn-monomial tune` wrote")
    read = {}
    for model, values in recipes.items():
        if not isinstance(values, dict) or set(values) != {"loss", "training"}:
            raise InvalidValueError(f"{path}: the recipe of {shown(model)} should have loss and training alone")
        try:
            read[model] = Recipe(**values)
        except MonomialError as error:
            raise InvalidValueError(f"{path}, recipe of {shown(model)}: {error}") from None
    return read
