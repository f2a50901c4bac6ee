"""Classifying INRs: a model reads from the weights of a sine network which image it shows (paper Sec. 6.2, App. D.4).

Every model gets the same networks, prepared alike (`InputConfig`). Epochs are selected by the accuracy on the
validation networks alone, the loss decides between equal ones. Each model is then tested on the test networks as they
are (``original``), on the same networks moved by random elements of their symmetry group (``moved``: sign flips and
permutations), and on the same networks with other phases (``shifted``, see `shift_phase`); neither changes any image.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from nfn_monomial.benchmarks.data.batches import Data
from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart
from nfn_monomial.benchmarks.experiments.classify import ClassifyConfig, InputConfig, Sizes
from nfn_monomial.benchmarks.models.catalogue import require_task, training_of
from nfn_monomial.benchmarks.models.inr import inr_info
from nfn_monomial.benchmarks.models.inr_input import Classifier, prepared_siren
from nfn_monomial.benchmarks.predictors import Classification
from nfn_monomial.benchmarks.report.beside import Kept, kept_outcomes
from nfn_monomial.benchmarks.report.figures import draw_learning
from nfn_monomial.benchmarks.report.tables import Estimate, by_model, model_table, over_seeds, record_of, row_of
from nfn_monomial.benchmarks.settings.register import Study
from nfn_monomial.benchmarks.train.loop import Loss
from nfn_monomial.benchmarks.train.runs import Run, RunSettings, RunStore
from nfn_monomial.benchmarks.train.sweep import Job, OnProgress, Test, Trial, sweep
from nfn_monomial.canonical import absorb_omega, shift_phase
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.models import build_model, model_class, model_options
from nfn_monomial.tools.report import Report, panels
from nfn_monomial.tools.store import code_of

__all__ = ["classify_inrs", "classify_report", "fingerprint", "plan", "prepare", "sizes_of", "subset"]

VERSION = 3  # raise it when results change, or finished runs of before are taken for new ones
COMPUTED_BY = ("models/inr.py", "models/inr_input.py", "models/parts.py")
"""Modules that the results depend on, besides this one and training; a test names VERSION when they change."""
LARGEST = 1e4  # logits are cut off there, so that losses are finite
SHIFTS = 2  # phases of the shifted test networks: up to so many times pi, either way
LOOKED_AT = 10_000  # training networks that input statistics are taken of, at most


LOSSES: dict[str, Loss] = {
    "cross-entropy": cross_entropy,
    "bce": lambda logits, labels: binary_cross_entropy_with_logits(
        logits, one_hot(labels, logits.shape[-1]).to(logits.dtype)
    ),
}


def classify_inrs(
    corpus: InrCorpus,
    config: ClassifyConfig,
    store: RunStore,
    on_progress: OnProgress = lambda progress: None,
) -> list[Run]:
    """Does all runs that the store does not have; returns all, kept and new, in the order of the plan. See `sweep`.

    Raises:
        ValueError: if a device is not there, or as `check`.
    """
    check(config, corpus)
    return sweep(plan(config, corpus), store, on_progress)


def require_models(config: ClassifyConfig) -> None:
    """Checks that there are such models for INRs.

    Raises:
        ValueError: naming those that there are.
    """
    require_task((*config.models, *config.slower), "inr")


def check(config: ClassifyConfig, corpus: InrCorpus) -> None:
    """Raises errors of the configuration before hours of work.

    Raises:
        ValueError: if there are fewer than two classes, no such model, or one that cannot read the networks.
    """
    require_models(config)
    if corpus.classes < 2:
        raise InvalidValueError(f"{corpus.name} has {corpus.classes} class: its networks cannot be told apart by it")
    for model in config.models:
        build_model(model, inr_info(corpus.siren), seed=0, out_features=corpus.classes, **sizes_of(config.sizes, model))


def plan(config: ClassifyConfig, corpus: InrCorpus) -> list[Job]:
    """Returns all runs, seed by seed."""
    data = fingerprint(corpus)
    corpus = replace(corpus, train=subset(corpus.train, config.fits, config.limit))
    training = config.training.lasting(config.steps, len(corpus.train))
    slower = replace(training, learning_rate=training.learning_rate / 3)
    inputs = asdict(config.inputs)
    return [
        Job(
            RunSettings(
                experiment="classify-inr",
                subject=corpus.name,
                model=model,
                train_set="augmented" if config.inputs.augment or config.inputs.warp else "original",
                seed=seed,
                options={
                    "inputs": inputs, "fits": config.fits, "limit": config.limit and [config.limit, "drawn"],
                    "sizes": sizes_of(config.sizes, model),
                },
                data=data,
                code=code_of(model_class(model)),
                version=VERSION,
                **training_of(model, slower if model in config.slower else training, config.loss),
            ),
            partial(prepare, corpus),
        )
        for seed in config.seeds
        for model in config.models
    ]  # fmt: skip


def sizes_of(sizes: Sizes, model: str) -> dict[str, Any]:
    """Returns the sizes that a model has."""
    return {name: value for name, value in asdict(sizes).items() if name in model_options(model)}


def prepare(corpus: InrCorpus, settings: RunSettings) -> Trial:
    """Returns model and data of one run."""
    options, seed, siren = settings.options, settings.seed, corpus.siren
    inputs = InputConfig(**options["inputs"])
    model = build_model(
        settings.model, inr_info(prepared_siren(inputs, siren)), seed=derive_seed(seed, "model"),
        out_features=corpus.classes, **options["sizes"],
    )  # fmt: skip
    classifier = Classifier(model, siren, inputs)

    def data(part: InrPart) -> Data:
        return Data(_with_channel(part.tensors), part.labels)

    train = data(corpus.train)
    classifier.fit_inputs(train.take(torch.arange(min(len(train), LOOKED_AT))).inputs)

    def tests() -> Iterator[Test]:
        networks, labels = _with_channel(corpus.test.tensors), corpus.test.labels
        yield Test("original", Data(networks, labels))
        space, count = siren.space, len(labels)
        # Signs flipped and neurons permuted at random.
        generator = torch.Generator().manual_seed(derive_seed(seed, "moved"))
        yield Test("moved", Data(space.sample(count, generator=generator).act(networks), labels))
        # Phases shifted at random, with omega_0 in the weights, where phases are those of the sine.
        generator = torch.Generator().manual_seed(derive_seed(seed, "shifted"))
        shifts = {
            f"h{i}": torch.randint(-SHIFTS, SHIFTS + 1, (count, 1, size), generator=generator)
            for i, size in enumerate(siren.sizes[1:-1], start=1)
        }
        shifted = shift_phase(absorb_omega(networks, space, siren.omega_0), space, shifts)
        yield Test("shifted", Data(absorb_omega(shifted, space, 1 / siren.omega_0), labels))
        yield Test("train", train)

    def finish(answers: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"confusion": confusion(answers["original"], corpus.test.labels).tolist()}, {}

    return Trial(
        settings, classifier, train, data(corpus.val), tests,
        loss=LOSSES[settings.loss], metrics=scores, select="selection", finish=finish,
        outcome=lambda logits, labels: {"answers": right(logits, labels)},
        predictor=Classification(siren, tuple(map(str, range(corpus.classes))), settings.loss).written(),
    )  # fmt: skip


def _with_channel(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.unsqueeze(1) for name, t in tensors.items()}


def confusion(logits: Tensor, labels: Tensor) -> Tensor:
    """Counts ``(true class, predicted class)``."""
    classes = logits.shape[-1]
    pairs = labels * classes + torch.nan_to_num(logits, nan=-torch.inf).argmax(-1)
    return pairs.bincount(minlength=classes**2).view(classes, classes)


def right(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns 1 for each network that is classified right, 0 for others ``(N,)``; arguments as of `scores`."""
    finite = torch.nan_to_num(logits.detach().double(), nan=-LARGEST).clamp(-LARGEST, LARGEST)
    return (finite.argmax(-1) == labels).double()


