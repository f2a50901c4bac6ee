"""Networks with attention: heads that are permuted, what is nested in them, and the gauges of norms on a stream.

The bias of keys is dead: softmax does not see what all its scores have in common.
"""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from networks.zoo import Items, Of, gaussian, group, net, tokens, zeros
from torch import Tensor, nn

SEQUENCES = gaussian((8, 4, 2))


def heads(count: int = 2, keys: int = 3, values: int = 3) -> dict[str, Items]:
    return {"H": Items(count), "k": Items(keys, 1, 1, "H"), "v": Items(values, 1, 1, "H")}


def fused(prefix: str, names: tuple[str, str] = ("qkv.", "proj.")) -> dict[str, str]:
    """Dimensions of a fused attention."""
    return {f"{prefix}{names[0]}weight": "H*k+H*k+H*v e", f"{prefix}{names[1]}weight": "e H*v"}


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


def prenorm(m, x):
    """A block with its norms in front, softmax written out, q, k and v apart."""
    x = m.embed(x)
    y = m.norm1(x)
    b, t, _ = y.shape
    q, k, v = (f(y).reshape(b, t, 2, 3).permute(0, 2, 1, 3) for f in (m.q, m.k, m.v))
    scores = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(3), dim=-1)
    x = x + m.o((scores @ v).permute(0, 2, 1, 3).reshape(b, t, 6))
    x = x + m.mlp(m.norm2(x))
    return m.head(m.norm(x))


for name, norm, activation, nodes in (
    ("preln_gelu", nn.LayerNorm, nn.GELU(), {"e": Items(5, 3, 3), "h": Items(7)}),
    ("prerms_relu", partial(nn.RMSNorm, eps=1e-6), nn.ReLU(), {"e": Items(5, 3, 4), "h": Items(7, 1)}),
):
    PARTS = {
        "embed": nn.Linear(2, 5), "norm1": norm(5), "norm2": norm(5), "norm": norm(5), "q": nn.Linear(5, 6),
        "k": nn.Linear(5, 6), "v": nn.Linear(5, 6), "o": nn.Linear(6, 5), "head": nn.Linear(5, 3),
        "mlp": nn.Sequential(nn.Linear(5, 7), activation, nn.Linear(7, 5)),
    }  # fmt: skip
    group({**nodes, **heads()}, {"[qk].weight": "H*k e", "v.weight": "H*v e", "o.weight": "e H*v"}, dead=6)(
        (name, Of(prenorm, **PARTS), gaussian((4, 4, 2)))
    )


WORDS, TIED = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False)
TIED.weight = WORDS.weight


@group({"e": Items(5, 2, 2), "h": Items(6), **heads()}, fused("attn."), dead=6)
@net(
    tokens(7, (8, 4)),
    wte=WORDS, wpe=nn.Embedding(4, 5), ln_1=nn.LayerNorm(5), attn=SelfAttention(5, 2, 3, causal=True),
    ln_2=nn.LayerNorm(5), c_fc=nn.Linear(5, 6), c_proj=nn.Linear(6, 5), ln_f=nn.LayerNorm(5), lm_head=TIED,
)  # fmt: skip
def gpt(m, ids):
    x = m.wte(ids) + m.wpe(torch.arange(ids.shape[1], device=ids.device))
    x = x + m.attn(m.ln_1(x))
    x = x + m.c_proj(F.gelu(m.c_fc(m.ln_2(x)), approximate="tanh"))
    return m.lm_head(m.ln_f(x))


