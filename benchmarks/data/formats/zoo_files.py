"""The files of a zoo folder: checked when read, whole or not at all when written.

The format is that of the published Small CNN Zoo; see `small_cnn_zoo`. A zoo that was made here has ``zoo.json``, too.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nfn_monomial.adapters.files import damaged, open_regular, shown
from nfn_monomial.benchmarks.data.layout import Layout, ZooError, check_layout
from nfn_monomial.benchmarks.reading import map_array, number, read_json, read_rows, whole
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files import write_atomically
from nfn_monomial.tools.reading import read_bytes

__all__ = [
    "CONFIG_FILE",
    "FILES",
    "INCOMPLETE",
    "METRIC_COLUMNS",
    "SUMS",
    "Metrics",
    "check_folder",
    "check_sums",
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
SPLIT = "_split.csv"  # after the folder's name
SUMS = "SHA256SUMS"  # of the files of a zoo, as sha256sum writes and checks it
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
    layout_csv = _csv([("varname", "shape", "start_idx", "end_idx"), *entries])
    write_atomically(folder / "layout.csv", layout_csv)
    split_name = f"{folder.resolve().name}{SPLIT}"
    split_csv = _csv([(row,) for row in row_order(len(weights))])
    write_atomically(folder / split_name, split_csv)
    columns = [metrics[name] for name in METRIC_COLUMNS]
    last = gzip.compress(_csv([METRIC_COLUMNS, *zip(*columns, strict=True)]), mtime=0)  # equal zoos are equal files
    contents: dict[str, bytes | memoryview] = {
        "weights.npy": array.getbuffer(),
        "layout.csv": layout_csv,
        split_name: split_csv,
        "metrics.csv.gz": last,
    }
    if (folder / CONFIG_FILE).exists():
        contents[CONFIG_FILE] = (folder / CONFIG_FILE).read_bytes()
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in contents.items())
    write_atomically(folder / SUMS, sums.encode())
    write_atomically(folder / "metrics.csv.gz", last)


def _csv(lines: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()


def stated(folder: Path) -> dict[str, Any]:
    """``zoo.json`` of a zoo that was made here; nothing for a published one.

    Raises:
        ZooError: naming the file, if it is damaged.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        return {}
    with damaged(path, "restore the file, or delete the folder and make the zoo again", ZooError):
        found = read_json(path)
        if not isinstance(found, dict) or not isinstance(found.get("config", {}), dict):
            raise InvalidValueError(f"it holds {shown(found)}, expected an object with a config")
        return found


def check_folder(folder: Path) -> None:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ZooError(
            f"zoo folder {folder} {what}: expected a folder with {', '.join(FILES)}; "
            "give its path, or make one with `nfn-monomial zoo make`"
        )
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise ZooError(f"{folder}: {', '.join(missing)} missing (a zoo has {', '.join(FILES)}); {INCOMPLETE}")


def check_sums(folder: Path) -> str | None:
    """Compare the files of a zoo with ``SHA256SUMS``, which those have that were made here.

    Returns:
        The checksum of the weights, where it is stated.

    Raises:
        ZooError: naming the file, if one is not as it was written, or the sums of a zoo that was made here are missing.
    """
    path = folder / SUMS
    if not path.exists():
        if (folder / CONFIG_FILE).exists():
            raise ZooError(f"{path} is missing, which zoos that were made here have: {INCOMPLETE}")
        return None
    with damaged(path, INCOMPLETE, ZooError):
        lines = [line.split("  ", 1) for line in read_bytes(path).decode().splitlines()]
        sums = {name: digest for digest, name in lines}
        needed = {*FILES, *[CONFIG_FILE] * (folder / CONFIG_FILE).exists()}
        if missing := needed - sums.keys():
            raise InvalidValueError(f"it has no checksum of {', '.join(sorted(missing))}")
        for name, expected in sums.items():
            if name not in needed and not (name.endswith(SPLIT) and "/" not in name):
                raise InvalidValueError(f"it speaks of {shown(name)}")
            digest = hashlib.sha256()
            with open_regular(folder / name) as file:
                while block := file.read(2**20):
                    digest.update(block)
            if digest.hexdigest() != expected:
                raise ZooError(f"{folder / name} is damaged: it has another checksum than {SUMS} states; {INCOMPLETE}")
    return sums[FILES[0]]


