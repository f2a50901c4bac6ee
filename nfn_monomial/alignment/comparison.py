"""Compares two networks: whether they are one function up to symmetry, and if not, what is left between them."""

from __future__ import annotations

import itertools
import math
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Seed, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space import packing
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix
from nfn_monomial.space.packing import is_counter
from nfn_monomial.space.weight_space import WeightSpace

from .align import align
from .exact import matched
from .networks import comparison_dtype, least_precise, sizes_of
from .outputs import OutputDifference, output_difference
from .rounding import differing, is_scaling, multiplied_by, rounding_of, tolerance
from .verdict import Level, Move, Outputs, other_tensors, verdict_on

_KINDS = ("permutation", "scale", "sign")
_RIGID = frozenset({"permutation", "sign"})
_SEARCHED = 100_000_000  # entries of the largest networks for which `align`, which holds them in float64, is asked


class LayerDistance(NamedTuple):
    """The distance of two networks in one parameter.

    Attributes:
        raw_l2: root of the sum of squared differences of the networks as they are.
        aligned_l2: once b is moved next to a.
    """

    raw_l2: float
    aligned_l2: float


@dataclass(frozen=True)
class Comparison:
    """Two networks compared, by `compare`; ``print`` says it in words.

    Attributes:
        same_function: whether the verdict begins with "the same function".
        verdict: the verdict in words (`verdict_on`): "the same function", "within the rounding of float16", "not the
            same", or "not known to be the same", each with its reason.
        outputs: how far outputs are apart on the inputs; None without a module.
        max_weight_difference: the largest difference of any entry once b is aligned, relative to the entry.
        group_element: what moves b next to a; nodes that it has no matrix of stay as they are.
        layers: parameter -> its distances.
        explained: what part of the squared distance of all parameters each kind of symmetry explains:
            ``permutation``, ``scale``, ``sign``, and what is left, ``rest``. They add up to 1; all are 0 where there is
            no distance.
        unmoved: keys outside of the space under which the two have other tensors.
        unread: keys with other tensors that the module does not read.
        move: what the verdict takes from the weights.
    """

    same_function: bool
    verdict: str
    outputs: Outputs | None
    max_weight_difference: float
    group_element: GroupElement
    layers: dict[str, LayerDistance]
    explained: dict[str, float]
    unmoved: tuple[str, ...]
    unread: tuple[str, ...]
    move: Move

    @property
    def max_output_difference(self) -> float | None:
        """The largest difference of any output on the inputs, in float64; None without a module."""
        return None if self.outputs is None else self.outputs.largest

    @property
    def relative_output_difference(self) -> float | None:
        """The same, relative to the largest output of each tensor."""
        return None if self.outputs is None else self.outputs.relative

    def to_json(self) -> dict[str, Any]:
        """All of it as what ``json.dumps`` takes; infinite numbers as None."""
        names = [x.name for x in fields(self) if x.name not in ("move", "outputs")]
        names += ["max_output_difference", "relative_output_difference"]
        values = {name: getattr(self, name) for name in names}
        finite = {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in values.items()}
        return finite | {
            "group_element": {
                name: {"permutation": m.permutation.tolist(), "scales": [s.tolist() for s in m.scales]}
                for name, m in self.group_element.matrices.items()
            },
            "layers": {name: layer._asdict() for name, layer in self.layers.items()},
            "unmoved": list(self.unmoved),
            "unread": list(self.unread),
        }

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in self.explained.items())
        lines = [self.verdict]
        if self.max_output_difference is not None:
            lines.append(
                f"largest difference of outputs: {self.max_output_difference:.1e}, "
                f"{self.relative_output_difference:.1e} of the largest output"
            )
        lines.append(f"largest difference of weights, once aligned: {self.max_weight_difference:.1e} of the weight")
        lines.append(f"of the squared distance, symmetries explain: {shares}")
        width = max(map(len, self.layers))
        lines.append(f"{'parameter':<{width}}  {'raw L2':>9}  {'aligned L2':>10}")
        lines += [f"{n:<{width}}  {x.raw_l2:>9.3g}  {x.aligned_l2:>10.3g}" for n, x in self.layers.items()]
        if self.unmoved:
            lines.append(f"what no symmetry moves differs, too: {', '.join(self.unmoved)}")
        if self.unread:
            lines.append(f"left out, as the module does not read it: {', '.join(self.unread)}")
        return "\n".join(lines)


