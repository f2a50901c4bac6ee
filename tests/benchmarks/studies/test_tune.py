"""The search for recipes: nested, honest, the same wherever it was cut off, and read by the other experiments."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import torch
from optuna.trial import FixedTrial, FrozenTrial, TrialState
from small_zoo import corpus

from nfn_monomial.benchmarks.data.batches import pick
from nfn_monomial.benchmarks.data.networks import Corpus, accuracies
from nfn_monomial.benchmarks.experiments.predict import PREDICT, PredictConfig
from nfn_monomial.benchmarks.experiments.tune import TuneConfig
from nfn_monomial.benchmarks.models.catalogue import model_names
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies import predict
from nfn_monomial.benchmarks.studies import tune as study
from nfn_monomial.benchmarks.studies.tune import Tuned, attempts, crossed, cut, search, tune
from nfn_monomial.benchmarks.train.loop import Epoch
from nfn_monomial.benchmarks.train.recipes import SHIPPED, Recipe, read_recipes, write_recipes
from nfn_monomial.benchmarks.train.runs import Run, RunStore

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
TRAINING = TrainConfig(epochs=2, batch_size=16)
CONFIG = TuneConfig(
    models=("statnn",), trials=4, startup=2, folds=2, cuts=2, epochs=(1, 2), batch_size=(16,), seeds=(0, 1),
    training=TRAINING,
)  # fmt: skip


@pytest.fixture(scope="module")
def zoos() -> dict[str, Corpus]:
    return {name: corpus(name) for name in ("relu", "tanh")}


@pytest.fixture(scope="module")
def searched_once(zoos: dict[str, Corpus], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuned]:
    folder = tmp_path_factory.mktemp("tuned")
    (tuned,) = tune(zoos, CONFIG, RunStore(folder))
    return folder, tuned


def timeless(tried: Sequence[FrozenTrial]) -> list[tuple[Any, ...]]:
    return [(trial.params, trial.value, trial.state, trial.intermediate_values) for trial in tried]


def searched(zoos: dict[str, Corpus], folder: Path, **changed: Any) -> list[FrozenTrial]:
    return attempts(search("statnn", zoos, replace(CONFIG, **changed), folder, lambda news: None))


# -- cuts and scores


def test_folds_are_a_partition_of_the_training_networks(mixed: Corpus) -> None:
    for zoo in (corpus("relu"), mixed):
        everything = sorted(accuracies(zoo.train).tolist())
        parts = [cut(zoo, 5, i, 0) for i in range(5)]
        assert sorted(itertools.chain(*(accuracies(part.val).tolist() for part in parts))) == everything
        for part in parts:
            assert sorted([*accuracies(part.train).tolist(), *accuracies(part.val).tolist()]) == everything
            assert part.test == ()


def test_half_selects_for_half() -> None:
    epochs = [
        {"tau": 0.5, "first": 0.2, "second": 0.8},
        {"tau": 0.5, "first": 0.6, "second": 0.4},
        {"tau": 0.4, "first": 0.5, "second": 0.3},
    ]
    assert crossed(epochs) == pytest.approx((0.4 + 0.2) / 2)


# -- the search


def test_the_best_is_chosen_and_confirmed_on_the_validation_networks(searched_once: tuple[Path, Tuned]) -> None:
    folder, tuned = searched_once
    chosen = tuned.study.best_trial
    assert chosen.value == max(t.value or 0 for t in attempts(tuned.study) if t.state == TrialState.COMPLETE)
    assert read_recipes(folder / "recipe.json") == {"statnn": tuned.recipe}
    for how, runs in tuned.runs.items():
        assert [(run.settings.subject, run.settings.seed) for run in runs] == [
            ("relu", 0), ("tanh", 0), ("relu", 1), ("tanh", 1),
        ]  # fmt: skip
        for run in runs:
            assert run.networks == {"train": 48, "val": 24, "test": 24}
            assert [test.name for test in run.tests] == ["validation"]
            assert run.tests[0].metrics == run.val
            assert run.settings.training.epochs == (2 if how == "as registered" else chosen.params["epochs"])


def test_recipes_are_those_of_the_runs_and_of_other_calls_are_kept(
    searched_once: tuple[Path, Tuned], zoos: dict[str, Corpus], tmp_path: Path
) -> None:
    tuned = searched_once[1]
    for how, runs in tuned.runs.items():
        for run in runs:
            assert tuned.recipes[how].apply(TRAINING)["training"] == replace(run.settings.training, device="cpu")
            assert tuned.recipes[how].loss == run.settings.loss
    others = {"np": tuned.recipe, "statnn": Recipe("mse", {})}
    write_recipes(tmp_path / "recipe.json", others)
    (again,) = tune(zoos, replace(CONFIG, trials=1), RunStore(tmp_path))
    assert read_recipes(tmp_path / "recipe.json") == {"np": tuned.recipe, "statnn": again.recipe}


@pytest.mark.parametrize(("gain", "taken"), [(0.1, "tuned"), (0.0, "as registered"), (-0.1, "as registered")])
def test_the_training_that_is_ahead_on_the_validation_networks_is_taken(
    searched_once: tuple[Path, Tuned], gain: float, taken: str
) -> None:
    """The best of a search may be luck; so it is compared with the training as registered, on all zoos together."""
    tuned = searched_once[1]

    def runs(how: str) -> list[Run]:
        tau = {"relu": 0.5, "tanh": 0.7}
        if how == "tuned":
            tau = {"relu": 0.5 - gain, "tanh": 0.7 + 2 * gain}  # zoos disagree
        metrics = {name: dict.fromkeys(("tau", "first", "second"), value) for name, value in tau.items()}
        return [replace(run, history=({"metrics": metrics[run.settings.subject]},)) for run in tuned.runs[how]]

    one = replace(tuned, runs={how: runs(how) for how in tuned.runs})
    assert one.taken == taken
    assert one.recipe == tuned.recipes[taken]
    assert study.tune_report([one], CONFIG).results["models"]["statnn"]["taken"] == taken
    assert [line[2] for line in study.tune_report([one], CONFIG).tables[1].cells] == [
        "no" if taken == "tuned" else "yes", "yes" if taken == "tuned" else "no",
    ]  # fmt: skip


def test_the_training_as_registered_is_a_recipe(zoos: dict[str, Corpus]) -> None:
    """By it a model is trained as it is without one, whatever else an experiment says."""
    for model in ("statnn", "gram-stats"):
        training = replace(TRAINING, schedule="cosine", clip_norm=None, patience=7, warmup_steps=3)
        config = replace(CONFIG, models=(model,), training=training)
        recipe = study._registered(model, config)
        plain, by_recipe = (study._jobs(model, zoos, config, way, (0,))[0].settings for way in (None, recipe))
        assert (by_recipe.training, by_recipe.loss, by_recipe.options) == (plain.training, plain.loss, plain.options)
        assert recipe.apply(TrainConfig(epochs=99, learning_rate=1.0, patience=1))["training"] == plain.training


def test_more_trials_go_on_and_time_ends(
    searched_once: tuple[Path, Tuned], zoos: dict[str, Corpus], tmp_path: Path
) -> None:
    few, more = (timeless(searched(zoos, tmp_path, trials=trials)) for trials in (2, 4))
    assert few == more[:2]
    assert more == timeless(attempts(searched_once[1].study))
    assert len(searched(zoos, tmp_path / "new", seconds=1e-9)) == 1
    first = more[0][0]
    assert (first["learning_rate"], first["epochs"], first["schedule"]) == (TRAINING.learning_rate, 2, "constant")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_was_cut_off_is_tried_again(
    searched_once: tuple[Path, Tuned],
    zoos: dict[str, Corpus],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Any,
) -> None:
    """In each of the trainings of the first recipe and of a proposed one."""
    train, calls = study.train, itertools.count(1)

    def dying(*args: Any, **how: Any) -> Any:
        if next(calls) in (2, 5, 12):
            raise error
        return train(*args, **how)

    monkeypatch.setattr(study, "train", dying)
    for _ in range(3):
        with pytest.raises(error):
            searched(zoos, tmp_path)
    assert timeless(searched(zoos, tmp_path)) == timeless(attempts(searched_once[1].study))


def scripted(taus: Sequence[Sequence[float]]) -> Callable[..., Any]:
    """In place of a training: one of ten epochs, the next of these lists of taus."""
    left = iter(taus)

    def train(trial: Any, on_epoch: Callable[[Epoch], None]) -> Any:
        epochs = trial.settings.training.epochs
        history = []
        for number, tau in enumerate(next(left), start=1):
            history.append(Epoch(number * epochs // 10, 0.0, {"tau": tau, "first": tau, "second": tau}, 0, 0, 0))
            on_epoch(history[-1])
        return SimpleNamespace(history=history)

    return train


@pytest.mark.parametrize(
    ("tau", "ended"), [(0.7, 4), (0.83, 4), (0.84, 10), (0.9, 10)], ids=["mean", "median", "third", "ahead"]
)
def test_given_up_behind_the_best_third(
    zoos: dict[str, Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tau: float, ended: int
) -> None:
    """Two thirds of the way from 0.1 over 0.8 to 0.9 are 0.833. The first three tenths are not compared."""
    monkeypatch.setattr(study, "train", scripted([[0.1] * 10, [0.8] * 10, [0.9] * 10, [tau] * 10]))
    one = {"relu": zoos["relu"]}
    *before, last = searched(one, tmp_path, startup=3, cuts=1, epochs=(10, 10))
    assert [trial.state for trial in before] == [TrialState.COMPLETE] * 3, "as many as startup says"
    assert list(last.intermediate_values.values()) == [tau] * ended
    assert last.state == (TrialState.COMPLETE if ended == 10 else TrialState.PRUNED)


def test_the_best_tau_so_far_is_compared(
    zoos: dict[str, Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best of each training; a recipe's value is the mean over those that it has begun."""
    taus = [[0.3, 0.5, 0.2, *[0.1] * 7], [0.4] * 9 + [0.9]]
    monkeypatch.setattr(study, "train", scripted(taus))
    (trial,) = searched({"relu": zoos["relu"]}, tmp_path, trials=1, epochs=(10, 10))
    expected = [0.3, *[0.5] * 9, *[(0.5 + 0.4) / 2] * 9, (0.5 + 0.9) / 2]
    assert list(trial.intermediate_values.items()) == [(i, pytest.approx(tau)) for i, tau in enumerate(expected)]
    assert trial.value == pytest.approx((0.5 + 0.9) / 2)


