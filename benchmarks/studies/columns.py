"""Learning a column of a table of results from checkpoints of one architecture, and leaving one predictor.

Every model is trained on the same networks, and its best epoch selected on the validation networks. There the best of
all models is chosen, too. The test networks are asked about once, by what was chosen, and by the baselines: STATNN,
and what says the same of all networks.

**Targets.** Numbers of any size are learned as the share of the training networks that have less (`Quantiles`), by
binary cross-entropy, and answers are mapped back to the column's own units; they stay within what the training networks
have. ``ranking`` adds the logistic loss of pairs. Classes are learned by cross-entropy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import kendalltau
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from nfn_monomial.benchmarks.data.batches import prepared
from nfn_monomial.benchmarks.data.formats.own_checkpoints import OwnCheckpoints
from nfn_monomial.benchmarks.data.networks import accuracies, fingerprint, groups_of
from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.experiments.predict import ColumnConfig
from nfn_monomial.benchmarks.models.catalogue import require_task, training_of
from nfn_monomial.benchmarks.report.tables import record_of
from nfn_monomial.benchmarks.train.runs import Run, RunSettings, RunStore, TestResult
from nfn_monomial.benchmarks.train.sweep import Job, OnProgress, Trial, sweep
from nfn_monomial.errors import InvalidValueError, MonomialError
from nfn_monomial.tools import Predictor
from nfn_monomial.tools.definitions.define import Definition
from nfn_monomial.tools.files.sealed import read_sealed
from nfn_monomial.tools.predictors.models import NetworkInfo, build_model, model_class
from nfn_monomial.tools.predictors.quantiles import Quantiles
from nfn_monomial.tools.predictors.tasks import Column
from nfn_monomial.tools.report import Report, Table, panels
from nfn_monomial.tools.store import code_of

from . import classify
from .predict import objective

__all__ = ["PREDICTOR", "Found", "columns_report", "learn_column", "models_for"]

VERSION = 1  # of what is computed here: raised by whoever changes results, so that these are made again
PREDICTOR = "predictor.safetensors"
BASELINE, CONSTANT = "statnn", "constant"
LOSSES = {"regression": "quantile", "ranking": "rank", "classification": "cross-entropy"}
SHOWN = {"regression": ("mae", "r2", "tau"), "ranking": ("tau", "r2", "mae"), "classification": ("accuracy", "loss")}
WANTED = 3  # models, besides the baseline
SUITED = ("stats", "probes-stats", "combined", "message-passing-stats", "balanced-statnn", "message-passing")
MOST = {"probes-stats": 500_000, "combined": 20_000, "message-passing-stats": 20_000, "message-passing": 20_000}
"""Weights of networks that take no longer than minutes."""
MOST_WORK = 10**7
"""Operations of a network on one input, of networks that are run on 64 inputs in every epoch, for the same."""


class Tested(NamedTuple):
    """What one model says of the test networks: numbers ``(N,)`` or probabilities ``(N, classes)``."""

    answers: Tensor
    metrics: dict[str, float]


@dataclass(frozen=True)
class Found:
    """All runs, the chosen one, and, by name of the run, what it and the baselines say of the test networks.

    ``constant``: the same of what says one thing of all networks, and its metrics on the validation networks.
    """

    own: OwnCheckpoints
    runs: Sequence[Run]
    chosen: Run
    tests: Mapping[str, Tested]
    constant: tuple[Tested, dict[str, float]]


def models_for(info: NetworkInfo) -> tuple[tuple[str, ...], list[str]]:
    """Three models that suit networks, and the baseline; in words, why not others."""
    weights = sum(map(math.prod, info.space.shapes().values()))
    classes, work = _run(info)
    names: list[str] = []
    said: list[str] = []
    for name in SUITED:
        sees = model_class(name).sees
        if len(names) == WANTED:
            break
        if sees == "functions" and classes < 2:
            said.append(f"{name} was left out: it reads logits of classes, which these networks do not give")
        elif sees == "functions" and work > MOST_WORK:
            shape = "x".join(map(str, info.input_shape or ()))
            said.append(
                f"{name} was left out: it takes long for networks of {work:,} operations on an input {shape}; "
                "--models has it trained, and a smaller --input makes it faster"
            )
        elif weights > MOST.get(name, math.inf):
            said.append(f"{name} was left out: it takes long for {weights} weights; --models has it trained")
        else:
            try:
                build_model(name, info, seed=0)
                names.append(name)
            except MonomialError as error:
                said.append(f"{name} was left out: {error}")
    return (*names, BASELINE), said


def _run(info: NetworkInfo) -> tuple[int, int]:
    """How many logits a network gives on an input, 0 if it does not run on one; and in how many operations."""
    if info.template is None or info.input_shape is None:
        return 0, 0
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.no_grad(), torch.random.fork_rng(devices=[]):
            out = info.template().eval()(torch.zeros(1, *info.input_shape))
    except Exception:  # a user's code
        return 0, 0
    return (out.shape[1] if isinstance(out, Tensor) and out.ndim == 2 else 0), counter.get_total_flops()


def learn_column(
    own: OwnCheckpoints,
    definition: Definition,
    config: ColumnConfig,
    store: RunStore,
    on_progress: OnProgress = lambda progress: None,
    *,
    force: bool = False,
) -> Found:
    """Do all runs that the store does not have, choose one, test it, and write `PREDICTOR` into the store's folder.

    Raises:
        ValueError: if a model cannot read the networks, no file could hold its predictor, or, without ``force``, the
            folder has a predictor of other networks or of another column.
    """
    require_task((*config.models, BASELINE), "generalization")
    (train,), (test,), truth = own.corpus.train, own.corpus.test, accuracies(own.corpus.test)
    quantiles = None if own.classes else Quantiles.of(accuracies(own.corpus.train))
    task = Column(train.info, quantiles, own.asked.column, own.unit, own.classes)
    data = fingerprint(own.corpus)
    models = dict.fromkeys((*config.models, BASELINE))
    jobs = [
        Job(_settings(own, config, model, seed, data), partial(_prepare, own, task))
        for seed in config.seeds
        for model in models
    ]
    for model in models:
        build_model(model, train.info, seed=0, out_features=max(1, len(own.classes)))
        written = Column.of(train.info, model, quantiles, column=own.asked.column, unit=own.unit, classes=own.classes)
        if "unusable" in written:
            raise InvalidValueError(f"{model}: {written['unusable']}")
    place, about = store.folder / PREDICTOR, [data, own.asked.column, own.task]
    if place.exists() and not force and read_sealed(place)[1].get("about") != about:
        raise InvalidValueError(f"{place} was learned from others: give another folder by --out, or --force")
    runs = sweep(jobs, store, on_progress)
    chosen = max(runs, key=lambda run: run.val["selection"])
    baseline = max((r for r in runs if r.settings.model == BASELINE), key=lambda run: run.val["selection"])
    tests: dict[str, Tested] = {}
    for run in (baseline, chosen):
        predictor = Predictor.load(store.predictor_file(run.settings), definition)
        answers = predictor({name: t.unsqueeze(1) for name, t in test.networks.tensors.items()})
        tests[run.settings.name] = Tested(answers, metrics_of(answers, truth, own.task))
    lost = int((~answers.isfinite()).sum())
    result = TestResult("original", None, tests[chosen.settings.name].metrics, lost)
    record = {
        **predictor.record,
        "about": about,
        "tests": [asdict(result)],
        "networks": {**chosen.networks, "test": len(test)},
    }
    replace(predictor, record=record).save(place)
    (_, on_val), constant = (_constant(own, accuracies(parts)) for parts in (own.corpus.val, own.corpus.test))
    return Found(own, runs, chosen, tests, (constant, on_val))


def _settings(own: OwnCheckpoints, config: ColumnConfig, model: str, seed: int, data: str) -> RunSettings:
    return RunSettings(
        experiment="train",
        subject=re.sub(r"[^\w.-]+", "-", own.corpus.activation),
        model=model,
        train_set="original",
        seed=seed,
        options={"column": own.asked.column, "task": own.task},
        data=data,
        code=code_of(model_class(model)),
        version=VERSION,
        **training_of(model, config.training, LOSSES[own.task]),
    )


def _prepare(own: OwnCheckpoints, task: Column, settings: RunSettings) -> Trial:
    """Model and data of one run."""
    (part,) = own.corpus.train
    model = build_model(
        settings.model, part.info, seed=derive_seed(settings.seed, "model"), out_features=max(1, len(own.classes))
    )
    model.fit_inputs(model.prepare_groups(groups_of(own.corpus.train)))
    train, val = (prepared(parts, model.prepare_groups) for parts in (own.corpus.train, own.corpus.val))
    return Trial(
        settings, model, train, val, tests=lambda: (),
        loss=objective(settings.loss, task.quantiles) if task.quantiles else cross_entropy,
        metrics=lambda logits, targets: metrics_of(task.read(logits), targets, own.task), select="selection",
        predictor=task.written(),
    )  # fmt: skip


def metrics_of(answers: Tensor, targets: Tensor, task: str) -> dict[str, float]:
    """How good numbers ``(N,)`` in the column's units are, or probabilities ``(N, classes)``; all are finite.

    ``selection``, of which more is better, chooses epochs and models: for regression the mean absolute error, for
    ranking Kendall's tau-b, for classes the cross-entropy, which depends less on single networks than the accuracy.
    """
    if task == "classification":
        scores = classify.scores(answers.double().log(), targets)
        return {**scores, "selection": -scores["loss"]}
    found, true = answers.detach().cpu().double().numpy(), targets.detach().cpu().double().numpy()
    found = np.nan_to_num(found, nan=true.min())
    tau = float(kendalltau(found, true, method="asymptotic").statistic) if np.ptp(found) > 0 else 0.0
    r2 = float(1 - np.square(true - found).sum() / np.square(true - true.mean()).sum())
    mae = float(np.abs(true - found).mean())
    ordered = {name: {"mae": mae, "r2": r2, "tau": tau}[name] for name in SHOWN[task]}
    return {**ordered, "selection": tau if task == "ranking" else -mae}


def _constant(own: OwnCheckpoints, truth: Tensor) -> Tested:
    """What one who knows the training networks' targets alone says of others, whose targets are these."""
    targets = accuracies(own.corpus.train)
    shares = targets.bincount(minlength=len(own.classes)) / len(targets) if own.classes else targets.mean()
    answers = shares.expand(len(truth), *shares.shape)
    return Tested(answers, metrics_of(answers, truth, own.task))


