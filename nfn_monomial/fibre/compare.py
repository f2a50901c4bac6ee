"""Two networks compared by their normal forms: whether they are one function, and what explains their distance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nfn_monomial.alignment import align
from nfn_monomial.checks import Seed, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.packing import pieces, whole

from .normal_form import NormalForm, batched
from .turns import Turn, moved, rotated, stacked

_ROUNDS = 20
_MARGIN = 64  # of what rounding a network's entries once does to its normal form
_GRID = 0.58  # the power of a dtype's precision to which normal forms are equal
_LEAST = 1e-10  # to which normal forms are computed in float64


@dataclass(frozen=True)
class FibreComparison:
    """What `compare_fibres` found.

    Attributes:
        same_function: whether the normal forms are equal within ``tolerance``.
        distances: ``||a - b|| / ||a||`` as the networks are, once b is moved by the monomial group alone, and between
            the normal forms, once b's is moved by what is left.
        tolerance: what rounding of the networks' entries may make of the last one.
    """

    same_function: bool
    distances: dict[str, float]
    tolerance: float

    def __str__(self) -> str:
        lines = [f"{'the same function' if self.same_function else 'not the same function, as far as is known'}"]
        lines += [f"  {distance:.2e}  {what}" for what, distance in self.distances.items()]
        return "\n".join([*lines, f"  {self.tolerance:.2e}  is within rounding"])


@checked
def compare_fibres(
    form: NormalForm, a: Mapping[str, Tensor], b: Mapping[str, Tensor], *, seed: Seed = 0
) -> FibreComparison:
    """Whether two networks are one function, up to all that leaves it as it is.

    Their normal forms are aligned by permutations and signs, and node after node by the orthogonal matrix that brings
    them nearest (Procrustes): where singular values are equal or nearly so, normal forms are one another's rotations.

    Args:
        form: of their architecture.
        a, b: state dicts.
        seed: of the search for permutations.

    Raises:
        ValueError: for tensors that are missing, have other shapes, or are not finite.
    """
    batches = [batched(form.whole, t)[0] for t in (a, b)]
    if sizes := [len(x) for batch in batches for x in batch.values() if len(x) != 1]:
        raise InvalidValueError(f"compare_fibres: two networks are compared, found a batch of {sizes[0]}")
    given = [{n: x.detach().squeeze(0) for n, x in batch.items()} for batch in batches]
    forms = [form(t) for t in given]
    eps = max(torch.finfo(t[n].dtype).eps for t in (a, b) for n in form.whole.parameters)
    noise = max(_rounded(form, *of, eps, seed) for of in zip(given, forms, strict=True))
    near = align(form.whole, *given, seed=seed).aligned
    distances = {
        "as they are": _distance(given[0], given[1]),
        "but for permutations, signs and scales": _distance(given[0], near),
        "between normal forms": _distance(forms[0], _turned(form, forms[0], forms[1], eps, seed)),
    }
    tolerance = max(_MARGIN * noise, _LEAST)
    return FibreComparison(distances["between normal forms"] <= tolerance, distances, tolerance)


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """``||a - b|| / ||a||`` over all parameters."""
    apart = torch.stack([(a[n] - b[n]).square().sum() for n in a]).sum().sqrt()
    size = torch.stack([x.square().sum() for x in a.values()]).sum().sqrt()
    return float(apart / size) if size else float(apart)


def _turned(form: NormalForm, a: dict[str, Tensor], b: dict[str, Tensor], eps: float, seed: int) -> dict[str, Tensor]:
    """Normal form b next to a, by permutations and signs and then, node by node, by orthogonal matrices."""
    space, sizes = form.space, form.space.sizes()
    # On a grid, forms that are equal but for rounding have equal entries, by which neurons are told.
    largest = max(float(x.abs().max()) for x in a.values())
    steps = {n: eps**_GRID * max(float(x.abs().max()), largest / 16) or 1.0 for n, x in a.items()}
    hidden = {p.piece for turn in form.turns if len(turn.pairs) > 1 for p in turn.places}  # signs that no element has
    on_grid = []
    for network in (a, b):
        rounded = {n: ((x / steps[n]).round() * steps[n]).unsqueeze(0) for n, x in network.items()}
        parts = {n: x * (n not in hidden) for n, x in pieces(space, rounded, sizes).items()}
        on_grid.append({n: x.squeeze(0) for n, x in whole(space, parts, sizes).items()})
    near = align(space, *on_grid, seed=seed).element.act(b)
    if not form.turns:
        return near
    own, other = (pieces(space, {n: x.unsqueeze(0) for n, x in t.items()}, sizes) for t in (a, near))
    apart = float("inf")
    for _ in range(_ROUNDS):
        for turn in form.turns:
            nearest = _nearest(turn, stacked(own, turn.places) @ stacked(other, turn.places).mT)
            other = moved(other, turn, nearest, nearest)
        before, apart = apart, sum(float((own[n] - x).square().sum()) for n, x in other.items())
        if apart >= before * (1 - 1e-6):
            break
    return {n: x.squeeze(0) for n, x in whole(space, other, sizes).items()}


def _nearest(turn: Turn, product: Tensor) -> Tensor:
    """The orthogonal matrix of a turn's kind that brings one stack of rows nearest to another, from ``a b^T``."""
    if turn.kind != "rotary":
        u, _, vh = torch.linalg.svd(product)
        nearest: Tensor = u @ vh
        return nearest
    first, second = ([pair[i] for pair in turn.pairs] for i in (0, 1))
    real = product[..., first, first] + product[..., second, second]
    imaginary = product[..., second, first] - product[..., first, second]
    angle = torch.atan2(imaginary, real)
    return rotated(turn.pairs, product.shape[-1], angle.cos(), angle.sin())


def _rounded(form: NormalForm, network: Mapping[str, Tensor], own: dict[str, Tensor], eps: float, seed: int) -> float:
    """How far a normal form moves when every entry of a network is rounded once more."""
    generator = torch.Generator().manual_seed(0)
    noisy = {
        name: x * (1 + eps * torch.randn(x.shape, dtype=torch.float64, generator=generator))
        for name, x in network.items()
    }
    return _distance(own, _turned(form, own, form(noisy), eps, seed))
