"""Trained models that can be applied to networks of one's own: `Predictor`."""

from .predictor import SHIPPED, Prediction, Predictor

__all__ = ["SHIPPED", "Prediction", "Predictor"]
