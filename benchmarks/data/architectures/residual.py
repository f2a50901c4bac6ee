"""Residual CNNs, with and without batch norm, of one or several widths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

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

__all__ = ["ResidualCNN"]


@dataclass(frozen=True)
class ResidualCNN(Architecture):
    """``x -> f(conv x)``, then blocks ``x -> f(s(x) + conv f(conv x))``, global average pooling and a linear layer.

    ``channels``: of an image. ``widths``: channels of every stage. ``blocks``: in every stage; the first block of
    every stage but the first halves the map and has a 1x1 convolution as its shortcut s. ``inner``: channels inside
    of every block, in order. ``normalised``: with a batch norm after every convolution, which then has no bias.
    ``activations``: the function f, alone in a tuple, as it is one for all.

    Raises:
        ValueError: if the numbers do not fit together or are not positive, or the activation is not known.
    """

    kind: ClassVar[ArchitectureKind] = "residual"

    channels: int
    widths: tuple[int, ...]
    blocks: tuple[int, ...]
    inner: tuple[int, ...]
    normalised: bool
    activations: tuple[MixedActivation]
    classes: int
    stride: int = 1

    def __post_init__(self) -> None:
        require_activations(self.activations)
        if not self.widths or len(self.blocks) != len(self.widths) or len(self.inner) != sum(self.blocks):
            raise InvalidValueError(
                f"widths {self.widths} need as many numbers of blocks, found {self.blocks}, and one inner width for "
                f"each block, found {self.inner}"
            )
        if len(self.activations) != 1:
            raise InvalidValueError(
                f"activations is {self.activations}, but one serves all layers of a residual network"
            )
        several = {"widths": self.widths, "blocks": self.blocks, "inner": self.inner}
        sizes = {f"{name}[{i}]": size for name, counts in several.items() for i, size in enumerate(counts)}
        require_sizes(
            self, sizes | {"channels": self.channels, "classes": self.classes, "stride": self.stride}
        )  # fmt: skip

    @property
    def channels_in(self) -> int:
        return self.channels

    @property
    def activation(self) -> str:
        return self.activations[0]

    def module(self) -> nn.Module:
        return _ResidualNetwork(self)

    @property
    def space(self) -> WeightSpace:
        return derived_space(self, 2 * self.stride * 2 ** len(self.widths))

    def stages(self) -> Iterator[tuple[int, bool]]:
        """Yields for every block its stage, and True if it leads there from the stage before."""
        for stage, count in enumerate(self.blocks):
            for block in range(count):
                yield stage, stage > 0 and block == 0


class _ResidualBlock(nn.Module):
    def __init__(self, a: ResidualCNN, source: int, inner: int, target: int, *, first: bool) -> None:
        super().__init__()
        stride = 2 if first else 1
        self.conv1, self.norm1 = _convolution(a, source, inner, 3, stride)
        self.conv2, self.norm2 = _convolution(a, inner, target, 3, 1)
        if first:
            self.shortcut_conv, self.shortcut_norm = _convolution(a, source, target, 1, stride)
        self.first = first
        self.activate = MODULES[a.activation]()

    def forward(self, x: Tensor) -> Tensor:
        inside = self.norm2(self.conv2(self.activate(self.norm1(self.conv1(x)))))
        out: Tensor = self.activate(inside + (self.shortcut_norm(self.shortcut_conv(x)) if self.first else x))
        return out


class _ResidualNetwork(nn.Module):
    def __init__(self, a: ResidualCNN) -> None:
        super().__init__()
        self.conv, self.norm = _convolution(a, a.channels, a.widths[0], 3, a.stride)
        self.activate = MODULES[a.activation]()
        blocks = []
        for inner, (stage, first) in zip(a.inner, a.stages(), strict=True):
            blocks.append(_ResidualBlock(a, a.widths[stage - first], inner, a.widths[stage], first=first))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(a.widths[-1], a.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.activate(self.norm(self.conv(x))))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def _convolution(a: ResidualCNN, source: int, target: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    """Returns a convolution and the norm after it; maps keep their size up to the stride."""
    convolution = nn.Conv2d(source, target, kernel, stride, kernel // 2, bias=not a.normalised)
    return convolution, nn.BatchNorm2d(target) if a.normalised else nn.Identity()
