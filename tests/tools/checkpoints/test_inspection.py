"""What is told of a network's symmetries, and of its neurons: planted spreads, dead neurons and twins are found."""

import dataclasses
from pathlib import Path

import pytest
import torch
from own_networks import mlp, saved, weights
from torch import nn

from nfn_monomial.adapters.definitions import Definition, define
from nfn_monomial.tools import balance_checkpoint, find_symmetries
from nfn_monomial.tools.checkpoints.inspection import Neurons


def by_node(path: Path, activation: str) -> dict[str, Neurons]:
    return {found.node: found for found in find_symmetries(path, activation=activation).neurons}


def test_the_group_is_tested_on_the_weights(residual: Definition, tmp_path: Path) -> None:
    found = find_symmetries(saved(tmp_path / "net.pt", weights(residual, 1)), net=residual)
    assert "4 random elements of the group changed no output by more than 1e-9, on these weights" in found.certified
    said = found.to_json()
    assert said["independent_scalings"] == residual.space.group_dimension == 4 + 4 + 6
    assert said["nodes"]["inner"] == {"size": 6, "permuted": True, "gauges": ["scale"], "in": None}
    assert said["explained"] == residual.space.explain()
    assert found.report().figures["symmetries.svg"] == residual.space.draw()
    alone = find_symmetries(net=residual)
    assert (alone.neurons, alone.to_json()["checkpoint"]) == ((), None)


def test_a_group_that_changes_the_outputs_is_an_error(tmp_path: Path) -> None:
    relu, tanh = (
        define(nn.Sequential(nn.Linear(3, 4), act, nn.Linear(4, 2)), torch.randn(2, 3))
        for act in (nn.ReLU(), nn.Tanh())
    )
    path = saved(tmp_path / "net.pt", mlp(1, (3, 4, 2)))
    with pytest.raises(ValueError, match="changes what Sequential computes"):
        find_symmetries(path, net=dataclasses.replace(tanh, space=relu.space))


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
def test_dead_neurons_and_twins(activation: str, tmp_path: Path) -> None:
    state = mlp(1, (4, 9, 7, 2))
    state["0.weight"][3] = state["0.bias"][3] = 0  # nothing comes in
    state["4.weight"][:, 5] = 0  # nothing goes out
    factor = {"relu": 3.0, "tanh": -1.0, "gelu": 1.0}[activation]
    for key in ("0.weight", "0.bias"):
        state[key][6] = factor * state[key][1]
        state[key][8] = factor * state[key][1]
    found = by_node(saved(tmp_path / "net.pt", state), activation)
    first, second = found.values()
    assert (first.size, first.dead, second.size, second.dead, second.twins) == (9, 1, 7, 1, 0)
    assert first.twins == 2
    state["0.weight"][8] += 1e-3
    assert next(iter(by_node(saved(tmp_path / "other.pt", state), activation).values())).twins == 1


def test_twins_are_up_to_what_the_group_may_do(tmp_path: Path) -> None:
    state = mlp(1)
    for key in ("0.weight", "0.bias"):
        state[key][4], state[key][5] = -state[key][1], 2 * state[key][0]
    path = saved(tmp_path / "net.pt", state)
    twins = {
        activation: next(iter(by_node(path, activation).values())).twins for activation in ("relu", "tanh", "gelu")
    }
    assert twins == {"relu": 1, "tanh": 1, "gelu": 0}


def test_the_spread_is_what_balancing_takes(tmp_path: Path) -> None:
    state = mlp(1)
    path = saved(tmp_path / "net.pt", state)
    made = balance_checkpoint(path, activation="relu")
    made.write(tmp_path / "out")
    flat = by_node(tmp_path / "out" / "net.pt", "relu")
    assert all(found.spread == pytest.approx(1, abs=1e-5) for found in flat.values())
    moved = dict(torch.load(tmp_path / "out" / "net.pt", weights_only=True))
    moved["0.weight"][2] *= 50
    moved["0.bias"][2] *= 50
    moved["2.weight"][:, 2] /= 50
    first, second = by_node(saved(tmp_path / "moved.pt", moved), "relu").values()
    assert (first.spread, second.spread) == (pytest.approx(50, rel=1e-4), pytest.approx(1, abs=1e-4))
    assert all(found.spread is None for found in by_node(path, "tanh").values())
