"""Monomial-matrix-group equivariant neural functionals: layers that read networks and respect all their symmetries.

The core is pure torch. Converters live in ``nfn_monomial.adapters``, experiments in ``nfn_monomial.benchmarks``.
"""

from .augment import Augment
from .balance import Balance, balance
from .basis import BilinearTerm, bilinear_terms, count_bilinear_terms, count_terms
from .features import Axis, Features, FieldType, Layout
from .groups import GroupElement, MonomialMatrix
from .linear import EquivariantLinear
from .message_models import MessagePassingEditor, MessagePassingNFN
from .messages import EquivariantNorm, GatedActivation, MessageBlock, MessagePassing
from .models import EquivariantNFN, MonomialNFN, equivariant_stack
from .neurons import NeuronEmbedding, NeuronPool, NeuronReadout, neuron_layout
from .normalize import InputNorm
from .pointwise import Canonicalize, InvariantPool, PointwiseActivation
from .probes import Probed, ProbeFeatures
from .siren import absorb_omega, canonical_phase, shift_phase
from .statistics import InvariantStatistics
from .symmetry import Symmetry, register_activation, symmetry_of
from .tensor_product import TensorProduct
from .weight_space import Node, WeightSpace

__version__ = "0.1.0"

__all__ = [
    "Augment",
    "Axis",
    "Balance",
    "BilinearTerm",
    "Canonicalize",
    "EquivariantLinear",
    "EquivariantNFN",
    "EquivariantNorm",
    "Features",
    "FieldType",
    "GatedActivation",
    "GroupElement",
    "InputNorm",
    "InvariantPool",
    "InvariantStatistics",
    "Layout",
    "MessageBlock",
    "MessagePassing",
    "MessagePassingEditor",
    "MessagePassingNFN",
    "MonomialMatrix",
    "MonomialNFN",
    "NeuronEmbedding",
    "NeuronPool",
    "NeuronReadout",
    "Node",
    "PointwiseActivation",
    "ProbeFeatures",
    "Probed",
    "Symmetry",
    "TensorProduct",
    "WeightSpace",
    "absorb_omega",
    "balance",
    "bilinear_terms",
    "canonical_phase",
    "count_bilinear_terms",
    "count_terms",
    "equivariant_stack",
    "neuron_layout",
    "register_activation",
    "shift_phase",
    "symmetry_of",
]
