"""A small zoo in the published format of the Small CNN Zoo, written by hand, not by the code under test."""

import csv
import gzip
import random
from pathlib import Path
from typing import Any

from nfn_monomial.benchmarks.data.formats.small_cnn_zoo import SmallCnnZoo
from nfn_monomial.benchmarks.data.networks import Corpus, Parts, accuracies

CONFIG = """activation b_init dataset dnn_architecture dropout epochs epochs_between_checkpoints init_std l2reg
learning_rate num_layers num_units optimizer random_seed train_fraction w_init"""
RESULTS = ["modeldir", "step", "test_accuracy", "test_loss", "train_accuracy", "train_loss"]
COLUMNS = [*(f"config.{name}" for name in CONFIG.split()), *RESULTS]
LAYOUT = """varname,shape,start_idx,end_idx
sequential/conv2d/bias:0,"(16,)",0,16
sequential/conv2d/kernel:0,"(3, 3, 1, 16)",16,160
sequential/conv2d_1/bias:0,"(16,)",160,176
sequential/conv2d_1/kernel:0,"(3, 3, 16, 16)",176,2480
sequential/conv2d_2/bias:0,"(16,)",2480,2496
sequential/conv2d_2/kernel:0,"(3, 3, 16, 16)",2496,4800
sequential/dense/bias:0,"(10,)",4800,4810
sequential/dense/kernel:0,"(16, 10)",4810,4970
"""
STEPS = (0, 1, 86)
NETWORKS = 24
ROWS = NETWORKS * len(STEPS)


def published_row(row: int) -> dict[str, object]:
    network, step = divmod(row, len(STEPS))
    values: dict[str, object] = dict.fromkeys(COLUMNS, 0)
    return values | {
        "config.activation": "relu" if network % 3 else "tanh",
        "modeldir": f"/cns/zoo/{network}",
        "step": STEPS[step],
        "test_accuracy": row / ROWS,  # tells which row a network was read from
    }


def write_metrics(folder: Path, rows: list[dict[str, object]], columns: list[str] = COLUMNS) -> None:
    with gzip.open(folder / "metrics.csv.gz", "wt", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def write_split(path: Path, order: list[int]) -> None:
    path.write_text("".join(f"{row}\n" for row in order), encoding="utf-8")


def published_order() -> list[int]:
    order = list(range(ROWS))
    random.Random(5).shuffle(order)
    return order


def rows_of(parts: Parts) -> list[int]:
    return [round(a * ROWS) for a in accuracies(parts).tolist()]


def load_zoo(folder: Path, activation: str = "relu", **options: Any) -> Corpus:
    """The networks of one activation."""
    return SmallCnnZoo.load(folder, activations=(activation,), **options)[activation]
