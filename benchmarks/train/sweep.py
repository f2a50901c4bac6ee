"""A plan of runs, of which those are done that a results folder does not have; all experiments share it.

An experiment is a list of `Job`s. A job states everything that determines its result (`RunSettings`), by which a
finished run is found again. A run is done in three steps, each of which can be called alone:

    trial = job.prepare(job.settings)       model and data, how answers are scored
    fitted = train(trial)                   the model has the parameters of its best epoch
    run, artifacts = test(trial, fitted, fabric)    its answers to the test sets, scored, and tensors to keep

`run_job` does the three and stores the run; `sweep` does so for all jobs. How trials are trained, on which devices,
interrupted, resumed and recorded is here and in `nfn_monomial.benchmarks.train.loop`, for all experiments alike.

If there are several processes (see `train.devices`), each does all that is here, with its share of every batch. Only
the main one looks up runs, stores and reports them; all return its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers.tensorboard import TensorBoardLogger
from torch import Tensor
from torch.utils import _pytree as pytree

from nfn_monomial.benchmarks.data.batches import Data
from nfn_monomial.benchmarks.settings.register import News
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.errors import MissingExtraError

from .devices import make_fabric, threads
from .loop import Epoch, FitResult, Loss, Metrics, fit, predict
from .runs import Run, RunSettings, RunStore, TestResult, environment

__all__ = [
    "Finish",
    "Job",
    "OnProgress",
    "Outcome",
    "Test",
    "Trial",
    "run_job",
    "sweep",
    "test",
    "train",
]


@dataclass(frozen=True)
class Test:
    """A test set. ``scale``: upper bound of the scales that its networks were moved by, None if they were not."""

    __test__ = False  # not a test case, whatever pytest makes of the name

    name: str
    data: Data
    scale: float | None = None


Finish = Callable[[Mapping[str, Any]], tuple[dict[str, Any], dict[str, Tensor]]]
"""Answers by name of test set -> (the run's ``extra``, tensors to keep as artifacts)."""
Outcome = Callable[[Any, Tensor], dict[str, Tensor]]
"""Answers to a test set and its targets -> ``answers (N,)``, and ``true (N,)`` if these are predictions of it. They are
kept as artifacts, by which runs are compared network by network: see `nfn_monomial.benchmarks.report.intervals`."""


@dataclass(frozen=True)
class Trial:
    """A job in full.

    Attributes:
        settings: of the job.
        model: a freshly initialised ``nn.Module`` that has ``label``, ``invariant_under`` and ``sees``,
            see `nfn_monomial.tools.predictors.models.Model`.
        train: training data.
        val: validation data; nothing but this selects the epoch.
        tests: makes the test sets one by one, so that only one of them is in memory; the first is that of the networks
            as they are. None, where a model is to be chosen first.
        loss: of a batch.
        metrics: of a whole data set.
        select: the metric that selects the epoch; larger is better.
        finish: picks results and tensors to keep from the answers to the test sets.
        outcome: reduces the answers to a test set to what is kept of each network, see `Outcome`.
        predictor: all that is needed to build and apply the model again, as JSON has it.
    """

    settings: RunSettings
    model: Any
    train: Data
    val: Data
    tests: Callable[[], Iterable[Test]]
    loss: Loss
    metrics: Metrics
    select: str
    finish: Finish = lambda answers: ({}, {})
    outcome: Outcome | None = None
    predictor: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One run to do. ``prepare`` is called with the settings when it is its turn."""

    settings: RunSettings
    prepare: Callable[[RunSettings], Trial]


OnProgress = Callable[[News], None]
"""Called before a run, after each of its epochs and when it is finished; in the main process."""


def _ignore(news: object) -> None:
    pass


def sweep(jobs: Sequence[Job], store: RunStore, on_progress: OnProgress = _ignore) -> list[Run]:
    """Does all jobs that the store does not have; returns all runs, kept and new, in the order of the jobs.

    A run is stored when it is finished; one that is cut off before is continued where it was, by the next call.

    Args:
        jobs: the runs.
        store: where finished runs are kept.
        on_progress: see `OnProgress`.

    Raises:
        ValueError: if a device is not there.
        ImportError: if epochs shall be logged for TensorBoard, but it is not installed.
    """
    # A missing device is an error now, not after minutes.
    fabrics = {_hardware(config): make_fabric(config) for config in (job.settings.training for job in jobs)}

    def load_or_run(number: int, job: Job) -> Run:
        settings, fabric = job.settings, fabrics[_hardware(job.settings.training)]
        title = f"{settings.subject} {settings.model}, {settings.trained_on}, seed {settings.seed}"
        tell = on_progress if fabric.is_global_zero else _ignore
        run: Run | None = fabric.broadcast(store.load(settings) if fabric.is_global_zero else None)
        how = "kept"
        if run is None:
            tell(News(title, number, len(jobs)))
            epochs = settings.training.epochs
            run = run_job(
                job, store, fabric=fabric,
                on_epoch=lambda epoch: tell(News(title, number + epoch.number / epochs, len(jobs))),
            )  # fmt: skip
            how = f"{sum(epoch['seconds'] for epoch in run.history):.0f} s"
        elif fabric.is_global_zero:
            store.clear(settings)  # a call that was killed after it had saved the run may have left its training
        # The line names the first metric on the first and on the last test sets.
        tests = [(t.name, t.metrics) for t in (*run.tests[:1], *run.tests[1:][-2:])] or [("validation", run.val)]
        metric = next(iter(tests[0][1]))
        scores = ", ".join(f"{name} {metrics[metric]:.3f}" for name, metrics in tests)
        line = f"{number + 1}/{len(jobs)} {title} ({how}): {metric} {scores}"
        tell(News(title, number + 1, len(jobs), line))
        return run

    return [load_or_run(number, job) for number, job in enumerate(jobs)]


def _hardware(config: TrainConfig) -> tuple[object, ...]:
    """Returns the settings that `make_fabric` reads."""
    return config.device, config.devices, config.precision


def run_job(
    job: Job, store: RunStore, *, fabric: Fabric | None = None, on_epoch: Callable[[Epoch], None] = _ignore
) -> Run:
    """Does all three steps of a run, and stores it; arguments as of `train`."""
    settings = job.settings
    fabric = fabric or make_fabric(settings.training)
    log = _tensorboard(store.folder, settings) if settings.training.tensorboard else _ignore

    def report(epoch: Epoch) -> None:
        log(epoch)
        on_epoch(epoch)

    with threads(settings.training.threads):
        trial = job.prepare(settings)
        fitted = train(trial, fabric=fabric, on_epoch=report, checkpoint=store.partial(settings))
        run, artifacts = test(trial, fitted, fabric)
        if fabric.is_global_zero:
            store.save(run, trial.model.state_dict(), artifacts, trial.predictor)
        return fabric.broadcast(run)


def _tensorboard(folder: Path, settings: RunSettings) -> Callable[[Epoch], None]:
    """Returns a function that writes epochs to ``tensorboard/<name of the run>`` in this folder."""
    try:
        logger = TensorBoardLogger(folder / "tensorboard", settings.name, version="")
    except ModuleNotFoundError:
        raise MissingExtraError("--tensorboard needs the extra: pip install nfn-monomial[tensorboard]") from None

    def log(epoch: Epoch) -> None:
        validation = {f"validation/{name}": value for name, value in epoch.metrics.items()}
        numbers = {"train/loss": epoch.train_loss, "train/seconds": epoch.seconds, **validation}
        logger.log_metrics(numbers, step=epoch.number)
        logger.save()

    return log


def train(
    trial: Trial,
    *,
    fabric: Fabric | None = None,
    on_epoch: Callable[[Epoch], None] = _ignore,
    checkpoint: Path | None = None,
) -> FitResult:
    """Trains the model of a trial in place; ``fabric``: where, by default as its settings say; others as `fit`."""
    return fit(
        trial.model, trial.train, trial.val, trial.settings.training,
        loss=trial.loss, metrics=trial.metrics, select=trial.select, seed=trial.settings.seed, fabric=fabric,
        on_epoch=on_epoch, checkpoint=checkpoint,
    )  # fmt: skip


def test(trial: Trial, fitted: FitResult, fabric: Fabric | None) -> tuple[Run, dict[str, Tensor]]:
    """Asks the model of a trained trial about all test sets; returns the run and the tensors to keep beside it."""
    settings, networks = trial.settings, {"train": len(trial.train), "val": len(trial.val)}
    fabric = fabric or make_fabric(settings.training)
    results, answers, outcomes = [], {}, dict[str, Tensor]()
    for test_set in trial.tests():
        networks.setdefault("test", len(test_set.data))
        data = test_set.data.to(fabric.device)
        answer = predict(trial.model, data, fabric)
        lost = sum(int((~torch.isfinite(t)).sum()) for t in pytree.tree_leaves(answer))
        results.append(TestResult(test_set.name, test_set.scale, dict(trial.metrics(answer, data.targets)), lost))
        if trial.outcome is not None:
            kept = trial.outcome(answer, data.targets)
            outcomes |= {f"{test_set.name}: {what}": t.cpu().clone() for what, t in kept.items()}
        answers[test_set.name] = pytree.tree_map(lambda t: t.cpu(), answer)
    extra, artifacts = trial.finish(answers)
    model = trial.model
    run = Run(
        settings,
        label=model.label,
        invariant_under=model.invariant_under,
        sees=model.sees,
        parameters=sum(p.numel() for p in model.parameters()),
        networks=networks,
        tests=tuple(results),
        val=fitted.best.metrics,
        best_epoch=fitted.best.number,
        seconds_per_epoch=fitted.seconds_per_epoch,
        step_share=fitted.step_share,
        peak_bytes=fitted.peak_bytes,
        diverged=fitted.diverged,
        history=tuple(asdict(epoch) for epoch in fitted.history),
        environment={**environment(settings.training.device), "processes": fabric.world_size},
        extra=extra,
    )
    return run, {**artifacts, **outcomes}


test.__test__ = False  # type: ignore[attr-defined]  # not a test case, whatever pytest makes of the name
