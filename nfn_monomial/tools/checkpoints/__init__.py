"""Checkpoints: the symmetries of a network, two or more compared, moved into one frame, merged and balanced."""
