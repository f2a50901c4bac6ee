"""The mappings of quantisers, from the derived group of a network: written in their formats, each line tested."""

from .formats import FORMATS, FormatRecipe, recipe_of

__all__ = ["FORMATS", "FormatRecipe", "recipe_of"]
