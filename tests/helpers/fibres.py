"""Networks whose fibres are derived by hand, direction by direction; `null_space` counts them from the Jacobian."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree


class Attention(nn.Module):
    """Heads of ``width``, on ``keys`` heads of keys and values; rotary, or not; each matrix for itself."""

    def __init__(
        self, size: int, width: int, heads: int = 1, *, keys: int | None = None, bias: bool = True, rotary: bool = False
    ) -> None:
        super().__init__()
        self.width, self.heads, self.keys, self.rotary = width, heads, keys or heads, rotary
        self.q = nn.Linear(size, heads * width, bias=bias)
        self.k = nn.Linear(size, self.keys * width, bias=bias)
        self.v = nn.Linear(size, self.keys * width, bias=bias)
        self.o = nn.Linear(heads * width, size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (count, self.width)).transpose(1, 2)
            for layer, count in ((self.q, self.heads), (self.k, self.keys), (self.v, self.keys))
        )
        if self.rotary:
            q, k = turned(q), turned(k)
        if self.keys < self.heads:
            k, v = (t.repeat_interleave(self.heads // self.keys, 1) for t in (k, v))
        weights = (q @ k.transpose(-1, -2) / math.sqrt(self.width)).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


def turned(x: Tensor) -> Tensor:
    """Rotary places: entry i and entry i + half of it are one complex number."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 10.0 ** (-torch.arange(half) / half)
    cos, sin = (torch.cat([t, t], -1).to(x.dtype) for t in (angle.cos(), angle.sin()))
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class MultiQuery(nn.Module):
    """Heads of 3 that share a key and a value, all in one matrix: cut by lists of places, or by ranges."""

    def __init__(self, *, heads: int = 2, listed: bool = True) -> None:
        super().__init__()
        self.qkv, self.o, self.heads, self.listed = nn.Linear(5, 3 * heads + 6), nn.Linear(3 * heads, 4), heads, listed

    def forward(self, x: Tensor) -> Tensor:
        y = self.qkv(x).view(*x.shape[:2], self.heads + 2, 3)
        key, value = ([-2], [-1]) if self.listed else (slice(-2, -1), slice(-1, None))
        q, k, v = (t.transpose(1, 2) for t in (y[..., :-2, :], y[..., key, :], y[..., value, :]))
        return self.o(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


class LookUps(nn.Module):
    """Tokens and places, both looked up by an index."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Parameter(torch.randn(7, 4)), nn.Parameter(torch.randn(6, 4))
        self.o = nn.Linear(4, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.o(self.tokens[tokens] + self.places.index_select(0, torch.arange(tokens.shape[1])))


class Generated(nn.Module):
    """A hypernetwork of one code; or a prompt: the code through a linear map, added to what a layer makes of inputs."""

    def __init__(self, *, prompt: bool = False) -> None:
        super().__init__()
        self.prompt, self.code = prompt, nn.Parameter(torch.randn(3))
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 12)
        self.layer, self.o = nn.Linear(3, 4), nn.Linear(4, 2)
        if prompt:
            self.b = None
        else:
            self.layer = nn.ParameterDict({"bias": torch.randn(4)})

    def forward(self, x: Tensor) -> Tensor:
        if self.prompt:
            return self.o(torch.tanh(self.layer(x) + self.a(self.code)))
        weight = self.b(F.relu(self.a(self.code))).view(4, 3)
        return self.o(torch.tanh(F.linear(x, weight, self.layer["bias"])))


class Probed(nn.Module):
    """Attention pooling: one query, which a code gives."""

    def __init__(self) -> None:
        super().__init__()
        self.code = nn.Parameter(torch.randn(1, 3))
        self.q, self.k, self.v, self.o = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.o((self.q(self.code) @ self.k(x).mT).softmax(-1) @ self.v(x))


class Adapted(nn.Module):
    """A matrix with a product of two others beside it, all of them trained; or in place of it."""

    def __init__(self, *, base: bool) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(torch.randn(2, 5)), nn.Parameter(torch.randn(4, 2))
        self.base = nn.Parameter(torch.randn(4, 5)) if base else None
        self.o = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        product = self.up @ self.down
        return self.o(torch.tanh(F.linear(x, product if self.base is None else self.base + product)))


class Pooled(nn.Module):
    """Convolutions with all that moves entries about, or takes means of them, in between."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.pad(self.a(x), (1, 1, 1, 1), mode="replicate"), 2)
        return self.b(F.interpolate(x.flip(-1).roll(1, -2), scale_factor=2))


class RMSNorm(nn.Module):
    """With a gain. Its eps is large, so that it is nowhere near to being scaled away."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.1) * self.gain


class GPT(nn.Module):
    """One block; or without attention, with a head that has no bias or is tied to the tokens."""

    def __init__(self, *, attention: bool = True, head: str = "bias") -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 5), nn.Embedding(6, 5)
        self.norm1, self.attention = (nn.LayerNorm(5), Attention(5, 3, 2)) if attention else (None, None)
        self.norm2, self.up, self.down = nn.LayerNorm(5), nn.Linear(5, 4), nn.Linear(4, 5)
        self.norm3 = nn.LayerNorm(5, elementwise_affine=head != "tied")
        self.head = nn.Linear(5, 11, bias=head == "bias")
        if head.startswith("tied"):
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        if self.attention is not None and self.norm1 is not None:
            x = x + self.attention(self.norm1(x))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(self.norm3(x))


class Llama(nn.Module):
    """One block of width 4, with two heads of ``pairs`` rotary pairs."""

    def __init__(self, pairs: int = 1) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.norm1, self.norm2, self.norm3 = RMSNorm(4), RMSNorm(4), RMSNorm(4)
        self.attention = Attention(4, 2 * pairs, 2, bias=False, rotary=True)
        self.gate, self.up, self.down = (nn.Linear(*n, bias=False) for n in ((4, 3), (4, 3), (3, 4)))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return self.head(self.norm3(x + self.down(F.silu(self.gate(y)) * self.up(y))))


class Residual(nn.Module):
    """A stream of 4 without norm, with one branch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.o = nn.Linear(6, 4), nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.o(x + self.c(torch.tanh(self.b(x))))


class LowRank(nn.Module):
    """An adapter of rank 2 beside a matrix, which is a buffer or a parameter without gradient."""

    def __init__(self, *, buffer: bool = True) -> None:
        super().__init__()
        base = torch.randn(5, 4)
        if buffer:
            self.register_buffer("base", base)
        else:
            self.base = nn.Parameter(base, requires_grad=False)
        self.a, self.b = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(5, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.base + self.b @ self.a).T


class AdaptedAttention(nn.Module):
    """Frozen queries, keys and values with adapters of rank 2 on the first and the last."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("wq", "wk", "wv"):
            self.register_buffer(name, torch.randn(5, 5))
        self.a, self.c = (nn.Parameter(torch.randn(2, 5)) for _ in range(2))
        self.b, self.d = (nn.Parameter(torch.randn(5, 2)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, v = x @ (self.wq + self.b @ self.a).T, x @ self.wv.T + x @ self.c.T @ self.d.T
        return (q @ (x @ self.wk.T).transpose(1, 2)).softmax(-1) @ v


class NormedQueries(nn.Module):
    """Attention whose queries and keys are normed, each with a gain."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(3, 4)
        self.norm_q, self.norm_k = RMSNorm(3), RMSNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.norm_q(self.q(x)) @ self.norm_k(self.k(x)).transpose(1, 2)).softmax(-1)
        return self.o(weights @ self.v(x))


