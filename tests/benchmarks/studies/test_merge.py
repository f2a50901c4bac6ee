"""The merging study in small: what methods do to networks, what is kept of a run, and what is reported of it."""

import functools
import itertools
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from invoking import said
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.alignment import interpolate, repair
from nfn_monomial.benchmarks.experiments.merge import MergeConfig, read_subject
from nfn_monomial.benchmarks.studies.merge.measure import Line, measure_merging, shares_left
from nfn_monomial.benchmarks.studies.merge.methods import (
    BASELINES,
    IMAGE_NETS,
    VARIANTS,
    Method,
    Pair,
    activation_matching,
    correlations,
    seen_in,
)
from nfn_monomial.benchmarks.studies.merge.networks import architecture_of, data_of, space_of
from nfn_monomial.benchmarks.studies.merge.report import merge_report, overview_table
from nfn_monomial.benchmarks.studies.merge.transformers import TRANSFORMERS, products_of
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.fibre import normal_form

TINY = MergeConfig(
    subjects=("digits-mlp-6", "digits-vgg-1"), several="digits-mlp-6", together=2, pairs=1, validation_pairs=1,
    steps=1, batch_size=8, points=3, inputs=20,
)  # fmt: skip
SUBJECTS = ("digits-mlp-6", "digits-vgg-2", "digits-resnet-1")


@functools.cache
def some_pair(text: str, *, copied: bool = False) -> Pair:
    """Two random networks in float64; or one, and a copy that a random group element has moved."""
    subject = read_subject(text)
    architecture = architecture_of(subject)
    space = space_of(architecture)
    generator = torch.Generator().manual_seed(0)

    def draw() -> dict[str, Tensor]:
        found = {}
        for name, shape in space.shapes().items():
            noise = torch.randn(shape, dtype=torch.float64, generator=generator)
            fan = noise[0].numel() if noise.ndim > 1 else 4
            found[name] = 0.5 + noise.square() if name.endswith("running_var") else 0.4 * noise / fan**0.5
            if "norm" in name and name.endswith(".weight"):
                found[name] = 1 + 0.1 * noise
            if name.endswith(".bias"):
                found[name] = 2 + noise.abs()  # so that no neuron is dead, of which nothing could be said
        return found

    a, inputs = draw(), data_of(subject)[1].train[0][:30].double()
    b = space.sample(generator=generator).proper().act(a) if copied else draw()
    return Pair(space, architecture.module().double().eval().requires_grad_(False), a, b, inputs)


def answers(pair: Pair, network: dict[str, Tensor]) -> Tensor:
    out: Tensor = torch.func.functional_call(pair.module, network, (pair.inputs,))
    return out


@pytest.mark.parametrize("text", SUBJECTS)
def test_every_method_keeps_both_functions(text: str) -> None:
    pair = some_pair(text)
    for name, method in {**BASELINES, **VARIANTS}.items():
        found = method(pair)
        for network, own in zip(found, (pair.a, pair.b), strict=True):
            assert network.keys() == own.keys()
            torch.testing.assert_close(answers(pair, network), answers(pair, own), rtol=1e-9, atol=1e-9, msg=name)
        if name != "naive":
            assert any(not torch.equal(found[1][key], pair.b[key]) for key in pair.b), name


@pytest.mark.parametrize("text", SUBJECTS)
def test_permutation_and_scale_bring_a_moved_copy_back(text: str) -> None:
    pair = some_pair(text, copied=True)
    for name, method in VARIANTS.items():
        a, b = method(pair)
        for key, t in a.items():
            torch.testing.assert_close(b[key], t, rtol=1e-6, atol=1e-6 * float(t.abs().max()), msg=f"{name}: {key}")
    a, b = BASELINES["activation matching"](pair)
    assert not all(torch.allclose(b[key], t, rtol=1e-2) for key, t in a.items())


