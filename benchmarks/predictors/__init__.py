"""Trained predictors: saved whole, loaded safely, applied to networks of one's own."""
