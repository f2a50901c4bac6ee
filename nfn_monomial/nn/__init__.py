"""The layers."""

from .augment import Augment
from .input_norm import InputNorm
from .linear import EquivariantLinear
from .messages import EquivariantNorm, GatedActivation, MessageBlock, MessagePassing
from .neurons import NeuronEmbedding, NeuronPool, NeuronReadout, neuron_layout
from .pointwise import Canonicalize, InvariantPool, PointwiseActivation
from .tensor_product import TensorProduct

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
