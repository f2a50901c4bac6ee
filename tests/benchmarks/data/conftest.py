"""Folders of networks, for all tests of data."""

from pathlib import Path

import numpy as np
import pytest
from published_small_cnns import LAYOUT, ROWS, published_order, published_row, write_metrics, write_split


@pytest.fixture(autouse=True)
def _memory_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes another step of each training, and a profiler."""
    monkeypatch.setattr("nfn_monomial.benchmarks.train.loop.step_memory", lambda *_: 2**20)


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
