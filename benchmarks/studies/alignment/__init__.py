"""How well networks are brought into one frame."""
