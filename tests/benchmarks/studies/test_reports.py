"""Reports of experiments from finished runs: which figures there are, and whose numbers."""

from pathlib import Path

import torch
from made_up_runs import made_up_run
from small_zoo import corpus

from nfn_monomial.benchmarks.experiments.tune import TuneConfig
from nfn_monomial.benchmarks.settings.register import EXPERIMENTS, News
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.runs import RunStore, TestResult


def test_ablation(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["ablation"]
    tests = [TestResult("original", None, {"tau": 0.5}, 0), TestResult("scale 10", 10.0, {"tau": 0.4}, 0)]
    runs = [made_up_run(model, seed, tests) for model in ("mnf-1", "mnf-2") for seed in (0, 1)]
    store, answers = RunStore(tmp_path), torch.rand(9)
    true = {f"{test.name}: true": answers.clone() for test in tests}
    for run in runs:
        said = {f"{test.name}: answers": torch.rand(9) for test in tests}
        store.save(run, {"weight": torch.ones(1)}, said | true, {})
    report = experiment.load().tables(runs, experiment.presets["small"], store)
    assert list(report.figures) == ["ablation.png"]
    (panel,) = report.figures["ablation.png"].axes  # type: ignore[union-attr]
    assert len(panel.collections) == 1, "a band of what was kept"
    assert [len(table.cells) for table in report.tables] == [2]
    assert [len(of_run) for of_run in report.results["tests"].values()] == [2] * 4


def test_tune_is_kept_whole_and_leaves_recipes(tmp_path: Path) -> None:
    config = TuneConfig(
        models=("statnn",), trials=2, folds=2, cuts=1, epochs=(1, 2), batch_size=(16,), loss=("rank",), seeds=(0,),
        training=TrainConfig(epochs=1, batch_size=16),
    )  # fmt: skip
    study, store, news = EXPERIMENTS["tune"].load(), RunStore(tmp_path), list[News]()
    for _ in range(2):
        news.clear()
        tuned = study.run({"relu": corpus("relu")}, config, store, news.append)
    assert sum("(kept)" in one.line for one in news) == 1 + 2, (
        "the search, and a run as registered and one by the recipe"
    )
    report = study.tables(tuned, config, store)
    assert list(report.figures) == ["search.png"]
    assert report.tables
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"recipe.json", "search-statnn.journal"}
