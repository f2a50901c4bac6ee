"""Fitting one SIREN to every image, many at once: sine networks from coordinates to pixels (Sitzmann et al. 2020).

All networks of a batch take each step together, in matrix products batched over networks. A step sees every `parts`-th
pixel, the next step the next ones, since most of the time goes into sines and cosines.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.sirens import Siren
from nfn_monomial.benchmarks.settings.base import Count, Positive, Settings
from nfn_monomial.errors import InvalidValueError

from .training import Optimizers

__all__ = ["FitConfig", "fit_sirens", "initialise", "psnr"]

EPS = 1e-10  # of Adam
BATCH_PIXELS = 4096  # of all networks of a batch together, on a CPU, so that a step stays in its caches


@dataclass(frozen=True)
class FitConfig(Settings):
    """Adam with a cosine decay to 0. ``learning_rate``: in units of the stored weights. ``parts``: see the module."""

    steps: Count
    learning_rate: Positive = 3e-3
    parts: Count = 1


def psnr(images: Tensor, pixels: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB for pixels in [0, 1]: ``-10 log10`` of the mean squared error.

    ``(N, C, H, W)`` twice -> ``(N,)``. Nothing is clamped; the ratio ends at 300 dB, so that it is always finite.
    """
    error = (images - pixels).double().square().flatten(1).mean(1)
    return (-10 * torch.log10(error.clamp_min(1e-30))).float()


def initialise(siren: Siren, seeds: Sequence[tuple[int, ...]]) -> dict[str, Tensor]:
    """SIREN's initialisation of one network per seed, each drawn by itself: ``weight.i (N, out, in)``, ``bias.i``.

    Weights are uniform within ``1 / in`` in the first layer and ``sqrt(6 / in) / omega_0`` in all others, biases
    within ``1 / sqrt(in)`` as in ``nn.Linear`` (and in the corpora of Zhou et al. 2023).
    """
    shapes = list(itertools.pairwise(siren.sizes))
    count = sum(a * b + b for a, b in shapes)
    drawn = torch.empty(len(seeds), count)
    for row, seed in zip(drawn, seeds, strict=True):
        row.copy_(torch.from_numpy(np.random.default_rng(seed).random(count, dtype=np.float32)))
    drawn.mul_(2).sub_(1)
    tensors: dict[str, Tensor] = {}
    parts = iter(torch.split(drawn, [n for a, b in shapes for n in (a * b, b)], dim=1))
    for i, (a, b) in enumerate(shapes):
        bound = 1 / a if i == 0 else math.sqrt(6 / a) / siren.omega_0
        tensors[f"weight.{i}"] = next(parts).view(-1, b, a) * bound
        tensors[f"bias.{i}"] = next(parts) * a**-0.5
    return tensors


def fit_sirens(
    siren: Siren,
    pixels: Tensor,
    seeds: Sequence[tuple[int, ...]],
    config: FitConfig,
    *,
    fitted: Callable[[int], None] = lambda count: None,
) -> dict[str, Tensor]:
    """One network for each image, on the device of the images; the result is on the CPU.

    Args:
        pixels: in [0, 1], ``(N, C, H, W)`` as ``siren.image`` says.
        seeds: of the initialisations, one a network.
        fitted: called with a number of networks whenever so many are finished; an error in it ends the fitting.

    Returns:
        ``weight.i (N, out, in)``, ``bias.i (N, out)`` and ``psnr (N,)``.
    """
    if pixels.shape[1:] != siren.image or len(pixels) != len(seeds):
        raise InvalidValueError(
            f"pixels {tuple(pixels.shape)}: expected {(len(seeds), *siren.image)}, an image for each seed"
        )
    per_step = -(-pixels[0, 0].numel() // config.parts)
    size = max(1, BATCH_PIXELS // per_step) if pixels.device.type == "cpu" else len(pixels)
    shapes = {
        f"{kind}.{i}": shape
        for i, (a, b) in enumerate(itertools.pairwise(siren.sizes))
        for kind, shape in (("weight", (b, a)), ("bias", (b,)))
    }

    def networks(rows: Tensor) -> dict[str, Tensor]:
        parts = torch.split(rows, [math.prod(shape) for shape in shapes.values()], 1)
        return {name: part.view(-1, *shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    strides = [slice(k, None, config.parts) for k in range(config.parts)]
    x = siren.coordinates().to(pixels.device)
    results: list[dict[str, Tensor]] = []
    for start in range(0, len(pixels), size):
        images, drawn = pixels[start : start + size], initialise(siren, seeds[start : start + size])
        weights = torch.cat([drawn[name].flatten(1) for name in shapes], 1).to(pixels.device)
        optimizers = Optimizers(weights, ["adam"] * len(weights), [config.learning_rate] * len(weights), EPS)
        y = ((images - siren.offset) / siren.gain).flatten(2).transpose(1, 2)
        parts = [(x[stride], y[:, stride].contiguous()) for stride in strides]
        for step in range(config.steps):
            coordinates, wanted = parts[step % config.parts]
            leaf = weights.detach().requires_grad_()
            error = siren.outputs(networks(leaf), coordinates) - wanted
            (grad,) = torch.autograd.grad(0.5 * error.square().mean((1, 2)).sum(), leaf)
            optimizers.step(grad, step + 1, 0.5 * (1 + math.cos(math.pi * step / config.steps)))
        tensors = {name: t.contiguous() for name, t in networks(weights).items()}
        tensors["psnr"] = psnr(siren.render(tensors), images)
        results.append({name: t.cpu() for name, t in tensors.items()})
        fitted(len(images))
    return {name: torch.cat([result[name] for result in results]) for name in results[0]}
