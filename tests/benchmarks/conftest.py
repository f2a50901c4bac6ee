"""Fixtures of all tests of experiments."""

from collections.abc import Callable

import pytest


@pytest.fixture(autouse=True)
def _memory_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes a profiler; the step that it would measure is done."""

    def done(step: Callable[[], object], *_: object) -> int:
        step()
        return 2**20

    monkeypatch.setattr("nfn_monomial.benchmarks.train.loop.step_memory", done)
