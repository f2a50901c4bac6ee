"""Zoos in the published format that are damaged, or asked for what they do not have: one clear error."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from published_small_cnns import LAYOUT, ROWS, load_zoo, published_row, write_metrics, write_split

from nfn_monomial.benchmarks.data.formats.base import CorpusError


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


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights missing": (lambda f: (f / "weights.npy").unlink(), r"weights\.npy missing"),
    "gzip truncated": (cut("metrics.csv.gz", 0.7), r"metrics\.csv\.gz is damaged"),
    "rows differ": (
        lambda f: write_metrics(f, [published_row(row) for row in range(ROWS - 1)]),
        rf"weights\.npy has {ROWS} rows but metrics\.csv\.gz has {ROWS - 1}",
    ),
    "accuracy is NaN": (edit_rows(test_accuracy="nan"), r"line 9: test_accuracy is 'nan', expected a finite number"),
    "accuracy in percent": (edit_rows(test_accuracy=93), r"test_accuracy is '93', expected a share in \[0, 1\]"),
    "layout overlaps": (
        edit_layout('kernel:0,"(3, 3, 1, 16)",16,160', 'kernel:0,"(3, 3, 1, 16)",15,159'),
        r"conv2d/kernel:0 starts at column 15 and overlaps sequential/conv2d/bias:0, which ends at 16",
    ),
    "layout wrong size": (edit_layout('"(16, 10)"', '"(16, 11)"'), r"\(16, 11\) needs 176 columns, but .* is 160"),
    "shape is code": (
        edit_layout('"(16, 10)"', "__import__('os').getcwd()"),
        r"line 9: the shape of sequential/dense/kernel:0 is .*expected a tuple",
    ),
    "variable unknown": (edit_layout("conv2d_2/bias", "batch_norm/gamma"), r"'sequential/batch_norm/gamma:0' is not"),
    "layers do not fit": (
        edit_layout('"(3, 3, 1, 16)"', '"(3, 3, 16, 1)"'),
        r"bias:0 has 16 entries, but .*kernel:0 has 1 outputs",
    ),
    "split file of another zoo": (
        lambda f: write_split(f / "cifar10_split.csv", [*range(ROWS), 3]),
        rf"cifar10_split\.csv does not order the rows .*{ROWS + 1} lines with {ROWS} different",
    ),
    "NaN": (set_weight(np.nan), r"weights\.npy: NaN or infinite weights in row"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_one_clear_error(folder: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    damage(folder)
    with pytest.raises(CorpusError, match=message) as caught:
        load_zoo(folder, "relu")
    assert str(folder) in str(caught.value)


def test_infinite_weights_of_rows_that_are_not_asked_for_do_not_matter(folder: Path) -> None:
    set_weight(np.nan)(folder)
    assert len(load_zoo(folder, "tanh").test[0]) > 0


def test_wrong_requests(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"nowhere does not exist, expected the folder of a data set"):
        load_zoo(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match=r"no network is left for train and val and test: .*step 40"):
        load_zoo(folder, final_step=40)
    with pytest.raises(CorpusError, match="split file nowhere does not exist"):
        load_zoo(folder, split_file="nowhere")
    with pytest.raises(ValueError, match="unknown split_order 'random'"):
        load_zoo(folder, split_order="random")
