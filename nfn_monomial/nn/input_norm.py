"""Input normalisation: every entry of a network to size 1, as far as the symmetry allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Self, overload

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Count, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.features import Features
from nfn_monomial.space.packing import require_finite
from nfn_monomial.space.weight_space import WeightSpace

from .steps import packed


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
    where they are all 0, by 1. Statistics are computed in float64 and kept in float32, or in float64 after
    ``double()``; ``half()`` and ``bfloat16()`` leave them as they are, because float16 has no size of 1e-8.

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
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        self.register_buffer("mean", torch.zeros(sum(self._widths), dtype=dtype))
        self.register_buffer("scale", torch.ones(sum(self._widths), dtype=dtype))

    def reset_parameters(self) -> None:
        """Forgets the statistics: it is the identity again."""
        self.mean.zero_()
        self.scale.fill_(1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, after in list(self.named_buffers()):
            if after.dtype in (torch.float16, torch.bfloat16):
                setattr(self, name, before[name].to(after.device))
        return self

    @torch.no_grad()
    @checked
    def fit(self, networks: Features | Mapping[str, Tensor] | Iterable[Features | Mapping[str, Tensor]]) -> InputNorm:
        """Takes the statistics of a training set: one batch, or an iterable of batches, which need not fit in memory.

        Raises:
            ValueError: as `WeightSpace.pack`; for NaN or infinite values, naming the parameter; if there is no batch;
                or if a statistic lies beyond what the buffers' dtype holds.
        """
        # Norms of deviations, not their squares, which float64 may not hold.
        rows, mean, norm = torch.zeros(3, len(self.mean), dtype=torch.float64)
        eps = 0.0
        for batch in [networks] if isinstance(networks, Features | Mapping) else networks:
            features = batch if isinstance(batch, Features) else self.space.pack(batch, check_finite=False)
            self.layout.require(features, self.channels, "InputNorm.fit")
            if not len(features):
                continue
            require_finite(self.space.unpack(features))
            tables = [x.to(torch.float64).flatten(0, -2) for x in features.tensors]
            more = torch.cat([torch.full_like(x[0], len(x)) for x in tables]).to(mean)
            batch_mean = torch.cat([x.mean(0) for x in tables]).to(mean)
            deviations = [x - x.mean(0) for x in tables]
            tops = [x.abs().amax(0).clamp_min(torch.finfo(x.dtype).tiny) for x in deviations]
            pairs = zip(deviations, tops, strict=True)
            batch_norm = torch.cat([top * torch.linalg.vector_norm(x / top, dim=0) for x, top in pairs]).to(mean)
            # Mean and deviations of all rows together (Chan et al. 1979), without cancellation.
            before, rows, step = rows, rows + more, batch_mean - mean
            mean = mean + step * (more / rows)
            norm = norm.hypot(batch_norm).hypot(step * (before * (more / rows)).sqrt())
            eps = torch.finfo(features.tensors[0].dtype).eps
        if not eps:
            raise InvalidValueError("InputNorm.fit: no networks given")
        uncharged = torch.tensor([not (felt.flips or felt.scales) for felt in self.layout.felt])
        centred = uncharged.repeat_interleave(torch.tensor(self._widths))
        deviation = norm / rows.sqrt()
        size = mean.hypot(deviation)
        scale = torch.where(centred & (deviation > 16 * eps * size), deviation, size)
        mean, scale = torch.where(centred, mean, 0).to(self.mean), torch.where(scale > 0, scale, 1).to(self.scale)
        if not bool((mean.isfinite() & scale.isfinite() & (scale > 0)).all()):
            raise InvalidValueError(
                f"InputNorm.fit: sizes of some entries are beyond what {self.scale.dtype} holds, the dtype of the "
                "statistics; use module.double()"
            )
        self.mean.copy_(mean)
        self.scale.copy_(scale)
        return self

    def forward(self, networks: Features | Mapping[str, Tensor]) -> Features | dict[str, Tensor]:
        """Features or named tensors ``(B, C, *shape)`` -> the same kind of thing, same shapes and dtype."""
        return self._mapped(networks, lambda x, mean, scale: (x - mean) / scale)

    @overload
    def inverse(self, networks: Features) -> Features: ...
    @overload
    def inverse(self, networks: Mapping[str, Tensor]) -> dict[str, Tensor]: ...
    def inverse(self, networks: Features | Mapping[str, Tensor]) -> Features | dict[str, Tensor]:
        """``x * scale + mean``: undoes the normalisation in the output of a model that follows this layer."""
        return self._mapped(networks, lambda x, mean, scale: x * scale + mean)

    def _mapped(
        self, networks: Features | Mapping[str, Tensor], fn: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Features | dict[str, Tensor]:
        if not isinstance(networks, Features):
            return self.space.unpack(self._mapped(packed(self.space, networks), fn))  # type: ignore[arg-type]
        self.layout.require(networks, self.channels, "InputNorm")
        statistics = torch.split(self.mean, self._widths), torch.split(self.scale, self._widths)
        fields = zip(networks.tensors, *statistics, strict=True)
        return Features(self.layout, tuple(fn(x, mean, scale).to(x.dtype) for x, mean, scale in fields))

    def extra_repr(self) -> str:
        return f"{self.space}, {self.channels}"
