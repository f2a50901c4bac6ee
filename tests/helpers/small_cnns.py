"""Zoos of small CNNs of any sizes in the format of the Small CNN Zoo."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from published_small_cnns import write_metrics
from torch import Tensor

from nfn_monomial.benchmarks.data.formats.layout import Layout, Variable


def cnn_layout(channels: Sequence[int] = (1, 16, 16, 16), kernel_size: int = 3, head: Sequence[int] = (10,)) -> Layout:
    """By default the published sizes: 4,970 columns. Bias before kernel, layer by layer."""
    count = len(channels) - 1
    names = [f"conv2d_{i}" if i else "conv2d" for i in range(count)]
    names += [f"dense_{i}" if i else "dense" for i in range(len(head))]
    kernels = [*[(kernel_size, kernel_size)] * count, *[()] * len(head)]
    layout: list[Variable] = []
    end = 0
    for name, kernel, pair in zip(names, kernels, itertools.pairwise((*channels, *head)), strict=True):
        for part, size in (("bias", pair[1:]), ("kernel", (*kernel, *pair))):
            start, end = end, end + math.prod(size)
            layout.append(Variable(f"sequential/{name}/{part}:0", size, start, end))
    return tuple(layout)


def write_zoo(folder: Path, weights: Tensor, rows: Sequence[Mapping[str, object]], layout: Layout) -> None:
    """Networks ``(rows, columns)`` and the lines of their metrics."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "weights.npy", weights.numpy())
    lines = ["varname,shape,start_idx,end_idx", *(f'{v.name},"{v.shape}",{v.start},{v.end}' for v in layout)]
    (folder / "layout.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_metrics(folder, [dict(row) for row in rows])
