"""The search: recipes are tried until there are enough; each model's attempts in a file, of which nothing is lost."""

from __future__ import annotations

import hashlib
import json
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import optuna

from nfn_monomial import __version__
from nfn_monomial.benchmarks.data.batches import DataSet, prepared
from nfn_monomial.benchmarks.data.networks import Corpus, fingerprint, groups_of, looked_at
from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.experiments.tune import TuneConfig
from nfn_monomial.benchmarks.models.catalogue import training_of
from nfn_monomial.benchmarks.reading import read_json
from nfn_monomial.benchmarks.settings.register import News
from nfn_monomial.benchmarks.settings.training import RUNTIME
from nfn_monomial.benchmarks.studies.predict import learned, objective
from nfn_monomial.benchmarks.train.checkpoint import Checkpoint
from nfn_monomial.benchmarks.train.devices import make_fabric, threads
from nfn_monomial.benchmarks.train.loop import Epoch, fit
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files import write_json
from nfn_monomial.tools.predictors.models import build_model, model_class
from nfn_monomial.tools.store import code_of

from .cuts import crossed, cut, halved
from .space import STEPS, Attempt, propose, recipe_of, space_of, start_of

__all__ = ["Search", "Tried", "best", "shown"]


@dataclass(frozen=True)
class Tried:
    """News of a search: so many recipes were tried."""

    title: str
    done: float
    total: int
    line: str = ""


def best(tried: list[Attempt]) -> Attempt:
    """The one with the highest score, the first of equal ones."""
    return max((attempt for attempt in tried if attempt.score is not None), key=lambda a: a.score or 0.0)


