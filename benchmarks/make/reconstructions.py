"""Images and what the networks fitted to them show, one above the other."""

from __future__ import annotations

import io

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nfn_monomial.benchmarks.data.sirens import InrCorpus

from .siren_fit import psnr

__all__ = ["draw_reconstructions"]

COLUMNS = 10


def draw_reconstructions(corpus: InrCorpus) -> bytes:
    """PNG of test images (first row) and their reconstructions (second), from the worst to the best of the split.

    Raises:
        ValueError: if the images of the corpus are not known.
    """
    if corpus.pixels is None:
        raise ValueError(f"{corpus.name}: the images that its networks were fitted to are not known")
    part = corpus.test
    pixels = corpus.pixels[part.image]
    shown = corpus.siren.render(part.rows.read_all())
    decibels = psnr(shown, pixels)
    order = decibels.argsort()
    chosen = order[torch.linspace(0, len(order) - 1, min(COLUMNS, len(order))).round().long()]
    figure = Figure(figsize=(0.95 * len(chosen) + 0.3, 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(chosen), squeeze=False)
    for column, network in enumerate(chosen.tolist()):
        for ax, image in zip(axes[:, column], (pixels[network], shown[network]), strict=True):
            ax.imshow(image.clamp(0, 1).movedim(0, -1).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
        axes[1, column].set_xlabel(f"{decibels[network]:.1f} dB", fontsize=8)
    axes[0, 0].set_ylabel("image", fontsize=8)
    axes[1, 0].set_ylabel("network", fontsize=8)
    title = f"{corpus.name}: {len(chosen)} of {len(part)} test networks, worst to best"
    figure.suptitle(f"{title}; median {decibels.median():.1f} dB", fontsize=9)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return png.getvalue()