def test_test_networks_are_not_read_and_validation_networks_choose_nothing_in_the_search(
    searched_once: tuple[Path, Tuned], zoos: dict[str, Corpus], tmp_path: Path
) -> None:
    class Closed:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("a test network was read")

        def __iter__(self) -> Any:
            raise AssertionError("a test network was read")

    others = {name: replace(zoo, val=zoo.test, test=Closed()) for name, zoo in zoos.items()}  # type: ignore[arg-type]
    (tuned,) = tune(others, replace(CONFIG, trials=3), RunStore(tmp_path))
    assert timeless(attempts(tuned.study)) == timeless(attempts(searched_once[1].study)[:3])


@pytest.mark.parametrize("model", [*model_names(), "gnn-paper", "balanced-hnp"])
def test_every_model_can_be_tuned(zoos: dict[str, Corpus], model: str) -> None:
    """The search gives a recipe, and by its job the model is built and learns."""
    config = replace(CONFIG, models=(model,), weight_decay=(0.1, 0.2))
    study.check(config, {"relu": zoos["relu"]})
    for params in study._first(config, model):
        assert study._suggested(FixedTrial(params), config, model) == params  # type: ignore[arg-type]
        recipe = study.recipe_of(params, TRAINING)
        assert set(recipe.options) == set(study.OPTIONS) & set(study.model_options(model))
        (job,) = study._jobs(model, {"relu": zoos["relu"]}, config, recipe, (0,))
        assert job.settings.training.weight_decay >= 0.1
        assert job.settings.version == study.VERSION, "its own, so that a search outlives other experiments"
        trial = job.prepare(job.settings)
        index = torch.arange(3)
        trial.loss(trial.model(pick(trial.train.inputs, index)), pick(trial.train.targets, index)).backward()