class Search:
    """The search for one model's recipe.

    Args:
        model: registered name.
        corpora: by name; only their training networks are looked at.
        config: of the search.
        folder: of the results, which gets ``trials/*.json``, and ``partial/`` while a recipe is tried.
    """

    def __init__(self, model: str, corpora: Mapping[str, Corpus], config: TuneConfig, folder: Path) -> None:
        self.model, self.corpora, self.config = model, corpora, config
        self.space = space_of(config, model)
        own = training_of(model, config.training, "bce")
        self.start = start_of(self.space, own["training"], own["loss"])
        self.name = f"{model}-{self._digest()}"
        self.file = folder / "trials" / f"{self.name}.json"
        self.partial = folder / "partial"
        self._data = cache(self._prepared)

    def _digest(self) -> str:
        """Of all that determines what an attempt comes to."""
        config = self.config
        training = {name: value for name, value in asdict(config.training).items() if name not in RUNTIME}
        cuts = [cut(corpus, config.folds, i, config.seeds[0]) for corpus in self.corpora.values() for i in self._cuts]
        values = [
            training, self.start, {name: repr(values) for name, values in self.space.items()}, config.startup,
            config.folds, config.cuts, config.seeds[0], list(self.corpora), [fingerprint(part) for part in cuts],
            code_of(model_class(self.model)), __version__,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]

    @property
    def _cuts(self) -> range:
        return range(self.config.cuts)

    def run(self, on_news: Callable[[News], None]) -> list[Attempt]:
        """Try recipes until there are as many as were asked for, or the time is over; returns all.

        Raises:
            ValueError: if the file of attempts is damaged.
        """
        tried = self._load()
        kept = len(tried)
        while len(tried) < self.config.trials and not self._spent(tried):
            self._clear(len(tried))
            on_news(Tried(f"{self.model}, recipe {len(tried) + 1}", len(tried), self.config.trials))
            with threads(self.config.training.threads):
                tried.append(self._try(tried, on_news))
            write_json(self.file, [asdict(attempt) for attempt in tried])
            on_news(self._news(tried, ""))
        self._clear(len(tried))
        if kept == len(tried):
            on_news(self._news(tried, " (kept)"))
        return tried

    def _spent(self, tried: list[Attempt]) -> bool:
        limit = self.config.seconds
        return limit is not None and bool(tried) and sum(attempt.cpu_seconds for attempt in tried) >= limit

    def _news(self, tried: list[Attempt], how: str) -> Tried:
        last, total = tried[-1], self.config.trials
        found = "given up" if last.score is None else f"tau {last.score:.3f}"
        line = f"{len(tried)}/{total} {self.model}{how}: {found}, best {best(tried).score:.3f}, {shown(last.params)}"
        return Tried(self.model, len(tried), total, line)

    def _load(self) -> list[Attempt]:
        if not self.file.exists():
            return []
        try:
            found = [Attempt(**values) for values in read_json(self.file)]
            names = set(self.space)
            if any(set(attempt.params) != names for attempt in found) or (found and found[0].score is None):
                raise InvalidValueError("its attempts are of another search")
            return [replace(a, curve=tuple((int(step), float(value)) for step, value in a.curve)) for a in found]
        except (TypeError, ValueError) as error:
            raise InvalidValueError(
                f"{self.file} is damaged ({error}): remove it, and the search begins anew"
            ) from None

    def _place(self, number: int) -> Path:
        return self.partial / f"{self.name}-{number}"

    def _clear(self, number: int) -> None:
        """Forget trainings of attempts before this one, which are finished."""
        for place in self.partial.glob(f"{self.name}-*") if self.partial.exists() else ():
            if place != self._place(number) or number >= self.config.trials:
                shutil.rmtree(place)

    def _prepared(self, name: str, number: int) -> tuple[Any, DataSet, DataSet]:
        """What inputs are fitted to, training and validation data: the same for all recipes."""
        corpus = cut(self.corpora[name], self.config.folds, number, self.config.seeds[0])
        model = build_model(self.model, corpus.info, seed=0)
        looked = model.prepare_groups(groups_of(looked_at(corpus.train)))
        return looked, prepared(corpus.train, model.prepare_groups), prepared(corpus.val, model.prepare_groups)

    def _try(self, tried: list[Attempt], on_news: Callable[[News], None]) -> Attempt:
        """One recipe, on every cut of every zoo, unless it falls behind."""
        start, config, seed = time.process_time(), self.config, self.config.seeds[0]
        trial = propose(self.space, config.startup, self.start, tried, seed)
        recipe = recipe_of(trial.params, config.training)
        how = recipe.apply(config.training)
        fabric = make_fabric(config.training)
        trainings = [(number, name) for number in self._cuts for name in self.corpora]
        curve: dict[int, float] = {}
        finished: list[float] = []
        scores: list[float] = []
        for i, (number, name) in enumerate(trainings):
            history: list[Epoch] = []

            def follow(epoch: Epoch, i: int = i, history: list[Epoch] = history) -> None:
                history.append(epoch)
                step = STEPS * i + (STEPS * epoch.number - 1) // how["training"].epochs
                on_news(Tried(f"{self.model}, recipe {len(tried) + 1}", len(tried) + step / STEPS / len(trainings),
                              config.trials))  # fmt: skip
                if epoch.metrics and step not in curve:
                    top = max(e.metrics["tau"] for e in history if e.metrics)
                    curve[step] = statistics.fmean([*finished, top])
                    trial.report(curve[step], step)
                    if tried and trial.should_prune():
                        raise optuna.TrialPruned

            which = hashlib.sha256(json.dumps(trial.params, sort_keys=True).encode()).hexdigest()[:10]
            checkpoint = self._place(len(tried)) / f"{name}-{number}-{which}.ckpt"
            looked, train, val = self._data(name, number)
            model = build_model(self.model, self.corpora[name].info, seed=derive_seed(seed, "model"), **recipe.options)
            model.fit_inputs(looked)
            quantiles = learned(recipe.loss, train.targets)
            try:
                for values in (Checkpoint(checkpoint).load() or {"state": {"history": ()}})["state"]["history"]:
                    follow(Epoch(**values))  # which `fit` does not tell again
                fitted = fit(
                    model, train, val, how["training"], loss=objective(recipe.loss, quantiles),
                    metrics=partial(halved, quantiles=quantiles), select="tau", seed=seed, fabric=fabric,
                    on_epoch=follow, checkpoint=checkpoint,
                )  # fmt: skip
            except optuna.TrialPruned:
                return Attempt(trial.params, None, tuple(curve.items()), time.process_time() - start)
            finished.append(fitted.best.metrics["tau"])
            scores.append(crossed(epoch.metrics for epoch in fitted.history if epoch.metrics))
        return Attempt(trial.params, statistics.fmean(scores), tuple(curve.items()), time.process_time() - start)


def shown(params: Mapping[str, Any]) -> str:
    """A recipe in a line."""
    return ", ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
                     for name, value in params.items())  # fmt: skip
