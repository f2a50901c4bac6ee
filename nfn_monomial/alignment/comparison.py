"""What two networks have in common: the same function up to symmetry, and if not, what is left between them."""

from __future__ import annotations

import itertools
import math
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nfn_monomial.checks import Seed, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space import packing
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix
from nfn_monomial.space.weight_space import WeightSpace

from .align import align, sizes_of
from .exact import matched, wide_dtype
from .outputs import OutputDifference, output_difference
from .rounding import differing, is_scaling, largest_error, tolerance

_KINDS = ("permutation", "scale", "sign")
_RIGID = frozenset({"permutation", "sign"})
_SEARCHED = 100_000_000  # entries of the largest networks for which `align`, which holds them in float64, is asked


class LayerDistance(NamedTuple):
    """How far apart two networks are in one parameter.

    Attributes:
        raw_l2: root of the sum of squared differences, as they are.
        aligned_l2: once b is moved next to a.
    """

    raw_l2: float
    aligned_l2: float


@dataclass(frozen=True)
class Comparison:
    """What `compare` found; ``print`` says it in words.

    Attributes:
        same_function: whether a group element makes all weights equal, what it does not move is equal, and outputs,
            where there are any, agree.
        verdict: the same in words, which also say where only the answers are alike.
        max_output_difference: the largest difference of any output on the inputs, in float64; None without a module.
        relative_output_difference: the same, relative to the largest output of each tensor.
        max_weight_difference: the largest difference of any entry once b is aligned, relative to the entry.
        group_element: what moves b next to a; nodes that it has no matrix of stay as they are.
        layers: parameter -> its distances.
        explained: what part of the squared distance of all parameters each kind of symmetry explains:
            ``permutation``, ``scale``, ``sign``, and what is left, ``rest``. They add up to 1; all are 0 where there is
            no distance.
    """

    same_function: bool
    verdict: str
    max_output_difference: float | None
    relative_output_difference: float | None
    max_weight_difference: float
    group_element: GroupElement
    layers: dict[str, LayerDistance]
    explained: dict[str, float]
    unmoved: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """All of it as what ``json.dumps`` takes; infinite numbers as None."""
        values = {x.name: getattr(self, x.name) for x in fields(self)}
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
    """Whether two networks are the same function up to the symmetries of their space, and how they differ.

    Network b is moved next to a (`align`). They are the **same function** if then

    - every entry of b is that of a, within rounding (below). The group keeps the function, so this is a proof up to
      rounding. Parameters that do not matter to the function (``space.dead``) are left out;
    - what no symmetry moves, every key outside of the space, is equal: masks, orders of inputs, their mean and
      deviation. Counters of batches are left out. A mask that was permuted along with its neurons is another one here;
    - with a module: its outputs agree on the inputs, to the root of the dtype's precision, and the element leaves b's
      outputs alone to 1e-8 in float64. All keys of a network that the module has go into it, and what a network lacks
      is the module's. Keys that no operation of it reads, in eval mode on these inputs, may differ: `Comparison.unread`
      names them. Without a module nobody knows what is read, so all count; and the buffers are taken to be such that
      the group keeps the function.

    **Rounding.** Parameters that are not scaled are moved exactly: of one dtype they have to be equal. So have all
    where the element is the identity but for scales of 1 within rounding (in bfloat16 and float16 also where it only
    permutes and flips besides). Of two dtypes, half a unit in the last place of each is tolerated. What is scaled has
    been rounded, and so have been the two factors that were found for it: three half-units of a dtype narrower than
    float32. In float32 it is 16 units, as many factors may have been multiplied in it one after the other; 1e-10 of
    the entry in float64, to which scales are found. Scaled networks that differ by less cannot be told apart.

    Networks that only answer alike, and that no symmetry was found to relate, are not called the same; the verdict says
    so.

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
    >>> found = compare(space, a, b)
    >>> found.same_function, round(sum(found.explained.values()), 6)
    (True, 1.0)
    """
    if (module is None) != (inputs is None):
        raise InvalidValueError("compare: a module and its inputs are needed together, module=net, inputs=x")
    sizes = sizes_of(space, {"a": a, "b": b}, one_dtype=True)
    for other, name in space.ties.items():
        if any(other in network and differing({name: network[other]}, {name: network[name]}) for network in (a, b)):
            raise InvalidValueError(
                f"compare: {name} and {other} are one tensor of {space}, but a network has two values for them: leave "
                "one of them out"
            )
    with torch.no_grad():
        weights = _aligned(space, _without_dead(space, a, sizes), _without_dead(space, b, sizes), seed)
        outputs = OutputDifference((a, b))
        if module is not None:
            outputs = output_difference(space, weights.group_element, module, inputs, (a, b))
        different = differing(*outputs.unmoved, leave_out={*space.parameters, *space.ties})
    unmoved = tuple(key for key in different if outputs.read is None or key in outputs.read)
    alike = None
    if outputs.relative is not None:
        eps = max(torch.finfo(network[name].dtype).eps for network in (a, b) for name in space.parameters)
        alike = outputs.relative <= math.sqrt(eps) and (outputs.kept or not weights.same_function)
    equal = "different" if not weights.same_function else "weights" if unmoved else "equal"
    return replace(
        weights,
        same_function=equal == "equal" and alike is not False,
        verdict=_VERDICTS[equal, alike].format(", ".join(unmoved)),
        max_output_difference=outputs.largest,
        relative_output_difference=outputs.relative,
        unmoved=unmoved,
        unread=tuple(key for key in different if key not in unmoved),
    )


