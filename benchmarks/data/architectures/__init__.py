"""What networks of one weight space have in common: their architecture, as data and as a torch module."""
