"""What normal forms are worth: models read adapters and transformers as they are, and in normal form.

Functions stay as they are under much more than permutations and scales of neurons: between the factors of an adapter,
between values and outputs of attention, and on a stream behind layer norms whole matrices act. Models are trained on
networks as training left them; test networks are these, the same moved by the *monomial group* (permutations, and
scales and signs where neurons have them), and moved by random elements of the *whole fibre* (`NormalForm.sample`).
Neither changes what a network does. Epochs are selected on the validation networks alone.

**Adapters.** ``W + U D`` with ``U`` of at most 8 columns, of all layers of one frozen MLP. Asked is on which data set
one was trained, and how accurate it is there. What decides the function is the *product* ``U D``, which is small enough
here to be read as well: the standard that factors are held to.

**Transformers.** One block of attention and MLP on patches of digits; asked is the test accuracy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data.batches import prepared
from nfn_monomial.benchmarks.data.formats.made import MadeMixedZoo
from nfn_monomial.benchmarks.data.images import load_images
from nfn_monomial.benchmarks.data.moves import transform
from nfn_monomial.benchmarks.data.networks import Corpus, Networks, Part, Parts, fingerprint, groups_of
from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.experiments.fibres import FibresConfig
from nfn_monomial.benchmarks.make.adapters import DATA_SETS, Adapted, draw_adapters, train_adapters, train_base
from nfn_monomial.benchmarks.make.config import MixedConfig, TransformerRanges
from nfn_monomial.benchmarks.make.zoo import make_zoo
from nfn_monomial.benchmarks.models.catalogue import require_task, training_of
from nfn_monomial.benchmarks.report.tables import Mean, by_model, model_table, over_seeds, record_of, row_of
from nfn_monomial.benchmarks.settings.register import Said, Study
from nfn_monomial.benchmarks.train.runs import Run, RunSettings, RunStore
from nfn_monomial.benchmarks.train.sweep import Job, Test, Trial, sweep
from nfn_monomial.tools.predictors.models import NetworkInfo, build_model, model_class
from nfn_monomial.tools.predictors.tasks import Generalization
from nfn_monomial.tools.report import Report, look, panels
from nfn_monomial.tools.store import Store, code_of, digest_of

from .predict import objective, require_ranking, scores

__all__ = ["adapter_corpora", "fibres_report", "move", "plan", "products", "transformer_corpus"]

ENDS = (0.4, 0.5)  # of the training networks and the validation networks; the others are for the test
BASE_EPOCHS = 15
PER_GROUP = 100  # transformers that train together
ORIGINAL, MONOMIAL, FIBRE = "original", "monomial group", "whole fibre"
WEIGHTS, PRODUCTS = "weights", "products"
TITLES = {
    "adapters-data": "On which of eight data sets was an adapter trained? Accuracy",
    "adapters-accuracy": "Test accuracy of adapted networks, predicted from the adapter: Kendall's tau",
    "transformers-accuracy": "Test accuracy of transformers, predicted from their weights: Kendall's tau",
}
"""Of each subject: networks and what is asked of them."""
METRICS = {subject: "accuracy" if subject == "adapters-data" else "tau" for subject in TITLES}


def adapter_corpora(config: FibresConfig, folder: Path) -> dict[str, Corpus]:
    """Adapters with the numbers of their data sets, and with their accuracies; kept in the folder."""
    images = load_images("digits")
    kept = Store(folder, {name: getattr(config, name) for name in ("adapters", "width", "steps", "zoo_seed")})

    def train() -> tuple[None, dict[str, Tensor]]:
        base = train_base(images, config.width, BASE_EPOCHS, config.zoo_seed)
        plans = draw_adapters(config.adapters, config.steps, config.zoo_seed)
        tensors, accuracy = train_adapters(plans, Adapted(base), images, config.zoo_seed)
        known = {f"base.{i}.{name}": t for i, layer in enumerate(base) for name, t in zip("wb", layer, strict=True)}
        data_set = torch.tensor([plan.data_set for plan in plans])
        return None, {**tensors, **known, "data": data_set, "accuracy": accuracy}

    _, found = kept.piece("adapters", train)
    targets = {f"adapters-{name}": found.pop(name) for name in ("data", "accuracy")}
    base = [(found.pop(f"base.{i}.w"), found.pop(f"base.{i}.b")) for i in range(3)]
    module, shape = Adapted(base), tuple(images.x.shape[1:])
    frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
    space = WeightSpace.from_module(module, torch.zeros(2, *shape), frozen=frozen)
    info = NetworkInfo(space, "gelu", partial(Adapted, base), shape)
    order = torch.randperm(config.adapters, generator=torch.Generator().manual_seed(config.zoo_seed))
    rows = order.tensor_split([round(share * len(order)) for share in ENDS])

    def corpus(name: str, target: Tensor) -> Corpus:
        train, val, test = ((Part(Networks(found, target).subset(part), info),) for part in rows)
        return Corpus(name, train, val, test, info)

    return {name: corpus(name, target) for name, target in targets.items()}


def transformer_corpus(config: FibresConfig, folder: Path) -> Corpus:
    """Transformers of one architecture with their accuracies; kept in the folder."""
    one = TransformerRanges(
        blocks=(1, 1), widths=(8, 8), heads=(2, 2), head_widths=(4, 4), hidden=(16, 16), patches=(2,)
    )
    made = MixedConfig(
        networks=config.transformers, per_architecture=PER_GROUP, kinds=("transformer",), activations=("gelu",),
        optimizers=("adam",), learning_rate=(1e-3, 3e-2), train_fractions=(0.25, 0.5, 1.0), epochs=config.epochs,
        transformer=one, seed=config.zoo_seed,
    )  # fmt: skip
    folder = folder / digest_of(asdict(made))[:10]
    make_zoo(folder, made, workers=1)
    (found,) = MadeMixedZoo.load(folder, seed=config.zoo_seed).values()
    (info,) = found.info.architectures
    train, val, test = ((Part(part.networks, info),) for (part,) in (found.train, found.val, found.test))
    return Corpus("transformers-accuracy", train, val, test, info, found.source)


def products(parts: Parts) -> Parts:
    """Adapters as the changes ``U D`` of the layers' weights, on which nothing acts."""
    found = []
    for part in parts:
        factors = part.networks.tensors
        layers = [name.removeprefix("up.") for name in factors if name.startswith("up.")]
        changes = {f"product.{i}": factors[f"up.{i}"] @ factors[f"down.{i}"] for i in layers}
        space = WeightSpace({}, {name: tuple(t.shape[1:]) for name, t in changes.items()})
        found.append(Part(Networks(changes, part.networks.accuracy), NetworkInfo(space, part.info.activation)))
    return tuple(found)


