"""Corner cases: operations that break symmetries, keep some of them, or are written in another way than is usual."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from networks.zoo import Items, Network, gaussian
from networks.zoo_implicit import mlp
from torch import Tensor, nn


class Hidden(nn.Module):
    """One hidden layer of 5, a function, and a linear map of what it gives."""

    def __init__(self, function: Callable[[Tensor], Tensor], features: int = 5, width: int = 5) -> None:
        super().__init__()
        self.function, self.fc1, self.fc2 = function, nn.Linear(2, width), nn.Linear(features, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.function(self.fc1(x)))


def two_of_one_size() -> nn.Module:
    """Two hidden layers of one size."""
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))


class Slices(nn.Module):
    """Two slices of a hidden layer go separate ways: it is two nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.a, self.b = nn.Linear(2, 9), nn.Linear(4, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        return self.a(F.relu(h[:, :4])) + self.b(torch.tanh(h[..., 4:]))


class FeaturesToo(nn.Module):
    """A hidden layer is an output too: it stays where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(2, 4), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = F.relu(self.fc1(x))
        return self.fc3(F.relu(self.fc2(features))), features


class InputResidual(nn.Module):
    """The stream is the input."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.relu(self.up(x)))


class SharedLayer(nn.Module):
    """One layer runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.layer, self.leave = nn.Linear(2, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.enter(x))
        for _ in range(2):
            x = F.relu(self.layer(x))
        return self.leave(x)


class ReZero(nn.Module):
    """A number times the branch of a residual: a scale of the whole tensors behind it."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.enter, self.up, self.down, self.leave = nn.Linear(2, 4), nn.Linear(4, 5), nn.Linear(5, 4), nn.Linear(4, 3)
        self.alpha = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        return self.leave(x + self.alpha * self.down(F.gelu(self.up(x))))


class Ensemble(nn.Module):
    """Members stacked in one tensor, run by batched products, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.zeros(3, 2, 4)), nn.Parameter(torch.zeros(3, 1, 4))
        self.w2 = nn.Parameter(torch.zeros(3, 4, 5))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.baddbmm(self.b1, x.expand(3, -1, -1), self.w1).relu()
        return torch.bmm(h, self.w2).tanh().mean(0)


class ChannelMax(nn.Module):
    """All neurons compete: one scale for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.fc1(x))
        return self.fc2(h) * h.max(dim=-1, keepdim=True).values


class OuterProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Linear(2, 4), nn.Linear(2, 5), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.relu(self.left(x)), torch.tanh(self.right(x))
        return self.out(torch.einsum("bi,bj->bij", a, b).flatten(1))


class ScalarGate(nn.Module):
    """One number of every example, made of the hidden layer, gates all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.gate, self.fc2 = nn.Linear(2, 5), nn.Linear(5, 1), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.fc1(x))
        return self.fc2(h * torch.sigmoid(self.gate(h)))


class GeneratedWeights(nn.Module):
    """A network writes the weights of another."""

    def __init__(self) -> None:
        super().__init__()
        self.condition, self.weights, self.out = nn.Linear(3, 4), nn.Linear(4, 5 * 2), nn.Linear(5, 3)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        w = self.weights(torch.tanh(self.condition(z))).view(-1, 5, 2)
        return self.out(F.relu(torch.bmm(w, x.unsqueeze(-1)).squeeze(-1)))


class DiagonalLayer(nn.Module):
    """A gain per neuron, and the exponential of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(2, 5), nn.Linear(5, 3)
        self.gain, self.log_gain = nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(x) * self.gain) * torch.exp(self.log_gain))


class AttentionPooling(nn.Module):
    """A learned query for each of two pools, softmax over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.queries, self.out = nn.Linear(2, 5), nn.Parameter(torch.zeros(5, 4)), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.keys(x))
        weights = torch.softmax(h @ self.queries, dim=1)
        return self.out((weights.transpose(1, 2) @ h).flatten(1))


class InputNorm(nn.Module):
    """Batch norm of the inputs: its gauges are on a dimension that is fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.BatchNorm1d(2), nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.fc1(self.norm(x))))


def hidden(
    name: str,
    function: Callable[[Tensor], Tensor],
    items: Items | None,
    dims: dict[str, str] | None = None,
    features: int = 5,
    width: int = 5,
    **more: object,
) -> Network:
    nodes = {} if items is None else {"h": items}
    build = lambda: Hidden(function, features, width)  # noqa: E731
    return Network(name, build, gaussian((12, 2)), nodes, dims or {}, **more)  # type: ignore[arg-type]


def rezero(name: str, shape: tuple[int, ...], **more: object) -> Network:
    nodes = {"e": Items(4, 1, 1), "h": Items(5)}
    return Network(name, lambda: ReZero(shape), gaussian((12, 2)), nodes, constants=1, **more)  # type: ignore[arg-type]


