"""LoRA adapters of `peft` without their base: the low-rank pairs, and the function that they add to its layers.

A pair adds ``factor * B A x`` to the output of a layer of the base. The factor is no tensor: ``adapter_config.json``
beside the tensors says whether it is ``alpha / r`` or ``alpha / sqrt(r)``, and may state both numbers for each layer.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nfn_monomial.checks import listed, shown
from nfn_monomial.tools.files.checkpoints import Checkpoint
from nfn_monomial.tools.files.untrusted import FileError, read_json

from .chains import plant
from .define import Definition, define

__all__ = ["PAIRS", "Adapter", "pairs_of"]

PAIRS = "the low-rank pairs of an adapter"
CONFIG = "adapter_config.json"
A, B, BIAS = ".lora_A.weight", ".lora_B.weight", ".lora_B.bias"
MERGE = "put the adapter into its base by model.merge_and_unload() and save that"
OTHER_TENSORS = {
    r"\.lora_magnitude_vector": "magnitudes of DoRA, which depend on the base",
    r"\.lora_embedding_[AB]$": "adapters of embeddings",
    r"\.base_layer\.": "tensors of the base",
}
FACTOR = {"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"}
# How the pairs were trained, where they are, and what their tensors show. Peft sets fan_in_fan_out by the layer.
OF_NO_CONSEQUENCE = {
    "auto_mapping", "base_model_class", "base_model_name_or_path", "bias", "corda_config", "eva_config",
    "exclude_modules", "fan_in_fan_out", "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config",
    "lora_bias", "lora_dropout", "lora_ga_config", "megatron_core", "merge_weights", "modules_to_save", "peft_type",
    "peft_version", "qalora_group_size", "revision", "target_modules", "task_type",
}  # fmt: skip
STARTS = (None, False, True, "gaussian", "eva", "orthogonal")  # of the pairs alone; others change the base as well
PATTERNS = 16  # with signs of repetition; the more of those, the longer a pattern may look for its place
REPETITION = re.compile(r"[*+?{]")
NAME = 300  # characters of a layer's name that is looked up by such patterns


def pairs_of(checkpoint: Checkpoint) -> Definition | None:
    """Returns the adapter of `peft` in a checkpoint, as a network without its base; None if there are no pairs.

    Raises:
        FileError: if there are other tensors, because `peft` uses them in another way.
    """
    shapes = checkpoint.shapes
    names = [key.removesuffix(A) for key in shapes if key.endswith(A)]
    if not names:
        return None
    others = set(shapes).difference(name + side for name in names for side in (A, B, BIAS))
    odd = [name for name in names if not len(shapes[name + A]) == len(shapes.get(name + B, ())) == 2]
    odd += [name for name in names if name not in odd and shapes[name + A][0] != shapes[name + B][1]]
    if wrong := [*sorted(others), *(name + A for name in odd)]:
        known = (words for pattern, words in OTHER_TENSORS.items() if re.search(pattern, wrong[0]))
        kind = next(known, "modules that were saved whole" if others else "")
        raise FileError(
            f"{checkpoint.path} has {listed(wrong)}, expected pairs *{A} (rank, inputs) and *{B} (outputs, rank), and "
            f"nothing else{kind and f', not {kind}'}: {MERGE}"
        )
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(2, shapes[name + A][1], generator=generator) for name in names)
    pairs = LoraPairs(
        {name: (shapes[name + A], shapes[name + B]) for name in names}, {n for n in names if n + BIAS in shapes}
    )
    return dataclasses.replace(define(pairs, inputs), name=PAIRS)


class LoraPairs(nn.Module):
    """Pairs of matrices by dotted names, with the shapes of A, ``(rank, inputs)``, and B, ``(outputs, rank)``."""

    def __init__(
        self, shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]], biased: Collection[str] = ()
    ) -> None:
        super().__init__()
        self._names = list(shapes)
        for name, ((rank, inputs), (outputs, _)) in shapes.items():
            plant(self, f"{name}.lora_A", nn.Linear(inputs, rank, bias=False))
            plant(self, f"{name}.lora_B", nn.Linear(rank, outputs, bias=name in biased))

    def forward(self, *inputs: Tensor) -> Any:
        """Maps an input ``(B, inputs)`` for each pair to its ``B A x``, where B includes the factor."""
        both = zip(self._names, inputs, strict=True)
        return tuple(self.get_submodule(f"{n}.lora_B")(self.get_submodule(f"{n}.lora_A")(x)) for n, x in both)


class Adapter(Checkpoint):
    """A checkpoint of pairs: B and its bias are multiplied by the factor when read, and divided by it when written.

    Raises:
        FileError: if the configuration beside it makes another function of the pairs, or does not fit them.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint, self.path, self.shapes = checkpoint, checkpoint.path, checkpoint.shapes
        self._config = checkpoint.path.with_name(CONFIG)
        self._settings = read_settings(self._config) if self._config.is_file() else None
        self._factors = {} if self._settings is None else factors_of(self._config, self._settings, self.shapes)

    @property
    def name(self) -> str:
        return self._checkpoint.name

    @property
    def files(self) -> list[Path]:
        return self._checkpoint.files

    def renamed(self, stem: str) -> str:
        return self._checkpoint.renamed(stem)

    def outputs(self, name: str) -> list[Path]:
        return self._checkpoint.outputs(name)

    def stored(self, key: str) -> Tensor:
        return self._checkpoint.stored(key)

    def __getitem__(self, key: str) -> Tensor:
        return self._times(key, self._checkpoint[key], 1)

    def write(self, folder: Path, name: str, changed: Mapping[str, Tensor]) -> None:
        self._checkpoint.write(folder, name, {key: self._times(key, tensor, -1) for key, tensor in changed.items()})

    def _times(self, key: str, tensor: Tensor, power: int) -> Tensor:
        factor = self._factors.get(key, 1.0) ** power
        if factor == 1.0 or not tensor.is_floating_point():
            return tensor
        exact = tensor.double() * factor
        rounded = exact.to(tensor.dtype)
        if (rounded.double() - exact).norm() > torch.finfo(tensor.dtype).eps * exact.norm():
            raise FileError(
                f"{self.path}: {key} times {factor:.3g} is out of the range of {tensor.dtype}: convert it to float32"
            )
        return rounded

    def doubt_beside(self, first: Checkpoint) -> str:
        """Returns a note for a comparison with another adapter: that their bases differ, or factors are not known.

        Raises:
            FileError: if only one of the two factors is known.
        """
        if not isinstance(first, Adapter) or (self._settings is None) != (first._settings is None):
            there, lacking = (self.path, first.path) if self._settings is not None else (first.path, self.path)
            raise FileError(
                f"{lacking} has no {CONFIG} beside it, as {there} has: the factor of its pairs is not known"
            )
        if self._settings is None or first._settings is None:
            return f"There is no {CONFIG} beside {self.path}, so the factor of its pairs is left out."
        base, other = (settings.get("base_model_name_or_path") for settings in (self._settings, first._settings))
        if base == other:
            return ""
        return (
            f"{self.path} was made for the base {shown(base)}, {first.path} for {shown(other)}: only what they add to "
            "their bases is compared."
        )


