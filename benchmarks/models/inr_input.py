"""The way of INRs into a model: they are augmented, brought into a canonical form, and normalised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from nfn_monomial.benchmarks.data.sirens import Siren
from nfn_monomial.benchmarks.experiments.classify import InputConfig
from nfn_monomial.canonical import absorb_omega, canonical_phase
from nfn_monomial.nn import Augment, InputNorm
from nfn_monomial.tools.predictors.models import Model

__all__ = ["Classifier", "Warp", "prepared_siren"]


def prepared_siren(config: InputConfig, siren: Siren) -> Siren:
    """Returns the architecture of prepared networks: if omega_0 is absorbed, the frequency is 1."""
    return replace(siren, omega_0=1.0) if config.absorb_omega else siren


class Warp(nn.Module):
    """Turns, zooms and shifts every image a little in training: ``W (A x + t) + b`` in a network's first layer.

    Shifts are uniform up to ``size`` either way, in units of half an image, logarithms of zooms likewise; angles up to
    ``2 size``. Exact, as networks are functions of coordinates; in eval mode the identity.
    """

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size

    def forward(self, networks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parameter name -> ``(B, 1, *shape)``, both ways; the first layer is ``weight.0``, ``bias.0``."""
        out = dict(networks)
        if self.training:
            weight = out["weight.0"]
            drawn = self.size * (2 * torch.rand(4, len(weight), device=weight.device, dtype=weight.dtype) - 1)
            angle, zoom, shift = 2 * drawn[0], drawn[1].exp(), drawn[2:].T
            cos, sin = zoom * angle.cos(), zoom * angle.sin()
            turn = torch.stack([cos, -sin, sin, cos], -1).view(-1, 1, 2, 2)
            out["weight.0"] = weight @ turn
            out["bias.0"] = out["bias.0"] + (weight @ shift.view(-1, 1, 2, 1)).squeeze(-1)
        return out

    def extra_repr(self) -> str:
        return str(self.size)


class Classifier(nn.Module):
    """The trained model: networks as they come -> augmentation, canonical form, normalisation, model -> logits.

    Statistics of the normalisation are buffers, so that a checkpoint has all that is needed. To tables it looks as its
    model does.

    Args:
        model: reads networks of ``prepared_siren(config, siren)``.
        siren: the architecture of the networks as they come.
        config: see there.
    """

    def __init__(self, model: Model, siren: Siren, config: InputConfig) -> None:
        super().__init__()
        self.label, self.invariant_under, self.sees = model.label, model.invariant_under, model.sees
        self.any_width = model.any_width
        self.siren, self.space, self.config = siren, siren.space, config
        self.augment = nn.Sequential()
        if config.warp:
            self.augment.append(Warp(config.warp))
        if config.augment:
            self.augment.append(Augment(self.space, noise=config.noise))
        # A network whose weights were normalised computes something else: models that run it get it as it is.
        self.norm: nn.Module = InputNorm(self.space) if config.normalize and model.sees == "weights" else nn.Identity()
        self.model = model

    def fit_inputs(self, networks: Mapping[str, Tensor]) -> None:
        """Takes input statistics from training networks; called once, before training."""
        tensors = self.canonical(networks)
        if isinstance(self.norm, InputNorm):
            self.norm.fit(tensors)
        self.model.fit_inputs(self.model.prepare_groups([(self.norm(tensors), self.space)]))

    def canonical(self, networks: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Brings frequency and phases into the configured form; the images stay as they are."""
        config, omega_0 = self.config, self.siren.omega_0
        if config.absorb_omega or config.canonical_phase:
            networks = absorb_omega(networks, self.space, omega_0)
        if config.canonical_phase:
            networks = canonical_phase(networks, self.space)
            if not config.absorb_omega:
                networks = absorb_omega(networks, self.space, 1 / omega_0)
        return networks

    def forward(self, networks: Mapping[str, Tensor]) -> Tensor:
        """Parameter name -> ``(B, 1, *shape)``, to logits ``(B, classes)``."""
        with torch.autocast(networks["weight.0"].device.type, enabled=False):  # to round here would change the images
            tensors = self.norm(self.canonical(self.augment(networks)))
            prepared = self.model.prepare_groups([(tensors, self.space)])
        out: Tensor = self.model(prepared)
        return out
