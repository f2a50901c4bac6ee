"""The file format of the published Small CNN Zoo (Unterthiner et al. 2020, arXiv:2002.11448).

A zoo is a folder of three files:

- ``weights.npy``: float32 ``(rows, columns)``; a row is one checkpoint of one network, all parameters in a line;
- ``metrics.csv.gz``: a line per row: hyperparameters (``config.*``), ``modeldir`` (one per network), ``step``, results;
- ``layout.csv``: ``varname, shape, start_idx, end_idx``, the columns of each variable. Kernels are stored as
  ``(*kernel, in, out)`` and dense kernels as ``(in, out)``, in TensorFlow's order of axes.

The published sets hold about 270,000 rows (5 GB): weights are memory-mapped and only the rows asked for are loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data.networks import Corpus, Networks, Part, row_order, split_rows
from nfn_monomial.benchmarks.reading import map_array, number, read_rows, whole
from nfn_monomial.checks import shown
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files.untrusted import damaged, read_bytes
from nfn_monomial.tools.predictors.architectures import MODULES, PlainCNN
from nfn_monomial.tools.predictors.models import NetworkInfo

from .base import CorpusError, Format, register_format, require_folder
from .layout import Layout, cnn_geometry, layers_of, parse_layout, unflatten

__all__ = ["SmallCnnZoo", "SplitOrder", "network_info"]

SIZE = 32  # pixels a side of the images of the published zoos
SplitOrder = Literal["activation-then-split", "split-then-activation"]
FILES = ("weights.npy", "layout.csv", "metrics.csv.gz")
READ = ("config.activation", "modeldir", "step", "test_accuracy")  # of the columns of the metrics
INCOMPLETE = "the folder is incomplete: download it again"

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


@dataclass(frozen=True)
class Metrics:
    """The columns of ``metrics.csv.gz`` that decide which rows are loaded; each of length ``rows``."""

    activation: np.ndarray[tuple[int, ...], np.dtype[np.str_]]
    network: Ints
    step: Ints
    accuracy: Floats


def network_info(layout: Layout, activation: str) -> NetworkInfo:
    """Describes the networks for models: convolutions, global pooling, dense layers; the activation's symmetry.

    Templates are built for 2-d convolutions of stride 2 with square kernels, all layers with a bias, and known
    activations, without padding.
    """
    channels, kernel_sizes, head = cnn_geometry(layout)
    bias = [layer.bias is not None for layer in layers_of(layout)]
    space = WeightSpace.cnn(channels, kernel_sizes, activation, head=head, bias=bias)
    square = all(len(k) == 2 and k[0] == k[1] for k in kernel_sizes)
    if not (square and all(bias) and head and activation in MODULES):
        return NetworkInfo(space, activation)
    architecture = PlainCNN(
        channels,
        kernel_sizes=tuple(k[0] for k in kernel_sizes),
        strides=(2,) * len(kernel_sizes),
        paddings=(0,) * len(kernel_sizes),
        head=head,
        activations=(activation,) * (len(bias) - 1),  # type: ignore[arg-type]  # it is one of MODULES
    )
    return NetworkInfo(space, activation, architecture.module, (channels[0], SIZE, SIZE))


def _read_metrics(path: Path, rows: int) -> Metrics:
    """Reads the metrics, of which there are as many lines as ``rows``.

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
        at, lines_there = [header.index(name) for name in READ], ""
        for place, line in lines:
            if len(line) != len(header):
                raise InvalidValueError(f"line {place}: {len(line)} fields, expected {len(header)}")
            if len(step) == rows:
                lines_there = f"more than {rows}"
                break
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
        if len(step) < rows:
            lines_there = str(len(step))
        if lines_there:
            raise CorpusError(
                f"{path.parent}: weights.npy has {rows} rows but metrics.csv.gz has {lines_there}; they are of "
                f"different zoos: {INCOMPLETE}"
            )
    return Metrics(
        np.array(activation, dtype=np.str_),
        np.array(network, dtype=np.int64),
        np.array(step, dtype=np.int64),
        np.array(accuracy, dtype=np.float32),
    )


def _order(
    folder: Path, split_file: str | Path | None, rows: int, keep_duplicate: bool
) -> tuple[Ints, dict[str, object]]:
    name = f"{folder.resolve().name}_split.csv"
    places = [Path(split_file)] if split_file is not None else [folder / name, folder.resolve().parent / name]
    file = next((place for place in places if place.exists() or place.is_symlink()), None)
    if file is None and split_file is not None:
        raise CorpusError(f"split file {split_file} does not exist: give another, or none for a fixed permutation")
    if file is None:
        return np.array(row_order(rows), dtype=np.int64), {"split_file": None, "duplicates_dropped": 0}
    with damaged(file, "give the split file of this zoo as split_file: one row number a line", CorpusError):
        lines = enumerate(read_bytes(file).decode().splitlines(), start=1)
        order = [whole(text, f"line {number}", most=rows - 1) for number, text in lines if text.strip()]
    stray = len(order) == rows + 1 and order[0] == 0 and 0 in order[1:]
    proper = order[1:] if stray else order
    if sorted(proper) != list(range(rows)):
        raise CorpusError(
            f"{file} does not order the rows of {folder}: it has {len(proper)} lines with {len(set(proper))} different "
            f"numbers from {min(proper, default=0)} to {max(proper, default=0)}, expected 0 to {rows - 1} once each; "
            "give the split file of this zoo as split_file"
        )
    dropped = stray and not keep_duplicate
    chosen = proper if dropped else order
    return np.array(chosen, dtype=np.int64), {"split_file": str(file), "duplicates_dropped": int(dropped)}


