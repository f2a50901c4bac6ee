"""Networks of packages, by name: of transformers from a folder's ``config.json``, of timm, of torchvision.

They are built with random weights. Nothing is downloaded, and no code runs that is not of the installed package.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from nfn_monomial.checks import shown
from nfn_monomial.errors import MonomialError
from nfn_monomial.tools.files.untrusted import damaged, open_regular

from .imports import DefinitionError

__all__ = ["CONFIG", "PACKAGES", "built", "configuration_of", "ignored_by", "renaming_of", "significant"]

BATCH, TOKENS = 2, 16  # of example inputs
CONFIG = "config.json"
CONFIG_BYTES = 2**25
_NO_MATTER = re.compile(
    r"(_?name_or_path|_commit_hash|(transformers|unsloth|adapters?)_version|(torch_)?dtype|architectures|use_cache|"
    r"_?(attn|experts)_implementation\w*|return_dict\w*|output_(hidden_states|attentions|scores|router_logits)|torchscript|"
    r"initiali[sz]er_(range|factor|std)|init_std|\w*dropout\w*|drop_(path|connect)?_?rate|\w*_p?drop|tokenizer_class|problem_type|"
    r"id2label|label2id|task_specific_params|finetuning_task|seed|lr|learning_rate|weight_decay|batch_size|epochs?|output_dir|"
    r"gradient_checkpointing\w*|(min|max)_length|do_sample|num_beams)"
)
"""Entries of configurations that do not affect the function of a network in eval mode."""

Inputs = Callable[[Sequence[int] | None, int], Any]
"""Makes example inputs of a shape without the batch, by default the network's own, and of a batch size."""


def built(text: str, arguments: Mapping[str, Any]) -> tuple[nn.Module, Inputs]:
    """Builds the network that ``hf:FOLDER``, ``timm:NAME`` or ``torchvision:NAME`` names, with its example inputs.

    Args:
        text: as a user gives it.
        arguments: of timm's or torchvision's function; of transformers, entries of the configuration.

    Raises:
        DefinitionError: naming what cannot be used, and the way out.
    """
    kind, _, name = text.partition(":")
    try:
        package = importlib.import_module({"hf": "transformers"}.get(kind, kind))
    except ImportError as error:
        extra = "'nfn-monomial[networks]'" if kind == "hf" else kind
        raise DefinitionError(f"--net {text} needs a package ({error}): pip install {extra}") from error
    if kind != "hf" and not re.fullmatch(r"[\w.]+", name):
        raise DefinitionError(f"--net {text}: {name!r} is no name of a network of {kind}")
    try:
        return PACKAGES[kind](package, name, dict(arguments))
    except MonomialError:
        raise
    except Exception as error:  # packages raise what they like
        raise DefinitionError(f"--net {text} cannot be built: {type(error).__name__}: {error}") from error


def _of_transformers(package: ModuleType, name: str, arguments: dict[str, Any]) -> tuple[nn.Module, Inputs]:
    path = Path(name, CONFIG)
    with damaged(path, "give the folder of a network that transformers saved"), open_regular(path) as file:
        stated = json.loads(file.read(CONFIG_BYTES))
    if not isinstance(stated, dict) or "auto_map" in stated:
        odd = (
            "names code of its own (auto_map), which is not run" if isinstance(stated, dict) else "is no configuration"
        )
        raise DefinitionError(f"{path} {odd}: give the class by --net module.py:Class")
    config = package.AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=False, **arguments)
    config.use_cache = False
    config._attn_implementation = "eager"
    config._experts_implementation = "batched_mm"
    module: nn.Module
    if config.architectures:
        cls: Any = getattr(package, str(config.architectures[0]), None)
        if not (isinstance(cls, type) and issubclass(cls, package.PreTrainedModel)):
            raise DefinitionError(f"{path} names {shown(config.architectures[0])}, which is no network of transformers")
        module = cls(config)
    else:
        module = package.AutoModel.from_config(config)
    kind, text = module.main_input_name, config.get_text_config()

    def inputs(shape: Sequence[int] | None, batch: int) -> Any:
        if kind == "input_ids":
            most = getattr(text, "max_position_embeddings", None) or TOKENS
            ids = torch.randint(text.vocab_size, (batch, *(shape or (min(TOKENS, most),))))
            return {kind: ids, "decoder_input_ids": ids.clone()} if config.is_encoder_decoder else {kind: ids}
        if kind == "pixel_values" and shape is None and (size := getattr(config, "image_size", None)):
            height, width = size if isinstance(size, list | tuple) else (size, size)
            shape = (getattr(config, "num_channels", 3), height, width)
        return None if shape is None else {kind: torch.randn(batch, *shape)}

    return module, inputs


