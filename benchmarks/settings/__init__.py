"""Configurations of everything that is run: data, checked once at the door. Nothing here imports torch."""

from .base import AtLeastZero, Count, Positive, Settings, Some, assignment, override, read_value

__all__ = ["AtLeastZero", "Count", "Positive", "Settings", "Some", "assignment", "override", "read_value"]
