"""Checkpoints that are one function by more than permutations, scales and signs, as others write them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from fibres import GPT, Attention, Llama, LowRank, NormedConvolutions, generic, normal, tokens
from own_networks import State, mlp, saved
from torch import nn

from nfn_monomial.fibre import compare_fibres, normal_form
from nfn_monomial.running import answers, largest_change
from nfn_monomial.tools import align_checkpoints, balance_checkpoint, compare_checkpoints, find_symmetries
from nfn_monomial.tools.definitions import define as definitions
from nfn_monomial.tools.definitions.define import Definition, define


def mixed(state: State) -> State:
    """Another basis between values and outputs, and between queries and keys."""
    for write in ("v", "q"):
        g = torch.randn(3, 3, dtype=torch.float64) + 2 * torch.eye(3, dtype=torch.float64)
        state[f"{write}.weight"], state[f"{write}.bias"] = g @ state[f"{write}.weight"], g @ state[f"{write}.bias"]
        if write == "v":
            state["o.weight"] = state["o.weight"] @ g.inverse()
        else:
            state["k.weight"], state["k.bias"] = g.inverse().T @ state["k.weight"], g.inverse().T @ state["k.bias"]
    return state


def rotated(state: State) -> State:
    """As QuaRot has it: gains in the matrices behind them, and the stream of 4 in another basis."""
    readers = {"norm1": ("attention.q", "attention.k", "attention.v"), "norm2": ("gate", "up"), "norm3": ("head",)}
    basis = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    for norm, names in readers.items():
        for name in names:
            state[f"{name}.weight"] = state[f"{name}.weight"] * state[f"{norm}.gain"] @ basis
        state[f"{norm}.gain"] = torch.ones(4, dtype=torch.float64)
    state["tokens.weight"] = state["tokens.weight"] @ basis
    for name in ("attention.o", "down"):
        state[f"{name}.weight"] = basis.T @ state[f"{name}.weight"]
    return state


def folded(state: State) -> State:
    """Gains of batch norms in the convolutions before, whose outputs' statistics are told in the same scale."""
    for conv, norm in (("first", "norm1"), ("second", "norm2")):
        gain = state[f"{norm}.weight"]
        for name in {f"{conv}.bias", f"{norm}.running_mean"} & set(state):
            state[name] = state[name] * gain
        state[f"{conv}.weight"] = state[f"{conv}.weight"] * gain[:, None, None, None]
        state[f"{norm}.weight"] = torch.ones_like(gain)
    return state


def rebased(state: State) -> State:
    """An adapter's factors in another basis."""
    g = torch.randn(2, 2, dtype=torch.float64) + 2 * torch.eye(2, dtype=torch.float64)
    return state | {"a": g @ state["a"], "b": state["b"] @ g.inverse()}


def merged(state: State) -> State:
    """Both biases of a cell in one of them."""
    both = state["bias_ih_l0"] + state["bias_hh_l0"]
    return state | {"bias_ih_l0": both, "bias_hh_l0": torch.zeros_like(both)}


def split(state: State) -> State:
    """The bias of one norm, seen by what it is added to, moved into two biases behind it."""
    shift = torch.randn(5, dtype=torch.float64)
    state["norm2.bias"] = state["norm2.bias"] - shift
    state["up.bias"] = state["up.bias"] + state["up.weight"] @ shift
    value = torch.randn(6, dtype=torch.float64)
    state["attention.v.bias"] = state["attention.v.bias"] - value
    state["attention.o.bias"] = state["attention.o.bias"] + state["attention.o.weight"] @ value
    return state


class Case(NamedTuple):
    """A network, its input, and the same function in other weights."""

    module: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    change: Callable[[State], State]


CASES = {
    "mixed heads": Case(lambda: Attention(4, 3), normal(2, 5, 4), mixed),
    "rotated stream": Case(lambda: Llama(2), tokens(9), rotated),
    "folded batch norms": Case(NormedConvolutions, normal(2, 2, 8, 8), folded),
    "adapter": Case(LowRank, normal(7, 4), rebased),
    "adapter of a parameter": Case(lambda: LowRank(buffer=False), normal(7, 4), rebased),
    "merged biases": Case(lambda: nn.LSTM(3, 4, batch_first=True), normal(2, 5, 3), merged),
    "split biases": Case(GPT, tokens(11), split),
}


