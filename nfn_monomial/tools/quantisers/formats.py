"""Mappings in the form in which llm-compressor takes them: YAML whose entries are JSON, each with its tested error."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.fibre import NormalForm
from nfn_monomial.report.names import folded
from nfn_monomial.space import WeightSpace

from .names import family, named
from .rotations import rotations_of
from .scales import ScaleLine, scale_lines
from .trial import MappingTrial

__all__ = ["FORMATS", "FormatRecipe", "recipe_of"]

MODIFIERS = {"smoothquant": "SmoothQuantModifier", "awq": "AWQModifier", "spinquant": "SpinQuantModifier"}
FORMATS = tuple(MODIFIERS)


@dataclass
class FormatRecipe:
    """The mappings of a network in one format.

    Attributes:
        modifier: of llm-compressor that takes them.
        arguments: of the modifier, as JSON has them.
        errors: JSON of an entry -> the largest change of an output.
        left_out: shared scales for which the format has no line.
    """

    modifier: str
    arguments: dict[str, Any]
    errors: dict[str, float] = field(default_factory=dict)
    left_out: Sequence[ScaleLine] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the arguments, the errors and the scales that are left out."""
        left = [line._asdict() for line in self.left_out]
        return {"recipe": {self.modifier: self.arguments}, "tested_errors": self.errors, "left_out": left}

    def text(self) -> str:
        """Returns the mappings as YAML, which contains JSON."""
        lines = [
            "# Tested error: the largest change of any output, relative to its largest entry, in float64, at random",
            "# weights near the network's own, when random scales or rotations act on exactly these modules.",
            "default_stage:",  # without the two around it, a modifier is passed over
            "  default_modifiers:",
            f"    {self.modifier}:",
        ]
        for name, value in self.arguments.items():
            lines.append(f"      {name}:" if value else f"      {name}: []")
            entries = value.items() if isinstance(value, dict) else [(None, entry) for entry in value]
            for key, entry in entries:
                front = "- " if key is None else f"{key}: "
                error = self.errors.get(key or json.dumps(entry))
                comment = "" if error is None else f"  # tested error {error:.1e}"
                lines.append(f"        {front}{json.dumps(entry)}{comment}")
        if self.left_out:
            lines.append("# Other shared scales, for which this format has no line:")
        alike: dict[tuple[str, ...], list[ScaleLine]] = {}
        for line in self.left_out:
            kinds = [*map(family, line.smooth), "->", *map(family, line.balance), line.reason]
            alike.setdefault(tuple(dict.fromkeys(kinds)), []).append(line)
        for those in alike.values():
            sides = zip(*((line.smooth, line.balance) for line in those), strict=True)
            maps = " -> ".join(
                ", ".join(folded(path for paths in side for path in paths)) or "nothing" for side in sides
            )
            error = max(line.error for line in those)
            lines.append(f"# - {maps}: {those[0].reason}; tested error {error:.1e}")
        return "\n".join(lines)


def recipe_of(
    module: nn.Module, inputs: tuple[Any, ...], space: WeightSpace, form: Callable[[], NormalForm | str], style: str
) -> FormatRecipe:
    """Finds and tests the mappings of a module in one format.

    Args:
        module: the network; it is not changed.
        inputs: on which it runs.
        space: its weight space.
        form: returns its normal form, or why that is not known; called for rotations only.
        style: the format, one of `FORMATS`.

    Raises:
        ValueError: for another format; if there are no mappings of the kind that it takes.
    """
    if style not in MODIFIERS:
        raise InvalidValueError(f"--format {style}: expected {', '.join(FORMATS)}")
    trial = MappingTrial(module, inputs)
    if style == "spinquant":
        if isinstance(normal := form(), str):
            raise InvalidValueError(f"no SpinQuant mapping of this network: {normal}")
        return FormatRecipe(MODIFIERS[style], *rotations_of(trial, normal))
    scales = scale_lines(trial, space, parts=style == "awq")
    lines = [line for line in scales if not line.reason]
    recipe = FormatRecipe(MODIFIERS[style], {"mappings": []}, left_out=[line for line in scales if line.reason])
    for smooth, balance, numbers in named([(line.smooth[0], line.balance) for line in lines], trial.paths):
        entry = {"smooth_layer": smooth, "balance_layers": [*balance]} if style == "awq" else [[*balance], smooth]
        recipe.arguments["mappings"].append(entry)
        recipe.errors[json.dumps(entry)] = max(lines[n].error for n in numbers)
    return recipe
