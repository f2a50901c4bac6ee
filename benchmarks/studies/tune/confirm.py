"""What was chosen, beside the training without a recipe: both on all training networks, tau on the validation ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from nfn_monomial.benchmarks.data.networks import Corpus, fingerprint
from nfn_monomial.benchmarks.experiments.tune import TuneConfig
from nfn_monomial.benchmarks.models.catalogue import require_task, training_of
from nfn_monomial.benchmarks.settings.register import News
from nfn_monomial.benchmarks.studies.predict import Sets, learned, prepare
from nfn_monomial.benchmarks.train.recipes import Recipe, write_recipes
from nfn_monomial.benchmarks.train.runs import Run, RunSettings, RunStore
from nfn_monomial.benchmarks.train.sweep import Job, Test, Trial, sweep
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.models import build_model, model_class
from nfn_monomial.tools.store import code_of

from .cuts import cut, halved, require_differences
from .search import Search, best
from .space import Attempt, recipe_of

__all__ = ["RECIPES", "Tuned", "check", "tune"]

RECIPES = "recipe.json"
HOW = ("as registered", "tuned")


@dataclass(frozen=True)
class Tuned:
    """What was found for a model: all that was tried, the recipe that was chosen, and the runs that confirm it.

    ``runs``: with and without the recipe -> every zoo and seed.
    """

    model: str
    tried: list[Attempt]
    recipe: Recipe
    runs: Mapping[str, list[Run]]

    @property
    def chosen(self) -> Attempt:
        """The attempt that the recipe is of."""
        return best(self.tried)


def check(config: TuneConfig, corpora: Mapping[str, Corpus]) -> dict[str, Corpus]:
    """The networks that are searched on, without test networks; what cannot be done is found out here.

    Raises:
        ValueError: if there is no such model, it cannot read the networks, or they are too few or too equal.
    """
    require_task(config.models, "generalization", "ablation")
    found = {name: replace(corpus, test=()) for name, corpus in corpora.items()}
    for corpus in found.values():
        for model in config.models:
            build_model(model, corpus.info, seed=0)
        require_differences(corpus)
        if sum(map(len, corpus.train)) < 2 * config.folds:
            raise InvalidValueError(f"{sum(map(len, corpus.train))} networks cannot be cut into {config.folds} folds")
        for number in range(config.cuts):
            require_differences(cut(corpus, config.folds, number, config.seeds[0]))
    return found


def tune(
    corpora: Mapping[str, Corpus],
    config: TuneConfig,
    store: RunStore,
    on_news: Callable[[News], None] = lambda news: None,
) -> list[Tuned]:
    """Search and confirm, model by model; does what the store does not have. Recipes are written as they are found.

    Args:
        corpora: name -> networks.
        config: see `TuneConfig`.
        store: where attempts, runs and recipes are kept.
        on_news: told how it goes.

    Raises:
        ValueError: as `check`.
    """
    corpora = check(config, corpora)
    found: list[Tuned] = []
    for model in config.models:
        tried = Search(model, corpora, config, store.folder).run(on_news)
        recipe = recipe_of(best(tried).params, config.training)
        write_recipes(store.folder / RECIPES, {t.model: t.recipe for t in found} | {model: recipe})
        jobs = {how: _jobs(model, corpora, config, recipe if how == "tuned" else None) for how in HOW}
        runs = iter(sweep([job for some in jobs.values() for job in some], store, on_news))
        found.append(Tuned(model, tried, recipe, {how: [next(runs) for _ in some] for how, some in jobs.items()}))
    return found


def _jobs(model: str, corpora: Mapping[str, Corpus], config: TuneConfig, recipe: Recipe | None) -> list[Job]:
    how = recipe.apply(config.training) if recipe else training_of(model, config.training, "bce")
    return [
        Job(
            RunSettings(
                experiment="tune",
                subject=name,
                model=model,
                train_set="original",
                seed=seed,
                options={"scales": (), "augment_scale": None, "widen": 0.0, **(recipe.built() if recipe else {})},
                data=fingerprint(corpus),
                code=code_of(model_class(model)),
                **how,
            ),
            partial(_prepare, Sets(corpus, 0.0)),
        )
        for name, corpus in corpora.items()
        for seed in config.seeds
    ]


def _prepare(sets: Sets, settings: RunSettings) -> Trial:
    trial = prepare(sets, settings)
    quantiles = learned(settings.loss, trial.train.targets)
    return replace(
        trial, metrics=partial(halved, quantiles=quantiles), tests=lambda: [Test("validation", trial.val)],
        predictor={"unusable": "it was trained to confirm a recipe; train one by predict-generalization"},
    )  # fmt: skip
