"""Models of INRs: invariant under exactly what they claim, sizes by options, parameter counts as published."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nfn_monomial import GroupElement, MonomialMatrix, WeightSpace
from nfn_monomial.benchmarks.data.sirens import Siren
from nfn_monomial.benchmarks.experiments.classify import InputConfig
from nfn_monomial.benchmarks.models.inr import SineNetwork, inr_info
from nfn_monomial.benchmarks.models.inr_input import Classifier
from nfn_monomial.tools.predictors.models import Model, build_model, model_options

NETWORKS, CLASSES = 12, 3
SIREN = Siren((2, 6, 5, 1), 1.0, (1, 4, 4))
SIZES = {
    "hidden": 4, "width": 8, "attention": 8, "head": 16, "fourier": 6, "fourier_scale": 0.3, "channels": 4,
    "rounds": 2, "features": 8, "probes": 6,
}  # fmt: skip
ALL = (
    "inr-np", "inr-hnp", "inr-nft", "inr-monomial-np", "inr-monomial-hnp", "inr-message-passing", "inr-probes",
    "mlp", "statnn", "np", "hnp", "gnn", "monomial", "monomial-hnp", "stats", "message-passing", "balanced-inr-hnp",
)  # fmt: skip


def networks(space: WeightSpace, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = space.shapes().items()
    return {n: torch.randn(NETWORKS, 1, *shape, generator=generator, dtype=torch.float64) for n, shape in shapes}


def built(name: str, siren: Siren = SIREN, **options: Any) -> Model:
    sizes = {option: value for option, value in (SIZES | options).items() if option in model_options(name)}
    model = build_model(name, inr_info(siren), seed=0, out_features=CLASSES, **sizes).double()
    model.fit_inputs(model.prepare_groups([(networks(siren.space), siren.space)]))
    return model.eval()


def relative_change(model: Model, element: GroupElement, siren: Siren = SIREN) -> float:
    """Largest change of a logit, relative to the spread over networks."""
    space, tensors = siren.space, networks(siren.space, seed=1)
    with torch.no_grad():
        before = model(model.prepare_groups([(tensors, space)]))
        after = model(model.prepare_groups([(element.act(tensors), space)]))
    assert before.shape == (NETWORKS, CLASSES)
    spread = before.std(0).min()
    assert spread > 1e-7, "an answer that does not depend on the network would be invariant, too"
    return float((after - before).abs().max() / spread)


def moved(seed: int, siren: Siren = SIREN) -> GroupElement:
    return siren.space.sample(NETWORKS, generator=torch.Generator().manual_seed(seed))


def permutations_only(element: GroupElement) -> GroupElement:
    matrices = {n: MonomialMatrix(torch.ones_like(m.scale), m.permutation) for n, m in element.matrices.items()}
    return GroupElement(element.space, matrices)


@pytest.mark.parametrize("name", ALL)
def test_invariant_under_what_it_claims_and_nothing_else(name: str) -> None:
    model, element = built(name), moved(3)
    claims = model.invariant_under
    assert (relative_change(model, permutations_only(element)) < 1e-10) == (claims != "nothing")
    assert (relative_change(model, element) < 1e-10) == (claims == "group")


def test_the_module_computes_what_the_corpus_renders() -> None:
    siren = replace(SIREN, omega_0=7.0)
    module = SineNetwork(siren).double()
    tensors = dict(zip(siren.space.parameters, (p.detach()[None] for p in module.parameters()), strict=True))
    with torch.no_grad():
        pixels = siren.gain * module(siren.coordinates(torch.float64)) + siren.offset
    torch.testing.assert_close(pixels.T.reshape(1, 1, 4, 4), siren.render(tensors), rtol=1e-12, atol=1e-12)


def single(siren: Siren, count: int, seed: int) -> dict[str, Tensor]:
    """Float32 networks ``(N, *shape)``, of the sizes that sine networks have."""
    generator = torch.Generator().manual_seed(seed)
    shapes = siren.space.shapes().items()
    return {name: (torch.rand(count, *shape, generator=generator) - 0.5) / 2 for name, shape in shapes}


IMAGE = Siren((2, 8, 8, 1), 20.0, (1, 6, 6))


class Seen(nn.Module):
    """A model that keeps what it gets."""

    label, invariant_under, sees, any_width = "seen", "nothing", "weights", True

    def prepare_groups(self, groups: list[tuple[Mapping[str, Tensor], WeightSpace]]) -> Mapping[str, Tensor]:
        return groups[0][0]

    def fit_inputs(self, batch: Mapping[str, Tensor]) -> None:
        pass

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        self.got = dict(batch)
        return batch["bias.0"].sum((1, 2))


def test_networks_are_prepared_without_rounding() -> None:
    model = Seen()
    classifier = Classifier(model, IMAGE, InputConfig(augment=True, noise=0.01, warp=0.1))  # type: ignore[arg-type]
    networks = {name: t.unsqueeze(1) for name, t in single(IMAGE, 16, 0).items()}
    classifier.fit_inputs(networks)
    torch.manual_seed(0)
    classifier(networks)
    expected = model.got
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        classifier(networks)
        received = model.got
        warped = classifier.augment[0](networks)  # where it matters: a product of matrices
    assert received.keys() == expected.keys() == networks.keys()
    assert all(torch.equal(t, expected[name]) for name, t in received.items())
    assert warped["weight.0"].dtype == torch.bfloat16