def move(parts: Parts, seed: int) -> Parts:
    """Networks moved by random elements of the whole fibre, each by one of its own."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for part, (tensors, _) in zip(parts, groups_of(parts), strict=True):
        moved = part.info.form.sample(tensors, generator=generator)
        networks = Networks({name: t.squeeze(1) for name, t in moved.items()}, part.networks.accuracy)
        found.append(Part(networks, part.info))
    return tuple(found)


class _Sets:
    """Test networks of a corpus, moved once for all models of a seed that ask one after another."""

    def __init__(self, corpus: Corpus, scale: float) -> None:
        self.corpus = corpus
        self.tests = lru_cache(maxsize=1)(partial(self._tests, scale))

    def _tests(self, scale: float, seed: int) -> dict[str, Parts]:
        test = self.corpus.test
        moved = transform(test, scale, derive_seed(seed, MONOMIAL))
        return {ORIGINAL: test, MONOMIAL: moved, FIBRE: move(test, derive_seed(seed, FIBRE))}


def plan(config: FibresConfig, corpora: Mapping[str, Corpus]) -> list[Job]:
    """All runs, seed by seed."""
    sets = {name: _Sets(corpus, config.scale) for name, corpus in corpora.items()}
    data = {name: fingerprint(corpus) for name, corpus in corpora.items()}
    weights = [(WEIGHTS, model) for model in config.models]
    changes = [(PRODUCTS, model) for model in config.product_models]

    def settings(name: str, what: str, model: str, seed: int) -> RunSettings:
        loss = "cross-entropy" if name == "adapters-data" else "bce"
        return RunSettings(
            experiment="fibres", subject=name, model=model, train_set=what, seed=seed,
            options={"scale": config.scale}, data=data[name], code=code_of(model_class(model)),
            **training_of(model, config.training, loss),
        )  # fmt: skip

    return [
        Job(settings(name, what, model, seed), partial(prepare, sets[name]))
        for seed in config.seeds
        for name in corpora
        for what, model in [*weights, *changes * name.startswith("adapters")]
    ]


def prepare(sets: _Sets, settings: RunSettings) -> Trial:
    """Model and data of one run."""
    corpus, seed = sets.corpus, settings.seed
    view = products if settings.train_set == PRODUCTS else lambda parts: parts
    train, val = view(corpus.train), view(corpus.val)
    classes = len(DATA_SETS) if settings.loss == "cross-entropy" else 1
    info = train[0].info
    model = build_model(settings.model, info, seed=derive_seed(seed, "model"), out_features=classes)

    def tests() -> Iterator[Test]:
        for name, parts in sets.tests(seed).items():
            scale = settings.options["scale"] if name == MONOMIAL else None
            yield Test(name, prepared(view(parts), model.prepare_groups), scale)

    data, judging = (prepared(parts, model.prepare_groups) for parts in (train, val))
    model.fit_inputs(data.inputs)
    how: dict[str, Any] = {"loss": objective("bce", None), "metrics": scores}
    how["predictor"] = Generalization.of(info, settings.model)
    if settings.train_set == PRODUCTS:
        how["predictor"] = {"unusable": "it reads products of the factors of adapters, which no file holds"}
    if classes > 1:
        how = {"loss": cross_entropy, "metrics": _right}
        how["predictor"] = {"unusable": "it tells data sets of the experiment `fibres` apart, which no other has"}
    return Trial(settings, model, data, judging, tests, select=METRICS[settings.subject], **how)


def _right(logits: Tensor, labels: Tensor) -> dict[str, float]:
    return {"accuracy": float((logits.nan_to_num().argmax(-1) == labels).double().mean())}


def fibres_report(runs: Sequence[Run]) -> Report:
    """A table for each subject, the numbers, and the figure."""
    subjects = {name: [run for run in runs if run.settings.subject == name] for name in TITLES}
    subjects = {name: found for name, found in subjects.items() if found}
    values = {name: partial(_value, name) for name in (ORIGINAL, MONOMIAL, FIBRE)}
    notes = (
        "monomial group, whole fibre: test networks moved by random elements of these, which change no function.",
        "normal: networks are brought into normal form first, so that permutations alone are left of the whole fibre.",
        f"{over_seeds(runs).capitalize()}; epochs are selected on the validation networks alone.",
    )
    tables = [model_table(TITLES[name], found, values, notes=notes) for name, found in subjects.items()]
    rows = [
        row_of(group, METRICS[name]) | {"reads": group[0].settings.train_set}
        for name, found in subjects.items()
        for group in by_model(found).values()
    ]
    return Report(tables, {"rows": rows, **record_of(runs)}, {"fibres.png": draw_fibres(subjects)})


def _value(test: str, run: Run) -> float:
    metric = METRICS[run.settings.subject]
    return next(found.metrics[metric] for found in run.tests if found.name == test)


def draw_fibres(subjects: Mapping[str, Sequence[Run]]) -> Figure:
    """A panel for each subject: three bars for every model, of test networks as they are and moved."""
    figure, axes = panels(1, len(subjects), (4.6 * len(subjects), 4.4))
    colors = {name: look(i)["color"] for i, name in enumerate((ORIGINAL, MONOMIAL, FIBRE))}
    for ax, (subject, runs) in zip(axes, subjects.items(), strict=True):
        groups = list(by_model(runs).values())
        names = [f"{g[0].label}{', products' * (g[0].settings.train_set == PRODUCTS)}" for g in groups]
        for k, (test, color) in enumerate(colors.items()):
            means = [Mean.of(_value(test, run) for run in group) for group in groups]
            at = [i + 0.27 * (k - 1) for i in range(len(groups))]
            errors = [mean.error or 0.0 for mean in means]
            ax.bar(at, [mean.mean for mean in means], 0.25, yerr=errors, color=color, error_kw={"linewidth": 1})
        ax.set_xticks(range(len(groups)), names, rotation=40, ha="right", fontsize=8)
        ax.set_title(TITLES[subject].replace(", predicted", ",\npredicted").replace("? ", "?\n"), fontsize=9)
    handles = [Patch(color=color, label=name) for name, color in colors.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def _run(data: None, config: FibresConfig, store: RunStore, tell: Any) -> list[Run]:
    tell(Said("training adapters and transformers"))
    corpora = adapter_corpora(config, store.folder / "adapters")
    corpora["transformers-accuracy"] = transformer_corpus(config, store.folder / "transformers")
    for corpus in corpora.values():
        require_ranking(corpus.activation, corpus.val, corpus.test)
    return sweep(plan(config, corpora), store, tell)


def _check(config: FibresConfig) -> None:
    require_task((*config.models, *config.product_models), "generalization")


STUDY = Study(_run, lambda runs, config, store: fibres_report(runs), _check)