def test_every_model_is_searched_over_the_same_settings_from_its_own() -> None:
    """Those of the tables have one budget; the first recipe is the training of the model as it is registered."""
    models = ("statnn", "np", "hnp", "gnn", "monomial", "monomial-hnp", "message-passing-stats", "gram-stats", "probes")
    config = TuneConfig(models=models)
    first = {model: study._first(config, model)[0] for model in (*models, "balanced-statnn")}
    settings = {*study.SPANS, *study.CHOICES, "head_dropout"}
    assert all(set(values) - {"heads", "head_width"} == settings for values in first.values())
    assert {model for model, values in first.items() if values["head_dropout"]} == {
        "message-passing-stats", "gram-stats", "probes",
    }  # fmt: skip
    assert config.heads == (1,)
    assert len(config.head_width) == 1


def test_a_damaged_journal_is_refused(zoos: dict[str, Corpus], tmp_path: Path) -> None:
    (tmp_path / "search-statnn.journal").write_text('{"op_code": 0}\n[]\n')
    with pytest.raises(ValueError, match=r"search-statnn.journal is damaged .*: remove it"):
        searched(zoos, tmp_path)
    assert optuna.logging.get_verbosity() == optuna.logging.INFO, "which is given back"


def test_a_line_that_a_full_disk_cut_off_is_written_again(
    searched_once: tuple[Path, Tuned], zoos: dict[str, Corpus], tmp_path: Path
) -> None:
    searched(zoos, tmp_path, trials=3)
    with (tmp_path / "search-statnn.journal").open("a", encoding="utf-8") as journal:
        journal.write('{"op_code": 4, "wor')
    assert timeless(searched(zoos, tmp_path)) == timeless(attempts(searched_once[1].study))


