"""Checkpoints moved into one frame: what they compute stays, what lies between is measured, merged ones load."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from own_networks import mlp, moved, saved, weights
from torch import nn

from nfn_monomial.adapters.definitions import Definition
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools import align_checkpoints
from nfn_monomial.tools.checkpoints.alignments import ALL, NAIVE, PERMUTATION, PLACES, REPAIRED
from nfn_monomial.tools.checkpoints.data import judge_of
from nfn_monomial.tools.checkpoints.files import read_checkpoint


def test_a_moved_network_comes_back(residual: Definition, tmp_path: Path) -> None:
    state = weights(residual, 1)
    a, b = saved(tmp_path / "a.safetensors", state), saved(tmp_path / "b.pt", moved(residual, state, 2))
    steps: list[tuple[int, int]] = []
    found = align_checkpoints(a, b, net=residual, merge=0.5, on_progress=lambda *step: steps.append(step))
    assert steps == [(i, 36) for i in range(1, 37)], "three methods, eleven places and the one asked for"
    distances = [found.distances[method][0] for method in (NAIVE, PERMUTATION, ALL)]
    assert distances[0] > distances[1] > 1e3 * distances[2]
    naive, _, best = found.lines
    assert best.barrier < 1e-9 < naive.barrier
    assert best.merged is not None
    assert best.merged.loss < 1e-9
    assert max(found.differences) < 1e-6
    paths = found.write(tmp_path / "out")
    assert [p.name for p in paths] == ["b.pt", "merged.safetensors", "table.md", "results.json", "barrier.png"]
    written = torch.load(tmp_path / "out" / "b.pt", weights_only=True)
    assert list(written) == list(state)
    for key, tensor in state.items():
        torch.testing.assert_close(written[key], tensor, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(read_checkpoint(paths[1])[key], tensor, rtol=1e-4, atol=1e-5)
    module = type(residual.template())()
    module.load_state_dict(written)  # every key, and no other
    assert json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))["lines"][NAIVE]["t"] == list(
        PLACES
    )


def test_the_frame_is_the_first_networks(residual: Definition, tmp_path: Path) -> None:
    first = saved(tmp_path / "a.pt", weights(residual, 1))
    others = [saved(tmp_path / f"{i}" / "net.pt", weights(residual, i)) for i in (2, 3)]
    found = align_checkpoints(first, *others, net=residual)
    assert [written.name for written in found.checkpoints] == ["2-net-net.pt", "3-net-net.pt"]
    for after, network in zip(found.moved, found.networks[1:], strict=True):
        x = residual.inputs[0].double()
        module = type(residual.template())().double().eval()
        outputs = []
        for tensors in (dict(network), after):
            state = {key: t.double() for key, t in tensors.items()} | {"offset": torch.zeros(3)}
            outputs.append(torch.func.functional_call(module, state, (x,)))
        torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-9, atol=1e-9)
    assert len(found.distances[ALL]) == 2


def test_losses_on_data_are_those_of_the_networks(residual: Definition, source: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    x, y = torch.randn(40, 1, 6, 6), torch.arange(40) % 3
    states = [weights(residual, i) for i in (1, 2)]
    paths = [saved(tmp_path / f"{i}.pt", state) for i, state in enumerate(states)]
    found = align_checkpoints(*paths, net=residual, data=lambda: (x, y), merge=0.25)
    module = type(residual.template())().eval().requires_grad_(False)
    for state, score in zip(states, found.own, strict=True):
        module.load_state_dict(state)
        outputs = module(x)
        assert score.loss == pytest.approx(float(F.cross_entropy(outputs, y)), rel=1e-5)
        assert score.accuracy == pytest.approx(float((outputs.argmax(1) == y).float().mean()))
    methods = [line.method for line in found.lines]
    assert methods == [m + r for m in (NAIVE, PERMUTATION, ALL) for r in ("", REPAIRED)]
    # Where a line ends, repair changes nothing, whatever frame the other network was moved to.
    for line in found.lines:
        for score, own in zip((line.scores[0], line.scores[-1]), found.own, strict=True):
            assert score.loss == pytest.approx(own.loss, rel=1e-3)
    between = {k: 0.75 * states[0][k] + 0.25 * states[1][k] for k in residual.space.parameters}
    module.load_state_dict(states[0] | between)
    assert found.lines[0].merged is not None
    assert found.lines[0].merged.loss == pytest.approx(float(F.cross_entropy(module(x), y)), rel=1e-4)
    losses = torch.tensor([score.loss for score in found.lines[0].scores])
    excess = losses - torch.lerp(losses[0], losses[-1], torch.linspace(0, 1, 11))
    assert found.lines[0].barrier == pytest.approx(float(excess.max().clamp(min=0)), abs=1e-5)
    assert len(found.report().figures["barrier.png"].axes) == 2  # type: ignore[union-attr]


def test_merged_statistics_are_those_of_the_data(residual: Definition, tmp_path: Path) -> None:
    torch.manual_seed(3)
    x, y = torch.randn(40, 1, 6, 6), torch.arange(40) % 3
    paths = [saved(tmp_path / f"{i}.pt", weights(residual, i)) for i in (1, 2)]
    align_checkpoints(*paths, net=residual, data=lambda: (x, y), merge=0.5).write(tmp_path / "out")
    merged = torch.load(tmp_path / "out" / "merged.pt", weights_only=True)
    entering = F.conv2d(x, merged["stem.weight"], padding=1).movedim(1, 0).flatten(1)
    torch.testing.assert_close(merged["norm.running_mean"], entering.mean(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(merged["norm.running_var"], entering.var(1, correction=0), rtol=1e-4, atol=1e-4)


def test_without_a_module_networks_are_moved_all_the_same(tmp_path: Path) -> None:
    states = [dict(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3), nn.Linear(6, 2)).state_dict()) for _ in "ab"]
    paths = [saved(tmp_path / f"{i}.pt", state) for i, state in enumerate(states)]
    found = align_checkpoints(*paths, activation="relu", merge=0.5)
    assert (found.lines, found.own, found.judged) == ((), (), "")
    assert "Outputs were not compared: strides and pools are not known" in found.summary
    assert [path.name for path in found.write(tmp_path / "out")] == ["1.pt", "merged.pt", "table.md", "results.json"]
    with pytest.raises(InvalidValueError, match=r"--data .*: 0 cannot be run: strides and pools"):
        align_checkpoints(*paths, activation="relu", data="data.py:images")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", r"own\.py:nothing returns Tensor: expected tensors \(inputs, targets\), or a list"),
        ("fails", r"own\.py:fails fails: RuntimeError: no such disk"),
        ("no_such", r"own\.py has no class or function no_such"),
    ],
)
def test_data_that_cannot_be_used(name: str, message: str, source: Path) -> None:
    with pytest.raises(ValueError, match=message):
        judge_of(f"{source}:{name}", ())


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0, 5, 1]), "classes must be 0 to 1, found"),
        (torch.zeros(4, 7).long(), r"outputs are \(3, 2\) and classes \(4, 7\)"),
        (torch.zeros(3, 7), r"outputs are \(3, 2\), but targets \(3, 7\)"),
    ],
)
def test_targets_that_do_not_fit(targets: torch.Tensor, message: str, tmp_path: Path) -> None:
    paths = [saved(tmp_path / f"{i}.pt", mlp(i)) for i in (1, 2)]
    with pytest.raises(InvalidValueError, match=message):
        align_checkpoints(*paths, activation="relu", data=lambda: (torch.randn(3, 4), targets))


def test_shares_are_between_0_and_1(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"--merge 1\.5: expected the share of the others, 0 to 1"):
        align_checkpoints(tmp_path / "a.pt", tmp_path / "b.pt", merge=1.5)
    with pytest.raises(InvalidValueError, match="--merge nan"):
        align_checkpoints(tmp_path / "a.pt", tmp_path / "b.pt", merge=float("nan"))
