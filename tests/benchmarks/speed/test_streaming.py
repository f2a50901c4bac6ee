"""The benchmarks of streaming and of processes, small and real."""

import itertools
import mmap
from pathlib import Path

import pytest
import torch

from nfn_monomial.benchmarks.settings.measurements import ProcessesConfig, StreamingConfig
from nfn_monomial.benchmarks.speed import streaming
from nfn_monomial.benchmarks.speed.processes import ProcessTiming, measure_processes, processes_report
from nfn_monomial.benchmarks.speed.streaming import (
    GIB,
    Reading,
    Streaming,
    StreamTiming,
    made_up_zoo,
    measure_streaming,
    streaming_report,
)

TINY = StreamingConfig(gib=2 * 2**20 / GIB, memory_gib=2**20 / GIB, models=("stats",), passes=2, seconds=0.2)


def test_the_zoo_is_there_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "CHUNK", 4 * 4970 * 30)
    path = tmp_path / "new" / "networks.npy"
    with made_up_zoo(path, 4 * 4970 * 100) as rows:
        assert len(rows) == 100
        assert path.stat().st_size == rows.nbytes + 128, "with the header of the format"
        read = rows.read_all()["bias.0"]
        assert torch.equal(read[:10], read[90:]), "thirty networks again and again"
        assert len(read.unique(dim=0)) == 30
    assert not path.exists()
    with pytest.raises(KeyboardInterrupt), made_up_zoo(path, 1e6):
        raise KeyboardInterrupt
    assert not path.exists()
    with pytest.raises(ValueError, match=r"GiB free, .* are needed: give a smaller gib"), made_up_zoo(path, 1e18):
        pass


def test_a_small_zoo_is_measured(tmp_path: Path) -> None:
    told: list[str] = []
    found = measure_streaming(TINY, tmp_path, told.append)
    assert not list(tmp_path.iterdir())
    assert told[1] == "stats, preparing what stays in memory"
    assert told[2:6] == [f"stats, {kind}, pass {n} of 2" for n in (1, 2) for kind in ("memory", "streamed")]
    (timing,) = found.timings
    assert min(timing.memory, timing.prepared, timing.streamed, found.reading.seconds) > 0
    assert found.reading.networks == 2 * 2**20 // (4 * 4970)
    assert len(streaming_report(found).tables) == 1


def test_a_pass_goes_on_where_the_last_one_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[list[int]]] = []

    def one_step(data: object, batches: list[torch.Tensor], *_: object) -> tuple[float, int]:
        asked.append([batch.tolist() for batch in batches])
        return 1.0, 1

    monkeypatch.setattr(streaming, "_pass", one_step)
    measure_streaming(TINY, tmp_path)
    first, second = asked[1::2]
    assert second == first[1:] + first[:1]
    assert sorted(itertools.chain.from_iterable(first)) == list(range(105))


TIMINGS = [StreamTiming("stats", 1000.0, 70.0, 850.0, 5 << 20), StreamTiming("np", 10.0, 0.0, 20.0, 1 << 20)]


def test_report_of_streaming() -> None:
    found = Streaming(Reading(4000, 2 * GIB, 4.0, 3 << 20), TIMINGS, TINY)
    (table,) = streaming_report(found).tables
    assert table.cells == (
        ("stats", "1,000", "70", "850", "0.85", "5"), ("np", "10", "every pass", "20", "2.00", "1"),
    )  # fmt: skip
    assert (
        "4,000 networks in an epoch's order without a model: 1,000 a second, 0.50 GiB/s, grown 3 MiB" in table.notes[0]
    )


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux says how much memory there was")
def test_growth_is_what_was_taken() -> None:
    with streaming._growth() as grown:
        with mmap.mmap(-1, 32 << 20) as taken:  # pages that nothing had before
            for _ in range(32):
                taken.write(b"1" * (1 << 20))
        assert 30 << 20 < grown() < 100 << 20
    with streaming._growth() as grown:
        assert grown() < 8 << 20


@pytest.mark.slow
def test_processes_train_by_turns() -> None:
    told: list[tuple[int, int]] = []
    config = ProcessesConfig(("stats",), (1, 2), batch_sizes=(4,), steps=2, epochs=1, rounds=1)
    found = measure_processes(config, lambda *done: told.append(done))
    assert told == [(1, 2), (2, 2)]
    assert [(t.batch_size, t.processes, len(t.seconds)) for t in found] == [(4, 1, 1), (4, 2, 1)]
    assert all(t.median > 0 for t in found)


@pytest.mark.slow
def test_an_error_in_a_process_is_told() -> None:
    with pytest.raises(ValueError, match="nothing in 1 processes ended with 1 and said: "):
        measure_processes(ProcessesConfig(("nothing",), (1,), batch_sizes=(4,), steps=2, rounds=1))


def test_report_of_processes() -> None:
    """Shares are of the same batch size in the first number of processes."""
    timings = [
        ProcessTiming("stats", size, count, tuple(scale * x for x in seconds))
        for size, scale in ((8, 1.0), (16, 2.0))
        for count, seconds in ((1, (4.0, 5.0, 3.0)), (2, (2.0, 2.5, 2.4)))
    ]
    (table,) = processes_report(timings, ProcessesConfig()).tables
    assert table.cells == (
        ("stats", "8", "1", "4.00", "3.00", "1.00", "1.00"), ("stats", "8", "2", "2.40", "2.00", "0.60", "0.50"),
        ("stats", "16", "1", "8.00", "6.00", "1.00", "1.00"), ("stats", "16", "2", "4.80", "4.00", "0.60", "0.50"),
    )  # fmt: skip
