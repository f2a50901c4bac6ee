"""Residual CNNs, with and without batch norm, of one or several widths."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

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

__all__ = ["ResidualCNN"]


@dataclass(frozen=True)
class ResidualCNN(Architecture):
    """``x -> f(conv x)``, then blocks ``x -> f(s(x) + conv f(conv x))``, global average pooling and a linear layer.

    ``channels``: of an image. ``widths``: channels of every stage. ``blocks``: in every stage; the first block of
    every stage but the first halves the map and has a 1x1 convolution as its shortcut s. ``inner``: channels inside
    of every block, in order. ``normalised``: with a batch norm behind every convolution, which then has no bias.
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
        sizes = {f"{name}[{i}]": size for name, found in several.items() for i, size in enumerate(found)}
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
        return _Network(self)

    @property
    def space(self) -> WeightSpace:
        """Nodes: ``x``, a stream ``s0``, ``s1``, ... for each stage, ``h0``, ``h1``, ... inside of blocks, ``y``.

        What a batch norm with running statistics is multiplied by in front, its mean included, its gain undoes: one
        gauge more for every norm that writes to a node. A first gauge that does nothing says which way the network
        runs.
        """
        acting = symmetry_of(self.activation)
        behind = acting is not Symmetry.PERMUTATION  # whether anything but the order of neurons is free there
        convolutions = list(self.convolutions())
        norms: dict[str, list[str]] = {}
        for name, _, target, _ in convolutions:
            norms.setdefault(target, []).append(name)

        def axis(node: str, flow: int, power: int, norm: str = "", before: int = 1) -> Axis:
            """``power``: of the factor behind the activation; ``before``: of that in front of a norm."""
            if not self.normalised or node not in norms:
                return Axis(node, flow)
            return Axis(node, (flow, *[power] * behind, *[before * (name == norm) for name in norms[node]]))

        parameters: dict[str, tuple[Dim, ...]] = {}
        for name, source, target, kernel in convolutions:
            rows = axis(target, 1, 0, name)
            parameters[f"{name}.weight"] = (rows, axis(source, -1, -1), kernel, kernel)
            if self.normalised:
                norm = name.replace("conv", "norm")
                parameters[f"{norm}.weight"] = (axis(target, 0, 1, name, -1),)
                parameters[f"{norm}.bias"] = (axis(target, 1, 1),)
                parameters[f"{norm}.running_mean"] = (rows,)
                parameters[f"{norm}.running_var"] = (axis(target, 0, 0),)
            else:
                parameters[f"{name}.bias"] = (rows,)
        parameters["head.weight"] = (Axis("y", 1), axis(f"s{len(self.widths) - 1}", -1, -1))
        parameters["head.bias"] = (Axis("y", 1),)

        widths = dict(zip(_numbered("s"), self.widths)) | dict(zip(_numbered("h"), self.inner))  # noqa: B905
        nodes = {"x": Node((Symmetry.FIXED,), self.channels)}
        for node, found in norms.items():
            gauges = (Symmetry.PERMUTATION, *[acting] * behind, *[Symmetry.MONOMIAL] * len(found))
            nodes[node] = Node(gauges if self.normalised else (acting,), widths[node])
        return WeightSpace(nodes | {"y": Node((Symmetry.FIXED,), self.classes)}, parameters)

    def convolutions(self) -> Iterator[tuple[str, str, str, int]]:
        """Every convolution in the order of the module: name, node that it reads, that it writes to, kernel size."""
        yield "conv", "x", "s0", 3
        for number, (stage, first) in enumerate(self.stages()):
            source = f"s{stage - 1}" if first else f"s{stage}"
            yield f"blocks.{number}.conv1", source, f"h{number}", 3
            yield f"blocks.{number}.conv2", f"h{number}", f"s{stage}", 3
            if first:
                yield f"blocks.{number}.shortcut_conv", source, f"s{stage}", 1

    def stages(self) -> Iterator[tuple[int, bool]]:
        """For every block its stage, and whether it leads there from the stage before."""
        for stage, count in enumerate(self.blocks):
            for block in range(count):
                yield stage, stage > 0 and block == 0


def _numbered(prefix: str) -> Iterator[str]:
    return (f"{prefix}{i}" for i in itertools.count())


class _Block(nn.Module):
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


class _Network(nn.Module):
    def __init__(self, a: ResidualCNN) -> None:
        super().__init__()
        self.conv, self.norm = _convolution(a, a.channels, a.widths[0], 3, a.stride)
        self.activate = MODULES[a.activation]()
        blocks = []
        for inner, (stage, first) in zip(a.inner, a.stages(), strict=True):
            blocks.append(_Block(a, a.widths[stage - first], inner, a.widths[stage], first=first))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(a.widths[-1], a.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.activate(self.norm(self.conv(x))))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def _convolution(a: ResidualCNN, source: int, target: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    """A convolution and what stands behind it; maps keep their size up to the stride."""
    convolution = nn.Conv2d(source, target, kernel, stride, kernel // 2, bias=not a.normalised)
    return convolution, nn.BatchNorm2d(target) if a.normalised else nn.Identity()
