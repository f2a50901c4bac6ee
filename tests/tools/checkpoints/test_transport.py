"""A fine-tune on another base: exact where bases are one function, told where they are not, and refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from invoking import invoke, said
from own_networks import State, mlp, moved, saved, weights
from torch import Tensor, nn

from nfn_monomial.adapters.definitions import Definition
from nfn_monomial.tools import transport_checkpoint
from nfn_monomial.tools.calls import Call

METHODS = ["as it is", "permutation", "all symmetries"]


def tuned(state: State, size: float = 0.1) -> State:
    """With noise, as training leaves it; variances stay positive."""
    torch.manual_seed(7)
    return {n: t + size * t.abs() * torch.randn(t.shape) if t.is_floating_point() else t for n, t in state.items()}


@pytest.fixture
def bases(residual: Definition, tmp_path: Path) -> list[Path]:
    """A base, what it was tuned to, and the base in other weights."""
    state = weights(residual, 1)
    other = {name: t.double() if t.is_floating_point() else t for name, t in state.items()}
    made = {"base": state, "tuned": tuned(state), "new": moved(residual, other, 2)}
    return [saved(tmp_path / f"{name}.pt", states) for name, states in made.items()]


def answers(definition: Definition, state: State, x: Tensor) -> Tensor:
    module: nn.Module = type(definition.template())().double().eval().requires_grad_(False)
    module.load_state_dict(state)
    found: Tensor = module(x)
    return found


@pytest.mark.parametrize("alpha", [1.0, 0.25])
def test_between_two_forms_of_one_base_it_is_exact(
    bases: list[Path], residual: Definition, alpha: float, tmp_path: Path
) -> None:
    steps: list[tuple[int, int]] = []
    call = Call(progress=lambda *step: steps.append(step))
    found = transport_checkpoint(*bases, net=residual, symmetry=None if alpha == 1 else "all", alpha=alpha, call=call)
    (path, *_) = found.write(tmp_path / "out")
    assert steps == [(i, 30) for i in range(1, 31)]
    base, tune, new = (torch.load(path, weights_only=True) for path in bases)
    written = torch.load(path, weights_only=True)
    assert [(n, t.dtype, t.shape) for n, t in written.items()] == [(n, t.dtype, t.shape) for n, t in new.items()]
    torch.manual_seed(0)
    x = torch.randn(8, 1, 6, 6, dtype=torch.float64)
    share = {n: t + alpha * (tune[n] - t) if t.is_floating_point() else t for n, t in base.items()}
    expected = answers(residual, share, x)
    apart = (answers(residual, written, x) - expected).norm() / (answers(residual, base, x) - expected).norm()
    assert apart < 1e-5, "the tuned network is in float32"
    as_it_is = {n: new[n] + alpha * (tune[n] - t) if t.is_floating_point() else t for n, t in base.items()}
    naive = (answers(residual, as_it_is, x) - expected).norm() / (answers(residual, base, x) - expected).norm()
    assert naive > 0.1 or not naive.isfinite()
    said = found.to_json()
    assert list(said["lines"]) == METHODS
    assert all(line["loss"][0] == 1 and line["alpha"][-1] == alpha for line in said["lines"].values())
    if alpha == 1:
        assert said["lines"]["all symmetries"]["loss"][-1] < 1e-6
        assert min(said["lines"][method]["loss"][-1] for method in METHODS[:2]) > 1e-3
    distances = said["distance_of_bases"]
    assert distances["all symmetries"] < 1e-3 < distances["permutation"] < distances["as it is"]


def test_with_data_everybody_is_scored_on_them(bases: list[Path], residual: Definition) -> None:
    x, y = torch.randn(40, 1, 6, 6), torch.arange(40) % 3
    found = transport_checkpoint(*bases, net=residual, symmetry="permutation", alpha=0.5, data=lambda: (x, y))
    said = found.to_json()
    assert (said["written"], said["judged_by"]) == ("permutation", "cross-entropy on 40 samples")
    states = dict(zip(("base", "tuned", "new base"), (torch.load(p, weights_only=True) for p in bases), strict=True))
    for name, state in states.items():
        scores = answers(
            residual, {n: t.double() if t.is_floating_point() else t for n, t in state.items()}, x.double()
        )
        assert said["own"][name]["loss"] == pytest.approx(float(F.cross_entropy(scores, y)), rel=1e-4)
        assert said["own"][name]["accuracy"] == pytest.approx(float((scores.argmax(1) == y).double().mean()), abs=0.03)
    made = {n: t.double() for n, t in found.checkpoints[0].tensors.items()}
    written = {n: made.get(n, t.double() if t.is_floating_point() else t) for n, t in states["new base"].items()}
    scores = answers(residual, written, x.double())
    assert said["lines"]["permutation"]["loss"][-1] == pytest.approx(float(F.cross_entropy(scores, y)), rel=1e-3)
    (table,) = found.report().tables
    assert [row[0] for row in table.cells] == [*states, *(f"new base + change, {method}" for method in METHODS)]


def test_a_chain_that_cannot_run_is_moved_all_the_same(tmp_path: Path) -> None:
    states = {"base": {"0.weight": torch.randn(4, 1, 3, 3), "1.weight": torch.randn(2, 4, 3, 3)}}
    states["tuned"] = tuned(states["base"])
    order = torch.tensor([2, 0, 3, 1])
    states["new"] = {"0.weight": states["base"]["0.weight"][order], "1.weight": states["base"]["1.weight"][:, order]}
    paths = [saved(tmp_path / f"{name}.pt", state) for name, state in states.items()]
    found = transport_checkpoint(*paths, activation="relu")
    (made,) = found.checkpoints
    assert torch.allclose(made.tensors["0.weight"].float(), states["tuned"]["0.weight"][order])
    assert "Outputs were not compared: strides" in found.summary
    assert found.to_json()["lines"] == found.report().figures == {}


def test_the_command_writes_a_checkpoint_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base, new = mlp(1), mlp(2)
    for name, state in {"base": base, "tuned": tuned(base), "new": new}.items():
        saved(tmp_path / f"{name}.safetensors", state)
    words = ["transport", *(f"{name}.safetensors" for name in ("base", "tuned", "new")), "--activation", "relu"]
    result = invoke(*words, "--out", "out", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == json.loads(Path("out/results.json").read_text(encoding="utf-8"))
    assert {path.name for path in Path("out").iterdir()} == {
        "new.safetensors", "results.json", "table.md", "transport.png"
    }  # fmt: skip
    told = said(*words, "--out", "words", "--symmetry", "all")
    assert "new + 1 x (tuned - base), which is moved by all symmetries." in told
    assert "transport needs three checkpoints, BASE TUNED NEWBASE; found 2" in said(*words[:3], *words[-2:], code=2)


def test_what_cannot_be_carried_is_refused(bases: list[Path], residual: Definition, tmp_path: Path) -> None:
    base, tune, new = bases
    options: list[tuple[tuple[Path, ...], dict[str, Any], str]] = [
        ((base, tune, new), {"symmetry": "sign"}, "--symmetry sign: expected permutation or all"),
        ((base, tune, new), {"alpha": 0}, "--alpha 0: expected a share of the change"),
        ((base, saved(tmp_path / "same.pt", torch.load(base, weights_only=True)), new), {}, "the same parameters"),
    ]
    state = torch.load(tune, weights_only=True)
    shifted = saved(tmp_path / "shifted.pt", state | {"offset": torch.ones(3)})
    options.append(((base, shifted, new), {}, "differ in offset"))
    for paths, given, message in options:
        with pytest.raises(ValueError, match=message):
            transport_checkpoint(*paths, net=residual, **given)


def test_variances_end_at_0(bases: list[Path], residual: Definition, tmp_path: Path) -> None:
    base, tune, _ = bases
    narrow = torch.load(tune, weights_only=True) | {"norm.running_var": torch.zeros(4)}
    other = saved(tmp_path / "other.pt", weights(residual, 5))
    found = transport_checkpoint(base, saved(tmp_path / "narrow.pt", narrow), other, net=residual, alpha=3.0)
    variance = found.checkpoints[0].tensors["norm.running_var"]
    assert variance.min() == 0
    assert all(torch.tensor(line["loss"]).isfinite().all() for line in found.to_json()["lines"].values())
