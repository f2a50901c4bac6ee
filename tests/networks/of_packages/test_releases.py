"""Folders of transformers of other releases and with other configurations: read as transformers reads them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from nfn_monomial.tools import align_checkpoints, compare_checkpoints
from nfn_monomial.tools.files.untrusted import FileError

pytestmark = pytest.mark.networks

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 20}
GPT = {
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "vocab_size": 20,
    "n_positions": 12,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
MODELS: dict[str, dict[str, Any]] = {
    "BertModel": SIZES | {"max_position_embeddings": 12},
    "LlamaForCausalLM": SIZES | {"num_key_value_heads": 2},
    "GPT2LMHeadModel": GPT | {"eos_token_id": 0},
}


def folder(path: Path, name: str) -> dict[str, Tensor]:
    """A model in a folder, and its tensors."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**MODELS[name])).eval()
    with torch.no_grad():
        for t in model.parameters():
            t.copy_(torch.randn_like(t) * (0.5 if t.ndim > 1 else 0.1) + (t.ndim == 1))
    model.save_pretrained(path)
    return safetensors.torch.load_file(path / "model.safetensors")


def variant(
    path: Path,
    like: Path,
    tensors: dict[str, Tensor] | None = None,
    configuration: dict[str, Any] | None = None,
) -> Path:
    shutil.copytree(like, path)
    if tensors is not None:
        safetensors.torch.save_file(tensors, path / "model.safetensors", {"format": "pt"})
    stated = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps(stated | (configuration or {})), encoding="utf-8")
    return path


def renamed(**names: str) -> Callable[[str], str]:
    def rename(key: str) -> str:
        for old, new in names.items():
            key = key.replace(f"LayerNorm.{old}", f"LayerNorm.{new}")
        return key

    return rename


def test_older_names_and_buffers_of_bert(tmp_path: Path) -> None:
    state = folder(tmp_path / "a", "BertModel")
    places = {"embeddings.position_ids": torch.arange(12)[None]}
    prefixed = {f"bert.{key}": t for key, t in (state | places).items()}
    head = {"cls.predictions.bias": torch.zeros(20), "cls.predictions.decoder.bias": torch.zeros(20)}
    variants = {
        "places": state | places,
        "prefix": prefixed,
        "head": prefixed | head,
        "older": {renamed(weight="gamma", bias="beta")(key): t for key, t in state.items()},
    }
    net = f"hf:{tmp_path / 'a'}"
    for name, tensors in variants.items():
        other = variant(tmp_path / name, tmp_path / "a", tensors)
        assert compare_checkpoints(tmp_path / "a", other, net=net).to_json()["same_function"], name
    short = {key: t for key, t in state.items() if "pooler" not in key}
    with pytest.raises(FileError, match=r"of a pooler, which the file does not have: name the network without it"):
        compare_checkpoints(tmp_path / "a", variant(tmp_path / "short", tmp_path / "a", short), net=net)


def test_buffers_that_decoders_had(tmp_path: Path) -> None:
    state = folder(tmp_path / "llama", "LlamaForCausalLM")
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    other = variant(tmp_path / "llama-old", tmp_path / "llama", state | frequencies)
    assert compare_checkpoints(tmp_path / "llama", other, net=f"hf:{tmp_path / 'llama'}").to_json()["same_function"]
    state = folder(tmp_path / "gpt", "GPT2LMHeadModel")
    masks = {
        "transformer.h.0.attn.bias": torch.ones(1, 1, 12, 12).tril().bool(),
        "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
    }
    other = variant(tmp_path / "gpt-old", tmp_path / "gpt", state | masks)
    assert compare_checkpoints(tmp_path / "gpt", other, net=f"hf:{tmp_path / 'gpt'}").to_json()["same_function"]


CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("GPT2LMHeadModel", {"n_head": 4}, "n_head 2 and 4"),
    ("GPT2LMHeadModel", {"activation_function": "relu"}, 'activation_function "gelu_new" and "relu"'),
    (
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10.0}},
        "rope_theta 10000.0 and 10.0",
    ),
    ("LlamaForCausalLM", {"rms_norm_eps": 0.1}, "rms_norm_eps 1e-06 and 0.1"),
]


@pytest.mark.parametrize(("name", "change", "words"), CHANGES)
def test_each_network_is_built_as_the_configuration_beside_it_says(
    name: str, change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder(tmp_path / "a", name)
    net = f"hf:{tmp_path / 'a'}"
    other = variant(tmp_path / "b", tmp_path / "a", configuration=change)
    found = compare_checkpoints(tmp_path / "a", other, net=net)
    assert "not the same: the outputs differ" in found.summary
    assert words in found.summary
    with pytest.raises(FileError, match=r"a and b differ in .*there is no line"):
        align_checkpoints(tmp_path / "a", other, net=net)
    usual = variant(tmp_path / "c", tmp_path / "a", configuration={"transformers_version": "4.0", "use_cache": False})
    assert compare_checkpoints(tmp_path / "a", usual, net=net).to_json()["same_function"]
