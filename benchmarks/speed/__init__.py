"""Time and memory of layers."""
