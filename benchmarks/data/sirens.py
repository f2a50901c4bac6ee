"""Networks that are images (INRs), and corpora of them, made here or published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.reading import number
from nfn_monomial.checks import shown
from nfn_monomial.errors import InvalidValueError

__all__ = ["InrCorpus", "InrPart", "Siren"]


@dataclass(frozen=True)
class Siren:
    """The architecture of a corpus: ``x -> sin(omega_0 (W x + b))`` twice or more, then ``W x + b``.

    Attributes:
        sizes: neurons from the two coordinates to the channels, as ``(2, 32, 32, 1)``.
        omega_0: the frequency, by which every layer but the last multiplies. 1 once it is absorbed into the weights.
        image: ``(channels, height, width)``. Pixel ``(i, j)`` has the coordinates ``(linspace(-1, 1, height)[i],
            linspace(-1, 1, width)[j])``.
        gain: with ``offset``: pixels in [0, 1] are ``gain * output + offset``.
        offset: see ``gain``.
        column_first: True if the two coordinates are column and row.
    """

    sizes: tuple[int, ...]
    omega_0: float
    image: tuple[int, int, int]
    gain: float = 0.5
    offset: float = 0.5
    column_first: bool = False

    def __post_init__(self) -> None:
        for name in ("sizes", "image"):
            if not isinstance(sizes := getattr(self, name), tuple) or not all(type(n) is int and n > 0 for n in sizes):
                raise InvalidValueError(f"{name} is {shown(sizes)}, expected a tuple of positive whole numbers")
        for name in ("omega_0", "gain", "offset"):
            number(getattr(self, name), name)
        if self.omega_0 <= 0 or self.gain == 0 or len(self.image) != 3:
            raise InvalidValueError(
                f"omega_0 is {self.omega_0}, gain {self.gain}, image {self.image}: expected a positive number, another "
                "than 0, and 3"
            )
        if len(self.sizes) < 2 or self.sizes[0] != 2 or self.sizes[-1] != self.image[0]:
            raise InvalidValueError(
                f"sizes {self.sizes} for an image {self.image}: expected 2, hidden sizes, {self.image[0]} channels"
            )

    @property
    def space(self) -> WeightSpace:
        """The weight space of the networks: parameters ``weight.i``, ``bias.i``; hidden neurons flip signs."""
        return WeightSpace.mlp(self.sizes, "sin")

    def coordinates(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """``(height * width, 2)``, row by row."""
        axes = [torch.linspace(-1, 1, n, dtype=dtype) for n in self.image[1:]]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).view(-1, 2)
        return grid.flip(-1) if self.column_first else grid

    def outputs(self, tensors: Mapping[str, Tensor], coordinates: Tensor) -> Tensor:
        """Evaluates N networks: ``weight.i (N, out, in)``, ``bias.i (N, out)``, ``(P, 2)`` -> ``(N, P, C)``.

        In the dtype of the tensors, inside autocast too: rounded to bfloat16, coordinates and phases would show another
        image.
        """
        x = coordinates.expand(len(tensors["weight.0"]), -1, -1)
        last = len(self.sizes) - 2
        with torch.autocast(x.device.type, enabled=False):
            for i in range(last + 1):
                x = torch.baddbmm(tensors[f"bias.{i}"].unsqueeze(1), x, tensors[f"weight.{i}"].transpose(1, 2))
                if i < last:
                    x = torch.sin(self.omega_0 * x)
        return x

    def render(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The images of N networks, differentiable: ``weight.i (N, out, in)``, ``bias.i (N, out)`` -> ``(N, C, H, W)``.

        Pixels in [0, 1] where a network fits well; they are not clamped.
        """
        first = tensors["weight.0"]
        x = self.outputs(tensors, self.coordinates(first.dtype).to(first.device))
        return (self.gain * x + self.offset).transpose(1, 2).reshape(-1, *self.image)


@dataclass(frozen=True)
class InrPart:
    """One split. ``tensors``: the networks, parameter name -> float32 ``(N, *shape)``; ``labels``: class of the image
    of each, int64 ``(N,)``; ``image``: its number, ``(N,)``: several networks may be fits of one image, and then they
    are in the same split.
    """

    tensors: Mapping[str, Tensor]
    labels: Tensor
    image: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, index: Tensor) -> InrPart:
        """The networks with these numbers, in this order."""
        return InrPart({name: t[index] for name, t in self.tensors.items()}, self.labels[index], self.image[index])


@dataclass(frozen=True)
class InrCorpus:
    """``pixels``: the images that were fitted, float32 ``(M, C, H, W)`` in [0, 1], indexed by `InrPart.image`; None
    where they are not known, `Siren.render` shows them then. ``info``: where the networks come from, for the record.
    """

    name: str
    siren: Siren
    classes: int
    train: InrPart
    val: InrPart
    test: InrPart
    pixels: Tensor | None = None
    info: dict[str, Any] = field(default_factory=dict)
