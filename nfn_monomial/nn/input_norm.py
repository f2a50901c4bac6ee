"""Input normalisation: every entry of a network to size 1, as far as the symmetry allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, overload

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.features import Features
from nfn_monomial.space.packing import on_cpu, require_finite
from nfn_monomial.space.weight_space import WeightSpace


class InputNorm(nn.Module):
    """``(x - mean) / scale`` with statistics of a training set; equivariant under the whole group of the space.

    A parameter's entries share statistics along every axis that runs over permuted neurons, and have their own for
    every channel, kernel position and neuron of a FIXED node: those are constants that permutations do not move.
    Dividing by them commutes with every scaling and sign flip, too. Subtracting commutes only where the constant
    itself is equivariant, which is to say where every axis of the field, alone, is a balanced partition of an affine
    term (docs/guide.md, balanced partitions). So, for the entries that share statistics,

    ===================================== ========================================
    field                                 becomes
    ===================================== ========================================
    no axis flips signs or scales         ``(x - mean) / standard deviation``
    some axis flips signs or scales       ``x / root mean square``
    ===================================== ========================================

    Entries that do not vary in the training set, or by rounding errors only, are divided by their root mean square;
    where they are all 0, by 1. Statistics are computed in float64: exact for sizes from 1e-150 to 1e150.

    Before `fit` it is the identity. Takes `Features` (for ``nn.Sequential``) or named tensors.

    Args:
        space: the weight space.
        channels: channels of the networks.

    Attributes:
        mean: buffer, of all fields one after the other; 0 where no mean is subtracted.
        scale: buffer, likewise.

    >>> space = WeightSpace.mlp([1, 2, 1], "tanh")
    >>> networks = {name: torch.full((4, 1, *shape), 3.0) for name, shape in space.shapes().items()}
    >>> {name: x[0].flatten().tolist() for name, x in InputNorm(space).fit(networks)(networks).items()}
    {'weight.0': [1.0, 1.0], 'bias.0': [1.0, 1.0], 'weight.1': [1.0, 1.0], 'bias.1': [0.0]}
    """

    mean: Tensor
    scale: Tensor

    @checked
    def __init__(self, space: WeightSpace, channels: Count = 1) -> None:
        super().__init__()
        self.space, self.channels, self.layout = space, channels, space.layout
        self._widths = [multiplicity * channels for multiplicity in self.layout.multiplicities]
        self.register_buffer("mean", torch.zeros(sum(self._widths)))
        self.register_buffer("scale", torch.ones(sum(self._widths)))

    @torch.no_grad()
    @checked
    def fit(self, networks: Features | Mapping[str, Tensor] | Iterable[Features | Mapping[str, Tensor]]) -> InputNorm:
        """Take the statistics of a training set: one batch, or an iterable of batches, which need not fit in memory.

        Raises:
            ValueError: as `WeightSpace.pack`; for NaN or infinite values, naming the parameter; if there is no batch;
                or if a statistic lies beyond what the buffers' dtype holds.
        """
        total: list[_Moments] | None = None
        eps = 0.0
        for batch in [networks] if isinstance(networks, Features | Mapping) else networks:
            features = batch if isinstance(batch, Features) else self.space.pack(batch, check_finite=False)
            self.layout.require(features, self.channels, "InputNorm.fit")
            if not len(features):
                continue
            require_finite(self.space.unpack(features))
            moments = [_moments(x.to(torch.float64).flatten(0, -2)) for x in features.tensors]
            total = moments if total is None else [_merge(a, b) for a, b in zip(total, moments, strict=True)]
            eps = torch.finfo(features.tensors[0].dtype).eps
        if total is None:
            raise InvalidValueError("InputNorm.fit: no networks given")
        means, scales = [], []
        for (rows, mean, squares), felt in zip(total, self.layout.felt, strict=True):
            centred = not (felt.flips or felt.scales)
            size, deviation = (mean.square() + squares / rows).sqrt(), (squares / rows).sqrt()
            varies = deviation > 16 * eps * size
            scale = torch.where(varies, deviation, size) if centred else size
            means.append(mean if centred else torch.zeros_like(size))
            scales.append(torch.where(scale > 0, scale, 1))
        mean, scale = torch.cat(means).to(self.mean), torch.cat(scales).to(self.scale)
        if not bool((mean.isfinite() & scale.isfinite() & (scale > 0)).all()):
            raise InvalidValueError(
                f"InputNorm.fit: sizes of some entries are beyond what {self.scale.dtype} holds, the dtype of the "
                "statistics; use module.double()"
            )
        self.mean.copy_(mean)
        self.scale.copy_(scale)
        return self

    @overload
    def forward(self, networks: Features) -> Features: ...
    @overload
    def forward(self, networks: Mapping[str, Tensor]) -> dict[str, Tensor]: ...
    def forward(self, networks: Features | Mapping[str, Tensor]) -> Features | dict[str, Tensor]:
        """Features or named tensors ``(B, C, *shape)`` -> the same kind of thing, same shapes and dtype."""
        return self._mapped(networks, lambda x, mean, scale: (x - mean) / scale)

    @overload
    def inverse(self, networks: Features) -> Features: ...
    @overload
    def inverse(self, networks: Mapping[str, Tensor]) -> dict[str, Tensor]: ...
    def inverse(self, networks: Features | Mapping[str, Tensor]) -> Features | dict[str, Tensor]:
        """``x * scale + mean``: networks from what a model behind this layer made of them."""
        return self._mapped(networks, lambda x, mean, scale: x * scale + mean)

    def _mapped(
        self, networks: Features | Mapping[str, Tensor], fn: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Features | dict[str, Tensor]:
        if not isinstance(networks, Features):
            features = self.space.pack(networks, check_finite=on_cpu(networks))
            return self.space.unpack(self._mapped(features, fn))  # type: ignore[arg-type]  # features of features
        self.layout.require(networks, self.channels, "InputNorm")
        statistics = torch.split(self.mean, self._widths), torch.split(self.scale, self._widths)
        fields = zip(networks.tensors, *statistics, strict=True)
        return Features(self.layout, tuple(fn(x, mean, scale).to(x.dtype) for x, mean, scale in fields))

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}"


class _Moments(NamedTuple):
    """Number of rows, mean, and sum of squared deviations from it, of every column."""

    rows: int
    mean: Tensor
    squares: Tensor


def _moments(x: Tensor) -> _Moments:
    mean = x.mean(0)
    return _Moments(len(x), mean, (x - mean).square().sum(0))


def _merge(a: _Moments, b: _Moments) -> _Moments:
    """Of both sets of rows together (Chan et al. 1979): what the sums over all would be, without cancellation."""
    rows, step = a.rows + b.rows, b.mean - a.mean
    mean = a.mean + step * (b.rows / rows)
    return _Moments(rows, mean, a.squares + b.squares + step.square() * (a.rows * (b.rows / rows)))
