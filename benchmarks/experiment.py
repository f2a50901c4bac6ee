"""What all experiments share: a plan of runs, of which those are done that a results folder does not have.

An experiment is a list of `Job`s. A job states everything that determines its result (`RunSettings`), by which a
finished run is found again, and builds its `Trial` when it is its turn: a model, the data to train, validate and test
on, and how answers are scored. How trials are trained, on which devices, interrupted, resumed and recorded is here and
in `nfn_monomial.benchmarks.training`, for all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.utils import _pytree as pytree

from .runs import Run, RunSettings, RunStore, TestResult, environment
from .training import Data, Epoch, Loss, Metrics, fit, make_fabric, predict

__all__ = ["Finish", "Finished", "Job", "Progress", "Test", "Trainable", "Trial", "run_job", "sweep"]


class Trainable(Protocol):
    """A model as tables show it; see `nfn_monomial.benchmarks.registry.Model` for the attributes."""

    label: str
    invariant_under: str
    sees: str


@dataclass(frozen=True)
class Test:
    """A test set. ``scale``: upper bound of the scales that its networks were moved by, None if they were not."""

    __test__ = False  # not a test case, whatever pytest makes of the name

    name: str
    data: Data
    scale: float | None = None


Finish = Callable[[Mapping[str, Any]], tuple[dict[str, Any], dict[str, Tensor]]]
"""Answers by name of test set -> (what the run's JSON file gets as ``extra``, tensors to keep as artifacts)."""


def _nothing(answers: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return {}, {}


@dataclass(frozen=True)
class Trial:
    """A job in full.

    Attributes:
        model: a freshly initialised ``nn.Module`` with the attributes of `Trainable`.
        train: training data.
        val: validation data; nothing but this selects the epoch.
        tests: makes the test sets one by one, so that only one of them is in memory.
        loss: of a batch.
        metrics: of a whole data set.
        select: the metric that selects the epoch; larger is better.
        finish: what to keep of the answers to the test sets.
    """

    model: Any
    train: Data
    val: Data
    tests: Callable[[], Iterable[Test]]
    loss: Loss
    metrics: Metrics
    select: str
    finish: Finish = _nothing


@dataclass(frozen=True)
class Job:
    """One run to do. ``networks``: numbers of networks for train, val and test. ``trial`` is called when it starts."""

    settings: RunSettings
    networks: dict[str, int]
    trial: Callable[[], Trial]


@dataclass(frozen=True)
class Finished:
    """A run with the parameters of its selected epoch and the tensors to keep beside."""

    run: Run
    state: dict[str, Tensor]
    artifacts: dict[str, Tensor]


@dataclass(frozen=True)
class Progress:
    """Where the experiment stands: ``number`` of ``total`` runs; ``kept`` if it was there already; the last epoch."""

    settings: RunSettings
    number: int
    total: int
    kept: bool = False
    epoch: Epoch | None = None
    run: Run | None = None


def sweep(
    jobs: Sequence[Job], store: RunStore, on_progress: Callable[[Progress], None] = lambda progress: None
) -> list[Run]:
    """Do all jobs that the store does not have; returns all runs, kept and new, in the order of the jobs.

    A run is stored when it is finished.

    Args:
        jobs: what to do.
        store: where finished runs are kept.
        on_progress: called before a run, after each of its epochs and when it is finished.

    Raises:
        ValueError: if a device is not there.
    """
    for config in {job.settings.training.device: job.settings.training for job in jobs}.values():
        make_fabric(config)  # a device that is not there should be found out now, not after minutes
    runs = []
    for number, job in enumerate(jobs, start=1):
        run = store.load(job.settings)
        kept = run is not None
        if run is None:
            on_progress(Progress(job.settings, number, len(jobs)))

            def report(epoch: Epoch, job: Job = job, number: int = number) -> None:
                on_progress(Progress(job.settings, number, len(jobs), epoch=epoch))

            finished = run_job(job, on_epoch=report)
            store.save(finished.run, finished.state, finished.artifacts)
            run = finished.run
        on_progress(Progress(job.settings, number, len(jobs), kept, run=run))
        runs.append(run)
    return runs


def run_job(
    job: Job, *, fabric: Fabric | None = None, on_epoch: Callable[[Epoch], None] = lambda epoch: None
) -> Finished:
    """Train and test; see `sweep`."""
    settings, trial = job.settings, job.trial()
    fabric = fabric or make_fabric(settings.training)
    fitted = fit(
        trial.model, trial.train, trial.val, settings.training,
        loss=trial.loss, metrics=trial.metrics, select=trial.select, seed=settings.seed, fabric=fabric,
        on_epoch=on_epoch,
    )  # fmt: skip
    results, answers = [], {}
    for test in trial.tests():
        data = test.data.to(fabric.device)
        answer = predict(trial.model, data.inputs)
        lost = sum(int((~torch.isfinite(t)).sum()) for t in pytree.tree_leaves(answer))
        results.append(TestResult(test.name, test.scale, dict(trial.metrics(answer, data.targets)), lost))
        answers[test.name] = pytree.tree_map(lambda t: t.cpu(), answer)
    extra, artifacts = trial.finish(answers)
    model: Trainable = trial.model
    run = Run(
        settings,
        label=model.label,
        invariant_under=model.invariant_under,
        sees=model.sees,
        parameters=sum(p.numel() for p in trial.model.parameters()),
        networks=job.networks,
        tests=tuple(results),
        val=fitted.best.metrics,
        best_epoch=fitted.best.number,
        seconds_per_epoch=fitted.seconds_per_epoch,
        step_share=fitted.step_share,
        peak_bytes=fitted.peak_bytes,
        diverged=fitted.diverged,
        has_artifacts=bool(artifacts),
        history=tuple(asdict(epoch) for epoch in fitted.history),
        environment=environment(settings.training.device),
        extra=extra,
    )
    return Finished(run, trial.model.state_dict(), artifacts)
