"""Make a mixed zoo: draw architectures, train the networks of each together, store each as soon as it is finished."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.formats.mixed_zoo import KIND, Group, group_path, read_group, write_group
from nfn_monomial.benchmarks.data.formats.zoo_files import CONFIG_FILE
from nfn_monomial.benchmarks.data.images import Images, load_images
from nfn_monomial.benchmarks.data.layout import ZooError
from nfn_monomial.benchmarks.train.devices import require_device
from nfn_monomial.tools.files import write_json
from nfn_monomial.tools.predictors.architectures import Architecture

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
    described = {"kind": KIND, "config": _as_json(config)}
    found = ZOO.claim(out, described, overwrite)
    size = config.per_architecture
    numbers = range(math.ceil(config.networks / size))
    if found is not None and "groups" in found and all(group_path(out, number).exists() for number in numbers):
        return MadeZoo(out, config.networks, int(found["diverged"]), made=False)

    images = load_images(config.images)  # may fail, so before anything is written
    images = replace(images, **{name: getattr(images, name).to(device) for name in ("x", "y", "train", "test")})
    write_json(out / CONFIG_FILE, described)
    recipes = draw_recipes(config.training)
    drawn = [recipes[size * i : size * (i + 1)] for i in numbers]
    epochs = [sum(r.epochs * r.train_fraction for r in part) for part in drawn]

    def make(number: int, tick: Callable[[int], None]) -> None:
        architecture = draw_architecture(config, number, images.size, images.classes)
        _make_group(out, number, config, architecture, drawn[number], images, lambda: tick(0))

    work = [max(1, round(e * len(images.train) / config.batch)) for e in epochs]
    parts, _ = make_parts(
        work, lambda n: _diverged_in(out, n, _as_json(config)), make, device=device, workers=workers, progress=progress
    )
    diverged = sum(parts)
    if diverged:
        log.info("%d networks diverged and were replaced", diverged)
    write_json(out / CONFIG_FILE, described | {"groups": len(numbers), "diverged": diverged})
    return MadeZoo(out, config.networks, diverged, made=True)


def _make_group(
    folder: Path,
    number: int,
    config: MixedConfig,
    architecture: Architecture,
    recipes: Sequence[Recipe],
    images: Images,
    check: Callable[[], None],
) -> None:
    """Train the networks of an architecture, and store them."""

    def run(chosen: list[Recipe]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        tensors, accuracy = train_group(chosen, images, architecture, batch=config.batch, check=check)
        return tensors, {"accuracy": accuracy}

    first = config.per_architecture * number
    numbers = range(first, first + len(recipes))
    tensors, results, chosen, diverged = train_bounded(config.training, numbers, recipes, run)
    group = Group(tensors, results["accuracy"], architecture.space, architecture)
    drawn = [{name: v for name, v in asdict(r).items() if name not in ("activation", "dropout")} for r in chosen]
    write_group(folder, number, _as_json(config), group, drawn, diverged)


def _as_json(config: MixedConfig) -> dict[str, object]:
    """As ``zoo.json`` has it: tuples become lists."""
    values: dict[str, object] = json.loads(json.dumps(asdict(config)))
    return values


def _diverged_in(folder: Path, number: int, config: Mapping[str, object]) -> int | None:
    """How many networks diverged while this file's were trained; None if it has to be made."""
    if not group_path(folder, number).exists():
        return None
    try:
        return read_group(folder, number, config)[1]
    except ZooError as error:
        log.warning("its networks are trained again: %s", error)
        return None