class Gated(nn.Module):
    """A gate and what it lets through."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.sigmoid(self.gate(x)) * self.up(x))


class NormedConvolutions(nn.Module):
    """Two convolutions with batch norms, the second around a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.norm2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norm1(self.first(x)))
        return self.head(F.gelu(x + self.norm2(self.second(x))).mean((2, 3)))


class Patches(nn.Module):
    """A vision transformer of one block that averages its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(1, 6, 4, 4), nn.Parameter(torch.randn(1, 4, 6))
        self.block = encoder(first=True)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.patches(x).flatten(2).transpose(1, 2) + self.places)
        return self.head(self.norm(x).mean(1))


def encoder(*, first: bool) -> nn.Module:
    """Torch's encoder layer of width 6, two heads and 7 hidden units, its norms first or last."""
    return nn.TransformerEncoderLayer(6, 2, 7, dropout=0.0, activation="gelu", batch_first=True, norm_first=first)


class Written(nn.Module):
    """Attention 4 -> 3, as others write it."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.attend = attend
        self.q, self.k, self.v, self.o = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.attend(self.q(x), self.k(x), self.v(x)))


def einsums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bij, bjd -> bid", torch.einsum("bid,bjd->bij", q, k).softmax(-1), v)


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    unseen = torch.ones(q.shape[1], q.shape[1]).triu(1).bool()
    return (q @ k.mT).masked_fill(unseen, -torch.inf).softmax(-1) @ v


class Packed(nn.Module):
    """Attention 3 -> 3 behind a linear map, as GPT-2 has it: matrices of all tokens at once, heads by views."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.qkv, self.o = nn.Linear(4, 3), nn.Linear(3, 12), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        packed = through(self.qkv, self.first(x)).split(4, dim=2)
        q, k, v = (t.view(*t.shape[:-1], 2, 2).transpose(1, 2) for t in packed)
        return through(self.o, F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(*x.shape[:-1], 4))


