"""Networks of one's own: which symmetries they have, what two have in common, one moved next to another."""
