"""Zoos larger than memory: the same runs as in memory, and never more than a batch of networks at once."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from on_disk import OnDisk
from published_writers import write_hub, write_model_zoo
from small_zoo import small_zoo
from torch import Tensor
from torch.utils import _pytree as pytree

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data import batches
from nfn_monomial.benchmarks.data import networks as predict_data
from nfn_monomial.benchmarks.data.batches import (
    EVALUATION_BATCH,
    Data,
    Made,
    StreamedData,
    pick,
    prepared,
    shuffled_blocks,
)
from nfn_monomial.benchmarks.data.formats.detection import load_generalization
from nfn_monomial.benchmarks.data.formats.small_cnn_zoo import MappedRows, load_zoo
from nfn_monomial.benchmarks.data.formats.zoo_files import METRIC_COLUMNS, map_weights, write_zoo
from nfn_monomial.benchmarks.data.layout import ZooError, cnn_layout
from nfn_monomial.benchmarks.data.moves import (
    MovedRows,
    WidenedRows,
    augment,
    draw_elements,
    draw_wider,
    elements_of,
    joined,
    transform,
    widened,
)
from nfn_monomial.benchmarks.data.networks import (
    Corpus,
    MixedInfo,
    NetworkInfo,
    Networks,
    Part,
    Parts,
    fingerprint,
    groups_of,
    looked_at,
)
from nfn_monomial.benchmarks.data.rows import ConcatRows, Rows, TensorRows
from nfn_monomial.benchmarks.models.catalogue import build_model
from nfn_monomial.benchmarks.settings.generalization import PredictConfig
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies import predict
from nfn_monomial.benchmarks.train.sweep import Finished, run_job
from nfn_monomial.testing import random_networks

LAYOUT = cnn_layout(channels=(1, 4, 5), head=(3,))
COUNT = 60


def written(folder: Path, activation: str = "relu") -> Path:
    """A zoo of random networks whose accuracy the last biases determine."""
    weights = 0.5 * torch.randn(COUNT, LAYOUT[-1].end, generator=torch.Generator().manual_seed(0))
    columns: dict[str, list[object]] = {name: [0.0] * COUNT for name in METRIC_COLUMNS}
    columns |= {"config.activation": [activation] * COUNT, "step": [86] * COUNT}
    columns |= {"modeldir": [f"net {i}" for i in range(COUNT)]}
    columns["test_accuracy"] = torch.sigmoid(3 * weights[:, -3:].mean(1)).tolist()
    write_zoo(folder, weights, columns, LAYOUT)
    return folder


def both(folder: Path) -> tuple[Corpus, Corpus]:
    """In memory, and in its file."""
    held, streamed = (next(iter(load_generalization(folder, **o).values())) for o in ({}, {"in_memory_bytes": 0}))
    assert [part.streamed for part in (*held.train, *held.test, *streamed.train, *streamed.test)] == [0, 0, 1, 1]
    return held, streamed


def config(*models: str, **options: object) -> PredictConfig:
    training = TrainConfig(epochs=2, batch_size=8, learning_rate=1e-2)
    return PredictConfig(models, seeds=(0,), scales=(1e1, 1e4), training=training, **options)  # type: ignore[arg-type]


def runs(corpus: Corpus, config: PredictConfig) -> list[Finished]:
    return [run_job(job) for job in predict.plan(config, {corpus.activation: corpus})]


@pytest.mark.parametrize(("activation", "models"), [("relu", ("np", "monomial")), ("tanh", ("statnn",))])
def test_a_zoo_left_in_its_file_trains_and_tests_bit_identically(
    tmp_path: Path, activation: str, models: tuple[str, ...]
) -> None:
    """On the original, augmented and moved train sets, and on all test sets."""
    held, streamed = both(written(tmp_path / "zoo", activation))
    plan = config(*models, train_sets=("original", "augmented", "moved"), augment_scale=None)
    for memory, disk in zip(runs(held, plan), runs(streamed, plan), strict=True):
        assert memory.run.settings == disk.run.settings, "and so the same fingerprint"
        assert [t.name for t in disk.run.tests][-1] == "widened"
        assert memory.run.tests == disk.run.tests
        assert memory.run.val == disk.run.val
        assert memory.state.keys() == disk.state.keys()
        assert all(torch.equal(memory.state[name], disk.state[name]) for name in memory.state)


def largest_difference(model_name: str, held: Parts, streamed: Parts, corpus: Corpus) -> float:
    """Of prepared inputs, relative to the largest entry."""
    model = build_model(model_name, corpus.info, seed=0)
    data, lazy = prepared(held, model.prepare_groups), prepared(streamed, model.prepare_groups)
    index = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    worst = 0.0
    for numbers in index.split(7):
        a, b = (pytree.tree_leaves(d.take(numbers).inputs) for d in (data, lazy))
        for x, y in zip(a, b, strict=True):
            assert x.shape == y.shape
            worst = max(worst, float((x.double() - y.double()).abs().max() / x.double().abs().max().clamp(min=1e-9)))
    return worst


@pytest.mark.parametrize("name", predict.default_models({"relu": small_zoo().corpus()}))
def test_every_model_sees_the_same_inputs_whatever_the_batch(name: str, tmp_path: Path) -> None:
    """To the bit, but for what is balanced: its scales converge together with those of the batch."""
    held, streamed = both(written(tmp_path / "zoo"))
    exact = name in ("statnn", "mlp", "np", "hnp", "monomial", "monomial-hnp", "gnn", "gnn-hnp")
    for sets in ((held.test, streamed.test), tuple(augment(c.val, (1e4,), 0) for c in (held, streamed))):
        difference = largest_difference(name, *sets, held)
        assert difference == 0 if exact else difference < 1e-5


def spied() -> tuple[Corpus, list[OnDisk]]:
    """40 networks to train on, 320 to validate and to test on, and spies on their rows."""
    corpus = small_zoo(networks=320).corpus()
    (part,) = corpus.train
    parts, spies = {}, []
    for name, count in {"train": 40, "val": 320, "test": 320}.items():
        some = part.networks.subset(slice(count))
        spies.append(OnDisk(some.rows))
        parts[name] = (replace(part, networks=Networks(spies[-1], some.accuracy)),)
    return replace(corpus, **parts), spies


def test_memory_holds_a_batch_and_not_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to the networks, what is read of them at once, and so all made of it, is a batch at most."""
    corpus, (train, val, test) = spied()
    monkeypatch.setattr(batches, "BUFFER_BYTES", 0)
    monkeypatch.setattr(predict_data, "LOOKED_AT", 8)
    monkeypatch.setattr(predict_data, "BLOCK_BYTES", 16 * train.nbytes // len(train))
    plan = config("np", train_sets=("augmented",))
    jobs = predict.plan(plan, {"relu": corpus})
    assert (train.most, val.most, test.most) == (16, 16, 16), "for the fingerprint"
    train.most = val.most = test.most = 0
    run_job(jobs[0])
    assert train.most <= plan.training.batch_size
    assert 0 < val.most <= EVALUATION_BATCH < len(val)
    assert test.most == EVALUATION_BATCH < len(test)
    # The negative twin: what reads all of it is seen.
    groups_of(corpus.test)
    assert test.most == len(test)


def test_a_set_larger_than_memory_is_known_by_the_checksums_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "zoo")
    held, streamed = both(folder)
    known = predict_data.fingerprint(held)
    assert predict_data.fingerprint(streamed) == known, "one that fits is read, wherever it is"
    monkeypatch.setattr(predict_data, "IN_MEMORY_BYTES", 0)
    read = MappedRows.read

    def prints(corpus: Corpus) -> str:
        monkeypatch.setattr(MappedRows, "read", lambda *_: pytest.fail("the networks were read"))
        found = predict_data.fingerprint(corpus)
        monkeypatch.setattr(MappedRows, "read", read)
        return found

    (train,) = streamed.train
    fewer = replace(train, networks=train.networks.subset(slice(1, None)))
    swapped = train.networks.subset([1, 0, *range(2, len(train))])
    reordered = replace(train, networks=Networks(swapped.rows, train.networks.accuracy))
    better = replace(train, networks=Networks(train.networks.rows, train.networks.accuracy + 0.001))
    others = [prints(replace(streamed, train=(part,))) for part in (fewer, reordered, better)]
    weights = np.load(folder / "weights.npy")
    weights[0, 0] += 1
    np.save(folder / "weights.npy", weights)
    with pytest.raises(ZooError, match="another checksum than SHA256SUMS states"):
        both(folder)
    sums = (folder / "SHA256SUMS").read_text().splitlines()
    changed = hashlib.sha256((folder / "weights.npy").read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text("\n".join([f"{changed}  weights.npy", *sums[1:]]) + "\n")
    others.append(prints(both(folder)[1]))
    assert len({prints(streamed), *others}) == 5
    (folder / "SHA256SUMS").unlink()
    assert both(folder)[1].test[0].networks.rows.stated is None
    assert len({predict_data.fingerprint(corpus) for corpus in both(folder)} - {known}) == 1, (
        "read, as nobody states it"
    )


# --- rows ----------------------------------------------------------------------------------------------------------

SPACE = WeightSpace.cnn([2, 3, 4], [(3, 3), (2, 2)], "relu", head=[3])
TEN = 10


def ten(seed: int = 0) -> TensorRows:
    networks = random_networks(SPACE, TEN, generator=torch.Generator().manual_seed(seed))
    return TensorRows({name: t.squeeze(1) for name, t in networks.items()})


KINDS: dict[str, Callable[[Rows, int], Rows]] = {
    "moved": lambda rows, seed: MovedRows(rows, draw_elements(SPACE, TEN, 100.0, seed)),
    "widened": lambda rows, seed: WidenedRows(rows, draw_wider(rows, SPACE, 1.5, seed)),
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
        MovedRows(ten(), draw_elements(SPACE, 9, 10.0, 0))
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


# --- loading -------------------------------------------------------------------------------------------------------


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
    loaded = [load_zoo(folder, in_memory_bytes=limit).train.rows for limit in (size, size - 1)]
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
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(ZooError, match=r"weights\.npy: NaN or infinite weights in row 17"):
        load_zoo(folder)
    (corpus,) = load_generalization(folder, in_memory_bytes=0).values()
    with pytest.raises(ZooError, match=r"weights\.npy: NaN or infinite weights in row 17"):
        predict.plan(config("statnn"), {"relu": corpus})


@pytest.mark.parametrize("write", [lambda f: write_model_zoo(f, 9), lambda f: write_hub(f, "abcdefg")])
def test_networks_in_a_file_each_stay_there(write: Callable[[Path], object], tmp_path: Path) -> None:
    write(tmp_path)
    told: list[tuple[int, int]] = []
    held, streamed = both(tmp_path)
    load_generalization(tmp_path, in_memory_bytes=0, on_progress=lambda *news: told.append(news))
    assert told[-1] == (len(told), len(told)), "all files are looked at"
    assert repr(held.info) == repr(streamed.info)
    assert held.source == streamed.source
    assert fingerprint(held) == fingerprint(streamed)
    index = torch.tensor([2, 0, 3, 2])
    for name, tensor in streamed.train[0].networks.rows.read(index).items():
        assert torch.equal(tensor, held.train[0].networks.tensors[name][index])


def test_fingerprints_of_several_blocks_see_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, streamed = both(written(tmp_path / "zoo"))
    monkeypatch.setattr(predict_data, "BLOCK_BYTES", 7 * 4 * LAYOUT[-1].end)
    assert fingerprint(held) == fingerprint(streamed)
    for number in (0, 9, len(held.test[0]) - 1):
        tensors: dict[str, Tensor] = {name: t.clone() for name, t in held.test[0].networks.tensors.items()}
        tensors["bias.1"][number, 2] += 1e-4
        other = replace(held.test[0], networks=Networks(tensors, held.test[0].networks.accuracy))
        assert fingerprint(replace(held, test=(other,))) != fingerprint(held)


def test_statistics_are_taken_of_networks_from_all_over(monkeypatch: pytest.MonkeyPatch) -> None:
    (part,) = small_zoo(networks=100).corpus().train
    assert looked_at((part,)) == (part,), "all, if they are few"
    one = part.networks.rows.nbytes // len(part)
    for name, value in {"LOOKED_AT": 10, "IN_MEMORY_BYTES": 10 * one}.items():
        with monkeypatch.context() as patch:
            patch.setattr(predict_data, name, value)
            (some,) = looked_at((part,))
            assert torch.equal(some.networks.accuracy, part.networks.accuracy[::10])
            assert [len(p) for p in looked_at((part, part))] == [5, 5]


# --- buffers and blocks ----------------------------------------------------------------------------------------------


class Watched(TensorRows):
    """Networks in a place each, and what was asked for."""

    def __init__(self, places: Tensor) -> None:
        super().__init__({"w": torch.arange(len(places)).float()[:, None].expand(-1, 4).clone()})
        self.at, self.asked = places, []

    @property
    def places(self) -> Tensor:
        return self.at

    def read(self, index: Tensor) -> dict[str, Tensor]:
        self.asked.append(index.tolist())
        return super().read(index)


def identity(tensors: dict[str, Tensor]) -> Tensor:
    return tensors["w"]


@given(
    count=st.integers(1, 60), buffer=st.integers(0, 70), size=st.integers(1, 20), seed=st.integers(0, 1000),
    start=st.integers(0, 5),
)  # fmt: skip
def test_buffers_change_nothing_but_how_often_is_read(
    count: int, buffer: int, size: int, seed: int, start: int
) -> None:
    """Also from the middle of an epoch on, with numbers that occur twice."""
    generator = torch.Generator().manual_seed(seed)
    rows = Watched(torch.randperm(count, generator=generator))
    index = torch.cat([torch.randperm(count, generator=generator), torch.randint(count, (3,), generator=generator)])
    wanted = index.split(size)[start:]
    data = StreamedData(rows, identity, torch.zeros(count), buffer_bytes=16 * buffer)
    found = list(data.read(iter(wanted)))
    assert len(found) == len(wanted)
    for inputs, numbers in zip(found, wanted, strict=True):
        assert torch.equal(inputs[:, 0], numbers.float())
    for asked in rows.asked[1:]:
        assert len(asked) < max(buffer, 1) + size, "a buffer, and the batch that began in the one before"
    if buffer > size:
        in_order = [asked for asked in rows.asked if len(asked) > size]
        assert all(rows.at[asked].diff().min() > 0 for asked in in_order), "in the order of their places"


def test_the_next_buffer_is_read_ahead_and_none_beyond() -> None:
    rows = Watched(torch.arange(100))
    data = StreamedData(rows, identity, torch.zeros(100), buffer_bytes=16 * 20)
    reading = data.read(torch.arange(100).split(5))
    for _ in range(6):
        next(reading)
    reading.close()
    assert [len(asked) for asked in rows.asked] in ([1, 20, 20], [1, 20, 20, 20]), (
        "one to see its size, in use, next, and it may have begun"
    )
    again = data.read(torch.arange(100).split(5))
    assert len(list(again)) == 20


@given(count=st.integers(1, 200), block=st.integers(1, 20), buffered=st.integers(1, 60), seed=st.integers(0, 1000))
def test_blocks_are_shuffled_and_networks_within_a_buffer(count: int, block: int, buffered: int, seed: int) -> None:
    places = torch.randperm(count, generator=torch.Generator().manual_seed(seed + 1))
    order = shuffled_blocks(places, block, buffered, torch.Generator().manual_seed(seed))
    assert sorted(order.tolist()) == list(range(count))
    assert torch.equal(order, shuffled_blocks(places, block, buffered, torch.Generator().manual_seed(seed)))
    together = max(1, buffered // block)
    for some in places.argsort().split(block):
        at = torch.isin(order, some).nonzero()
        assert int(at.max() - at.min()) < together * block, "a block is in one buffer"


def test_a_set_that_fits_into_memory_has_the_order_that_it_has_there(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, targets = Watched(torch.randperm(600)), torch.zeros(600)
    streamed, memory = StreamedData(rows, identity, targets, buffer_bytes=16 * 200), Data(rows.tensors, targets)

    def orders(seed: int) -> list[Tensor]:
        return [data.order(torch.Generator().manual_seed(seed)) for data in (streamed, memory)]

    assert torch.equal(*orders(3))
    monkeypatch.setattr(batches, "IN_MEMORY_BYTES", rows.nbytes - 1)
    monkeypatch.setattr(batches, "BLOCK_BYTES", 16 * 10)
    own, other = orders(3)
    assert not torch.equal(own, other)
    assert not torch.equal(own, orders(4)[0])
    assert sorted(own.tolist()) == list(range(600))
    list(streamed.read(own.split(8)))
    runs = [1 + int((rows.at[torch.tensor(asked)].diff() != 1).sum()) for asked in rows.asked]
    assert max(runs) <= 2 * 20 + 2, "twenty blocks, and at the ends a few batches of the neighbours"
    scattered = 1 + int((rows.at[torch.randperm(600)[:200]].sort()[0].diff() != 1).sum())
    assert scattered > 100, "the negative twin: networks from anywhere"


MIXED = (WeightSpace.mlp([2, 3, 1], "relu"), WeightSpace.mlp([2, 4, 5, 1], "relu"), SPACE)


def mixed_parts(streamed: bool) -> Parts:
    parts = []
    for k, space in enumerate(MIXED):
        networks = random_networks(space, 5 + k, dtype=torch.float32, generator=torch.Generator().manual_seed(k))
        rows: Rows = TensorRows({name: t.squeeze(1) for name, t in networks.items()})
        rows = OnDisk(rows) if streamed else rows
        parts.append(Part(Networks(rows, torch.rand(len(rows))), NetworkInfo(space, "relu")))
    return tuple(parts)


@given(data=st.data(), buffer=st.sampled_from((0, 300, 10**6)))
def test_networks_of_several_architectures_are_streamed(data: st.DataObject, buffer: int) -> None:
    """In any order, whatever a batch has: what a set of statistics is prepared to, without padding."""
    held, streamed = mixed_parts(False), mixed_parts(True)
    info = MixedInfo(tuple(part.info for part in held))
    model = build_model("statnn-set", info, seed=0)
    memory, lazy = prepared(held, model.prepare_groups), prepared(streamed, model.prepare_groups)
    assert isinstance(memory, Data)
    assert isinstance(lazy, StreamedData)
    index = torch.tensor(data.draw(st.permutations(range(len(lazy)))))
    lists = index.split(data.draw(st.integers(1, 9)))
    for numbers, a, b in zip(lists, memory.read(lists), replace(lazy, buffer_bytes=buffer).read(lists), strict=True):
        assert torch.equal(a["counts"], b["counts"]), numbers
        longest = b["tensors"].shape[1]
        assert torch.equal(a["tensors"][:, :longest], b["tensors"])
        assert not a["tensors"][:, longest:].any()


def test_made_targets_are_taken_out_like_tensors() -> None:
    values = torch.rand(7, 2)
    made = Made(7, lambda index: values[index])
    index = torch.tensor([3, 3, 0])
    assert torch.equal(pick({"a": made, "b": values}, index)["a"], values[index])
    assert len(made) == 7
    assert made.to(torch.device("meta")).index_select(0, index).device.type == "meta"
    with pytest.raises(ValueError, match="along dimension 0, not 1"):
        made.index_select(1, index)
    rows = Watched(torch.arange(7))
    part = StreamedData(rows, identity, made).to(torch.device("cpu")).take(index)
    assert torch.equal(part.targets, values[index])
    with pytest.raises(ValueError, match="7 networks and 6 targets"):
        StreamedData(rows, identity, Made(6, lambda index: values[index]))


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
