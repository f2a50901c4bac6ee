"""The ablations: stacks of one class, invariant all of them, tables, and what terms that are left out cannot do."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_up_runs import made_up_run
from small_zoo import small_zoo

from nfn_monomial import GroupElement
from nfn_monomial.basis import BilinearTerm, bilinear_terms
from nfn_monomial.benchmarks.data.moves import WIDENED
from nfn_monomial.benchmarks.experiments.ablation import ABLATION, KINDS, STACKS, TERMS
from nfn_monomial.benchmarks.models.terms import TermStack, stream_types, terms_of
from nfn_monomial.benchmarks.report.beside import beside_paper
from nfn_monomial.benchmarks.studies.ablation import STUDY, ablation_report, ablation_tables, draw_terms
from nfn_monomial.benchmarks.train.runs import Run, RunStore, TestResult
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.predictors.models import build_model

OTHERS = [name for name in TERMS if name != "bilinear"]


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
@pytest.mark.parametrize("name", [*STACKS, "bilinear", *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)])
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


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_kinds_are_all_standard_terms(activation: str) -> None:
    """Each once, whichever factor comes first, but for those of the field without an axis."""
    space = small_zoo(activation).info.space
    types = [t for t in stream_types(space).types if t]
    threes = itertools.product(types, types, types)
    every = [t for one, two, to in threes for t in bilinear_terms(one, two, to, space.nodes) if t.standard]
    by_kind = {kind: terms_of(space, types, (kind,)) for kind in KINDS}
    assert all(by_kind.values())
    found = [term for terms in by_kind.values() for term in terms]
    assert {unordered(t) for t in found} == {unordered(t) for t in every}
    assert len(found) == len({unordered(t) for t in found})


def unordered(term: BilinearTerm) -> object:
    """A term without the order of its factors and the names of its letters: where each axis of the output, or another
    axis, is in them."""
    first, second, target = term.letters
    letters = dict.fromkeys(target + first + second)
    places = [(tuple(x.find(letter) for letter in letters), axes) for x, axes in ((first, term[0]), (second, term[1]))]
    return frozenset(places), term.target


@pytest.mark.parametrize(
    ("name", "sees_row"),
    [("linear", False), ("linear-forward", True), ("without-forward", False), ("bilinear", True)],
)
def test_a_hidden_weight_sees_only_itself_in_linear_layers(name: str, sees_row: bool) -> None:
    """Of ReLU networks: no weight in linear layers, nor the stream of its target where no forward messages are."""
    space = small_zoo("relu").info.space
    model = build_model(name, small_zoo("relu").info, seed=0).double()
    assert isinstance(model, TermStack)
    tensors = random_networks(space, 2, generator=torch.Generator().manual_seed(2))
    x = model.prepare({name: t.requires_grad_() for name, t in tensors.items()})
    out = model.fields(x)
    weight = next(t for t in out.layout.types if len(t) == 2)
    stream = out.fields[next(t for t in out.layout.types if t == weight[:1])]
    by_stream, seen = (
        torch.autograd.grad(y.sum(), tensors["weight.1"], retain_graph=True, materialize_grads=True)[0]
        for y in (stream[:, 0], out.fields[weight][:, 0, 0])
    )
    assert bool((by_stream[:, :, 0] != 0).any()) == sees_row
    assert seen[:, :, 0, 0].abs().max() > 0
    seen[:, :, 0, 0] = 0
    assert bool((seen != 0).any()) == (len(model.kinds) > 1)


def test_tables_of_terms() -> None:
    def run(model: str, seed: int, tau: float, count: int) -> Run:
        taus = {"original": tau, "scale 10000": 0.1, WIDENED: -0.9}
        tests = [TestResult(name, None, {"tau": value}, 0) for name, value in taus.items()]
        return made_up_run(model, seed, tests, options={"train_networks": count})

    taus = {"linear": (0.5, 0.6), "linear-forward": (0.6, 0.8), "without-outer": (0.7, 0.7), "bilinear": (0.7, 0.8)}
    runs = [run(model, seed, tau, 500) for model, both in taus.items() for seed, tau in enumerate(both)]
    runs += [run("linear", 0, 0.6, 5000), run("linear-forward", 0, 0.9, 5000), run("hnp", 0, 0.7, 5000)]
    report = ablation_report(runs)
    (table,) = report.tables
    assert table.header == ("terms", "500", "brings, 500", "5,000", "brings, 5,000", "params")
    lines = {line[0]: line[1:-1] for line in table.cells}
    assert lines["LINEAR-FORWARD"] == ("0.700 ±0.100", "+0.150 ±0.050", "0.900", "+0.300")
    assert lines["WITHOUT-OUTER"] == ("0.700 ±0.000", "+0.050 ±0.050", "-", "-")
    assert lines["HNP"] == ("-", "-", "0.700", "-")
    assert "differs by 0.8000 at most" in table.notes[0]
    assert [ax.get_title()[:12] for ax in draw_terms(runs).axes] == ["relu network"] * 2
    stacks = beside_paper(ablation_report([run("monomial", 0, 0.5, n) for n in (40, 60)]), "ablation")
    assert len(stacks.tables) == 1, "the paper has no such columns"


def test_all_sizes_are_checked_before_the_first_is_trained(tmp_path: Path) -> None:
    zoo = small_zoo("relu")
    few = replace(ABLATION["terms"], models=("linear",), train_networks=(20, 10**6), seeds=(0,))
    done: list[object] = []
    with pytest.raises(ValueError, match="train_networks has 1000000"):
        STUDY.run({"relu": zoo}, few, RunStore(tmp_path), done.append)
    assert not done
    with pytest.raises(ValueError, match="train_networks is of the ablation of terms"):
        STUDY.check(replace(few, models=("mnf-1",)))