def made(name: str) -> tuple[Definition, State, State]:
    """A definition, a network in float64, and the same one in other weights."""
    torch.manual_seed(0)
    module, inputs = CASES[name].module(), CASES[name].inputs()
    state = generic(module, torch.Generator().manual_seed(0))
    state |= {n: torch.rand_like(t) + 0.5 for n, t in state.items() if n.endswith("running_var")}
    other = CASES[name].change({n: t.clone() for n, t in state.items()})
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    assert largest_change(answers(module, other, inputs), answers(module, state, inputs)) < 1e-12
    return define(module.double(), inputs), state, other


@pytest.mark.parametrize("name", CASES)
def test_the_same_function_as_others_write_it_is_recognised(name: str, tmp_path: Path) -> None:
    definition, *states = made(name)
    narrow = [{n: t.float() if t.is_floating_point() else t for n, t in state.items()} for state in states]
    paths = [saved(tmp_path / f"{i}.safetensors", state) for i, state in enumerate(narrow)]
    found = compare_checkpoints(*paths, net=definition)
    said = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert said["same_function"]
    assert "the same function: " in found.summary
    if said["normal_forms"] is not None:
        before, moved, after = said["normal_forms"]["distances"].values()
        assert before >= moved > 1e3 * after
        assert "but for permutations, signs and scales" in found.summary
    prints = [balance_checkpoint(path, net=definition).to_json()["fingerprint"] for path in paths]
    assert prints[0] == prints[1]
    written = [balance_checkpoint(path, net=definition, fibre=True) for path in paths]
    assert all(one.to_json()["normal_form"] for one in written)
    for path, one in zip(paths, written, strict=True):
        form = one.write(tmp_path / f"normal-{path.stem}")[0]
        assert compare_checkpoints(path, form, net=definition).to_json()["same_function"]


def test_exported_programs_have_normal_forms(tmp_path: Path) -> None:
    module, inputs = Attention(4, 3), torch.randn(2, 5, 4)
    torch.export.save(torch.export.export(module, (inputs,)), tmp_path / "net.pt2")
    state = {n: t.double() for n, t in module.state_dict().items()}
    paths = [saved(tmp_path / f"{i}.pt", found) for i, found in enumerate((state, mixed(dict(state))))]
    assert "their normal forms are equal" in compare_checkpoints(*paths, net=str(tmp_path / "net.pt2")).summary


def test_one_entry_more_is_another_function(tmp_path: Path) -> None:
    definition, state, other = made("rotated stream")
    other["up.weight"][1, 2] += 1e-3
    paths = [saved(tmp_path / f"{i}.pt", found) for i, found in enumerate((state, other))]
    found = compare_checkpoints(*paths, net=definition)
    assert not found.to_json()["same_function"]
    assert found.to_json()["normal_forms"]["distances"]["between normal forms"] < 1e-2
    prints = [balance_checkpoint(path, net=definition).to_json()["fingerprint"] for path in paths]
    assert prints[0] != prints[1]


def test_outputs_that_differ_are_those_of_other_functions(tmp_path: Path) -> None:
    """Beside a large matrix each of these is small; no move explains them, and the outputs refute."""
    torch.manual_seed(0)
    layers = [part for _ in range(10) for part in (nn.Linear(8, 8), nn.Tanh())]
    module = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), *layers)
    state = {n: (t / 10 if t.ndim == 2 else t * n.startswith("1.")).bfloat16() for n, t in module.state_dict().items()}
    state["0.weight"] *= 1e5
    other = {n: t * 1.02 if t.ndim == 2 and n != "0.weight" else t for n, t in state.items()}
    paths = [saved(tmp_path / f"{i}.pt", found) for i, found in enumerate((state, other))]
    definition = define(module, torch.randn(4, 6))
    weights = compare_fibres(normal_form(module, torch.randn(4, 6)), state, other)
    assert weights.verdict.startswith("not known to be the same")
    assert "not the same: the outputs differ" in compare_checkpoints(*paths, net=definition).summary


def test_what_is_frozen_has_the_values_of_the_checkpoint(tmp_path: Path) -> None:
    module, inputs = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)), torch.randn(4, 6)
    module[1].requires_grad_(False)
    state = module.state_dict() | {"1.weight": torch.rand(5) + 0.5}  # through which what reads it sees means
    shifted = state | {"2.weight": state["2.weight"] + 1}
    moved = state | {"0.weight": state["0.weight"] + torch.randn(6)}
    paths = [saved(tmp_path / f"{i}.pt", found) for i, found in enumerate((state, shifted, moved))]
    for other, same in (paths[1], False), (paths[2], True):
        assert compare_checkpoints(paths[0], other, net=define(module, inputs)).to_json()["same_function"] == same
    written = balance_checkpoint(paths[0], net=define(module, inputs), fibre=True)
    assert written.to_json()["max_output_difference"] < 1e-6


