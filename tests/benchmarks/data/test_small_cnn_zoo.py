"""Reading and writing the published zoo format. The folders here are written by hand, not by the code under test."""

import csv
import gzip
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nfn_monomial.benchmarks.data.formats.small_cnn_zoo import load_zoo
from nfn_monomial.benchmarks.data.formats.zoo_files import write_zoo
from nfn_monomial.benchmarks.data.layout import ZooError, cnn_geometry, cnn_layout, parse_layout, unflatten
from nfn_monomial.benchmarks.data.networks import Networks

COLUMNS = [
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
]
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A zoo as published, with nfn's split file next to it: a stray 0, then a permutation."""
    folder = tmp_path / "cifar10"
    folder.mkdir()
    np.save(folder / "weights.npy", np.random.default_rng(0).normal(size=(ROWS, 4970)).astype(np.float32))
    (folder / "layout.csv").write_text(LAYOUT, encoding="utf-8")
    write_metrics(folder, [published_row(row) for row in range(ROWS)])
    write_split(tmp_path / "cifar10_split.csv", [0, *published_order()])
    return folder


def published_order() -> list[int]:
    order = list(range(ROWS))
    random.Random(5).shuffle(order)
    return order


def rows_of(networks: Networks) -> list[int]:
    return [round(a * ROWS) for a in networks.accuracy.tolist()]


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


# --- reading -------------------------------------------------------------------------------------------------------


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
    tensors = {name: value.double() for name, value in zoo.test.tensors.items()}
    for number, row in enumerate(rows_of(zoo.test)):
        found = torch_logits(tensors, number, torch.from_numpy(image).permute(2, 0, 1)[None])
        np.testing.assert_allclose(found[0].numpy(), tensorflow_logits(weights[row], image), rtol=1e-10)


def test_shapes_and_geometry(folder: Path) -> None:
    zoo = load_zoo(folder)
    n = len(zoo.train)
    assert {name: tuple(t.shape) for name, t in zoo.train.tensors.items()} == {
        "weight.0": (n, 16, 1, 3, 3),
        "bias.0": (n, 16),
        "weight.1": (n, 16, 16, 3, 3),
        "bias.1": (n, 16),
        "weight.2": (n, 16, 16, 3, 3),
        "bias.2": (n, 16),
        "weight.3": (n, 10, 16),
        "bias.3": (n, 10),
    }
    assert all(t.dtype == torch.float32 and t.is_contiguous() for t in zoo.train.tensors.values())
    assert cnn_geometry(zoo.layout) == ((1, 16, 16, 16), ((3, 3), (3, 3), (3, 3)), (10,))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_split_is_nfns(folder: Path, activation: str) -> None:
    zoo = load_zoo(folder, activation)
    final = [row for row in published_order() if is_final(row) and is_relu(row) == (activation == "relu")]
    assert (rows_of(zoo.train), rows_of(zoo.val), rows_of(zoo.test)) == expected_split(final)
    assert zoo.activation == activation
    assert zoo.info["split_order"] == "activation-then-split"
    assert zoo.info["duplicates_dropped"] == 1
    assert zoo.info["split_file"] == str(folder.parent / "cifar10_split.csv")
    assert zoo.info["final_steps"] == {86: NETWORKS}


def test_split_before_the_activation_is_scalegmns(folder: Path) -> None:
    zoo = load_zoo(folder, "tanh", split_order="split-then-activation")
    parts = expected_split([row for row in published_order() if is_final(row)])
    expected = tuple([row for row in part if not is_relu(row)] for part in parts)
    assert (rows_of(zoo.train), rows_of(zoo.val), rows_of(zoo.test)) == expected
    assert zoo.info["split_order"] == "split-then-activation"


def test_duplicate_row_is_kept_on_request(folder: Path) -> None:
    # Row 0 must be a final checkpoint for its duplicate to be seen at all.
    rows = [published_row(row) for row in range(ROWS)]
    rows[0] |= {"modeldir": "/cns/zoo/alone", "config.activation": "relu"}
    write_metrics(folder, rows)
    every = [row for row in published_order() if row == 0 or (is_final(row) and is_relu(row))]
    zoo, upstream = load_zoo(folder), load_zoo(folder, keep_duplicate=True)
    assert sorted(rows_of(zoo.train) + rows_of(zoo.val) + rows_of(zoo.test)) == sorted(every)
    found = rows_of(upstream.train), rows_of(upstream.val), rows_of(upstream.test)
    assert found == expected_split([0, *every])
    assert upstream.info["duplicates_dropped"] == 0


def test_without_split_file_a_fixed_permutation(folder: Path) -> None:
    (folder.parent / "cifar10_split.csv").unlink()
    first, second = load_zoo(folder), load_zoo(folder)
    assert rows_of(first.train) == rows_of(second.train)
    assert first.info["split_file"] is None
    everything = rows_of(first.train) + rows_of(first.val) + rows_of(first.test)
    assert sorted(everything) == [row for row in range(ROWS) if is_final(row) and is_relu(row)]
    assert everything != sorted(everything)


