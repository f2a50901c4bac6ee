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
    """Networks as ``(B, *shape)`` in float64 on the CPU, and what makes results of the kind that was given."""
    names = list(space.parameters)
    given = {n: networks[n] for n in names if n in networks} if isinstance(networks, Mapping) else networks
    first = given.get(names[0]) if isinstance(given, dict) else None
    single = isinstance(first, Tensor) and first.ndim == len(space.parameters[names[0]])
    if single and isinstance(given, dict):
        given = {n: t[None, None] if isinstance(t, Tensor) and is_dense(t) else t for n, t in given.items()}
    plain = isinstance(given, dict) and all(isinstance(t, Tensor) and t.dtype in FLOATING for t in given.values())
    if plain and concrete(given.values()) and all(map(is_dense, given.values())):
        given = {n: t.to("cpu", torch.float64) for n, t in given.items()}
    sizes = check_tensors(space, given)
    if other := [f"{n} {sizes[n]} in place of {own}" for n, own in space.sizes().items() if sizes.get(n, own) != own]:
        raise InvalidValueError(f"the networks have other sizes than the module: {', '.join(other)}")
    if not concrete(given.values()) or not len(given[names[0]]):
        raise InvalidValueError(f"{names[0]} holds no values: {shown(given[names[0]])}; give networks as tensors")
    if given[names[0]].shape[1] != 1:
        raise InvalidValueError(
            f"{names[0]} has {given[names[0]].shape[1]} channels; networks have one: (B, 1, *shape)"
        )
    require_finite(given)

    def close(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        likes = {name: networks.get(name, networks[names[0]]) for name in found}
        shaped = {n: t.squeeze(0) if single else t.unsqueeze(1) for n, t in found.items()}
        return {n: t.to(likes[n]).contiguous() for n, t in shaped.items()}

    return {n: t.squeeze(1) for n, t in given.items()}, close
