"""Draws of zoos: the architectures of a mixed zoo, and settings that make no sense."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from tiny_mixed_zoo import TINY

from nfn_monomial import Symmetry, WeightSpace
from nfn_monomial.benchmarks.make.config import (
    MixedConfig,
    PublishedConfig,
    TransformerRanges,
    ZooConfig,
    draw_architecture,
    draw_hyperparameters,
)
from nfn_monomial.benchmarks.make.inrs import InrConfig
from nfn_monomial.tools.predictors.architectures import PlainCNN


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
            derived = WeightSpace.from_module(module, torch.zeros(2, 1, image_size, image_size))
            hidden = [[node for node in s.nodes.values() if node.permutes] for s in (derived, space)]
            assert hidden[0] == hidden[1]
            assert list(derived.parameters) == list(architecture.names.values())
        assert {node.size for node in space.nodes.values()} <= {1, *range(8, 33)}
        assert set(architecture.kernel_sizes) <= {3, 5}
    assert {len(a.kernel_sizes) + len(a.head) for a in drawn} == {2, 3, 4, 5}
    assert {len(a.head) for a in drawn} == {1, 2}
    uniform = Counter(len(set(a.activations)) == 1 for a in drawn if len(a.activations) > 1)
    assert 5 < uniform[True] < 25, "some with one activation throughout, some mixed"
    symmetries = {node.symmetry for a in drawn for node in a.space.nodes.values()}
    assert symmetries == {Symmetry.FIXED, Symmetry.SCALE, Symmetry.SIGN, Symmetry.PERMUTATION}


ZOO, INRS = ZooConfig(), InrConfig()


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (ZOO, {"networks": 0}, "networks is 0, but should be greater than or equal to 1"),
        (ZOO, {"activations": ("gelu",)}, "activations is 'gelu', but should be 'relu' or 'tanh'"),
        (ZOO, {"epochs": (5, 2)}, r"epochs is \(5, 2\), but should be the lowest, then the highest"),
        (ZOO, {"train_fractions": (1.5,)}, "train_fractions is 1.5, but should be less than or equal to 1"),
        (TINY, {"dropout": 0.5}, "dropout is 0.5, but networks of mixed zoos have none"),
        (TINY, {"widths": (9, 8)}, "the lowest, then the highest"),
        (TINY, {"kernels": (3, 4)}, "kernels is 4, but should be odd"),
        (TINY, {"activations": ("relu", "sin")}, "activations is 'sin', but should be 'relu', "),
        (TINY, {"kinds": ("cnn", "cnn")}, "none twice"),
        (TransformerRanges(), {"patches": ()}, "at least one"),
        (INRS, {"images": "cifar"}, "images is 'cifar', but should be 'digits', 'mnist5k' or 'crops'"),
        (INRS, {"seed": -1}, "seed is -1"),
    ],
)
def test_configurations_that_make_no_sense(config: object, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(config, **changes)  # type: ignore[type-var]


def test_what_a_longer_zoo_draws_begins_with_what_a_shorter_does() -> None:
    assert draw_hyperparameters(replace(ZOO, networks=20))[:12] == draw_hyperparameters(replace(ZOO, networks=12))
    assert len({drawn.random_seed for drawn in draw_hyperparameters(replace(ZOO, networks=500))}) == 500


def test_the_published_grid_is_drawn_from_all_over_its_ranges() -> None:
    config = PublishedConfig(networks=600)
    drawn = draw_hyperparameters(config)
    assert drawn == draw_hyperparameters(PublishedConfig(networks=600))
    assert {one.epochs for one in drawn} == {10}
    assert {one.train_fraction for one in drawn} == {0.1, 0.25, 0.5, 1.0}
    assert min(Counter(one.optimizer for one in drawn).values()) > 150
    assert min(Counter(one.w_init for one in drawn).values()) > 80
    assert min(Counter(one.b_init for one in drawn).values()) > 250
    for low, high, values in (
        (5e-4, 5e-2, [one.learning_rate for one in drawn if one.optimizer != "sgd"]),
        (5e-3, 5e-1, [one.learning_rate for one in drawn if one.optimizer == "sgd"]),
        (1e-8, 1e-2, [one.l2reg for one in drawn]),
        (1e-3, 0.5, [one.init_std for one in drawn]),
    ):
        assert low <= min(values) < 1.2 * low
        assert high / 1.2 < max(values) <= high
        assert abs(sum(value < (low * high) ** 0.5 for value in values) / len(values) - 0.5) < 0.1, "log-uniform"
    dropout = sorted(one.dropout for one in drawn)
    assert 0 <= dropout[0] < 0.01
    assert 0.69 < dropout[-1] <= 0.7
    assert abs(dropout[300] - 0.35) < 0.03
