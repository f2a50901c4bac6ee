"""Networks and images that experiments read."""
