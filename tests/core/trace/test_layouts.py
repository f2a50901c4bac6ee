"""One function, its queries, keys and values laid out in one matrix in many ways: the same scalings in all of them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nfn_monomial import WeightSpace

HEADS, SIZE = 2, 8
Apart = Callable[[Tensor], tuple[Tensor, ...]]
ANGLES = torch.arange(5, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.1, 0.5, 0.3])


def halves(x: Tensor) -> Tensor:
    """Rotary places: entry i and entry i + half of it are one complex number."""
    half = x.shape[-1] // 2
    cos, sin = (torch.cat([t, t], -1)[: x.shape[-2]] for t in (ANGLES.cos()[:, :half], ANGLES.sin()[:, :half]))
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def pairs(x: Tensor) -> Tensor:
    """Rotary places: neighbours are one complex number."""
    real, imaginary = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = ANGLES.cos()[: x.shape[-2]], ANGLES.sin()[: x.shape[-2]]
    return torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], -1).flatten(-2)


def partial(x: Tensor) -> Tensor:
    """Rotary places in the first half of the entries."""
    return torch.cat([halves(x[..., :4]), x[..., 4:]], -1)


def multi_query(y: Tensor) -> tuple[Tensor, ...]:
    """As the first Falcon: rows (heads + 2, size)."""
    y = y.unflatten(-1, (HEADS + 2, SIZE))
    q = y[..., :-2, :]
    return q, y[..., [-2], :].expand_as(q), y[..., [-1], :].expand_as(q)


def grouped(y: Tensor) -> tuple[Tensor, ...]:
    """As Falcon's new decoder: rows (groups, queries of each + 2, size)."""
    y = y.unflatten(-1, (2, HEADS + 2, SIZE))
    q = y[..., :-2, :]
    return q.flatten(2, 3), *(y[..., [n], :].expand_as(q).flatten(2, 3) for n in (-2, -1))


LAYOUTS: dict[str, Apart] = {
    "heads, 3 x size": lambda y: y.unflatten(-1, (HEADS, 3 * SIZE)).chunk(3, -1),
    "heads, 3, size": lambda y: y.unflatten(-1, (HEADS, 3, SIZE)).unbind(-2),
    "heads, 3, size, permuted": lambda y: tuple(y.unflatten(-1, (HEADS, 3, SIZE)).permute(3, 0, 1, 2, 4)),
    "3, heads, size": lambda y: y.unflatten(-1, (3, HEADS, SIZE)).unbind(-3),
    "3 x heads, size": lambda y: y.unflatten(-1, (3 * HEADS, SIZE)).chunk(3, -2),
    "heads, size, 3": lambda y: y.unflatten(-1, (HEADS, SIZE, 3)).unbind(-1),
    "multi-query": multi_query,
    "grouped": grouped,
}
ROTATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x, "halves": halves, "pairs": pairs, "partial": partial,
}  # fmt: skip


class Attention(nn.Module):
    """Fused queries, keys and values, taken apart as it is said, rotated or not."""

    def __init__(self, layout: str, rotation: str) -> None:
        super().__init__()
        width = HEADS * SIZE
        rows = {"multi-query": (2 * width, width), "grouped": (4 * width, 2 * width)}.get(layout, (3 * width, width))
        self.apart, self.rotation = LAYOUTS[layout], ROTATIONS[rotation]
        self.qkv, self.o = nn.Linear(6, rows[0]), nn.Linear(rows[1], 5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in self.apart(self.qkv(x)))
        q, k = self.rotation(q), self.rotation(k)
        return self.o(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2))


# Values have a scale for each of their entries. So have queries and keys for each that is not rotated; pairs of halves,
# which are cut and joined again, have one together in each head; neighbours one for a head and one for their place.
COUNTS = {"none": 16 + 16, "halves": 16 + 2, "pairs": 16 + 2 + 4, "partial": 16 + 8 + 2}
SHARED = {"none": 8 + 8, "halves": 8 + 1, "pairs": 8 + 4, "partial": 8 + 4 + 1}  # by all heads


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_have_the_same_scalings(layout: str, rotation: str) -> None:
    torch.manual_seed(0)
    space = WeightSpace.from_module(Attention(layout, rotation).double(), torch.randn(3, 5, 6, dtype=torch.float64))
    if layout == "heads, size, 3" and rotation != "none":  # what is rotated leaves its channels FIXED in all three
        assert space.group_dimension < COUNTS[rotation]
    else:
        assert space.group_dimension == (SHARED if layout == "multi-query" else COUNTS)[rotation]
