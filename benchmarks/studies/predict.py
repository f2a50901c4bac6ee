"""Predicting a CNN's test accuracy from its weights (paper Sec. 6.1): every model, train set and seed, all test sets.

Every model gets the same networks, the same epochs, batches and optimiser (unless it asks for others, see
`Model.train_with`, or a recipe does, see `train.recipes`), and is selected by Kendall's tau on the validation networks
alone. Each is then tested on the test networks as they are, on the same networks moved by random elements of their
symmetry group, and on the same networks widened; neither changes any network's function, and so its accuracy.

**Train sets.** ``original``, and ``augmented``: factor 2 as in the paper (App. D.3), each network once more, moved by a
random group element; the validation networks likewise. The paper trains and tests once per range of scales
(``per_scale``); by default one augmented set serves all test sets. Its range is [1, 10], the one that serves the models
without the symmetry best on all test sets together: wider ranges, and those of the test sets mixed, make their training
unstable.
``moved``: the moved copies of the augmented set alone, for which an invariant model cannot be told from the original.

**Group elements** are drawn once per (test set, seed): all models of a seed meet the same moved networks.

**Losses**, of the logits: ``bce``, binary cross-entropy against the accuracy, as published; ``mse``, squared error of
the predicted accuracy; ``rank``, ``bce`` and the logistic loss of all pairs in a minibatch, which is a smooth tau;
``quantile``, ``bce`` against the share of the training networks that are less accurate; answers are mapped back to
accuracies (`Quantiles`), so that R2 means the same. Each of several heads (`Head`) has its own loss; their mean counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import get_args

import numpy as np
import torch
from scipy.stats import kendalltau
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss, softplus

from nfn_monomial.benchmarks.data.batches import prepared
from nfn_monomial.benchmarks.data.moves import WIDENED, augment, test_sets
from nfn_monomial.benchmarks.data.networks import Corpus, Parts, accuracies, fingerprint, groups_of
from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.experiments.predict import PredictConfig, TrainSet
from nfn_monomial.benchmarks.models.catalogue import model_names, require_task, training_of
from nfn_monomial.benchmarks.train.loop import Loss
from nfn_monomial.benchmarks.train.recipes import PLAIN, SHIPPED, Recipe, read_recipes
from nfn_monomial.benchmarks.train.runs import Run, RunSettings, RunStore
from nfn_monomial.benchmarks.train.sweep import Job, OnProgress, Test, Trial, sweep
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.architectures import MixedActivation
from nfn_monomial.tools.predictors.models import BALANCED, build_model, model_class, model_options
from nfn_monomial.tools.predictors.quantiles import Quantiles
from nfn_monomial.tools.predictors.tasks import Generalization
from nfn_monomial.tools.store import code_of

__all__ = [
    "Sets",
    "check",
    "default_models",
    "learned",
    "objective",
    "plan",
    "predict_generalization",
    "prepare",
    "recipes_of",
    "require_models",
    "require_ranking",
    "scores",
    "selected",
]

VERSION = 3  # raise it when results change, or finished runs of before are taken for new ones
COMPUTED_BY = (
    "data/moves.py", "data/widen.py", "models/baselines.py", "models/graphs.py", "models/monomial.py",
    "models/parts.py", "models/sets.py",
)  # fmt: skip
"""Modules that the results depend on, besides this one and training; a test names VERSION when they change."""
TEST_BYTES = 2**31  # of test sets that are made once for all models of a seed; larger ones are made for each model


def _rank(logits: Tensor, accuracy: Tensor) -> Tensor:
    order = torch.sign(accuracy[:, None] - accuracy)
    pairs = softplus(-order * (logits[:, None] - logits)) * order.abs()
    wrong: Tensor = pairs.sum() / order.abs().sum().clamp(min=1)
    return binary_cross_entropy_with_logits(logits, accuracy) + wrong


LOSSES: dict[str, Loss] = {
    "bce": binary_cross_entropy_with_logits,
    "mse": lambda logits, accuracy: mse_loss(torch.sigmoid(logits), accuracy),
    "rank": _rank,
    "quantile": binary_cross_entropy_with_logits,
}


def learned(loss: str, accuracy: Tensor) -> Quantiles | None:
    """Returns the quantiles that replace the training networks' accuracies ``(N,)``, for a loss that learns them."""
    return Quantiles.of(accuracy) if loss == "quantile" else None


