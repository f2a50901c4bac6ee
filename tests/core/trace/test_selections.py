"""Entries that are selected by their size, or by the nearest code: latents, experts and codes may change places."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nfn_monomial import WeightSpace


class Case(NamedTuple):
    """A network.

    Attributes:
        forward: of the network and ``(6, 3)``.
        parts: its layers (in, out), and shapes of its parameters.
        permuted: sizes of nodes of several neurons that are permuted.
        scalings: how many there are.
    """

    forward: Callable[[Any, Tensor], Tensor]
    parts: Mapping[str, tuple[int, ...]]
    permuted: list[int]
    scalings: int


class Net(nn.Module):
    """One with these parts; ``w_...`` and capital letters are parameters."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        for name, shape in case.parts.items():
            if name.isupper():
                self.register_parameter(name, nn.Parameter(torch.randn(shape)))
            else:
                self.add_module(name, nn.Linear(*shape))
        self.register_buffer("order", torch.randperm(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.case.forward(self, x)


def written(y: Tensor, values: Callable[[Tensor], Any] = lambda v: v, into: float = 0.0) -> Tensor:
    """The three largest entries of each row where they were, the others replaced."""
    largest, places = y.topk(3, -1)
    return torch.full_like(y, into).scatter(-1, places, values(largest))


def nearest(m: Any, z: Tensor) -> Tensor:
    return torch.cdist(z, m.C).argmin(-1)


def mixed(m: Any, x: Tensor, gates: Tensor) -> Tensor:
    hidden = torch.relu(torch.einsum("eij,bj->bei", m.W, x))
    return torch.einsum("eoi,bei,be->bo", m.V, hidden, gates)


def by_codes(forward: Callable[[Any, Tensor], Tensor], permuted: list[int], scalings: int = 1) -> Case:
    """A latent of 4 entries, 5 codes."""
    return Case(lambda m, x: m.o(forward(m, m.i(x))), {"i": (3, 4), "C": (5, 4), "o": (4, 2)}, permuted, scalings)


def by_size(forward: Callable[[Tensor], Tensor], permuted: list[int], scalings: int = 1) -> Case:
    """Eight latents."""
    return Case(lambda m, x: m.o(forward(m.i(x))), {"i": (3, 8), "o": (8, 2)}, permuted, scalings)


def of_experts(gates: Callable[[Tensor], Tensor]) -> Case:
    """Four experts of five neurons."""
    parts = {"r": (3, 4), "W": (4, 5, 3), "V": (4, 2, 5)}
    return Case(lambda m, x: mixed(m, x, gates(m.r(x))), parts, [4, 5], 20)


def changed(y: Tensor, name: str, *rest: Any) -> Tensor:
    """What an operator makes of the columns whose sums are largest."""
    operator = getattr(torch.relu(y), name)
    return operator(1, y.sum(0).topk(3)[1], *rest)


def put(y: Tensor) -> Tensor:
    y = torch.relu(y)
    y[:, y.sum(0).topk(3)[1]] = 0.0
    return y


CASES: dict[str, Case] = {
    "scatter": by_size(lambda y: written(y, torch.relu), [8]),
    "scatter: a mask": by_size(lambda y: y * written(y, lambda v: 1.0), [8]),
    "scatter: in place": by_size(lambda y: torch.zeros_like(y).scatter_(-1, *reversed(y.topk(3, -1))), [8]),
    "scatter_add": by_size(lambda y: torch.zeros_like(y).scatter_add(-1, *reversed(y.topk(3, -1))), [8]),
    "scatter_reduce": by_size(
        lambda y: y.relu().scatter_reduce(1, *reversed(y.topk(3, -1)), reduce="amax", include_self=True), [8]
    ),
    "sort, and back": by_size(
        lambda y: torch.zeros_like(y).scatter(1, y.sort(1)[1], y.sort(1)[0].cumsum(1)), [8]
    ),
    "sort, gather": by_size(lambda y: y.gather(1, y.sort(1)[1]), [8]),
    "threshold": by_size(lambda y: y * (y >= y.topk(3, -1).values[..., -1:]), [8]),
    "masked_fill": by_size(lambda y: y.masked_fill(y < y.topk(3, -1).values[..., -1:], 0.0), [8]),
    "kthvalue": by_size(lambda y: y * (y >= y.kthvalue(4, -1, True)[0]), [8]),
    "index_fill": by_size(lambda y: changed(y, "index_fill", 0.0), [8]),
    "index_copy": by_size(lambda y: changed(y, "index_copy", torch.zeros(6, 3)), [8]),
    "index_add": by_size(lambda y: changed(y, "index_add", torch.zeros(6, 3)), [8]),
    "index_put": by_size(put, [8]),
    # which channels a checkpoint's buffer selects nobody knows: all have one scale, and stay
    "by a buffer": Case(lambda m, x: m.o(m.i(x).relu()[:, m.order]), {"i": (3, 8), "o": (8, 2)}, [], 1),
    "by a buffer: index_select": Case(
        lambda m, x: m.o(m.i(x).relu().index_select(1, m.order)), {"i": (3, 8), "o": (8, 2)}, [], 1
    ),
    "gates": of_experts(lambda y: written(y.softmax(-1))),
    "gates: softmax of the largest": of_experts(lambda y: written(y, lambda v: v.softmax(-1))),
    "gates: softmax of all, others -inf": of_experts(lambda y: written(y, into=float("-inf")).softmax(-1)),
    "gates: one_hot": of_experts(
        lambda y: (F.one_hot(y.topk(2, -1)[1], 4) * y.softmax(-1).topk(2, -1)[0][..., None]).sum(1)
    ),
    "codes: index": by_codes(lambda m, z: m.C[nearest(m, z)], [4, 5]),
    "codes: embedding": by_codes(lambda m, z: F.embedding(nearest(m, z), m.C), [4, 5]),
    "codes: one_hot": by_codes(lambda m, z: F.one_hot(nearest(m, z), 5).to(z.dtype) @ m.C, [4, 5]),
    "codes: scatter": by_codes(
        lambda m, z: torch.zeros(len(z), 5, dtype=z.dtype).scatter(1, nearest(m, z)[:, None], 1.0) @ m.C, [4, 5]
    ),
    "codes: straight through": by_codes(lambda m, z: z + (F.embedding(nearest(m, z), m.C) - z).detach(), [4, 5]),
    "codes: inner products": by_codes(lambda m, z: F.embedding((z @ m.C.T).argmax(-1), m.C), [4, 5], 5),
    # of a table with more rows than there are codes, some are never looked up: all stay
    "codes: another table": Case(
        lambda m, x: m.o(F.embedding((m.i(x) @ m.C.T).argmax(-1), m.T)),
        {"i": (3, 4), "C": (5, 4), "T": (7, 4), "o": (4, 2)}, [4, 4], 9,
    ),
    "codes: one_hot of more": Case(
        lambda m, x: m.o(F.one_hot((m.i(x) @ m.C.T).argmax(-1), 6).to(x.dtype)),
        {"i": (3, 4), "C": (5, 4), "o": (6, 2)}, [4], 5,
    ),
    "gather: of others": Case(
        lambda m, x: m.o(m.k(x).gather(1, m.i(x).topk(3, 1)[1])), {"i": (3, 5), "k": (3, 7), "o": (3, 2)}, [], 2
    ),
    "vmap": Case(
        lambda m, x: torch.vmap(lambda w, v: torch.relu(x @ w) @ v)(m.W, m.V).mean(0),
        {"W": (3, 3, 4), "V": (3, 4, 2)}, [3, 4], 12,
    ),
    "vmap: along other dimensions": Case(
        lambda m, x: torch.vmap(lambda w, v: torch.tanh(x @ w) @ v, in_dims=(2, 0))(m.W, m.V).sum(0),
        {"W": (3, 4, 3), "V": (3, 4, 2)}, [4, 3], 0,
    ),
    "vmap: over examples": Case(
        lambda m, x: torch.vmap(lambda row: m.o(torch.relu(m.i(row))))(x), {"i": (3, 4), "o": (4, 2)}, [4], 4
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_selected_may_change_places(name: str) -> None:
    torch.manual_seed(0)
    case = CASES[name]
    space = WeightSpace.from_module(Net(case), torch.randn(6, 3))
    permuted = [node.size for node in space.nodes.values() if node.permutes and node.size != 1]
    assert (permuted, space.group_dimension) == (case.permuted, case.scalings)
    assert "without a rule" not in space.explain()