@pytest.mark.parametrize("text", SUBJECTS)
def test_the_mean_does_not_depend_on_the_frame_of_either_network(text: str) -> None:
    pair = some_pair(text)
    generator = torch.Generator().manual_seed(4)
    a, b = (pair.space.sample(generator=generator).proper().act(n) for n in (pair.a, pair.b))
    other = replace(pair, a=a, b=b)
    for name, method in VARIANTS.items():
        if name.startswith("balanced weights"):
            continue  # of many minima, another order of neurons may lead to another one
        for repaired in (False, True):
            means = []
            for one in (pair, other):
                ends = method(one)
                mean = interpolate(*ends, 0.5)
                means.append(answers(one, repair(one.module, mean, ends, one.inputs) if repaired else mean))
            torch.testing.assert_close(*means, rtol=1e-6, atol=1e-6, msg=f"{name}, {repaired}")


def test_preactivations_get_the_size_that_they_have_in_the_other_network() -> None:
    pair = some_pair("digits-vgg-2")
    a, b = (seen_in(pair.space, pair.module, n, pair.inputs) for n in VARIANTS["activations, preactivations"](pair))
    for node, (x,) in a.written.items():
        torch.testing.assert_close(b.written[node][0].square().mean(1), x.square().mean(1), rtol=1e-9, atol=1e-9)


def test_running_statistics_do_not_match_neurons() -> None:
    pair = some_pair("digits-resnet-1")
    noisy = {n: t * (1e3 * torch.rand_like(t) if "running" in n else 1) for n, t in pair.b.items()}
    found = replace(pair, b=noisy).by_weights.matrices
    assert all(torch.equal(found[n].permutation, m.permutation) for n, m in pair.by_weights.matrices.items())


def test_activation_matching_takes_the_permutation_of_largest_correlation() -> None:
    space = WeightSpace.mlp([2, 4, 1], "relu")
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(4, 50, generator=generator)
    order = torch.tensor([2, 0, 3, 1])
    other = 7 * first[order] + 0.3 * torch.randn(4, 50, generator=generator) + 5
    element = activation_matching(space, {"h1": [first]}, {"h1": [other]}, correlations)
    moved = element.matrices["h1"].act(other, 0)
    assert torch.equal(moved, other[order.argsort()])


def test_shares_are_of_the_naive_barrier_of_the_same_pair() -> None:
    lines = [
        Line("digits-mlp-6", pair, method, False, (0.0, height, 0.0), (1.0, 0.5, 1.0))
        for pair, heights in enumerate([(4.0, 1.0), (2.0, 1.0), (0.0, 1.0)])
        for method, height in zip(("naive", "other"), heights, strict=True)
    ]
    assert shares_left(lines) == {"naive": [1, 1], "other": [0.25, 0.5]}
    assert shares_left(lines[-2:]) == {"naive": [], "other": []}
    assert (lines[0].barrier, lines[0].middle, lines[0].ends) == (4, 0.5, 1)


