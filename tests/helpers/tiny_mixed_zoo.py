"""A zoo of several architectures that is made in seconds, one small architecture, and what networks answer."""

from torch import Tensor

from nfn_monomial.adapters.modules import network_outputs
from nfn_monomial.benchmarks.make.config import MixedConfig
from nfn_monomial.tools.predictors.architectures import Architecture, PlainCNN

# 22 networks of 6 architectures, the last of which has 2 networks, trained for a few steps.
TINY = MixedConfig(networks=22, per_architecture=4, widths=(8, 16), epochs=(1, 2), train_fractions=(0.1, 0.2), seed=1)
SMALL = PlainCNN((1, 8, 9), (3, 5), (2, 1), (1, 2), (11, 10), ("tanh", "gelu", "leaky_relu"))


def run(architecture: Architecture, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    """What networks answer, by the template: ``(N, b, 10)``."""
    names, module = architecture.names, architecture.module().to(x.dtype)
    return network_outputs(module, {names[key]: t.unsqueeze(1).to(x.dtype) for key, t in tensors.items()}, x)
