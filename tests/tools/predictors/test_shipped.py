"""The predictor that ships: what it states of itself, and that it is invariant under the group."""

import pytest
import torch
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.modules import unstack_networks
from nfn_monomial.tools.predictors import SHIPPED, Predictor


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


def test_it_is_small_and_states_how_it_was_made(predictor: Predictor) -> None:
    assert SHIPPED.stat().st_size < 2_000_000
    record = predictor.record
    assert record["invariant_under"] == "group"
    assert record["networks"] == {"train": 200, "val": 50, "test": 250}
    assert record["settings"]["version"]
    assert isinstance(record["settings"]["seed"], int)
    for metrics in (record["val"], predictor.metrics):
        assert metrics.keys() == {"tau", "r2"}
        assert 0.75 < metrics["tau"] < 1
        assert 0.9 < metrics["r2"] < 1
    taus = [test["metrics"]["tau"] for test in record["tests"] if test["name"] != "widened"]
    assert max(taus) - min(taus) < 1e-3, "tested under scales up to 1e6"


def test_no_element_of_the_group_changes_what_it_says(predictor: Predictor) -> None:
    space = predictor.task.infos[0].space
    assert space == WeightSpace.cnn([1, 16, 16, 16], 3, "relu", head=[10])
    predictor = Predictor.load()
    predictor.model.double()
    generator = torch.Generator().manual_seed(0)
    shapes = space.shapes().items()
    networks = {name: 0.2 * torch.randn(6, 1, *s, generator=generator, dtype=torch.float64) for name, s in shapes}
    said = predictor(networks)
    assert float(said.std()) > 1e-3, "they differ"
    for scales in (None, (1.0, 1e6)):
        moved = space.sample(6, scale_range=scales, generator=generator).act(networks)
        torch.testing.assert_close(predictor(moved), said, rtol=1e-10, atol=0)
    noisy = {name: t + 1e-3 for name, t in networks.items()}
    assert float((predictor(noisy) - said).abs().min()) > 1e-9, "it looks at the weights"
    torch.testing.assert_close(predictor(unstack_networks(networks, space)), said)


def test_an_untrained_network_is_known_as_one(predictor: Predictor) -> None:
    """At chance, a tenth, give or take what untrained ones differ by."""

    def layers(width: int) -> list[nn.Module]:
        sizes = [(1, width), (width, width), (width, width)]
        return [m for a, b in sizes for m in (nn.Conv2d(a, b, 3, 2, 1), nn.ReLU())]

    networks = [nn.Sequential(*layers(w), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(w, 10)) for w in (16, 24)]
    assert bool((predictor(networks) < 0.35).all())
