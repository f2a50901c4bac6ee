"""No experiment may look at test networks before its end, select on others than validation networks, or take
statistics of others than training networks."""

from pathlib import Path

import pytest
import torch
from held_out import EXPERIMENTS, HELD_OUT, OPPOSITE, HeldOut, Split, guarded

from nfn_monomial.benchmarks.data.networks import accuracies
from nfn_monomial.benchmarks.train.runs import RunStore

by_experiment = pytest.mark.parametrize("name", [name for name in EXPERIMENTS if "tanh" not in name])


@by_experiment
def test_test_networks_are_not_looked_at_before_the_end(name: str, tmp_path: Path) -> None:
    with guarded():
        runs = EXPERIMENTS[name].runs(tmp_path, test=HELD_OUT)
    assert runs
    assert HeldOut.looked_at


@by_experiment
def test_epochs_are_selected_on_validation_networks(name: str, tmp_path: Path) -> None:
    """The opposite is to be learned of them: nothing is learned otherwise, but another epoch is the best."""
    select = EXPERIMENTS[name].trials(tmp_path)[0].select
    usual = EXPERIMENTS[name].runs(tmp_path / "usual")
    opposite = EXPERIMENTS[name].runs(tmp_path / "opposite", val=OPPOSITE)
    for pair in zip(usual, opposite, strict=True):
        losses = [[epoch["train_loss"] for epoch in run.history] for run in pair]
        assert losses[0] == losses[1]
        scores = [[epoch["metrics"][select] for epoch in run.history] for run in pair]
        assert [run.best_epoch for run in pair] == [1 + s.index(max(s)) for s in scores]
        assert pair[0].best_epoch != pair[1].best_epoch


@by_experiment
def test_statistics_are_those_of_training_networks(name: str, tmp_path: Path) -> None:
    """Statistics of inputs, of targets and those in a predictor's file."""
    other = Split(weights=lambda t: 3 * t, targets=lambda t: t * t if t.is_floating_point() else t)
    experiment = EXPERIMENTS[name]
    plain, elsewhere, trained = (
        experiment.trials(tmp_path, **changes) for changes in ({}, {"val": other, "test": other}, {"train": other})
    )
    outputs, targets = torch.linspace(-3, 3, 8), torch.linspace(0.1, 0.9, 8)
    for a, b, c in zip(plain, elsewhere, trained, strict=True):
        states = [trial.model.state_dict() for trial in (a, b, c)]
        assert all(torch.equal(t, states[1][key]) for key, t in states[0].items()), a.settings.model
        if a.settings.model != "statnn":  # it takes none
            assert any(not torch.equal(t, states[2][key]) for key, t in states[0].items()), a.settings.model
        assert a.predictor == b.predictor
        if "predict" in name:
            losses = [trial.loss(outputs, targets) for trial in (a, b, c)]
            assert losses[0] == losses[1] != losses[2], "of quantiles of the training networks' accuracies"
            assert a.metrics(outputs, targets) == b.metrics(outputs, targets) != c.metrics(outputs, targets)


def test_train_chooses_a_model_on_validation_networks_and_knows_the_training_s_mean(tmp_path: Path) -> None:
    train, models = EXPERIMENTS["train"].start, ("stats", "mlp")
    usual, opposite = (
        train(changes, models, RunStore(tmp_path / name))
        for name, changes in (("usual", {}), ("opposite", {"val": OPPOSITE}))
    )
    for learned in (usual, opposite):
        selections = {run.settings.name: run.val["selection"] for run in learned.runs}
        assert selections[learned.chosen.settings.name] == max(selections.values())
        (baseline,) = (run.settings.name for run in learned.runs if run.settings.model == "statnn")
        assert set(learned.tests) == {baseline, learned.chosen.settings.name}, "no other was tested"
        mean, truth = accuracies(learned.labelled.corpus.train).mean(), accuracies(learned.labelled.corpus.test)
        assert learned.constant["test"]["mae"] == pytest.approx(float((truth - mean).abs().mean()))
    assert usual.chosen.settings.model != opposite.chosen.settings.model
