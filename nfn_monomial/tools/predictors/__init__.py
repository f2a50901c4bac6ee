"""Trained models that can be applied to networks of one's own: `Predictor`."""

from .predictor import SHIPPED, Predictor
from .tasks import Prediction

__all__ = ["SHIPPED", "Prediction", "Predictor"]
