"""Networks that packages know by name, with files as their own functions write them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from networks.of_packages.architectures import package

from nfn_monomial.tools import compare_checkpoints
from nfn_monomial.tools.definitions.define import DefinitionError, read_definition
from nfn_monomial.tools.files.checkpoints import checkpoints_in

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
WORDS = {"vocab_size": 20}
TEXT, VISION = SIZES | WORDS, SIZES | {"image_size": 8, "patch_size": 4}
OURS: dict[str, dict[str, Any]] = {
    "ViTForImageClassification": VISION,
    "BertForSequenceClassification": TEXT | {"max_position_embeddings": 12},
    "LlamaForCausalLM": TEXT | {"num_key_value_heads": 1, "dtype": "bfloat16"},
    "GPT2LMHeadModel": {"n_embd": 16, "n_layer": 1, "n_head": 2, **WORDS, "bos_token_id": 0, "eos_token_id": 0},
    "T5ForConditionalGeneration": {"d_model": 16, "d_ff": 24, "num_layers": 1, "num_heads": 2, "d_kv": 8, **WORDS},
}


def saved(folder: Path, name: str, seed: int) -> Any:
    """A model of transformers in a folder, as ``save_pretrained`` writes it, and beside it what its trainer writes."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**OURS[name]))
    model.save_pretrained(folder)
    torch.save({"state": {0: {"exp_avg": torch.ones(3)}}}, folder / "optimizer.pt")
    torch.save({"output_dir": "run"}, folder / "training_args.bin")
    return model


@pytest.mark.networks
@pytest.mark.parametrize("name", OURS)
def test_a_folder_of_transformers_says_what_network_it_is(name: str, tmp_path: Path) -> None:
    model = saved(tmp_path / "checkpoint-9", name, 0)
    saved(tmp_path / "checkpoint-10", name, 1)
    assert [path.parent.name for path in checkpoints_in(tmp_path)] == ["checkpoint-9", "checkpoint-10"]
    net = read_definition(f"hf:{tmp_path / 'checkpoint-9'}")
    assert set(net.shapes) == set(model.state_dict())
    torch.save({f"module.{key}": t for key, t in model.state_dict().items()}, tmp_path / "parallel.pt")
    same = compare_checkpoints(tmp_path / "checkpoint-9", tmp_path / "parallel.pt", net=net)
    assert same.to_json()["same_function"]
    others = compare_checkpoints(tmp_path / "checkpoint-9", tmp_path / "checkpoint-10", net=net)
    assert not others.to_json()["same_function"]


@pytest.mark.networks
def test_folders_that_cannot_be_built_are_named(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    wrong: dict[str, tuple[Any, str]] = {
        "list": ([1], r"config\.json is no configuration: give the class"),
        "code": ({"model_type": "bert", "auto_map": {"AutoModel": "net.Net"}}, "auto_map.* is not run: give the class"),
        "other": ({"model_type": "bert", "architectures": ["pipeline"]}, "names 'pipeline', which is no network of tr"),
        "unknown": ({"model_type": "nobody"}, "cannot be built: .*nobody"),
        "sound": (
            {"model_type": "wav2vec2", **SIZES, "conv_dim": [8] * 7},
            "what its inputs are: give their shape, --",
        ),
    }
    for name, (config, message) in wrong.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
        with pytest.raises(DefinitionError, match=message):
            read_definition(f"hf:{tmp_path / name}")
    with pytest.raises(FileNotFoundError, match=r"config\.json: no such file"):
        read_definition(f"hf:{tmp_path}")
    saved(tmp_path / "small", "BertForSequenceClassification", 0)
    wider = read_definition(f"hf:{tmp_path / 'small'}", arguments={"intermediate_size": 32})
    assert wider.shapes["bert.encoder.layer.0.intermediate.dense.weight"] == (32, 16)


@pytest.mark.gallery
@pytest.mark.parametrize(
    ("kind", "small", "size"), [("timm", "test_resnet", (3, 160, 160)), ("torchvision", "squeezenet1_1", (3, 224, 224))]
)
def test_networks_by_name(kind: str, small: str, size: tuple[int, ...]) -> None:
    package(kind)
    net = read_definition(f"{kind}:resnet18", (3, 32, 32), 3, {"num_classes": 10})
    assert net.shapes["fc.weight"] == (10, 512)
    assert net.inputs[0].shape == (3, 3, 32, 32)
    assert read_definition(f"{kind}:{small}").input_shape == size
    for name, message in (("no_such_network", "cannot be built: "), ("hf-hub:a/b", "is no name of a network of")):
        with pytest.raises(DefinitionError, match=message):
            read_definition(f"{kind}:{name}")