def map_weights(path: Path) -> Floats:
    """Map ``weights.npy`` after checking its header against its size, so that a cut file is called just that."""
    with damaged(path, INCOMPLETE, ZooError):
        mapped: Floats = map_array(path, np.float32, 2)
    return mapped


def _column_fault(where: object, names: Mapping[str, object] | Sequence[str]) -> str:
    missing = [name for name in METRIC_COLUMNS if name not in names]
    unknown = [name for name in names if name.startswith("config.") and name not in METRIC_COLUMNS]
    faults = [f"missing: {', '.join(missing)}"] * bool(missing) + [f"unknown: {', '.join(unknown)}"] * bool(unknown)
    expected = ", ".join(METRIC_COLUMNS)
    return f"{where}: metrics columns {'; '.join(faults)}. Expected those of the published zoo: {expected}"


def read_metrics(path: Path, rows: int | None = None) -> Metrics:
    """The metrics, of which there are as many lines as ``rows``, if that is given.

    Raises:
        ZooError: naming the file and the line, if it is damaged, states no accuracy or step, has two lines for one step
            of a network, or is of another zoo.
    """
    activation: list[str] = []
    network: list[int] = []
    step: list[int] = []
    accuracy: list[float] = []
    numbers: dict[str, int] = {}
    seen: set[tuple[int, int]] = set()
    with damaged(path, INCOMPLETE, ZooError):
        lines = read_rows(path)
        _, header = next(lines, (0, []))
        unknown = [name for name in header if name.startswith("config.") and name not in METRIC_COLUMNS]
        if unknown or not set(METRIC_COLUMNS) <= set(header):
            raise ZooError(_column_fault(path, header))
        at = [header.index(name) for name in ("config.activation", "modeldir", "step", "test_accuracy")]
        for place, line in lines:
            if len(line) != len(header):
                raise InvalidValueError(f"line {place}: {len(line)} fields, expected {len(header)}")
            if rows is not None and len(step) == rows:
                raise ZooError(_other_zoo(path, rows, f"more than {rows}"))
            act, model, step_text, accuracy_text = (line[i] for i in at)
            activation.append(act)
            network.append(numbers.setdefault(model, len(numbers)))
            step.append(whole(step_text, f"line {place}: step"))
            accuracy.append(number(accuracy_text, f"line {place}: test_accuracy"))
            if not 0 <= accuracy[-1] <= 1:
                raise InvalidValueError(
                    f"line {place}: test_accuracy is {shown(accuracy_text)}, expected a share in [0, 1]"
                )
            if (network[-1], step[-1]) in seen:
                raise InvalidValueError(f"line {place}: a second line for step {step[-1]} of {shown(model)}")
            seen.add((network[-1], step[-1]))
        if rows is not None and len(step) != rows:
            raise ZooError(_other_zoo(path, rows, str(len(step))))
    return Metrics(
        np.array(activation, dtype=np.str_),
        np.array(network, dtype=np.int64),
        np.array(step, dtype=np.int64),
        np.array(accuracy, dtype=np.float32),
    )


def _other_zoo(path: Path, rows: int, found: str) -> str:
    return (
        f"{path.parent}: weights.npy has {rows} rows but metrics.csv.gz has {found}; they are of different zoos: "
        f"{INCOMPLETE}"
    )


def some(numbers: Sequence[int], noun: str) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return f"{noun}{'s' * (len(numbers) > 1)} {shown}{', ...' * (len(numbers) > 5)}"
