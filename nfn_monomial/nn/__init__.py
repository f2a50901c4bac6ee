"""The layers."""

from .activation import PointwiseActivation
from .augment import Augment
from .canonicalize import Canonicalize
from .input_norm import InputNorm
from .linear import EquivariantLinear
from .messages import GatedActivation, MessageBlock, MessagePassing
from .neurons import NeuronEmbedding, neuron_layout
from .norm import EquivariantNorm
from .pool import InvariantPool, NeuronPool, NeuronReadout
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
