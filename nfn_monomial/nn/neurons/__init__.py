"""Neuron features: their layout, the layers on them, and the way in."""

from .embedding import NeuronEmbedding
from .layout import CHAIN, NeuronLayer, NeuronLayout, Plan, neuron_layout

__all__ = ["CHAIN", "NeuronEmbedding", "NeuronLayer", "NeuronLayout", "Plan", "neuron_layout"]
