"""Residual CNNs and transformers: their weight spaces have all of the group that leaves what the modules compute."""

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from nfn_monomial import Axis, Symmetry
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
    state = {name: tensors[key] for key, name in architecture.names.items()}
    return functional_call(architecture.sized().eval(), state, (x,))


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


def behind_norms(count: int, width: int) -> int:
    """Dimension of the gauges of neurons that so many batch norms write to: one for each, and that of the ReLU."""
    return width * (count + 1)


DIMENSIONS = {
    ("residual", "relu"): 3 + 2 + 3 + 4 + 4,
    ("residual", "tanh"): 0,
    ("normalised", "relu"): sum(behind_norms(*n) for n in ((2, 3), (1, 2), (1, 3), (3, 4), (1, 4))),
    ("normalised", "tanh"): 2 * 3 + 2 + 3 + 3 * 4 + 4,
    ("transformer", "relu"): 5 * 4 + 3 * (2 + 2) + 3,  # of norms, of queries and values of each head, of one MLP
    ("transformer", "gelu"): 5 * 4 + 3 * (2 + 2),
}


@pytest.mark.parametrize(("kind", "activation"), DIMENSIONS)
def test_dimensions_of_the_group(kind: str, activation: MixedActivation) -> None:
    architecture = of(kind, activation)
    if kind == "transformer":
        architecture = replace(TRANSFORMER, activations=(activation, "gelu"))
    assert architecture.space.group_dimension == DIMENSIONS[kind, activation]


PERMUTED = {
    "residual": [(2, 3), (3, 3), (3, 7), (4, 3), (4, 8)],
    "normalised": [(2, 6), (3, 6), (3, 13), (4, 6), (4, 17)],
    # Of the blocks with two heads and with one: heads, entries of queries and values, MLPs; then the tokens' entries.
    "transformer": [(2, 3), (2, 3), (2, 3), (2, 3), (2, 3), (2, 6), (3, 3), (4, 30)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_neurons_are_permuted(kind: str) -> None:
    """Size of every node that is, and the number of parameters that it is an axis of."""
    space = of(kind, "relu").space
    on = Counter(axis.node for axes in space.axes.values() for axis in axes if isinstance(axis, Axis))
    nodes = ((node.size, on[name]) for name, node in space.nodes.items() if node.permutes and node.size != 1)
    assert sorted(nodes) == PERMUTED[kind]
    signs = [on[name] for name, node in space.nodes.items() if node.symmetry is Symmetry.SIGN]
    assert signs == ([21] if kind == "transformer" else []), "that of all tokens' entries at once"


def test_equal_architectures_are_derived_once() -> None:
    assert of("transformer", "relu").space is of("transformer", "relu").space
    before = torch.get_rng_state()
    assert replace(RESIDUAL, classes=7).space.shapes() == replace(RESIDUAL, classes=7).shapes()
    assert torch.equal(torch.get_rng_state(), before)


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
