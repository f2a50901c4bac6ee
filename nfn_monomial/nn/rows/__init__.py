"""Layers one after another on rows of fields: what lies between them is computed some networks at a time, not kept."""

from .maps import Field, Map, Product, Rows, product, then, whole
from .stack import RowWise, Stack, stacked

__all__ = ["Field", "Map", "Product", "RowWise", "Rows", "Stack", "product", "stacked", "then", "whole"]