def scores(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Returns accuracy, cross-entropy, and the score that selects the epoch: accuracy, then the lower loss.

    All are finite whatever a model answers: a NaN counts as the lowest logit, and logits beyond 1e4 as that.

    Args:
        logits: ``(N, classes)``.
        labels: int64 ``(N,)``.
    """
    accuracy = right(logits, labels).mean().item()
    logits = torch.nan_to_num(logits.detach().double(), nan=-LARGEST).clamp(-LARGEST, LARGEST)
    loss = cross_entropy(logits, labels).item()
    return {"accuracy": accuracy, "loss": loss, "selection": accuracy - loss / (1 + loss) / len(labels)}


def subset(part: InrPart, fits: int | None, limit: int | None) -> InrPart:
    """The first ``fits`` networks of every image, of these as many as ``limit``, drawn: the same ones for all runs.

    Raises:
        ValueError: if there are not so many.
    """
    index = torch.arange(len(part))
    if fits is not None:
        order = part.image.argsort(stable=True)
        counts = torch.unique(part.image, return_counts=True)[1]
        rank = torch.empty_like(index)
        rank[order] = index - (counts.cumsum(0) - counts).repeat_interleave(counts)
        index = index[rank < fits]
    if limit is not None:
        if limit > len(index):
            raise InvalidValueError(f"limit is {limit}, but there are {len(index)} networks to train on")
        drawn = torch.randperm(len(index), generator=torch.Generator().manual_seed(0))[:limit]
        index = index[drawn.sort().values]  # not the first, which may all be of one class
    return part.subset(index)


def fingerprint(corpus: InrCorpus) -> str:
    """Returns a hash of all networks, their labels and their architecture."""
    digest = hashlib.sha256(repr((corpus.siren, corpus.classes)).encode())
    for part in (corpus.train, corpus.val, corpus.test):
        digest.update(part.labels.numpy().tobytes())
        for tensor in part.tensors.values():
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


# -- tables and figures ------------------------------------------------------------------------------------------------

PREPARED = ("absorb_omega", "canonical_phase", "normalize")  # fields of InputConfig
WIDE = 4  # panels side by side


def classify_report(runs: Sequence[Run]) -> Report:
    """Returns table, confusion matrices, learning curves, and the numbers of all.

    The table has a line per model: accuracy in percent on every set, cross-entropy on the test networks, size and time.

    Raises:
        ValueError: if there are no runs, or runs that would share a line differ in more than their seed.
    """
    record = record_of(runs)
    columns: dict[str, Callable[[Run], float]] = {
        "train": lambda run: 100 * run.metric("train", "accuracy"),
        "test": lambda run: 100 * run.metric("original", "accuracy"),
        "moved": lambda run: 100 * run.metric("moved", "accuracy"),
        "shifted": lambda run: 100 * run.metric("shifted", "accuracy"),
        "loss": lambda run: run.metric("original", "loss"),
    }
    inputs = runs[0].settings.options["inputs"]
    noise = f" and noise of {inputs['noise']:g}" * bool(inputs["noise"])
    warp = inputs["warp"]
    done = [f"moved by random group elements{noise}"] * inputs["augment"]
    done += [f"changed so that their images are turned, zoomed and shifted at random (up to {warp:g})"] * bool(warp)
    prepared = ", ".join(name for name in PREPARED if inputs[name]) or "nothing"
    rates: dict[float, dict[str, None]] = {}
    for run in runs:
        rates.setdefault(run.settings.training.learning_rate, {})[run.label] = None
    (usual, _), *others = sorted(rates.items(), key=lambda item: -len(item[1]))
    exceptions = [f"{rate:g} for {', '.join(labels)}" for rate, labels in others]
    running = ", ".join(dict.fromkeys(run.label for run in runs if run.sees == "functions"))
    as_run = f" (normalize: not for {running})" * bool(running and "normalize" in prepared)
    notes = [
        f"Accuracy in percent, and cross-entropy on the test networks: {over_seeds(runs)}; epochs are "
        "selected on validation networks only. moved: the test networks after random sign flips and permutations of "
        "their neurons; shifted: after shifts of their phases by multiples of pi. Neither changes an image.",
        f"In training, networks were {' and '.join(done) or 'seen as they are'}. Done to all networks: "
        f"{prepared}{as_run}. Learning rate: {'; '.join([f'{usual:g}', *exceptions])}.",
    ]
    subjects = ", ".join(dict.fromkeys(run.settings.subject for run in runs))
    title = f"Images of {subjects} classified by their networks"
    table = replace(model_table(title, runs, columns, digits=2, notes=notes), subject=subjects)
    groups = by_model(runs).values()
    rows = [{**row_of(group, "accuracy", "loss"), "confusion": _confusion(group).tolist()} for group in groups]
    curves: dict[str, Callable[[dict[str, Any]], float]] = {
        "training loss": lambda epoch: math.nan if epoch["train_loss"] is None else epoch["train_loss"],
        "validation accuracy (%)": lambda epoch: 100 * epoch["metrics"]["accuracy"],
    }
    figures = {"confusion.png": draw_confusion(runs), "learning.png": draw_learning(runs, curves)}
    return Report([table], {"rows": rows, **record}, figures)


def _confusion(group: Sequence[Run]) -> Any:
    """Counts ``(true class, predicted class)`` over all seeds."""
    return np.sum([run.extra["confusion"] for run in group], axis=0)


def draw_confusion(runs: Sequence[Run]) -> Figure:
    """One panel a model: of the test images of every class (rows), the shares that were taken for every class."""
    groups = list(by_model(runs).values())
    wide = min(len(groups), WIDE)
    high = math.ceil(len(groups) / wide)
    figure, axes = panels(high, wide, (2.9 * wide, 3.1 * high + 0.3), grid=False)
    for ax, group in zip(axes, groups, strict=False):
        counts = _confusion(group)
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        ax.imshow(shares, vmin=0, vmax=1, cmap="Blues")
        classes = len(counts)
        for (i, j), share in np.ndenumerate(shares):
            if share >= 0.005 and classes <= 10:
                color = "white" if share > 0.5 else "#303030"
                ax.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=5.5, color=color)
        ticks = range(classes) if classes <= 10 else ()
        ax.set(xticks=ticks, yticks=ticks)
        ax.tick_params(labelsize=7, length=0)
        accuracy = Estimate.of(100 * run.metric("original", "accuracy") for run in group)
        bold = "bold" if group[0].invariant_under == "group" else "normal"
        ax.set_title(f"{group[0].label}: {accuracy.show(1)} %", fontsize=8.5, fontweight=bold)
    figure.supxlabel(f"predicted class (numbers: percent of the row); titles: accuracy, {over_seeds(runs)}", fontsize=9)
    figure.supylabel("class of the image", fontsize=9)
    return figure


def kept(runs: Sequence[Run], store: RunStore) -> Kept:
    """Returns the answers that the accuracies are counted from."""
    return kept_outcomes(runs, store, lambda test: "test" * (test.name == "original"), train_sets=False)


STUDY = Study(classify_inrs, lambda runs, config, store: classify_report(runs), require_models, kept=kept)
