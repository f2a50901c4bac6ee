"""Networks as a user has them, and as they are computed with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nfn_monomial.checks import FLOATING, is_dense, shown
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.packing import check_tensors, concrete, require_finite
from nfn_monomial.space.weight_space import WeightSpace


def batched(
    space: WeightSpace, networks: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], Callable[[Mapping[str, Tensor]], dict[str, Tensor]]]:
    """Networks as ``(B, *shape)`` in float64 on the CPU, and a function that gives such the form of the argument."""
    names = list(space.parameters)
    tensors = {n: networks[n] for n in names if n in networks} if isinstance(networks, Mapping) else networks
    first = tensors.get(names[0]) if isinstance(tensors, dict) else None
    single = isinstance(first, Tensor) and first.ndim == len(space.parameters[names[0]])
    if single and isinstance(tensors, dict):
        tensors = {n: t[None, None] if isinstance(t, Tensor) and is_dense(t) else t for n, t in tensors.items()}
    plain = isinstance(tensors, dict) and all(isinstance(t, Tensor) and t.dtype in FLOATING for t in tensors.values())
    if plain and concrete(tensors.values()) and all(map(is_dense, tensors.values())):
        tensors = {n: t.to("cpu", torch.float64) for n, t in tensors.items()}
    sizes, expected = check_tensors(space, tensors), space.sizes()
    if other := [f"{n} {sizes[n]} in place of {size}" for n, size in expected.items() if sizes.get(n, size) != size]:
        raise InvalidValueError(f"the networks have other sizes than the module: {', '.join(other)}")
    if not concrete(tensors.values()) or not len(tensors[names[0]]):
        raise InvalidValueError(f"{names[0]} holds no values: {shown(tensors[names[0]])}; give networks as tensors")
    if tensors[names[0]].shape[1] != 1:
        raise InvalidValueError(
            f"{names[0]} has {tensors[names[0]].shape[1]} channels; networks have one: (B, 1, *shape)"
        )
    require_finite(tensors)

    def close(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        likes = {name: networks.get(name, networks[names[0]]) for name in batch}
        shaped = {n: t.squeeze(0) if single else t.unsqueeze(1) for n, t in batch.items()}
        return {n: t.to(likes[n]).contiguous() for n, t in shaped.items()}

    return {n: t.squeeze(1) for n, t in tensors.items()}, close
