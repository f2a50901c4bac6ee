"""The experiment: honest scores, runs that are kept, redone and never half there."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_zoo import corpus, small_zoo

from nfn_monomial.benchmarks.data.networks import Corpus, Networks
from nfn_monomial.benchmarks.experiments.predict import PredictConfig
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies import predict
from nfn_monomial.benchmarks.studies.predict import (
    LOSSES,
    default_models,
    plan,
    predict_generalization,
    scores,
)
from nfn_monomial.benchmarks.train import sweep as experiment
from nfn_monomial.benchmarks.train.runs import Run, RunStore
from nfn_monomial.benchmarks.train.sweep import Job, Progress, run_job
from nfn_monomial.tools.predictors.models import model_class

TINY = TrainConfig(epochs=2, batch_size=16)
CONFIG = PredictConfig(models=("statnn", "monomial"), seeds=(0, 1), scales=(1e1, 1e6), training=TINY)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs that were really trained."""
    names: list[str] = []
    original = experiment.run_job

    def counted(job: Job, **others: Any) -> Any:
        names.append(job.settings.name)
        return original(job, **others)

    monkeypatch.setattr(experiment, "run_job", counted)
    return names


# -- scores


def test_scores_of_a_perfect_and_of_a_reversed_ranking() -> None:
    accuracy = torch.tensor([0.1, 0.4, 0.6, 0.9])
    perfect = scores(torch.logit(accuracy), accuracy)
    assert perfect["tau"] == pytest.approx(1)
    assert perfect["r2"] == pytest.approx(1)
    assert scores(-torch.logit(accuracy), accuracy)["tau"] == pytest.approx(-1)
    constant = scores(torch.zeros(4), accuracy)
    assert constant["tau"] == 0
    assert constant["r2"] == pytest.approx(0, abs=1e-12), "the mean, 0.5, is predicted for all"


def test_scores_count_large_logits_as_different_though_their_sigmoid_is_1() -> None:
    accuracy = torch.tensor([0.1, 0.4, 0.6, 0.9])
    assert scores(torch.tensor([100.0, 1e5, 1e9, 1e30]), accuracy)["tau"] == pytest.approx(1)


def test_scores_of_nan_and_infinity() -> None:
    accuracy = torch.tensor([0.1, 0.2, 0.6, 0.9])
    nan, inf = math.nan, math.inf
    assert scores(torch.tensor([nan, -3.0, 1.0, inf]), accuracy)["tau"] == pytest.approx(1)
    assert scores(torch.tensor([3.0, 2.0, 1.0, nan]), accuracy)["tau"] == pytest.approx(-1)
    assert scores(torch.full((4,), nan), accuracy)["tau"] == 0
    # NaN counts as an answer of 0, so as the worst of all estimates and not as a missing one.
    assert scores(torch.full((4,), nan), accuracy) == scores(torch.full((4,), -inf), accuracy)
    assert scores(torch.full((4,), nan), accuracy)["r2"] < -1


def test_ties_are_counted_as_in_tau_b() -> None:
    accuracy = torch.tensor([0.1, 0.2, 0.3, 0.4])
    # Five of six pairs are ordered rightly, one is tied: 5 / sqrt(5 * 6).
    assert scores(torch.tensor([1.0, 1.0, 2.0, 3.0]), accuracy)["tau"] == pytest.approx(5 / math.sqrt(30))


# -- losses


def test_losses_are_least_for_the_right_answer_and_ranking() -> None:
    accuracy = torch.tensor([0.1, 0.4, 0.6, 0.9])
    right, reversed_, shy = torch.logit(accuracy), -torch.logit(accuracy), 0.1 * torch.logit(accuracy)
    for name, loss in LOSSES.items():
        assert loss(right, accuracy) < min(loss(reversed_, accuracy), loss(shy, accuracy)), name
    assert LOSSES["mse"](right, accuracy) == pytest.approx(0, abs=1e-12)
    pairs = [1.5, 1.0, -2.0]  # logits of accuracies a < b < c, so all three pairs are in the wrong order by these
    wrong = torch.tensor(pairs)
    expected = sum(math.log1p(math.exp(pairs[i] - pairs[j])) for i, j in ((0, 1), (0, 2), (1, 2))) / 3
    target = torch.tensor([0.1, 0.2, 0.3])
    found = LOSSES["rank"](wrong, target) - LOSSES["bce"](wrong, target)
    assert found == pytest.approx(expected, rel=1e-5)
    assert torch.isfinite(LOSSES["rank"](wrong, torch.full((3,), 0.5))), "networks that are all equal have no order"


