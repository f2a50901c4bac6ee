"""What all experiments share: a plan of runs, of which those are done that a results folder does not have.

An experiment is a list of `Job`s. A job states everything that determines its result (`RunSettings`), by which a
finished run is found again. A run is done in three steps, each of which can be called alone:

    trial = job.prepare(job.settings)     model and data, how answers are scored
    trained = train(trial)                a model with the parameters of its best epoch
    finished = test(trained)              its answers to the test sets, scored: a `Run`, and what is kept beside it

`sweep` does so for all jobs; how trials are trained, on which devices, interrupted, resumed and recorded is here and
in `nfn_monomial.benchmarks.train.loop`, for all experiments alike.

Where there are several processes (see `train.devices`), each does all that is here, with its share
of every batch. The main one alone looks up and stores runs, and reports; all return its runs.
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
    "Finished",
    "Job",
    "OnProgress",
    "Test",
    "Trained",
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
"""Answers by name of test set -> (what the run gets as ``extra``, tensors to keep as artifacts)."""


def _nothing(answers: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return {}, {}


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
        finish: what to keep of the answers to the test sets.
        predictor: what it takes to build and apply the model again, as JSON has it.
    """

    settings: RunSettings
    model: Any
    train: Data
    val: Data
    tests: Callable[[], Iterable[Test]]
    loss: Loss
    metrics: Metrics
    select: str
    finish: Finish = _nothing
    predictor: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One run to do. ``prepare`` is called with the settings when it is its turn."""

    settings: RunSettings
    prepare: Callable[[RunSettings], Trial]


@dataclass(frozen=True)
class Trained:
    """A trial whose model has the parameters of its best epoch, on the device of ``fabric``."""

    trial: Trial
    fitted: FitResult
    fabric: Fabric


@dataclass(frozen=True)
class Finished:
    """A run with the parameters of its selected epoch, the tensors to keep beside, and `Trial.predictor`."""

    run: Run
    state: dict[str, Tensor]
    artifacts: dict[str, Tensor]
    predictor: Mapping[str, Any]


OnProgress = Callable[[News], None]
"""Called before a run, after each of its epochs and when it is finished; in the main process."""


def _ignore(news: object) -> None:
    pass


def sweep(jobs: Sequence[Job], store: RunStore, on_progress: OnProgress = _ignore) -> list[Run]:
    """Do all jobs that the store does not have; returns all runs, kept and new, in the order of the jobs.

    A run is stored when it is finished; one that is cut off before is continued where it was, by the next call.

    Args:
        jobs: what to do.
        store: where finished runs are kept.
        on_progress: see `OnProgress`.

    Raises:
        ValueError: if a device is not there.
        ImportError: if epochs shall be logged for TensorBoard, but it is not installed.
    """
    # A device that is not there should be found out now, not after minutes.
    fabrics = {_hardware(config): make_fabric(config) for config in (job.settings.training for job in jobs)}
    runs: list[Run] = []
    for job in jobs:
        settings, fabric = job.settings, fabrics[_hardware(job.settings.training)]
        title = f"{settings.subject} {settings.model}, {settings.train_set}, seed {settings.seed}"
        tell = _teller(on_progress if fabric.is_global_zero else _ignore, title, len(jobs))
        run = fabric.broadcast(store.load(settings) if fabric.is_global_zero else None)
        how = "kept"
        if run is not None and fabric.is_global_zero:
            store.clear(settings)  # which a call that was killed after it had saved the run has left
        if run is None:
            tell(len(runs))
            with threads(settings.training.threads):
                run = _do(job, store, fabric, len(runs), tell)
            how = f"{sum(epoch['seconds'] for epoch in run.history):.0f} s"
        runs.append(run)
        tell(len(runs), f"{len(runs)}/{len(jobs)} {title} ({how}): {_result(run)}")
    return runs


def _teller(on_progress: OnProgress, title: str, total: int) -> Callable[..., None]:
    return lambda done, line="": on_progress(News(title, done, total, line))


def _result(run: Run) -> str:
    """What is said of a finished run: its first metric on the first and the last test sets."""
    tests = [(t.name, t.metrics) for t in (*run.tests[:1], *run.tests[1:][-2:])] or [("validation", run.val)]
    metric = next(iter(tests[0][1]))
    return f"{metric} {', '.join(f'{name} {metrics[metric]:.3f}' for name, metrics in tests)}"


def _do(job: Job, store: RunStore, fabric: Fabric, done: int, tell: Callable[[float], None]) -> Run:
    """Do and store a run, before which so many are done."""
    settings = job.settings
    log = _tensorboard(store.folder, settings) if settings.training.tensorboard else _ignore

    def report(epoch: Epoch) -> None:
        log(epoch)
        tell(done + epoch.number / settings.training.epochs)

    finished = run_job(job, fabric=fabric, on_epoch=report, checkpoint=store.partial(settings))
    if fabric.is_global_zero:
        store.save(finished.run, finished.state, finished.artifacts, finished.predictor)
    return fabric.broadcast(finished.run)


def _hardware(config: TrainConfig) -> tuple[object, ...]:
    """What `make_fabric` looks at."""
    return config.device, config.devices, config.precision


def _tensorboard(folder: Path, settings: RunSettings) -> Callable[[Epoch], None]:
    """Writes epochs to ``tensorboard/<name of the run>`` in this folder, in the main process."""
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


def run_job(job: Job, **how: Any) -> Finished:
    """All three steps; keyword arguments are those of `train`."""
    return test(train(job.prepare(job.settings), **how))


def train(
    trial: Trial,
    *,
    fabric: Fabric | None = None,
    on_epoch: Callable[[Epoch], None] = _ignore,
    checkpoint: Path | None = None,
) -> Trained:
    """Train the model of a trial in place; ``fabric``: where, by default as its settings say; others as `fit`."""
    settings = trial.settings
    fabric = fabric or make_fabric(settings.training)
    fitted = fit(
        trial.model, trial.train, trial.val, settings.training,
        loss=trial.loss, metrics=trial.metrics, select=trial.select, seed=settings.seed, fabric=fabric,
        on_epoch=on_epoch, checkpoint=checkpoint,
    )  # fmt: skip
    return Trained(trial, fitted, fabric)


def test(trained: Trained) -> Finished:
    """Ask the model of a trained trial about all test sets."""
    trial, fitted, fabric = trained.trial, trained.fitted, trained.fabric
    settings, networks = trial.settings, {"train": len(trial.train), "val": len(trial.val)}
    results, answers = [], {}
    for found in trial.tests():
        networks.setdefault("test", len(found.data))
        data = found.data.to(fabric.device)
        answer = predict(trial.model, data, fabric)
        lost = sum(int((~torch.isfinite(t)).sum()) for t in pytree.tree_leaves(answer))
        results.append(TestResult(found.name, found.scale, dict(trial.metrics(answer, data.targets)), lost))
        answers[found.name] = pytree.tree_map(lambda t: t.cpu(), answer)
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
    return Finished(run, trial.model.state_dict(), artifacts, trial.predictor)


test.__test__ = False  # type: ignore[attr-defined]  # not a test case, whatever pytest makes of the name