def objective(loss: str, quantiles: Quantiles | None) -> Loss:
    """Returns the loss of a batch: logits ``(B,)``, or of several heads ``(B, heads)``, and accuracies ``(B,)``."""

    def of(logits: Tensor, accuracy: Tensor) -> Tensor:
        target = accuracy if quantiles is None else quantiles.level(accuracy)
        if logits.ndim == 1:
            return LOSSES[loss](logits, target)
        each: Tensor = torch.vmap(LOSSES[loss], (1, None))(logits, target)
        return each.mean()

    return of


def default_models(corpora: Mapping[str, Corpus]) -> tuple[str, ...]:
    """Returns all models that can read all of these networks, and two baselines with the canonical form."""
    names = []
    for name in (*model_names(), f"{BALANCED}statnn", f"{BALANCED}hnp"):
        with suppress(ValueError):  # it cannot read them
            for corpus in corpora.values():
                build_model(name, corpus.info, seed=0)
            names.append(name)
    return tuple(names)


def predict_generalization(
    corpora: Mapping[str, Corpus],
    config: PredictConfig,
    store: RunStore,
    on_progress: OnProgress = lambda progress: None,
) -> list[Run]:
    """Does all runs that the store does not have; returns all, kept and new, in the order of the plan.

    See `sweep`: a second call does only what is missing.

    Args:
        corpora: activation -> networks, see `load_generalization`.
        config: see `PredictConfig`.
        store: where finished runs are kept.
        on_progress: called before a run, after each of its epochs and when it is finished.

    Raises:
        ValueError: if a device is not there, or as `check`.
    """
    corpora = check(config, corpora)
    runs = sweep(plan(config, corpora), store, on_progress)
    pools = {corpus.activation: sum(map(len, corpus.train)) for corpus in corpora.values()}
    return [
        replace(run, networks=run.networks | {"pool": pools[run.settings.subject]}) if config.train_networks else run
        for run in runs
    ]


def require_models(config: PredictConfig) -> None:
    """Checks that there are such models for this experiment, and the recipe if it names one.

    Raises:
        ValueError: naming those that there are.
    """
    left_out = [pair.partition(":")[2] for pair in config.left_out]
    require_task((*config.models, *(config.augmented_models or ()), *left_out), "generalization", "ablation")
    recipes_of(config)


def recipes_of(config: PredictConfig) -> dict[str, Recipe]:
    """Returns the recipes that a configuration names, by model; others are trained as they ask for.

    `PLAIN` is one for all: ``config.training`` and ``config.loss``, whatever a model asks for, and no dropout.
    """
    if config.recipe != PLAIN:
        recipes = read_recipes(config.recipe) if config.recipe else {}
        if config.recipe != SHIPPED and recipes and not set(recipes) & set(config.models):
            raise InvalidValueError(
                f"{config.recipe} has recipes for {', '.join(recipes)}, but for none of {', '.join(config.models)}: "
                "choose some of its models, or tune these"
            )
        return recipes
    without = {"head_dropout": 0.0}
    return {
        model: Recipe(config.loss, {}, without if set(without) <= set(model_options(model)) else {})
        for model in config.models
    }


def check(config: PredictConfig, corpora: Mapping[str, Corpus]) -> dict[str, Corpus]:
    """Returns the networks of the experiment; settings that cannot work are an error here, before hours of work.

    Raises:
        ValueError: if there are no networks with such an activation, no such model, one that cannot read the networks,
            or tau means nothing on them.
    """
    require_models(config)
    activations = {name: _called(corpus, name) for name, corpus in corpora.items()}
    asked = config.activations
    if missing := [one for one in asked if not any(one in some for some in activations.values())]:
        raise InvalidValueError(f"the data have networks with {', '.join(corpora)}, none with {', '.join(missing)}")
    called = {*get_args(MixedActivation), *corpora, *itertools.chain(*activations.values())}
    if unknown := [pair for pair in config.left_out if pair.partition(":")[0] not in called]:
        raise InvalidValueError(f"left_out has {', '.join(unknown)}: the data are called {', '.join(corpora)}")
    if unknown := [one for one in config.augmented_activations or () if one not in called]:
        raise InvalidValueError(f"augmented_activations has {', '.join(unknown)}: the data have {', '.join(corpora)}")
    names = [name for name, some in activations.items() if not asked or some & {*asked}]
    recipes = recipes_of(config)
    asked_about = {name: _asked_about(corpora[name], config.test_networks) for name in names}
    for corpus in asked_about.values():
        wanted, most = max(config.train_networks, default=0), sum(map(len, corpus.train))
        if wanted > most:
            raise InvalidValueError(
                f"train_networks has {wanted}, but there are {most} {corpus.activation} networks for training: ask for "
                "fewer, make a larger zoo, or test on less than half of one that zoo make made of one architecture "
                "(--data-option tested=0.14)"
            )
        for model in config.models:
            build_model(model, corpus.info, seed=0, **(recipes[model].options if model in recipes else {}))
        drawn = [
            _share_of(corpus.val, n / most, derive_seed(s, "val")) for n in config.train_networks for s in config.seeds
        ]
        require_ranking(corpus.activation, corpus.val, corpus.test)
        require_ranking(corpus.activation, *drawn, way_out="ask for more train_networks")
    return asked_about


