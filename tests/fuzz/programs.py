"""Random modules: blocks of many kinds in a row, on tensors (batch, tokens, channels)."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTHS = (4, 6, 8)
ACTIVATIONS: list[Callable[[Tensor], Tensor]] = [
    torch.relu, torch.tanh, torch.sin, F.gelu, F.silu, F.leaky_relu, torch.abs, torch.square, F.softplus, F.hardtanh,
]  # fmt: skip


class Program(nn.Module):
    """Runs its blocks one after the other; ``label`` says which these are."""

    def __init__(self, front: nn.Module, blocks: list[nn.Module], head: nn.Module, pooled: bool) -> None:
        super().__init__()
        self.front, self.blocks, self.head, self.pooled = front, nn.ModuleList(blocks), head, pooled
        self.label = " > ".join(type(part).__name__ for part in (front, *blocks)) + " > mean" * pooled

    def forward(self, x: Tensor) -> Tensor:
        x = self.front(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1) if self.pooled else x)


class Dense(nn.Module):
    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        hidden = rng.choice(WIDTHS)
        self.up, self.down = nn.Linear(width, hidden, bias=rng.random() < 0.7), nn.Linear(hidden, width)
        self.activation, self.skips = rng.choice(ACTIVATIONS), rng.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(self.activation(self.up(x)))
        return x + y if self.skips else torch.tanh(y)


class Gated(nn.Module):
    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        hidden = rng.choice(WIDTHS)
        self.up, self.gate, self.down = nn.Linear(width, hidden), nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.activation = rng.choice([torch.sigmoid, F.silu, F.relu, torch.tanh])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x) * self.activation(self.gate(x)))


class Packed(nn.Module):
    """The same in one tensor, whose parts are halves or neighbours."""

    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        hidden = rng.choice(WIDTHS)
        self.up, self.down, self.halves = nn.Linear(width, 2 * hidden), nn.Linear(hidden, width), rng.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        a, b = y.chunk(2, -1) if self.halves else y.unflatten(-1, (-1, 2)).unbind(-1)
        return x + self.down(a * b.sigmoid())


class Attention(nn.Module):
    """Heads in one of several layouts, one of which is a slip: a reshape without a transpose."""

    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        self.heads, self.layout = rng.choice([1, 2]), rng.choice(["3hd", "h3d", "hd3", "apart", "slip"])
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=rng.random() < 0.5), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        y, heads = self.qkv(x), self.heads
        if self.layout == "3hd":
            q, k, v = y.reshape(batch, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
        elif self.layout == "h3d":
            q, k, v = y.reshape(batch, tokens, heads, 3, -1).permute(3, 0, 2, 1, 4)
        elif self.layout == "hd3":
            q, k, v = y.reshape(batch, tokens, heads, -1, 3).permute(4, 0, 2, 1, 3)
        elif self.layout == "apart":
            q, k, v = (z.reshape(batch, tokens, heads, -1).transpose(1, 2) for z in y.split(width, -1))
        else:
            q, k, v = (z.reshape(batch, heads, tokens, -1) for z in y.split(width, -1))
        z = F.scaled_dot_product_attention(q, k, v)
        z = z.reshape(batch, tokens, width) if self.layout == "slip" else z.transpose(1, 2).reshape(batch, tokens, -1)
        return x + self.out(z)


class Norm(nn.Module):
    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        kind = rng.choice(["layer", "rms", "batch", "group"])
        self.norm = {
            "layer": lambda: nn.LayerNorm(width),
            "rms": lambda: nn.RMSNorm(width),
            "batch": lambda: nn.BatchNorm1d(width),
            "group": lambda: nn.GroupNorm(2, width),
        }[kind]()
        self.moved = kind in ("batch", "group")

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.mT).mT if self.moved else self.norm(x)


class Convolution(nn.Module):
    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        groups = rng.choice([1, 1, 2, width])
        self.conv = nn.Conv1d(width, width, 3, padding=1, groups=groups)
        self.activation = rng.choice(ACTIVATIONS)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.conv(x.mT).mT)


class Mixing(nn.Module):
    """Acts on tokens, whatever their number: sums, sorts, running sums, maxima."""

    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        self.kind, self.linear = (
            rng.choice(["cumsum", "max", "flip", "roll", "softmax", "sort"]),
            nn.Linear(width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.kind == "cumsum":
            return x + 0.3 * y.cumsum(1)
        if self.kind == "max":
            return x + y.amax(1, keepdim=True)
        if self.kind == "softmax":
            return x + y.softmax(1)
        if self.kind == "sort":
            return x + y.sort(1).values
        return x + (y.flip(1) if self.kind == "flip" else y.roll(1, 1))


class Slip(nn.Module):
    """Takes tokens for channels, or pairs tokens, by a reshape: a group that holds at one size alone is none."""

    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        self.linear, self.pairs = nn.Linear(width, width), rng.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        y = torch.relu(self.linear(x))
        if self.pairs and tokens % 2 == 0:
            y = y.view(batch, tokens // 2, 2 * width)
        return x + y.reshape(batch, width, tokens).mT


class Channels(nn.Module):
    """Acts on channels in their places: a roll, a mask, a cumulative sum, a product with a vector, a sort."""

    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        self.kind = rng.choice(["roll", "mask", "cumsum", "gain", "softmax", "sort", "topk", "perm", "halves"])
        self.linear, self.gain = nn.Linear(width, width), nn.Parameter(torch.rand(width) + 0.5)
        self.register_buffer("mask", torch.rand(width) + 0.5)
        self.register_buffer("order", torch.randperm(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.kind == "roll":
            return x + y.roll(1, -1)
        if self.kind == "mask":
            return x + torch.relu(y) * self.mask
        if self.kind == "cumsum":
            return x + y.cumsum(-1)
        if self.kind == "gain":
            return x + torch.relu(y * self.gain)
        if self.kind == "softmax":
            return x + y.softmax(-1)
        if self.kind == "sort":
            return x + y.sort(-1).values
        if self.kind == "topk":
            values, places = y.topk(2, -1)
            return x + torch.zeros_like(y).scatter(-1, places, values.relu())
        if self.kind == "perm":
            return x + torch.relu(y)[..., self.order]
        a, b = torch.relu(y).chunk(2, -1)
        return x + torch.cat([b, a.square()], -1)


class Recurrent(nn.Module):
    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        kind = rng.choice([nn.GRU, nn.LSTM, nn.RNN])
        self.cell = kind(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cell(x)[0]


class LowRank(nn.Module):
    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(2, width)), nn.Parameter(torch.randn(width, 2))
        self.linear, self.tied = nn.Linear(width, width), rng.random() < 0.3

    def forward(self, x: Tensor) -> Tensor:
        weight = self.linear.weight + self.b @ self.a
        y = F.linear(x, weight, self.linear.bias)
        return torch.tanh(F.linear(y, self.linear.weight) if self.tied else y)


class Codes(nn.Module):
    """Replaces each token by one of some codes, found by the largest product."""

    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        self.codes, self.kind = (
            nn.Parameter(torch.randn(5, width)),
            rng.choice(["index", "one_hot", "embedding", "soft"]),
        )

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ self.codes.T
        if self.kind == "soft":
            return x + scores.softmax(-1) @ self.codes
        best = scores.argmax(-1)
        if self.kind == "index":
            return x + self.codes[best]
        if self.kind == "embedding":
            return x + F.embedding(best, self.codes)
        return x + F.one_hot(best, 5).to(x.dtype) @ self.codes


class Experts(nn.Module):
    """Mixes the answers of some experts, all in one tensor or each a module of its own."""

    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        self.router, self.sparse = nn.Linear(width, 3), rng.random() < 0.5
        self.up, self.down = nn.Parameter(torch.randn(3, 5, width)), nn.Parameter(torch.randn(3, width, 5) / 3)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.router(x).softmax(-1)
        if self.sparse:
            values, places = gates.topk(2, -1)
            gates = torch.zeros_like(gates).scatter(-1, places, values)
        hidden = torch.relu(torch.einsum("ehi,bti->bteh", self.up, x))
        return x + torch.einsum("eoh,bteh,bte->bto", self.down, hidden, gates)


BLOCKS = [
    Dense, Dense, Gated, Packed, Attention, Attention, Norm, Norm, Convolution, Mixing, Slip, Channels, Channels,
    Recurrent, LowRank, Codes, Experts,
]  # fmt: skip


def program(seed: int) -> tuple[Program, Tensor]:
    """A random module in eval mode, in float64, and inputs (batch, tokens) or (batch, tokens, 3)."""
    rng = random.Random(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        width, batch, tokens = rng.choice(WIDTHS), rng.choice([2, 3, 5]), rng.choice([4, 5, 6, 8])
        words = rng.random() < 0.4
        front = nn.Embedding(11, width) if words else nn.Linear(3, width)
        blocks = [rng.choice(BLOCKS)(width, rng) for _ in range(rng.choice([1, 2, 2, 3]))]
        module = Program(front, blocks, nn.Linear(width, 3), rng.random() < 0.5).double().eval()
        with torch.no_grad():
            for p in module.parameters():  # as after training: nothing is 0 or 1
                p.add_(0.1 * torch.randn_like(p))
            for m in module.modules():
                if isinstance(m, nn.BatchNorm1d):
                    m.running_mean.normal_()  # type: ignore[union-attr]
                    m.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
        return module, inputs(module, batch, tokens)


def inputs(module: Program, batch: int, tokens: int) -> Tensor:
    """Random inputs of this size, for a module of `program`."""
    if isinstance(module.front, nn.Embedding):
        return torch.randint(11, (batch, tokens))
    return torch.randn(batch, tokens, 3, dtype=torch.float64)
