"""The layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nfn_monomial.doors import lazy

if TYPE_CHECKING:
    from .activation import PointwiseActivation
    from .augment import Augment
    from .canonicalize import Canonicalize
    from .input_norm import InputNorm
    from .linear import EquivariantLinear
    from .messages import GatedActivation, MessageBlock, MessagePassing
    from .neurons import NeuronEmbedding, NeuronReadout, neuron_layout
    from .norm import EquivariantNorm
    from .pool import InvariantPool, NeuronPool
    from .tensor_product import TensorProduct
else:
    lazy(
        __name__,
        {
            "activation": ["PointwiseActivation"],
            "augment": ["Augment"],
            "canonicalize": ["Canonicalize"],
            "input_norm": ["InputNorm"],
            "linear": ["EquivariantLinear"],
            "messages": ["GatedActivation", "MessageBlock", "MessagePassing"],
            "neurons": ["NeuronEmbedding", "NeuronReadout", "neuron_layout"],
            "norm": ["EquivariantNorm"],
            "pool": ["InvariantPool", "NeuronPool"],
            "tensor_product": ["TensorProduct"],
        },
    )

__all__ = [
    "Augment",
    "Canonicalize",
    "EquivariantLinear",
    "EquivariantNorm",
    "GatedActivation",
    "InputNorm",
    "InvariantPool",
    "MessageBlock",
    "MessagePassing",
    "NeuronEmbedding",
    "NeuronPool",
    "NeuronReadout",
    "PointwiseActivation",
    "TensorProduct",
    "neuron_layout",
]
