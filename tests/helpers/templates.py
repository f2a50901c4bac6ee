"""Templates that probes run, chains of layers and others, each with its space by hand."""

import torch
from torch import nn

from nfn_monomial import Axis, Symmetry, WeightSpace
from nfn_monomial.read.probes import ProbeFeatures
from nfn_monomial.space import Node, Sum
from nfn_monomial.testing import random_networks

FIXED, PERMUTATION, SIGN, SCALE, MONOMIAL = (
    Symmetry.FIXED, Symmetry.PERMUTATION, Symmetry.SIGN, Symmetry.SCALE, Symmetry.MONOMIAL,
)  # fmt: skip


class Siren(nn.Module):
    """With a forward of its own, which calls functions."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 6), nn.Linear(6, 5), nn.Linear(5, 1)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.sin(layer(x))
        return self.layers[-1](x)


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, padding_mode="circular"), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 3, padding="same", dilation=2, bias=False), nn.LeakyReLU(), nn.Dropout(0.5),
        nn.Flatten(), nn.Linear(3 * 4, 5), nn.Tanh(), nn.Linear(5, 3),
    )  # fmt: skip


def dense():
    return nn.Sequential(
        nn.Linear(2, 6), nn.PReLU(), nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)
    )


# How to build it, the shape of an input, the symmetries of its hidden nodes.
CHAINS = {
    "dense": (dense, None, ["prelu", "gelu", "tanh"]),
    "siren": (Siren, None, "sin"),
    "cnn": (convolutional, (2, 8, 8), ["relu", "relu", "tanh"]),
    "linear": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), None, "linear"),
}


def space_of(template, symmetry):
    """Of a chain of layers, with the template's names."""
    layers = {n: m for n, m in template.named_modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)}
    shapes = [m.weight.shape for m in layers.values()]
    sizes = [shapes[0][1], *(shape[0] for shape in shapes)]
    dots = [n and f"{n}." for n in layers]
    return WeightSpace.sequential(
        sizes, [tuple(shape[2:]) for shape in shapes], symmetry,
        bias=[m.bias is not None for m in layers.values()], names=[(f"{n}weight", f"{n}bias") for n in dots],
        positions={i: shape[1] // n for i, (shape, n) in enumerate(zip(shapes, sizes, strict=False))},
    )  # fmt: skip


class Residual(nn.Module):
    """A stream of tanh neurons with a branch that runs twice; two outputs."""

    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.back = nn.Linear(2, 5), nn.Linear(5, 4), nn.Linear(4, 5)
        self.out, self.value = nn.Linear(5, 3), nn.Linear(5, 1)

    def forward(self, x):
        x = torch.tanh(self.embed(x))
        for _ in range(2):
            x = x + self.back(torch.relu(self.inner(x)))
        return {"policy": self.out(x), "value": self.value(x)[:, 0]}


def residual_space():
    return WeightSpace(
        {"x": (FIXED, 2), "s": (SIGN, 5), "h": (SCALE, 4), "y": (FIXED, 3), "v": (FIXED, 1)},
        {
            "embed.weight": (Axis("s"), Axis("x", -1)), "embed.bias": (Axis("s"),),
            "inner.weight": (Axis("h"), Axis("s", -1)), "inner.bias": (Axis("h"),),
            "back.weight": (Axis("s"), Axis("h", -1)), "back.bias": (Axis("s"),),
            "out.weight": (Axis("y"), Axis("s", -1)), "out.bias": (Axis("y"),),
            "value.weight": (Axis("v"), Axis("s", -1)), "value.bias": (Axis("v"),),
        },
    )  # fmt: skip


def normalised():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 2, bias=False), nn.ReLU(), nn.Flatten(),
        nn.Linear(3 * 9, 2),
    )  # fmt: skip


def normalised_space():
    c, h = Axis("c", (1, 0)), Axis("c", (0, 1))
    return WeightSpace(
        {"x": (FIXED, 1), "c": Node((PERMUTATION, SCALE), 4), "d": (SCALE, 3), "y": (FIXED, 2)},
        {
            "0.weight": (c, Axis("x", -1), 3, 3), "0.bias": (c,), "1.weight": (h,), "1.bias": (h,),
            "1.running_mean": (c,), "1.running_var": (c,),
            "3.weight": (Axis("d"), Axis("c", (-1, -1)), 2, 2), "6.weight": (Axis("y"), (Axis("d", -1), 9)),
            "6.bias": (Axis("y"),),
        },
    )  # fmt: skip


class Attention(nn.Module):
    """Tokens of two numbers, two heads of three; queries, keys and values of one fused layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv = nn.Linear(2, 4), nn.Linear(4, 18, bias=False)
        self.mix, self.out = nn.Linear(6, 4), nn.Linear(4, 1)

    def forward(self, x):
        x = nn.functional.gelu(self.embed(x))
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.mT).softmax(-1) @ v
        return self.out((x + self.mix(mixed.transpose(1, 2).flatten(-2))).mean(1))


def attention_space():
    s, columns = Axis("s"), Axis("s", -1)
    return WeightSpace(
        {"x": (FIXED, 2), "s": (PERMUTATION, 4), "heads": (PERMUTATION, 2), "q": Node((MONOMIAL,), 3, "heads"),
         "v": Node((MONOMIAL,), 3, "heads"), "y": (FIXED, 1)},
        {
            "embed.weight": (s, Axis("x", -1)), "embed.bias": (s,),
            "qkv.weight": (Sum((Axis("q"), Axis("q", -1), Axis("v"))), columns),
            "mix.weight": (s, Axis("v", -1)), "mix.bias": (s,), "out.weight": (Axis("y"), columns),
            "out.bias": (Axis("y"),),
        },
    )  # fmt: skip


# How to build it, its space, the shape of an input, the charges of its hidden nodes.
TEMPLATES = {
    **{key: (build, None, shape, None) for key, (build, shape, _) in CHAINS.items()},
    "residual": (Residual, residual_space, (2,), {"s": 1, "h": 1}),
    "normalised": (normalised, normalised_space, (1, 6, 6), {"c": (1, 1), "d": 1}),
    "attention": (Attention, attention_space, (5, 2), {"s": 1, "v": 1}),
}


def setting(key, probes=5, batch=4, dtype=torch.float64, **kwargs):
    """A template, its space, probe features, a batch of random networks, and charges of the hidden activations."""
    torch.manual_seed(0)
    build, made, shape, charges = TEMPLATES[key]
    template = build().to(dtype).eval()
    space = made() if charges else space_of(template, CHAINS[key][2])
    charges = charges or {name: 1 for name in space.nodes if name.startswith("h")}
    networks = random_networks(space, batch, dtype=dtype, generator=torch.Generator().manual_seed(0))
    if "1.running_var" in networks:
        networks["1.running_var"] = networks["1.running_var"].square() + 0.1
    probe = ProbeFeatures(template, probes, input_shape=shape, space=space, **kwargs)
    return template, space, probe, networks, charges
