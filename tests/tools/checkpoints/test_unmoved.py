"""Tensors that no symmetry moves are part of what a checkpoint computes: masks, orders and scales of inputs."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from invoking import said
from own_networks import State, mlp, moved, saved, weights

from nfn_monomial.adapters.definitions import Definition, define, read_definition
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools import align_checkpoints, balance_checkpoint, compare_checkpoints
from nfn_monomial.tools.checkpoints.comparison import Pair
from nfn_monomial.tools.checkpoints.families import Family

MASK = (torch.arange(18).reshape(3, 6) % 3 > 0).float()
OTHERS: dict[str, State] = {
    "mask": {"mask": MASK},
    "order": {"order": torch.tensor([2, 0, 3, 1])},
    "deviation": {"deviation": torch.tensor([1.0, 2.0, 0.5, 4.0])},
}


def outputs(definition: Definition, state: State, x: torch.Tensor) -> torch.Tensor:
    module = type(definition.template())().eval().requires_grad_(False)
    module.load_state_dict(state)
    answer: torch.Tensor = module(x)
    return answer


@pytest.mark.parametrize("change", OTHERS)
def test_other_buffers_are_another_function(change: str, pruned: Definition, tmp_path: Path) -> None:
    state = weights(pruned, 1)
    other = moved(pruned, state, 2) | OTHERS[change]
    a, b = saved(tmp_path / "a.pt", state), saved(tmp_path / "b.safetensors", other)
    found = compare_checkpoints(a, b, net=pruned)
    assert isinstance(found, Pair)
    assert not found.found.same_function
    assert found.others == (() if change == "mask" else (change,)), "a mask moves with its neurons, and is compared so"
    (x,) = pruned.inputs
    apart = float((outputs(pruned, state, x) - outputs(pruned, other, x)).abs().max())
    assert found.found.max_output_difference == pytest.approx(apart, rel=1e-4)
    c = saved(tmp_path / "c.pt", moved(pruned, state, 3))
    family = compare_checkpoints(a, b, c, net=pruned)
    assert isinstance(family, Family)
    assert family.distances[0][1] > 0.1
    assert family.distances[0][2] < 1e-5
    assert (
        balance_checkpoint(a, net=pruned).fingerprint
        == balance_checkpoint(c, net=pruned).fingerprint
        == family.fingerprints[2]
    )
    assert (
        balance_checkpoint(a, net=pruned).fingerprint
        != balance_checkpoint(b, net=pruned).fingerprint
        == family.fingerprints[1]
    )


def test_each_network_is_judged_with_its_own(pruned: Definition, tmp_path: Path) -> None:
    torch.manual_seed(3)
    x, y = torch.randn(40, 4), torch.arange(40) % 3
    states = [weights(pruned, 1), weights(pruned, 2) | OTHERS["deviation"]]
    paths = [saved(tmp_path / f"{i}.pt", state) for i, state in enumerate(states)]
    found = align_checkpoints(*paths, net=pruned, data=lambda: (x, y), merge=0.25)
    for i, (state, score) in enumerate(zip(states, found.own, strict=True)):
        assert score.loss == pytest.approx(float(F.cross_entropy(outputs(pruned, state, x), y)), rel=1e-5)
        for line in found.lines:
            assert line.scores[-i].loss == pytest.approx(score.loss, rel=1e-4)
    found.write(tmp_path / "out")
    merged = torch.load(tmp_path / "out" / "merged.pt", weights_only=True)
    torch.testing.assert_close(merged["deviation"], 0.75 + 0.25 * states[1]["deviation"])
    assert found.lines[-1].merged is not None
    loss = float(F.cross_entropy(outputs(pruned, merged, x), y))
    assert found.lines[-1].merged.loss == pytest.approx(loss, rel=1e-4)
    written = torch.load(tmp_path / "out" / "1.pt", weights_only=True)
    torch.testing.assert_close(outputs(pruned, written, x), outputs(pruned, states[1], x), rtol=1e-4, atol=1e-5)


def test_orders_have_no_mean(pruned: Definition, tmp_path: Path) -> None:
    states = [weights(pruned, 1), weights(pruned, 2) | OTHERS["order"]]
    paths = [saved(tmp_path / f"{i}.pt", state) for i, state in enumerate(states)]
    with pytest.raises(InvalidValueError, match=r"0 and 1 differ in order, .*no line between"):
        align_checkpoints(*paths, net=pruned)


def test_a_mask_is_moved_along_with_its_neurons(source: Path, tmp_path: Path) -> None:
    definition, rows = read_definition(f"{source}:pruned"), torch.tensor([[1.0, 2, 3, 4, 5, 6]]).expand(3, 6)
    states = [weights(definition, i) | {"mask": rows.clone()} for i in (1, 2)]
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    states[1] |= {key: states[0][key][order] for key in ("first.weight", "first.bias")}
    states[1]["second.weight"] = states[0]["second.weight"][:, order]
    paths = [saved(tmp_path / f"{i}.pt", state) for i, state in enumerate(states)]
    said("align", *paths, "--net", f"{source}:pruned", "--out", tmp_path / "out")
    written = torch.load(tmp_path / "out" / "1.pt", weights_only=True)
    assert not torch.equal(written["mask"], rows)
    (x,) = definition.inputs
    torch.testing.assert_close(outputs(definition, written, x), outputs(definition, states[1], x), rtol=1e-4, atol=1e-5)


def test_rounding_that_changes_the_function_is_not_written(tmp_path: Path) -> None:
    state = {key: t.bfloat16() for key, t in mlp(1, (4, 40, 40, 2)).items()}
    # Outputs that all but cancel are lost when the weights are rounded once more.
    state["4.weight"][:, 20:], state["2.weight"][20:] = -state["4.weight"][:, :20], state["2.weight"][:20] * 1.01
    state["2.bias"][20:], state["4.bias"] = state["2.bias"][:20], 0 * state["4.bias"]
    path = saved(tmp_path / "net.pt", state)
    text = said("balance", path, "--activation", "relu", "--out", tmp_path / "out", code=2)
    assert "convert it to float32 first" in text
    assert not any((tmp_path / "out").glob("*.pt"))


def test_what_is_left_behind_is_named(pruned: Definition, tmp_path: Path) -> None:
    states = [weights(pruned, i) for i in (1, 2)]
    paths = [saved(tmp_path / f"{i}.pt", state) for i, state in enumerate(states)]
    for found in (balance_checkpoint(paths[0], net=pruned), align_checkpoints(*paths, net=pruned)):
        assert "auxiliary.bias, auxiliary.weight" in found.summary
        assert json.loads(json.dumps(found.to_json()))["left"] == ["auxiliary.bias", "auxiliary.weight"]
    pair = compare_checkpoints(
        paths[0], saved(tmp_path / "b.pt", moved(pruned, states[0], 2) | {"auxiliary.bias": torch.ones(2)}), net=pruned
    )
    assert isinstance(pair, Pair)
    assert pair.found.same_function
    assert "Left out, as the network does not read it: auxiliary.bias." in pair.summary


@pytest.mark.parametrize("reverse", [False, True])
def test_tied_keys_with_two_values_are_refused(reverse: bool, words: Definition, tmp_path: Path) -> None:
    def in_order(state: State) -> State:
        return dict(sorted(state.items(), reverse=reverse))

    state = weights(words, 1)
    whole = saved(tmp_path / "whole.pt", in_order(state))
    (written, *_) = balance_checkpoint(whole, net=words).write(tmp_path / "out")
    both = torch.load(written, weights_only=True)
    assert torch.equal(both["embed.weight"], both["head.weight"])
    torn = in_order(state | {"head.weight": state["head.weight"] + 1})
    path = saved(tmp_path / "torn.pt", torn)
    for paths in ((whole, path), (path, whole)):
        with pytest.raises(InvalidValueError, match=r"torn\.pt: (embed|head)\.weight and (head|embed)\.weight are one"):
            compare_checkpoints(*paths, net=words)
    with pytest.raises(InvalidValueError, match="are one tensor in the network, but have two values"):
        words.parameters(torn)


class TwoNames(torch.nn.Module):
    """One buffer under two names, both of which a state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)
        mask = torch.ones(6)
        self.register_buffer("one", mask)
        self.register_buffer("other", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)) * self.one) * self.other[:3]  # type: ignore[operator, index]


def test_two_names_of_one_buffer_have_one_value(tmp_path: Path) -> None:
    definition = define(TwoNames(), torch.randn(5, 4))
    state = {key: tensor.clone() for key, tensor in TwoNames().state_dict().items()}
    a = saved(tmp_path / "a.pt", state)
    b = saved(tmp_path / "b.pt", state | {"other": torch.zeros(6)})
    with pytest.raises(InvalidValueError, match="one and other are one tensor"):
        compare_checkpoints(a, b, net=definition)


def test_a_state_that_is_no_tensor_is_refused() -> None:
    class Temperature(torch.nn.Linear):
        def get_extra_state(self) -> dict[str, float]:
            return {"temperature": 2.0}

    with pytest.raises(InvalidValueError, match=r"Temperature: of its state dict _extra_state is no tensor"):
        define(Temperature(4, 3), torch.randn(5, 4))
