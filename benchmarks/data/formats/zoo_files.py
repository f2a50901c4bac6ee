"""The files of the published Small CNN Zoo, checked when they are read; see `small_cnn_zoo`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nfn_monomial.benchmarks.reading import map_array, number, read_rows, whole
from nfn_monomial.checks import brief as shown
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files.untrusted import damaged

from .base import CorpusError, require_folder

__all__ = [
    "FILES",
    "INCOMPLETE",
    "Metrics",
    "check_folder",
    "halves",
    "map_weights",
    "read_metrics",
    "row_order",
    "some",
]

FILES = ("weights.npy", "layout.csv", "metrics.csv.gz")
READ = ("config.activation", "modeldir", "step", "test_accuracy")  # of the columns of the metrics
INCOMPLETE = "the folder is incomplete: download it again"

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


def halves(rows: Sequence[int]) -> dict[str, list[int]]:
    """nfn's split: second half test; first half shuffled by ``random.Random(0)``, four fifths of it for training."""
    half = int(0.5 * len(rows))
    first = list(range(half))
    random.Random(0).shuffle(first)
    cut = int(0.8 * half)
    parts = {"train": first[:cut], "val": first[cut:], "test": range(half, len(rows))}
    return {name: [rows[place] for place in part] for name, part in parts.items()}


def check_folder(path: str | Path) -> Path:
    """The folder, which has all files of a zoo.

    Raises:
        CorpusError: naming those that are missing.
    """
    folder = require_folder(path)
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise CorpusError(f"{folder}: {', '.join(missing)} missing (a zoo has {', '.join(FILES)}); {INCOMPLETE}")
    return folder


def map_weights(path: Path) -> Floats:
    """Map ``weights.npy`` after checking its header against its size, so that a cut file is called just that."""
    with damaged(path, INCOMPLETE, CorpusError):
        mapped: Floats = map_array(path, np.float32, 2)
    return mapped


def read_metrics(path: Path, rows: int) -> Metrics:
    """The metrics, of which there are as many lines as ``rows``.

    Raises:
        CorpusError: naming the file and the line, if it is damaged, states no accuracy or step, has two lines for one
            step of a network, or is of another zoo.
    """
    activation: list[str] = []
    network: list[int] = []
    step: list[int] = []
    accuracy: list[float] = []
    numbers: dict[str, int] = {}
    seen: set[tuple[int, int]] = set()
    with damaged(path, INCOMPLETE, CorpusError):
        lines = read_rows(path)
        _, header = next(lines, (0, []))
        if missing := [name for name in READ if name not in header]:
            raise InvalidValueError(f"columns {', '.join(missing)} missing")
        at = [header.index(name) for name in READ]
        for place, line in lines:
            if len(line) != len(header):
                raise InvalidValueError(f"line {place}: {len(line)} fields, expected {len(header)}")
            if len(step) == rows:
                raise CorpusError(_other_zoo(path, rows, f"more than {rows}"))
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
        if len(step) != rows:
            raise CorpusError(_other_zoo(path, rows, str(len(step))))
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