def test_a_run_finds_all_lines_and_goes_on_where_it_was(tmp_path: Path) -> None:
    """Made by the command, and read from what it keeps."""
    given = {**asdict(TINY), "subjects": ",".join(TINY.subjects)}
    options = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    assert "permutation and scale" in said("bench", "merge", *options, "--out", tmp_path)
    written = {"table.md", "results.json", "merge.png", "config.json", "networks", "pairs"}
    assert {path.name for path in tmp_path.iterdir()} == written
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.piece")}
    found = measure_merging(TINY, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.piece")} == before, "nothing was done again"
    assert sorted((line.subject, line.method, line.repaired) for line in found.lines) == sorted(
        itertools.product(TINY.subjects, IMAGE_NETS.methods, (False, True))
    )
    for line in (line for line in found.lines if not line.repaired):
        ends = [line.accuracy[0], line.accuracy[-1]]
        assert ends == pytest.approx(found.accuracies[line.subject][:2], abs=2 / 719)  # a tie may turn
    assert len({x.method for x in found.merged}) == 4
    heights = {(x.subject, x.method): x.barrier for x in found.lines if x.repaired}
    lower = sum(heights[s, IMAGE_NETS.ours] < heights[s, "activation matching"] for s in TINY.subjects)
    assert overview_table(found).cells[-1][-2:] == (str(lower), "2")
    lost = tmp_path / "pairs" / "digits-mlp-6-test-0-naive.piece"
    content = lost.read_bytes()
    for damaged in (None, content.replace(b"0.", b"1.", 1)):
        lost.unlink() if damaged is None else lost.write_bytes(damaged)
        assert measure_merging(TINY, tmp_path) == found, "done again, the same"
        assert lost.read_bytes() == content


TRANSFORMER_SUBJECTS = ("digits-transformer-8", "digits-transformer2-8")


@pytest.mark.parametrize("text", TRANSFORMER_SUBJECTS)
def test_every_method_keeps_the_functions_of_transformers(text: str) -> None:
    pair = some_pair(text)
    for name, method in {**TRANSFORMERS.baselines, **TRANSFORMERS.variants}.items():
        found = method(pair)
        for network, own in zip(found, (pair.a, pair.b), strict=True):
            torch.testing.assert_close(answers(pair, network), answers(pair, own), rtol=1e-8, atol=1e-8, msg=name)
        widths = {x.shape for network in found for n, x in network.items() if n.endswith("query.weight")}
        assert widths == {(32, 8) if "generalized" in name else (8, 8)}, name
        if name != "naive":
            assert any(not torch.equal(found[1][key], pair.b[key]) for key in pair.b), name


@pytest.mark.parametrize("text", TRANSFORMER_SUBJECTS)
def test_normal_forms_bring_any_network_of_the_same_function_back(text: str) -> None:
    """Moved by a random element of all that leaves its function as it is: permutations alone do not undo that."""
    pair = some_pair(text)
    form = normal_form(pair.module, pair.inputs)
    moved = form.sample(pair.a, generator=torch.Generator().manual_seed(2))
    pair = replace(pair, b=moved)
    torch.testing.assert_close(answers(pair, moved), answers(pair, pair.a), rtol=1e-8, atol=1e-8)

    def apart(method: Method) -> float:
        return float((answers(pair, interpolate(*method(pair), 0.5)) - answers(pair, pair.a)).abs().max())

    for name, method in {**TRANSFORMERS.baselines, **TRANSFORMERS.variants}.items():
        if name in ("naive", "weight matching"):
            assert apart(method) > 1e-2, name
        else:
            assert apart(method) < 1e-6, name


def test_products_of_heads_are_what_heads_do() -> None:
    pair = some_pair("digits-transformer2-8")
    (network, _), (own, _) = (TRANSFORMERS.baselines["generalized LMC"](pair), TRANSFORMERS.variants["weights"](pair))
    again = products_of(pair.space, products_of(pair.space, own))
    for name, x in network.items():
        torch.testing.assert_close(again[name], x, rtol=1e-9, atol=1e-9, msg=name)
    assert torch.equal(network["blocks.1.key.weight"], torch.eye(8, dtype=torch.float64).repeat(4, 1))


def test_transformers_and_others_are_not_merged_in_one_run() -> None:
    with pytest.raises(InvalidValueError, match="give them a run of their own"):
        replace(TINY, subjects=("digits-mlp-6", "digits-transformer-8"))


def test_a_run_of_transformers_finds_all_lines(tmp_path: Path) -> None:
    config = replace(TINY, subjects=TRANSFORMER_SUBJECTS[:1], several=TRANSFORMER_SUBJECTS[0])
    found = measure_merging(config, tmp_path)
    assert {(x.subject, x.method, x.repaired) for x in found.lines} == set(
        itertools.product(config.subjects, TRANSFORMERS.methods, (False, True))
    )
    assert {x.method for x in found.validation} == {*TRANSFORMERS.baselines, *TRANSFORMERS.variants}
    for x in found.lines:
        own = next(y for y in found.lines if (y.subject, y.method) == (x.subject, "naive") and not y.repaired)
        if not x.repaired:
            assert (x.loss[0], x.loss[-1]) == pytest.approx((own.loss[0], own.loss[-1]), rel=1e-4), x.method
    tables = merge_report(found, config).tables
    assert [cell[0] for cell in tables[0].cells[::2]] == list(TRANSFORMERS.methods)
    assert {name for name, *_ in tables[3].cells} == {*TRANSFORMERS.baselines, *TRANSFORMERS.variants}
