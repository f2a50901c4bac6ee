"""What is told of a network's symmetries, and of its neurons: planted spreads, dead neurons and twins are found."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from own_networks import mlp, saved, weights
from torch import nn

from nfn_monomial.tools import balance_checkpoint, find_symmetries
from nfn_monomial.tools.definitions.define import Definition, define


def neurons(path: Path, activation: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = find_symmetries(path, activation=activation).to_json()["neurons"]
    return found


def test_the_group_is_tested_on_the_weights(residual: Definition, tmp_path: Path) -> None:
    found = find_symmetries(saved(tmp_path / "net.pt", weights(residual, 1)), net=residual)
    said = found.to_json()
    assert "4 random elements of the group changed no output by more than 1e-9, on these weights" in said["certificate"]
    assert said["independent_scalings"] == residual.space.group_dimension == 4 + 4 + 6
    assert said["nodes"]["inner"] == {"size": 6, "permuted": True, "gauges": ["scale"], "in": None}
    assert said["explained"] == residual.space.explain()
    assert found.report().figures["symmetries.svg"] == residual.space.draw()
    alone = find_symmetries(net=residual).to_json()
    assert (alone["neurons"], alone["checkpoint"]) == ([], None)


def test_a_group_that_changes_the_outputs_is_an_error(tmp_path: Path) -> None:
    relu, tanh = (
        define(nn.Sequential(nn.Linear(3, 4), act, nn.Linear(4, 2)), torch.randn(2, 3))
        for act in (nn.ReLU(), nn.Tanh())
    )
    path = saved(tmp_path / "net.pt", mlp(1, (3, 4, 2)))
    with pytest.raises(ValueError, match="changes what Sequential computes"):
        find_symmetries(path, net=dataclasses.replace(tanh, space=relu.space))


@pytest.mark.parametrize(
    ("activation", "factors", "twins"),
    [("relu", (3.0, 2.0), 2), ("relu", (3.0, -1.0), 1), ("tanh", (-1.0, 1.0), 2), ("tanh", (-1.0, 2.0), 1),
     ("gelu", (1.0, 1.0), 2), ("gelu", (1.0, -1.0), 1)],
)  # fmt: skip
def test_dead_neurons_and_twins(activation: str, factors: tuple[float, float], twins: int, tmp_path: Path) -> None:
    """Twins are so up to what the group may do: copies of neuron 1 are multiplied by these factors."""
    state = mlp(1, (4, 9, 7, 2))
    state["0.weight"][3] = state["0.bias"][3] = 0  # nothing comes in
    state["4.weight"][:, 5] = 0  # nothing goes out
    for neuron, factor in zip((6, 8), factors, strict=True):
        for key in ("0.weight", "0.bias"):
            state[key][neuron] = factor * state[key][1]
    first, second = neurons(saved(tmp_path / "net.pt", state), activation)
    assert (first["size"], first["dead"], first["twins"]) == (9, 1, twins)
    assert (second["size"], second["dead"], second["twins"]) == (7, 1, 0)


def test_the_spread_is_what_balancing_takes(tmp_path: Path) -> None:
    path = saved(tmp_path / "net.pt", mlp(1))
    (written, *_) = balance_checkpoint(path, activation="relu").write(tmp_path / "out")
    assert [node["spread"] for node in neurons(written, "relu")] == pytest.approx([1, 1], abs=1e-5)
    state = dict(torch.load(written, weights_only=True))
    state["0.weight"][2] *= 50
    state["0.bias"][2] *= 50
    state["2.weight"][:, 2] /= 50
    path = saved(tmp_path / "moved.pt", state)
    assert [node["spread"] for node in neurons(path, "relu")] == pytest.approx([50, 1], rel=1e-4)
    assert [node["spread"] for node in neurons(path, "tanh")] == [None, None]
