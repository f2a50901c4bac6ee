"""The mappings of quantisers, from the derived group of a network: written in their formats, each line tested."""

from .formats import FORMATS, Recipe, recipe_of

__all__ = ["FORMATS", "Recipe", "recipe_of"]