def _called(corpus: Corpus, name: str) -> set[str]:
    """Returns the names that settings call networks by: that of their zoo, and their activations."""
    return {info.activation for info in corpus.info.architectures} | {name}


def _asked_about(corpus: Corpus, count: int | None) -> Corpus:
    """Returns the networks with so many of the test networks, always the same ones."""
    most = sum(map(len, corpus.test))
    if count is None or count >= most:
        return corpus
    return replace(corpus, test=_share_of(corpus.test, count / most, derive_seed(0, "test")))


def require_ranking(activation: str, *sets: Parts, way_out: str = "use a larger zoo") -> None:
    """Raises a ValueError if tau means nothing on one of these sets of networks to validate or test on."""
    for parts in sets:
        accuracy = accuracies(parts) if parts else torch.empty(0)
        same = bool((accuracy == accuracy[:1]).all())
        if len(accuracy) < 3 or same:
            what = "which are too few" if len(accuracy) < 3 else f"all with accuracy {accuracy[:1].tolist()}"
            raise InvalidValueError(
                f"{len(accuracy)} {activation} networks to validate or test on, {what}: tau needs three or "
                f"more that differ; {way_out}"
            )


def plan(
    config: PredictConfig, corpora: Mapping[str, Corpus], recipes: Mapping[str, Recipe] | None = None
) -> list[Job]:
    """Returns all runs, seed by seed, so that an interrupted experiment has whole rows for its first seeds.

    Models are trained by these recipes, by default those that the configuration names.
    """
    if recipes is None:
        recipes = recipes_of(config)
    sets = {name: Sets(corpus, config.widen) for name, corpus in corpora.items()}
    data = {name: fingerprint(corpus) for name, corpus in corpora.items()}

    def job(
        config: PredictConfig, name: str, model: str, train_set: TrainSet, seed: int, count: int
    ) -> Job:  # fmt: skip
        corpus, cls, recipe = corpora[name], model_class(model), recipes.get(model)
        settings = RunSettings(
            experiment="predict-generalization",
            subject=corpus.activation,
            model=model,
            train_set=train_set,
            seed=seed,
            options={
                "scales": config.scales if corpus.scales else (),
                "augment_scale": config.augment_scale if train_set != "original" and corpus.scales else None,
                "widen": config.widen if cls.any_width else 0.0,
                **(recipe.built() if recipe else {}),
                **({"train_networks": count} if count else {}),
            },
            data=data[name],
            code=code_of(cls),
            version=VERSION,
            **(recipe.apply(config.training) if recipe else training_of(model, config.training, config.loss)),
        )
        return Job(settings, partial(prepare, sets[name]))

    return [
        job(ranged, name, model, train_set, seed, count)
        for seed in config.seeds
        for count in config.train_networks or (0,)
        for name, corpus in corpora.items()
        for train_set in config.train_sets
        for ranged in (config.ranges(train_set) if corpus.scales else [config])
        for model in config.models
        if config.runs(_called(corpus, name), train_set, model)
    ]


class Sets:
    """Train and test sets made of the networks of a corpus, once for all models of a seed that ask in turn."""

    def __init__(self, corpus: Corpus, widen: float) -> None:
        self.corpus, self.widen = corpus, widen
        self.train = lru_cache(maxsize=1)(self._train)
        self._kept = lru_cache(maxsize=1)(lambda scales, seed: tuple(test_sets(corpus, scales, widen, seed)))

    def tests(self, scales: tuple[float, ...], widened: bool, seed: int) -> Iterator[tuple[str, float | None, Parts]]:
        """Returns test sets as `test_sets`; ``widened``: with the widened networks, if there are any."""
        size = (len(scales) + 4) * sum(t.nbytes for part in self.corpus.test for t in part.networks.tensors.values())
        if size > TEST_BYTES:
            return test_sets(self.corpus, scales, self.widen * widened, seed)
        return (test for test in self._kept(scales, seed) if widened or test[0] != WIDENED)

    def drawn(self, seed: int, count: int) -> tuple[Parts, Parts]:
        """Returns training and validation networks: all, or so many for training and the same share for validation."""
        train, val = self.corpus.train, self.corpus.val
        if not count:
            return train, val
        share = count / sum(map(len, train))
        return _share_of(train, share, derive_seed(seed, "train")), _share_of(val, share, derive_seed(seed, "val"))

    def _train(self, train_set: TrainSet, ranges: tuple[float, ...], seed: int, count: int) -> tuple[Parts, Parts]:
        """Returns the networks of `drawn`, augmented with scales from these ranges, or only the moved copies."""
        train, val = self.drawn(seed, count)
        if train_set != "original":
            train = augment(train, ranges, derive_seed(seed, "augment train"))
            val = augment(val, ranges, derive_seed(seed, "augment val"))
        if train_set == "moved":
            train, val = _copies(train), _copies(val)
        return train, val


