"""Models of chains, residual networks and transformers in one batch: those that know the group, those that do not."""

import pytest
import torch

from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.predictors.architectures import PlainCNN
from nfn_monomial.tools.predictors.models import MixedInfo, Model, NetworkGroup, NetworkInfo, build_model

ARCHITECTURES = (
    PlainCNN((1, 3, 4), (3, 1), (2, 1), (1, 0), (5, 3), ("tanh", "relu", "gelu")),
    ResidualCNN(1, (3, 4), (1, 2), (2, 3, 4), normalised=True, activations=("relu",), classes=3),
    Transformer(1, 4, 2, 4, (2, 1), 2, (3, 2), ("relu", "gelu"), 3),
)
NAMES = ("statnn-set", "stats-set", "gnn", "monomial-conv")
MIXED = MixedInfo(tuple(NetworkInfo(a.space, a.activation) for a in ARCHITECTURES))


def groups() -> list[NetworkGroup]:
    generator = torch.Generator().manual_seed(0)
    return [(random_networks(a.space, 2 + i, generator=generator), a.space) for i, a in enumerate(ARCHITECTURES)]


def moved(scale: float) -> list[NetworkGroup]:
    generator = torch.Generator().manual_seed(1)
    return [
        (space.sample(2 + i, scale_range=(1, scale), generator=generator).act(tensors), space)
        for i, (tensors, space) in enumerate(groups())
    ]


def built(name: str) -> Model:
    model = build_model(name, MIXED, seed=0).double().eval()
    model.fit_inputs(model.prepare_groups(groups()))
    return model


@pytest.mark.parametrize("name", NAMES)
def test_mixed_batches_are_answered_network_by_network(name: str) -> None:
    model = built(name)
    with torch.no_grad():
        together = model(model.prepare_groups(groups()))
        alone = torch.cat([model(model.prepare_groups([group])) for group in groups()])
    assert together.shape == (9,)
    assert together.std() > 1e-3
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", [*NAMES, "balanced-statnn-set", "balanced-gnn"])
def test_invariant_models_stay_and_the_others_do_not(name: str) -> None:
    model = built(name)
    with torch.no_grad():
        before, after = (model(model.prepare_groups(networks)) for networks in (groups(), moved(1e6)))
    assert torch.allclose(before, after, rtol=1e-6, atol=1e-6) is (model.invariant_under == "group")
