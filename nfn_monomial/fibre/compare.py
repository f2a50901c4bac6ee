"""Two networks compared by their normal forms: whether they are one function, and what explains their distance."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from nfn_monomial.alignment import align
from nfn_monomial.alignment.networks import least_precise
from nfn_monomial.alignment.rounding import differing
from nfn_monomial.alignment.verdict import EXPLAINS, Level, Move, other_tensors, verdict_on
from nfn_monomial.canonical.fingerprint import hashed, step_of
from nfn_monomial.checks import Seed, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.packing import pieces, whole

from .batches import batched
from .kinds import Rotary, stacked
from .normal_form import NormalForm

_ROUNDS = 20
_WON = 1e-3  # of a distance: less is not worth another round
_MARGIN = 4  # of what rounding a network's entries once does to its normal form
_DRAWS = 2  # of such rounding, for each of two networks: where one entry decides, one draw may be near 0
_GRID = 0.58  # the power of a dtype's precision to which normal forms are equal
# of which numbers that are hashed are multiples: normal forms are further from one another than their networks
_STEPS = {torch.float64: 2.0**-23, torch.float32: 2.0**-8.5}
_LEAST, _MOST = 1e-10, 1e-3  # to which normal forms are computed in float64; beyond which nothing is the same
_SINGLE = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class FibreComparison:
    """Two networks compared by their normal forms, by `compare_fibres`.

    Attributes:
        same_function: whether the verdict begins with "the same function".
        verdict: the verdict in words (`verdict_on`).
        distances: ``||a - b|| / ||a||`` as the networks are, and between the normal forms, once b's is moved by what
            is left.
        tolerance: the largest distance between normal forms that rounding of the networks' entries explains: every
            tensor may differ by as much as that moves it; in float32 and float64 by no more than 1e-3 of the norm of
            the largest.
        unlike: keys outside of the space, as frozen parameters and buffers, that have other values in the two, or than
            in the module, whose directions these are.
        close: nodes on which two singular values of a are nearly equal, so that rounding turns its normal form there.
        unread: keys under which the two have other values, and which the module does not read on its example.
        move: what the verdict takes from the normal forms.
    """

    same_function: bool
    verdict: str
    distances: dict[str, float]
    tolerance: float
    unlike: tuple[str, ...]
    close: tuple[str, ...]
    unread: tuple[str, ...]
    move: Move

    def to_json(self) -> dict[str, Any]:
        """All of it as what ``json.dumps`` takes."""
        return {x.name: getattr(self, x.name) for x in fields(self) if x.name != "move"}

    def __str__(self) -> str:
        lines = [self.verdict]
        lines += [f"  {distance:.2e}  {what}" for what, distance in self.distances.items()]
        lines += [f"  {self.tolerance:.2e}  is within rounding"]
        lines += [f"  nearly equal singular values: {', '.join(self.close)}"] * bool(self.close)
        lines += [f"  other values: {', '.join(self.unlike)}"] * bool(self.unlike)
        lines += [f"  left out, as the module does not read it: {', '.join(self.unread)}"] * bool(self.unread)
        return "\n".join(lines)


@checked
def align_fibres(
    form: NormalForm, a: Mapping[str, Tensor], b: Mapping[str, Tensor], *, seed: Seed = 0
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Moves two networks next to one another by everything that leaves their functions as they are.

    Both are moved to their normal forms. That of b is aligned with that of a by permutations and signs (`align`), and
    node after node by the orthogonal matrix that brings it nearest (Procrustes), in turns, until that brings it no
    nearer. Networks with one function become equal within rounding. Of others the distance is small, though not the
    least: to find that is NP-hard. Their mean is a merged network.

    Args:
        form: of their architecture.
        a: state dict of one network.
        b: of the other.
        seed: of the search for permutations.

    Returns:
        For a and for b all parameters of ``form.whole``, under all their names (`NormalForm.write`), in the dtypes that
        they have: networks with the functions of a and of b.

    Raises:
        ValueError: for tensors that are missing, have other shapes, or are not finite; for batches.

    >>> from nfn_monomial.fibre import normal_form
    >>> form = normal_form(torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 6)), torch.zeros(2, 5))
    >>> a = {name: torch.randn(shape) for name, shape in form.whole.shapes().items()}
    >>> one, other = align_fibres(form, a, form.sample(a))
    >>> torch.allclose(one["0.weight"], other["0.weight"], atol=1e-4)
    True
    """
    form_a, form_b = (form(network) for network in _single(form, a, b))
    near = form_a, _next_to(form, form_a, form_b, _precision(form, a, b), seed)
    one, two = (
        {n: x.to(network[form.whole.ties.get(n, n)]) for n, x in form.write(tensors).items()}
        for network, tensors in zip((a, b), near, strict=True)
    )
    return one, two


