"""Recipes: how models are trained, in a file that `tune` writes and other experiments read.

``recipes.json`` beside this module has those that were searched for the library, `SHIPPED`. `PLAIN` is no file: one
training for all, without what models ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

from nfn_monomial.benchmarks.settings.training import RUNTIME, Head, LossName, TrainConfig
from nfn_monomial.checks import listed, shown
from nfn_monomial.errors import InvalidValueError, MissingFileError, MonomialError
from nfn_monomial.tools.files.atomic import write_json
from nfn_monomial.tools.files.untrusted import read_json

__all__ = ["OPTIONS", "PLAIN", "SHIPPED", "Recipe", "read_recipes", "write_recipes"]

SHIPPED, PLAIN = "shipped", "plain"  # in place of a file

SETTABLE = tuple(f.name for f in fields(TrainConfig) if f.name not in RUNTIME)
OPTIONS = tuple(f.name for f in fields(Head))


@dataclass(frozen=True)
class Recipe:
    """The training of a model.

    Attributes:
        loss: its name.
        training: fields of `TrainConfig`, but those that decide no result; the others stay as the experiment has them.
        options: of the model, fields of `Head`; the others stay as the model has them.

    Raises:
        ValueError: for another loss or field, or a value that a field does not take.
    """

    loss: str
    training: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.loss not in get_args(LossName):
            raise InvalidValueError(f"loss is {shown(self.loss)}, but should be one of {listed(get_args(LossName))}")
        for name, known in (("training", SETTABLE), ("options", OPTIONS)):
            values = getattr(self, name)
            if not isinstance(values, Mapping) or not set(values) <= set(known):
                raise InvalidValueError(f"{name} has {shown(values)}, but should have only {', '.join(known)}")
        self.apply(TrainConfig())
        Head(**self.options)

    def apply(self, training: TrainConfig) -> dict[str, Any]:
        """Returns ``loss`` and ``training`` of a model in an experiment."""
        return {"loss": self.loss, "training": replace(training, **self.training)}

    def built(self) -> dict[str, Any]:
        """Returns the recipe's part of a run's options; it is empty if the recipe sets nothing of the model."""
        return {"model": dict(self.options)} if self.options else {}


def write_recipes(path: Path, recipes: Mapping[str, Recipe]) -> None:
    """Writes recipes by model; the file appears whole or not at all."""
    write_json(path, {"recipes": {model: asdict(recipe) for model, recipe in recipes.items()}})


def read_recipes(path: str | Path) -> dict[str, Recipe]:
    """Recipes by model, of a file or `SHIPPED`.

    Raises:
        ValueError: if there is no such file, or it is not what `write_recipes` writes.
    """
    file = Path(__file__).with_name("recipes.json") if path == SHIPPED else Path(path)
    if not file.exists():
        raise MissingFileError(
            f"recipe {str(path)!r}: no such file; give one that `nfn-monomial tune` wrote, {SHIPPED!r} for the "
            f"library's, or {PLAIN!r} for one training for all models"
        )
    content = read_json(file, "make it again: `nfn-monomial tune` writes it whole")
    recipes = content.get("recipes") if isinstance(content, dict) else None
    if not isinstance(recipes, dict):
        raise InvalidValueError(f"{path} has no recipes: give a recipe.json that `nfn-monomial tune` wrote")
    read = {}
    for model, values in recipes.items():
        if not isinstance(values, dict) or not {"loss", "training"} <= set(values) <= {"loss", "training", "options"}:
            raise InvalidValueError(
                f"{path}: the recipe of {shown(model)} should have loss and training, options perhaps, and no more"
            )
        try:
            read[model] = Recipe(**values)
        except MonomialError as error:
            raise InvalidValueError(f"{path}, recipe of {shown(model)}: {error}") from None
    return read
