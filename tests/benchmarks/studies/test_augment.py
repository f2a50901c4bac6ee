"""Augmentation: moved train sets, one training for each range of scales, and training curves that do not move."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_zoo import small_zoo

from nfn_monomial.benchmarks.data.networks import Corpus
from nfn_monomial.benchmarks.experiments.augment import AugmentConfig
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies.augment import (
    Curves,
    augment_study,
    curves_table,
    training_curves,
)
from nfn_monomial.benchmarks.train.runs import RunStore
from nfn_monomial.tools.predictors.models import model_class

TINY = AugmentConfig(
    models=("statnn", "monomial"),
    scales=(1e1, 1e4),
    seeds=(0,),
    training=TrainConfig(epochs=1, batch_size=16),
    curve_models=("monomial", "statnn"),
    curve_networks=16,
    curve_epochs=2,
)


@pytest.fixture(scope="module")
def corpora() -> dict[str, Corpus]:
    return {name: small_zoo(name, networks=24) for name in ("relu", "tanh")}


def test_one_training_for_each_range(corpora: dict[str, Corpus], tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    config = replace(TINY, per_scale=True)
    runs, shown = augment_study(corpora, config, store)
    # Two models: relu on the original set and for each of two ranges, tanh on the original and one other set.
    assert len(runs) == 2 * (1 + 2) + 2 * (1 + 1)
    assert len(shown) == 2 * (1 + 1) + 2 * (1 + 1)
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
    assert len(one_set) == 8
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
    assert table.bold == {0, 2}
    assert table.cells[1][2] == "perm. only"


def test_difference_of_curves() -> None:
    curves = Curves("relu", "m", "M", "group", (2.0, 1.0), (2.0, 1.5))
    assert curves.difference == 0.5
    assert curves.record()["difference"] == 0.5
    for moved in ((2.0,), (2.0, math.nan)):
        broken = replace(curves, moved=moved)
        assert broken.difference == math.inf
        assert json.dumps(broken.record(), allow_nan=False)
        assert broken.record()["difference"] is None
