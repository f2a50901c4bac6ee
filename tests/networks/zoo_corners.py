"""Corner cases: operations that break symmetries, keep some of them, or are written in another way than is usual."""

from typing import Any

import torch
import torch.nn.functional as F
from networks.zoo import Items, Of, gaussian, group, net, zeros
from networks.zoo_implicit import Function, mlp
from torch import nn

PAIRS = gaussian((12, 2))


def hidden(
    name: str,
    function: Function,
    items: Items | None,
    dims: dict[str, str] | None = None,
    features: int = 5,
    width: int = 5,
    **more: Any,
) -> None:
    """One hidden layer of 5, a function, and a linear map of what it gives."""
    module = Of(lambda m, x: m.fc2(function(m.fc1(x))), fc1=nn.Linear(2, width), fc2=nn.Linear(features, 3))
    group({} if items is None else {"h": items}, dims, **more)((name, module, PAIRS))


CONSTANT = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.5], dtype=torch.float64)
HALVES = {"fc1": "h+h 2"}
mlp("clamp", lambda x: x.clamp(min=0), 1, 0)
mlp("clamp_odd", lambda x: torch.clamp(2 * x, -1, 1), 0, 1)
mlp("clamp_uneven", lambda x: torch.clamp(2 * x, -1, 0.5), 0, 0)
mlp("x_tanh_x", lambda x: x * torch.tanh(x), 0, 1)
mlp("maximum", lambda x: torch.maximum(x, 0.1 * x), 1, 0)
mlp("rational", lambda x: x / (1 + x.abs()), 0, 1)
mlp("even_rational", lambda x: 1 / (1 + x * x), 0, 1)
mlp("softmax", lambda x: x.softmax(-1), 0, 0)
mlp("shifted_tanh", lambda x: torch.tanh(x) + 1, 0, 0)
mlp("negated", lambda x: -F.relu(-x), 1, 0)
hidden("where", lambda x: torch.where(x > 0, x, 0.3 * x), Items(5, 1))
hidden("mask", lambda x: x * (x > 0), Items(5, 1))
hidden("normalize", lambda x: F.normalize(x, dim=-1), Items(5, 0, 1), extra=1, note="one scale for all, above eps")
hidden("crelu", lambda x: torch.cat([F.relu(x), F.relu(-x)], 1), Items(5, 1), {"fc2": "3 h+h"}, features=10)
hidden("modulus", lambda x: (x[:, :5] ** 2 + x[:, 5:] ** 2).sqrt(), Items(5, 1, 2), HALVES, width=10)
hidden("quotient", lambda x: x[:, :5] / (1 + x[:, 5:].square()), Items(5, 1, 2), HALVES, width=10)
hidden("rolled", lambda x: F.relu(x) + F.relu(x).roll(1, -1), None, constants=1)
hidden("constant_gain", lambda x: F.relu(x) * CONSTANT, None, entries=5)
hidden("cumulative", lambda x: F.relu(x).cumsum(-1), None, constants=1)
hidden("flipped", lambda x: torch.cat([F.relu(x), x.tanh().flip(-1)], -1), None, features=10)


@group({"a": Items(4, 1), "b": Items(5, 0, 1)}, {"fc": "a+b 2"})
@net(PAIRS, fc=nn.Linear(2, 9), a=nn.Linear(4, 3), b=nn.Linear(5, 3))
def slices(m, x):
    """Two slices of a hidden layer go separate ways: it is two nodes."""
    h = m.fc(x)
    return m.a(F.relu(h[:, :4])) + m.b(torch.tanh(h[..., 4:]))


SAME = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
group({"a": Items(4, 0, 1), "b": Items(4, 1)}, {"0": "a 2", "2": "b a", "4": "3 b"})(("two_of_one_size", SAME, PAIRS))


@group({"b": Items(5, 1)})
@net(PAIRS, fc1=nn.Linear(2, 4), fc2=nn.Linear(4, 5), fc3=nn.Linear(5, 3))
def features_too(m, x):
    """A hidden layer is an output too: it stays where it is."""
    features = F.relu(m.fc1(x))
    return m.fc3(F.relu(m.fc2(features))), features


@group({"h": Items(5, 1)})
@net(gaussian((12, 3)), up=nn.Linear(3, 5), down=nn.Linear(5, 3))
def input_residual(m, x):
    """The stream is the input."""
    return x + m.down(F.relu(m.up(x)))


