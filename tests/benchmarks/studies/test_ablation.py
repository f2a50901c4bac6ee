"""The ablation: six stacks of one class, invariant all of them, and a table that keeps the paper's numbers apart."""

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch
from made_up_runs import made_up_run
from small_zoo import small_zoo

from nfn_monomial import GroupElement, MonomialNFN
from nfn_monomial.benchmarks.experiments.ablation import STACKS
from nfn_monomial.benchmarks.models.catalogue import model_names
from nfn_monomial.benchmarks.models.parts import CHANNELS
from nfn_monomial.benchmarks.studies.ablation import ablation_tables, draw_ablation
from nfn_monomial.benchmarks.train.runs import Run, TestResult
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.predictors.models import build_model, model_class


def relative_change(name: str, activation: str, element: GroupElement) -> float:
    """Largest change of a fresh model's answers, relative to their spread over networks."""
    info = small_zoo(activation).info
    tensors = random_networks(element.space, 12, generator=torch.Generator().manual_seed(2))
    model = build_model(name, info, seed=0).double().eval()
    with torch.no_grad():
        before, after = (model(model.prepare(t)) for t in (tensors, element.act(tensors)))
    assert before.std() > 1e-4, "an answer that does not depend on the network would be invariant, too"
    return float((after - before).abs().max() / before.std())


def test_six_stacks_that_are_no_default_models() -> None:
    assert tuple(STACKS) == ("mnf-1-hnp", "mnf-2-hnp", "mnf-3-hnp", "mnf-1", "mnf-2", "mnf-3")
    assert not set(STACKS) & {*model_names(), *model_names("inr")}
    assert set(STACKS) <= set(model_names("ablation"))
    for name, (depth, hnp) in STACKS.items():
        model: Any = model_class(name)
        assert (model.depth, model.hnp, model.label) == (depth, hnp, f"MNF x {depth}" + ", HNP" * hnp)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("name", STACKS)
def test_stacks_are_invariant_as_hnp_is_not(name: str, activation: str) -> None:
    space = small_zoo(activation).info.space
    element = space.sample(12, scale_range=(1, 1e3), generator=torch.Generator().manual_seed(1))
    assert relative_change(name, activation, element) < 1e-10
    assert relative_change("hnp", activation, element) > 1e-2


def test_three_layers_are_the_models_of_the_main_experiment_and_of_the_library() -> None:
    info = small_zoo("relu").info
    tensors = random_networks(info.space, 12, dtype=torch.float32)
    for stack, name in (("mnf-3", "monomial"), ("mnf-3-hnp", "monomial-hnp")):
        one, other = (build_model(n, info, seed=3) for n in (stack, name))
        assert torch.equal(one(one.prepare(tensors)), other(other.prepare(tensors)))
    one = build_model("mnf-3", info, seed=3)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = MonomialNFN(info.space, CHANNELS, hidden=200)
    torch.testing.assert_close(net(tensors).squeeze(-1), one(one.prepare(tensors)), rtol=0, atol=0)
    sizes = {name: sum(p.numel() for p in build_model(name, info, seed=0).parameters()) for name in STACKS}
    assert sizes["mnf-1"] < sizes["mnf-2"] < sizes["mnf-3"]
    assert all(sizes[f"mnf-{depth}"] < sizes[f"mnf-{depth}-hnp"] for depth in (1, 2, 3))


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


def test_figure() -> None:
    """Tau over the number of layers, with and without HNP, unchanged and moved the most."""
    relu, tanh = (figure := draw_ablation(of_stacks())).axes
    assert [ax.get_title() for ax in (relu, tanh)] == ["relu networks", "tanh networks"]
    assert (relu.get_xlabel(), relu.get_ylabel()) == ("equivariant layers", "Kendall's tau on test networks")
    drawn = {bars.get_label(): bars for bars in relu.containers}
    assert list(drawn) == ["without HNP, original", "without HNP, m", "with HNP, original", "with HNP, m"]
    line, _, (errors,) = drawn["without HNP, original"].lines
    assert line.get_xdata().tolist() == [1, 3]
    assert line.get_ydata().tolist() == pytest.approx([0.55, 0.75])
    error = statistics.stdev([0.5, 0.6]) / math.sqrt(2)
    heights = [segment[:, 1].tolist() for segment in errors.get_segments()]
    assert heights[0] == pytest.approx([0.55 - error, 0.55 + error])
    assert len(tanh.containers) == 2
    assert "standard error over seeds" in figure.get_supxlabel()
