"""Editors: which symmetries the edited image has, and which it has not; published sizes; input preparation."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from nfn_monomial.benchmarks.data.sirens import Siren
from nfn_monomial.benchmarks.experiments.edit import EditorConfig
from nfn_monomial.benchmarks.models.editors import Editor, build_editor, register_editor
from nfn_monomial.canonical import shift_phase

TINY = {"fourier": 6, "width": 5, "monomial": 3, "mlp": 7, "messages": 4, "blocks": 2, "init_scale": 0.5}
STORED = EditorConfig(**TINY)
CANONICAL = EditorConfig(inputs="canonical", fourier_scale=0.5, **TINY)
EQUIVARIANT = ("monomial", "message-passing", "balanced-np", "balanced-hnp", "balanced-monomial-np")
PERMUTED = ("np", "hnp", "monomial-np")
SIREN = Siren((2, 5, 4, 3), 20.0, (3, 4, 6))


def networks(siren: Siren, count: int = 3, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = siren.space.shapes()
    return {name: 0.2 * torch.randn(count, *shape, generator=generator).double() for name, shape in shapes.items()}


def editor(name: str, siren: Siren, config: EditorConfig, seed: int = 0) -> Editor:
    built = build_editor(name, siren, config, seed=seed).double().eval()
    built.fit_inputs([built.prepare(networks(siren, 6, seed=1))])
    return built


def apart(name: str, siren: Siren, config: EditorConfig, moved: dict[str, Tensor], seed: int = 0) -> float:
    """Returns the difference between edited images of networks and of moved ones, relative to the edit."""
    built, tensors = editor(name, siren, config, seed), networks(siren, seed=seed)
    with torch.no_grad():
        images, others = (built(built.prepare(t)) for t in (tensors, moved))
        change = (images - siren.render(tensors)).abs().max()
        assert change > 1e-6, "an edit that changes nothing has every symmetry"
        return float((images - others).abs().max() / change)


@st.composite
def sirens(draw: st.DrawFn) -> Siren:
    hidden = draw(st.lists(st.integers(2, 5), min_size=1, max_size=3))
    channels = draw(st.sampled_from((1, 3)))
    return Siren((2, *hidden, channels), draw(st.sampled_from((1.0, 30.0))), (channels, 3, 4))


@pytest.mark.parametrize("config", [STORED, CANONICAL], ids=["stored", "canonical"])
@pytest.mark.parametrize("name", EQUIVARIANT)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(siren=sirens(), seed=st.integers(0, 2**20))
def test_the_edited_image_stays_when_the_network_is_moved(
    name: str, config: EditorConfig, siren: Siren, seed: int
) -> None:
    assert register_editor[name].invariant_under == "group"
    generator = torch.Generator().manual_seed(seed)
    moved = siren.space.sample(3, generator=generator).act(networks(siren, seed=seed))
    assert apart(name, siren, config, moved, seed) < 1e-10


@pytest.mark.parametrize("config", [STORED, CANONICAL], ids=["stored", "canonical"])
@pytest.mark.parametrize("name", PERMUTED)
def test_permutation_editors_bear_permutations_and_break_under_sign_flips(name: str, config: EditorConfig) -> None:
    assert register_editor[name].invariant_under == "permutations"
    generator = torch.Generator().manual_seed(2)
    space, tensors = SIREN.space, networks(SIREN)
    permuted = space.restricted("permutation").sample(3, generator=generator).act(tensors)
    flipped = space.sample(3, generator=generator).act(tensors)
    torch.testing.assert_close(SIREN.render(flipped), SIREN.render(tensors), atol=1e-12, rtol=0)
    assert apart(name, SIREN, config, permuted) < 1e-10
    assert apart(name, SIREN, config, flipped) > 1e-3


def test_phases_are_taken_off_canonical_inputs_alone() -> None:
    shifts = {node: torch.randint(-3, 4, (3, 1, n), generator=torch.Generator().manual_seed(0)) for node, n in
              (("h1", 5), ("h2", 4))}  # fmt: skip
    space, omega = SIREN.space, SIREN.omega_0
    hidden = ("weight.0", "bias.0", "weight.1", "bias.1")
    absorbed = {name: t * omega if name in hidden else t for name, t in networks(SIREN).items()}
    shifted = shift_phase({name: t[:, None] for name, t in absorbed.items()}, space, shifts)
    shifted = {name: t[:, 0] / omega if name in hidden else t[:, 0] for name, t in shifted.items()}
    torch.testing.assert_close(SIREN.render(shifted), SIREN.render(networks(SIREN)), atol=1e-10, rtol=0)
    assert apart("monomial", SIREN, CANONICAL, shifted) < 1e-9
    assert apart("monomial", SIREN, STORED, shifted) > 1e-3


@pytest.mark.parametrize("config", [STORED, CANONICAL], ids=["stored", "canonical"])
@pytest.mark.parametrize("name", [*register_editor, "balanced-np"])
def test_no_change_gives_the_image_of_the_network(name: str, config: EditorConfig) -> None:
    built, tensors = editor(name, SIREN, config), networks(SIREN)
    with torch.no_grad():
        assert (built(built.prepare(tensors)) - SIREN.render(tensors)).abs().max() > 1e-6
        for parameter in built.parameters():
            parameter.zero_()
        torch.testing.assert_close(built(built.prepare(tensors)), SIREN.render(tensors), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", list(register_editor))
def test_every_parameter_of_the_networks_is_edited_and_every_weight_of_the_editor_learns(name: str) -> None:
    built, tensors = editor(name, SIREN, CANONICAL), networks(SIREN)
    prepared = built.prepare(tensors)
    before = {key: t.squeeze(1) for key, t in built.space.unpack(prepared).items()}
    for key, after in built.edited(prepared).items():
        assert after.shape == tensors[key].shape
        assert (after - before[key]).abs().max() > 1e-9, key
    built(prepared).square().mean().backward()
    unused = [key for key, p in built.named_parameters() if p.grad is None]
    # What the last block of message passing tells the neurons of the input is read by nobody.
    assert not unused if name != "message-passing" else all(key.startswith("net.body.blocks.1.") for key in unused)