def test_families_know_their_members(tmp_path: Path) -> None:
    definition, state, other = made("rotated stream")
    far = generic(definition.template(), torch.Generator().manual_seed(1))
    near = {n: t + 0.01 * torch.randn_like(t) for n, t in other.items()}
    for name, found in {"a": state, "b": other, "c": near, "d": far}.items():
        saved(tmp_path / f"{name}.pt", found)
    family = compare_checkpoints(tmp_path, net=definition)
    said = json.loads(json.dumps(family.to_json(), allow_nan=False))
    assert said["same_function"] == [["a", "b"]]
    assert "  a - b: " in family.summary
    assert family.summary.count("the same function") == 1
    a, b, c, d = said["distances"][0]
    assert max(a, b) < 1e-9 < 1e-3 < c < 0.1 < 0.3 < d


def test_families_see_what_nothing_moves(tmp_path: Path) -> None:
    definition, state, other = made("adapter of a parameter")
    for name, found in {"a": state, "b": other, "c": other | {"base": state["base"] + 1}}.items():
        saved(tmp_path / f"{name}.pt", found)
    said = compare_checkpoints(tmp_path, net=definition).to_json()
    assert said["same_function"] == [["a", "b"]]
    assert said["distances"][0][1] < 1e-9 < 0.1 < said["distances"][0][2]
    prints = [member["fingerprint"] for member in said["members"].values()]
    assert prints[0] == prints[1] != prints[2]


def test_networks_are_aligned_and_merged_in_normal_form(tmp_path: Path) -> None:
    definition, state, other = made("rotated stream")
    paths = [saved(tmp_path / f"{name}.pt", found) for name, found in {"a": state, "b": other}.items()]
    found = align_checkpoints(*paths, net=definition, merge=0.5, fibre=True)
    said = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert list(said["lines"])[-1] == "normal forms"
    assert said["lines"]["normal forms"]["barrier"] < 1e-9 < said["lines"]["all symmetries"]["barrier"]
    assert said["max_output_difference"] < 1e-9
    written = [torch.load(path, weights_only=True) for path in found.write(tmp_path / "out")[:3]]
    for network in written:
        module = definition.template()
        module.load_state_dict(network)
        assert (
            largest_change(answers(module, network, definition.inputs[0]), answers(module, state, definition.inputs[0]))
            < 1e-9
        )


def test_where_there_is_no_normal_form_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    definition, state, other = made("mixed heads")
    paths = [saved(tmp_path / f"{i}.pt", found) for i, found in enumerate((state, other))]
    monkeypatch.setattr(definitions, "LARGE", 10)
    words = "has more than 10 entries"
    found = compare_checkpoints(*paths, net=definition)
    assert (found.to_json()["same_function"], found.to_json()["normal_forms"]) == (False, None)
    told = [found, align_checkpoints(*paths, net=definition, fibre=True), find_symmetries(net=definition)]
    told.append(balance_checkpoint(paths[0], net=definition, fibre=True))
    assert all(words in each.summary for each in told)
    relu = [part for sizes in ((4, 6), (6, 5), (5, 2)) for part in (nn.Linear(*sizes), nn.ReLU())]
    monkeypatch.undo()
    plain = define(nn.Sequential(*relu[:-1]), torch.ones(3, 4))
    text = balance_checkpoint(saved(tmp_path / "mlp.pt", mlp(1)), net=plain, fibre=True).summary
    assert "nothing else is known to leave its function as it is" in text


def test_steps_of_one_run_in_float16_are_apart(tmp_path: Path) -> None:
    """Each is further from the next than nothing; a copy in other weights is told as such."""
    definition, state, other = made("rotated stream")
    noise = torch.Generator().manual_seed(0)
    step = {n: t + 1e-2 * torch.randn(t.shape, dtype=t.dtype, generator=noise).sign() for n, t in state.items()}
    for name, network in {"step0": state, "step1": step, "moved": other, "again": other}.items():
        saved(tmp_path / f"{name}.pt", {n: t.half() for n, t in network.items()})
    said = compare_checkpoints(tmp_path, net=definition)
    assert said.results["same_function"] == [["again", "moved"]]
    assert said.results["within_rounding"] == [["again", "step0"], ["moved", "step0"]]
    names = list(said.results["members"])
    assert said.results["distances"][names.index("step0")][names.index("step1")] > 1e-3
    assert said.summary.count("the same function") == 1
    assert said.summary.count("within the rounding of float16") == 1