# -- table and figure --------------------------------------------------------------------------------------------------


def columns_report(found: Found) -> Report:
    """What each model reached on validation, and the chosen one and the baselines on test; figure and numbers."""
    own, chosen = found.own, found.chosen.settings.model
    names = SHOWN[own.task]
    (constant, on_val), tests = found.constant, {name: tested.metrics for name, tested in found.tests.items()}
    rows: list[dict[str, Any]] = [
        {
            "model": run.settings.model,
            "seed": run.settings.seed,
            "chosen": run is found.chosen,
            "validation": run.val,
            "test": tests.get(run.settings.name),
            "seconds": sum(epoch["seconds"] for epoch in run.history),
        }
        for run in found.runs
    ]
    rows.append({"model": CONSTANT, "chosen": False, "validation": on_val, "test": constant.metrics, "seconds": 0.0})
    cells = []
    for row in rows:
        numbers = [_shown(row[side], name) for side in ("validation", "test") for name in names]
        cells.append((row["model"], *numbers, f"{row['seconds']:.0f}"))
    header = ("model", *(f"{side} {name}" for side in ("val", "test") for name in names), "seconds")
    what = "the shares of classes" if own.classes else "the mean"
    notes = (
        f"{chosen} is the best on the validation networks; only it and the baselines were tested. {CONSTANT}: "
        f"{what} of the training networks.",
    )
    title = f"{own.asked.column} of {own.corpus.activation} networks"
    bold = frozenset(i for i, row in enumerate(rows) if row["chosen"])
    answers, truth = found.tests[found.chosen.settings.name].answers, accuracies(own.corpus.test)
    results = {
        "column": own.asked.column, "task": own.task, "chosen": chosen, "predictor": PREDICTOR,
        "notes": list(own.notes),
        "rows": rows,
        "test": [
            {"path": str(path), "true": own.classes[int(t)] if own.classes else t,
             "predicted": own.classes[int(a.argmax())] if own.classes else float(a)}
            for path, t, a in zip(own.paths["test"], truth.tolist(), answers, strict=True)
        ],
        **record_of(found.runs),
    }  # fmt: skip
    figure = _confusion(found) if own.classes else _scatter(own, answers, truth)
    return Report(
        [Table(title, header, tuple(cells), bold=bold, notes=notes)],
        results,
        figure,
        ". ".join((*own.notes, "")).strip(),
    )


