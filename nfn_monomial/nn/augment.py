"""Augmentation by the group: networks that compute the same, anew in every epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from nfn_monomial.canonical.phases import phase_biases, shift_phase
from nfn_monomial.checks import AtLeastZero, Within, checked
from nfn_monomial.space.features import Features
from nfn_monomial.space.monomial import require_range
from nfn_monomial.space.packing import check_tensors
from nfn_monomial.space.weight_space import WeightSpace


class Augment(nn.Module):
    """In training, move every network by a random group element of its own; in eval mode, the identity.

    It shows how far augmentation brings a model without the symmetry; one move by hand is
    ``space.sample(len(networks)).act(networks)``. It draws from torch's global generator
    (``torch.manual_seed``). In training it breaks a compiled graph in two.

    In this order: noise, in the frame in which the networks are given; phases; the element.

    Args:
        space: the weight space.
        scale_range: bounds of uniform scales, as in `WeightSpace.sample`; log-normal by default.
        noise: standard deviation of Gaussian noise on every entry, relative to the root mean square of its tensor in
            its network and channel. This alone changes the networks' functions.
        phases: for sine networks, whose frequency is absorbed: `shift_phase` by integers up to this number, either way.
        layers: the sine nodes, see `canonical_phase`.

    Raises:
        ValueError: for a negative ``noise`` or ``phases``, and as `canonical_phase` for ``layers``.
    """

    @checked
    def __init__(
        self,
        space: WeightSpace,
        *,
        scale_range: tuple[float, float] | None = None,
        noise: AtLeastZero = 0.0,
        phases: Annotated[int, Within(0, 2**20)] = 0,
        layers: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        require_range(scale_range)
        self.space, self.scale_range, self.noise, self.phases = space, scale_range, noise, phases
        self._biases = phase_biases(space, layers) if phases or layers is not None else {}

    def forward(self, networks: Features | Mapping[str, Tensor]) -> Features | Mapping[str, Tensor]:
        """Features or named tensors ``(B, C, *shape)`` -> the same kind of thing, same shapes."""
        if not self.training:
            return networks
        # Elements are checked when they are made, which looks at values. No decorator: it would import the compiler.
        move = self._moved
        if torch.compiler.is_compiling():
            move = torch.compiler.disable(move)  # type: ignore[no-untyped-call]
        if isinstance(networks, Features):
            return self.space.pack(move(self.space.unpack(networks)), check_finite=False)
        return move(networks)

    def _moved(self, networks: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        sizes = check_tensors(self.space, networks)
        first = next(iter(networks.values()))
        if not len(first):
            return networks
        if self.noise:
            networks = dict(networks)
            for name, x in networks.items():
                square = x.detach().double().square().mean(list(range(2, x.ndim)), keepdim=True)
                networks[name] = x + self.noise * square.sqrt().to(x.dtype) * torch.randn_like(x)
        if self.phases:
            shifts = {
                node: torch.randint(-self.phases, self.phases + 1, networks[bias].shape, device=networks[bias].device)
                for node, bias in self._biases.items()
            }
            networks = shift_phase(networks, self.space, shifts, layers=list(self._biases))
        element = self.space.sample(len(first), scale_range=self.scale_range, device=first.device, sizes=sizes)
        return element.act(networks)

    def extra_repr(self) -> str:
        return f"{self.space}, scale_range={self.scale_range}, noise={self.noise}, phases={self.phases}"