_VERDICTS = {
    ("equal", None): "the same function: a symmetry makes all weights equal",
    ("equal", True): "the same function: a symmetry makes all weights equal, and the outputs agree",
    ("equal", False): "not the same: a symmetry makes all weights equal, but the outputs differ",
    ("weights", None): "not known to be the same: a symmetry makes all weights equal, but other tensors differ: {}",
    ("weights", True): "not known to be the same: the outputs agree on the inputs tried, but other tensors differ: {}",
    ("weights", False): "not the same: the outputs differ",
    ("different", None): "not the same: no symmetry was found that makes all weights equal",
    ("different", True): "not known to be the same: the outputs agree on the inputs tried, but no symmetry was found",
    ("different", False): "not the same: the outputs differ",
}
"""By what is equal, all or the weights alone, and whether outputs agree, None without a module."""


def _without_dead(space: WeightSpace, network: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Mapping[str, Tensor]:
    """A network with zeros for what does not matter; tensors without such are read when they are asked for."""
    parameters = {space.pieces[name].parameter for name in space.dead}
    behind: Any = network
    return ChainMap({name: packing.without_dead(space, name, network[name], sizes) for name in parameters}, behind)


def _aligned(space: WeightSpace, a: Mapping[str, Tensor], b: Mapping[str, Tensor], seed: int) -> Comparison:
    """What is left between the parameters of a and b, once b is moved next to a."""
    weights = _weights(matched(space, a, b), a, b)
    if not weights.same_function and sum(a[name].numel() for name in space.parameters) <= _SEARCHED:
        weights = _weights(align(space, a, b, seed=seed).element, a, b)
    if weights.same_function:
        simpler = _unscaled(weights.group_element, a, b)
    else:
        raw, left = (sum(layer[i] ** 2 for layer in weights.layers.values()) for i in range(2))
        simpler = GroupElement(space, {}) if raw <= left else None
    return weights if simpler is None else _weights(simpler, a, b)


def _unscaled(element: GroupElement, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> GroupElement | None:
    """An element whose scales are 1 within rounding without them; None where there are others.

    The scales that are found between networks that were not scaled are off by what else differs between these: to
    leave them out is to see that. In float32 and float64 this is done where nothing is permuted or flipped besides:
    canonical forms, which have been computed, may be permuted.
    """
    dtypes = {network[name].dtype for network in (a, b) for name in element.space.parameters}
    limits = [torch.finfo(dtype) for dtype in dtypes]
    bound = max(map(tolerance, limits))
    if any(bool(((s.abs() - 1).abs() > bound).any()) for m in element.matrices.values() for s in m.scales):
        return None
    if not any(_acts(m, kind) for m in element.matrices.values() for kind in _RIGID):
        return GroupElement(element.space, {})
    return _part(element, _RIGID) if all(limit.bits < 32 for limit in limits) else None


def _weights(element: GroupElement, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Comparison:
    """What is left between all parameters, once an element has moved b."""
    acting = [kind for kind in _KINDS if any(_acts(m, kind) for m in element.matrices.values())]
    subsets = [frozenset(s) for n in range(len(acting) + 1) for s in itertools.combinations(acting, n)]
    parts = {subset: _part(element, subset) for subset in subsets}
    totals, layers, worst, same = dict.fromkeys(subsets, 0.0), {}, 0.0, True
    for name in element.space.parameters:
        dtypes = a[name].dtype, b[name].dtype
        # What is narrower than float32 is compared in it: it need not be held in float64.
        mine, other = (network[name].detach().to("cpu", wide_dtype(*dtypes)) for network in (a, b))
        moved, squares = other, []
        # The first part is without symmetries, the last one the whole element.
        for subset, part in parts.items():
            moved = part.act({name: other})[name]
            squares.append(float((mine - moved).square_().sum(dtype=torch.float64)))
            totals[subset] += squares[-1]
        layers[name] = LayerDistance(squares[0] ** 0.5, squares[-1] ** 0.5)
        error, rounding = largest_error(name, element, dtypes, mine, moved)
        worst, same = max(worst, error), same and rounding
    verdict = _VERDICTS["equal" if same else "different", None]
    return Comparison(same, verdict, None, None, worst, element, layers, _explained(totals))


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
    """Whether a matrix permutes, scales, or flips anything."""
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