def _shown(metrics: Mapping[str, float] | None, name: str) -> str:
    return "-" if metrics is None else f"{metrics[name]:.4g}" if name == "mae" else f"{metrics[name]:.3f}"


def _scatter(own: OwnCheckpoints, answers: Tensor, truth: Tensor) -> dict[str, Figure]:
    figure, (ax,) = panels(1, 1, (4.4, 4.2))
    ends = [float(truth.min()), float(truth.max())]
    ax.plot(ends, ends, color="#7F7F7F", linewidth=0.8, linestyle=":")
    ax.plot(truth.numpy(), answers.numpy(), "o", color="#0072B2", markersize=4, alpha=0.7)
    unit = f" ({own.unit})" * bool(own.unit)
    ax.set(xlabel=f"{own.asked.column}{unit}", ylabel="predicted", title=f"{len(truth)} test networks")
    return {"predicted.png": figure}


def _confusion(found: Found) -> dict[str, Figure]:
    own, (answers, metrics) = found.own, found.tests[found.chosen.settings.name]
    counts = classify.confusion(answers, accuracies(own.corpus.test))
    tested = TestResult("original", None, metrics, 0)
    figure = classify.draw_confusion([replace(found.chosen, tests=(tested,), extra={"confusion": counts.tolist()})])
    if len(own.classes) <= 10:
        figure.axes[0].set_xticks(range(len(own.classes)), own.classes, rotation=40)
        figure.axes[0].set_yticks(range(len(own.classes)), own.classes)
    figure.supylabel(f"{own.asked.column} of the network", fontsize=9)
    return {"confusion.png": figure}