def read_settings(path: Path) -> Mapping[str, Any]:
    """Reads the configuration of pairs, and refuses one by which `peft` uses them in another way than `LoraPairs`."""
    settings = read_json(path, "copy it again")
    if not isinstance(settings, Mapping):
        raise FileError(f"{path} is no configuration of an adapter: copy it again")
    odd = {name: value for name, value in settings.items() if value and name not in FACTOR | OF_NO_CONSEQUENCE}
    odd = {name: value for name, value in odd.items() if name != "init_lora_weights" or value not in STARTS}
    if (kind := settings.get("peft_type", "LORA")) != "LORA":
        odd["peft_type"] = kind
    if odd:
        words = ", ".join(f"{name} is {shown(value)}" for name, value in odd.items())
        raise FileError(f"{path}: {words}; it is not known what function the pairs then have: {MERGE}")
    return settings


def factors_of(path: Path, settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, float]:
    """Computes the factors of pairs: key of a B, or of its bias -> its factor."""
    ranks = patterns_of(path, "rank_pattern", settings.get("rank_pattern") or {})
    alphas = patterns_of(path, "alpha_pattern", settings.get("alpha_pattern") or {})
    factors: dict[str, float] = {}
    for key in shapes:
        if not key.endswith(A):
            continue
        name = key.removesuffix(A)
        layer = name.removeprefix("base_model.model.")
        rank, alpha = ranks(layer, settings.get("r")), alphas(layer, settings.get("lora_alpha"))
        if rank != shapes[key][0]:
            raise FileError(
                f"{path}: the rank of {layer} is {shown(rank)}, but {key} is {shapes[key]}: copy both again"
            )
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not alpha:
            raise FileError(
                f"{path}: the alpha of {layer} is {shown(alpha)}, expected a number other than 0: copy it again"
            )
        factor = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
        factors |= {name + side: factor for side in (B, BIAS) if name + side in shapes}
    return factors


def patterns_of(path: Path, name: str, values: Any) -> Callable[[str, Any], Any]:
    """Compiles values by patterns of layers' names into a lookup (layer, default) -> value, as in `peft`.

    The first pattern that fits the end of a name counts.
    """
    label = f"{path}: {name}"
    if not isinstance(values, Mapping):
        raise FileError(f"{label} is {shown(values)}, expected an object: copy it again")
    repeating = [pattern for pattern in values if REPETITION.search(pattern)]
    slow = [p for p in repeating if len(REPETITION.findall(p)) > 2 or re.search(r"\)[*+?{]", p)]
    if slow or len(repeating) > PATTERNS:
        raise FileError(f"{label} has {listed(slow or repeating)}, more than is looked up here: {MERGE}")
    compiled = []
    for pattern, value in values.items():
        try:
            compiled.append((re.compile(rf"(.*\.)?({pattern})$"), value))
        except (re.error, RecursionError, OverflowError) as error:
            raise FileError(f"{label} has {shown(pattern)}, no pattern ({error}): copy it again") from error

    def value_of(layer: str, default: Any) -> Any:
        if repeating and len(layer) > NAME:
            raise FileError(f"{label}: {shown(layer)} is too long to be looked up: {MERGE}")
        return next((value for pattern, value in compiled if pattern.match(layer)), default)

    return value_of
