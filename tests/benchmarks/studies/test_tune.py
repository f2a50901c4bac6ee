"""The search for recipes: nested, honest, the same wherever it was cut off, and read by the other experiments."""

import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import FrozenTrial, TrialState
from small_zoo import corpus

from nfn_monomial.benchmarks.data.networks import Corpus, accuracies
from nfn_monomial.benchmarks.experiments.predict import PREDICT, PredictConfig
from nfn_monomial.benchmarks.experiments.tune import TuneConfig
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies import predict
from nfn_monomial.benchmarks.studies.tune import search
from nfn_monomial.benchmarks.studies.tune.report import Tuned, check, tune, tune_report
from nfn_monomial.benchmarks.studies.tune.search import LEAST, STEPS, Search, crossed, cut, halved, importances
from nfn_monomial.benchmarks.train.recipes import SHIPPED, Recipe, read_recipes, write_recipes
from nfn_monomial.benchmarks.train.runs import RunStore

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
TRAINING = TrainConfig(epochs=3, batch_size=16)
CONFIG = TuneConfig(
    models=("statnn",), trials=6, startup=2, folds=3, cuts=2, epochs=(2, 4), batch_size=(16,), seeds=(0, 1),
    training=TRAINING,
)  # fmt: skip


@pytest.fixture(scope="module")
def zoos() -> dict[str, Corpus]:
    return {name: corpus(name) for name in ("relu", "tanh")}


@pytest.fixture(scope="module")
def found(zoos: dict[str, Corpus], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuned]:
    folder = tmp_path_factory.mktemp("tuned")
    (tuned,) = tune(zoos, CONFIG, RunStore(folder))
    return folder, tuned


def timeless(tried: Sequence[FrozenTrial]) -> list[tuple[Any, ...]]:
    return [(trial.params, trial.value, trial.state, trial.intermediate_values) for trial in tried]


def searched(zoos: dict[str, Corpus], folder: Path, **changed: Any) -> list[FrozenTrial]:
    return Search("statnn", zoos, replace(CONFIG, **changed), folder).run(lambda news: None)


# -- cuts and scores


@given(st.integers(2, 9), st.integers(0, 5))
def test_folds_are_a_partition_of_the_training_networks(folds: int, seed: int) -> None:
    zoo = ZOO
    everything = sorted(accuracies(zoo.train).tolist())
    parts = [cut(zoo, folds, i, seed) for i in range(folds)]
    assert sorted(itertools.chain(*(accuracies(part.val).tolist() for part in parts))) == everything
    for part in parts:
        assert sorted([*accuracies(part.train).tolist(), *accuracies(part.val).tolist()]) == everything
        assert part.test == ()
    sizes = [len(accuracies(part.val)) for part in parts]
    assert max(sizes) - min(sizes) <= 1


ZOO = corpus("relu")


def test_cuts_of_several_architectures(mixed: Corpus) -> None:
    parts = [cut(mixed, 3, i, 0) for i in range(3)]
    assert sum(len(accuracies(part.val)) for part in parts) == len(accuracies(mixed.train))
    assert parts[0].info is mixed.info


def test_half_selects_for_half() -> None:
    epochs = [
        {"tau": 0.5, "first": 0.2, "second": 0.8},
        {"tau": 0.5, "first": 0.6, "second": 0.4},
        {"tau": 0.4, "first": 0.5, "second": 0.3},
    ]
    assert crossed(epochs) == pytest.approx((0.4 + 0.2) / 2)


def test_selecting_among_noise_is_not_rewarded() -> None:
    """Answers that know nothing have tau 0 on average, however many epochs there are to select from."""
    generator = torch.Generator().manual_seed(0)
    accuracy = torch.rand(40, generator=generator)
    scores, flattered = [], []
    for _ in range(30):
        epochs = [halved(torch.randn(40, generator=generator), accuracy) for _ in range(20)]
        scores.append(crossed(epochs))
        flattered.append(max(epoch["tau"] for epoch in epochs))
    assert abs(statistics.fmean(scores)) < 0.08
    assert statistics.fmean(flattered) > 0.12


# -- the search


def test_first_is_the_training_without_a_recipe(found: tuple[Path, Tuned]) -> None:
    first = found[1].tried[0].params
    assert {name: first[name] for name in ("learning_rate", "epochs", "schedule", "loss")} == {
        "learning_rate": TRAINING.learning_rate, "epochs": 3, "schedule": "constant", "loss": "bce",
    }  # fmt: skip
    assert found[1].tried[1].params["schedule"] == "one-cycle"
    assert first["weight_decay"] == CONFIG.weight_decay[0], "0, brought into the space"