def _of_timm(package: ModuleType, name: str, arguments: dict[str, Any]) -> tuple[nn.Module, Inputs]:
    module: nn.Module = package.create_model(name, pretrained=False, **arguments)
    channels, *size = package.data.resolve_model_data_config(module)["input_size"]
    asked = arguments.get("img_size")
    if asked is not None:
        size = list(asked) if isinstance(asked, list | tuple) else [asked, asked]
    return module, images_of([arguments.get("in_chans", channels), *size])


def _of_torchvision(package: ModuleType, name: str, arguments: dict[str, Any]) -> tuple[nn.Module, Inputs]:
    build = package.models.get_model_builder(name)
    stated = inspect.signature(build).parameters
    module: nn.Module = build(**{key: None for key in ("weights", "weights_backbone") if key in stated}, **arguments)
    sizes = [224]
    with contextlib.suppress(Exception):  # some have no trained weights
        sizes = package.models.get_model_weights(name).DEFAULT.transforms.keywords["crop_size"]
    size = sizes if isinstance(sizes, int) else sizes[0]
    return module, images_of([3, size, size])


def images_of(usual: Sequence[int]) -> Inputs:
    """Makes random images, by default of the shape that is usual for the network."""
    return lambda shape, batch: torch.randn(batch, *(shape or usual))


PACKAGES = {"hf": _of_transformers, "timm": _of_timm, "torchvision": _of_torchvision}


def is_of_transformers(module: nn.Module) -> bool:
    """Checks whether a module is a network of transformers, which need not be installed."""
    package = sys.modules.get("transformers")
    return package is not None and isinstance(module, package.PreTrainedModel)


def renaming_of(module: nn.Module) -> Callable[[str], str]:
    """Returns the renaming of keys in files, for a class of transformers that saves other keys than it has."""
    if not is_of_transformers(module):
        return str
    try:
        loading = importlib.import_module("transformers.core_model_loading")
        mapping = importlib.import_module("transformers.conversion_mapping").get_model_conversion_mapping(module)
    except ImportError:  # before 5
        return str
    renamings = [entry for entry in mapping if isinstance(entry, loading.WeightRenaming)]
    state = module.state_dict()

    def renamed(key: str) -> str:
        if key in state:
            return key
        return str(loading.rename_source_key(key, renamings, [], module.base_model_prefix, state)[0])

    return renamed


def ignored_by(module: nn.Module) -> tuple[str, ...]:
    """Returns patterns of keys that a class of transformers ignores in files, such as buffers of older releases."""
    if not is_of_transformers(module):
        return ()
    buffers = [name.rpartition(".")[2] for name, _ in module.named_buffers()]
    older = {"inv_freq": r"rotary_emb\.inv_freq", "position_ids": r"(^|\.)position_ids$"}
    ignored: Any = module._keys_to_ignore_on_load_unexpected or ()
    return (*map(str, ignored), *(pattern for name, pattern in older.items() if name in buffers))


def significant(configuration: Mapping[str, Any]) -> dict[str, str]:
    """Returns the entries of a configuration that may matter to the function: dotted name -> JSON."""
    entries: dict[str, str] = {}
    for name, value in configuration.items():
        if _NO_MATTER.fullmatch(str(name)):
            continue
        if isinstance(value, Mapping):
            entries |= {f"{name}.{key}": text for key, text in significant(value).items()}
        elif value is not None:  # None means the same as no entry
            entries[str(name)] = json.dumps(value, sort_keys=True, default=str)
    return entries


def configuration_of(module: nn.Module) -> dict[str, str]:
    """Returns the significant entries of the configuration of a network of transformers; none for others."""
    network: Any = module
    return significant(network.config.to_dict()) if is_of_transformers(module) else {}
