"""Make a zoo: train many small CNNs on images that ship in a package, and write them in the published format.

The networks are those of the Small CNN Zoo (Unterthiner et al. 2020): three 3x3 stride-2 convolutions of 16 channels,
global average pooling, one dense layer. As there, every network draws its own optimiser, learning rate, initialisation,
weight decay, dropout and share of the training images, so that test accuracies spread from chance to the best.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from nfn_monomial.adapters.files import damaged
from nfn_monomial.benchmarks.data.formats.mixed_zoo import GROUPS
from nfn_monomial.benchmarks.data.formats.zoo_files import (
    CONFIG_FILE,
    FILES,
    METRIC_COLUMNS,
    SUMS,
    check_sums,
    stated,
    write_zoo,
)
from nfn_monomial.benchmarks.data.images import ImageSet, load_images
from nfn_monomial.benchmarks.data.layout import cnn_geometry, cnn_layout
from nfn_monomial.benchmarks.train.devices import require_device
from nfn_monomial.errors import InvalidValueError, MonomialError
from nfn_monomial.tools.files import write_atomically, write_json
from nfn_monomial.tools.sealed import read_sealed, seal

from .jobs import Place, Progress, make_parts
from .plans import train_bounded
from .recipes import Recipe, ZooConfig, draw_recipes
from .training import ImageTensors, train

__all__ = ["ZOO", "MadeZoo", "make_zoo"]

log = logging.getLogger(__name__)

LAYOUT = cnn_layout()
PADDING: dict[ImageSet, int] = {"digits": 1, "mnist5k": 0}  # 8x8 pixels are too few for three valid convolutions
CHUNK_FOLDER = ".chunks"
# A zoo of one architecture and a mixed one are told from one another by their configuration. The metrics are deleted
# first: without them nothing that is left counts as a zoo.
ZOO = Place("zoo", CONFIG_FILE, (*reversed(FILES), SUMS, GROUPS, f"{CHUNK_FOLDER}/*.safetensors"), stated)


@dataclass(frozen=True)
class MadeZoo:
    """What ``make_zoo`` left: ``made`` is False if the folder held this very zoo already."""

    path: Path
    networks: int
    diverged: int  # networks drawn and trained in vain, each replaced by another draw
    made: bool


def make_zoo(
    out: str | Path,
    config: ZooConfig | None = None,
    *,
    overwrite: bool = False,
    device: str | torch.device = "cpu",
    workers: int | None = None,
    progress: Progress | None = None,
) -> MadeZoo:
    """Train the networks of ``config`` and write them to the folder ``out`` in the published format.

    Chunks of networks are trained side by side by ``workers`` threads (default: as many as torch may use; one on a
    GPU), each stored as soon as it is finished. A call that was interrupted is continued by an equal call and ends
    in the same zoo, bit for bit; one whose zoo is there returns at once. A folder with another configuration is
    refused unless ``overwrite``. Numbers of threads have no influence on the result.

    Raises:
        ValueError: if the folder is refused, or there is no such device; as ZooError, if networks keep diverging.
    """
    out, config, device = Path(out), config or ZooConfig(), require_device(device)
    described = {"config": json.loads(json.dumps(asdict(config)))}  # tuples become lists, as in the file
    found = ZOO.claim(out, described, overwrite)
    if found is not None and all((out / name).exists() for name in FILES):
        check_sums(out)
        shutil.rmtree(out / CHUNK_FOLDER, ignore_errors=True)
        return MadeZoo(out, config.networks, int(found["diverged"]), made=False)

    data = _load_data(config, device)  # may fail, so before anything is written
    write_json(out / CONFIG_FILE, described)
    recipes = draw_recipes(config)
    chunks = _chunks(recipes, config.chunk)
    epochs = [sum(recipes[i].epochs * recipes[i].train_fraction for i in chunk) for chunk in chunks]
    paths = [out / CHUNK_FOLDER / f"{number:05d}.safetensors" for number in range(len(chunks))]

    def make(number: int, tick: Callable[[int], None]) -> None:
        _make_chunk(paths[number], config, chunks[number], recipes, data, lambda: tick(0))

    work = [max(1, round(e * len(data.train_y) / config.batch)) for e in epochs]
    parts, _ = make_parts(
        work, lambda n: _read_chunk(paths[n], chunks[n]), make, device=device, workers=workers, progress=progress
    )
    weights = torch.empty(config.networks, LAYOUT[-1].end)
    records: list[Mapping[str, object]] = [{} for _ in recipes]
    for chunk, (rows, lines, _) in zip(chunks, parts, strict=True):
        weights[chunk] = rows
        for network, line in zip(chunk, lines, strict=True):
            records[network] = line
    diverged = sum(bad for *_, bad in parts)
    if diverged:
        log.info("%d networks diverged and were replaced", diverged)
    # Before the metrics, whose presence says that a zoo is finished.
    write_json(out / CONFIG_FILE, described | {"padding": PADDING[config.images], "diverged": diverged})
    write_zoo(out, weights, {name: [record[name] for record in records] for name in METRIC_COLUMNS}, LAYOUT)
    shutil.rmtree(out / CHUNK_FOLDER)
    return MadeZoo(out, config.networks, diverged, made=True)


def _load_data(config: ZooConfig, device: torch.device) -> ImageTensors:
    images = load_images(config.images)
    x, y = images.x.movedim(1, -1), images.y
    tensors = (x[images.train], y[images.train], x[images.test], y[images.test])
    return ImageTensors(*(t.contiguous().to(device) for t in tensors))


def _chunks(recipes: Sequence[Recipe], size: int) -> list[list[int]]:
    """Network numbers that are trained together: alike in kind, of similar length, the longest chunks first."""
    kinds: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, r in enumerate(recipes):
        kinds[r.activation, r.optimizer, r.dropout > 0].append(i)

    def length(i: int) -> float:
        return recipes[i].epochs * recipes[i].train_fraction

    chunks: list[list[int]] = []
    for numbers in kinds.values():
        numbers.sort(key=length, reverse=True)
        parts = math.ceil(len(numbers) / size)
        cuts = [len(numbers) * part // parts for part in range(parts + 1)]
        chunks += [numbers[a:b] for a, b in itertools.pairwise(cuts)]
    return sorted(chunks, key=lambda chunk: sum(map(length, chunk)), reverse=True)


def _make_chunk(
    path: Path,
    config: ZooConfig,
    numbers: Sequence[int],
    recipes: Sequence[Recipe],
    data: ImageTensors,
    check: Callable[[], None],
) -> None:
    """Train networks and store their weights, metrics, and how many diverged on the way."""

    def run(chosen: list[Recipe]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        result = train(chosen, data, LAYOUT, padding=PADDING[config.images], batch=config.batch, check=check)
        return {"weights": result.weights}, result.metrics

    weights, metrics, chosen, diverged = train_bounded(config, numbers, [recipes[i] for i in numbers], run)
    values = {name: column.tolist() for name, column in metrics.items()}
    results = [{name: column[i] for name, column in values.items()} for i in range(len(chosen))]
    rows = [_record(config, *item) for item in zip(numbers, chosen, results, strict=True)]
    write_atomically(path, seal(weights, {"networks": list(numbers), "rows": rows, "diverged": diverged}))


def _record(config: ZooConfig, number: int, recipe: Recipe, result: dict[str, float]) -> dict[str, object]:
    """One line of the metrics, in the published columns."""
    channels = cnn_geometry(LAYOUT).channels
    return {
        **{f"config.{name}": value for name, value in asdict(recipe).items()},
        "config.dataset": config.images,
        "config.dnn_architecture": "cnn",
        "config.epochs_between_checkpoints": recipe.epochs,
        "config.num_layers": len(channels) - 1,
        "config.num_units": channels[-1],
        "modeldir": f"networks/{number:06d}",
        "step": recipe.epochs,
        **result,
    }


def _read_chunk(path: Path, numbers: Sequence[int]) -> tuple[Tensor, list[dict[str, object]], int] | None:
    if not path.exists():
        return None
    try:
        with damaged(path, "its networks are trained again"):
            tensors, described = read_sealed(path)
            if described["networks"] != list(numbers):
                raise InvalidValueError("it holds other networks than its place demands")
            return tensors["weights"], described["rows"], described["diverged"]
    except MonomialError as error:
        log.warning("%s", error)
        return None
