"""The files of a mixed zoo: checked when read, whole or not at all when written.

A mixed zoo is a folder of ``zoo.json`` (the configuration; the number of architectures once all are there) and one
safetensors file per architecture, whose networks are stacked: ``weight.i`` ``(N, out, in, *kernel)``, ``bias.i``
``(N, out)``, ``accuracy`` ``(N,)``. The architecture and the networks' recipes are JSON in the file's metadata.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.make.mixed_recipes import Architecture
from nfn_monomial.benchmarks.make.recipes import Recipe
from nfn_monomial.benchmarks.make.zoo import CONFIG_FILE, GROUPS

from .zoo_layout import ZooError

__all__ = ["KIND", "Group", "group_path", "read_config", "read_group", "write_group"]

KIND = "mixed"


@dataclass(frozen=True)
class Group:
    """Trained networks of one architecture, stacked.

    ``tensors``: ``weight.0`` ``(N, out, in, *kernel)``, ``bias.0`` ``(N, out)``, ...: the parameters of ``space``;
    float32. ``accuracy``: float32 ``(N,)``, on the test images, in [0, 1].
    """

    tensors: dict[str, Tensor]
    accuracy: Tensor
    space: WeightSpace
    architecture: Architecture

    def __len__(self) -> int:
        return len(self.accuracy)

    def subset(self, index: Tensor | Sequence[int] | slice) -> Group:
        """The networks with these numbers, in this order."""
        chosen = index if isinstance(index, slice) else torch.as_tensor(index)
        tensors = {name: t[chosen] for name, t in self.tensors.items()}
        return replace(self, tensors=tensors, accuracy=self.accuracy[chosen])


def group_path(folder: Path, number: int) -> Path:
    """The file of an architecture."""
    return folder / GROUPS.replace("*", f"{number:05d}")


def read_config(folder: Path) -> dict[str, Any] | None:
    """The contents of ``zoo.json``, None if there is none; raises a ZooError if it is not that of a mixed zoo."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ZooError(f"{folder} {what}: give the folder of a mixed zoo")
    path = folder / CONFIG_FILE
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kind, config = found.get("kind"), dict(found["config"])
        counts: dict[str, Any] = {name: int(found[name]) for name in ("groups", "diverged") if name in found}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ZooError(f"{path} is damaged ({error!r}): delete the folder and make the zoo again") from error
    if kind != KIND:
        raise ZooError(
            f"{folder} holds a zoo of one architecture, which load_zoo reads, and no mixed one: choose another folder"
        )
    return {"config": config, **counts}


def read_group(path: Path) -> tuple[Group, int]:
    """A group, and how many networks diverged while it was made; raises a ZooError that names the file."""
    try:
        with safe_open(path, framework="pt") as file:
            described = json.loads(file.metadata()["group"])
            architecture = Architecture(**{name: tuple(v) for name, v in described["architecture"].items()})
            space = architecture.space
            tensors = {name: file.get_tensor(name) for name in space.parameters}
            accuracy = file.get_tensor("accuracy")
        for name, shape in space.shapes().items():
            if tuple(tensors[name].shape) != (len(accuracy), *shape):
                found = tuple(tensors[name].shape)
                raise ValueError(f"{name} has shape {found}, expected {(len(accuracy), *shape)}")
        space.validate({name: t.unsqueeze(1) for name, t in tensors.items()})
        return Group(tensors, accuracy, space, architecture), int(described["diverged"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        way_out = "delete it and call zoo make again, which trains what is missing"
        raise ZooError(f"{path} is missing or damaged ({error!r}): {way_out}") from error


def write_group(path: Path, group: Group, recipes: Sequence[Recipe], diverged: int) -> None:
    """Write a group; the file appears under its name only when it is complete."""
    drawn = [{k: v for k, v in asdict(r).items() if k not in ("activation", "dropout")} for r in recipes]
    described = {"architecture": asdict(group.architecture), "recipes": drawn, "diverged": diverged}
    tensors = {name: t.contiguous() for name, t in {**group.tensors, "accuracy": group.accuracy}.items()}
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"group": json.dumps(described)})  # one entry: their order is not fixed
    os.replace(partial, path)