@checked
def compare(
    space: WeightSpace,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    *,
    module: nn.Module | None = None,
    inputs: Any = None,
    seed: Seed = 0,
) -> Comparison:
    """Tells whether two networks are the same function up to the symmetries of their space, and how they differ.

    Network b is moved next to a by a symmetry: a permutation, signs, scales. The verdict (`verdict_on`) is

    - **the same function** if nothing is left that rounding does not explain. Entries that the symmetry does not
      multiply are equal bit by bit. Where it multiplies, the rounding of the dtype counts, but only if the scales
      explain the distance: they leave at most a hundredth of it. The group keeps the function, so this is a proof
      up to rounding. Parameters that do not matter to the function (``space.dead``) are left out; all that no
      symmetry moves, every key outside of the space, is equal: masks, orders of inputs, their mean and deviation. A
      mask that was permuted along with its neurons is another one here;
    - **within the rounding of** bfloat16 or float16 in the same case, where multiplied entries, or those of two dtypes,
      agree to 16 bits: a network that was trained on by less than that cannot be told from one that was rounded. The
      same is said of float32 and float64, where entries that nothing multiplies agree within rounding, as those of
      canonical forms do, which have been computed;
    - **not the same** if outputs differ, which takes a module: by more than what rounding of the weights does to them,
      and by more than the root of the dtype's precision;
    - **not known to be the same** in all other cases. Other networks may still be one function: weights say so for a
      neuron that nothing reads, and no search finds every symmetry.

    With a module, all keys of a network that it has go into it, and what a network lacks is the module's. Its
    tensors that no operation reads, in eval mode on these inputs, may differ: `Comparison.unread` names them, but
    for counters of batch norms. Without a module nobody knows what is read, so all count; and the buffers are taken
    to be such that the group keeps the function.

    **Rounding** of an entry that was multiplied is three half-units of a dtype narrower than float32: it has been
    rounded, and so have been the two factors that were found for it. In float32 it is 16 units, as many factors may
    have been multiplied in it one after the other; 1e-10 of the entry in float64, to which scales are found. Networks
    that were scaled and differ by less besides cannot be told apart. Scales of 1 within rounding are 1. Between two
    dtypes, half a unit in the last place of each is tolerated in every entry.

    **What explains the distance.** The element that was found is taken apart into its permutations P, scales D and
    signs S. What some of them explain together is the most that any part of them takes off the squared distance
    ``||a - b||^2``; the share of each is its Shapley value: what it adds to that, averaged over all orders in which the
    three can be taken. So what only two can do together they share equally, no order is favoured, and no share is
    negative.

    **Large networks.** Equal functions are told by reading one parameter after the other (`matched`), so tensors may be
    those of files that are mapped into memory; only those that are not equal are searched for the nearest element
    (`align`), in memory. Beyond 100 million entries that is left out: the distances are then those of the first
    element, or of none, and may be far from the least.

    Args:
        space: the weight space.
        a: parameter name -> tensor ``(*shape)``, and whatever else a state dict holds, under the module's names.
        b: the same, of the other network, whose dtype may be another.
        module: runs networks: any with the space's parameters. It is left as it is.
        inputs: of the module: a tensor, or a tuple of all its arguments, none of them by name.
        seed: of `align`.

    Raises:
        ValueError: as `align`, for networks that do not fit the space or one another; for a module without inputs,
            that does not run on them, or whose outputs are not finite or others in a second run; for two values of one
            tensor of it.
        TypeError: as `align`.

    >>> space = WeightSpace.mlp([2, 8, 1], "relu")
    >>> a = {name: torch.randn(shape) for name, shape in space.shapes().items()}
    >>> b = space.sample().act(a)
    >>> comparison = compare(space, a, b)
    >>> comparison.same_function, round(sum(comparison.explained.values()), 6)
    (True, 1.0)
    """
    if (module is None) != (inputs is None):
        raise InvalidValueError("compare: a module and its inputs are needed together, module=net, inputs=x")
    return compared(space, a, b, module, inputs, seed)


