"""Small vision transformers: patches of an image are its tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from nfn_monomial import Axis, Symmetry, WeightSpace, symmetry_of
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space import Dim, Node
from nfn_monomial.tools.predictors.architectures import (
    MODULES,
    Architecture,
    ArchitectureKind,
    MixedActivation,
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
        sizes = {f"{name}[{i}]": size for name, found in several.items() for i, size in enumerate(found)}
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
        return _Network(self)

    @property
    def space(self) -> WeightSpace:
        """Nodes: ``x``, the patches ``p``, the tokens' entries ``t``; of every block the heads ``a0``, ``a1``, ...,
        nested in them what queries and keys share, ``k0``, ..., and values, ``v0``, ...; ``m0``, ... in MLPs; ``y``.

        A layer norm leaves only permutations of the tokens' entries. What comes out of one, gain and shift, is read by
        the next weights alone: it is multiplied by any number that these are divided by, one gauge for every norm. (One
        sign of all tokens' entries at once is free as well; it is left out.)
        """
        blocks = len(self.heads)
        norms = [f"blocks.{i}.{name}" for i in range(blocks) for name in ("norm1", "norm2")] + ["norm"]

        def tokens(flow: int, power: int = 0, norm: str = "") -> Axis:
            return Axis("t", (flow, *[power * (name == norm) for name in norms]))

        parameters: dict[str, tuple[Dim, ...]] = {}

        def normalise(norm: str) -> Axis:
            """The norm's parameters; the axis along which what is behind it is read."""
            parameters[f"{norm}.weight"] = (tokens(0, 1, norm),)
            parameters[f"{norm}.bias"] = (tokens(1, 1, norm),)
            return tokens(-1, -1, norm)

        parameters["positions"] = (Axis("p"), tokens(1))
        parameters["embed.weight"] = (tokens(1), Axis("x", -1), self.patch, self.patch)
        parameters["embed.bias"] = (tokens(1),)
        nodes = {
            "x": Node((Symmetry.FIXED,), self.channels),
            "p": Node((Symmetry.FIXED,), self.patches),
            "t": Node((Symmetry.PERMUTATION, *[Symmetry.MONOMIAL] * len(norms)), self.width),
        }
        for i in range(blocks):
            name, heads = f"blocks.{i}", Axis(f"a{i}", 0)
            nodes[f"a{i}"] = Node((Symmetry.PERMUTATION,), self.heads[i])
            nodes[f"k{i}"] = Node((Symmetry.MONOMIAL,), self.head_width, parent=f"a{i}")
            nodes[f"v{i}"] = Node((Symmetry.MONOMIAL,), self.head_width, parent=f"a{i}")
            nodes[f"m{i}"] = Node((symmetry_of(self.activations[i]),), self.hidden[i])
            read = normalise(f"{name}.norm1")
            for part, node, power in (("query", "k", 1), ("key", "k", -1), ("value", "v", 1)):
                rows = (heads, Axis(f"{node}{i}", power))
                parameters[f"{name}.{part}.weight"] = (rows, read)
                if part != "key":
                    parameters[f"{name}.{part}.bias"] = (rows,)
            parameters[f"{name}.out.weight"] = (tokens(1), (heads, Axis(f"v{i}", -1)))
            parameters[f"{name}.out.bias"] = (tokens(1),)
            read = normalise(f"{name}.norm2")
            parameters[f"{name}.up.weight"] = (Axis(f"m{i}", 1), read)
            parameters[f"{name}.up.bias"] = (Axis(f"m{i}", 1),)
            parameters[f"{name}.down.weight"] = (tokens(1), Axis(f"m{i}", -1))
            parameters[f"{name}.down.bias"] = (tokens(1),)
        parameters["head.weight"] = (Axis("y", 1), normalise("norm"))
        parameters["head.bias"] = (Axis("y", 1),)
        return WeightSpace(nodes | {"y": Node((Symmetry.FIXED,), self.classes)}, parameters)


class _Block(nn.Module):
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


class _Network(nn.Module):
    def __init__(self, a: Transformer) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(a.patches, a.width))
        self.embed = nn.Conv2d(a.channels, a.width, a.patch, a.patch)
        self.blocks = nn.Sequential(*(_Block(a, number) for number in range(len(a.heads))))
        self.norm = nn.LayerNorm(a.width)
        self.head = nn.Linear(a.width, a.classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.positions
        out: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return out
