"""Augmentation: moved train sets, one training for each range of scales, and training curves that do not move."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_zoo import small_zoo

from nfn_monomial.benchmarks.data.networks import Corpus
from nfn_monomial.benchmarks.experiments.augment import AUGMENT as PRESETS
from nfn_monomial.benchmarks.experiments.augment import AugmentConfig
from nfn_monomial.benchmarks.experiments.predict import PredictConfig
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies.augment import (
    Curves,
    augment_study,
    curves_table,
    draw_training_curves,
    training_curves,
)
from nfn_monomial.benchmarks.studies.predict import plan, predict_generalization
from nfn_monomial.benchmarks.train.runs import RunStore
from nfn_monomial.tools.predictors.models import model_class

TINY = AugmentConfig(
    models=("statnn", "monomial"),
    scales=(1e1, 1e4),
    seeds=(0, 1),
    training=TrainConfig(epochs=1, batch_size=16),
    curve_models=("monomial", "message-passing", "statnn"),
    curve_networks=16,
    curve_epochs=2,
)


@pytest.fixture(scope="module")
def corpora() -> dict[str, Corpus]:
    return {name: small_zoo(name, networks=24) for name in ("relu", "tanh")}


def test_the_moved_set_is_the_copies_of_the_augmented_one(corpora: dict[str, Corpus]) -> None:
    config = PredictConfig(("statnn",), ("original", "augmented", "moved"), seeds=(0,), training=TINY.training)
    trials = {job.settings.train_set: job.prepare(job.settings) for job in plan(config, {"relu": corpora["relu"]})}
    for part in ("train", "val"):
        original, both, moved = (getattr(trials[name], part).inputs for name in ("original", "augmented", "moved"))
        assert torch.equal(torch.cat([original, moved]), both)
        assert not torch.allclose(original, moved, rtol=0.1)
        assert torch.equal(getattr(trials["moved"], part).targets, getattr(trials["original"], part).targets)


def test_one_training_for_each_range(corpora: dict[str, Corpus], tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    config = replace(TINY, per_scale=True)
    runs, shown = augment_study(corpora, config, store)
    # Two models and seeds: relu on the original set and for each of two ranges, tanh on the original and one other set.
    assert len(runs) == 4 * (1 + 2) + 4 * (1 + 1)
    assert len(shown) == 4 * (1 + 1) + 4 * (1 + 1)
    found = {run.settings.name: run for run in runs}
    assert len(found) == len(runs)
    for run in shown:
        s = run.settings
        if s.train_set == "original":
            assert found[s.name] is run
            continue
        own = [r for r in runs if (r.settings.subject, r.settings.model, r.settings.train_set, r.settings.seed)
               == (s.subject, s.model, "augmented", s.seed)]  # fmt: skip
        if s.subject == "tanh":
            assert own == [run]
            continue
        assert [test.scale for test in run.tests] == [1e1, 1e4]
        for test, one in zip(run.tests, own, strict=True):
            assert one.settings.options["augment_scale"] == test.scale
            assert [t.name for t in one.tests] == ["original", test.name]
            assert one.tests[1] == test
    again, _ = augment_study(corpora, config, store)
    assert [run.to_json() for run in again] == [run.to_json() for run in runs], "kept"
    one_set, same = augment_study(corpora, TINY, store)
    assert same == one_set
    assert len(one_set) == 16
    scales = {r.settings.options["augment_scale"] for r in one_set if r.settings.train_set == "augmented"}
    assert scales == {10.0, None}, "one range for relu, no scales for tanh"


def test_training_curves(corpora: dict[str, Corpus], tmp_path: Path) -> None:
    curves = training_curves(corpora, TINY, RunStore(tmp_path))
    assert torch.get_default_dtype() == torch.float32
    assert [(c.subject, c.model) for c in curves] == [(s, m) for s in ("relu", "tanh") for m in TINY.curve_models]
    for c in curves:
        assert len(c.original) == len(c.moved) == 2
        assert len(set(c.original)) == 2, "it learns"
        invariant = model_class(c.model).invariant_under == "group"
        assert c.difference < 1e-8 if invariant else c.difference > 1e-3, c
    table = curves_table(curves)
    assert table.bold == {0, 1, 3, 4}
    assert table.cells[2][2] == "perm. only"
    left, right = draw_training_curves(curves).axes
    assert [ax.get_yscale() for ax in (left, right)] == ["log", "log"]
    original, moved = left.get_lines()[::2], left.get_lines()[1::2]
    assert [line.get_label() for line in original] == [f"{c.label}, {c.subject}" for c in curves]
    for c, lines, circles, apart in zip(curves, original, moved, right.get_lines(), strict=True):
        assert list(lines.get_xdata()) == [1, 2]
        assert tuple(lines.get_ydata()) == c.original
        assert tuple(circles.get_ydata()) == c.moved
        assert max(apart.get_ydata()) == pytest.approx(max(c.difference, 1e-17))


def test_in_single_precision_the_curves_are_one_to_rounding(corpora: dict[str, Corpus], tmp_path: Path) -> None:
    config = replace(TINY.curve_plan(), models=("monomial",))
    config = replace(config, training=replace(config.training, precision="32-true"))
    runs = predict_generalization({"relu": corpora["relu"]}, config, RunStore(tmp_path))
    original, moved = ([epoch["train_loss"] for epoch in run.history] for run in runs)
    assert max(abs(a - b) / a for a, b in zip(original, moved, strict=True)) < 1e-3


def test_difference_of_curves() -> None:
    curves = Curves("relu", "m", "M", "group", (2.0, 1.0), (2.0, 1.5))
    assert curves.difference == 0.5
    assert curves.record()["difference"] == 0.5
    for moved in ((2.0,), (2.0, math.nan)):
        broken = replace(curves, moved=moved)
        assert broken.difference == math.inf
        assert json.dumps(broken.record(), allow_nan=False)
        assert broken.record()["difference"] is None


def test_configurations() -> None:
    paper = PRESETS["paper"]
    assert paper.per_scale
    assert paper.scales == (1e1, 1e2, 1e3, 1e4, 1e5, 1e6)
    assert (paper.training.epochs, paper.training.batch_size, len(paper.seeds)) == (50, 8, 5)
    assert [plan.augment_scale for plan in paper.plans()[1:]] == list(paper.scales)
    assert not PRESETS["small"].per_scale
    for wrong, message in (
        ({"scales": (1.0,)}, "scales is 1.0, but should be greater than 1"),
        ({"curve_scale": 0.5}, "curve_scale is 0.5"),
        ({"curve_networks": 0}, "curve_networks is 0"),
        ({"curve_models": ("statnn", "statnn")}, "none twice"),
    ):
        with pytest.raises(ValueError, match=message):
            AugmentConfig(**wrong)


@pytest.mark.parametrize("where", ["models", "curve_models"])
def test_unknown_models_are_found_out_first(where: str, corpora: dict[str, Corpus], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown model 'nothing'"):
        augment_study(corpora, replace(TINY, **{where: ("nothing",)}), RunStore(tmp_path))
    assert not (tmp_path / "runs").exists()


def test_too_few_networks_for_tau(corpora: dict[str, Corpus], tmp_path: Path) -> None:
    part = corpora["relu"].test[0]
    two = replace(part, networks=part.networks.subset(slice(2)))
    with pytest.raises(ValueError, match="2 relu networks to validate or test on, which are too few: tau needs three"):
        augment_study({"relu": replace(corpora["relu"], test=(two,))}, TINY, RunStore(tmp_path))