def through(layer: nn.Linear, x: Tensor) -> Tensor:
    return torch.addmm(layer.bias, x.view(-1, x.shape[-1]), layer.weight.T).view(*x.shape[:-1], -1)


class Case(NamedTuple):
    """A network, an input for it, and how many directions of which kind leave its function as it is."""

    module: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    kinds: dict[str, int]


def tokens(n: int) -> Callable[[], Tensor]:
    """Two texts of six tokens."""
    return lambda: torch.randint(0, n, (2, 6))


def normal(*shape: int) -> Callable[[], Tensor]:
    """Normal random numbers."""
    return lambda: torch.randn(shape)


CASES = {
    # matrices of 3 between queries and keys, and values and outputs; k's bias, which softmax drops, and v's, into o's
    "attention": Case(lambda: Attention(4, 3), normal(3, 6, 4), {"linear": 9 + 9, "constants": 3 + 3}),
    "attention by einsum": Case(lambda: Written(einsums), normal(3, 6, 4), {"linear": 9 + 9, "constants": 3 + 3}),
    "masked attention": Case(lambda: Written(masked), normal(3, 6, 4), {"linear": 9 + 9, "constants": 3 + 3}),
    "packed matrices": Case(Packed, normal(2, 5, 4), {"linear": 9 + 8 + 8, "constants": 3 + 4 + 4}),
    # two heads of queries on one of keys: one matrix of 2 turns all three
    "grouped queries": Case(lambda: Attention(4, 2, 2, keys=1), normal(3, 6, 4), {"linear": 4 + 4, "constants": 2 + 2}),
    "packed attention": Case(
        lambda: nn.MultiheadAttention(6, 2, batch_first=True),
        lambda: (torch.randn(3, 5, 6),) * 3,
        {"linear": 2 * 9 + 2 * 9, "constants": 6 + 6},
    ),
    "bottleneck": Case(
        lambda: nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 6)), normal(7, 5), {"linear": 9, "constants": 3}
    ),
    "convolutions": Case(
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 4, 3)), normal(2, 2, 8, 8), {"linear": 9, "constants": 3}
    ),
    "chain": Case(
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 5)),
        normal(9, 6),
        {"linear": 16 + 16, "constants": 4 + 4},
    ),
    "rms norm": Case(
        lambda: nn.Sequential(nn.Linear(6, 5), RMSNorm(5), nn.Linear(5, 6)), normal(7, 6), {"rotations": 10, "gains": 5}
    ),
    # writers: 4 inputs and a bias; readers: 3 outputs
    "layer norm": Case(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)),
        normal(7, 4),
        {"rotations": 6, "gains": 5, "means": 5 + 3, "constants": 5},
    ),
    # a factor and an angle for each pair; values and outputs as ever
    "rotary": Case(lambda: Attention(4, 4, bias=False, rotary=True), normal(3, 6, 4), {"rotary": 4, "linear": 16}),
    "residual": Case(Residual, normal(9, 6), {"linear": 16, "constants": 4 + 4}),
    "adapter": Case(LowRank, normal(7, 4), {"linear": 4}),
    "adapter of a parameter": Case(lambda: LowRank(buffer=False), normal(7, 4), {"linear": 4}),
    "adapted attention": Case(AdaptedAttention, normal(3, 6, 5), {"linear": 4 + 4}),
    "Llama": Case(Llama, tokens(9), {"rotations": 6, "gains": 12, "rotary": 4, "linear": 8, "scales": 3}),
    "Llama, two pairs": Case(
        lambda: Llama(2), tokens(9), {"rotations": 6, "gains": 12, "rotary": 8, "linear": 32, "scales": 3}
    ),
    # means: of tokens and places, what writes (7 + 5), what reads (18 + 4 + 11). Constants: tokens against places
    # without their mean, shifts of norms, k's bias, v's
    "GPT": Case(
        GPT, tokens(11), {"rotations": 6, "linear": 36, "gains": 15, "means": 17 + 12 + 33, "constants": 4 + 15 + 6 + 6}
    ),
    # the last shift has no bias to go to, but means of the head can take it
    "head without bias": Case(
        lambda: GPT(attention=False, head="none"),
        tokens(11),
        {"rotations": 6, "gains": 10, "means": 17 + 5 + 4, "constants": 4 + 5 + 5},
    ),
    # the head reads the stream by what writes the tokens: no gain of the last norm can be folded, nor its means be seen
    "tied head": Case(
        lambda: GPT(attention=False, head="tied with gain"),
        tokens(11),
        {"gains": 5, "means": 6 + 5 + 4, "constants": 5},
    ),
    "tied head without gain": Case(
        lambda: GPT(attention=False, head="tied"),
        tokens(11),
        {"rotations": 6, "gains": 5, "means": 17 + 5 + 4, "constants": 5},
    ),
    # a gain for both, as they meet in the products
    "normed queries": Case(NormedQueries, normal(3, 6, 4), {"gains": 3, "linear": 9, "constants": 3}),
    "gate": Case(Gated, normal(7, 4), {"scales": 5}),
    "ReLU": Case(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), normal(40, 4), {"scales": 5}),
    "tanh": Case(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), normal(7, 4), {}),
    # the first bias goes into the norm's; running statistics are no parameters here
    "batch norm": Case(NormedConvolutions, normal(2, 2, 8, 8), {"gains": 8, "constants": 4}),
    # inputs and outputs are FIXED: no rotations. Readers are 18 and 7, of shifts 6 and 6; one constant is a mean that
    # the second norm subtracts and the last bias takes
    "encoder": Case(
        lambda: encoder(first=True),
        normal(3, 5, 6),
        {"linear": 36, "gains": 12, "means": 18 + 7, "constants": 6 + 6 + 6 + 6 + 1},
    ),
    # norms behind: what writes to them has means (7 + 8); of what reads the first, 7 rows see it no more than a bias
    "encoder, norms last": Case(
        lambda: encoder(first=False), normal(3, 5, 6), {"linear": 36, "means": 7 + 8, "constants": 6 + 6 + 6 + 7}
    ),
    "two of them": Case(
        lambda: nn.TransformerEncoder(encoder(first=False), 2, enable_nested_tensor=False),
        normal(3, 5, 6),
        {"linear": 72, "means": 30, "constants": 2 * (6 + 6 + 6 + 7) + 6 + 18},
    ),
    "patches": Case(
        Patches,
        normal(3, 1, 8, 8),
        {"rotations": 10, "linear": 36, "gains": 18, "means": 16 + 4 + 7 + 8 + 28, "constants": 6 + 18 + 12},
    ),
    # the key's bias does nothing, the value's goes into that of the output
    "multi-query": Case(MultiQuery, normal(3, 4, 5), {"linear": 18, "constants": 6}),
    "multi-query by ranges": Case(lambda: MultiQuery(listed=False), normal(3, 4, 5), {"linear": 18, "constants": 6}),
    "look-ups": Case(LookUps, tokens(7), {"linear": 16, "constants": 4 + 4}),
    # the last bias can hold all that a code and the matrices behind it amount to; then nothing in front of it matters
    "generated weights": Case(Generated, normal(40, 3), {"constants": 3 + 12 + 4 + 48}),
    "prompt": Case(lambda: Generated(prompt=True), normal(40, 3), {"constants": 3 + 12 + 4}),
    # all queries are in one bias: of 4 x 4 matrices on it, those count that move it or the keys; values have 3 columns
    "pooling by a code": Case(Probed, normal(40, 5, 3), {"linear": 13 + 14, "constants": 3 + 12 + 4 + 4}),
    "adapter and its base": Case(lambda: Adapted(base=True), normal(40, 5), {"constants": 8 + 10}),
    "factors": Case(lambda: Adapted(base=False), normal(40, 5), {"linear": 4}),
    "pooled": Case(Pooled, normal(2, 2, 8, 8), {"linear": 9, "constants": 3}),
    "LSTM": Case(lambda: nn.LSTM(3, 4, batch_first=True), normal(2, 5, 3), {"constants": 16}),
    "GRU": Case(lambda: nn.GRU(3, 4, batch_first=True), normal(2, 5, 3), {"constants": 8}),
    "RNN": Case(lambda: nn.RNN(3, 4, batch_first=True), normal(2, 5, 3), {"constants": 4}),
}


