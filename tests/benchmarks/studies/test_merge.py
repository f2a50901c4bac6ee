"""The merging study in small: what methods do to networks, what is kept of a run, and what is reported of it."""

import functools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from invoking import said
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.alignment import interpolate, repair
from nfn_monomial.benchmarks.experiments.merge import MergeConfig, read_subject
from nfn_monomial.benchmarks.studies.merge import measure, networks
from nfn_monomial.benchmarks.studies.merge.measure import OURS, Line, measure_merging, shares_left
from nfn_monomial.benchmarks.studies.merge.methods import (
    BASELINES,
    VARIANTS,
    Pair,
    activation_matching,
    correlations,
    seen_in,
)
from nfn_monomial.benchmarks.studies.merge.networks import architecture_of, data_of, space_of
from nfn_monomial.benchmarks.studies.merge.report import draw_lines, line_table, merge_report, overview_table
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.sealed import read_sealed

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


@pytest.mark.parametrize("moved", [False, True], ids=["as trained", "moved"])
def test_rows_in_front_of_a_norm_have_the_sign_that_they_have_in_the_other_network(moved: bool) -> None:
    """Gains start at 1 and stay positive; a canonical sign from sums of entries would set rows against each other."""
    pair = some_pair("digits-resnet-1")
    generator = torch.Generator().manual_seed(3)
    if moved:
        a, b = (pair.space.sample(generator=generator).proper().act(n) for n in (pair.a, pair.b))
        pair = replace(pair, a=a, b=b)
    gains = [name for name in pair.a if "norm" in name and name.endswith(".weight")]
    assert moved == any(bool((network[name] < 0).any()) for network in (pair.a, pair.b) for name in gains)
    for variant, method in VARIANTS.items():
        a, b = method(pair)
        assert all(bool((a[name] * b[name] > 0).all()) for name in gains), variant


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


def test_scales_are_bounded_where_a_neuron_is_nearly_dead() -> None:
    """Of what passes the ReLU the two networks differ by 1e3; of what enters it, by no more than 2."""
    pair = some_pair("digits-mlp-6")
    dead = dict(pair.a)
    seen = seen_in(pair.space, pair.module, dead, pair.inputs).written["h1"][0][0]
    # Its largest preactivation is just above zero.
    dead["0.bias"] = dead["0.bias"].clone()
    dead["0.bias"][0] -= seen.max() - 1e-3 * (seen.max() - seen.min())
    one, other = (VARIANTS["activations, preactivations"](replace(pair, a=a, b=pair.a)) for a in (dead, pair.a))
    read = seen_in(pair.space, pair.module, dead, pair.inputs).read["h1"][0][0]
    assert read.square().mean().sqrt() < 1e-3 * seen.square().mean().sqrt()
    for name, t in one[1].items():
        assert float(t.norm()) < 5 * float(other[1][name].norm()), name


@pytest.mark.parametrize("text", SUBJECTS)
def test_baselines_bring_a_permuted_copy_back(text: str) -> None:
    pair = some_pair(text)
    element = pair.space.restricted("permutation").sample(generator=torch.Generator().manual_seed(1)).proper()
    pair = replace(pair, b=element.act(pair.a))
    for name in ("weight matching", "activation matching"):
        _, b = BASELINES[name](pair)
        for key, t in pair.a.items():
            torch.testing.assert_close(b[key], t, rtol=1e-12, atol=1e-12, msg=f"{name}: {key}")


def test_running_statistics_do_not_match_neurons() -> None:
    pair = some_pair("digits-resnet-1")
    noisy = {n: t * (1e3 * torch.rand_like(t) if "running" in n else 1) for n, t in pair.b.items()}
    found = replace(pair, b=noisy).by_weights.matrices
    assert all(torch.equal(found[n].permutation, m.permutation) for n, m in pair.by_weights.matrices.items())


def test_activations_are_of_samples_and_positions() -> None:
    pair = some_pair("digits-vgg-2")
    found = seen_in(pair.space, pair.module, pair.a, pair.inputs)
    assert {node: [tuple(x.shape) for x in seen] for node, seen in found.read.items()} == {
        "h1": [(2, 30 * 64)], "h2": [(2, 30 * 64)], "h3": [(4, 30 * 16)], "h4": [(4, 30 * 16)], "h5": [(8, 30)],
        "h6": [(8, 30)],
    }  # fmt: skip
    assert found.written["h5"][0].shape == (8, 30 * 4)  # in front of the pool
    for node in ("h1", "h2", "h3", "h4", "h6"):
        torch.testing.assert_close(found.read[node][0], found.written[node][0].relu())
    pair = some_pair("digits-resnet-1")
    stream = seen_in(pair.space, pair.module, pair.a, pair.inputs)
    assert len(stream.read["s0"]) == 5  # three blocks, the first convolution of the next stage and its shortcut
    assert len(stream.written["s0"]) == 4  # the norms of the first layer and of three blocks
    assert all(bool((x >= 0).all()) for seen in stream.read.values() for x in seen)


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


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> tuple[measure.Findings, Path]:
    """Made by the command, and read from what it keeps."""
    folder = tmp_path_factory.mktemp("merge")
    given = {**asdict(TINY), "subjects": ",".join(TINY.subjects)}
    options = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    assert "permutation and scale" in said("bench", "merge", *options, "--out", folder)
    written = {"table.md", "results.json", "merge.png", "config.json", "networks", "pairs"}
    assert {path.name for path in folder.iterdir()} == written
    return measure_merging(TINY, folder), folder