def test_split_file_by_name_and_within_the_folder(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    write_split(other, list(range(ROWS)))
    zoo = load_zoo(folder, split_file=other)
    assert rows_of(zoo.test) == sorted(rows_of(zoo.test))
    other.rename(folder / "cifar10_split.csv")
    assert rows_of(load_zoo(folder).test) == rows_of(zoo.test)


def test_limit_keeps_the_first_training_networks(folder: Path) -> None:
    zoo, small = load_zoo(folder), load_zoo(folder, limit=3)
    assert rows_of(small.train) == rows_of(zoo.train)[:3]
    assert rows_of(small.val) == rows_of(zoo.val)
    assert rows_of(small.test) == rows_of(zoo.test)


def test_final_step_can_be_named(folder: Path) -> None:
    zoo = load_zoo(folder, final_step=1)
    assert all(row % len(STEPS) == 1 for row in rows_of(zoo.test))


def test_final_is_the_largest_step_of_each_network(folder: Path) -> None:
    rows = [published_row(row) for row in range(ROWS)]
    for row in rows[: ROWS // 2]:
        row["step"] = {0: 7, 1: 3, 86: 5}[row["step"]]  # a shorter run, out of order
    write_metrics(folder, rows)
    zoo = load_zoo(folder)
    expected = [row for row in range(ROWS) if is_relu(row) and (row % 3 == 0 if row < ROWS // 2 else is_final(row))]
    assert sorted(rows_of(zoo.train) + rows_of(zoo.val) + rows_of(zoo.test)) == expected


def test_subset(folder: Path) -> None:
    networks = load_zoo(folder).test
    part = networks.subset([2, 0])
    assert len(part) == 2
    assert torch.equal(part.accuracy, networks.accuracy[[2, 0]])
    assert torch.equal(part.tensors["weight.1"], networks.tensors["weight.1"][[2, 0]])
    assert torch.equal(networks.subset(torch.tensor([1])).accuracy, networks.subset(slice(1, 2)).accuracy)


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


# --- damage --------------------------------------------------------------------------------------------------------


def edit_layout(old: str, new: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        assert old in LAYOUT, "the damage must do something"
        (folder / "layout.csv").write_text(LAYOUT.replace(old, new), encoding="utf-8")

    return damage


def edit_rows(**changes: object) -> Callable[[Path], None]:
    """Change a column (named with `_` for `.`) of row 7."""

    def damage(folder: Path) -> None:
        rows = [published_row(row) for row in range(ROWS)]
        rows[7] |= {name.replace("config_", "config."): value for name, value in changes.items()}
        write_metrics(folder, rows)

    return damage


def set_weight(value: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        weights = np.load(folder / "weights.npy")
        weights[[5, 8], 100] = value  # final checkpoints of two ReLU networks
        np.save(folder / "weights.npy", weights)

    return damage


def cut(name: str, share: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return damage


def flip_bytes(folder: Path) -> None:
    data = bytearray((folder / "metrics.csv.gz").read_bytes())
    data[40:60] = bytes(255 - b for b in data[40:60])
    (folder / "metrics.csv.gz").write_bytes(data)


def other_columns(folder: Path) -> None:
    columns = [c for c in COLUMNS if c not in ("modeldir", "config.dropout")] + ["config.colour"]
    write_metrics(folder, [published_row(row) | {"config.colour": 1} for row in range(ROWS)], columns)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights missing": (lambda f: (f / "weights.npy").unlink(), r"weights\.npy missing"),
    "two missing": (
        lambda f: [(f / n).unlink() for n in ("layout.csv", "metrics.csv.gz")],
        r"layout\.csv, metrics\.csv\.gz missing",
    ),
    "weights truncated": (
        cut("weights.npy", 0.5),
        rf"weights\.npy is truncated: its header says {ROWS} x 4970 .*but it has \d+",
    ),
    "weights header truncated": (cut("weights.npy", 0.00003), r"weights\.npy is not a NumPy array file"),
    "weights are text": (
        lambda f: (f / "weights.npy").write_text("hello", encoding="utf-8"),
        r"not a NumPy array file",
    ),
    "weights pickled": (
        lambda f: np.save(f / "weights.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True),
        r"holds object \(1,\), expected float32",
    ),
    "weights float64": (
        lambda f: np.save(f / "weights.npy", np.zeros((ROWS, 4970))),
        rf"holds float64 \({ROWS}, 4970\), expected float32",
    ),
    "gzip truncated": (cut("metrics.csv.gz", 0.7), r"metrics\.csv\.gz is truncated or damaged"),
    "gzip damaged": (flip_bytes, r"metrics\.csv\.gz"),
    "no gzip": (
        lambda f: (f / "metrics.csv.gz").write_text("a,b", encoding="utf-8"),
        r"metrics\.csv\.gz is truncated or damaged",
    ),
    "rows differ": (
        lambda f: write_metrics(f, [published_row(row) for row in range(ROWS - 1)]),
        rf"weights\.npy has {ROWS} rows but metrics\.csv\.gz has {ROWS - 1}",
    ),
    "columns unknown and missing": (
        other_columns,
        r"missing: config\.dropout, modeldir; unknown: config\.colour\. Expected",
    ),
    "accuracy is text": (edit_rows(test_accuracy="high"), r"line 9: step or test_accuracy: .*'high'"),
    "accuracy is NaN": (edit_rows(test_accuracy="nan"), r"line 9: test_accuracy is nan, expected a share"),
    "accuracy in percent": (edit_rows(test_accuracy=93), r"test_accuracy is 93, expected a share in \[0, 1\]"),
    "step infinite": (edit_rows(step="inf"), r"line 9: step or test_accuracy"),
    "layout too short": (
        edit_layout('sequential/dense/kernel:0,"(16, 10)",4810,4970\n', ""),
        r"add up to 4810 columns, but weights\.npy has 4970",
    ),
    "layout overlaps": (
        edit_layout('kernel:0,"(3, 3, 1, 16)",16,160', 'kernel:0,"(3, 3, 1, 16)",15,159'),
        r"conv2d/kernel:0 starts at column 15 and overlaps sequential/conv2d/bias:0, which ends at 16",
    ),
    "layout gap": (
        edit_layout('bias:0,"(10,)",4800,4810', 'bias:0,"(10,)",4801,4811'),
        r"dense/bias:0 starts at column 4801 and leaves a gap after",
    ),
    "layout wrong size": (edit_layout('"(16, 10)"', '"(16, 11)"'), r"\(16, 11\) needs 176 columns, but .* is 160"),
    "shape is code": (
        edit_layout('"(16, 10)"', "__import__('os').getcwd()"),
        r"line 9: the shape of sequential/dense/kernel:0 is .*expected a tuple",
    ),
    "shape is a list": (edit_layout('"(16, 10)"', '"[16, 10]"'), r"is '\[16, 10\]', expected a tuple"),
    "shape of floats": (edit_layout('"(16, 10)"', '"(16.0, 10)"'), r"expected a tuple"),
    "shape empty": (edit_layout('"(16, 10)"', ""), r"is '', expected a tuple"),
    "index no integer": (edit_layout("4810,4970", "4810,end"), r"columns '4810' to 'end', expected two integers"),
    "layout header": (edit_layout("start_idx", "start"), r"columns start_idx missing"),
    "variable unknown": (edit_layout("conv2d_2/bias", "batch_norm/gamma"), r"'sequential/batch_norm/gamma:0' is not"),
    "variable twice": (edit_layout("conv2d_2/bias", "conv2d_1/bias"), r"conv2d_1/bias:0 occurs twice"),
    "layers do not fit": (
        edit_layout('"(3, 3, 1, 16)"', '"(3, 3, 16, 1)"'),
        r"bias:0 has 16 entries, but .*kernel:0 has 1 outputs",
    ),
    "split file of another zoo": (
        lambda f: write_split(f / "cifar10_split.csv", [*range(ROWS), 3]),
        rf"cifar10_split\.csv does not order the rows .*{ROWS + 1} lines with {ROWS} different",
    ),
    "split file with a header": (
        lambda f: (f / "cifar10_split.csv").write_text("row\n0\n", encoding="utf-8"),
        r"line 1: 'row', expected one row number a line",
    ),
    "NaN": (set_weight(np.nan), r"weights\.npy: NaN or infinite weights in row"),
    "infinite": (set_weight(np.inf), r"NaN or infinite weights in row"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_one_clear_error(folder: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    damage(folder)
    with pytest.raises(ZooError, match=message) as caught:
        load_zoo(folder, "relu")
    assert str(folder) in str(caught.value)


def test_errors_name_the_rows_that_are_not_finite(folder: Path) -> None:
    set_weight(np.nan)(folder)
    write_split(folder / "cifar10_split.csv", [8, 5, *(row for row in range(ROWS) if row not in (5, 8))])
    with pytest.raises(ZooError, match=r"row(s 5, 8| 5| 8) "):
        load_zoo(folder, "relu")


def test_infinite_weights_of_rows_that_are_not_asked_for_do_not_matter(folder: Path) -> None:
    set_weight(np.nan)(folder)
    assert len(load_zoo(folder, "tanh").test) > 0


def test_wrong_requests(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=r"zoo folder .*nowhere does not exist.*zoo make"):
        load_zoo(tmp_path / "nowhere")
    with pytest.raises(ZooError, match="is a file"):
        load_zoo(folder / "layout.csv")
    with pytest.raises(ZooError, match="no network has the activation 'gelu'; those present: relu, tanh"):
        load_zoo(folder, "gelu")
    with pytest.raises(ZooError, match=r"no network is left for train and val and test: .*step 40"):
        load_zoo(folder, final_step=40)
    with pytest.raises(ZooError, match="split file nowhere does not exist"):
        load_zoo(folder, split_file="nowhere")
    with pytest.raises(ValueError, match="unknown split_order 'random'"):
        load_zoo(folder, split_order="random")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit is 0"):
        load_zoo(folder, limit=0)


def test_zoo_too_small_to_split(folder: Path) -> None:
    np.save(folder / "weights.npy", np.zeros((3, 4970), np.float32))
    write_metrics(folder, [published_row(row) for row in range(3, 6)])
    (folder.parent / "cifar10_split.csv").unlink()
    with pytest.raises(ZooError, match="no network is left for train and val: 3 rows, of which 1 final"):
        load_zoo(folder)


def test_empty_zoo(folder: Path) -> None:
    np.save(folder / "weights.npy", np.zeros((0, 4970), np.float32))
    write_metrics(folder, [])
    (folder.parent / "cifar10_split.csv").unlink()
    with pytest.raises(ZooError, match="no network has the activation 'relu'; those present: none"):
        load_zoo(folder)


# --- writing -------------------------------------------------------------------------------------------------------


def columns_to_write() -> dict[str, list[object]]:
    rows = [published_row(row) for row in range(ROWS)]
    return {name: [row[name] for row in rows] for name in COLUMNS}


def test_round_trip(tmp_path: Path) -> None:
    weights = torch.randn(ROWS, 4970, generator=torch.Generator().manual_seed(0))
    write_zoo(tmp_path / "made", weights, columns_to_write(), cnn_layout())
    zoo = load_zoo(tmp_path / "made", "tanh")
    for networks in (zoo.train, zoo.val, zoo.test):
        expected = unflatten(weights[rows_of(networks)], cnn_layout())
        assert all(torch.equal(networks.tensors[name], value) for name, value in expected.items())
    assert zoo.info["split_file"] == str(tmp_path / "made" / "made_split.csv")
    assert (tmp_path / "made" / "layout.csv").read_text(encoding="utf-8") == LAYOUT
    assert sorted(p.name for p in (tmp_path / "made").iterdir()) == [
        "layout.csv",
        "made_split.csv",
        "metrics.csv.gz",
        "weights.npy",
    ]

    # The split file states the default order, so a renamed folder, which no longer finds it, has the same split.
    (tmp_path / "made").rename(tmp_path / "renamed")
    assert rows_of(load_zoo(tmp_path / "renamed", "tanh").test) == rows_of(zoo.test)


def test_equal_zoos_are_equal_files(tmp_path: Path) -> None:
    weights = torch.zeros(ROWS, 4970)
    for name in ("a", "b"):
        write_zoo(tmp_path / name, weights, columns_to_write(), cnn_layout())
    for name in ("weights.npy", "metrics.csv.gz", "layout.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("fails_at", ["weights.npy", "layout.csv", "metrics.csv.gz"])
def test_interrupted_writing_leaves_nothing_to_take_for_a_zoo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    import os

    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        if Path(target).name == fails_at:
            raise OSError("disk full")
        replace(source, target)

    write_zoo(tmp_path, torch.zeros(ROWS, 4970), columns_to_write(), cnn_layout())
    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="disk full"):
        write_zoo(tmp_path, torch.ones(ROWS, 4970), columns_to_write(), cnn_layout())
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(ZooError, match=r"metrics\.csv\.gz missing"):
        load_zoo(tmp_path)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    weights, columns, layout = torch.zeros(ROWS, 4970), columns_to_write(), cnn_layout()
    with pytest.raises(ZooError, match="NaN or infinite weights in rows 2, 4:"):
        write_zoo(tmp_path, weights.index_fill(0, torch.tensor([2, 4]), torch.nan), columns, layout)
    with pytest.raises(ZooError, match="missing: step"):
        write_zoo(tmp_path, weights, {k: v for k, v in columns.items() if k != "step"}, layout)
    with pytest.raises(ZooError, match=r"another number: .*'step': 1"):
        write_zoo(tmp_path, weights, columns | {"step": [86]}, layout)
    with pytest.raises(ZooError, match=r"add up to 4970 columns, but weights\.npy has 4969"):
        write_zoo(tmp_path, weights[:, 1:], columns, layout)
    with pytest.raises(ZooError, match=r"torch.float64 .* expected float32"):
        write_zoo(tmp_path, weights.double(), columns, layout)
    assert not list(tmp_path.iterdir())
