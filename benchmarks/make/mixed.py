"""Make a mixed zoo: draw architectures, train the networks of each together, store each as soon as it is finished."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.architectures.base import Architecture
from nfn_monomial.benchmarks.data.formats.mixed_zoo import KIND, Group, group_path, read_group, write_group
from nfn_monomial.benchmarks.data.formats.zoo_files import CONFIG_FILE
from nfn_monomial.benchmarks.data.images import Images, load_images
from nfn_monomial.benchmarks.data.layout import ZooError
from nfn_monomial.benchmarks.files import write_json
from nfn_monomial.benchmarks.train.devices import require_device

from .jobs import Progress, make_parts
from .mixed_recipes import MixedConfig, draw_architecture
from .mixed_training import train_group
from .plans import train_bounded
from .recipes import Recipe, draw_recipes
from .zoo import ZOO, MadeZoo

__all__ = ["make_mixed_zoo"]

log = logging.getLogger(__name__)


def make_mixed_zoo(
    out: str | Path,
    config: MixedConfig | None = None,
    *,
    overwrite: bool = False,
    device: str | torch.device = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> MadeZoo:
    """Train the networks of ``config`` and write them to the folder ``out``, see `formats.mixed_zoo` for the format.

    Architectures are trained side by side by ``workers`` threads (default: as many as torch may use; one on a GPU),
    each stored as soon as it is finished. A call that was interrupted is continued by an equal call and ends in the
    same zoo, bit for bit; one whose zoo is there returns at once. Numbers of threads have no influence on the result.

    Raises:
        ValueError: if the folder is refused (see `make_zoo`), or there is no such device; as ZooError, if networks
            keep diverging.
    """
    out, config, device = Path(out), config or MixedConfig(), require_device(device)
    described = {"kind": KIND, "config": json.loads(json.dumps(asdict(config)))}  # tuples become lists, as in the file
    found = ZOO.claim(out, described, overwrite)
    size = config.per_architecture
    paths = [group_path(out, number) for number in range(math.ceil(config.networks / size))]
    if found is not None and "groups" in found and all(path.exists() for path in paths):
        return MadeZoo(out, config.networks, int(found["diverged"]), made=False)

    images = load_images(config.images)  # may fail, so before anything is written
    images = replace(images, **{name: getattr(images, name).to(device) for name in ("x", "y", "train", "test")})
    write_json(out / CONFIG_FILE, described)
    recipes = draw_recipes(config.training)
    drawn = [recipes[size * i : size * (i + 1)] for i in range(len(paths))]
    epochs = [sum(r.epochs * r.train_fraction for r in part) for part in drawn]

    def make(number: int, tick: Callable[[int], None]) -> None:
        architecture = draw_architecture(config, number, images.size, images.classes)
        _make_group(paths[number], config, architecture, size * number, drawn[number], images, lambda: tick(0))

    work = [max(1, round(e * len(images.train) / config.batch)) for e in epochs]
    parts, _ = make_parts(
        work, lambda n: _diverged_in(paths[n]), make, device=device, workers=workers, progress=progress
    )
    diverged = sum(parts)
    if diverged:
        log.info("%d networks diverged and were replaced", diverged)
    write_json(out / CONFIG_FILE, described | {"groups": len(paths), "diverged": diverged})
    return MadeZoo(out, config.networks, diverged, made=True)


def _make_group(
    path: Path,
    config: MixedConfig,
    architecture: Architecture,
    first: int,
    recipes: Sequence[Recipe],
    images: Images,
    check: Callable[[], None],
) -> None:
    """Train networks number ``first`` and following, and store them."""

    def run(chosen: list[Recipe]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        tensors, accuracy = train_group(chosen, images, architecture, batch=config.batch, check=check)
        return tensors, {"accuracy": accuracy}

    numbers = range(first, first + len(recipes))
    tensors, results, chosen, diverged = train_bounded(config.training, numbers, recipes, run)
    group = Group(tensors, results["accuracy"], architecture.space, architecture)
    drawn = [{name: v for name, v in asdict(r).items() if name not in ("activation", "dropout")} for r in chosen]
    write_group(path, group, drawn, diverged)


def _diverged_in(path: Path) -> int | None:
    """How many networks diverged while this file's were trained; None if it has to be made."""
    if not path.exists():
        return None
    try:
        return read_group(path)[1]
    except ZooError as error:
        log.warning("its networks are trained again: %s", error)
        return None
