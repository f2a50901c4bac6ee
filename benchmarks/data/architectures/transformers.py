"""Small vision transformers: patches of an image are its tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.architectures import (
    MODULES,
    Architecture,
    ArchitectureKind,
    MixedActivation,
    derived_space,
    require_activations,
    require_sizes,
)

__all__ = ["Transformer"]


@dataclass(frozen=True)
class Transformer(Architecture):
    """Patches and positions are embedded, blocks follow (``x + attention(norm x)``, then ``x + mlp(norm x)``), a norm,
    the mean over all tokens and a linear layer.

    ``channels`` and ``image_size``: of an image. ``patch``: pixels a side. ``width``: of a token. ``heads``: in every
    block. ``head_width``: of queries, keys and values of one head. ``hidden``: of every block's MLP.
    ``activations``: in every block's MLP.

    Raises:
        ValueError: if the numbers do not fit together or are not positive, or an activation is not known.
    """

    kind: ClassVar[ArchitectureKind] = "transformer"

    channels: int
    image_size: int
    patch: int
    width: int
    heads: tuple[int, ...]
    head_width: int
    hidden: tuple[int, ...]
    activations: tuple[MixedActivation, ...]
    classes: int

    def __post_init__(self) -> None:
        require_activations(self.activations)
        if not self.heads or not len(self.heads) == len(self.hidden) == len(self.activations):
            raise InvalidValueError(
                f"heads {self.heads}, hidden {self.hidden} and activations {self.activations} need one entry for each "
                "block"
            )
        several = {"heads": self.heads, "hidden": self.hidden}
        sizes = {f"{name}[{i}]": size for name, counts in several.items() for i, size in enumerate(counts)}
        single = ("channels", "image_size", "patch", "width", "head_width", "classes")
        require_sizes(self, sizes | {name: getattr(self, name) for name in single})
        if self.image_size % self.patch:
            raise InvalidValueError(f"patch is {self.patch}, which does not divide the image size {self.image_size}")

    @property
    def channels_in(self) -> int:
        return self.channels

    @property
    def activation(self) -> str:
        return "/".join(dict.fromkeys(self.activations))

    @property
    def patches(self) -> int:
        """Number of tokens."""
        return (self.image_size // self.patch) ** 2

    def module(self) -> nn.Module:
        return _Transformer(self)

    @property
    def space(self) -> WeightSpace:
        return derived_space(self, self.image_size)


class _TransformerBlock(nn.Module):
    def __init__(self, a: Transformer, number: int) -> None:
        super().__init__()
        self.heads, inside = a.heads[number], a.heads[number] * a.head_width
        self.norm1 = nn.LayerNorm(a.width)
        self.query = nn.Linear(a.width, inside)
        self.key = nn.Linear(a.width, inside, bias=False)  # one would be the same for all keys: softmax ignores it
        self.value = nn.Linear(a.width, inside)
        self.out = nn.Linear(inside, a.width)
        self.norm2 = nn.LayerNorm(a.width)
        self.up, self.down = nn.Linear(a.width, a.hidden[number]), nn.Linear(a.hidden[number], a.width)
        self.activate = MODULES[a.activations[number]]()

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm1(x)
        query, key, value = (self._split(layer(seen)) for layer in (self.query, self.key, self.value))
        weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]), -1)
        x = x + self.out((weights @ value).transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(self.activate(self.up(self.norm2(x))))
        return out

    def _split(self, x: Tensor) -> Tensor:
        """``(B, T, heads * d)`` -> ``(B, heads, T, d)``."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class _Transformer(nn.Module):
    def __init__(self, a: Transformer) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(a.patches, a.width))
        self.embed = nn.Conv2d(a.channels, a.width, a.patch, a.patch)
        self.blocks = nn.Sequential(*(_TransformerBlock(a, number) for number in range(len(a.heads))))
        self.norm = nn.LayerNorm(a.width)
        self.head = nn.Linear(a.width, a.classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.positions
        out: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return out
