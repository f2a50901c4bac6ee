"""Parts that several models share: heads, statistics, and nfn's description of a network."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

import torch
from nfn.common import ArraySpec, NetworkSpec, WeightSpaceFeatures
from nfn.layers import GaussianFourierFeatureTransform, IOSinusoidalEncoding
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.links import Link

__all__ = [
    "CHANNELS",
    "NfnChain",
    "Residual",
    "fourier_front",
    "mlp",
    "nfn_chain",
    "statistics",
]

MAX_FREQUENCY, BANDS = 10, 6  # of IOSinusoidalEncoding (paper App. D.4)
CHANNELS = (16, 16, 5)  # of the weight-space layers, in every model that has them (paper App. D.3)


def mlp(in_features: int, hidden: int, out_features: int, dropout: float = 0.0) -> nn.Sequential:
    """Three linear layers with ReLU between; ``dropout`` of the input and of the first hidden layer."""
    layers = [
        ("drop", nn.Dropout(dropout)), ("0", nn.Linear(in_features, hidden)), ("1", nn.ReLU()),
        ("drop1", nn.Dropout(dropout)), ("2", nn.Linear(hidden, hidden)), ("3", nn.ReLU()),
        ("4", nn.Linear(hidden, out_features)),
    ]  # fmt: skip
    return nn.Sequential(OrderedDict(layers))


def statistics(x: Tensor) -> Tensor:
    """Mean, variance and quartiles of every row: ``(N, n)`` -> ``(N, 7)``.

    By sorting: ``torch.quantile`` refuses more than 16M entries, which the published zoo's training set exceeds.
    """
    ordered = x.sort(-1).values
    place = torch.linspace(0, x.shape[-1] - 1, 5, dtype=torch.float64, device=x.device)
    low, high = ordered[:, place.floor().long()], ordered[:, place.ceil().long()]
    quartiles = torch.lerp(low, high, (place - place.floor()).to(x.dtype))
    return torch.cat([x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True), quartiles], -1)


class NfnChain(NamedTuple):
    """Networks as nfn's layers read them: a chain of layers with biases.

    Attributes:
        weights: their names, in the order in which they run.
        biases: theirs.
        shapes: of the weights. Columns after a flatten are channels and positions, and these a kernel: a linear layer
            on a flattened map is a convolution with a kernel as large as the map.
    """

    weights: tuple[str, ...]
    biases: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def spec(self) -> NetworkSpec:
        """nfn's description; sizes of hidden nodes are -1, as nfn writes them."""
        last = len(self.shapes) - 1
        weights, biases = [], []
        for i, (rows, columns, *kernel) in enumerate(self.shapes):
            weights.append(ArraySpec((rows if i == last else -1, -1 if i else columns, *kernel)))
            biases.append(ArraySpec((rows if i == last else -1,)))
        return NetworkSpec(weights, biases)

    def read(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Tensors ``(B, C, *shape)`` by name -> the weights ``(B, C, rows, columns, *kernel)``, then the biases."""
        arrays = [tensors[name] for name in (*self.weights, *self.biases)]
        for i, shape in enumerate(self.shapes):
            if arrays[i].ndim < 2 + len(shape):
                arrays[i] = arrays[i].reshape(*arrays[i].shape[:3], -1, *shape[2:])
        return arrays


def nfn_chain(space: WeightSpace) -> NfnChain:
    """Returns the parameters of a space as nfn's layers read them.

    Raises:
        ValueError: if they cannot: for networks that are no chain of at least two layers with a bias each, and for 1-d
            and 3-d kernels.
    """
    leaving = {link.source: link for link in space.links if link.charges == (1, -1)}
    biases = {link.target: link.parameter for link in space.links if link.charges == (1,) and not link.kernel}
    reached = {link.target for link in leaving.values()}
    chain: list[Link] = []
    node = next((name for name in leaving if name not in reached), None)
    while node in leaving and len(chain) < len(leaving):
        chain.append(leaving[node])
        node = chain[-1].target
    names = [(link.parameter, biases.get(link.target, "")) for link in chain]
    if len(chain) < 2 or {name for pair in names for name in pair} != set(space.parameters):
        raise InvalidValueError(
            f"nfn's layers need a chain of at least two layers with a bias each; {space} is none: choose a model that "
            "reads any network"
        )
    sizes, shapes = space.sizes(), []
    for link in chain:
        if len(link.kernel) not in ((1,) if link.folded else (0, 2)):
            raise InvalidValueError(
                f"nfn's layers read linear and 2-d convolution layers; {space.describe(link.parameter)}"
            )
        shapes.append((sizes[link.target], sizes[str(link.source)], *[1] * link.folded, *link.kernel))
    weights, bias_names = zip(*names, strict=True)
    return NfnChain(weights, bias_names, tuple(shapes))


def fourier_front(spec: NetworkSpec, size: int, scale: float, positions: bool) -> tuple[list[nn.Module], int]:
    """Fourier features of every entry, ``2 size`` of them, and their number.

    ``positions``: with an encoding of layers, inputs and outputs, for layers of nfn that cannot tell them apart.
    """
    layers: list[nn.Module] = [GaussianFourierFeatureTransform(spec, 1, size, scale)]
    if not positions:
        return layers, 2 * size
    encoding = IOSinusoidalEncoding(spec, MAX_FREQUENCY, BANDS)
    return [*layers, encoding], encoding.num_out_chan(2 * size)


class Residual(nn.Sequential):
    """Adds ``x`` and the output of the modules."""

    def forward(self, x: WeightSpaceFeatures) -> WeightSpaceFeatures:
        return x + super().forward(x)  # type: ignore[no-untyped-call]
