"""The study of normal forms in small: how networks are moved, what a run finds, and that it goes on where it was."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from invoking import said

from nfn_monomial.benchmarks.data.networks import Corpus
from nfn_monomial.benchmarks.experiments.fibres import FibresConfig
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies.fibres import (
    FIBRE,
    MONOMIAL,
    ORIGINAL,
    STUDY,
    TITLES,
    adapter_corpora,
    draw_fibres,
    move,
    plan,
    products,
    transformer_corpus,
)
from nfn_monomial.benchmarks.train.runs import RunStore
from nfn_monomial.benchmarks.train.sweep import sweep
from nfn_monomial.tools import Predictor

TINY = FibresConfig(
    models=("stats", "normal-stats"), product_models=("mlp",), seeds=(0,), adapters=40, width=4, steps=(2, 4),
    transformers=40, epochs=(1, 1), training=TrainConfig(epochs=1, batch_size=8),
)  # fmt: skip


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Corpus]:
    folder = tmp_path_factory.mktemp("networks")
    found = adapter_corpora(TINY, folder / "adapters")
    return found | {"transformers-accuracy": transformer_corpus(TINY, folder / "transformers")}


def test_parts_are_of_all_networks(corpora: dict[str, Corpus]) -> None:
    assert list(corpora) == list(TITLES)
    for name, count in (("adapters-data", 40), ("adapters-accuracy", 40), ("transformers-accuracy", 40)):
        parts = [corpora[name].train[0], corpora[name].val[0], corpora[name].test[0]]
        assert [len(part) / count for part in parts] == [0.4, 0.1, 0.5]
    first, second = (corpora[name].test[0].networks.tensors for name in ("adapters-data", "adapters-accuracy"))
    assert all(torch.equal(first[name], t) for name, t in second.items())
    assert corpora["adapters-data"].info.space.group_dimension == 24


def test_moved_networks_have_their_functions(corpora: dict[str, Corpus]) -> None:
    for name, corpus in corpora.items():
        (part,) = corpus.test
        (moved,) = move(corpus.test, 1)
        module = part.info._module.double()
        x = torch.rand(3, 1, 8, 8, dtype=torch.float64)
        for i in range(3):
            before, after = (
                torch.func.functional_call(module, {n: t[i].double() for n, t in p.networks.tensors.items()}, (x,))
                for p in (part, moved)
            )
            torch.testing.assert_close(before, after, rtol=1e-3, atol=1e-4, msg=name)
        for key, t in part.networks.tensors.items():
            assert (moved.networks.tensors[key] - t).abs().max() > 1e-2 * t.abs().max(), key


def test_products_are_all_that_is_left_of_factors(corpora: dict[str, Corpus]) -> None:
    corpus = corpora["adapters-data"]
    (own,), (moved,) = products(corpus.test), products(move(corpus.test, 1))
    assert {n: tuple(t.shape[1:]) for n, t in own.networks.tensors.items()} == own.info.space.shapes()
    torch.testing.assert_close(moved.networks.tensors, own.networks.tensors, rtol=1e-4, atol=1e-5)
    assert torch.equal(own.networks.accuracy, corpus.test[0].networks.accuracy)


def test_a_command_finds_all_and_goes_on_where_it_was(tmp_path: Path) -> None:
    options = [
        part for name in ("adapters", "width", "transformers") for part in ("--set", f"{name}={getattr(TINY, name)}")
    ]
    options += ["--models", ",".join(TINY.models)]
    for name in ("product_models", "steps", "epochs"):
        options += ["--set", f"{name}={','.join(map(str, getattr(TINY, name)))}"]
    options += ["--seeds", "1", "--set", "training.epochs=1", "--set", "training.batch_size=8", "--out", str(tmp_path)]
    text = said("fibres", *options)
    assert all(title.split(",")[0] in text for title in TITLES.values())
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [(row["subject"], row["model"], row["reads"]) for row in rows] == [
        (subject, model, reads)
        for subject in TITLES
        for model, reads in (("stats", "weights"), ("normal-stats", "weights"), ("mlp", "products"))
        if reads == "weights" or subject.startswith("adapters")
    ]
    for row in rows:
        found = row["accuracy" if row["subject"] == "adapters-data" else "tau"]
        assert list(found) == [ORIGINAL, MONOMIAL, FIBRE]
        values = [found[name]["mean"] for name in found]
        if row["model"] != "stats":  # what rounding turns is a tie
            assert values[1:] == pytest.approx(values[:1] * 2, abs=0.06)
        assert values[1] == pytest.approx(values[0], abs=0.06), "statistics are invariant to the monomial group"
    before = {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.suffix in (".piece", ".safetensors")
    }
    said("fibres", *options)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items()), "nothing was done again"
    for path in (tmp_path / "predictors").iterdir():
        if path.name.startswith("transformers"):
            assert Predictor.load(path).metrics
        for part, reason in {
            "data": "tells data sets",
            "accuracy-normal": "code, which no file has",
            "accuracy-mlp-products": "no file holds",
        }.items():
            if path.name.startswith(f"adapters-{part}"):
                with pytest.raises(ValueError, match=reason):
                    Predictor.load(path)


def test_the_figure_has_three_bars_for_every_model(corpora: dict[str, Corpus], tmp_path: Path) -> None:
    config = replace(TINY, models=("stats",), product_models=("stats",))
    some = {name: corpus for name, corpus in corpora.items() if name != "adapters-data"}
    jobs = plan(config, some)
    assert [(job.settings.subject, job.settings.train_set) for job in jobs] == [
        ("adapters-accuracy", "weights"), ("adapters-accuracy", "products"), ("transformers-accuracy", "weights")
    ]  # fmt: skip
    runs = sweep(jobs, RunStore(tmp_path))
    subjects = {name: [run for run in runs if run.settings.subject == name] for name in some}
    axes = draw_fibres(subjects).axes
    assert [len(ax.patches) for ax in axes] == [6, 3]
    heights = [patch.get_height() for patch in axes[1].patches]
    assert heights == pytest.approx([test.metrics["tau"] for test in runs[2].tests])


def test_models_of_other_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="for the task 'inr'"):
        STUDY.check(replace(TINY, models=("normal-inr-np",)))
    with pytest.raises(ValueError, match="epochs is"):
        FibresConfig(epochs=(3, 2))


def test_too_few_networks_are_refused(tmp_path: Path) -> None:
    few = replace(TINY, transformers=10)
    with pytest.raises(ValueError, match="1 transformers-accuracy networks to validate"):
        STUDY.run(None, few, RunStore(tmp_path), lambda news: None)