@checked
def compare_fibres(
    form: NormalForm, a: Mapping[str, Tensor], b: Mapping[str, Tensor], *, seed: Seed = 0
) -> FibreComparison:
    """Tells whether two networks are one function, up to everything that leaves it as it is.

    Their normal forms are brought next to one another as by `align_fibres`: where singular values are equal or nearly
    so, they are one another's rotations. The verdict (`verdict_on`) is "the same function" if they are equal within
    rounding, and that explains the distance: of every tensor that has other values in the two, at most a hundredth of
    its distance is left. In bfloat16 and float16 networks are "within the rounding of" the dtype, where at most a
    hundredth is left of the distance of all tensors; a network that was trained on by some small steps is as far away
    in normal form as it is stored, so nothing is known of it. Networks of which nothing is known are never called
    different here: that takes outputs.

    Args:
        form: of their architecture.
        a: state dict of one network.
        b: of the other.
        seed: of the search for permutations.

    Raises:
        ValueError: for tensors that are missing, have other shapes, or are not finite.
    """
    stored, eps = _single(form, a, b), _precision(form, a, b)
    narrow = eps > _SINGLE
    forms = [form(network) for network in stored]
    units = {n: max(torch.finfo(t[n].dtype).eps for t in (a, b)) for n in stored[0]}
    noisy = [form(_noisy(stored[i % 2], units, i)) for i in range(2 * _DRAWS)]
    allowed = _allowed(form, forms, noisy, narrow)
    norms, form_norms, other_norms = map(_norms, (stored[0], *forms))
    # Permutations, signs and rotations leave norms alone: where these differ, nothing makes the forms equal.
    possible = all(abs(norm - other_norms[n]) <= allowed[n] for n, norm in form_norms.items())
    nearest = _next_to(form, forms[0], forms[1], eps, seed, _ROUNDS if possible else 1)
    apart = {n: float((x - stored[1][n]).norm()) for n, x in stored[0].items()}
    left = {n: float((x - nearest[n]).norm()) if any(apart.values()) else 0.0 for n, x in forms[0].items()}
    size, form_size = (math.hypot(*by_name.values()) or 1.0 for by_name in (norms, form_norms))
    distances = {
        "as they are": math.hypot(*apart.values()) / size,
        "between normal forms": math.hypot(*left.values()) / form_size,
    }
    # A tensor that nothing turned is as far away in normal form as it is stored.
    explained = all(
        units[n] > _SINGLE or not apart[n] or left[n] * EXPLAINS * norms[n] <= apart[n] * form_norms[n]
        for n in apart
        if n in left
    )
    dtype_a, dtype_b = (least_precise(network[n].dtype for n in form.whole.parameters) for network in (a, b))
    move = Move(
        "their normal forms are equal",
        stored=distances["as they are"],
        left=distances["between normal forms"],
        off=distances["between normal forms"],
        dtypes=(dtype_a, dtype_b),
        equal=explained,
        close=all(x <= allowed[n] for n, x in left.items()),
    )
    unlike = tuple(sorted(_unlike(form, a, b)))
    verdict = verdict_on([move], other_tensors(unlike))
    close = tuple(node for node, gap in form.gaps(forms[0]).items() if float(gap) < eps**_GRID)
    unread = differing({n: a[n] for n in form.unused if n in a}, {n: b[n] for n in form.unused if n in b})
    tolerance = math.hypot(*allowed.values()) / form_size
    same = verdict.level == Level.SAME
    return FibreComparison(same, verdict.words, distances, tolerance, unlike, close, unread, move)


