"""Networks with attention: heads that are permuted, what is nested in them, and the gauges of norms on a stream.

The bias of keys is dead: softmax does not see what all its scores have in common.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from networks.zoo import Items, Network, gaussian, tokens
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Heads of one fused matrix, split after it."""

    def __init__(self, width: int, heads: int, size: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.size, self.causal = heads, size, causal
        self.qkv, self.proj = nn.Linear(width, 3 * heads * size), nn.Linear(heads * size, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, self.heads, self.size).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(y.transpose(1, 2).contiguous().view(b, t, self.heads * self.size))


class PreNorm(nn.Module):
    """A block with its norms in front, softmax written out, q, k and v apart."""

    def __init__(self, norm: Callable[[int], nn.Module], activation: nn.Module) -> None:
        super().__init__()
        self.embed, self.norm1, self.norm2, self.norm = nn.Linear(2, 5), norm(5), norm(5), norm(5)
        self.q, self.k, self.v, self.o = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 5)
        self.mlp, self.head = nn.Sequential(nn.Linear(5, 7), activation, nn.Linear(7, 5)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        y = self.norm1(x)
        b, t, _ = y.shape
        q, k, v = (f(y).reshape(b, t, 2, 3).permute(0, 2, 1, 3) for f in (self.q, self.k, self.v))
        scores = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(3), dim=-1)
        x = x + self.o((scores @ v).permute(0, 2, 1, 3).reshape(b, t, 6))
        x = x + self.mlp(self.norm2(x))
        return self.head(self.norm(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(7, 5), nn.Embedding(4, 5)
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(5), SelfAttention(5, 2, 3, causal=True), nn.LayerNorm(5)
        self.c_fc, self.c_proj, self.ln_f = nn.Linear(5, 6), nn.Linear(6, 5), nn.LayerNorm(5)
        self.lm_head = nn.Linear(5, 7, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        x = x + self.attn(self.ln_1(x))
        x = x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))
        return self.lm_head(self.ln_f(x))


class RMSNorm(nn.Module):
    """As the Llama models write it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Llama(nn.Module):
    """Rotary positions, two key-value heads for four query heads, SwiGLU, no biases."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens, self.input_norm, self.post_norm = nn.Embedding(7, 5), RMSNorm(5), RMSNorm(5)
        self.norm, self.lm_head = RMSNorm(5), nn.Linear(5, 7, bias=False)
        self.q_proj, self.k_proj = nn.Linear(5, 16, bias=False), nn.Linear(5, 8, bias=False)
        self.v_proj, self.o_proj = nn.Linear(5, 6, bias=False), nn.Linear(12, 5, bias=False)
        self.gate_proj, self.up_proj = nn.Linear(5, 6, bias=False), nn.Linear(5, 6, bias=False)
        self.down_proj = nn.Linear(6, 5, bias=False)

    def attention(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.q_proj(x).view(b, t, 4, 4), self.k_proj(x).view(b, t, 2, 4), self.v_proj(x).view(b, t, 2, 3)
        q, k, v = rotated(q.transpose(1, 2)), rotated(k.transpose(1, 2)), v.transpose(1, 2)
        k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        mask = torch.full((t, t), float("-inf"), dtype=x.dtype, device=x.device).triu(1)
        weights = F.softmax(q @ k.transpose(2, 3) / 2 + mask, dim=-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(b, t, 12))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        x = x + self.attention(self.input_norm(x))
        y = self.post_norm(x)
        x = x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))
        return self.lm_head(self.norm(x))