def prepare(sets: Sets, settings: RunSettings) -> Trial:
    """Returns model and data of one run."""
    seed, options, corpus = settings.seed, settings.options, sets.corpus
    model = build_model(settings.model, corpus.info, seed=derive_seed(seed, "model"), **options.get("model", {}))
    scales = tuple(options["scales"])
    augment_scale = options["augment_scale"]

    def tests() -> Iterator[Test]:
        for name, scale, parts in sets.tests(scales, bool(options["widen"]), seed):
            yield Test(name, prepared(parts, model.prepare_groups), scale)

    # Inputs are standardised by the networks as they are: scales of 1e6 among the copies would squash all others to 0.
    count = options.get("train_networks", 0)
    model.fit_inputs(model.prepare_groups(groups_of(sets.drawn(seed, count)[0])))
    train, val = sets.train(
        settings.train_set, (scales or (1.0,)) if augment_scale is None else (augment_scale,), seed, count
    )
    data, judging = (prepared(parts, model.prepare_groups) for parts in (train, val))
    quantiles = learned(settings.loss, data.targets)
    return Trial(
        settings, model, data, judging, tests,
        loss=objective(settings.loss, quantiles), metrics=partial(scores, quantiles=quantiles), select="tau",
        outcome=lambda logits, accuracy: {"answers": logits.masked_fill(logits.isnan(), -torch.inf), "true": accuracy},
        predictor=Generalization.of(corpus.info, settings.model, quantiles),
    )  # fmt: skip


def _share_of(parts: Parts, share: float, seed: int) -> Parts:
    """A share of the networks, drawn, a smaller one of a seed among the larger; parts without any are left out."""
    order = torch.randperm(sum(map(len, parts)), generator=torch.Generator().manual_seed(seed))
    chosen = torch.zeros(len(order), dtype=torch.bool)
    chosen[order[: round(share * len(order))]] = True
    return selected(parts, chosen)


def selected(parts: Parts, mask: Tensor) -> Parts:
    """The networks at the places where the mask is true; parts without any are left out."""
    masks = torch.split(mask, [len(part) for part in parts])
    pairs = [(part, chosen.nonzero().flatten()) for part, chosen in zip(parts, masks, strict=True) if chosen.any()]
    return tuple(replace(part, networks=part.networks.subset(index)) for part, index in pairs)


def _copies(augmented: Parts) -> Parts:
    """The second half of every part: `augment`'s moved networks, in the order of those they were made of."""
    return tuple(replace(part, networks=part.networks.subset(slice(len(part) // 2, None))) for part in augmented)


def scores(logits: Tensor, accuracy: Tensor, quantiles: Quantiles | None = None) -> dict[str, float]:
    """Kendall's tau-b and R2 of predicted accuracies ``sigmoid(logits)`` against the true ones.

    Both are finite whatever a model answers: a NaN counts as the lowest logit (below all others, equal to other NaNs
    and to -inf), and where all answers are equal, so that there is no ranking, tau is 0.

    Args:
        logits: ``(N,)``.
        accuracy: ``(N,)`` in [0, 1], not all equal.
        quantiles: in which ``sigmoid(logits)`` are, see `objective`.
    """
    predicted = np.nan_to_num(logits.detach().cpu().double().numpy(), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    true = accuracy.detach().cpu().double().numpy()
    # Ranks, because the logits may be infinite; and of logits, because the sigmoid of large ones is 1.
    ranks = np.unique(predicted, return_inverse=True)[1]
    tau = kendalltau(ranks, true, method="asymptotic").statistic if ranks.max() > 0 else 0.0
    answers = torch.sigmoid(torch.from_numpy(predicted))
    estimate = (answers if quantiles is None else quantiles.accuracy(answers)).numpy()
    r2 = 1 - np.square(true - estimate).sum() / np.square(true - true.mean()).sum()
    return {"tau": float(tau), "r2": float(r2)}