@checked
def fingerprint_fibre(form: NormalForm, network: Mapping[str, Tensor]) -> str:
    """Returns 32 hexadecimal digits: the same for all networks that are one function, up to everything that leaves it.

    It is the `fingerprint` of the normal form, with the limits that this has, and ``2^-8.5`` as the step of float32, so
    that networks may have the same one that are six times as far apart. Numbers between two multiples may be rounded
    apart, as may normal forms that jump, where singular values are equal within rounding. Of queries and keys
    with several rotary pairs, whose signs ``form.space`` does not know, the squares are looked at.

    Args:
        form: of its architecture.
        network: a state dict; other tensors than the parameters of ``form.whole`` are ignored.

    Raises:
        ValueError: for tensors that are missing, have other shapes, or are not finite.
        TypeError: for tensors that are not float32 or float64, as of `fingerprint`.
    """
    parameters = {n: network[n] for n in form.whole.parameters if n in network}
    for name, t in parameters.items():
        if isinstance(t, Tensor) and t.ndim != len(form.whole.parameters[name]):
            raise InvalidValueError(
                f"a fingerprint is of one network: {name} has shape {tuple(t.shape)}, expected "
                f"{len(form.whole.parameters[name])} dimensions; give each of a batch (B, 1, *shape) alone, as t[i, 0]"
            )
    step, normal = step_of(parameters, _STEPS), form(parameters)
    text = hashed(form.space, _seen(form, normal), step)
    if not _hidden(form):
        return text
    squares = hashed(form.space.uncharged(), {n: x.square() for n, x in normal.items()}, step)
    return hashlib.sha256((text + squares).encode()).hexdigest()[:32]


def _norms(network: Mapping[str, Tensor]) -> dict[str, float]:
    return {n: float(x.norm()) for n, x in network.items()}