def rotated(x: Tensor) -> Tensor:
    """Rotary positions on the last dimension of ``(B, heads, T, 4)``, halves as pairs."""
    angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.3], dtype=x.dtype)
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class EncoderLayer(nn.Module):
    """nn.TransformerEncoderLayer between an embedding and a head."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(2, 6), nn.Linear(6, 3)
        self.layer = nn.TransformerEncoderLayer(6, 2, 5, batch_first=True, norm_first=norm_first)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x)))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(1, 5, 2, stride=2), nn.Parameter(torch.zeros(1, 1, 5))
        self.positions = nn.Parameter(torch.zeros(1, 5, 5))
        self.ln1, self.attention, self.ln2, self.ln = (
            nn.LayerNorm(5),
            SelfAttention(5, 2, 3),
            nn.LayerNorm(5),
            nn.LayerNorm(5),
        )
        self.mlp, self.head = (
            nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Dropout(0.1), nn.Linear(7, 5)),
            nn.Linear(5, 3),
        )

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        x = x + self.attention(self.ln1(x))
        x = x + self.mlp(self.ln2(x))
        return self.head(self.ln(x)[:, 0])


class EncoderDecoder(nn.Module):
    """nn.Transformer with one layer on each side."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target, self.head = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 3)
        self.transformer = nn.Transformer(4, 2, 1, 1, 5, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.head(self.transformer(self.source(source), self.target(target)))


class Perceiver(nn.Module):
    """Latents that are permuted read tokens through nn.MultiheadAttention; their mean is the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.attention = nn.Parameter(torch.zeros(5, 4)), nn.MultiheadAttention(4, 2, kdim=3, vdim=3)
        self.mlp, self.head = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        latents = self.latents.unsqueeze(1).expand(-1, x.shape[1], -1)
        y, _ = self.attention(latents, x, x)
        latents = latents + y
        latents = latents + self.mlp(latents)
        return self.head(latents.mean(0))


class Mixer(nn.Module):
    """An MLP over tokens and one over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm1, self.norm2, self.norm = (
            nn.Linear(2, 5),
            nn.LayerNorm(5),
            nn.LayerNorm(5),
            nn.LayerNorm(5),
        )
        self.tokens = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))
        self.channels, self.head = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 5)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norm2(x))
        return self.head(self.norm(x).mean(1))


class LinearAttention(nn.Module):
    """No softmax: keys and values are summed over first, so that their biases count."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = nn.Linear(2, 4), nn.Linear(2, 4), nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.einsum("btk,btv->bkv", F.relu(self.k(x)), self.v(x))
        return self.out(torch.einsum("btk,bkv->btv", F.relu(self.q(x)), state))


class Interleaved(nn.Module):
    """Queries, keys and values of one matrix, taken apart by a function of ``(B, T, rows)``."""

    def __init__(
        self,
        rows: int,
        apart: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]],
        values: int = 6,
        slopes: tuple[float, ...] = (),
    ) -> None:
        super().__init__()
        self.slopes, self.apart, self.embed, self.norm = slopes, apart, nn.Linear(2, 5), nn.LayerNorm(5)
        self.qkv, self.proj, self.head = nn.Linear(5, rows), nn.Linear(values, 5), nn.Linear(5, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        q, k, v = (y.transpose(1, 2) for y in self.apart(self.qkv(self.norm(x))))
        scores = q @ k.mT / math.sqrt(3)
        if self.slopes:  # ALiBi
            scores = scores + torch.tensor(self.slopes, dtype=x.dtype)[:, None, None] * torch.arange(x.shape[1])
        return self.head(x + self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))


def of_neox(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As GPT-NeoX: rows (heads, 3 * size)."""
    q, k, v = y.view(*y.shape[:2], 2, 9).chunk(3, dim=-1)
    return q, k, v


