"""Test networks that were moved, widened or shifted are others: a model that knows no symmetry answers otherwise."""

from pathlib import Path

import pytest
import torch
from held_out import EXPERIMENTS
from small_zoo import corpus
from torch import Tensor

from nfn_monomial.benchmarks.data.moves import test_sets

MOVED = {
    "predict-generalization": ["scale 10", "scale 1000"],
    "predict-generalization tanh": ["sign flips"],
    "classify-inr": ["moved", "shifted"],
    "edit-inr": ["moved"],
}


@pytest.mark.parametrize("name", MOVED)
def test_networks_of_moved_test_sets_are_others(name: str, tmp_path: Path) -> None:
    trial = EXPERIMENTS[name].trials(tmp_path)[0]
    model = trial.model.eval()
    sets = {test.name: test.data for test in trial.tests() if test.name != "train"}
    original = sets.pop("original")
    assert list(sets) == MOVED[name]
    for moved, data in sets.items():
        assert torch.equal(data.targets, original.targets)
        with torch.no_grad():
            change = (model(data.inputs) - model(original.inputs)).abs().reshape(len(data), -1).amax(1)
        assert bool((change > 1e-4).float().mean() > 0.9), moved


def only_moved(before: Tensor, after: Tensor) -> None:
    """The biases ``(N, neurons)`` of nearly all networks are in another order, and have other signs."""
    torch.testing.assert_close(after.abs().sort(1).values, before.abs().sort(1).values)
    others = (after.abs() - before.abs()).abs().gt(1e-6).any(1)
    flipped = (before.sum(1) - after.sum(1)).abs().gt(1e-5)
    assert min(others.float().mean(), flipped.float().mean()) > 0.8


def test_sign_flips_permute_neurons_and_flip_their_signs() -> None:
    before, after = (parts[0].networks.tensors["bias.1"] for *_, parts in test_sets(corpus("tanh"), (), 0, 0))
    only_moved(before, after)


def test_moved_sine_networks_have_other_orders_and_signs_and_shifted_ones_other_phases(tmp_path: Path) -> None:
    trial = EXPERIMENTS["classify-inr"].trials(tmp_path)[0]
    sets = {test.name: {key: t.squeeze(1) for key, t in test.data.inputs.items()} for test in trial.tests()}
    original, shifted = sets["original"], sets["shifted"]
    only_moved(original["bias.0"], sets["moved"]["bias.0"])
    for layer in (0, 1):
        turns = (shifted[f"bias.{layer}"] - original[f"bias.{layer}"]) * trial.model.siren.omega_0 / torch.pi
        torch.testing.assert_close(turns, turns.round(), rtol=0, atol=1e-3)
        assert turns.round().unique().tolist() == [-2, -1, 0, 1, 2]
        assert bool(turns.round().bool().any(1).all())
        weight = f"weight.{layer}"
        torch.testing.assert_close(shifted[weight].abs(), original[weight].abs())
