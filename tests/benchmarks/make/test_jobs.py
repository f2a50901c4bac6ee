"""Sets made part by part: what is missing, and who may interrupt."""

import threading

import pytest
import torch

from nfn_monomial.benchmarks.make.jobs import Tick, make_parts

CPU = torch.device("cpu")


class Store:
    """Parts in a dict; ``begun``: the order in which they were made."""

    def __init__(self, **stored: str) -> None:
        self.parts = {int(number): value for number, value in stored.items()}
        self.begun: list[int] = []

    def read(self, number: int) -> str | None:
        return self.parts.get(number)

    def make(self, number: int, tick: Tick) -> None:
        self.begun.append(number)
        tick(0)
        self.parts[number] = f"part {number}"


def test_missing_parts_are_made_longest_first() -> None:
    store, calls = Store(**{"1": "kept"}), []
    parts, made = make_parts(
        [2, 9, 4, 3], store.read, store.make, device=CPU, workers=1, progress=lambda *news: calls.append(news)
    )
    assert parts == ["part 0", "kept", "part 2", "part 3"]
    assert made == store.begun == [2, 3, 0]
    assert calls == [(9, 18), (13, 18), (16, 18), (18, 18)]
    again, made = make_parts([2, 9, 4, 3], store.read, lambda *_: pytest.fail("all are there"), device=CPU)
    assert (again, made) == (parts, [])


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
