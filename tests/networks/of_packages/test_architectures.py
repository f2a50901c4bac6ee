"""Networks of torchvision, timm, diffusers, torch_geometric and transformers: what is read, and what is not.

Those that the gallery's page has are tested with it. Of torch_geometric, which the package needs, six are read wherever
tests run.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from networks.derived import permutations, signs
from networks.of_packages.architectures import ARCHITECTURES, package
from networks.oracle import Function, scalings
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.running import Float64, answers, doubled, largest_change

ANYWHERE = ("graph transformer", "GPS", "mixture model", "diff-pool", "EdgeConv", "NNConv")


class Read(NamedTuple):
    """What a space says of a network.

    Attributes:
        permutations: nodes that are permuted, ``4[8,8]`` for one of 4 items with two nodes of 8 nested in it.
        scalings, signs: how many there are.
        left: what is not read, and what keeps it from being read.
    """

    permutations: str
    scalings: int
    signs: int
    left: str = ""


READ: dict[str, Read] = {
    "SwinV2": Read("16 2 2 4 512 512 8 8", 1040, 16,
        "biases of keys are overwritten with zeros: a bias that is read in part keeps its order, inside of heads, too"),
    "MViTv2": Read("2 2 32 32 4 4 8", 48, 48,
        "all heads share one pooling of their channels"),
    "FPN": Read("4 5 6", 15, 5),
    "LR-ASPP": Read("4 5 6", 20, 5),
    "ResNet, squeezed": Read("2 2 4 4 4 4 4 4 64 8 8 8 8", 230, 106),
    "ConvNeXtV2": Read("16 16 16 16 4 4 4 4", 32, 32),
    "ViT with registers": Read("16 16 2 2[4,4] 2[4] 4 8 8 8", 84, 84),
    "EVA-02": Read("16 2[8] 8", 74, 74,
        "rotated pairs could have a scale of their own"),
    "CaiT": Read("16 2 2[4,4] 2[4] 2[4] 32 8", 108, 108),
    "CrossViT": Read("12 2[2,2] 2[2,2] 2[3,3] 2[3,3] 4 6 8", 80, 80),
    "EfficientViT": Read("2 2 4 4 4 4 6 8 8 8 8 8", 88, 88,
        "heads of two scales lie in one dimension: they stay, and their channels move alike (24 scalings more)"),
    "VOLO": Read("16 16 2[2] 2[4,4] 2[4,4] 4 4 4 4 8 8", 108, 96),
    "HaloNet's attention": Read("2[4] 4 8", 20, 20,
        "positions relative to windows are cut out of padded rows: queries and keys are FIXED inside of heads"),
    "LambdaNetwork's layer": Read("2 3 8", 20, 15, "values are places of a convolution in three dimensions: FIXED"),
    "FocalNet": Read("16 4 4 4 8 8 8 8", 70, 68),
    "ConViT": Read("16 16 2[4,4] 2[4,4] 8", 72, 72),
    "TNT": Read("16 16 2[2,2] 2[4,4] 4 8", 72, 64),
    "Sequencer2D": Read("2 2 2 2 2 2 2 2 4 4 8 8", 20, 36),
    "Hiera": Read("16 2[4,4] 4 4 4 8 8", 52, 44),
    "InceptionNeXt": Read("16 16 24 5 5", 94, 64),
    "Stable Diffusion 3": Read("16 16 16 2[2,2] 2[2,2] 4 4 4 4 4", 40, 40),
    "Flux": Read("2[4] 2[4] 32 32 32 8 8 8 8", 58, 60,
        "rotated pairs could have a scale of their own"),
    "PixArt": Read("16 2[2,2] 2[2,2] 4 4 4", 20, 20),
    "unCLIP's prior": Read("16 2[2,2] 4 4", 20, 20),
    "Sana": Read("2[2,2] 2[2,2] 4 4 4 4 8", 24, 24),
    "PNA": Read("3 4 6 6 6", 15, 9),
    "GATv2 with jumps": Read("2[3] 6 6", 6, 12),
    "ARMA": Read("2 2 6", 6, 0),
    "graph transformer": Read("2[3] 2[6] 6", 24, 18),
    "GPS": Read("12 2[3,3] 5 6", 47, 30),
    "FiLM": Read("6", 24, 12),
    "SAGE, medians": Read("6", 6, 0),
    "SuperGAT": Read("6", 0, 0),
    "EdgeConv": Read("5 5 6", 16, 0),
    "gated graph": Read("6 6", 6, 12),
    "NNConv": Read("6", 6, 0),
    "CGCNN": Read("6", 0, 0),
    "mixture model": Read("3 3 6", 6, 6),
    "diff-pool": Read("3 6", 6, 0),
    "LightGCN": Read("6", 0, 6),
    "BLOOM": Read("32 8 still 4[2] still 4[2]", 32, 32),
    "Falcon": Read("2[2,2] 6 8", 22, 22),
    "DeBERTa": Read("4[2,2] 6 8 8", 32, 32),
    "OLMoE": Read("2 3 4 6 8", 35, 44, "values say which expert a row is of: neurons of all experts move together"),
    "Qwen2-MoE": Read("2 3 4 5 6 8", 40, 47, "as OLMoE"),
}  # fmt: skip

REFUSED = {"top-k pooling": ("cannot be exported", "how many edges are left depends on values")}


# Small ones, and how many scalings the oracle counts that are not found.
COUNTED = {
    "LR-ASPP": 0, "HaloNet's attention": 0, "LambdaNetwork's layer": 1,
    "Sequencer2D": 0, "unCLIP's prior": 0, "ARMA": 0, "graph transformer": 0, "GPS": 0, "FiLM": 0, "SAGE, medians": 0,
    "SuperGAT": 0, "EdgeConv": 0, "gated graph": 0, "NNConv": 0, "CGCNN": 0, "mixture model": 0, "diff-pool": 0,
    "LightGCN": 0, "BLOOM": 0, "Falcon": 0, "DeBERTa": 0,
}  # fmt: skip


def built(name: str) -> nn.Module:
    """The network, in float64, with random numbers in place of zeros and ones, which would hide what moves."""
    module = ARCHITECTURES[name].build(package(ARCHITECTURES[name].package))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for buffer_name, buffer in module.named_buffers():
            if buffer_name.endswith(("running_mean", "running_var")):
                buffer.uniform_(0.5, 1.5)
            elif buffer.is_floating_point():
                buffer.mul_(0.5 + torch.rand_like(buffer))
    for norm in module.modules():
        if hasattr(norm, "variance_epsilon"):
            norm.variance_epsilon = 0.1  # as the oracle has it in other norms
    return module.double().eval()


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in ANYWHERE else pytest.mark.gallery) for n in READ])
def test_group(name: str) -> None:
    """It is the one that is expected, and its elements keep the function."""
    module, read = built(name), READ[name]
    inputs = tuple(map(doubled, ARCHITECTURES[name].inputs()))
    space = WeightSpace.from_module(module, inputs)
    nodes = [node.replace(",", ", ") for node in re.findall(r"(?:still )?\S+", read.permutations)]
    assert (permutations(space), space.group_dimension, signs(space)) == (nodes, read.scalings, read.signs)

    state = {n: t.detach() for n, t in (*module.named_parameters(), *module.named_buffers())}
    before = answers(module, state, inputs)
    for seed in range(3):
        moved = space.sample(generator=torch.Generator().manual_seed(seed)).proper().act(state)
        assert any(not torch.equal(moved[n], state[n]) for n in space.parameters), "the group moves nothing"
        assert largest_change(answers(module, moved, inputs), before) < 1e-9


@pytest.mark.gallery
@pytest.mark.parametrize("name", COUNTED)
def test_as_many_scalings_are_found_as_are_counted(name: str) -> None:
    module, inputs = built(name), ARCHITECTURES[name].inputs
    names = WeightSpace.from_module(module, tuple(map(doubled, inputs())), certify=False).parameters
    graph = ARCHITECTURES[name].package.startswith("torch_geometric")
    function = Function(module, inputs if graph else lambda: stacked(inputs))
    function.shapes = {parameter: shape for parameter, shape in function.shapes.items() if parameter in names}
    with Float64():
        assert scalings(function).count == READ[name].scalings + COUNTED[name]
    assert READ[name].left or not COUNTED[name]


def stacked(inputs: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Several draws in one batch: more outputs for the oracle."""
    return tuple(map(torch.cat, zip(*(inputs() for _ in range(8)), strict=True)))


@pytest.mark.gallery
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[name][0]):
        WeightSpace.from_module(built(name), tuple(map(doubled, ARCHITECTURES[name].inputs())))


def test_every_architecture_has_its_line() -> None:
    assert READ.keys() | REFUSED.keys() == ARCHITECTURES.keys()
