"""Networks of coordinates, and perceptrons with gates and with activations of every kind."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from networks.zoo import Items, Network, gaussian
from torch import Tensor, nn


class MLP(nn.Module):
    """Two hidden layers of 4 and 5 with a function between them."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.fc1, self.fc2, self.fc3 = nn.Linear(2, 4), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.function(self.fc2(self.function(self.fc1(x)))))


class Siren(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.ModuleList([nn.Linear(2, 4), nn.Linear(4, 5), nn.Linear(5, 1)])

    def forward(self, coordinates: Tensor) -> Tensor:
        for layer in self.net[:-1]:
            coordinates = torch.sin(3.0 * layer(coordinates))
        return self.net[-1](coordinates) / 2 + 0.5


class Wire(nn.Module):
    """Real Gabor wavelets: a wave and an envelope per layer, both even."""

    def __init__(self) -> None:
        super().__init__()
        self.waves = nn.ModuleList([nn.Linear(2, 4), nn.Linear(4, 5)])
        self.envelopes = nn.ModuleList([nn.Linear(2, 4), nn.Linear(4, 5)])
        self.last = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        for wave, envelope in zip(self.waves, self.envelopes, strict=True):
            x = torch.cos(2 * wave(x)) * torch.exp(-((0.7 * envelope(x)) ** 2))
        return self.last(x)


class FourierFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frequencies = torch.tensor([[1.0, 0.5, -0.7], [0.3, -1.2, 0.8]], dtype=torch.float64)
        self.net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        projected = 2 * math.pi * x @ self.frequencies.to(x)
        return self.net(torch.cat([torch.sin(projected), torch.cos(projected)], dim=-1))


class MultiplicativeFilters(nn.Module):
    """Products of linear maps with sines: two signs and a scale on every neuron."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.ModuleList([nn.Linear(2, 4), nn.Linear(2, 5)])
        self.linear, self.out = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.sin(self.filters[0](x))
        return self.out(self.linear(z) * torch.sin(self.filters[1](x)))


class NeRF(nn.Module):
    """Coordinates come in again beside a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.density = nn.Linear(3, 4), nn.Linear(7, 5), nn.Linear(5, 1)
        self.color = nn.Linear(5 + 2, 6)
        self.rgb = nn.Linear(6, 3)

    def forward(self, position: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        h = F.relu(self.second(torch.cat([position, F.relu(self.first(position))], -1)))
        color = torch.relu(self.color(torch.cat([h, direction], -1)))
        return F.softplus(self.density(h)), torch.sigmoid(self.rgb(color))


class Hypernetwork(nn.Module):
    """What one network makes of its input scales the hidden layer of another."""

    def __init__(self) -> None:
        super().__init__()
        self.condition, self.modulation = nn.Linear(2, 4), nn.Linear(4, 5)
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)) * self.modulation(torch.tanh(self.condition(z))))


class Gated(nn.Module):
    """A gate and a value in one matrix."""

    def __init__(self, function: Callable[[Tensor], Tensor], value_first: bool = False) -> None:
        super().__init__()
        self.function, self.value_first = function, value_first
        self.up, self.down = nn.Linear(3, 10), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.up(x).chunk(2, dim=-1)
        return self.down(a * self.function(b) if self.value_first else self.function(a) * b)


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(i, o, bias=False) for i, o in ((2, 5), (5, 3), (2, 5)))

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class GLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv1d(2, 10, 2), nn.Conv1d(5, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.glu(self.conv(x), dim=1))


class Highway(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(2, 5), nn.Linear(5, 3)
        self.transform, self.gate = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        t = torch.sigmoid(self.gate(x))
        return self.leave(t * F.relu(self.transform(x)) + (1 - t) * x)


class Maxout(nn.Module):
    """The largest of three pieces per neuron; the pieces of one neuron change places on their own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(2, 5 * 3), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x).view(-1, 5, 3).max(dim=2).values)


def prelu() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.PReLU(4), nn.Linear(4, 5), nn.PReLU(), nn.Linear(5, 3))


def two(scales: int, signs: int) -> dict[str, Items]:
    return {"a": Items(4, scales, signs), "b": Items(5, scales, signs)}


def mlp(name: str, function: Callable[[Tensor], Tensor], scales: int, signs: int) -> Network:
    return Network(f"mlp_{name}", lambda: MLP(function), gaussian((12, 2)), two(scales, signs))


def gated(
    name: str, function: Callable[[Tensor], Tensor], scales: int, signs: int, value_first: bool = False
) -> Network:
    nodes = {"h": Items(5, scales, signs)}
    dims = {"up.weight": "h+h 3", "up.bias": "h+h"}
    return Network(name, lambda: Gated(function, value_first), gaussian((12, 3)), nodes, dims)


NETWORKS = [
    mlp("relu", F.relu, 1, 0),
    mlp("tanh", torch.tanh, 0, 1),
    mlp("gelu", F.gelu, 0, 0),
    mlp("identity", lambda x: x, 1, 1),
    mlp("cos", torch.cos, 0, 1),
    mlp("square", lambda x: x**2, 1, 1),
    mlp("cube", lambda x: x * x * x, 1, 1),
    mlp("abs", torch.abs, 1, 1),
    mlp("squared_relu", lambda x: F.relu(x).pow(2), 1, 0),
    mlp("snake", lambda x: x + torch.sin(x) ** 2, 0, 0),
    mlp("tanhshrink", lambda x: x - torch.tanh(x), 0, 1),
    mlp("mish", F.mish, 0, 0),
    Network("mlp_prelu", prelu, gaussian((12, 2)), two(1, 0)),
    Network("siren", Siren, gaussian((12, 2)), two(0, 1)),
    Network("wire", Wire, gaussian((12, 2)), two(0, 2)),
    Network("fourier_features", FourierFeatures, gaussian((12, 2)), two(1, 0)),
    Network(
        "multiplicative_filters", MultiplicativeFilters, gaussian((12, 2)), {"a": Items(4, 0, 1), "b": Items(5, 1, 2)}
    ),
    Network(
        "nerf",
        NeRF,
        gaussian((8, 3), (8, 2)),
        {"a": Items(4, 1), "b": Items(5, 1), "c": Items(6, 1)},
        {"second.weight": "b 3+a", "color.weight": "c b+2"},
    ),
    Network("hypernetwork", Hypernetwork, gaussian((12, 3), (12, 2)), {"a": Items(4, 0, 1), "b": Items(5, 2, 1)}),
    gated("geglu", F.gelu, 1, 1),
    gated("reglu", F.relu, 2, 1),
    gated("bilinear_glu", lambda x: x, 2, 2),
    gated("gated_value_first", torch.sigmoid, 1, 1, value_first=True),
    Network("swiglu", SwiGLU, gaussian((12, 2)), {"h": Items(5, 1, 1)}),
    Network("glu", GLU, gaussian((8, 2, 4)), {"h": Items(5, 1, 1)}, {"conv.weight": "h+h 2 2", "conv.bias": "h+h"}),
    Network("highway", Highway, gaussian((12, 2)), {"e": Items(5, 1, 0)}),
    Network(
        "maxout",
        Maxout,
        gaussian((12, 2)),
        {"h": Items(5, 1), "k": Items(3, parent="h")},
        {"fc1.weight": "h*k 2", "fc1.bias": "h*k", "fc2.weight": "2 h"},
    ),
]