def of_bloom(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As BLOOM: rows (heads, 3, size)."""
    y = y.view(*y.shape[:2], 2, 3, 3)
    return y[..., 0, :], y[..., 1, :], y[..., 2, :]


def of_falcon(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As Falcon with groups: rows (groups, queries of each + 2, size)."""
    y = y.view(*y.shape[:2], 2, 4, 3)
    q, k, v = y[:, :, :, :-2], y[:, :, :, [-2]], y[:, :, :, [-1]]
    return q.flatten(2, 3), k.expand_as(q).flatten(2, 3), v.expand_as(q).flatten(2, 3)


def of_multi_query(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As the first Falcon: rows (heads + 2, size), one key and one value for all heads."""
    y = y.view(*y.shape[:2], 4, 3)
    return y[..., :-2, :], y[..., [-2], :], y[..., [-1], :]


class Disentangled(nn.Module):
    """As DeBERTa: interleaved rows, biases of queries and of values alone, scores of relative positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.relative = nn.Linear(2, 5), nn.Parameter(torch.zeros(4, 8))
        self.in_proj, self.pos_proj, self.pos_q_proj = nn.Linear(5, 18, bias=False), nn.Linear(8, 6), nn.Linear(8, 6)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(6))
        self.proj, self.norm, self.head = nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        b, t, _ = x.shape
        q, k, v = self.in_proj(x).view(b, t, 2, 9).permute(0, 2, 1, 3).chunk(3, dim=-1)
        q, v = q + self.q_bias.view(2, 1, 3), v + self.v_bias.view(2, 1, 3)
        near = (torch.arange(t)[:, None] - torch.arange(t)).clamp(-2, 1) + 2
        pos_k, pos_q = (f(self.relative).view(4, 2, 3).transpose(0, 1) for f in (self.pos_proj, self.pos_q_proj))
        scores = q @ k.mT + (q @ pos_k.mT).gather(-1, near.expand(b, 2, t, t))
        scores = scores + (k @ pos_q.mT).gather(-1, near.expand(b, 2, t, t)).mT
        y = scores.softmax(-1) @ v
        return self.head(self.norm(x + self.proj(y.transpose(1, 2).flatten(2))))


def heads(count: int, keys: int, values: int) -> dict[str, Items]:
    return {"H": Items(count), "k": Items(keys, 1, 1, "H"), "v": Items(values, 1, 1, "H")}


FUSED = "H*k+H*k+H*v"


def fused(prefix: str, names: tuple[str, str] = ("qkv.", "proj."), stream: str = "e") -> dict[str, str]:
    """Dimensions of a fused attention."""
    return {
        f"{prefix}{names[0]}weight": f"{FUSED} {stream}", f"{prefix}{names[0]}bias": FUSED,
        f"{prefix}{names[1]}weight": f"{stream} H*v",
    }  # fmt: skip


SEPARATE = {
    "[qk].weight": "H*k e",
    "[qk].bias": "H*k",
    "v.weight": "H*v e",
    "v.bias": "H*v",
    "o.weight": "e H*v",
}


def of_transformer(name: str, columns: str, stream: str, prefix: str) -> dict[str, str]:
    """Dimensions of one attention of nn.Transformer, whose nodes end with ``name``."""
    rows = "H*k+H*k+H*v".replace("H", f"H{name}").replace("k", f"k{name}").replace("v", f"v{name}")
    return {
        f"{prefix}.in_proj_weight": f"{rows} {columns}", f"{prefix}.in_proj_bias": rows,
        f"{prefix}.out_proj.weight": f"{stream} H{name}*v{name}", f"{prefix}.out_proj.bias": stream,
    }  # fmt: skip


def feed_forward(hidden: str, stream: str, prefix: str) -> dict[str, str]:
    return {
        f"{prefix}.linear1.weight": f"{hidden} {stream}", f"{prefix}.linear1.bias": hidden,
        f"{prefix}.linear2.weight": f"{stream} {hidden}", f"{prefix}.linear2.bias": stream, f"{prefix}.norm*": stream,
    }  # fmt: skip


NETWORKS = [
    Network(
        "preln_gelu",
        lambda: PreNorm(nn.LayerNorm, nn.GELU()),
        gaussian((4, 4, 2)),
        {"e": Items(5, 3, 3), "h": Items(7), **heads(2, 3, 3)},
        SEPARATE,
        dead=6,
    ),
    Network(
        "prerms_relu",
        lambda: PreNorm(partial(nn.RMSNorm, eps=1e-6), nn.ReLU()),
        gaussian((4, 4, 2)),
        {"e": Items(5, 3, 4), "h": Items(7, 1), **heads(2, 3, 3)},
        SEPARATE,
        dead=6,
    ),
    Network(
        "gpt",
        GPT,
        tokens(7, (8, 4)),
        {"e": Items(5, 2, 2), "h": Items(6), **heads(2, 3, 3)},
        fused("attn."),
        dead=6,
    ),
    Network(
        "llama",
        Llama,
        tokens(7, (8, 4)),
        {
            "e": Items(5, 3, 4),
            "h": Items(6, 1, 1),
            "KV": Items(2, 1, 1),
            "R": Items(2, parent="KV"),
            "v": Items(3, 1, 1, "KV"),
        },
        {
            "q_proj.weight": "KV*R*4 e",
            "k_proj.weight": "KV*4 e",
            "v_proj.weight": "KV*v e",
            "o_proj.weight": "e KV*R*v",
        },
        extra=2,
        note="a scale for each rotated pair of a key-value head, of queries against keys; pairs are not permuted",
    ),
    Network(
        "encoder_layer",
        lambda: EncoderLayer(False),
        gaussian((8, 4, 2)),
        {"e": Items(6, 1, 1), "h": Items(5, 1), **heads(2, 3, 3)},
        fused("layer.self_attn.", ("in_proj_", "out_proj.")),
        dead=6,
    ),
    Network(
        "encoder_layer_norm_first",
        lambda: EncoderLayer(True),
        gaussian((8, 4, 2)),
        {"e": Items(6, 2, 2), "h": Items(5, 1), **heads(2, 3, 3)},
        fused("layer.self_attn.", ("in_proj_", "out_proj.")),
        dead=6,
    ),
    Network(
        "vit",
        ViT,
        gaussian((8, 1, 4, 4)),
        {"e": Items(5, 3, 3), "h": Items(7), **heads(2, 3, 3)},
        {**fused("attention."), "positions": "1 5 e", "token": "1 1 e"},
        dead=6,
    ),
    Network(
        "encoder_decoder",
        EncoderDecoder,
        lambda: (torch.randn(6, 4, 3), torch.randn(6, 3, 2)),
        {
            "s": Items(4, 1, 1),
            "t": Items(4, 1, 1),
            "hs": Items(5, 1),
            "ht": Items(5, 1),
            **{f"H{i}": Items(2) for i in "abc"},
            **{f"{n}{i}": Items(2, 1, 1, f"H{i}") for n in "kv" for i in "abc"},
        },
        {
            **of_transformer("a", "s", "s", "*encoder.layers.0.self_attn"),
            **feed_forward("hs", "s", "*encoder.layers.0"),
            **of_transformer("b", "t", "t", "*decoder.layers.0.self_attn"),
            **feed_forward("ht", "t", "*decoder.layers.0"),
            **of_transformer("c", "t|s|s", "t", "*decoder.layers.0.multihead_attn"),
            "*encoder.norm.*": "s",
            "*decoder.norm.*": "t",
            "source.weight": "s 3",
            "source.bias": "s",
            "target.weight": "t 2",
            "target.bias": "t",
            "head.weight": "3 t",
        },
        dead=12,
        optional=8,
        note="the rows of one matrix read two streams: columns that are no product",
    ),
    Network(
        "perceiver",
        Perceiver,
        gaussian((6, 8, 3)),
        {"L": Items(5), "e": Items(4, 1, 1), "h": Items(7, 1), **heads(2, 2, 2)},
        {
            "latents": "L e",
            "attention.q_proj_weight": "H*k e",
            "attention.k_proj_weight": "H*k 3",
            "attention.v_proj_weight": "H*v 3",
            "attention.in_proj_bias": FUSED,
            "attention.out_proj.weight": "e H*v",
        },
        dead=4,
    ),
    Network(
        "mixer",
        Mixer,
        gaussian((8, 4, 2)),
        {"e": Items(5, 2, 2), "t": Items(6), "h": Items(7)},
        constants=1,
        dead=4,
        note="all gains of the first norm against the tokens' MLP, whose last bias the norms behind it take off again",
    ),
    Network(
        "alibi",
        lambda: Interleaved(18, of_bloom, slopes=(1.0, 0.3)),
        gaussian((8, 4, 2)),
        {"e": Items(5, 1, 1), **heads(2, 3, 3), "H": Items(2, still=True)},
        {"qkv.weight": "H*(k+k+v) e", "qkv.bias": "H*(k+k+v)", "proj.weight": "e H*v"},
        dead=6,
    ),
    *(
        Network(
            name,
            partial(Interleaved, 18, apart),
            gaussian((8, 4, 2)),
            {"e": Items(5, 1, 1), **heads(2, 3, 3)},
            {"qkv.weight": "H*(k+k+v) e", "qkv.bias": "H*(k+k+v)", "proj.weight": "e H*v"},
            dead=6,
        )
        for name, apart in (("neox", of_neox), ("bloom", of_bloom))
    ),
    Network(
        "falcon",
        lambda: Interleaved(24, of_falcon, 12),
        gaussian((8, 4, 2)),
        {"e": Items(5, 1, 1), "R": Items(2, parent="H"), **heads(2, 3, 3)},
        {"qkv.weight": "H*(R*k+k+v) e", "qkv.bias": "H*(R*k+k+v)", "proj.weight": "e H*R*v"},
        dead=6,
    ),
    Network(
        "multi_query",
        lambda: Interleaved(12, of_multi_query),
        gaussian((8, 4, 2)),
        {"e": Items(5, 1, 1), "H": Items(2), "k": Items(3, 1, 1), "v": Items(3, 1, 1)},
        {"qkv.weight": "H*k+k+v e", "qkv.bias": "H*k+k+v", "proj.weight": "e H*v", "embed.weight": "e 2"},
        dead=3,
    ),
    Network(
        "deberta",
        Disentangled,
        gaussian((8, 4, 2)),
        {"e": Items(5, 1, 1), "p": Items(8, 1, 1), **heads(2, 3, 3)},
        {
            "in_proj.weight": "H*(k+k+v) e",
            "pos*.weight": "H*k p",
            "pos*.bias": "H*k",
            "q_bias": "H*k",
            "v_bias": "H*v",
            "proj.weight": "e H*v",
            "relative": "4 p",
        },
        dead=6,
    ),
    Network(
        "linear_attention", LinearAttention, gaussian((8, 3, 2)), {"k": Items(4, 1), "v": Items(5, 1, 1)}, constants=1
    ),
]
