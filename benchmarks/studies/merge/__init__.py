"""Merging networks that were trained on their own: how far symmetry explains the barrier between them."""
