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
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data.networks import Corpus, Networks, Part
from nfn_monomial.benchmarks.reading import whole
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files.untrusted import damaged, read_bytes
from nfn_monomial.tools.predictors.architectures import MODULES, PlainCNN
from nfn_monomial.tools.predictors.models import NetworkInfo

from .base import CorpusError, Format, register_format
from .layout import Layout, cnn_geometry, layers_of, parse_layout, unflatten
from .zoo_files import (
    FILES,
    Bools,
    Floats,
    Ints,
    Metrics,
    check_folder,
    halves,
    map_weights,
    read_metrics,
    row_order,
    some,
)

__all__ = ["SmallCnnZoo", "SplitOrder", "network_info"]

SIZE = 32  # pixels a side of the images of the published zoos
SplitOrder = Literal["activation-then-split", "split-then-activation"]


def network_info(layout: Layout, activation: str) -> NetworkInfo:
    """What is known of the networks: convolutions, global pooling, dense layers; the activation's symmetry.

    Templates are built for 2-d convolutions of stride 2 with square kernels, all layers with a bias, and known
    activations, without padding.
    """
    geometry = cnn_geometry(layout)
    count = len(geometry.kernel_sizes)
    bias = [layer.bias is not None for layer in layers_of(layout)]
    space = WeightSpace.cnn(geometry.channels, geometry.kernel_sizes, activation, head=geometry.head, bias=bias)
    square = all(len(k) == 2 and k[0] == k[1] for k in geometry.kernel_sizes)
    if not (square and all(bias) and geometry.head and activation in MODULES):
        return NetworkInfo(space, activation)
    architecture = PlainCNN(
        geometry.channels,
        kernel_sizes=tuple(k[0] for k in geometry.kernel_sizes),
        strides=(2,) * count,
        paddings=(0,) * count,
        head=geometry.head,
        activations=(activation,) * (len(bias) - 1),  # type: ignore[arg-type]  # it is one of MODULES
    )
    return NetworkInfo(space, activation, architecture.module, (geometry.channels[0], SIZE, SIZE))


def _is_final(metrics: Metrics, final_step: int | None) -> Bools:
    if final_step is not None:
        return np.asarray(metrics.step == final_step)
    last = np.full(int(metrics.network.max(initial=-1)) + 1, -1, dtype=np.int64)
    np.maximum.at(last, metrics.network, metrics.step)
    return np.asarray(metrics.step == last[metrics.network])


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
    return {name: np.array(part, dtype=np.int64) for name, part in halves(rows.tolist()).items()}


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
        raise CorpusError(
            f"{path}: NaN or infinite weights in {some(sorted(rows[~finite].tolist()), 'row')} "
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
        """Load the final checkpoints, as a corpus for each activation.

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
        folder = check_folder(path)
        weights = map_weights(folder / "weights.npy")
        layout = parse_layout(folder / "layout.csv", columns=weights.shape[1])
        metrics = read_metrics(folder / "metrics.csv.gz", len(weights))
        order, split_info = _order(folder, split_file, len(weights), keep_duplicate)
        final = order[_is_final(metrics, final_step)[order]]
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
