"""Checkpoints of one's own: read, explained, compared, aligned, balanced."""
