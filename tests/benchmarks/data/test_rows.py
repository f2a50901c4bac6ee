"""Rows, networks that are read when asked for: moved, widened, joined, and left in their files by what loads zoos."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from on_disk import OnDisk
from streamed_zoos import SPACE, both, config, written

from nfn_monomial.benchmarks.data.formats.detection import load_generalization
from nfn_monomial.benchmarks.data.formats.small_cnn_zoo import load_zoo
from nfn_monomial.benchmarks.data.layout import ZooError
from nfn_monomial.benchmarks.data.moves import (
    augment,
    draw_elements,
    draw_wider,
    moved_rows,
    transform,
    widened,
    widened_rows,
)
from nfn_monomial.benchmarks.data.networks import Networks, Parts
from nfn_monomial.benchmarks.data.rows import ConcatRows, Rows, TensorRows
from nfn_monomial.benchmarks.studies import predict
from nfn_monomial.testing import random_networks

TEN = 10


def ten(seed: int = 0) -> TensorRows:
    networks = random_networks(SPACE, TEN, generator=torch.Generator().manual_seed(seed))
    return TensorRows({name: t.squeeze(1) for name, t in networks.items()})


KINDS: dict[str, Callable[[Rows, int], Rows]] = {
    "moved": lambda rows, seed: moved_rows(rows, draw_elements(SPACE, TEN, 100.0, seed)),
    "widened": lambda rows, seed: widened_rows(rows, draw_wider(rows, SPACE, 1.5, seed)),
    "joined": lambda rows, seed: ConcatRows([rows, ten(seed + 1), rows]),
    "chosen": lambda rows, seed: OnDisk(rows).subset(torch.tensor([3, 1, 9, 3])),
    "augmented": lambda rows, seed: ConcatRows([rows, KINDS["moved"](rows, seed)]),
}


@given(kind=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 100), data=st.data())
def test_a_network_does_not_depend_on_the_batch_it_is_read_in(kind: str, seed: int, data: st.DataObject) -> None:
    rows = KINDS[kind](ten(), seed)
    index = torch.tensor(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=12)))
    every, some = rows.read_all(), rows.read(index)
    assert list(some) == list(every) == list(rows.shapes)
    for name, tensor in some.items():
        assert torch.equal(tensor, every[name][index])
        assert tuple(tensor.shape[1:]) == rows.shapes[name]


def test_rows_that_do_not_fit_together() -> None:
    with pytest.raises(ValueError, match=r"10 networks to move by \{'.*': 9.*\} elements: each network needs one"):
        moved_rows(ten(), draw_elements(SPACE, 9, 10.0, 0))
    with pytest.raises(ValueError, match="networks of different shapes cannot be joined"):
        ConcatRows([ten(), KINDS["widened"](ten(), 0)])
    with pytest.raises(ValueError, match="10 networks and 9 accuracies: each network needs one"):
        Networks(ten(), torch.zeros(9))


@pytest.mark.parametrize("change", [
    lambda parts: transform(parts, 1e3, 1),
    lambda parts: widened(parts, 1.5, 2),
    lambda parts: augment(parts, (2, 9), 3),
], ids=["moved", "widened", "augmented"])  # fmt: skip
def test_sets_stay_where_they_are(change: Callable[[Parts], Parts], tmp_path: Path) -> None:
    """In memory or not: nothing is read before it is asked for, and then it is the same."""
    held, streamed = both(written(tmp_path / "zoo"))
    (part,) = streamed.train
    spy = OnDisk(part.networks.rows)
    (there,) = change(held.train)
    (lazy,) = change((replace(part, networks=Networks(spy, part.networks.accuracy)),))
    assert (there.streamed, lazy.streamed, spy.most) == (False, True, 0)
    assert lazy.info.space == there.info.space
    assert torch.equal(lazy.networks.accuracy, there.networks.accuracy)
    assert all(torch.equal(lazy.networks.tensors[name], t) for name, t in there.networks.tensors.items())


def test_weights_that_are_not_finite_are_found_when_they_are_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "zoo")
    weights = np.load(folder / "weights.npy")
    weights[17, 5] = np.nan
    np.save(folder / "weights.npy", weights)
    with pytest.raises(ZooError, match=r"weights\.npy: NaN or infinite weights in row 17"):
        load_zoo(folder)
    (corpus,) = load_generalization(folder, in_memory_bytes=0).values()
    with pytest.raises(ZooError, match=r"weights\.npy: NaN or infinite weights in row 17"):
        predict.plan(config("statnn"), {"relu": corpus})