# -- mixed zoos


# -- runs


def test_results_and_what_is_kept(zoo: Corpus, tmp_path: Path, trainings: list[str]) -> None:
    zoos = {"relu": zoo, "tanh": corpus("tanh")}
    store = RunStore(tmp_path)
    runs = predict_generalization(zoos, CONFIG, store)
    assert len(trainings) == len(runs) == 2 * 2 * 2 * 2  # activations, train sets, models, seeds
    assert [run.settings.name for run in runs] == trainings
    files = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert files == sorted(f"{name}.{suffix}" for name in trainings for suffix in ("piece", "safetensors"))
    for run in runs:
        moved = ["scale 10", "scale 1e+06"] if run.settings.subject == "relu" else ["sign flips"]
        assert [t.name for t in run.tests] == ["original", *moved, "widened"]
        assert run.sees == "weights"
        assert run.networks["train"] == (96 if run.settings.train_set == "augmented" else 48)
        assert len(run.history) == 2
        assert run.val["tau"] == max(epoch["metrics"]["tau"] for epoch in run.history)
        if run.settings.model == "monomial":
            # Rounding may swap a pair of the 276 that 24 networks are.
            assert all(abs(t.metrics["tau"] - run.tests[0].metrics["tau"]) < 0.03 for t in run.tests[:-1])
    again = predict_generalization(zoos, CONFIG, store)
    assert again == runs
    assert len(trainings) == 16, "nothing was done twice"

    store.run_file(runs[3].settings).unlink()
    store.predictor_file(runs[7].settings).unlink()
    cut_off = store.run_file(runs[9].settings)
    cut_off.write_bytes(cut_off.read_bytes()[:-100])
    missing = predict_generalization(zoos, CONFIG, store)
    assert trainings[16:] == [trainings[i] for i in (3, 7, 9)]
    for new, old in zip(missing, runs, strict=True):
        assert new.tests == old.tests, "a seed reproduces a run"

    predict_generalization(zoos, replace(CONFIG, seeds=(0, 1, 2), models=("monomial",)), store)
    assert len(trainings) == 19 + 4, "one more seed is all that is missing"
    predict_generalization(zoos, replace(CONFIG, models=("monomial",), scales=(1e2,)), store)
    assert len(trainings) == 23 + 4, "other scales concern networks that have scales only"