def _single(form: NormalForm, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Two networks in float64."""
    batches = [batched(form.whole, t)[0] for t in (a, b)]
    if sizes := [len(x) for batch in batches for x in batch.values() if len(x) != 1]:
        raise InvalidValueError(f"two networks are compared, found a batch of {sizes[0]}")
    return [{n: x.detach().squeeze(0) for n, x in batch.items()} for batch in batches]


def _precision(form: NormalForm, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    return max(torch.finfo(network[n].dtype).eps for network in (a, b) for n in form.whole.parameters)


def _unlike(form: NormalForm, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> list[str]:
    """Keys outside of the space with other values in the two, or in the module; but for what nothing reads."""
    of_module = {*form.whole.parameters, *form.whole.ties, *form.unused, *form.frozen}
    both = [n for n in a if n in b and n not in of_module]
    apart = differing({n: a[n] for n in both}, {n: b[n] for n in both})
    frozen = [{n: t[n] for n in form.frozen if n in t} for t in (a, b)]
    return [*apart, *{n for t in frozen for n in differing(t, {n: form.frozen[n] for n in t})}]


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """``||a - b|| / ||a||`` over all parameters."""
    apart = torch.stack([(a[n] - b[n]).square().sum() for n in a]).sum().sqrt()
    size = torch.stack([x.square().sum() for x in a.values()]).sum().sqrt()
    return float(apart / size) if size else float(apart)


def _next_to(
    form: NormalForm, a: dict[str, Tensor], b: dict[str, Tensor], eps: float, seed: int, rounds: int = _ROUNDS
) -> dict[str, Tensor]:
    """Moves normal form b next to a, by permutations and signs, and by orthogonal matrices, in turns."""
    # On a grid, forms that are equal but for rounding have equal entries, by which neurons are told apart.
    largest = max(float(x.abs().max()) for x in a.values())
    steps = {n: eps**_GRID * max(float(x.abs().max()), largest / 16) or 1.0 for n, x in a.items()}

    def on_grid(network: dict[str, Tensor]) -> dict[str, Tensor]:
        return _seen(form, {n: (x / steps[n]).round() * steps[n] for n, x in network.items()})

    apart = _distance(a, b)
    for _ in range(rounds):
        element = align(form.space, on_grid(a), on_grid(b), symmetry="sign", seed=seed).element
        nearer = _turned(form, a, element.act(b))
        before, apart = apart, _distance(a, nearer)
        if apart >= before:
            break
        b = nearer
        if apart >= before * (1 - _WON) or apart <= eps**_GRID:
            break
    return b


def _hidden(form: NormalForm) -> set[str]:
    """Pieces with signs that no element of ``form.space`` has."""
    rotary = (turn for turn in form.turns if isinstance(turn, Rotary))
    return {place.piece for turn in rotary if len(turn.pairs) > 1 for place in turn.places}


def _seen(form: NormalForm, network: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A normal form with zeros in place of pieces with signs that no element has."""
    hidden, sizes = _hidden(form), form.space.sizes()
    parts = pieces(form.space, {n: x.unsqueeze(0) for n, x in network.items()}, sizes)
    parts = {n: torch.zeros_like(x) if n in hidden else x for n, x in parts.items()}
    return {n: x.squeeze(0) for n, x in whole(form.space, parts, sizes).items()}


def _turned(form: NormalForm, a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, Tensor]:
    """Turns normal form b nearer to a, node by node, by orthogonal matrices."""
    space, sizes = form.space, form.space.sizes()
    x, y = (pieces(space, {n: t.unsqueeze(0) for n, t in network.items()}, sizes) for network in (a, b))
    apart = float("inf")
    for _ in range(_ROUNDS):
        for turn in form.turns:
            nearest = turn.nearest(stacked(x, turn.places) @ stacked(y, turn.places).mT)
            y = turn.moved(y, nearest, nearest)
        before, apart = apart, sum(float((x[n] - t).square().sum()) for n, t in y.items())
        if apart >= before * (1 - 1e-6):
            break
    return {n: t.squeeze(0) for n, t in whole(space, y, sizes).items()}


def _allowed(
    form: NormalForm, forms: Sequence[dict[str, Tensor]], noisy: Sequence[dict[str, Tensor]], narrow: bool
) -> dict[str, float]:
    """Bounds on the distance of each tensor of two normal forms, by how far those of `_noisy` networks, in turn, moved.

    In dtypes that are not ``narrow`` a margin is added, and it is never more than 1e-3 of the norm of the largest.
    """
    pairs = [(x, _turned(form, x, moved)) for x, moved in zip(itertools.cycle(forms), noisy, strict=False)]
    norms = _norms(forms[0])
    largest = max(norms.values())
    allowed = {}
    for n, norm in norms.items():
        noise = max(float((x[n] - moved[n]).norm()) for x, moved in pairs)
        least = _LEAST * max(norm, _LEAST * largest)
        allowed[n] = max(noise, least) if narrow else min(max(_MARGIN * noise, least), _MOST * largest)
    return allowed


def _noisy(network: Mapping[str, Tensor], units: Mapping[str, float], seed: int) -> dict[str, Tensor]:
    """A network with every entry rounded once more, to the precision that its tensor has."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: x * (1 + units[name] * torch.randn(x.shape, dtype=torch.float64, generator=generator))
        for name, x in network.items()
    }
