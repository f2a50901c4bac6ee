"""Seeds, and what makes a device repeat itself."""

import pytest
import torch

from nfn_monomial.benchmarks.train import seeds as determinism


def test_a_gpu_is_deterministic_within_and_settings_are_given_back() -> None:
    def now() -> tuple[object, ...]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    before = now()
    within = []

    def interrupted() -> None:
        with determinism._deterministic(torch.device("cuda", 0)):
            within.append(now())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert within == [(True, True)]
    assert now() == before
    with determinism._deterministic(torch.device("cpu")):
        assert now() == before, "a CPU needs no switch"