def test_a_run_goes_on_where_it_was(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found, folder = findings

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("it was there")

    with monkeypatch.context() as patched:
        patched.setattr(networks, "train_group", never)
        patched.setattr(measure, "_along", never)
        patched.setattr(measure, "_together", never)
        seen: list[tuple[int, int]] = []
        assert measure_merging(TINY, folder, lambda *numbers: seen.append(numbers)) == found
    assert seen[0] == (0, 7)
    assert seen[-1] == (7, 7)
    # One pair is missing, and done again, the same.
    lost = folder / "pairs" / "digits-mlp-6-test-0-naive.piece"
    before = lost.read_bytes()
    lost.unlink()
    assert measure_merging(TINY, folder) == found
    assert lost.read_bytes() == before
    # A number that was changed by hand is not taken for measured.
    losses = read_sealed(lost)[1]["stated"][0][0]
    text = json.dumps(losses[0]).encode()
    assert text in before
    lost.write_bytes(before.replace(text, text.replace(b".", b"1", 1)))
    assert measure_merging(TINY, folder) == found
    assert lost.read_bytes() == before
    # Damaged networks are trained again, the same.
    (folder / "networks" / "digits-mlp-6.piece").write_bytes(b"damaged")
    assert measure_merging(TINY, folder).accuracies == found.accuracies
    # Numbers of another configuration are not taken.
    monkeypatch.setattr(measure, "_along", never)
    with pytest.raises(AssertionError, match="it was there"):
        measure_merging(replace(TINY, points=5), folder)


def test_all_lines_are_there_and_end_where_the_networks_are(findings: Any) -> None:
    found, _ = findings
    keys = [(line.subject, line.method, line.repaired) for line in found.lines]
    assert sorted(keys) == sorted(
        (subject, method, repaired)
        for subject in TINY.subjects
        for method in (*BASELINES, OURS)
        for repaired in (False, True)
    )
    for subject in TINY.subjects:
        own = [line for line in found.lines if line.subject == subject and not line.repaired]
        accuracies = found.accuracies[subject][:2]
        for line in own:
            assert len(line.loss) == 3
            assert [line.accuracy[0], line.accuracy[-1]] == pytest.approx(accuracies, abs=2 / 719)  # a tie may turn
            assert line.loss[0] == pytest.approx(own[0].loss[0], rel=1e-4)
    assert set(found.variants) == {False, True}
    assert {x.method for x in found.validation} == {*BASELINES, *VARIANTS}
    assert len({x.method for x in found.merged}) == 4


def test_the_report_shows_what_was_found(findings: Any) -> None:
    found, _ = findings
    report = merge_report(found, TINY)
    assert json.loads(json.dumps(report.results))["variants"] == {
        "no": found.variants[False], "yes": found.variants[True],
    }  # fmt: skip
    overview = overview_table(found).cells
    assert overview[0][:4] == ("naive", "no", "", "1.00 ±0.00")
    heights = {(x.subject, x.method): x.barrier for x in found.lines if x.repaired}
    lower = sum(heights[s, OURS] < heights[s, "activation matching"] for s in TINY.subjects)
    assert overview[-1][-2:] == (str(lower), "2")
    table = line_table(found, "barrier of the loss", lambda line: line.barrier, 3)
    assert [line[:2] for line in table.cells][:2] == [("MLP, width 6, digits", "no"), ("MLP, width 6, digits", "yes")]
    ours = next(x for x in found.lines if x.method == OURS and x.repaired)
    assert table.cells[1][-2:] == (f"{ours.barrier:.3f}", "1")
    assert "Merging 2 networks at once: MLP, width 6, digits" in report.markdown
    figure = draw_lines(found.lines)
    assert [ax.get_title() for ax in figure.axes[:2]] == ["MLP, width 6, digits", "VGG-like, width 1, digits"]
    lines = figure.axes[0].get_lines()
    assert len(lines) == 2 * (len(BASELINES) + 1)
    assert list(lines[-1].get_ydata()) == pytest.approx(ours.loss)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [*BASELINES, OURS, "REPAIR", "without"]


def test_settings_name_what_is_wrong() -> None:
    for text in ("digits", "digits-mlp", "digits-mlp-x", "cifar-mlp-8", "digits-gpt-8", "digits-mlp-8-8"):
        with pytest.raises(InvalidValueError, match="is not images-architecture-width"):
            MergeConfig(subjects=(text,), several=text)
    for width in ("0", "5000", "9" * 5000):
        with pytest.raises(InvalidValueError, match="must be 1 to 4096"):
            read_subject(f"digits-mlp-{width}")
    with pytest.raises(InvalidValueError, match="'digits-mlp' is not images-architecture-width"):
        MergeConfig(several="digits-mlp")
    with pytest.raises(InvalidValueError, match="points is 4"):
        MergeConfig(points=4)
    with pytest.raises(InvalidValueError, match="together is 11"):
        MergeConfig(together=11)
