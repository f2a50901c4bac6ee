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
from streamed_zoos import COUNT, LAYOUT, SPACE, both, config, written

from nfn_monomial.benchmarks.data.formats.detection import load_generalization
from nfn_monomial.benchmarks.data.formats.small_cnn_zoo import MappedRows, load_zoo
from nfn_monomial.benchmarks.data.formats.zoo_files import map_weights
from nfn_monomial.benchmarks.data.layout import ZooError
from nfn_monomial.benchmarks.data.moves import (
    augment,
    draw_elements,
    draw_wider,
    elements_of,
    joined,
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


def test_what_is_drawn_for_a_batch_depends_on_it() -> None:
    """The negative twin: why elements are drawn for all networks beforehand."""
    index = torch.tensor([4, 7])
    every, own = draw_elements(SPACE, TEN, 10.0, 0), draw_elements(SPACE, 2, 10.0, 0)
    moved = every.act(ten().read_all())["weight.1"][index]
    assert torch.equal(elements_of(every, index).act(ten().read(index))["weight.1"], moved)
    assert not torch.equal(own.act(ten().read(index))["weight.1"], moved)


def test_joined_elements_act_one_after_another() -> None:
    a, b = draw_elements(SPACE, 4, 10.0, 0), draw_elements(SPACE, 6, 1e3, 1)
    first, last = ten().subset(slice(4)).read_all(), ten().subset(slice(4, None)).read_all()
    for name, tensor in joined([a, b]).act(ten().read_all()).items():
        assert torch.equal(tensor, torch.cat([a.act(first)[name], b.act(last)[name]]))


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


class Places(np.ndarray):  # type: ignore[type-arg]
    """An array that remembers the rows it was asked for."""

    asked: list[list[int]]

    def __getitem__(self, key: object) -> object:
        if isinstance(key, slice):
            self.asked.append(list(range(key.start, key.stop)))
        return super().__getitem__(key)


def test_mapped_rows_are_read_in_the_order_of_the_file_and_put_back() -> None:
    values = np.arange(20 * LAYOUT[-1].end, dtype=np.float32).reshape(20, -1)
    weights = values.view(Places)
    weights.asked = []
    numbers = np.array([11, 3, 3, 17, 0, 4])
    rows = MappedRows(weights, numbers, LAYOUT, Path("weights.npy"))
    index = torch.tensor([3, 5, 1, 0, 3])
    found = rows.read(index)
    assert weights.asked == [[3, 4], [11], [17], [17]]
    expected = MappedRows(values, np.arange(20), LAYOUT, Path("weights.npy")).read_all()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name][[17, 4, 3, 11, 17]])
        assert rows.shapes[name] == tuple(tensor.shape[1:])


def test_the_limit_counts_all_networks_of_all_activations(tmp_path: Path) -> None:
    folder = written(tmp_path / "zoo")
    size = 4 * COUNT * LAYOUT[-1].end
    loaded = [load_zoo(folder, in_memory_bytes=limit).train[0].networks.rows for limit in (size, size - 1)]
    assert [type(rows) for rows in loaded] == [TensorRows, MappedRows]
    twice = load_generalization(folder, activations=("relu", "relu"), in_memory_bytes=size)
    assert isinstance(twice["relu"].train[0].networks.rows, MappedRows)


def test_loading_reads_no_weights_that_stay_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, asked, read = written(tmp_path / "zoo"), [], MappedRows.read
    monkeypatch.setattr(MappedRows, "read", lambda rows, index: asked.append(len(index)) or read(rows, index))
    (corpus,) = load_generalization(folder, in_memory_bytes=0).values()
    assert asked == []
    load_generalization(folder)
    assert sum(asked) == sum(len(parts[0]) for parts in (corpus.train, corpus.val, corpus.test))


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


def test_what_is_read_of_a_mapped_file_is_let_go(tmp_path: Path) -> None:
    """Nothing of it counts as the memory of this process afterwards."""
    path = tmp_path / "weights.npy"
    np.save(path, np.ones((4000, LAYOUT[-1].end), np.float32))
    rows = MappedRows(map_weights(path), np.arange(4000), LAYOUT, path)
    assert rows.nbytes > 2**20
    held = rows.held(torch.arange(100, 200))
    assert torch.equal(held.read(torch.tensor([5]))["bias.0"], rows.read(torch.tensor([105]))["bias.0"])
    rows.read(torch.arange(4000))
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        pytest.skip("only Linux says how much of a file is mapped")
    entry = smaps.read_text().split(str(path))[1]
    assert int(entry.split("Rss:")[1].split()[0]) == 0
