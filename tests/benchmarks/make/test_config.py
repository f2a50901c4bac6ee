"""What zoos are drawn from: the architectures of a mixed zoo, and settings that make no sense."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from tiny_mixed_zoo import SMALL, TINY, run
from torch.nn import functional as F

from nfn_monomial import Symmetry, WeightSpace
from nfn_monomial.benchmarks.data.architectures.residual import ResidualCNN
from nfn_monomial.benchmarks.data.architectures.transformers import Transformer
from nfn_monomial.benchmarks.make.config import (
    MixedConfig,
    ResidualRanges,
    TransformerRanges,
    ZooConfig,
    draw_architecture,
    draw_hyperparameters,
)
from nfn_monomial.benchmarks.make.inrs import InrConfig
from nfn_monomial.tools.predictors.architectures import PlainCNN


def test_the_template_computes_the_architecture() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 1, 8, 8, generator=generator, dtype=torch.float64)
    w = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in SMALL.space.shapes().items()
    }
    found = run(SMALL, {name: t[None] for name, t in w.items()}, x)[0]
    h = torch.tanh(F.conv2d(x, w["weight.0"], w["bias.0"], stride=2, padding=1))
    h = F.gelu(F.conv2d(h, w["weight.1"], w["bias.1"], stride=1, padding=2)).mean((2, 3))
    h = F.leaky_relu(h @ w["weight.2"].T + w["bias.2"], 0.01)
    torch.testing.assert_close(found, h @ w["weight.3"].T + w["bias.3"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("image_size", [8, 28])
def test_drawn_architectures_are_of_the_ranges_and_of_the_modules_symmetry(image_size: int) -> None:
    config = MixedConfig(seed=5)
    drawn = [draw_architecture(config, number, image_size, 10) for number in range(30)]
    assert drawn[:9] == [draw_architecture(replace(config, networks=90), i, image_size, 10) for i in range(9)]
    for number, architecture in enumerate(drawn):
        assert isinstance(architecture, PlainCNN)
        space = architecture.space
        module = architecture.module()
        assert module(torch.zeros(2, 1, image_size, image_size)).shape == (2, 10)
        if number < 3:
            own = WeightSpace.from_module(module, torch.zeros(2, 1, image_size, image_size))
            hidden = [[node for node in s.nodes.values() if node.permutes] for s in (own, space)]
            assert hidden[0] == hidden[1]
            assert list(own.parameters) == list(architecture.names.values())
        assert {node.size for node in space.nodes.values()} <= {1, *range(8, 33)}
        assert set(architecture.kernel_sizes) <= {3, 5}
    assert {len(a.kernel_sizes) + len(a.head) for a in drawn} == {2, 3, 4, 5}
    assert {len(a.head) for a in drawn} == {1, 2}
    uniform = Counter(len(set(a.activations)) == 1 for a in drawn if len(a.activations) > 1)
    assert 5 < uniform[True] < 25, "some with one activation throughout, some mixed"
    symmetries = {node.symmetry for a in drawn for node in a.space.nodes.values()}
    assert symmetries == {Symmetry.FIXED, Symmetry.SCALE, Symmetry.SIGN, Symmetry.PERMUTATION}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strides": (2,)}, r"strides is \(2,\), but 2 are needed"),
        ({"activations": ("relu", "relu")}, "activations is .*but 3 are needed"),
        ({"activations": ("relu", "relu", "sin")}, "unknown activation 'sin': choose from relu, leaky_relu, tanh"),
        ({"head": (), "activations": ("relu",)}, "a convolution and a linear layer are needed"),
        ({"paddings": (1, -1)}, "sizes must be positive"),
        ({"channels": (1, 8.0, 9)}, "sizes must be positive integers"),
    ],
)
def test_architectures_that_make_no_sense(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)  # type: ignore[arg-type]


def test_kinds_are_drawn_in_turn_and_of_their_ranges() -> None:
    config = MixedConfig(kinds=("cnn", "residual", "transformer"), seed=2)
    drawn = [draw_architecture(config, number, 8, 10) for number in range(60)]
    assert [a.kind for a in drawn[:6]] == ["cnn", "residual", "transformer"] * 2
    residual = [a for a in drawn if isinstance(a, ResidualCNN)]
    assert {a.normalised for a in residual} == {True, False}
    assert {len(a.widths) for a in residual} == {1, 2}
    transformers = [a for a in drawn if isinstance(a, Transformer)]
    assert {a.patch for a in transformers} == {2, 4}
    assert {len(a.heads) for a in transformers} == {1, 2, 3}
    large = [draw_architecture(replace(config, kinds=("transformer",)), number, 28, 10) for number in range(9)]
    assert {a.patch for a in large if isinstance(a, Transformer)} == {4, 7}
    with pytest.raises(ValueError, match=r"patches is \(3,\), but none of these sizes divides images of 8 pixels"):
        draw_architecture(replace(config, transformer=TransformerRanges(patches=(3,))), 2, 8, 10)


ZOO, INRS = ZooConfig(), InrConfig()


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (ZOO, {"images": "cifar"}, "unknown images 'cifar': choose one of digits, mnist5k"),
        (ZOO, {"networks": 0}, "networks is 0, but must be at least 1"),
        (ZOO, {"chunk": 0}, "chunk is 0, but must be at least 1"),
        (ZOO, {"activations": ("gelu",)}, "activations is .*choose at least one of relu, tanh"),
        (ZOO, {"optimizers": ()}, "optimizers is .*choose at least one of adam, rmsprop, sgd"),
        (ZOO, {"epochs": (5, 2)}, r"epochs is \(5, 2\), expected a range"),
        (ZOO, {"learning_rate": (0.0, 1.0)}, "learning_rate is"),
        (ZOO, {"train_fractions": (1.5,)}, "train_fractions is"),
        (ZOO, {"dropout": 1.0}, "dropout is 1.0"),
        (TINY, {"dropout": 0.5}, "dropout is 0.5, but networks of mixed zoos have none"),
        (TINY, {"per_architecture": 0}, "per_architecture is 0"),
        (TINY, {"depths": (1, 3)}, r"depths is \(1, 3\), expected a range .* with 2 <= low <= high"),
        (TINY, {"widths": (9, 8)}, r"widths is \(9, 8\), expected a range"),
        (TINY, {"kernels": (3, 4)}, r"kernels is \(3, 4\), expected at least one odd size"),
        (TINY, {"activations": ()}, "activations is empty"),
        (TINY, {"activations": ("relu", "sin")}, "unknown activation 'sin'"),
        (TINY, {"kinds": ()}, r"kinds is \(\): choose at least one of cnn, residual, transformer"),
        (TINY, {"kinds": ("rnn",)}, r"kinds is \('rnn',\): choose at least one"),
        (TINY, {"kinds": ("cnn", "cnn")}, "each once"),
        (ResidualRanges(), {"stages": (0, 2)}, r"stages is \(0, 2\), expected a range .* with 1 <= low <= high"),
        (TransformerRanges(), {"heads": (3, 2)}, r"heads is \(3, 2\), expected a range"),
        (TransformerRanges(), {"patches": ()}, r"patches is \(\), expected at least one size"),
        (INRS, {"images": "cifar"}, "unknown images 'cifar': choose one of digits, mnist5k, crops"),
        (INRS, {"fits": 0}, "fits is 0: it has to be at least 1"),
        (INRS, {"limit": 0}, "limit is 0: it has to be at least 1"),
        (INRS, {"steps": -1}, "steps is -1"),
        (INRS, {"seed": -1}, "seed is -1"),
    ],
)
def test_configurations_that_make_no_sense(config: object, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(config, **changes)  # type: ignore[type-var]


def test_what_a_longer_zoo_draws_begins_with_what_a_shorter_does() -> None:
    assert draw_hyperparameters(replace(ZOO, networks=20))[:12] == draw_hyperparameters(replace(ZOO, networks=12))
    assert len({drawn.random_seed for drawn in draw_hyperparameters(replace(ZOO, networks=500))}) == 500
