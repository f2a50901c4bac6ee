"""Tensors that no symmetry moves are part of what a checkpoint computes: masks, orders and scales of inputs."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from invoking import said
from own_networks import State, mlp, moved, saved, weights

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools import align_checkpoints, balance_checkpoint, compare_checkpoints
from nfn_monomial.tools.definitions.define import Definition, define

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
    other = moved(pruned, state, 2) | OTHERS[change] | {"auxiliary.bias": torch.ones(2)}
    a, b = saved(tmp_path / "a.pt", state), saved(tmp_path / "b.safetensors", other)
    c = saved(tmp_path / "c.pt", moved(pruned, state, 3))
    pair = compare_checkpoints(a, b, net=pruned)
    assert "Left out, as the network does not read it: auxiliary.bias." in pair.summary
    found = pair.to_json()
    assert not found["same_function"]
    moves = ["auxiliary.bias", *([] if change == "mask" else [change])]
    assert found["other_differences"] == moves, "a mask moves with its neurons"
    (x,) = pruned.inputs
    apart = float((outputs(pruned, state, x) - outputs(pruned, other, x)).abs().max())
    assert found["max_output_difference"] == pytest.approx(apart, rel=1e-4)
    family = compare_checkpoints(a, b, c, net=pruned).to_json()
    assert family["distances"][0][1] > 0.1
    assert family["distances"][0][2] < 1e-5
    prints = [balance_checkpoint(path, net=pruned).to_json()["fingerprint"] for path in (a, b, c)]
    assert prints == [member["fingerprint"] for member in family["members"].values()]
    assert prints[0] == prints[2] != prints[1]


def test_each_network_is_judged_with_its_own(pruned: Definition, tmp_path: Path) -> None:
    torch.manual_seed(3)
    x, y = torch.randn(40, 4), torch.arange(40) % 3
    states = [weights(pruned, 1), weights(pruned, 2) | OTHERS["deviation"]]
    paths = [saved(tmp_path / f"{i}.pt", state) for i, state in enumerate(states)]
    found = align_checkpoints(*paths, net=pruned, data=lambda: (x, y), merge=0.25)
    own = [float(F.cross_entropy(outputs(pruned, state, x), y)) for state in states]
    lines = found.to_json()["lines"]
    for line in lines.values():
        assert [line["loss"][0], line["loss"][-1]] == pytest.approx(own, rel=1e-4)
    found.write(tmp_path / "out")
    merged, written = (torch.load(tmp_path / "out" / f"{name}.pt", weights_only=True) for name in ("merged", "1"))
    torch.testing.assert_close(merged["deviation"], 0.75 + 0.25 * states[1]["deviation"])
    loss = float(F.cross_entropy(outputs(pruned, merged, x), y))
    assert lines[found.results["merged_by"]]["merged"]["loss"] == pytest.approx(loss, rel=1e-4)
    torch.testing.assert_close(outputs(pruned, written, x), outputs(pruned, states[1], x), rtol=1e-4, atol=1e-5)
    assert "auxiliary.bias, auxiliary.weight" in found.summary, "what is left behind is named"
    assert found.to_json()["left"] == ["auxiliary.bias", "auxiliary.weight"]


def test_orders_have_no_mean(pruned: Definition, tmp_path: Path) -> None:
    states = [weights(pruned, 1), weights(pruned, 2) | OTHERS["order"]]
    paths = [saved(tmp_path / f"{i}.pt", state) for i, state in enumerate(states)]
    with pytest.raises(InvalidValueError, match=r"0 and 1 differ in order, .*no line between"):
        align_checkpoints(*paths, net=pruned)


def test_a_mask_is_moved_along_with_its_neurons(pruned: Definition, tmp_path: Path) -> None:
    rows = torch.tensor([[1.0, 2, 3, 4, 5, 6]]).expand(3, 6)
    states = [weights(pruned, i) | {"mask": rows.clone()} for i in (1, 2)]
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    states[1] |= {key: states[0][key][order] for key in ("first.weight", "first.bias")}
    states[1]["second.weight"] = states[0]["second.weight"][:, order]
    paths = [saved(tmp_path / f"{i}.pt", state) for i, state in enumerate(states)]
    align_checkpoints(*paths, net=pruned).write(tmp_path / "out")
    written = torch.load(tmp_path / "out" / "1.pt", weights_only=True)
    assert not torch.equal(written["mask"], rows)
    (x,) = pruned.inputs
    torch.testing.assert_close(outputs(pruned, written, x), outputs(pruned, states[1], x), rtol=1e-4, atol=1e-5)


def test_rounding_that_changes_the_function_is_not_written(tmp_path: Path) -> None:
    state = {key: t.bfloat16() for key, t in mlp(1, (4, 40, 40, 2)).items()}
    # Outputs that all but cancel are lost when the weights are rounded once more.
    state["4.weight"][:, 20:], state["2.weight"][20:] = -state["4.weight"][:, :20], state["2.weight"][:20] * 1.01
    state["2.bias"][20:], state["4.bias"] = state["2.bias"][:20], 0 * state["4.bias"]
    path = saved(tmp_path / "net.pt", state)
    text = said("balance", path, "--activation", "relu", "--out", tmp_path / "out", code=2)
    assert "convert it to float32 first" in text
    assert not any((tmp_path / "out").glob("*.pt"))


@pytest.mark.parametrize("reverse", [False, True])
def test_tied_keys_with_two_values_are_refused(reverse: bool, words: Definition, tmp_path: Path) -> None:
    state = weights(words, 1)
    torn = dict(sorted((state | {"head.weight": state["head.weight"] + 1}).items(), reverse=reverse))
    paths = [saved(tmp_path / "whole.pt", state), saved(tmp_path / "torn.pt", torn)]
    if reverse:
        paths.reverse()
    with pytest.raises(InvalidValueError, match=r"torn\.pt: (embed|head)\.weight and (head|embed)\.weight are one"):
        compare_checkpoints(*paths, net=words)


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
    state = {key: tensor.clone() for key, tensor in TwoNames().state_dict().items()}
    paths = [saved(tmp_path / "a.pt", state), saved(tmp_path / "b.pt", state | {"other": torch.zeros(6)})]
    with pytest.raises(InvalidValueError, match="one and other are one tensor"):
        compare_checkpoints(*paths, net=define(TwoNames(), torch.randn(5, 4)))
