"""Models that experiments compare, by name."""