def compared(
    space: WeightSpace,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    module: nn.Module | None = None,
    inputs: Any = None,
    seed: int = 0,
    *,
    search: bool = True,
) -> Comparison:
    """Compares as `compare` does; without ``search`` only equal networks are moved next to one another, quickly."""
    sizes = sizes_of(space, {"a": a, "b": b}, one_dtype=True)
    for other, name in space.ties.items():
        if any(other in network and differing({name: network[other]}, {name: network[name]}) for network in (a, b)):
            raise InvalidValueError(
                f"compare: {name} and {other} are one tensor of {space}, but a network has two values for them: leave "
                "one of them out"
            )
    with torch.no_grad():
        weights = _aligned(space, _without_dead(space, a, sizes), _without_dead(space, b, sizes), sizes, seed, search)
        run = OutputDifference((a, b))
        if module is not None:
            run = output_difference(space, weights.group_element, module, inputs, (a, b))
        different = differing(*run.unmoved, leave_out={*space.parameters, *space.ties})
    # What is no tensor of the module may reach its function when it is loaded.
    keys = set() if module is None else {key for key, _ in (*module.named_parameters(), *module.named_buffers())}
    unmoved = tuple(key for key in different if run.read is None or key in run.read or key not in keys)
    verdict = verdict_on([weights.move], other_tensors(unmoved), run.outputs)
    return replace(
        weights,
        same_function=verdict.level == Level.SAME,
        verdict=verdict.words,
        outputs=run.outputs,
        unmoved=unmoved,
        unread=tuple(key for key in different if key not in unmoved and not is_counter(key, {*a, *b})),
    )