# -- recipes


def test_recipes_are_what_models_are_trained_by(tmp_path: Path, zoos: dict[str, Corpus]) -> None:
    file = tmp_path / "recipe.json"
    write_recipes(file, {"statnn": Recipe("rank", {"epochs": 2, "learning_rate": 0.02, "schedule": "cosine"})})
    config = PredictConfig(models=("statnn", "probes"), seeds=(0,), recipe=str(file), training=TRAINING)
    settings = {job.settings.model: job.settings for job in predict.plan(config, zoos)}
    assert settings["statnn"].loss == "rank"
    assert settings["statnn"].training == replace(TRAINING, epochs=2, learning_rate=0.02, schedule="cosine")
    assert settings["probes"].loss == "bce"
    assert settings["probes"].training == replace(TRAINING, weight_decay=0.1), "as the model asks for"


def test_shipped_recipes_are_those_of_the_committed_search(zoos: dict[str, Corpus]) -> None:
    shipped = read_recipes(SHIPPED)
    assert shipped == read_recipes(RESULTS / "tune" / "recipe.json")
    config = PREDICT["zoos"]
    assert set(config.models) <= set(shipped), "one search for all of them"
    settings = {job.settings.model: job.settings for job in predict.plan(replace(config, train_networks=()), zoos)}
    for model in config.models:
        assert settings[model].training.learning_rate == shipped[model].training["learning_rate"]
        assert settings[model].loss == shipped[model].loss


def test_all_models_of_the_committed_search_had_the_same_budget() -> None:
    results = json.loads((RESULTS / "tune" / "results.json").read_text(encoding="utf-8"))["models"]
    assert set(results) == set(read_recipes(SHIPPED))
    assert {len(found["tried"]) for found in results.values()} == {24}
    for model, found in results.items():
        means = {how: taus["mean"]["mean"] for how, taus in found["confirmed"].items()}
        assert means[found["taken"]] == max(means.values()), model


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"recipes": {"np": {"loss": "bce"}}}', "the recipe of 'np' should have loss and training, options perhaps"),
        (
            '{"recipes": {"np": {"loss": "l1", "training": {}}}}',
            "loss is 'l1', but should be one of bce, mse",
        ),
        ('{"recipes": {"np": {"loss": "bce", "training": {"device": "cuda"}}}}', "training has .*device.* only epochs"),
        ('{"recipes": {"np": {"loss": "bce", "training": {}, "options": {"a": 0}}}}', "options has .*a.* only heads"),
    ],
)
def test_recipes_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "recipe.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_recipes(file)
    with pytest.raises(ValueError, match=message):
        predict.require_models(PredictConfig(recipe=str(file)))
