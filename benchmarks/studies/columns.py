"""Learning a column of a table of results from checkpoints of one architecture, and leaving one predictor.

Every model is trained on the same networks, and its best epoch is selected on the validation networks, as is the best
of all models. Only that one and the baselines are tested: STATNN, and the mean (of classes, the shares) of the training
networks, which is the same for all networks.

**Targets.** Numbers of any size are learned as the share of the training networks that have less (`Quantiles`), by
binary cross-entropy, and answers are mapped back to the units of the column; they stay within the range of the training
networks. ``ranking`` adds the logistic loss of pairs. Classes are learned by cross-entropy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import kendalltau
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from nfn_monomial.benchmarks.data.batches import prepared
from nfn_monomial.benchmarks.data.formats.labelled import LabelledCheckpoints
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
from nfn_monomial.tools.files.untrusted import damaged
from nfn_monomial.tools.predictors.invariants import widths
from nfn_monomial.tools.predictors.models import NetworkInfo, build_model, model_class
from nfn_monomial.tools.predictors.quantiles import Quantiles
from nfn_monomial.tools.predictors.tasks import Column, score_in_words, warning_of_few
from nfn_monomial.tools.report import Report, Table, panels
from nfn_monomial.tools.store import code_of

from . import classify
from .predict import objective

__all__ = ["PREDICTOR", "Learned", "columns_report", "learn_column", "models_for"]

VERSION = 2  # raise it when results change, or finished runs of before are taken for new ones
COMPUTED_BY = ("studies/predict.py",)
"""Modules that the results depend on, besides this one and training; a test names VERSION when they change."""
PREDICTOR = "predictor.safetensors"
BASELINE, CONSTANT = "statnn", "constant"
LOSSES = {"regression": "quantile", "ranking": "rank", "classification": "cross-entropy"}
SHOWN = {"regression": ("mae", "r2", "tau"), "ranking": ("tau", "r2", "mae"), "classification": ("accuracy", "loss")}
WANTED = 3  # models, besides the baseline
SUITED = (
    *("gram-stats", "probes-stats", "combined", "message-passing-stats"),
    *("stats", "balanced-statnn", "message-passing"),
)
MOST = {"probes-stats": 500_000, "combined": 20_000, "message-passing-stats": 20_000, "message-passing": 20_000}
"""Weights of networks that take no longer than minutes."""
WIDEST = {"gram-stats": 1024}
"""Neurons of a layer, of whose Gram matrices the time is the cube, for the same."""
MOST_WORK = 10**7
"""Operations of a network on one input, of networks that are run on 64 inputs in every epoch, for the same."""


@dataclass(frozen=True)
class Learned:
    """All runs of a column.

    Attributes:
        labelled: the networks.
        runs: of every model and seed.
        chosen: the best of them on the validation networks.
        answers: of the chosen one to the test networks: numbers ``(N,)``, or probabilities ``(N, classes)``.
        tests: name of a run -> metrics on the test networks, of the chosen run and of the best STATNN.
        constant: side -> metrics of the constant baseline.
    """

    labelled: LabelledCheckpoints
    runs: Sequence[Run]
    chosen: Run
    answers: Tensor
    tests: Mapping[str, dict[str, float]]
    constant: Mapping[str, dict[str, float]]


def models_for(info: NetworkInfo) -> tuple[tuple[str, ...], list[str]]:
    """Returns three models that suit networks, and the baseline; and in words, why others were left out."""
    weights = sum(map(math.prod, info.space.shapes().values()))
    widest = max(widths(info.space), default=0)
    # The logits of a network for one input, 0 if it does not run, and its operations.
    classes = work = 0
    if info.template is not None and info.input_shape is not None:
        counter = FlopCounterMode(display=False)
        with suppress(Exception), counter, torch.no_grad(), torch.random.fork_rng(devices=[]):  # a user's code
            out = info.template().eval()(torch.zeros(1, *info.input_shape))
            classes = out.shape[1] if isinstance(out, Tensor) and out.ndim == 2 else 0
        work = counter.get_total_flops()
    names: list[str] = []
    notes: list[str] = []
    for name in SUITED:
        sees = model_class(name).sees
        if len(names) == WANTED:
            break
        if sees == "functions" and classes < 2:
            notes.append(f"{name} was left out: it reads logits of classes, which these networks do not give")
        elif sees == "functions" and work > MOST_WORK:
            shape = "x".join(map(str, info.input_shape or ()))
            notes.append(
                f"{name} was left out: it takes long for networks of {work:,} operations on an input {shape}; "
                "--models has it trained, and a smaller --input makes it faster"
            )
        elif weights > MOST.get(name, math.inf):
            notes.append(f"{name} was left out: it takes long for {weights} weights; --models has it trained")
        elif widest > WIDEST.get(name, math.inf):
            notes.append(f"{name} was left out: it takes long for layers of {widest} neurons; --models has it trained")
        else:
            try:
                build_model(name, info, seed=0)
                names.append(name)
            except MonomialError as error:
                notes.append(f"{name} was left out: {error}")
    return (*names, BASELINE), notes


def learn_column(
    labelled: LabelledCheckpoints,
    definition: Definition,
    config: ColumnConfig,
    store: RunStore,
    on_progress: OnProgress = lambda progress: None,
    *,
    force: bool = False,
) -> Learned:
    """Does all runs that the store does not have, chooses one, tests it, and writes `PREDICTOR` into the folder.

    Raises:
        ValueError: if a model cannot read the networks, no file could hold its predictor, or, without ``force``, the
            folder has a predictor of other networks or of another column.
    """
    corpus, classes, column, name = labelled.corpus, labelled.classes, labelled.request.column, labelled.task
    models = tuple(dict.fromkeys((*config.models, BASELINE)))
    require_task(models, "generalization")
    (train,), (test,) = corpus.train, corpus.test
    targets, truth = accuracies(corpus.train), accuracies(corpus.test)
    quantiles = None if classes else Quantiles.of(targets)
    task = Column(train.info, quantiles, column, labelled.unit, classes)
    data = fingerprint(corpus)
    for model in models:
        build_model(model, train.info, seed=0, out_features=max(1, len(classes)))
        written = Column.of(train.info, model, quantiles, column=column, unit=labelled.unit, classes=classes)
        if "unusable" in written:
            raise InvalidValueError(f"{model}: {written['unusable']}")
    place, about = store.folder / PREDICTOR, [data, column, name, list(classes), labelled.unit]
    if place.exists() and not force:
        with damaged(place, "replace it by --force, or give another folder by --out"):
            known = read_sealed(place)[1]
        if known.get("about") != about:
            raise InvalidValueError(f"{place} was learned from others: give another folder by --out, or --force")
    jobs = [
        Job(
            RunSettings(
                experiment="train",
                subject=re.sub(r"[^\w.-]+", "-", corpus.activation),
                model=model,
                train_set="original",
                seed=seed,
                options={"column": column, "task": name, "classes": classes, "unit": labelled.unit},
                data=data,
                code=code_of(model_class(model)),
                version=VERSION,
                **training_of(model, config.training, LOSSES[name]),
            ),
            partial(_prepare, labelled, task),
        )
        for seed in config.seeds
        for model in models
    ]
    runs = sweep(jobs, store, on_progress)
    chosen = max(runs, key=lambda run: run.val["selection"])
    baseline = max((r for r in runs if r.settings.model == BASELINE), key=lambda run: run.val["selection"])
    tests: dict[str, dict[str, float]] = {}
    for run in (baseline, chosen):
        predictor = Predictor.load(store.predictor_file(run.settings), definition)
        answers = predictor({name: t.unsqueeze(1) for name, t in test.networks.tensors.items()})
        tests[run.settings.name] = metrics_of(answers, truth, name)
    result = TestResult("original", None, tests[chosen.settings.name], int((~answers.isfinite()).sum()))
    record = {
        **predictor.record,
        "about": about,
        "tests": [asdict(result)],
        "networks": {**chosen.networks, "test": len(test)},
    }
    replace(predictor, record=record).save(place)
    # The constant baseline: the shares of classes among the training networks, or their mean.
    shares = targets.bincount(minlength=len(classes)) / len(targets) if classes else targets.mean()
    constant = {
        side: metrics_of(shares.expand(len(true), *shares.shape), true, name)
        for side, true in (("validation", accuracies(corpus.val)), ("test", truth))
    }
    return Learned(labelled, runs, chosen, answers, tests, constant)


def _prepare(labelled: LabelledCheckpoints, task: Column, settings: RunSettings) -> Trial:
    """Returns model and data of one run."""
    corpus = labelled.corpus
    (part,) = corpus.train
    model = build_model(
        settings.model, part.info, seed=derive_seed(settings.seed, "model"), out_features=max(1, len(labelled.classes))
    )
    model.fit_inputs(model.prepare_groups(groups_of(corpus.train)))
    train, val = (prepared(parts, model.prepare_groups) for parts in (corpus.train, corpus.val))
    return Trial(
        settings, model, train, val, tests=lambda: (),
        loss=objective(settings.loss, task.quantiles) if task.quantiles else cross_entropy,
        metrics=lambda logits, targets: metrics_of(task.read(logits), targets, labelled.task), select="selection",
        predictor=task.written(),
    )  # fmt: skip


def metrics_of(answers: Tensor, targets: Tensor, task: str) -> dict[str, float]:
    """Scores numbers ``(N,)`` in the column's units, or probabilities ``(N, classes)``; all scores are finite.

    ``selection``, of which more is better, chooses epochs and models: for regression the mean absolute error, for
    ranking Kendall's tau-b, for classes the cross-entropy, which depends less on single networks than the accuracy.
    """
    if task == "classification":
        scores = classify.scores(answers.double().log(), targets)
        return {**scores, "selection": -scores["loss"]}
    predicted, true = answers.detach().cpu().double().numpy(), targets.detach().cpu().double().numpy()
    predicted = np.nan_to_num(predicted, nan=true.min())
    tau = float(kendalltau(predicted, true, method="asymptotic").statistic) if np.ptp(predicted) > 0 else 0.0
    r2 = float(1 - np.square(true - predicted).sum() / np.square(true - true.mean()).sum())
    mae = float(np.abs(true - predicted).mean())
    ordered = {name: {"mae": mae, "r2": r2, "tau": tau}[name] for name in SHOWN[task]}
    return {**ordered, "selection": tau if task == "ranking" else -mae}


# -- table and figure --------------------------------------------------------------------------------------------------


def columns_report(learned: Learned) -> Report:
    """Returns the scores of all models on validation, of the chosen one and the baselines on test, and a figure."""
    labelled, chosen, classes = learned.labelled, learned.chosen, learned.labelled.classes
    column, networks = labelled.request.column, labelled.corpus.activation
    names = SHOWN[labelled.task]
    rows: list[dict[str, Any]] = [
        {
            "model": run.settings.model,
            "seed": run.settings.seed,
            "chosen": run is chosen,
            "validation": run.val,
            "test": learned.tests.get(run.settings.name),
            "seconds": sum(epoch["seconds"] for epoch in run.history),
        }
        for run in learned.runs
    ]
    rows.append({"model": CONSTANT, "chosen": False, **learned.constant, "seconds": 0.0})
    networks_of = {"validation": sum(map(len, labelled.corpus.val)), "test": sum(map(len, labelled.corpus.test))}
    few = dict.fromkeys(warning_of_few(count) for count in networks_of.values() if "tau" in names)
    cells = []
    for row in rows:
        scores = [(name, (row[side] or {}).get(name), count) for side, count in networks_of.items() for name in names]
        numbers = ["-" if score is None else score_in_words(name, score, count) for name, score, count in scores]
        cells.append((row["model"], *numbers, f"{row['seconds']:.0f}"))
    table = Table(
        f"{column} of {networks} networks",
        ("model", *(f"{side} {name}" for side in ("val", "test") for name in names), "seconds"),
        tuple(cells),
        bold=frozenset(i for i, row in enumerate(rows) if row["chosen"]),
        notes=(
            f"{chosen.settings.model} is the best on the validation networks; only it and the baselines were tested. "
            f"{CONSTANT}: {'the shares of classes' if classes else 'the mean'} of the training networks.",
            *filter(None, few),
        ),
    )
    answers, truth = learned.answers, accuracies(labelled.corpus.test)
    results = {
        "column": column, "task": labelled.task, "chosen": chosen.settings.model, "predictor": PREDICTOR,
        "notes": list(labelled.notes),
        "rows": rows,
        "test": [
            {"path": str(path), "true": classes[int(t)] if classes else t,
             "predicted": classes[int(a.argmax())] if classes else float(a)}
            for path, t, a in zip(labelled.paths["test"], truth.tolist(), answers, strict=True)
        ],
        **record_of(learned.runs),
    }  # fmt: skip
    figures: dict[str, Figure] = {}
    if classes:
        tested = TestResult("original", None, learned.tests[chosen.settings.name], 0)
        counts = classify.confusion(answers, truth).tolist()
        figure = classify.draw_confusion([replace(chosen, tests=(tested,), extra={"confusion": counts})])
        if len(classes) <= 10:
            figure.axes[0].set_xticks(range(len(classes)), classes, rotation=40)
            figure.axes[0].set_yticks(range(len(classes)), classes)
        figure.supylabel(f"{column} of the network", fontsize=9)
        figures["confusion.png"] = figure
    else:
        figure, (ax,) = panels(1, 1, (4.4, 4.2))
        ends = [float(truth.min()), float(truth.max())]
        ax.plot(ends, ends, color="#7F7F7F", linewidth=0.8, linestyle=":")
        ax.plot(truth.numpy(), answers.numpy(), "o", color="#0072B2", markersize=4, alpha=0.7)
        unit = f" ({labelled.unit})" * bool(labelled.unit)
        ax.set(xlabel=f"{column}{unit}", ylabel="predicted", title=f"{len(truth)} test networks")
        figures["predicted.png"] = figure
    return Report([table], results, figures, ". ".join((*labelled.notes, "")).strip())
