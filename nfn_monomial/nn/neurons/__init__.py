"""Neuron features: their layout, the layers on them, and the way in."""

from .embedding import NeuronEmbedding
from .layout import CHAIN, EdgeEnd, EdgeSet, NeuronLayer, NeuronLayout, Plan, Streams, neuron_layout

__all__ = [
    "CHAIN",
    "EdgeEnd",
    "EdgeSet",
    "NeuronEmbedding",
    "NeuronLayer",
    "NeuronLayout",
    "Plan",
    "Streams",
    "neuron_layout",
]
