"""Images and what the networks fitted to them show, one above the other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from matplotlib.figure import Figure
from torch import Tensor

from nfn_monomial.benchmarks.data.sirens import InrCorpus
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.report import panels

__all__ = ["draw_reconstructions"]

COLUMNS = 10


def draw_reconstructions(corpus: InrCorpus, psnr: Callable[[Tensor, Tensor], Tensor]) -> Figure:
    """Test images (first row) and their reconstructions (second), from the worst to the best of the split.

    Args:
        corpus: networks and the images that they were fitted to.
        psnr: reconstructions and images ``(N, C, H, W)`` -> decibels ``(N,)``.

    Raises:
        ValueError: if the images of the corpus are not known.
    """
    if corpus.pixels is None:
        raise InvalidValueError(f"{corpus.name}: the images that its networks were fitted to are not known")
    part = corpus.test
    pixels = corpus.pixels[part.image]
    shown = corpus.siren.render(part.rows.read_all())
    decibels = psnr(shown, pixels)
    order = decibels.argsort()
    chosen = order[torch.linspace(0, len(order) - 1, min(COLUMNS, len(order))).round().long()].tolist()
    figure, axes = panels(2, len(chosen), (0.95 * len(chosen) + 0.3, 2.6), grid=False)
    for ax, image in zip(axes, (*pixels[chosen], *shown[chosen]), strict=True):
        ax.imshow(image.clamp(0, 1).movedim(0, -1).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
    for ax, network in zip(axes[len(chosen) :], chosen, strict=True):
        ax.set_xlabel(f"{decibels[network]:.1f} dB", fontsize=8)
    axes[0].set_ylabel("image", fontsize=8)
    axes[len(chosen)].set_ylabel("network", fontsize=8)
    title = f"{corpus.name}: {len(chosen)} of {len(part)} test networks, worst to best"
    figure.suptitle(f"{title}; median {decibels.median():.1f} dB", fontsize=9)
    return figure
