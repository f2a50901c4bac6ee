"""The files of a zoo folder: checked when read, whole or not at all when written.

The format is that of the published Small CNN Zoo; see `small_cnn_zoo`. A zoo that was made here has ``zoo.json``, too.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.layout import Layout, ZooError, check_layout
from nfn_monomial.benchmarks.files import write_atomically

__all__ = [
    "CONFIG_FILE",
    "FILES",
    "INCOMPLETE",
    "METRIC_COLUMNS",
    "Metrics",
    "check_folder",
    "map_weights",
    "read_metrics",
    "row_order",
    "some",
    "stated",
    "write_zoo",
]

METRIC_COLUMNS: tuple[str, ...] = (
    "config.activation",
    "config.b_init",
    "config.dataset",
    "config.dnn_architecture",
    "config.dropout",
    "config.epochs",
    "config.epochs_between_checkpoints",
    "config.init_std",
    "config.l2reg",
    "config.learning_rate",
    "config.num_layers",
    "config.num_units",
    "config.optimizer",
    "config.random_seed",
    "config.train_fraction",
    "config.w_init",
    "modeldir",
    "step",
    "test_accuracy",
    "test_loss",
    "train_accuracy",
    "train_loss",
)
CONFIG_FILE = "zoo.json"  # of zoos that were made here, mixed ones too
FILES = ("weights.npy", "layout.csv", "metrics.csv.gz")  # in the order of writing: the metrics make a folder complete
INCOMPLETE = "the folder is incomplete: download it again, or make a zoo with `nfn-monomial zoo make`"

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


@dataclass(frozen=True)
class Metrics:
    """The columns of ``metrics.csv.gz`` that decide which rows are loaded; each of length ``rows``."""

    activation: np.ndarray[tuple[int, ...], np.dtype[np.str_]]
    network: Ints
    step: Ints
    accuracy: Floats


def row_order(rows: int) -> list[int]:
    """The order of rows that is split when there is no split file: one fixed permutation per number of rows."""
    order = list(range(rows))
    random.Random(0).shuffle(order)
    return order


def write_zoo(path: str | Path, weights: Tensor, metrics: Mapping[str, Sequence[object]], layout: Layout) -> None:
    """Write a zoo folder: ``weights`` float32 ``(rows, columns)``, ``metrics`` the columns of METRIC_COLUMNS.

    Every file appears whole or not at all, and the metrics come last, so an interrupted call leaves no folder that
    ``load_zoo`` accepts. The split file states ``row_order`` (without nfn's stray first line) for other readers.
    """
    if weights.dtype != torch.float32 or weights.ndim != 2:
        raise ZooError(f"weights are {weights.dtype} {tuple(weights.shape)}, expected float32 (rows, columns)")
    check_layout(layout, weights.shape[1], "the layout to write")
    if not torch.isfinite(weights).all():
        bad = (~torch.isfinite(weights).all(1)).nonzero().flatten().tolist()
        raise ZooError(f"NaN or infinite weights in {some(bad, 'row')}: leave out networks that diverged")
    if set(metrics) != set(METRIC_COLUMNS):
        raise ZooError(_column_fault("metrics to write", metrics))
    lengths = {name: len(values) for name, values in metrics.items()}
    if wrong := {name: n for name, n in lengths.items() if n != len(weights)}:
        raise ZooError(f"weights have {len(weights)} rows, but these metrics have another number: {wrong}")

    folder = Path(path)
    (folder / "metrics.csv.gz").unlink(missing_ok=True)  # or an interruption would leave old metrics, new weights
    array = io.BytesIO()
    np.save(array, weights.cpu().numpy(), allow_pickle=False)
    write_atomically(folder / "weights.npy", array.getbuffer())
    entries = [(v.name, str(v.shape), v.start, v.end) for v in layout]
    _write_csv(folder / "layout.csv", [("varname", "shape", "start_idx", "end_idx"), *entries])
    split_name = f"{folder.resolve().name}_split.csv"
    _write_csv(folder / split_name, [(row,) for row in row_order(len(weights))])
    columns = [metrics[name] for name in METRIC_COLUMNS]
    _write_csv(folder / "metrics.csv.gz", [METRIC_COLUMNS, *zip(*columns, strict=True)])


def _write_csv(path: Path, lines: Sequence[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    data = text.getvalue().encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)  # no time stamp: equal zoos are equal files
    write_atomically(path, data)


def stated(folder: Path) -> dict[str, Any]:
    """``zoo.json`` of a zoo that was made here; nothing for a published one.

    Raises:
        ZooError: naming the file, if it is damaged.
    """
    path = folder / CONFIG_FILE
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return dict(found)
    except (ValueError, TypeError) as error:
        way_out = "restore the file, or delete the folder and make the zoo again"
        raise ZooError(f"{path} is damaged ({error}): {way_out}") from error


def check_folder(folder: Path) -> None:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ZooError(
            f"zoo folder {folder} {what}: expected a folder with {', '.join(FILES)}; "
            "give its path, or make one with `nfn-monomial zoo make`"
        )
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise ZooError(f"{folder}: {', '.join(missing)} missing (a zoo has {', '.join(FILES)}); {INCOMPLETE}")


def map_weights(path: Path) -> Floats:
    """Map ``weights.npy`` after checking its header against its size, so that a cut file is called just that."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            start = file.tell()
    except (ValueError, EOFError, SyntaxError) as error:
        raise ZooError(f"{path} is not a NumPy array file ({error}); {INCOMPLETE}") from error
    if dtype != np.float32 or len(shape) != 2:
        raise ZooError(f"{path} holds {dtype} {shape}, expected float32 (rows, columns): convert it first")
    expected, found = start + math.prod(shape) * dtype.itemsize, path.stat().st_size
    if found < expected:
        raise ZooError(
            f"{path} is truncated: its header says {shape[0]} x {shape[1]} float32, {expected} bytes in all, "
            f"but it has {found}; {INCOMPLETE}"
        )
    if shape[0] == 0:
        return np.empty(shape, np.float32)  # an empty file cannot be mapped
    mapped: Floats = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped


def _column_fault(where: object, names: Mapping[str, object] | Sequence[str]) -> str:
    missing = [name for name in METRIC_COLUMNS if name not in names]
    unknown = [name for name in names if name.startswith("config.") and name not in METRIC_COLUMNS]
    faults = [f"missing: {', '.join(missing)}"] * bool(missing) + [f"unknown: {', '.join(unknown)}"] * bool(unknown)
    expected = ", ".join(METRIC_COLUMNS)
    return f"{where}: metrics columns {'; '.join(faults)}. Expected those of the published zoo: {expected}"


def read_metrics(path: Path) -> Metrics:
    activation: list[str] = []
    network: list[int] = []
    step: list[int] = []
    accuracy: list[float] = []
    numbers: dict[str, int] = {}
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            header = next(lines, [])
            unknown = [name for name in header if name.startswith("config.") and name not in METRIC_COLUMNS]
            if unknown or not set(METRIC_COLUMNS) <= set(header):
                raise ZooError(_column_fault(path, header))
            at = [header.index(name) for name in ("config.activation", "modeldir", "step", "test_accuracy")]
            for line in lines:
                if len(line) != len(header):
                    raise ZooError(
                        f"{path}, line {lines.line_num}: {len(line)} fields, expected {len(header)}; {INCOMPLETE}"
                    )
                act, model, step_text, accuracy_text = (line[i] for i in at)
                activation.append(act)
                network.append(numbers.setdefault(model, len(numbers)))
                try:
                    step.append(int(float(step_text)))
                    accuracy.append(float(accuracy_text))
                except (ValueError, OverflowError) as error:
                    raise ZooError(f"{path}, line {lines.line_num}: step or test_accuracy: {error}") from error
                if not 0 <= accuracy[-1] <= 1:
                    raise ZooError(
                        f"{path}, line {lines.line_num}: test_accuracy is {accuracy_text}, expected a share in [0, 1]"
                    )
    except (EOFError, OSError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise ZooError(f"{path} is truncated or damaged ({error}); {INCOMPLETE}") from error
    return Metrics(
        np.array(activation, dtype=np.str_),
        np.array(network, dtype=np.int64),
        np.array(step, dtype=np.int64),
        np.array(accuracy, dtype=np.float32),
    )


def some(numbers: Sequence[int], noun: str) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return f"{noun}{'s' * (len(numbers) > 1)} {shown}{', ...' * (len(numbers) > 5)}"