def _without_dead(space: WeightSpace, network: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Mapping[str, Tensor]:
    """A network with zeros for entries that do not matter; other tensors are read when they are asked for."""
    parameters = {space.pieces[name].parameter for name in space.dead}
    others: Any = network
    return ChainMap({name: packing.without_dead(space, name, network[name], sizes) for name in parameters}, others)


def _aligned(
    space: WeightSpace,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    seed: int,
    search: bool,
) -> Comparison:
    """The comparison of the parameters of a and b once b is moved next to a, by the move that explains the most."""
    best: Comparison | None = None
    for element in _elements(space, a, b, seed, search):
        moved = _weights(space, element, a, b, sizes)
        if best is None or moved.move.level < Level.UNKNOWN or moved.move.left < best.move.left:
            best = moved
        if best.move.level < Level.UNKNOWN:
            break
    assert best is not None
    return best


def _elements(
    space: WeightSpace, a: Mapping[str, Tensor], b: Mapping[str, Tensor], seed: int, search: bool
) -> Iterator[GroupElement]:
    """Elements that may turn b into a: none first, and each without its scales, which then have nothing to explain."""
    yield GroupElement(space, {})
    limit = max(tolerance(network[name].dtype) for network in (a, b) for name in space.parameters)
    element = _snapped(matched(space, a, b), limit)
    yield _part(element, _RIGID)
    yield element
    if search and sum(a[name].numel() for name in space.parameters) <= _SEARCHED:
        element = _snapped(align(space, a, b, seed=seed).element, limit)
        yield _part(element, _RIGID)
        yield element


def _snapped(element: GroupElement, limit: float) -> GroupElement:
    """An element with scales of exactly 1 where they are that within rounding: these neurons were not scaled."""
    matrices = {}
    for name, m in element.matrices.items():
        scales = [torch.where((s.abs() - 1).abs() <= limit, s.sign(), s) for s in m.scales]
        matrices[name] = MonomialMatrix(scales, m.permutation, m.permutes)
    return GroupElement(element.space, matrices)


def _weights(
    space: WeightSpace,
    element: GroupElement,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    sizes: Mapping[str, int],
) -> Comparison:
    """The comparison of all parameters once an element has moved b."""
    acting = [kind for kind in _KINDS if any(_acts(m, kind) for m in element.matrices.values())]
    subsets = [frozenset(s) for n in range(len(acting) + 1) for s in itertools.combinations(acting, n)]
    parts = {subset: _part(element, subset) for subset in subsets}
    totals, layers, agreement = dict.fromkeys(subsets, 0.0), {}, []
    for name in space.parameters:
        dtypes = a[name].dtype, b[name].dtype
        # What is narrower than float32 is compared in it: it need not be held in float64.
        mine, other = (network[name].detach().to("cpu", comparison_dtype(*dtypes)) for network in (a, b))
        moved, squares = other, []
        # The first part is without symmetries, the last one the whole element.
        for subset, part in parts.items():
            moved = part.act({name: other})[name]
            squares.append(float((mine - moved).square_().sum(dtype=torch.float64)))
            totals[subset] += squares[-1]
        layers[name] = LayerDistance(squares[0] ** 0.5, squares[-1] ** 0.5)
        agreement.append(rounding_of(mine, moved, multiplied_by(space, element, name, mine.shape, sizes), dtypes))
    off, equal = max(x.error for x in agreement), all(x.equal for x in agreement)
    of_two = any(a[name].dtype != b[name].dtype for name in space.parameters)
    # Scales are there to explain what permutations and signs leave.
    rigid = totals[frozenset(acting) & _RIGID]
    dtype_a, dtype_b = (least_precise(network[name].dtype for name in space.parameters) for network in (a, b))
    move = Move(
        "a symmetry makes all weights equal",
        stored=rigid**0.5 if "scale" in acting else totals[frozenset()] ** 0.5,
        left=totals[frozenset(acting)] ** 0.5,
        off=off,
        dtypes=(dtype_a, dtype_b),
        equal=equal,
        close=all(x.close for x in agreement),
        cast=equal and of_two and "scale" not in acting,
    )
    return Comparison(False, "", None, off, element, layers, _explained(totals), (), (), move)


def _explained(squares: dict[frozenset[str], float]) -> dict[str, float]:
    """Shares of the squared distance, from what is left of it for each subset of the kinds of symmetry."""
    nothing, everything = next(iter(squares)), next(reversed(squares))
    total = squares[nothing]
    if not total:
        return dict.fromkeys((*_KINDS, "rest"), 0.0)
    most = max(0.0, total - squares[everything])

    def gain(kinds: Iterable[str]) -> float:
        return min(most, max(total - left for subset, left in squares.items() if subset <= frozenset(kinds)))

    shares, orders = dict.fromkeys(_KINDS, 0.0), list(itertools.permutations(everything))
    for order in orders:
        for i, kind in enumerate(order):
            shares[kind] += (gain(order[: i + 1]) - gain(order[:i])) / total / len(orders)
    return {**shares, "rest": 1 - most / total}


def _acts(matrix: MonomialMatrix, kind: str) -> bool:
    """True if a matrix has a permutation, scale or sign other than that of the identity."""
    if kind == "permutation":
        return not torch.equal(matrix.permutation, torch.arange(matrix.size))
    return is_scaling(matrix) if kind == "scale" else any(bool((s < 0).any()) for s in matrix.scales)


def _part(element: GroupElement, kinds: frozenset[str]) -> GroupElement:
    """Some kinds of an element's symmetries: its permutations, scales or signs."""
    matrices = {}
    for name, m in element.matrices.items():
        scales = [s.abs() if "scale" in kinds else torch.ones_like(s) for s in m.scales]
        if "sign" in kinds:
            scales = [x * s.sign() for x, s in zip(scales, m.scales, strict=True)]
        moves = "permutation" in kinds
        matrices[name] = MonomialMatrix(scales, m.permutation) if moves else MonomialMatrix.diagonal(scales)
    return GroupElement(element.space, matrices)
