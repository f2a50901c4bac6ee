"""Streamed sets: read in buffers, in the order of blocks, whatever a batch has of them."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from on_disk import OnDisk
from streamed_zoos import SPACE
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data import batches
from nfn_monomial.benchmarks.data.batches import Data, StreamedData, prepared, shuffled_blocks
from nfn_monomial.benchmarks.data.networks import Networks, Part, Parts
from nfn_monomial.benchmarks.data.rows import Rows, TensorRows
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.predictors.models import MixedInfo, NetworkInfo, build_model


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
