"""Sets made part by part: what is missing, and who may interrupt."""

import threading

import pytest
import torch

from nfn_monomial.benchmarks.make.jobs import Tick, make_parts, progress_bar

CPU = torch.device("cpu")


class Store:
    """Parts in a dict; ``begun``: the order in which they were made."""

    def __init__(self, **found: str) -> None:
        self.parts = {int(number): value for number, value in found.items()}
        self.begun: list[int] = []

    def read(self, number: int) -> str | None:
        return self.parts.get(number)

    def make(self, number: int, tick: Tick) -> None:
        self.begun.append(number)
        tick(0)
        self.parts[number] = f"part {number}"


def test_missing_parts_are_made_longest_first() -> None:
    store, calls = Store(**{"1": "kept"}), []
    found, made = make_parts(
        [2, 9, 4, 3], store.read, store.make, device=CPU, workers=1, progress=lambda *news: calls.append(news)
    )
    assert found == ["part 0", "kept", "part 2", "part 3"]
    assert made == store.begun == [2, 3, 0]
    assert calls == [(9, 18), (13, 18), (16, 18), (18, 18)]
    again, made = make_parts([2, 9, 4, 3], store.read, lambda *_: pytest.fail("all are there"), device=CPU)
    assert (again, made) == (found, [])


def test_work_within_a_part_is_told_and_counted_once() -> None:
    calls: list[tuple[int, int]] = []
    store = Store()

    def make(number: int, tick: Tick) -> None:
        for units in (1, 0, 2):
            tick(units)
        store.make(number, tick)

    make_parts([5], store.read, make, device=CPU, progress=lambda *news: calls.append(news))
    assert calls == [(0, 5), (1, 5), (3, 5), (5, 5)]


def test_an_interruption_ends_all_workers_at_their_next_step() -> None:
    """Two parts are in work when one of them fails: the other, which would go on for ever, stops."""
    store, both = Store(), threading.Barrier(2, timeout=60)
    stopped: list[int] = []

    def make(number: int, tick: Tick) -> None:
        if number < 2:
            both.wait()
        if number == 0:
            raise KeyboardInterrupt
        try:
            while True:
                tick(0)
        finally:
            stopped.append(number)

    with pytest.raises(KeyboardInterrupt):
        make_parts([2, 2, 1, 1], store.read, make, device=CPU, workers=2)
    assert 1 in stopped
    assert not store.parts


def test_a_part_that_cannot_be_read_back() -> None:
    with pytest.raises(ValueError, match="part 1 was written but cannot be read back: is the disk full"):
        make_parts([1, 1], lambda number: None if number else "part", lambda number, tick: None, device=CPU)


def test_the_number_of_threads_is_restored() -> None:
    before, inside = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        store = Store()

        def make(number: int, tick: Tick) -> None:
            inside.append(torch.get_num_threads())
            store.make(number, tick)

        make_parts([1], store.read, make, device=CPU)
        assert torch.get_num_threads() == 2
        assert inside == [1]
    finally:
        torch.set_num_threads(before)


def test_progress_bar_shows_the_share_that_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with progress_bar("piling up") as progress:
        progress(0, 8)
        progress(2, 8)
    shown = capsys.readouterr().out
    assert "piling up" in shown
    assert "25%" in shown