class RMSNorm(nn.Module):
    """As the Llama models write it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def rotated(x: Tensor) -> Tensor:
    """Rotary positions on the last dimension of ``(B, heads, T, 4)``, halves as pairs."""
    angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.3], dtype=x.dtype)
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


PROJECTIONS = {
    "q_proj": (5, 16), "k_proj": (5, 8), "v_proj": (5, 6), "o_proj": (12, 5), "gate_proj": (5, 6), "up_proj": (5, 6),
    "down_proj": (6, 5), "lm_head": (5, 7),
}  # fmt: skip


@group(
    {"e": Items(5, 3, 4), "h": Items(6, 1, 1), "KV": Items(2, 1, 1), "R": Items(2, parent="KV"),
     "v": Items(3, 1, 1, "KV")},
    {"q_proj": "KV*R*4 e", "k_proj": "KV*4 e", "v_proj": "KV*v e", "o_proj": "e KV*R*v"},
    extra=2,
    note="a scale for each rotated pair of a key-value head, of queries against keys; pairs are not permuted",
)  # fmt: skip
@net(
    tokens(7, (8, 4)),
    embed_tokens=nn.Embedding(7, 5),
    **{name: nn.Linear(*sizes, bias=False) for name, sizes in PROJECTIONS.items()},
    **{name: RMSNorm(5) for name in ("input_norm", "post_norm", "norm")},
)
def llama(m, ids):
    """Rotary positions, two key-value heads for four query heads, SwiGLU, no biases."""
    x = m.embed_tokens(ids)
    y = m.input_norm(x)
    b, t, _ = y.shape
    q, k, v = m.q_proj(y).view(b, t, 4, 4), m.k_proj(y).view(b, t, 2, 4), m.v_proj(y).view(b, t, 2, 3)
    q, k, v = rotated(q.transpose(1, 2)), rotated(k.transpose(1, 2)), v.transpose(1, 2)
    k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    mask = torch.full((t, t), float("-inf"), dtype=y.dtype, device=y.device).triu(1)
    weights = F.softmax(q @ k.transpose(2, 3) / 2 + mask, dim=-1)
    x = x + m.o_proj((weights @ v).transpose(1, 2).reshape(b, t, 12))
    y = m.post_norm(x)
    x = x + m.down_proj(F.silu(m.gate_proj(y)) * m.up_proj(y))
    return m.lm_head(m.norm(x))


for name, gauges, norm_first in (("encoder_layer", 1, False), ("encoder_layer_norm_first", 2, True)):
    layer = nn.TransformerEncoderLayer(6, 2, 5, batch_first=True, norm_first=norm_first)
    module = Of(lambda m, x: m.head(m.layer(m.embed(x))), embed=nn.Linear(2, 6), layer=layer, head=nn.Linear(6, 3))
    group(
        {"e": Items(6, gauges, gauges), "h": Items(5, 1), **heads()},
        fused("layer.self_attn.", ("in_proj_", "out_proj.")),
        dead=6,
    )((name, module, SEQUENCES))


@group(
    {"e": Items(5, 3, 3), "h": Items(7), **heads()},
    {**fused("attention."), "positions": "1 5 e", "token": "1 1 e"},
    dead=6,
)
@net(
    gaussian((8, 1, 4, 4)),
    patches=nn.Conv2d(1, 5, 2, stride=2), token=zeros(1, 1, 5), positions=zeros(1, 5, 5), ln1=nn.LayerNorm(5),
    attention=SelfAttention(5, 2, 3), ln2=nn.LayerNorm(5), ln=nn.LayerNorm(5), head=nn.Linear(5, 3),
    mlp=nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Dropout(0.1), nn.Linear(7, 5)),
)  # fmt: skip
def vit(m, image):
    x = m.patches(image).flatten(2).transpose(1, 2)
    x = torch.cat([m.token.expand(x.shape[0], -1, -1), x], dim=1) + m.positions
    x = x + m.attention(m.ln1(x))
    x = x + m.mlp(m.ln2(x))
    return m.head(m.ln(x)[:, 0])


def of_transformer(name: str, columns: str, stream: str, prefix: str) -> dict[str, str]:
    """Dimensions of one attention of nn.Transformer, whose nodes end with ``name``."""
    rows = f"H{name}*k{name}+H{name}*k{name}+H{name}*v{name}"
    return {f"{prefix}.in_proj_weight": f"{rows} {columns}", f"{prefix}.out_proj": f"{stream} H{name}*v{name}"}


def feed_forward(hidden: str, stream: str, prefix: str) -> dict[str, str]:
    dims = {"linear1": f"{hidden} {stream}", "linear2": f"{stream} {hidden}", "norm*": stream}
    return {f"{prefix}.{name}": text for name, text in dims.items()}


@group(
    {
        "s": Items(4, 1, 1), "t": Items(4, 1, 1), "hs": Items(5, 1), "ht": Items(5, 1),
        **{f"H{i}": Items(2) for i in "abc"}, **{f"{n}{i}": Items(2, 1, 1, f"H{i}") for n in "kv" for i in "abc"},
    },
    {
        **of_transformer("a", "s", "s", "*encoder.layers.0.self_attn"),
        **feed_forward("hs", "s", "*encoder.layers.0"),
        **of_transformer("b", "t", "t", "*decoder.layers.0.self_attn"),
        **feed_forward("ht", "t", "*decoder.layers.0"),
        **of_transformer("c", "t|s|s", "t", "*decoder.layers.0.multihead_attn"),
        "*encoder.norm.*": "s", "*decoder.norm.*": "t", "source": "s 3", "target": "t 2", "head": "3 t",
    },
    dead=12,
    optional=8,
    note="the rows of one matrix read two streams: columns that are no product",
)  # fmt: skip
@net(
    gaussian((6, 4, 3), (6, 3, 2)),
    source=nn.Linear(3, 4), target=nn.Linear(2, 4), head=nn.Linear(4, 3),
    transformer=nn.Transformer(4, 2, 1, 1, 5, batch_first=True),
)  # fmt: skip
def encoder_decoder(m, source, target):
    """nn.Transformer with one layer on each side."""
    return m.head(m.transformer(m.source(source), m.target(target)))


@group(
    {"L": Items(5), "e": Items(4, 1, 1), "h": Items(7, 1), **heads(2, 2, 2)},
    {"latents": "L e", "attention.q_proj_weight": "H*k e", "attention.k_proj_weight": "H*k 3",
     "attention.v_proj_weight": "H*v 3", "attention.in_proj_bias": "H*k+H*k+H*v", "attention.out_proj": "e H*v"},
    dead=4,
)  # fmt: skip
@net(
    gaussian((6, 8, 3)),
    latents=zeros(5, 4), attention=nn.MultiheadAttention(4, 2, kdim=3, vdim=3), head=nn.Linear(4, 2),
    mlp=nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 4)),
)  # fmt: skip
def perceiver(m, x):
    """Latents that are permuted read tokens through nn.MultiheadAttention; their mean is the answer."""
    latents = m.latents.unsqueeze(1).expand(-1, x.shape[1], -1)
    y, _ = m.attention(latents, x, x)
    latents = latents + y
    latents = latents + m.mlp(latents)
    return m.head(latents.mean(0))


@group(
    {"e": Items(5, 2, 2), "t": Items(6), "h": Items(7)},
    constants=1,
    dead=4,
    note="all gains of the first norm against the tokens' MLP, whose last bias the norms behind it take off again",
)
@net(
    SEQUENCES,
    embed=nn.Linear(2, 5), norm1=nn.LayerNorm(5), norm2=nn.LayerNorm(5), norm=nn.LayerNorm(5), head=nn.Linear(5, 3),
    tokens=nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4)),
    channels=nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 5)),
)  # fmt: skip
def mixer(m, x):
    """An MLP over tokens and one over channels."""
    x = m.embed(x)
    x = x + m.tokens(m.norm1(x).transpose(1, 2)).transpose(1, 2)
    x = x + m.channels(m.norm2(x))
    return m.head(m.norm(x).mean(1))


def of_neox(y: Tensor) -> tuple[Tensor, ...]:
    """As GPT-NeoX: rows (heads, 3 * size)."""
    return y.view(*y.shape[:2], 2, 9).chunk(3, dim=-1)


def of_bloom(y: Tensor) -> tuple[Tensor, ...]:
    """As BLOOM: rows (heads, 3, size)."""
    return y.view(*y.shape[:2], 2, 3, 3).unbind(-2)


def of_falcon(y: Tensor) -> tuple[Tensor, ...]:
    """As Falcon with groups: rows (groups, queries of each + 2, size)."""
    y = y.view(*y.shape[:2], 2, 4, 3)
    q, k, v = y[:, :, :, :-2], y[:, :, :, [-2]], y[:, :, :, [-1]]
    return q.flatten(2, 3), k.expand_as(q).flatten(2, 3), v.expand_as(q).flatten(2, 3)


def of_multi_query(y: Tensor) -> tuple[Tensor, ...]:
    """As the first Falcon: rows (heads + 2, size), one key and one value for all heads."""
    y = y.view(*y.shape[:2], 4, 3)
    return y[..., :-2, :], y[..., [-2], :], y[..., [-1], :]


def interleaved(
    name: str, apart: Any, rows: int, nodes: dict[str, Items], dims: dict[str, str], dead: int = 6, values: int = 6,
    slopes: tuple[float, ...] = (),
) -> None:  # fmt: skip
    """Queries, keys and values of one matrix, taken apart by a function of ``(B, T, rows)``."""

    def forward(m, x):
        x = m.embed(x)
        q, k, v = (y.transpose(1, 2) for y in apart(m.qkv(m.norm(x))))
        scores = q @ k.mT / math.sqrt(3)
        if slopes:  # ALiBi
            scores = scores + torch.tensor(slopes, dtype=x.dtype)[:, None, None] * torch.arange(x.shape[1])
        return m.head(x + m.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))

    parts = {"qkv": nn.Linear(5, rows), "proj": nn.Linear(values, 5), "head": nn.Linear(5, 7)}
    module = Of(forward, embed=nn.Linear(2, 5), norm=nn.LayerNorm(5), **parts)
    group({"e": Items(5, 1, 1), **nodes}, dims, dead=dead)((name, module, SEQUENCES))


TRIPLES = {"qkv": "H*(k+k+v) e", "proj": "e H*v"}
interleaved("alibi", of_bloom, 18, {**heads(), "H": Items(2, still=True)}, TRIPLES, slopes=(1.0, 0.3))
interleaved("neox", of_neox, 18, heads(), TRIPLES)
interleaved("bloom", of_bloom, 18, heads(), TRIPLES)
QUERIES = {"R": Items(2, parent="H"), **heads()}
interleaved("falcon", of_falcon, 24, QUERIES, {"qkv": "H*(R*k+k+v) e", "proj": "e H*R*v"}, values=12)
SHARED = {"H": Items(2), "k": Items(3, 1, 1), "v": Items(3, 1, 1)}
interleaved("multi_query", of_multi_query, 12, SHARED, {"qkv": "H*k+k+v e", "proj": "e H*v", "embed": "e 2"}, dead=3)


@group(
    {"e": Items(5, 1, 1), "p": Items(8, 1, 1), **heads()},
    {"in_proj": "H*(k+k+v) e", "pos*.weight": "H*k p", "q_bias": "H*k", "v_bias": "H*v", "proj": "e H*v",
     "relative": "4 p"},
    dead=6,
)  # fmt: skip
@net(
    SEQUENCES,
    embed=nn.Linear(2, 5), relative=zeros(4, 8), in_proj=nn.Linear(5, 18, bias=False), pos_proj=nn.Linear(8, 6),
    pos_q_proj=nn.Linear(8, 6), q_bias=zeros(6), v_bias=zeros(6), proj=nn.Linear(6, 5), norm=nn.LayerNorm(5),
    head=nn.Linear(5, 7),
)  # fmt: skip
def deberta(m, x):
    """As DeBERTa: interleaved rows, biases of queries and of values alone, scores of relative positions."""
    x = m.embed(x)
    b, t, _ = x.shape
    q, k, v = m.in_proj(x).view(b, t, 2, 9).permute(0, 2, 1, 3).chunk(3, dim=-1)
    q, v = q + m.q_bias.view(2, 1, 3), v + m.v_bias.view(2, 1, 3)
    near = (torch.arange(t)[:, None] - torch.arange(t)).clamp(-2, 1) + 2
    pos_k, pos_q = (f(m.relative).view(4, 2, 3).transpose(0, 1) for f in (m.pos_proj, m.pos_q_proj))
    scores = q @ k.mT + (q @ pos_k.mT).gather(-1, near.expand(b, 2, t, t))
    scores = scores + (k @ pos_q.mT).gather(-1, near.expand(b, 2, t, t)).mT
    y = scores.softmax(-1) @ v
    return m.head(m.norm(x + m.proj(y.transpose(1, 2).flatten(2))))


@group({"k": Items(4, 1), "v": Items(5, 1, 1)}, constants=1)
@net(gaussian((8, 3, 2)), q=nn.Linear(2, 4), k=nn.Linear(2, 4), v=nn.Linear(2, 5), out=nn.Linear(5, 3))
def linear_attention(m, x):
    """No softmax: keys and values are summed over first, so that their biases count."""
    state = torch.einsum("btk,btv->bkv", F.relu(m.k(x)), m.v(x))
    return m.out(torch.einsum("btk,bkv->btv", F.relu(m.q(x)), state))
