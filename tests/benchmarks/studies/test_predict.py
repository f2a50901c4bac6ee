"""The experiment: honest scores, runs that are kept, redone and never half there."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_zoo import corpus, small_zoo

from nfn_monomial.benchmarks.data.networks import Corpus, Networks, Part, fingerprint
from nfn_monomial.benchmarks.experiments.predict import PREDICT, PredictConfig
from nfn_monomial.benchmarks.report.tables import by_model, short
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies import predict_report as predict_report_module
from nfn_monomial.benchmarks.studies.predict import (
    LOSSES,
    Sets,
    check,
    plan,
    predict_generalization,
    scores,
)
from nfn_monomial.benchmarks.studies.predict_report import predict_report
from nfn_monomial.benchmarks.train.runs import Run, RunStore
from nfn_monomial.benchmarks.train.sweep import test, train
from nfn_monomial.errors import MissingFileError
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.predictors.architectures import PlainCNN
from nfn_monomial.tools.predictors.models import MixedInfo, NetworkInfo, build_model

TINY = TrainConfig(epochs=2, batch_size=16)
CONFIG = PredictConfig(models=("statnn", "monomial"), seeds=(0,), scales=(1e1, 1e6), training=TINY)


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
    difference = LOSSES["rank"](wrong, target) - LOSSES["bce"](wrong, target)
    assert difference == pytest.approx(expected, rel=1e-5)
    assert torch.isfinite(LOSSES["rank"](wrong, torch.full((3,), 0.5))), "networks that are all equal have no order"


# -- runs


def test_results_and_what_is_kept(zoo: Corpus, tmp_path: Path) -> None:
    zoos, store, kept = {"relu": zoo, "tanh": corpus("tanh")}, RunStore(tmp_path), list[bool]()

    def done(config: PredictConfig) -> list[Run]:
        kept.clear()
        return predict_generalization(
            zoos, config, store, lambda news: kept.append("(kept)" in news.line) if news.line else None
        )

    runs = done(CONFIG)
    assert kept == [False] * 2 * 2 * 2  # activations, train sets, models
    for run in runs:
        moved = ["scale 10", "scale 1e+06"] if run.settings.subject == "relu" else ["sign flips"]
        assert [t.name for t in run.tests] == ["original", *moved, "widened"]
        assert run.networks["train"] == (96 if run.settings.train_set == "augmented" else 48)
        if run.settings.model == "monomial":
            # Rounding may swap a pair of the 276 that 24 networks are.
            assert all(abs(t.metrics["tau"] - run.tests[0].metrics["tau"]) < 0.03 for t in run.tests[:-1])
    assert done(CONFIG) == runs
    assert all(kept), "nothing was done twice"

    outcomes = predict_report_module.kept(runs, store)
    assert len(outcomes) == 2 * 2 * (4 + 3), "of each model and train set: tests of ReLU and of tanh networks"
    for run in runs:
        for at in run.tests:
            row = run.label, run.settings.train_set
            numbers = outcomes[run.settings.subject, row, f"tau {short(at.name, at.scale)}"]
            assert numbers.drawn[0, 0] == pytest.approx(at.metrics["tau"], abs=1e-6)
            epochs, networks = len(run.history), run.networks["train"]
            assert (numbers.networks, numbers.steps) == (48, epochs * -(-networks // 16))

    store.run_file(runs[1].settings).unlink()
    store.predictor_file(runs[3].settings).unlink()
    cut_off = store.run_file(runs[4].settings)
    cut_off.write_bytes(cut_off.read_bytes()[:-100])
    again = done(CONFIG)
    assert [i for i, one in enumerate(kept) if not one] == [1, 3, 4]
    assert [run.tests for run in again] == [run.tests for run in runs], "a seed reproduces a run"
    few = replace(CONFIG, models=("statnn",), train_sets=("original",))
    done(replace(few, seeds=(0, 1)))
    assert kept.count(False) == 2, "one more seed is all that is missing"
    done(replace(few, scales=(1e2,)))
    assert kept.count(False) == 1, "other scales concern networks that have scales only"


def test_a_model_of_one_width_has_no_widened_test_set(zoo: Corpus) -> None:
    jobs = plan(replace(CONFIG, models=("statnn", "mlp"), seeds=(0,), train_sets=("original",)), {"relu": zoo})
    names = ["original", "scale 10", "scale 1e+06", "widened"]
    assert [[test.name for test in job.prepare(job.settings).tests()] for job in jobs] == [names, names[:3]]


def test_enormous_inputs_in_bfloat16_do_not_crash_a_model_without_the_symmetry(zoo: Corpus) -> None:
    training = replace(TINY, epochs=1, precision="bf16-mixed")
    config = replace(CONFIG, models=("hnp", "mlp", "monomial"), scales=(1e30,), seeds=(0,), training=training)
    for job in plan(replace(config, train_sets=("original",)), {"relu": zoo}):
        trial = job.prepare(job.settings)
        run, _ = test(trial, train(trial), None)
        assert all(math.isfinite(t.metrics["tau"]) and math.isfinite(t.metrics["r2"]) for t in run.tests)
        assert Run.from_json(run.to_json()).tests == run.tests


# -- errors


def test_networks_that_cannot_be_ranked(tmp_path: Path, zoo: Corpus) -> None:
    (val,) = zoo.val
    same = Networks(val.networks.tensors, torch.full_like(val.networks.accuracy, 0.5))
    equal = replace(zoo, val=(replace(val, networks=same),))
    with pytest.raises(ValueError, match="24 relu networks to validate or test on, all with accuracy"):
        predict_generalization({"relu": equal}, CONFIG, RunStore(tmp_path))


# -- parts of the training networks


def test_fewer_training_networks_are_among_the_more_and_the_rest_is_as_it_was(zoo: Corpus, tmp_path: Path) -> None:
    most = sum(map(len, zoo.train))
    sizes = (most // 2, most * 3 // 4, most)
    sets = Sets(zoo, 0.0)
    drawn = [sets.drawn(0, n) for n in sizes]
    rows = [{tuple(row) for row in train[0].networks.tensors["bias.0"].tolist()} for train, _ in drawn]
    assert [len(r) for r in rows] == list(sizes)
    assert rows[0] < rows[1] < rows[2]
    shares = [len(val[0]) for _, val in drawn]
    assert shares == [round(n / most * len(zoo.val[0])) for n in sizes], "as much is validated on as there is to train"
    other = {tuple(row) for row in sets.drawn(1, sizes[0])[0][0].networks.tensors["bias.0"].tolist()}
    assert other != rows[0], "another seed draws others"

    config = replace(CONFIG, models=("statnn",), train_sets=("original",), scales=(1e1,), train_networks=sizes)
    runs = predict_generalization({"relu": zoo}, config, RunStore(tmp_path))
    assert [run.networks["train"] for run in runs] == [*sizes]
    assert {run.networks["test"] for run in runs} == {len(zoo.test[0])}
    assert [key[1] for key in by_model(runs)] == [f"{n} original" for n in sizes], "sizes are never averaged"
    assert {run.networks["pool"] for run in runs} == {most}
    kept = predict_report_module.kept(runs, RunStore(tmp_path))
    shared = [outcomes.shared for outcomes in kept.values() if outcomes.networks == sizes[1]]
    assert shared
    assert set(shared) == {sizes[1] / most}
    text = rf"train_networks has {most + 1}, but there are {most} relu networks .*\(--data-option tested=0\.14\)"
    with pytest.raises(ValueError, match=text):
        plan(config, check(replace(config, train_networks=(most + 1,)), {"relu": zoo}))
    with pytest.raises(ValueError, match=r"0 relu networks .* too few: tau needs three .* ask for more train_networks"):
        check(replace(config, train_networks=(1,)), {"relu": zoo})
    with pytest.raises(ValueError, match="train_networks has a number twice: 12, 12"):
        replace(config, train_networks=(12, 12))
    with pytest.raises(ValueError, match="for one train set, not original, augmented: choose train_sets=original"):
        replace(config, train_sets=("original", "augmented"))


def test_all_models_and_seeds_are_asked_about_the_same_test_networks(zoo: Corpus, tmp_path: Path) -> None:
    config = replace(CONFIG, seeds=(0, 1), train_sets=("original",), test_networks=12, training=replace(TINY, epochs=1))
    store = RunStore(tmp_path)
    runs = predict_generalization({"relu": zoo}, config, store)
    assert {run.networks["test"] for run in runs} == {12}
    true = [store.artifacts(run.settings)["original: true"] for run in runs]
    assert all(torch.equal(t, true[0]) for t in true)
    assert len(true[0]) == 12
    many = replace(config, test_networks=10**6)
    assert {job.settings.data for job in plan(many, check(many, {"relu": zoo}))} == {fingerprint(zoo)}
    assert {job.settings.data for job in plan(config, check(config, {"relu": zoo}))} != {fingerprint(zoo)}


def test_answers_that_are_nan_are_kept_as_the_lowest(zoo: Corpus) -> None:
    job = plan(CONFIG, {"relu": zoo})[0]
    outcome = job.prepare(job.settings).outcome
    assert outcome is not None
    kept = outcome(torch.tensor([math.nan, -3.0, math.inf]), torch.tensor([0.1, 0.2, 0.3]))
    assert kept["answers"][0] < kept["answers"][1] < kept["answers"][2], "as in the scores"
    kept = outcome(torch.tensor([math.nan, -math.inf, 3e38, math.inf]), torch.tensor([0.1, 0.2, 0.3, 0.4]))
    assert kept["answers"].tolist() == [-math.inf, -math.inf, pytest.approx(3e38), math.inf], "as in the scores"


def test_too_few_test_networks_are_refused_before_anything_is_trained(zoo: Corpus) -> None:
    for few in (1, 2):
        with pytest.raises(ValueError, match="which are too few"):
            check(replace(CONFIG, test_networks=few), {"relu": zoo})


def test_settings_by_activation_hold_for_zoos_of_other_names(zoo: Corpus) -> None:
    zoos = {name: replace(zoo, activation=name) for name in ("a", "b")}
    jobs = plan(replace(CONFIG, left_out=("relu:monomial",), augmented_activations=("tanh",)), zoos)
    assert {(job.settings.subject, job.settings.model, job.settings.train_set) for job in jobs} == {
        ("a", "statnn", "original"), ("b", "statnn", "original"),
    }  # fmt: skip
    one = plan(replace(CONFIG, left_out=("a:monomial",), train_sets=("original",)), zoos)
    assert [(job.settings.subject, job.settings.model) for job in one] == [
        ("a", "statnn"), ("b", "statnn"), ("b", "monomial"),
    ]  # fmt: skip


def test_the_paper_s_training_is_the_same_for_all(zoo: Corpus) -> None:
    """Ours, which ask for weight decay and dropout, among them; without the recipe they get these."""
    preset = PREDICT["zoos-paper"]
    config = replace(preset, models=(*preset.models, "stats-set", "monomial-conv", "balanced-hnp"), train_networks=())
    jobs = plan(config, {"relu": zoo})
    assert {job.settings.model for job in jobs} == set(config.models)
    for job in jobs:
        assert job.settings.training == config.training
        assert job.settings.loss == config.loss
        options = job.settings.options.get("model", {})
        model = build_model(job.settings.model, zoo.info, seed=0, **options)
        assert not any(part.p for part in model.modules() if isinstance(part, torch.nn.Dropout))
    asked = {job.settings.model: job.settings.training for job in plan(replace(config, recipe=None), {"relu": zoo})}
    assert asked["gram-stats"].weight_decay == 0.1
    assert asked["statnn"].weight_decay == 0
    with pytest.raises(MissingFileError, match=r"'Plain': no such file; give one .*, 'shipped' for .*, or 'plain' for"):
        plan(replace(config, recipe="Plain"), {"relu": zoo})


def test_one_training_for_each_range_of_scales(tmp_path: Path) -> None:
    zoos = {name: small_zoo(name, networks=24) for name in ("relu", "tanh")}
    config = replace(CONFIG, seeds=(0,), scales=(1e1, 1e4), per_scale=True, training=replace(TINY, epochs=1))
    runs = predict_generalization(zoos, config, RunStore(tmp_path))
    # Two models: relu on the original set and for each of two ranges, tanh on the original and one other set.
    assert len({run.settings.name for run in runs}) == len(runs) == 2 * (1 + 2) + 2 * (1 + 1)
    for run in runs:
        scale = run.settings.options["augment_scale"]
        moved = run.settings.train_set == "augmented" and run.settings.subject == "relu"
        assert scale in ((1e1, 1e4) if moved else (None,))
        assert not moved or [test.scale for test in run.tests] == [None, scale, None], "as they are, its scale, widened"
    report = predict_report(runs, per_scale=True)
    rows = {(row["activation"], row["model"], row["train_set"]): row for row in report.results["rows"]}
    assert len(rows) == len(report.results["rows"]) == 8
    assert len(report.results["runs"]) == len(runs)
    for (activation, model, train_set), row in rows.items():
        joined = [r for r in runs if (r.settings.subject, r.settings.model, r.settings.train_set)
               == (activation, model, train_set)]  # fmt: skip
        tests = [test for run in joined for test in run.tests if len(joined) == 1 or test.scale]
        assert {name: tau["mean"] for name, tau in row["tau"].items()} == {t.name: t.metrics["tau"] for t in tests}
    assert list(rows["relu", "monomial", "augmented"]["tau"]) == ["scale 10", "scale 10000"]
    for change in ({"train_sets": ("original",)}, {"train_sets": ("augmented",), "train_networks": (12,)}):
        with pytest.raises(ValueError, match=r"per_scale is of sets of moved copies .* choose train_sets"):
            replace(config, **change)


@pytest.fixture
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_float64")
def test_moved_copies_alone_train_invariant_models_as_the_networks_do_and_no_others(tmp_path: Path) -> None:
    zoos = {name: small_zoo(name, networks=24) for name in ("relu", "tanh")}
    training = replace(TINY, precision="64-true")
    config = replace(
        CONFIG, train_sets=("original", "moved"), seeds=(0,), scales=(1e2,), augment_scale=1e2, widen=0.0,
        training=training,
    )  # fmt: skip
    runs = predict_generalization(zoos, config, store := RunStore(tmp_path))
    kept = store.artifacts(runs[0].settings)["original: answers"]
    assert kept.dtype == torch.float64, "rounded, answers that differ would be ties"
    losses = {
        (run.settings.subject, run.settings.model, run.settings.train_set): [e["train_loss"] for e in run.history]
        for run in runs
    }
    for name in zoos:
        for model in CONFIG.models:
            original, moved = (losses[name, model, train_set] for train_set in ("original", "moved"))
            assert len(set(original)) == len(original) == len(moved) == 2, "it learns"
            difference = max(abs(a - b) / abs(a) for a, b in zip(original, moved, strict=True))
            assert difference < 1e-8 if model == "monomial" else difference > 1e-3


def test_parts_of_a_mixed_zoo_without_a_chosen_network_are_left_out(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)

    def part(width: int, count: int) -> Part:
        architecture = PlainCNN((1, width, 3, 3), (3,) * 3, (2,) * 3, (1,) * 3, (4,), ("relu",) * 3)
        tensors = {
            k: t.float()[:, 0] for k, t in random_networks(architecture.space, count, generator=generator).items()
        }
        info = NetworkInfo(architecture.space, "relu", architecture.module, (1, 8, 8))
        return Part(Networks(tensors, torch.rand(count, generator=generator)), info)

    train, val, test = (tuple(part(width, count) for width in (2, 3, 4, 5)) for count in (6, 3, 5))
    zoo = Corpus("mixed", train, val, test, info=MixedInfo(tuple(p.info for p in train)))
    fewest = 8
    assert any(len(Sets(zoo, 0.0).drawn(seed, fewest)[1]) < len(val) for seed in (0, 1))
    config = replace(
        CONFIG, models=("gnn", "statnn-set", "stats-set"), train_sets=("augmented",), scales=(1e1,), seeds=(0, 1),
        train_networks=(fewest,), training=replace(TINY, epochs=1),
    )  # fmt: skip
    runs = predict_generalization({"mixed": zoo}, config, RunStore(tmp_path))
    assert {run.networks["train"] for run in runs} == {2 * fewest}
    assert {run.networks["pool"] for run in runs} == {4 * 6}, "of all parts"
