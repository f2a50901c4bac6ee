"""Neuron features: their layout, the layers on them, and the way in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nfn_monomial.doors import lazy

if TYPE_CHECKING:
    from .embedding import NeuronEmbedding
    from .layout import CHAIN, NeuronLayer, NeuronLayout, StreamPlan, neuron_layout
else:
    lazy(
        __name__,
        {
            "embedding": ["NeuronEmbedding"],
            "layout": ["CHAIN", "NeuronLayer", "NeuronLayout", "StreamPlan", "neuron_layout"],
        },
    )

__all__ = ["CHAIN", "NeuronEmbedding", "NeuronLayer", "NeuronLayout", "StreamPlan", "neuron_layout"]
