"""Networks of the package transformers at random weights, as small as the caller says."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn


class Sizes(NamedTuple):
    """Sizes of a transformer: its stream, the hidden layer of its MLPs, its blocks, its query heads, its vocabulary.

    It has half as many key-value heads where they are grouped. Sequences are as long as it has positions.
    """

    width: int = 32
    hidden: int = 48
    blocks: int = 2
    heads: int = 4
    words: int = 50
    positions: int = 8

    def common(self) -> dict[str, int]:
        """As most configurations name them."""
        return {
            "hidden_size": self.width,
            "intermediate_size": self.hidden,
            "num_hidden_layers": self.blocks,
            "num_attention_heads": self.heads,
        }

    def text(self) -> dict[str, int]:
        return self.common() | {"vocab_size": self.words, "max_position_embeddings": self.positions}

    def grouped(self) -> dict[str, int]:
        return self.text() | {"num_key_value_heads": self.heads // 2}


class Logits(nn.Module):
    """A model of transformers as a function of one tensor: word numbers ``(B, T)`` or images ``(B, 3, 8, 8)``."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, **self.options).logits


class Model(NamedTuple):
    """How a model is built from the package, sizes and options of its configuration; inputs of it; its attention."""

    build: Callable[..., Logits]
    inputs: Callable[[Sizes], Tensor]
    attention: str = "sdpa"

    def __call__(self, sizes: Sizes, **options: Any) -> Logits:
        """The model with random weights; skips the test where the package is not there."""
        return self.build(pytest.importorskip("transformers"), sizes, **options)


def bert(package: Any, sizes: Sizes, **options: Any) -> Logits:
    return Logits(package.BertForMaskedLM(package.BertConfig(**sizes.text(), **options)))


def gpt2(package: Any, sizes: Sizes, **options: Any) -> Logits:
    names = {"n_embd": sizes.width, "n_inner": sizes.hidden, "n_layer": sizes.blocks, "n_head": sizes.heads}
    tokens = {"vocab_size": sizes.words, "n_positions": sizes.positions, "bos_token_id": 0, "eos_token_id": 0}
    return Logits(package.GPT2LMHeadModel(package.GPT2Config(**names, **tokens, **options)), use_cache=False)


def llama(package: Any, sizes: Sizes, **options: Any) -> Logits:
    return Logits(package.LlamaForCausalLM(package.LlamaConfig(**sizes.grouped(), **options)), use_cache=False)


def qwen2(package: Any, sizes: Sizes, **options: Any) -> Logits:
    return Logits(package.Qwen2ForCausalLM(package.Qwen2Config(**sizes.grouped(), **options)), use_cache=False)


def vit(package: Any, sizes: Sizes, **options: Any) -> Logits:
    config = package.ViTConfig(**sizes.common(), image_size=8, patch_size=4, num_labels=5, **options)
    return Logits(package.ViTForImageClassification(config))


def neox(package: Any, sizes: Sizes, **options: Any) -> Logits:
    config = package.GPTNeoXConfig(**sizes.text(), rotary_pct=0.5, **options)
    return Logits(package.GPTNeoXForCausalLM(config), use_cache=False)


def bloom(package: Any, sizes: Sizes, **options: Any) -> Logits:
    names = {"hidden_size": sizes.width, "n_layer": sizes.blocks, "n_head": sizes.heads, "vocab_size": sizes.words}
    return Logits(package.BloomForCausalLM(package.BloomConfig(**names, **options)), use_cache=False)


def falcon(package: Any, sizes: Sizes, **options: Any) -> Logits:
    groups = {"new_decoder_architecture": True, "num_kv_heads": sizes.heads // 2, "ffn_hidden_size": sizes.hidden}
    config = package.FalconConfig(**sizes.text(), **groups, **options)
    return Logits(package.FalconForCausalLM(config), use_cache=False)


def deberta(package: Any, sizes: Sizes, **options: Any) -> Logits:
    relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    return Logits(package.DebertaForMaskedLM(package.DebertaConfig(**sizes.text(), **relative, **options)))


def words(sizes: Sizes) -> Tensor:
    return torch.randint(sizes.words, (4, sizes.positions))


def images(_: Sizes) -> Tensor:
    return torch.randn(4, 3, 8, 8)


MODELS = {
    "bert": Model(bert, words),
    "gpt2": Model(gpt2, words),
    "llama": Model(llama, words),
    "qwen2": Model(qwen2, words),
    "vit": Model(vit, images),
    "neox": Model(neox, words),
    "bloom": Model(bloom, words, "eager"),
    "falcon": Model(falcon, words),
    "deberta": Model(deberta, words, "eager"),
}