@group({"h": Items(5, 1)})
@net(PAIRS, enter=nn.Linear(2, 5), layer=nn.Linear(5, 5), leave=nn.Linear(5, 3))
def shared_layer(m, x):
    """One layer runs twice."""
    x = F.relu(m.enter(x))
    for _ in range(2):
        x = F.relu(m.layer(x))
    return m.leave(x)


def rezero(name: str, shape: tuple[int, ...], **more: Any) -> None:
    """A number times the branch of a residual: a scale of the whole tensors behind it."""

    def forward(m, x):
        x = m.enter(x)
        return m.leave(x + m.alpha * m.down(F.gelu(m.up(x))))

    sizes = {"enter": (2, 4), "up": (4, 5), "down": (5, 4), "leave": (4, 3)}
    module = Of(forward, **{part: nn.Linear(*size) for part, size in sizes.items()}, alpha=zeros(*shape))
    group({"e": Items(4, 1, 1), "h": Items(5)}, constants=1, **more)((name, module, PAIRS))


rezero("rezero", (1,))
rezero("rezero_number", (), optional=1, note="a tensor without dimensions has no axis that a scale could act on")


@group({"E": Items(3), "h": Items(4, 1, 0, "E")}, {"w1": "E 2 h", "b1": "E 1 h", "w2": "E h 5"})
@net(PAIRS, w1=zeros(3, 2, 4), b1=zeros(3, 1, 4), w2=zeros(3, 4, 5))
def ensemble(m, x):
    """Members stacked in one tensor, run by batched products, averaged."""
    h = torch.baddbmm(m.b1, x.expand(3, -1, -1), m.w1).relu()
    return torch.bmm(h, m.w2).tanh().mean(0)


@group({"h": Items(5)}, constants=1)
@net(PAIRS, fc1=nn.Linear(2, 5), fc2=nn.Linear(5, 3))
def channel_max(m, x):
    """All neurons compete: one scale for all of them."""
    h = F.relu(m.fc1(x))
    return m.fc2(h) * h.max(dim=-1, keepdim=True).values


@group({"a": Items(4, 1), "b": Items(5, 0, 1)}, {"out": "3 a*b"})
@net(PAIRS, left=nn.Linear(2, 4), right=nn.Linear(2, 5), out=nn.Linear(20, 3))
def outer_product(m, x):
    a, b = F.relu(m.left(x)), torch.tanh(m.right(x))
    return m.out(torch.einsum("bi,bj->bij", a, b).flatten(1))


@group({"h": Items(5, 1)})
@net(PAIRS, fc1=nn.Linear(2, 5), gate=nn.Linear(5, 1), fc2=nn.Linear(5, 3))
def scalar_gate(m, x):
    """One number of every example, made of the hidden layer, gates all of it."""
    h = F.relu(m.fc1(x))
    return m.fc2(h * torch.sigmoid(m.gate(h)))


@group({"g": Items(4, 0, 1), "h": Items(5, 1)}, {"weights": "h*2 g"})
@net(gaussian((12, 2), (12, 3)), condition=nn.Linear(3, 4), weights=nn.Linear(4, 5 * 2), out=nn.Linear(5, 3))
def generated_weights(m, x, z):
    """A network writes the weights of another."""
    w = m.weights(torch.tanh(m.condition(z))).view(-1, 5, 2)
    return m.out(F.relu(torch.bmm(w, x.unsqueeze(-1)).squeeze(-1)))


@group({"h": Items(5, 2, 1)})
@net(PAIRS, fc1=nn.Linear(2, 5), fc2=nn.Linear(5, 3), gain=zeros(5), log_gain=zeros(5))
def diagonal_layer(m, x):
    """A gain per neuron, and the exponential of another one."""
    return m.fc2(F.relu(m.fc1(x) * m.gain) * torch.exp(m.log_gain))


@group({"h": Items(5, 0, 1), "q": Items(4)}, {"out": "3 q*h"})
@net(gaussian((8, 3, 2)), keys=nn.Linear(2, 5), queries=zeros(5, 4), out=nn.Linear(20, 3))
def attention_pooling(m, x):
    """A learned query for each of two pools, softmax over tokens."""
    h = torch.tanh(m.keys(x))
    weights = torch.softmax(h @ m.queries, dim=1)
    return m.out((weights.transpose(1, 2) @ h).flatten(1))


@group({"h": Items(5, 0, 1)}, entries=2)
@net(PAIRS, norm=nn.BatchNorm1d(2), fc1=nn.Linear(2, 5), fc2=nn.Linear(5, 3))
def input_norm(m, x):
    """Batch norm of the inputs: its gauges are on a dimension that is fixed."""
    return m.fc2(torch.tanh(m.fc1(m.norm(x))))