def test_what_is_tried_lies_in_what_is_searched(found: tuple[Path, Tuned]) -> None:
    for trial in found[1].tried:
        for name in ("learning_rate", "weight_decay", "epochs"):
            low, high = getattr(CONFIG, name)
            assert low <= trial.params[name] <= high
        assert all(trial.params[name] in getattr(CONFIG, name) for name in ("schedule", "average_epochs", "loss"))
        steps = list(trial.intermediate_values)
        assert steps == sorted(set(steps))
        assert (trial.state == TrialState.PRUNED) == (steps[-1] < STEPS * 4 - 1)
        assert trial.user_attrs["cpu_seconds"] > 0
    assert len({json.dumps(trial.params) for trial in found[1].tried}) == len(found[1].tried)


def test_the_best_is_chosen_and_confirmed_on_the_validation_networks(
    found: tuple[Path, Tuned], zoos: dict[str, Corpus]
) -> None:
    folder, tuned = found
    assert tuned.chosen.value == max(t.value or 0 for t in tuned.tried if t.state == TrialState.COMPLETE)
    assert read_recipes(folder / "recipe.json") == {"statnn": tuned.recipe}
    for how, runs in tuned.runs.items():
        assert [(run.settings.subject, run.settings.seed) for run in runs] == [
            ("relu", 0), ("relu", 1), ("tanh", 0), ("tanh", 1),
        ]  # fmt: skip
        for run in runs:
            assert run.networks == {"train": 48, "val": 24, "test": 24}
            assert [test.name for test in run.tests] == ["validation"]
            assert run.tests[0].metrics == run.val
            assert run.settings.training.epochs == (3 if how == "as registered" else tuned.chosen.params["epochs"])


def test_test_networks_are_not_read_and_validation_networks_choose_nothing(
    found: tuple[Path, Tuned], zoos: dict[str, Corpus], tmp_path: Path
) -> None:
    class Closed:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("a test network was read")

        def __iter__(self) -> Any:
            raise AssertionError("a test network was read")

    others = {name: replace(zoo, val=zoo.test, test=Closed()) for name, zoo in zoos.items()}  # type: ignore[arg-type]
    (tuned,) = tune(others, replace(CONFIG, trials=3), RunStore(tmp_path))
    assert timeless(tuned.tried) == timeless(found[1].tried[:3])


@pytest.mark.slow
def test_a_search_that_was_cut_off_goes_on_as_if_nothing_had_been(
    found: tuple[Path, Tuned], zoos: dict[str, Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cutting(function: Callable[..., Any]) -> Callable[..., Any]:
        calls = itertools.count()

        def wrapped(*arguments: Any, **named: Any) -> Any:
            if next(calls) == 7:
                raise KeyboardInterrupt
            return function(*arguments, **named)

        return wrapped

    cut_off = 0
    while True:
        monkeypatch.setattr(search, "halved", cutting(halved))
        try:
            tried = searched(zoos, tmp_path, trials=4, training=replace(TRAINING, checkpoint_seconds=0))
            break
        except KeyboardInterrupt:
            cut_off += 1
    assert cut_off > 3
    assert timeless(tried) == timeless(found[1].tried[:4])
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [search.JOURNAL], "nothing else is left"


def test_more_trials_go_on_and_time_ends(found: tuple[Path, Tuned], zoos: dict[str, Corpus], tmp_path: Path) -> None:
    few, kept = (timeless(searched(zoos, tmp_path, trials=2)) for _ in range(2))
    more = timeless(searched(zoos, tmp_path, trials=4))
    assert kept == few == more[:2]
    assert more == timeless(found[1].tried[:4])
    assert timeless(searched(zoos, tmp_path, seconds=1e-9)) == more
    assert len(searched(zoos, tmp_path / "new", seconds=1e-9)) == 1


def test_a_recipe_that_is_behind_is_given_up(found: tuple[Path, Tuned]) -> None:
    lost = [trial for trial in found[1].tried if trial.state == TrialState.PRUNED]
    assert lost
    for trial in lost:
        assert trial.last_step is not None
        assert trial.last_step >= 3, "before it is too early to tell"
        others = [t for t in found[1].tried[: trial.number] if t.state == TrialState.COMPLETE]
        there = [max(v for s, v in t.intermediate_values.items() if s <= trial.last_step) for t in others]
        assert max(trial.intermediate_values.values()) <= statistics.median(there)


def test_importances_name_what_matters() -> None:
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))

    def score(trial: optuna.Trial) -> float:
        params = search.suggested(trial, CONFIG, "statnn")
        return 0.5 + 0.4 * (params["loss"] == "rank") + 0.001 * float(params["epochs"])

    with search._quiet():
        study.optimize(score, LEAST - 1)
        assert importances(study, 0) == {}
        study.optimize(score, 2 * LEAST)
    weights = importances(study, 0)
    assert next(iter(weights)) == "loss"
    assert weights == importances(study, 0)


def test_damage_is_named(zoos: dict[str, Corpus], tmp_path: Path) -> None:
    searched(zoos, tmp_path, trials=1)
    journal = tmp_path / search.JOURNAL
    whole = journal.read_text()
    for text in ("{\n" + whole, "[1]\n" + whole, '{"op_code": 4}\n' + whole):
        journal.write_text(text)
        with pytest.raises(ValueError, match=r"is damaged .* remove it, and the search begins anew"):
            searched(zoos, tmp_path, trials=2)


