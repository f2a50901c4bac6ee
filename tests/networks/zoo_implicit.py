"""Networks of coordinates, and perceptrons with gates and with activations of every kind."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from networks.zoo import Items, Of, gaussian, group, net
from torch import Tensor, nn

Function = Callable[[Tensor], Tensor]


def two(scales: int, signs: int) -> dict[str, Items]:
    return {"a": Items(4, scales, signs), "b": Items(5, scales, signs)}


def mlp(name: str, function: Function, scales: int, signs: int) -> None:
    """Two hidden layers of 4 and 5 with a function between them."""
    layers = {"fc1": nn.Linear(2, 4), "fc2": nn.Linear(4, 5), "fc3": nn.Linear(5, 3)}
    module = Of(lambda m, x: m.fc3(function(m.fc2(function(m.fc1(x))))), **layers)
    group(two(scales, signs))((f"mlp_{name}", module, gaussian((12, 2))))


mlp("relu", F.relu, 1, 0)
mlp("tanh", torch.tanh, 0, 1)
mlp("gelu", F.gelu, 0, 0)
mlp("identity", lambda x: x, 1, 1)
mlp("cos", torch.cos, 0, 1)
mlp("square", lambda x: x**2, 1, 1)
mlp("cube", lambda x: x * x * x, 1, 1)
mlp("abs", torch.abs, 1, 1)
mlp("squared_relu", lambda x: F.relu(x).pow(2), 1, 0)
mlp("snake", lambda x: x + torch.sin(x) ** 2, 0, 0)
mlp("tanhshrink", lambda x: x - torch.tanh(x), 0, 1)
mlp("mish", F.mish, 0, 0)
PRELU = nn.Sequential(nn.Linear(2, 4), nn.PReLU(4), nn.Linear(4, 5), nn.PReLU(), nn.Linear(5, 3))
group(two(1, 0))(("mlp_prelu", PRELU, gaussian((12, 2))))


@group(two(0, 1))
@net(gaussian((12, 2)), net=nn.ModuleList([nn.Linear(2, 4), nn.Linear(4, 5), nn.Linear(5, 1)]))
def siren(m, coordinates):
    for layer in m.net[:-1]:
        coordinates = torch.sin(3.0 * layer(coordinates))
    return m.net[-1](coordinates) / 2 + 0.5


WAVES, ENVELOPES = (nn.ModuleList([nn.Linear(2, 4), nn.Linear(4, 5)]) for _ in range(2))


@group(two(0, 2))
@net(gaussian((12, 2)), waves=WAVES, envelopes=ENVELOPES, last=nn.Linear(5, 2))
def wire(m, x):
    """Real Gabor wavelets: a wave and an envelope per layer, both even."""
    for wave, envelope in zip(m.waves, m.envelopes, strict=True):
        x = torch.cos(2 * wave(x)) * torch.exp(-((0.7 * envelope(x)) ** 2))
    return m.last(x)


FREQUENCIES = torch.tensor([[1.0, 0.5, -0.7], [0.3, -1.2, 0.8]], dtype=torch.float64)
BEHIND = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.Sigmoid())


@group(two(1, 0))
@net(gaussian((12, 2)), net=BEHIND)
def fourier_features(m, x):
    projected = 2 * math.pi * x @ FREQUENCIES.to(x)
    return m.net(torch.cat([torch.sin(projected), torch.cos(projected)], dim=-1))


FILTERS = nn.ModuleList([nn.Linear(2, 4), nn.Linear(2, 5)])


@group({"a": Items(4, 0, 1), "b": Items(5, 1, 2)})
@net(gaussian((12, 2)), filters=FILTERS, linear=nn.Linear(4, 5), out=nn.Linear(5, 3))
def multiplicative_filters(m, x):
    """Products of linear maps with sines: two signs and a scale on every neuron."""
    z = torch.sin(m.filters[0](x))
    return m.out(m.linear(z) * torch.sin(m.filters[1](x)))


@group({"a": Items(4, 1), "b": Items(5, 1), "c": Items(6, 1)}, {"second": "b 3+a", "color": "c b+2"})
@net(
    gaussian((8, 3), (8, 2)),
    first=nn.Linear(3, 4), second=nn.Linear(7, 5), density=nn.Linear(5, 1), color=nn.Linear(5 + 2, 6),
    rgb=nn.Linear(6, 3),
)  # fmt: skip
def nerf(m, position, direction):
    """Coordinates come in again beside a hidden layer."""
    h = F.relu(m.second(torch.cat([position, F.relu(m.first(position))], -1)))
    color = torch.relu(m.color(torch.cat([h, direction], -1)))
    return F.softplus(m.density(h)), torch.sigmoid(m.rgb(color))


@group({"a": Items(4, 0, 1), "b": Items(5, 2, 1)})
@net(
    gaussian((12, 3), (12, 2)),
    condition=nn.Linear(2, 4), modulation=nn.Linear(4, 5), first=nn.Linear(3, 5), last=nn.Linear(5, 2),
)  # fmt: skip
def hypernetwork(m, x, z):
    """What one network makes of its input scales the hidden layer of another."""
    return m.last(F.relu(m.first(x)) * m.modulation(torch.tanh(m.condition(z))))


def gated(name: str, function: Function, scales: int, signs: int, value_first: bool = False) -> None:
    """A gate and a value in one matrix."""

    def forward(m, x):
        a, b = m.up(x).chunk(2, dim=-1)
        return m.down(a * function(b) if value_first else function(a) * b)

    module = Of(forward, up=nn.Linear(3, 10), down=nn.Linear(5, 2))
    group({"h": Items(5, scales, signs)}, {"up": "h+h 3"})((name, module, gaussian((12, 3))))


gated("geglu", F.gelu, 1, 1)
gated("reglu", F.relu, 2, 1)
gated("bilinear_glu", lambda x: x, 2, 2)
gated("gated_value_first", torch.sigmoid, 1, 1, value_first=True)


@group({"h": Items(5, 1, 1)})
@net(
    gaussian((12, 2)),
    w1=nn.Linear(2, 5, bias=False), w2=nn.Linear(5, 3, bias=False), w3=nn.Linear(2, 5, bias=False),
)  # fmt: skip
def swiglu(m, x):
    return m.w2(F.silu(m.w1(x)) * m.w3(x))


@group({"h": Items(5, 1, 1)}, {"conv": "h+h 2"})
@net(gaussian((8, 2, 4)), conv=nn.Conv1d(2, 10, 2), out=nn.Conv1d(5, 3, 1))
def glu(m, x):
    return m.out(F.glu(m.conv(x), dim=1))


@group({"e": Items(5, 1, 0)})
@net(
    gaussian((12, 2)),
    enter=nn.Linear(2, 5), leave=nn.Linear(5, 3), transform=nn.Linear(5, 5), gate=nn.Linear(5, 5),
)  # fmt: skip
def highway(m, x):
    x = m.enter(x)
    t = torch.sigmoid(m.gate(x))
    return m.leave(t * F.relu(m.transform(x)) + (1 - t) * x)


@group({"h": Items(5, 1), "k": Items(3, parent="h")}, {"fc1": "h*k 2", "fc2": "2 h"})
@net(gaussian((12, 2)), fc1=nn.Linear(2, 5 * 3), fc2=nn.Linear(5, 2))
def maxout(m, x):
    """The largest of three pieces per neuron; the pieces of one neuron change places on their own."""
    return m.fc2(m.fc1(x).view(-1, 5, 3).max(dim=2).values)