@pytest.mark.parametrize("kept", [True, False])
def test_test_sets_are_those_of_the_seed_whether_they_are_kept_or_too_large(
    kept: bool, zoo: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kept:
        monkeypatch.setattr(predict, "TEST_BYTES", 1)
    jobs = plan(replace(CONFIG, models=("statnn", "mlp"), train_sets=("original",)), {"relu": zoo})
    tests = [list(job.prepare(job.settings).tests()) for job in jobs]
    names = ["original", "scale 10", "scale 1e+06", "widened"]
    assert [[test.name for test in found] for found in tests] == [names, names[:3]] * 2, "the MLP has one width"
    assert torch.equal(tests[0][0].data.inputs, tests[2][0].data.inputs)
    assert not torch.equal(tests[0][1].data.inputs, tests[2][1].data.inputs), "of another seed"


def test_interrupted_it_loses_the_run_in_progress_only(zoo: Corpus, tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    epochs = 0

    def interrupt(progress: Progress) -> None:
        nonlocal epochs
        epochs += progress.epoch is not None
        if epochs == 3:  # the first epoch of the second run
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_generalization({"relu": zoo}, CONFIG, store, interrupt)
    assert len(list((tmp_path / "runs").iterdir())) == 1
    kept = []
    predict_generalization({"relu": zoo}, CONFIG, store, lambda p: kept.append(p.kept) if p.run else None)
    assert kept == [True] + [False] * 7


def test_a_number_that_was_changed_by_hand_is_measured_again(
    zoo: Corpus, tmp_path: Path, trainings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    store = RunStore(tmp_path)
    config = replace(CONFIG, models=("statnn",), seeds=(0,), train_sets=("original",))
    (run,) = predict_generalization({"relu": zoo}, config, store)
    path = store.run_file(run.settings)
    written = path.read_bytes()
    tau = json.dumps(run.tests[0].metrics["tau"]).encode()
    assert tau in written
    path.write_bytes(written.replace(tau, tau[:-1] + b"%d" % (9 - int(tau[-1:]))))
    (again,) = predict_generalization({"relu": zoo}, config, store)
    assert len(trainings) == 2
    assert again.tests == run.tests
    assert str(path) in caplog.text
    assert store.load(run.settings) == again


def test_learns_what_the_weights_say(zoo: Corpus) -> None:
    config = replace(CONFIG, models=("monomial",), training=TrainConfig(epochs=25, batch_size=8))
    run = run_job(plan(config, {"relu": zoo})[0]).run
    assert run.tests[0].metrics["tau"] > 0.6
    assert run.tests[-2].metrics["tau"] == pytest.approx(run.tests[0].metrics["tau"], abs=0.03)


def test_enormous_inputs_do_not_crash_a_model_without_the_symmetry(zoo: Corpus) -> None:
    for model in ("np", "hnp", "mlp"):
        config = replace(CONFIG, models=(model,), scales=(1e30,), seeds=(0,))
        for job in plan(config, {"relu": zoo}):
            run = run_job(job).run
            assert all(math.isfinite(t.metrics["tau"]) and math.isfinite(t.metrics["r2"]) for t in run.tests)
            assert Run.from_json(run.to_json()).tests == run.tests
            assert run.diverged == any(epoch["train_loss"] is None for epoch in Run.from_json(run.to_json()).history)


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_precisions_reach_packed_inputs(precision: Any) -> None:
    zoo = small_zoo("relu", networks=12)
    models = default_models({"relu": zoo}) if precision == "bf16-mixed" else ("monomial", "hnp")
    config = replace(CONFIG, models=models, seeds=(0,), train_sets=("original",), scales=(1e1,), widen=0)
    config = replace(config, training=replace(TINY, epochs=1, precision=precision))
    for job in plan(config, {"relu": zoo}):
        run = run_job(job).run
        assert not run.diverged, run.label
        assert math.isfinite(run.history[0]["train_loss"]), run.label
        assert all(test.non_finite == 0 and math.isfinite(test.metrics["tau"]) for test in run.tests), run.label


def test_a_model_may_say_how_it_is_trained(zoo: Corpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = replace(CONFIG, train_sets=("original",), seeds=(0,))
    before = [job.settings for job in plan(config, {"relu": zoo})]
    own = {"epochs": 1, "weight_decay": 0.01, "loss": "mse"}
    monkeypatch.setattr(model_class("statnn"), "train_with", own)
    statnn, monomial = (job.settings for job in plan(config, {"relu": zoo}))
    assert monomial == before[1]
    assert statnn.name != before[0].name, "or a run with other settings would be kept"
    assert statnn.training == replace(TINY, epochs=1, weight_decay=0.01)
    assert (statnn.loss, monomial.loss) == ("mse", "bce")
    runs = predict_generalization({"relu": zoo}, replace(config, loss="rank"), RunStore(tmp_path))
    assert [len(run.history) for run in runs] == [1, 2]
    assert [run.settings.loss for run in runs] == ["mse", "rank"]


# -- errors


def test_networks_that_cannot_be_ranked(tmp_path: Path, zoo: Corpus) -> None:
    (val,) = zoo.val
    same = Networks(val.networks.tensors, torch.full_like(val.networks.accuracy, 0.5))
    equal = replace(zoo, val=(replace(val, networks=same),))
    with pytest.raises(ValueError, match="24 relu networks to validate or test on, all with accuracy"):
        predict_generalization({"relu": equal}, CONFIG, RunStore(tmp_path))


def test_plan_of_a_part_of_the_augmented_runs(zoo: Corpus) -> None:
    zoos = {"relu": zoo, "tanh": corpus("tanh")}
    config = replace(CONFIG, augmented_models=("statnn",), augmented_activations=("relu",), seeds=(0,))
    settings = [job.settings for job in plan(config, zoos)]
    planned = [(s.subject, s.model) for s in settings if s.train_set == "augmented"]
    assert planned == [("relu", "statnn")]
