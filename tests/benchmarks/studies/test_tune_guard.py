"""A recipe is given up if it is below the best third of those that ended before, whatever their mean and median are."""

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from small_zoo import corpus

from nfn_monomial.benchmarks.experiments.tune import TuneConfig
from nfn_monomial.benchmarks.settings.register import EXPERIMENTS
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.runs import RunStore

CONFIG = TuneConfig(
    models=("statnn",), trials=4, startup=3, folds=2, cuts=1, epochs=(2, 2), batch_size=(16,), seeds=(0,),
    training=TrainConfig(epochs=2, batch_size=16),
)  # fmt: skip


@pytest.mark.parametrize(
    ("taus", "state"),
    [
        ([0.9, 0.8, 0.1, 0.82], TrialState.PRUNED),  # behind 0.833, ahead of the median, 0.8, and of the mean, 0.6
        ([0.1, 0.2, 0.9, 0.42], TrialState.PRUNED),  # behind 0.433, ahead of the mean, 0.4
        ([0.1, 0.2, 0.9, 0.45], TrialState.COMPLETE),
    ],
)
def test_a_recipe_behind_the_best_third_is_given_up(
    taus: list[float], state: TrialState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes: list[optuna.Trial] = []
    report = optuna.Trial.report

    def report_another(recipe: optuna.Trial, value: float, step: int) -> None:
        recipes.append(recipe)
        report(recipe, taus[recipe.number], step)

    monkeypatch.setattr(optuna.Trial, "report", report_another)
    EXPERIMENTS["tune"].load().run({"relu": corpus("relu")}, CONFIG, RunStore(tmp_path), lambda news: None)
    states = {trial.number: trial.state for trial in recipes[0].study.trials}
    assert states == {0: TrialState.COMPLETE, 1: TrialState.COMPLETE, 2: TrialState.COMPLETE, 3: state}
