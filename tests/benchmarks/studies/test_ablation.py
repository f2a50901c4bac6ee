"""The ablation: stacks of one class, invariant all of them, and tables."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_up_runs import made_up_run
from small_zoo import small_zoo

from nfn_monomial import GroupElement
from nfn_monomial.benchmarks.experiments.ablation import ABLATION, STACKS
from nfn_monomial.benchmarks.report.intervals import Outcomes
from nfn_monomial.benchmarks.studies.ablation import STUDY, ablation_tables, draw_ablation
from nfn_monomial.benchmarks.train.runs import Run, TestResult
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.predictors.models import build_model


def relative_change(name: str, activation: str, element: GroupElement) -> float:
    """Largest change of a fresh model's answers, relative to their spread over networks."""
    info = small_zoo(activation).info
    tensors = random_networks(element.space, 12, generator=torch.Generator().manual_seed(2))
    model = build_model(name, info, seed=0).double().eval()
    model.fit_inputs(model.prepare(tensors))
    with torch.no_grad():
        before, after = (model(model.prepare(t)) for t in (tensors, element.act(tensors)))
    assert before.std() > 1e-4, "an answer that does not depend on the network would be invariant, too"
    return float((after - before).abs().max() / before.std())


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("name", STACKS)
def test_stacks_are_invariant_as_hnp_is_not(name: str, activation: str) -> None:
    space = small_zoo(activation).info.space
    element = space.sample(12, scale_range=(1, 1e3), generator=torch.Generator().manual_seed(1))
    assert relative_change(name, activation, element) < 1e-10
    assert relative_change("hnp", activation, element) > 1e-2


def of_stacks() -> list[Run]:
    """Two seeds of three stacks on ReLU networks, and of one on tanh networks."""

    def tests(tau: float) -> list[TestResult]:
        return [TestResult("original", None, {"tau": tau}, 0), TestResult("m", 1e4, {"tau": 0.1}, 0)]

    stacks = {"mnf-1": 0.5, "mnf-3": 0.7, "mnf-2-hnp": 0.6}
    runs = [made_up_run(model, seed, tests(tau + seed / 10)) for model, tau in stacks.items() for seed in (0, 1)]
    return [*runs, *(replace(run, settings=replace(run.settings, subject="tanh")) for run in runs[:2])]


def test_tables() -> None:
    relu, tanh = ablation_tables(of_stacks())
    assert relu.header[1:3] == ("tau original", "tau 1e4")
    assert [line[:3] for line in relu.cells] == [
        (name, f"{tau:.3f} ±0.050", "0.100 ±0.000")
        for name, tau in (("MNF-1", 0.55), ("MNF-3", 0.75), ("MNF-2-HNP", 0.65))
    ]
    assert len(tanh.cells) == 1
    assert "standard error over seeds" in relu.notes[0]
    assert "activation. 1eK: test networks moved with scales in [1, 1eK]. Mean" in relu.notes[0]
    assert len(relu.notes) == 1
    flipped = [replace(run, tests=tuple(replace(test, scale=None) for test in run.tests)) for run in of_stacks()]
    assert "activation. Mean" in ablation_tables(flipped)[0].notes[0]
    lost = [replace(run, diverged=run.settings.model == "mnf-3") for run in of_stacks()]
    assert ablation_tables(lost)[0].notes[1].endswith("ended the training early: MNF-3.")


def test_the_figure_has_bands_where_answers_were_kept() -> None:
    """And names lines where they end: each without a legend."""
    runs, random = of_stacks(), np.random.default_rng(0)
    true = random.random(40)
    kept = {
        ("relu", (run.label,), "tau original"): Outcomes((0, 1), true + random.normal(size=(2, 40)), true, 5, 3)
        for run in runs
    }
    for answers, bands in ((kept, 1), ({}, 0)):  # a line of one stack has no band
        relu, tanh = draw_ablation(runs, answers).axes
        assert [text.get_text() for text in relu.texts] == ["without HNP", "with HNP"]
        assert [text.xy[0] for text in relu.texts] == [3, 2], "where the lines end"
        assert len(relu.collections) == bands
        assert len(tanh.collections) == 0
        assert relu.get_legend() is None
        (line, _) = relu.lines
        assert list(line.get_xdata()) == [1, 3]
        assert list(line.get_ydata()) == pytest.approx([0.55, 0.75])


@pytest.mark.parametrize(
    ("change", "message"),
    [({"models": ("hnp",)}, "hnp: not of the ablation"), ({"train_networks": (20,)}, "has curves")],
)
def test_what_is_of_other_experiments_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        STUDY.check(replace(ABLATION["small"], **change))  # type: ignore[arg-type]
