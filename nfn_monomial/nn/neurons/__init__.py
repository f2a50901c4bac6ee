"""Neuron features: their layout, their arrangement in buckets, the layers on them, and the way in and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nfn_monomial.doors import lazy

if TYPE_CHECKING:
    from .embedding import NeuronEmbedding, NeuronReadout
    from .layers import NeuronLayer
    from .layout import CHAIN, NeuronLayout, StreamPlan, neuron_layout
else:
    lazy(
        __name__,
        {
            "embedding": ["NeuronEmbedding", "NeuronReadout"],
            "layers": ["NeuronLayer"],
            "layout": ["CHAIN", "NeuronLayout", "StreamPlan", "neuron_layout"],
        },
    )

__all__ = ["CHAIN", "NeuronEmbedding", "NeuronLayer", "NeuronLayout", "NeuronReadout", "StreamPlan", "neuron_layout"]