CONSTANT = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.5], dtype=torch.float64)
HALVES = {"fc1.weight": "h+h 2", "fc1.bias": "h+h"}
NETWORKS = [
    mlp("clamp", lambda x: x.clamp(min=0), 1, 0),
    mlp("clamp_odd", lambda x: torch.clamp(2 * x, -1, 1), 0, 1),
    mlp("clamp_uneven", lambda x: torch.clamp(2 * x, -1, 0.5), 0, 0),
    mlp("x_tanh_x", lambda x: x * torch.tanh(x), 0, 1),
    mlp("maximum", lambda x: torch.maximum(x, 0.1 * x), 1, 0),
    mlp("rational", lambda x: x / (1 + x.abs()), 0, 1),
    mlp("even_rational", lambda x: 1 / (1 + x * x), 0, 1),
    mlp("softmax", lambda x: x.softmax(-1), 0, 0),
    mlp("shifted_tanh", lambda x: torch.tanh(x) + 1, 0, 0),
    mlp("negated", lambda x: -F.relu(-x), 1, 0),
    hidden("where", lambda x: torch.where(x > 0, x, 0.3 * x), Items(5, 1)),
    hidden("mask", lambda x: x * (x > 0), Items(5, 1)),
    hidden("normalize", lambda x: F.normalize(x, dim=-1), Items(5, 0, 1), extra=1, note="one scale for all, above eps"),
    hidden("crelu", lambda x: torch.cat([F.relu(x), F.relu(-x)], 1), Items(5, 1), {"fc2.weight": "3 h+h"}, features=10),
    hidden("modulus", lambda x: (x[:, :5] ** 2 + x[:, 5:] ** 2).sqrt(), Items(5, 1, 2), HALVES, width=10),
    hidden("quotient", lambda x: x[:, :5] / (1 + x[:, 5:].square()), Items(5, 1, 2), HALVES, width=10),
    hidden("rolled", lambda x: F.relu(x) + F.relu(x).roll(1, -1), None, constants=1),
    hidden("constant_gain", lambda x: F.relu(x) * CONSTANT, None, entries=5),
    hidden("cumulative", lambda x: F.relu(x).cumsum(-1), None, constants=1),
    hidden("flipped", lambda x: torch.cat([F.relu(x), x.tanh().flip(-1)], -1), None, features=10),
    Network(
        "slices",
        Slices,
        gaussian((12, 2)),
        {"a": Items(4, 1), "b": Items(5, 0, 1)},
        {"fc.weight": "a+b 2", "fc.bias": "a+b"},
    ),
    Network(
        "two_of_one_size",
        two_of_one_size,
        gaussian((12, 2)),
        {"a": Items(4, 0, 1), "b": Items(4, 1)},
        {"0.weight": "a 2", "0.bias": "a", "2.weight": "b a", "2.bias": "b", "4.weight": "3 b"},
    ),
    Network("features_too", FeaturesToo, gaussian((12, 2)), {"b": Items(5, 1)}),
    Network("input_residual", InputResidual, gaussian((12, 3)), {"h": Items(5, 1)}),
    Network("shared_layer", SharedLayer, gaussian((12, 2)), {"h": Items(5, 1)}),
    rezero("rezero", (1,)),
    rezero("rezero_number", (), optional=1, note="a tensor without dimensions has no axis that a scale could act on"),
    Network(
        "ensemble",
        Ensemble,
        gaussian((12, 2)),
        {"E": Items(3), "h": Items(4, 1, 0, "E")},
        {"w1": "E 2 h", "b1": "E 1 h", "w2": "E h 5"},
    ),
    Network("channel_max", ChannelMax, gaussian((12, 2)), {"h": Items(5)}, constants=1),
    Network(
        "outer_product",
        OuterProduct,
        gaussian((12, 2)),
        {"a": Items(4, 1), "b": Items(5, 0, 1)},
        {"out.weight": "3 a*b"},
    ),
    Network("scalar_gate", ScalarGate, gaussian((12, 2)), {"h": Items(5, 1)}),
    Network(
        "generated_weights",
        GeneratedWeights,
        gaussian((12, 2), (12, 3)),
        {"g": Items(4, 0, 1), "h": Items(5, 1)},
        {"weights.weight": "h*2 g", "weights.bias": "h*2"},
    ),
    Network("diagonal_layer", DiagonalLayer, gaussian((12, 2)), {"h": Items(5, 2, 1)}),
    Network(
        "attention_pooling",
        AttentionPooling,
        gaussian((8, 3, 2)),
        {"h": Items(5, 0, 1), "q": Items(4)},
        {"out.weight": "3 q*h"},
    ),
    Network("input_norm", InputNorm, gaussian((12, 2)), {"h": Items(5, 0, 1)}, entries=2),
]
