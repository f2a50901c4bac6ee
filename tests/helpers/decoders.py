"""Small decoders with the module names that Hugging Face gives them, as tables of quantisers name them."""

from __future__ import annotations

from typing import Any

import torch
from fibres import turned
from torch import Tensor, nn
from torch.nn import functional as F

WORDS, WIDTH, HEAD = 11, 8, 4


class RMSNorm(nn.Module):
    def __init__(self, size: int = WIDTH, *, shifted: bool = False) -> None:
        super().__init__()
        self.weight, self.shifted = nn.Parameter(torch.rand(size) + 0.5), shifted

    def forward(self, x: Tensor) -> Tensor:
        gain = 1 + self.weight if self.shifted else self.weight
        return gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.1))


class Attention(nn.Module):
    """Two heads of queries on as many of keys and values as asked for; rotary but in OPT."""

    def __init__(self, *, keys: int, bias: bool, rotary: bool, out: str = "o_proj") -> None:
        super().__init__()
        self.out, self.rotary = out, rotary
        self.q_proj = nn.Linear(WIDTH, 2 * HEAD, bias)
        self.k_proj = nn.Linear(WIDTH, keys * HEAD, bias)
        self.v_proj = nn.Linear(WIDTH, keys * HEAD, bias)
        setattr(self, out, nn.Linear(2 * HEAD, WIDTH, out == "out_proj"))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.rotary:
            q, k = turned(q), turned(k)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        weights = (q @ k.transpose(-1, -2) / HEAD**0.5).softmax(-1)
        return getattr(self, self.out)((weights @ v).transpose(1, 2).flatten(2))


class FusedAttention(nn.Module):
    """As in Phi-3: queries, keys and values are one layer."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.qkv_proj, self.o_proj = nn.Linear(WIDTH, 6 * HEAD, bias), nn.Linear(2 * HEAD, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, HEAD)).transpose(1, 2) for t in self.qkv_proj(x).chunk(3, -1))
        weights = (turned(q) @ turned(k).transpose(-1, -2) / HEAD**0.5).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


class FusedMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Linear(WIDTH, 12, bias=False), nn.Linear(6, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(up * F.silu(gate))


class MLP(nn.Module):
    def __init__(self, *names: str, size: int = 6) -> None:
        super().__init__()
        self.names = names or ("gate_proj", "up_proj", "down_proj")
        for name, sizes in zip(self.names, ((WIDTH, size), (WIDTH, size), (size, WIDTH)), strict=True):
            setattr(self, name, nn.Linear(*sizes, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        gate, up, down = (getattr(self, name) for name in self.names)
        return down(F.silu(gate(x)) * up(x))


class Experts(nn.Module):
    """All experts see all tokens; those that the router does not choose count nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3, bias=False)
        self.experts = nn.ModuleList(MLP("w1", "w3", "w2") for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        kept = torch.zeros_like(shares).scatter(-1, shares.topk(2, -1).indices, 1)
        outputs = torch.stack([expert(x) for expert in self.experts], -1)
        return (outputs * (shares * kept).unsqueeze(-2)).sum(-1)


class LlamaLayer(nn.Module):
    def __init__(self, *, keys: int, bias: bool, experts: bool, shifted: bool, fused: bool) -> None:
        super().__init__()
        self.experts = experts
        self.self_attn = FusedAttention(bias) if fused else Attention(keys=keys, bias=bias, rotary=True)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(shifted=shifted), RMSNorm(shifted=shifted)
        setattr(
            self, "block_sparse_moe" if experts else "mlp", Experts() if experts else FusedMLP() if fused else MLP()
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + (self.block_sparse_moe if self.experts else self.mlp)(self.post_attention_layernorm(x))


class OPTLayer(nn.Module):
    def __init__(self, activation: str) -> None:
        super().__init__()
        self.act = getattr(F, activation)
        self.self_attn = Attention(keys=2, bias=True, rotary=False, out="out_proj")
        self.self_attn_layer_norm, self.final_layer_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 6), nn.Linear(6, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        return x + self.fc2(self.act(self.fc1(self.final_layer_norm(x))))


class PhiLayer(nn.Module):
    """Attention and feed-forward side by side, behind one norm."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.input_layernorm = Attention(keys=2, bias=True, rotary=True), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential()
        self.mlp.fc1, self.mlp.fc2 = nn.Linear(WIDTH, 6), nn.Linear(6, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.input_layernorm(x)
        return x + self.self_attn(y) + self.mlp.fc2(F.gelu(self.mlp.fc1(y)))


class Decoder(nn.Module):
    """``model.embed_tokens``, ``model.layers``, ``model.norm`` and ``lm_head``, which may be tied to the tokens."""

    def __init__(
        self, layer: type[nn.Module], *, layers: int = 2, tied: bool = False, norm: nn.Module, **options: Any
    ) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.model.layers = nn.ModuleList(layer(**options) for _ in range(layers))
        self.model.norm, self.lm_head = norm, nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x)
        return self.lm_head(self.model.norm(x))


def llama(*, layers: int = 2, tied: bool = False, shifted: bool = False, **options: Any) -> Decoder:
    """Llama; with biases of queries, keys and values Qwen2, with experts Mixtral, with gains ``1 + w`` Gemma."""
    torch.manual_seed(0)
    options = {"keys": 2, "bias": False, "experts": False, "fused": False, "shifted": shifted} | options
    return Decoder(LlamaLayer, layers=layers, tied=tied, norm=RMSNorm(shifted=shifted), **options)


def opt(activation: str = "relu") -> Decoder:
    torch.manual_seed(0)
    return Decoder(OPTLayer, activation=activation, norm=nn.LayerNorm(WIDTH))


def phi() -> Decoder:
    torch.manual_seed(0)
    return Decoder(PhiLayer, norm=nn.LayerNorm(WIDTH))


def example_inputs() -> Tensor:
    return torch.randint(WORDS, (3, 5), generator=torch.Generator().manual_seed(0))