def generic(module: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """Random parameters in float64, of a size at which no attention is all on one token; buffers as they are."""
    found = {name: t.double() if t.is_floating_point() else t for name, t in module.named_buffers()}
    for name, p in module.named_parameters():
        noise = torch.randn(p.shape, dtype=torch.float64, generator=generator)
        found[name] = 0.4 * noise + (1 if "norm" in name and p.ndim == 1 and "bias" not in name else 0)
    return found


def drawn(inputs: Any, generator: torch.Generator) -> tuple[Any, ...]:
    """Random inputs like these, in float64."""

    def draw(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return torch.randint(0, int(x.max()) + 1, x.shape, generator=generator)
        return torch.randn(x.shape, dtype=torch.float64, generator=generator)

    found = pytree.tree_map_only(Tensor, draw, inputs)
    return found if isinstance(found, tuple) else (found,)


def null_space(module: nn.Module, inputs: Any) -> int:
    """In how many directions parameters that need gradients move without a change of any output, at random ones."""
    generator = torch.Generator().manual_seed(0)
    state = generic(module, generator)
    leaves = {name: state[name].requires_grad_() for name, p in module.named_parameters() if p.requires_grad}
    count = sum(t.numel() for t in leaves.values())
    rows: list[Tensor] = []
    while len(rows) < count + 20:
        found = torch.func.functional_call(module.eval(), state, drawn(inputs, generator))
        answer = next(t for t in pytree.tree_leaves(found) if isinstance(t, Tensor))
        for _ in range(min(16, answer.numel())):
            slope = torch.autograd.grad(
                answer, list(leaves.values()), torch.randn(answer.shape, dtype=torch.float64, generator=generator),
                retain_graph=True,
            )  # fmt: skip
            rows.append(torch.cat([g.flatten() for g in slope]))
    values = torch.linalg.svdvals(torch.stack(rows))
    rank = int((values > 1e-11 * values[0]).sum())
    assert values[rank - 1] > 1e-9 * values[0], "no gap between directions that matter and those that do not"
    return count - rank
