"""Reading the published zoo format."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from published_small_cnns import (
    NETWORKS,
    ROWS,
    STEPS,
    load_zoo,
    published_order,
    published_row,
    rows_of,
    write_metrics,
)
from torch import Tensor
from torch.nn import functional as F

from nfn_monomial.benchmarks.data.formats.layout import cnn_geometry, parse_layout, unflatten


def expected_split(rows: list[int]) -> tuple[list[int], list[int], list[int]]:
    half = len(rows) // 2
    first = list(range(half))
    random.Random(0).shuffle(first)
    cut = int(0.8 * half)
    return [rows[i] for i in first[:cut]], [rows[i] for i in first[cut:]], rows[half:]


def is_final(row: int) -> bool:
    return row % len(STEPS) == len(STEPS) - 1


def is_relu(row: int) -> bool:
    return (row // len(STEPS)) % 3 != 0


def tensorflow_logits(row: np.ndarray, image: np.ndarray) -> np.ndarray:
    """One image ``(H, W, 1)`` through one published network, as TensorFlow defines it, written out in loops."""

    def conv(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
        out = (x.shape[0] - 3) // 2 + 1
        y = np.zeros((out, out, kernel.shape[3]))
        for i in range(out):
            for j in range(out):
                y[i, j] = np.tensordot(x[2 * i : 2 * i + 3, 2 * j : 2 * j + 3], kernel, axes=3) + bias
        return np.maximum(y, 0)

    x = conv(image, row[16:160].reshape(3, 3, 1, 16), row[:16])
    x = conv(x, row[176:2480].reshape(3, 3, 16, 16), row[160:176])
    x = conv(x, row[2496:4800].reshape(3, 3, 16, 16), row[2480:2496])
    return x.mean((0, 1)) @ row[4810:4970].reshape(16, 10) + row[4800:4810]


def torch_logits(tensors: dict[str, Tensor], number: int, images: Tensor) -> Tensor:
    x = images
    for i in range(3):
        x = F.conv2d(x, tensors[f"weight.{i}"][number], tensors[f"bias.{i}"][number], stride=2).relu()
    return F.linear(x.mean((2, 3)), tensors["weight.3"][number], tensors["bias.3"][number])


def test_loaded_networks_compute_what_the_published_ones_do(folder: Path) -> None:
    zoo = load_zoo(folder, "relu")
    weights = np.load(folder / "weights.npy").astype(np.float64)
    image = np.random.default_rng(1).normal(size=(16, 18, 1))[:, :16]
    tensors = {name: value.double() for name, value in zoo.test[0].networks.tensors.items()}
    for number, row in enumerate(rows_of(zoo.test)):
        logits = torch_logits(tensors, number, torch.from_numpy(image).permute(2, 0, 1)[None])
        np.testing.assert_allclose(logits[0].numpy(), tensorflow_logits(weights[row], image), rtol=1e-10)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_split_is_nfns(folder: Path, activation: str) -> None:
    zoo = load_zoo(folder, activation)
    final = [row for row in published_order() if is_final(row) and is_relu(row) == (activation == "relu")]
    assert (
        rows_of(zoo.train),
        rows_of(zoo.val),
        rows_of(zoo.test),
    ) == expected_split(final)
    assert zoo.activation == activation
    assert zoo.source["split_order"] == "activation-then-split"
    assert zoo.source["duplicates_dropped"] == 1
    assert zoo.source["split_file"] == str(folder.parent / "cifar10_split.csv")
    assert zoo.source["final_steps"] == {86: NETWORKS}


def test_split_before_the_activation_is_scalegmns(folder: Path) -> None:
    zoo = load_zoo(folder, "tanh", split_order="split-then-activation")
    parts = expected_split([row for row in published_order() if is_final(row)])
    expected = tuple([row for row in part if not is_relu(row)] for part in parts)
    assert (rows_of(zoo.train), rows_of(zoo.val), rows_of(zoo.test)) == expected
    assert zoo.source["split_order"] == "split-then-activation"


def test_duplicate_row_is_kept_on_request(folder: Path) -> None:
    # Row 0 must be a final checkpoint for its duplicate to be seen at all.
    rows = [published_row(row) for row in range(ROWS)]
    rows[0] |= {"modeldir": "/cns/zoo/alone", "config.activation": "relu"}
    write_metrics(folder, rows)
    every = [row for row in published_order() if row == 0 or (is_final(row) and is_relu(row))]
    zoo, upstream = load_zoo(folder), load_zoo(folder, keep_duplicate=True)
    assert sorted(rows_of(zoo.train) + rows_of(zoo.val) + rows_of(zoo.test)) == sorted(every)
    rows = rows_of(upstream.train), rows_of(upstream.val), rows_of(upstream.test)
    assert rows == expected_split([0, *every])
    assert upstream.source["duplicates_dropped"] == 0


def test_final_is_the_largest_step_of_each_network(folder: Path) -> None:
    rows = [published_row(row) for row in range(ROWS)]
    for row in rows[: ROWS // 2]:
        row["step"] = {0: 7, 1: 3, 86: 5}[row["step"]]  # a shorter run, out of order
    write_metrics(folder, rows)
    zoo = load_zoo(folder)
    expected = [row for row in range(ROWS) if is_relu(row) and (row % 3 == 0 if row < ROWS // 2 else is_final(row))]
    assert sorted(rows_of(zoo.train) + rows_of(zoo.val) + rows_of(zoo.test)) == expected


def test_other_depths_and_kernels(tmp_path: Path) -> None:
    """Over ten layers (names sort as numbers), 1-d kernels, two dense layers, missing biases, any order of lines."""
    lines = ["varname,shape,start_idx,end_idx"]
    end = 0
    widths = [2, *range(3, 14)]
    for i in random.Random(0).sample(range(11), 11):
        name = f"net/conv1d_{i}" if i else "net/conv1d"
        size = 2 * widths[i] * widths[i + 1]
        lines.append(f'{name}/kernel:0,"(2, {widths[i]}, {widths[i + 1]})",{end},{end + size}')
        end += size
    lines += [f'net/dense_1/kernel:0,"(4, 5)",{end},{end + 20}', f'net/dense/kernel:0,"(13, 4)",{end + 20},{end + 72}']
    lines.append(f'net/dense/bias:0,"(4,)",{end + 72},{end + 76}')
    (tmp_path / "layout.csv").write_text("\n".join(lines), encoding="utf-8")
    layout = parse_layout(tmp_path / "layout.csv", columns=end + 76)
    assert cnn_geometry(layout) == (tuple(widths), ((2,),) * 11, (4, 5))
    tensors = unflatten(torch.arange(2.0 * (end + 76)).view(2, -1), layout)
    assert tensors["weight.10"].shape == (2, 13, 12, 2)
    assert tensors["weight.11"].shape == (2, 4, 13)
    assert tensors["weight.12"].shape == (2, 5, 4)
    assert [name for name in tensors if name.startswith("bias")] == ["bias.11"]
    assert tensors["weight.12"][0, :, 0].tolist() == [float(end + i) for i in range(5)]  # row 0 of the (in, out) kernel
