"""The experiment: honest scores, the same moved networks for all, runs that are kept, redone and never half there."""

import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from small_zoo import small_zoo
from torch import Tensor

from nfn_monomial.benchmarks import predict
from nfn_monomial.benchmarks.predict import (
    PredictConfig,
    augment,
    fingerprint,
    predict_generalization,
    scores,
    space_of,
    train_and_test,
    transform,
)
from nfn_monomial.benchmarks.registry import NetworkInfo, build_model
from nfn_monomial.benchmarks.runs import Run, RunStore, environment, write_atomically
from nfn_monomial.benchmarks.training import TrainConfig
from nfn_monomial.benchmarks.zoo_format import Networks, Zoo

TINY = TrainConfig(epochs=2, batch_size=16)
CONFIG = PredictConfig(models=("statnn", "monomial"), seeds=(0, 1), scales=(1e1, 1e6), training=TINY)


@pytest.fixture(scope="module")
def zoo() -> Zoo:
    return small_zoo("relu")


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs that were really trained."""
    names: list[str] = []
    original = predict.train_and_test

    def counted(settings: Any, *args: Any) -> Any:
        names.append(settings.name)
        return original(settings, *args)

    monkeypatch.setattr(predict, "train_and_test", counted)
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


# -- data


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_moved_networks_are_others_with_the_same_answer(activation: str) -> None:
    zoo = small_zoo(activation)
    space = space_of(zoo)
    moved = transform(zoo.test, space, 1e4, seed=3)
    assert torch.equal(moved.accuracy, zoo.test.accuracy)
    for name in ("weight.0", "weight.1", "bias.0", "weight.2"):
        assert not torch.equal(moved.tensors[name], zoo.test.tensors[name])
        assert moved.tensors[name].dtype == torch.float32
    assert torch.equal(moved.tensors["bias.2"], zoo.test.tensors["bias.2"]), "outputs are not moved"
    model = build_model("monomial", NetworkInfo(space, activation), seed=0).double()

    def answers(networks: Networks) -> Tensor:
        return model(model.prepare({n: t.double().unsqueeze(1) for n, t in networks.tensors.items()}))

    with torch.no_grad():
        before, after = answers(zoo.test), answers(moved)
    assert (before - after).abs().max() < 1e-5 * before.std(), "the networks are rounded to float32"


def test_test_sets_of_a_seed_are_always_the_same(zoo: Zoo) -> None:
    space = space_of(zoo)
    first, again, other = (list(predict.test_sets(zoo.test, space, (1e1, 1e6), seed)) for seed in (0, 0, 1))
    assert [(t.name, t.scale) for t in first] == [("original", None), ("scale 10", 1e1), ("scale 1e+06", 1e6)]
    for a, b, c in zip(first, again, other, strict=True):
        assert torch.equal(a.networks.tensors["weight.1"], b.networks.tensors["weight.1"])
        same = torch.equal(a.networks.tensors["weight.1"], c.networks.tensors["weight.1"])
        assert same == (a.scale is None)
    sizes = [t.networks.tensors["bias.0"].abs().max() for t in first]
    assert sizes[0] < sizes[1] < sizes[2]


def test_test_sets_where_the_group_does_not_scale() -> None:
    for activation, name in (("tanh", "sign flips"), ("gelu", "permuted")):
        zoo = small_zoo(activation)
        sets = list(predict.test_sets(zoo.test, space_of(zoo), (), 0))
        assert [(t.name, t.scale) for t in sets] == [("original", None), (name, None)]
        old, new = (t.networks.tensors["bias.0"] for t in sets)
        torch.testing.assert_close(old.abs().sum(1), new.abs().sum(1))
        assert bool((old.sum(1) - new.sum(1)).abs().max() > 0.1) == (activation == "tanh")


def test_augmented_set_is_the_original_and_a_moved_copy(zoo: Zoo) -> None:
    n = len(zoo.train)
    twice = augment(zoo.train, space_of(zoo), (1e1, 1e6), seed=0)
    assert len(twice) == 2 * n
    assert torch.equal(twice.accuracy[:n], twice.accuracy[n:])
    for name, t in zoo.train.tensors.items():
        assert torch.equal(twice.tensors[name][:n], t)
    factor = twice.tensors["bias.0"][n:].abs().amax(1) / zoo.train.tensors["bias.0"].abs().amax(1)
    assert 0.2 < (factor > 100).float().mean() < 0.8, "both ranges occur"
    one = augment(zoo.train, space_of(zoo), (1e1,), seed=0)
    assert one.tensors["bias.0"].abs().max() < 11 * zoo.train.tensors["bias.0"].abs().max()


def test_fingerprint_sees_every_number(zoo: Zoo) -> None:
    base = fingerprint(zoo)
    assert fingerprint(small_zoo("relu")) == base
    assert fingerprint(replace(zoo, activation="abs")) != base
    accuracy = zoo.val.accuracy.clone()
    accuracy[-1] += 1e-3
    assert fingerprint(replace(zoo, val=Networks(zoo.val.tensors, accuracy))) != base


# -- runs


def test_results_and_what_is_kept(zoo: Zoo, tmp_path: Path, trainings: list[str]) -> None:
    zoos = {"relu": zoo, "tanh": small_zoo("tanh")}
    store = RunStore(tmp_path)
    runs = predict_generalization(zoos, CONFIG, store)
    assert len(trainings) == len(runs) == 2 * 2 * 2 * 2  # activations, train sets, models, seeds
    assert [run.settings.name for run in runs] == trainings
    files = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert files == sorted(f"{name}.{suffix}" for name in trainings for suffix in ("json", "safetensors"))
    for run in runs:
        names = ["original", "scale 10", "scale 1e+06"] if run.settings.activation == "relu" else None
        assert [t.name for t in run.tests] == (names or ["original", "sign flips"])
        assert run.networks["train"] == (96 if run.settings.train_set == "augmented" else 48)
        assert len(run.history) == 2
        assert run.val_tau == max(epoch["metrics"]["tau"] for epoch in run.history)
        if run.settings.model == "monomial":
            assert all(abs(t.tau - run.tests[0].tau) < 0.005 for t in run.tests)
    again = predict_generalization(zoos, CONFIG, store)
    assert again == runs
    assert len(trainings) == 16, "nothing was done twice"

    store.run_file(runs[3].settings).unlink()
    store.checkpoint_file(runs[7].settings).unlink()
    store.run_file(runs[9].settings).write_text(store.run_file(runs[9].settings).read_text()[:-100])
    missing = predict_generalization(zoos, CONFIG, store)
    assert trainings[16:] == [trainings[i] for i in (3, 7, 9)]
    for new, old in zip(missing, runs, strict=True):
        assert new.tests == old.tests, "a seed reproduces a run"

    predict_generalization(zoos, replace(CONFIG, seeds=(0, 1, 2), models=("monomial",)), store)
    assert len(trainings) == 19 + 4, "one more seed is all that is missing"
    predict_generalization(zoos, replace(CONFIG, models=("monomial",), scales=(1e2,)), store)
    assert len(trainings) == 23 + 4, "other scales concern networks that have scales only"


def test_checkpoints_hold_the_tested_parameters(zoo: Zoo, tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    config = replace(CONFIG, models=("np",), seeds=(0,), train_sets=("original",))
    (run,) = predict_generalization({"relu": zoo}, config, store)
    model = build_model("np", NetworkInfo(space_of(zoo), "relu"), seed=77)
    with safe_open(store.checkpoint_file(run.settings), framework="pt") as file:
        model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        assert json.loads(file.metadata()["settings"])["model"] == "np"
    with torch.no_grad():
        logits = model(model.prepare({n: t.unsqueeze(1) for n, t in zoo.test.tensors.items()}))
    assert scores(logits, zoo.test.accuracy)["tau"] == pytest.approx(run.tests[0].tau, abs=1e-6)


def test_interrupted_it_loses_the_run_in_progress_only(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore(tmp_path)
    epochs = 0

    def interrupt(progress: predict.Progress) -> None:
        nonlocal epochs
        epochs += progress.epoch is not None
        if epochs == 3:  # the first epoch of the second run
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_generalization({"relu": zoo}, CONFIG, store, interrupt)
    assert len(list(tmp_path.rglob("*.json"))) == 1

    def killed(path: Path, data: bytes) -> None:
        if path.suffix == ".json":
            path.with_name(f".{path.name}.partial").write_bytes(data[:50])
            raise KeyboardInterrupt
        write_atomically(path, data)

    monkeypatch.setattr("nfn_monomial.benchmarks.runs.write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        predict_generalization({"relu": zoo}, CONFIG, store)
    monkeypatch.undo()
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2, "a checkpoint without a run file"
    kept = []
    predict_generalization({"relu": zoo}, CONFIG, store, lambda p: kept.append(p.kept) if p.run else None)
    assert kept == [True] + [False] * 7
    assert not list(tmp_path.rglob(".*")), "the rest of the killed run was written over"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: "", "Expecting value"),
        (lambda text: "[]", "not the fields of a run"),
        (lambda text: text.replace('"seed": 0', '"seed": 5'), "other settings than its name does"),
        (lambda text: text.replace('"epochs": 2', '"epochs": -2'), "epochs is -2"),
        (lambda text: text.replace('"scale"', '"scales"', 1), "not a run"),
    ],
)
def test_a_damaged_run_file_is_named_and_done_again(
    damage: Any, reason: str, zoo: Zoo, tmp_path: Path, trainings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    store = RunStore(tmp_path)
    config = replace(CONFIG, models=("statnn",), seeds=(0,), train_sets=("original",))
    (run,) = predict_generalization({"relu": zoo}, config, store)
    path = store.run_file(run.settings)
    path.write_text(damage(path.read_text()))
    with caplog.at_level(logging.WARNING):
        (again,) = predict_generalization({"relu": zoo}, config, store)
    assert len(trainings) == 2
    assert again.tests == run.tests
    assert str(path) in caplog.text
    assert reason in caplog.text
    assert store.load(run.settings) == again


def test_failed_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file.json"
    write_atomically(path, b"old")

    def full(self: Path, data: bytes) -> int:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]


def test_learns_what_the_weights_say(zoo: Zoo) -> None:
    config = replace(CONFIG, models=("monomial",), training=TrainConfig(epochs=25, batch_size=8))
    settings, _ = config.plan({"relu": zoo})[0]
    run, _ = train_and_test(settings, zoo)
    assert run.tests[0].tau > 0.6
    assert run.tests[-1].tau == pytest.approx(run.tests[0].tau, abs=0.005)


def test_enormous_inputs_do_not_crash_a_model_without_the_symmetry(zoo: Zoo) -> None:
    for model in ("np", "hnp", "mlp"):
        config = replace(CONFIG, models=(model,), scales=(1e30,), seeds=(0,))
        for settings, _ in config.plan({"relu": zoo}):
            run, _ = train_and_test(settings, zoo)
            assert all(math.isfinite(t.tau) and math.isfinite(t.r2) for t in run.tests)
            assert Run.from_json(run.to_json()).tests == run.tests
            assert run.diverged == any(epoch["train_loss"] is None for epoch in Run.from_json(run.to_json()).history)


# -- errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": ("hpn",)}, "unknown model 'hpn': choose from"),
        ({"augmented_models": ("x",)}, "unknown model 'x'"),
        ({"models": ()}, "models is .*give at least one"),
        ({"seeds": (1, 1)}, "seeds is .*none twice"),
        ({"train_sets": ("augmentd",)}, "unknown train set .*choose from original, augmented"),
        ({"scales": ()}, "must be larger than 1"),
        ({"scales": (10.0, 0.5)}, "must be larger than 1"),
        ({"augment_scale": -10.0}, "must be larger than 1"),
    ],
)
def test_configurations_that_make_no_sense(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **change)


def test_networks_that_cannot_be_ranked(tmp_path: Path, zoo: Zoo) -> None:
    equal = replace(zoo, val=Networks(zoo.val.tensors, torch.full_like(zoo.val.accuracy, 0.5)))
    with pytest.raises(ValueError, match="24 relu networks to validate or test on, all with accuracy"):
        predict_generalization({"relu": equal}, CONFIG, RunStore(tmp_path))


def test_results_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(ValueError, match="out is a file: give a folder"):
        RunStore(tmp_path / "out")


def test_plan_of_a_part_of_the_augmented_runs(zoo: Zoo) -> None:
    zoos = {"relu": zoo, "tanh": small_zoo("tanh")}
    config = replace(CONFIG, augmented_models=("statnn",), augmented_activations=("relu",), seeds=(0,))
    planned = [(s.activation, s.model) for s, _ in config.plan(zoos) if s.train_set == "augmented"]
    assert planned == [("relu", "statnn")]


def test_environment_names_versions_and_no_machine() -> None:
    found = environment("cpu")
    assert found["versions"]["torch"] == torch.__version__
    assert found["cores"] >= 1
    assert found["device"] == "cpu"
    assert found["commit"] is None or len(found["commit"].rstrip("+")) == 40
