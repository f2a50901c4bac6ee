"""Finished runs that nobody trained, for tests of what is made of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.runs import Run, RunSettings, TestResult

SECONDS = ("seconds", "validation_seconds")


def made_up_run(
    model: str = "np",
    seed: int = 0,
    tests: Mapping[str, Mapping[str, float]] | Sequence[TestResult] = (),
    *,
    subject: str = "relu",
    train_set: str = "original",
    options: Mapping[str, Any] | None = None,
    **changed: Any,
) -> Run:
    """A run; ``tests``: name -> metrics, by default one with accuracy 0.5."""
    if isinstance(tests, Mapping):
        tests = [TestResult(name, None, dict(metrics), 0) for name, metrics in tests.items()]
    run = Run(
        RunSettings("x", subject, model, train_set, seed, dict(options or {}), "bce", TrainConfig(3), "f00", "0", 1),
        label=model.upper(),
        invariant_under="group",
        sees="weights",
        parameters=12_345,
        networks={"train": 5, "val": 6, "test": 7},
        tests=tuple(tests) or (TestResult("original", None, {"accuracy": 0.5}, 0),),
        val={},
        best_epoch=2,
        seconds_per_epoch=1.0 + seed,
        step_share=0.9,
        peak_bytes=(3 + seed) * 2**20,
        diverged=False,
        history=tuple(
            {"number": n, "train_loss": 1 / n, "metrics": {"accuracy": n / 4}} | dict.fromkeys(SECONDS, 1.0)
            for n in (1, 2, 3)
        ),
        environment={"cores": 2},
    )
    return replace(run, **changed)
