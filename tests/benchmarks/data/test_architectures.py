"""Residual CNNs and transformers: their weight spaces have all of the group that leaves what the modules compute."""

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from nfn_monomial import Axis, WeightSpace
from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.tools.predictors.architectures import Architecture, MixedActivation, PlainCNN, architecture_of

PLAIN = PlainCNN((1, 3, 4), (3, 1), (2, 1), (1, 0), (5, 3), ("tanh", "relu", "gelu"))
RESIDUAL = ResidualCNN(1, (3, 4), (1, 2), (2, 3, 4), normalised=False, activations=("relu",), classes=3)
TRANSFORMER = Transformer(1, 4, 2, 4, (2, 1), 2, (3, 2), ("relu", "gelu"), 3)


def of(kind: str, activation: MixedActivation) -> Architecture:
    if kind == "transformer":
        return replace(TRANSFORMER, activations=(activation, "relu"))
    return replace(RESIDUAL, normalised=kind == "normalised", activations=(activation,))


def drawn(architecture: Architecture, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = architecture.space.shapes().items()
    tensors = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes}
    return {name: t.abs() + 0.1 if name.endswith("running_var") else t for name, t in tensors.items()}


def run(architecture: Architecture, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    own = {name: tensors[key] for key, name in architecture.names.items()}
    return functional_call(architecture.sized().eval(), own, (x,))


KINDS = ("residual", "normalised", "transformer")
ACTIVATIONS: tuple[MixedActivation, ...] = ("relu", "leaky_relu", "tanh", "gelu")
X = torch.randn(4, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_group_leaves_what_networks_compute(kind: str, activation: MixedActivation) -> None:
    architecture = of(kind, activation)
    space, tensors = architecture.space, drawn(architecture, 0)
    generator = torch.Generator().manual_seed(1)
    element = space.sample(1, scale_range=(1, 1e6), generator=generator)
    moved = {n: t[0, 0] for n, t in element.act({n: t[None, None] for n, t in tensors.items()}).items()}
    torch.testing.assert_close(run(architecture, moved, X), run(architecture, tensors, X), rtol=1e-10, atol=1e-10)
    unmoved = [n for n, t in tensors.items() if torch.equal(t, moved[n])]
    assert len(unmoved) < len(tensors) / 4, "all but that of outputs, and what a permutation left by chance"


def permuted(space: WeightSpace) -> set[tuple[int, frozenset[str]]]:
    """Size of every node that is permuted, and the parameters that it is an axis of."""
    found = set()
    for name, node in space.nodes.items():
        on = {p for p, axes in space.axes.items() if any(isinstance(a, Axis) and a.node == name for a in axes)}
        if node.permutes and node.size is not None and node.size > 1:
            found.add((node.size, frozenset(on)))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_derived_from_the_module_is_the_same(kind: str) -> None:
    architecture = of(kind, "relu")
    derived, space = WeightSpace.from_module(architecture.module(), X.float()), architecture.space
    assert set(derived.parameters) == set(space.parameters)
    assert derived.group_dimension == space.group_dimension
    assert permuted(derived) == permuted(space)


@pytest.mark.parametrize("architecture", [PLAIN, RESIDUAL, TRANSFORMER], ids=lambda a: a.kind)
def test_files_hold_architectures_as_numbers_and_names(architecture: Architecture) -> None:
    text = json.dumps(architecture.described())
    assert architecture_of(json.loads(text)) == architecture
    names = {n for n, _ in (*architecture.sized().named_parameters(), *architecture.sized().named_buffers())}
    assert {n for n in names if not n.endswith("num_batches_tracked")} == set(architecture.names.values())


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        (RESIDUAL, {"inner": (2, 3)}, r"one inner width for each block, found \(2, 3\)"),
        (RESIDUAL, {"blocks": (3,)}, "need as many numbers of blocks"),
        (RESIDUAL, {"activations": ("relu", "tanh")}, "one serves all layers of a residual network"),
        (TRANSFORMER, {"patch": 3}, "patch is 3, which does not divide the image size 4"),
    ],
)
def test_architectures_that_make_no_sense(architecture: Architecture, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(architecture, **changes)  # type: ignore[arg-type]