def _split(rows: Ints) -> dict[str, Ints]:
    return {name: np.array(part, dtype=np.int64) for name, part in split_rows(rows.tolist()).items()}


def _networks(weights: Floats, rows: Ints, layout: Layout, path: Path) -> dict[str, Tensor]:
    """The networks with these rows of ``weights.npy``, in this order.

    Raises:
        CorpusError: if weights are NaN or infinite, naming the file.
    """
    by_place = np.argsort(rows, kind="stable")  # read in the order of the file: one pass over it
    values = np.empty((len(rows), weights.shape[1]), dtype=np.float32)
    values[by_place] = weights[rows[by_place]]
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        bad = sorted(rows[~finite].tolist())
        shown_rows = f"row{'s' * (len(bad) > 1)} {', '.join(map(str, bad[:5]))}{', ...' * (len(bad) > 5)}"
        raise CorpusError(
            f"{path}: NaN or infinite weights in {shown_rows} "
            f"({int((~finite).sum())} of the {len(rows)} networks asked for): drop these rows"
        )
    return unflatten(torch.from_numpy(values), layout)


@register_format("small-cnn-zoo")
class SmallCnnZoo(Format):
    """The Small CNN Zoo's three files."""

    kind = "generalization"
    looks_for = " or ".join(FILES)

    @staticmethod
    def detects(path: Path) -> bool:
        return any((path / name).is_file() for name in FILES)

    @staticmethod
    def load(
        path: str | Path,
        *,
        activations: Sequence[str] = (),
        split_file: str | Path | None = None,
        split_order: SplitOrder = "activation-then-split",
        keep_duplicate: bool = False,
        final_step: int | None = None,
        limit: int | None = None,
    ) -> dict[str, Corpus]:
        """Loads the final checkpoints, as a corpus for each activation.

        All rows are put in the order of the split file. Of these the final checkpoints are kept. The first half is for
        training and validation (shuffled by ``random.Random(0)``, 80/20), the second half is the test set.

        Args:
            path: the folder.
            activations: which, by default all that the zoo has.
            split_file: nfn's ``{name}_split.csv``, by default the one found in or next to the folder; without one,
                rows are in the order of `row_order`.
            split_order: whether the activation is selected before halving (the paper) or afterwards, part by part
                (ScaleGMN).
            keep_duplicate: nfn's split files begin with a stray ``0``, so that row 0 occurs twice. The stray one is
                dropped unless this is true, which reproduces the splits of nfn to the row.
            final_step: of the checkpoints (86 in the published sets), by default the largest of each network.
            limit: keep that many training networks.

        Raises:
            CorpusError: naming the folder or the file, if one is missing or damaged, or no networks are left.
            ValueError: for another ``split_order``.
        """
        if split_order not in get_args(SplitOrder):
            raise InvalidValueError(
                f"unknown split_order {split_order!r}: choose one of {', '.join(get_args(SplitOrder))}"
            )
        folder = require_folder(path)
        if missing := [name for name in FILES if not (folder / name).is_file()]:
            raise CorpusError(f"{folder}: {', '.join(missing)} missing (a zoo has {', '.join(FILES)}); {INCOMPLETE}")
        # The header is checked against the size of the file, so that the error of a cut file says so.
        with damaged(folder / "weights.npy", INCOMPLETE, CorpusError):
            weights: Floats = map_array(folder / "weights.npy", np.float32, 2)
        layout = parse_layout(folder / "layout.csv", columns=weights.shape[1])
        metrics = _read_metrics(folder / "metrics.csv.gz", len(weights))
        order, split_info = _order(folder, split_file, len(weights), keep_duplicate)
        largest = np.full(int(metrics.network.max(initial=-1)) + 1, -1, dtype=np.int64)
        np.maximum.at(largest, metrics.network, metrics.step)
        final = order[(metrics.step == (largest[metrics.network] if final_step is None else final_step))[order]]
        present = sorted(set(metrics.activation.tolist()))
        corpora = {}
        for activation in activations or present:
            of_activation = metrics.activation == activation
            if not of_activation.any():
                raise CorpusError(
                    f"{folder}: no network has the activation {activation!r}; those present: "
                    f"{', '.join(present) or 'none'}"
                )
            if split_order == "activation-then-split":
                parts = _split(final[of_activation[final]])
            else:
                parts = {name: rows[of_activation[rows]] for name, rows in _split(final).items()}
            parts["train"] = parts["train"][:limit]
            if empty := [name for name, rows in parts.items() if len(rows) == 0]:
                raise CorpusError(
                    f"{folder}: no network is left for {' and '.join(empty)}: {len(weights)} rows, of which "
                    f"{len(final)} final checkpoints "
                    f"({'largest step of each network' if final_step is None else f'step {final_step}'}) of which "
                    f"{int(of_activation[final].sum())} have the activation {activation!r}; use a larger zoo, or other "
                    "filters"
                )
            info, networks = network_info(layout, activation), dict[str, tuple[Part, ...]]()
            for name, rows in parts.items():
                tensors = _networks(weights, rows, layout, folder / "weights.npy")
                networks[name] = (Part(Networks(tensors, torch.from_numpy(metrics.accuracy[rows])), info),)
            source: dict[str, object] = {
                "path": str(folder),
                "rows": len(weights),
                "final_checkpoints": len(final),
                "final_steps": dict(sorted(Counter(metrics.step[final].tolist()).items())),
                **{name: len(rows) for name, rows in parts.items()},
                "split_order": split_order,
                **split_info,
            }
            corpora[activation] = Corpus(activation, **networks, info=info, source=source)
        return corpora
