"""Fit one SIREN to every image, many at once: sine networks from coordinates to pixels (Sitzmann et al. 2020).

All networks of a batch take each step together, in matrix products batched over networks. Three things make this fast
on a CPU: every layer is one product, its bias a column beside the weights and a row of ones below the features; the
backward pass is written out, for it needs the cosines of what is there already; and a step sees every `parts`-th
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
from nfn_monomial.errors import InvalidValueError

__all__ = ["FitConfig", "SirenBatch", "fit_sirens", "initialise", "psnr"]

BETAS = (0.9, 0.999)  # of Adam
EPS = 1e-10
BATCH_PIXELS = 4096  # of all networks of a batch together, on a CPU: what a step touches then stays in its caches


@dataclass(frozen=True)
class FitConfig:
    """Adam with a cosine decay to 0. ``learning_rate``: in units of the stored weights. ``parts``: see the module."""

    steps: int
    learning_rate: float = 3e-3
    parts: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "learning_rate", "parts"):
            if not getattr(self, name) > 0:
                raise InvalidValueError(f"{name} is {getattr(self, name)}: it has to be positive")


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


class SirenBatch:
    """``n`` networks, omega_0 absorbed, in one tensor ``theta (n, parameters)``, and the gradient of their errors.

    Adam's steps do not depend on the scale of gradients, so that omega_0 only multiplies its learning rate.
    """

    def __init__(self, siren: Siren, tensors: dict[str, Tensor]) -> None:
        self.siren = siren
        self.layers = len(siren.sizes) - 1
        self.theta = torch.cat([self._layer(tensors, i).flatten(1) for i in range(self.layers)], 1)
        self.grad = torch.zeros_like(self.theta)
        self.blocks, self.grad_blocks = self._views(self.theta), self._views(self.grad)
        self._buffers: list[Tensor] = []

    def _layer(self, tensors: dict[str, Tensor], i: int) -> Tensor:
        """``(n, out, in + 1)``: weights, then biases."""
        both = torch.cat([tensors[f"weight.{i}"], tensors[f"bias.{i}"].unsqueeze(2)], 2)
        return both * self.siren.omega_0 if i < self.layers - 1 else both

    def _views(self, flat: Tensor) -> list[Tensor]:
        shapes = [(b, a + 1) for a, b in itertools.pairwise(self.siren.sizes)]
        return [
            part.view(-1, *shape)
            for part, shape in zip(torch.split(flat, [b * a for b, a in shapes], 1), shapes, strict=True)
        ]

    def tensors(self) -> dict[str, Tensor]:
        """``weight.i (n, out, in)`` and ``bias.i (n, out)``, omega_0 taken out again."""
        result = {}
        for i, block in enumerate(self.blocks):
            block = block / self.siren.omega_0 if i < self.layers - 1 else block.clone()
            result[f"weight.{i}"], result[f"bias.{i}"] = block[..., :-1].contiguous(), block[..., -1].contiguous()
        return result

    def rates(self) -> Tensor:
        """``(parameters,)``: by what the learning rate is multiplied."""
        rates = torch.ones_like(self.theta[0])
        rates[: -self.blocks[-1][0].numel()] = self.siren.omega_0
        return rates

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradient of half the mean squared error, ``(n, parameters)``, in a tensor that the next call overwrites.

        ``x``: coordinates and a row of ones, ``(3, pixels)``; ``y``: outputs to reach, ``(n, channels, pixels)``.
        """
        n, pixels, hidden = len(self.theta), x.shape[1], self.siren.sizes[1:-1]
        if not self._buffers or self._buffers[0].shape[2] != pixels:
            # Three a layer, made once: products before the sine, which become cosines; features; gradients.
            make = self.theta.new_ones
            self._buffers = [make(n, size + extra, pixels) for size in hidden for extra in (0, 1, 0)]
        z, h, d = self._buffers[::3], self._buffers[1::3], self._buffers[2::3]
        first = self.blocks[0].reshape(-1, 3)  # all networks see the same coordinates: one product
        for i in range(self.layers - 1):
            if i == 0:
                torch.mm(first, x, out=z[0].view(-1, pixels))
            else:
                torch.bmm(self.blocks[i], h[i - 1], out=z[i])
            torch.sin(z[i], out=h[i][:, :-1])
        error = torch.bmm(self.blocks[-1], h[-1]) if h else (first @ x).view(n, -1, pixels)
        error = error.sub_(y).div_(error[0].numel())
        for i in range(self.layers - 1, 0, -1):
            torch.bmm(error, h[i - 1].transpose(1, 2), out=self.grad_blocks[i])
            torch.bmm(self.blocks[i][..., :-1].transpose(1, 2), error, out=d[i - 1])
            error = d[i - 1].mul_(z[i - 1].cos_())
        self.grad_blocks[0].copy_(torch.mm(error.view(-1, pixels), x.T).view(n, -1, 3))
        return self.grad


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
        fitted: called with a number of networks whenever so many are finished; what it raises ends the fitting.

    Returns:
        ``weight.i (N, out, in)``, ``bias.i (N, out)`` and ``psnr (N,)``.
    """
    if pixels.shape[1:] != siren.image or len(pixels) != len(seeds):
        raise InvalidValueError(
            f"pixels {tuple(pixels.shape)}: expected {(len(seeds), *siren.image)}, an image for each seed"
        )
    per_step = -(-pixels[0, 0].numel() // config.parts)
    size = max(1, BATCH_PIXELS // per_step) if pixels.device.type == "cpu" else len(pixels)
    results: list[dict[str, Tensor]] = []
    for start in range(0, len(pixels), size):
        rows = slice(start, start + size)
        tensors = {name: t.to(pixels.device) for name, t in initialise(siren, seeds[rows]).items()}
        found = _fit(siren, tensors, pixels[rows], config)
        found["psnr"] = psnr(siren.render(found), pixels[rows])
        results.append({name: t.cpu() for name, t in found.items()})
        fitted(len(found["psnr"]))
    return {name: torch.cat([result[name] for result in results]) for name in results[0]}


def _fit(siren: Siren, tensors: dict[str, Tensor], pixels: Tensor, config: FitConfig) -> dict[str, Tensor]:
    batch = SirenBatch(siren, tensors)
    coordinates = siren.coordinates().to(pixels.device)
    x = torch.cat([coordinates, torch.ones_like(coordinates[:, :1])], 1).T
    y = ((pixels - siren.offset) / siren.gain).flatten(2)
    strides = [slice(k, None, config.parts) for k in range(config.parts)]
    parts = [(x[:, stride].contiguous(), y[..., stride].contiguous()) for stride in strides]
    first, second = torch.zeros_like(batch.theta), torch.zeros_like(batch.theta)
    rates = batch.rates() * config.learning_rate
    for step in range(config.steps):
        grad = batch.gradient(*parts[step % config.parts])
        first.lerp_(grad, 1 - BETAS[0])
        second.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
        size = second.div(1 - BETAS[1] ** (step + 1)).sqrt_().add_(EPS)
        rate = 0.5 * (1 + math.cos(math.pi * step / config.steps)) / (1 - BETAS[0] ** (step + 1))
        batch.theta.addcdiv_(first * rates, size, value=-rate)
    return batch.tensors()