def test_what_cannot_be_searched(zoos: dict[str, Corpus]) -> None:
    with pytest.raises(ValueError, match="cuts is 4, but there are 3 folds"):
        replace(CONFIG, cuts=4)
    with pytest.raises(ValueError, match="should be the lowest, then the highest"):
        replace(CONFIG, learning_rate=(1e-2, 1e-3))
    with pytest.raises(ValueError, match="cannot be cut into 40 folds"):
        check(replace(CONFIG, folds=40), zoos)
    with pytest.raises(ValueError, match="too few that differ in accuracy: use a larger zoo, or fewer folds"):
        check(replace(CONFIG, folds=24), {"relu": equal(ZOO)})
    with pytest.raises(ValueError, match="is a model for the task 'inr'"):
        check(replace(CONFIG, models=("inr-np",)), zoos)


def equal(zoo: Corpus) -> Corpus:
    """All training networks as accurate."""
    for part in zoo.train:
        networks = part.networks.subset(slice(None))
        networks.accuracy = torch.full_like(networks.accuracy, 0.5)
        zoo = replace(zoo, train=(replace(part, networks=networks),))
    return zoo


def test_report(found: tuple[Path, Tuned]) -> None:
    report = tune_report([found[1]], CONFIG)
    recipes, confirmed, budget = report.tables
    assert [line[1] for line in recipes.cells] == ["tried first", "chosen"]
    assert [line[1] for line in confirmed.cells] == ["as registered", "tuned"]
    assert {"tau relu", "tau tanh", "tau mean"} < set(confirmed.header)
    tried, ended, lost = (int(budget.cells[0][i]) for i in (1, 2, 3))
    assert tried == ended + lost == 6
    ax = report.figures["search.png"].axes[0]  # type: ignore[union-attr]
    points = {line.get_label(): len(line.get_xdata()) for line in ax.get_lines()}  # type: ignore[arg-type]
    assert points["to the end"] == points["best so far"] == ended
    assert points.get("given up: best epoch's tau", 0) == lost
    assert json.loads(json.dumps(report.results))["models"]["statnn"]["chosen"] >= 1
    report.contents()


def test_heads_and_targets_are_searched_where_a_model_has_them(zoos: dict[str, Corpus], tmp_path: Path) -> None:
    config = replace(
        CONFIG,
        models=("stats", "statnn"),
        trials=1,
        cuts=1,
        seeds=(0,),
        loss=("quantile",),
        heads=(3,),
        head_width=(8,),
    )
    found = tune({"relu": zoos["relu"]}, config, RunStore(tmp_path))
    recipe = read_recipes(tmp_path / "recipe.json")["stats"]
    assert (recipe.loss, recipe.options) == ("quantile", {"heads": 3, "head_width": 8, "head_dropout": 0.3})
    (plain,), (run,) = found[0].runs["as registered"], found[0].runs["tuned"]
    assert run.settings.options["model"] == recipe.options
    assert "model" not in plain.settings.options
    assert run.parameters < plain.parameters / 8
    recipes = tune_report(found, config).tables[0]
    assert recipes.cells[1][recipes.header.index("heads")] == "3"
    assert recipes.cells[3][recipes.header.index("heads")] == "-", "statnn has none"


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
    settings = {job.settings.model: job.settings for job in predict.plan(replace(PREDICT["tuned"], widen=0), zoos)}
    assert {"stats", "statnn"} < set(shipped) < set(settings)
    for model, recipe in shipped.items():
        assert settings[model].training.learning_rate == recipe.training["learning_rate"]
        assert settings[model].loss == recipe.loss


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "has no recipes: give a recipe.json that `nfn-monomial tune` wrote"),
        ('{"recipes": {"np": {"loss": "bce"}}}', "the recipe of 'np' should have loss and training, options perhaps"),
        (
            '{"recipes": {"np": {"loss": "l1", "training": {}}}}',
            "loss is 'l1', but should be one of bce, mse",
        ),
        ('{"recipes": {"np": {"loss": "bce", "training": {"device": "cuda"}}}}', "training has .*device.* only epochs"),
        ('{"recipes": {"np": {"loss": "bce", "training": {"epochs": 0}}}}', "'np': epochs is 0, but should be"),
        ('{"recipes": {"np": {"loss": "bce", "training": {}, "options": {"heads": 0}}}}', "heads is 0, but should be"),
        ('{"recipes": {"np": {"loss": "bce", "training": {}, "options": {"a": 0}}}}', "options has .*a.* only heads"),
        ('{"recipes": {"np": {"loss": "bce", "training": {}, "data": {}}}}', "options perhaps, and no more"),
    ],
)
def test_recipes_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "recipe.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_recipes(file)
    with pytest.raises(ValueError, match=message):
        predict.require_models(PredictConfig(recipe=str(file)))
