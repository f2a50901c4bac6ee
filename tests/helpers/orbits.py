"""Networks of one orbit: drawn, moved far, and compared."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nfn_monomial import GroupElement, MonomialMatrix, WeightSpace
from nfn_monomial.testing import random_element, random_networks


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def networks(
    space: WeightSpace, batch: int = 3, channels: int = 1, seed: int = 0, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """The same ones for the same seed."""
    return random_networks(space, batch, channels, dtype=dtype, generator=generator(seed))


def element_of(space: WeightSpace, batch: int = 3, seed: int = 0) -> GroupElement:
    return random_element(space, batch, generator=generator(seed))


def far_element(
    space: WeightSpace,
    batch: int | None = None,
    decades: float = 6,
    draws: torch.Generator | None = None,
    sizes: Mapping[str, int] | None = None,
) -> GroupElement:
    """Permutations, signs, and scales between ``10^-decades`` and ``10^decades``, with uniform logarithms."""
    draws, matrices = draws or generator(), {}
    for name, m in space.sample(batch, sizes=sizes, generator=draws).matrices.items():
        powers = [torch.empty_like(s).uniform_(-decades, decades, generator=draws) for s in m.scales]
        gauges = zip(m.scales, powers, space.nodes[name].gauges, strict=True)
        scales = [s.sign() * 10**p if gauge.scales else s for s, p, gauge in gauges]
        matrices[name] = MonomialMatrix(scales, m.permutation, m.permutes)
    return GroupElement(space, matrices)


def motion_of(g: GroupElement) -> GroupElement:
    """Its permutations alone."""
    matrices = {n: MonomialMatrix([torch.ones_like(s) for s in m.scales], m.permutation) for n, m in g.matrices.items()}
    return GroupElement(g.space, matrices)


def difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest error of any tensor relative to its largest entry."""
    return max(float((found[k] - x).abs().max() / x.abs().max().clamp_min(1e-300)) for k, x in expected.items())


def changed(network: Mapping[str, Tensor], name: str, index: tuple[int, ...], factor: float) -> dict[str, Tensor]:
    """One entry multiplied."""
    tensor = network[name].clone()
    tensor[index] *= factor
    return {**network, name: tensor}
