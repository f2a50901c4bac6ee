"""Moves one network next to another by an element of the group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nfn_monomial.canonical.balance import rescaling
from nfn_monomial.canonical.charges import NodeGauge, wide_dtype
from nfn_monomial.canonical.neuron_features import Refinement, whole_slices
from nfn_monomial.canonical.signs import parity, relative_signs, sign_bases
from nfn_monomial.checks import Seed, checked
from nfn_monomial.space import packing
from nfn_monomial.space.geometry import SymmetryLike
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix
from nfn_monomial.space.weight_space import WeightSpace

from .matching import Match, assign, element_of, family, roots
from .networks import Network, distance_between, in_float64, sizes_of, square_of
from .scales import nearest_scales

_SAME = 1e-10  # relative squared distance at which there is nothing to be improved
_SWEEPS = 50
_WORK = 3e11  # products of two entries in sweeps from all starts: more than so many would take minutes
_ENOUGH = 1e11  # such products in the sweeps from one start, of which the first two win nearly all that there is
_STARTS = 6
_RELATED = 0.1  # relative squared distance: so near comes nothing by accident
_NOISE = 1e-12


class Alignment(NamedTuple):
    """Two networks next to one another, by `align`.

    Attributes:
        element: the group element, in float64.
        aligned: ``element.act(b)``.
        distance: the Euclidean distance of all parameters of a and ``aligned``, computed in float64.
    """

    element: GroupElement
    aligned: dict[str, Tensor]
    distance: float

    @property
    def unmoved(self) -> list[str]:
        """Names in b that are no parameters of the space: in ``aligned`` as they were, where neurons may have moved."""
        return [name for name in self.aligned if name not in self.element.space.parameters]


@checked
def align(
    space: WeightSpace, a: Network, b: Network, *, symmetry: SymmetryLike | None = None, seed: Seed = 0
) -> Alignment:
    """Finds a group element g that moves network b next to network a: ``||a - g.b||`` is small.

    For networks that are equal up to the group, it is 0 within rounding, at any scales. For others it is a minimum
    that cannot be improved by permuting, flipping and scaling one node's neurons at a time, and never larger than
    ``||a - b||``. It need not be the least of all minima, which is NP-hard to find.

    Scales are taken away first, by balancing both networks (see `nfn_monomial.balance`), because equal functions have
    equal sizes then. Neurons get features from their neighbours, and those with similar features are matched. Then the
    neurons of one node after the other are assigned anew, with the best signs, while all others stay, until that brings
    b no nearer. At last the scales that are left are fitted by least squares.

    Everything is computed on the CPU in float64, wherever the tensors are, because assignments are; the element and the
    moved network are on b's device.

    Args:
        space: the weight space.
        a: parameter name -> tensor ``(*shape)``, one network, floating point. Other names than those of the space's
            parameters are ignored.
        b: the same, of the network to be moved.
        symmetry: a smaller group: ``"permutation"`` only permutes, ``"sign"`` flips as well, ``"scale"`` scales but
            does not flip. By default the whole group of the space.
        seed: of the order of nodes, and of the other starts of the search.

    Raises:
        ValueError: for parameters that are missing, whose shapes do not fit the space or one another, or that hold NaN
            or infinite values.
        TypeError: for anything but a mapping to floating point tensors.

    >>> space = WeightSpace.mlp([2, 8, 1], "relu")
    >>> a = {name: torch.randn(shape, dtype=torch.float64) for name, shape in space.shapes().items()}
    >>> b = space.sample().act(a)
    >>> align(space, a, b).distance < 1e-9
    True
    """
    group = space if symmetry is None else space.restricted(symmetry)
    sizes = sizes_of(space, {"a": a, "b": b})
    wide_a, wide_b = (in_float64(space, network) for network in (a, b))
    with torch.no_grad():
        element, distance = _searched(group, wide_a, wide_b, sizes, seed)
        if (unmoved := distance_between(wide_a, wide_b)) <= distance:
            element, distance = element_of(group, sizes), unmoved
        # An element of the whole group, on b's device, in the widest numbers that this has.
        like = b[next(iter(space.parameters))]
        matrices = {
            name: MonomialMatrix(
                [s.to(like.device, wide_dtype(like)) for s in m.scales], m.permutation.to(like.device), m.permutes
            )
            for name, m in element.matrices.items()
        }
        element = GroupElement(space, matrices)
        return Alignment(element, element.act(b), distance)


def _searched(
    space: WeightSpace, a: dict[str, Tensor], b: dict[str, Tensor], sizes: Mapping[str, int], seed: int
) -> tuple[GroupElement, float]:
    """The element of `align` on a space whose group may be smaller, and the distance that it leaves."""
    frames = balancing_elements(space, [a, b], sizes)
    balanced = frames[0].act(a), frames[1].act(b)
    search, as_it_is = (_Search(space, *balanced, sizes) for _ in range(2))
    search.match()
    if search.left() > _SAME:
        # Networks of one origin may still have their neurons in the same places.
        starts = sorted((search, as_it_is), key=_Search.left)
        starts[0].descend(seed)
        if starts[0].left() > _RELATED:
            # Networks of no common origin have many minima: of small ones, several are cheap.
            count = int(min(_STARTS, _WORK / _SWEEPS / search.work))
            starts += [_Search(space, *balanced, sizes) for _ in range(count - len(starts))]
            for number, start in enumerate(starts[1:count], 1):
                if start is not as_it_is:
                    start.shuffle(seed + number)
                start.descend(seed + number)
        search = min(starts, key=_Search.left)
    element = frames[0].inverse() @ search.element @ frames[1]
    moved = element.act(b)
    distance = distance_between(a, moved)
    if distance**2 > _SAME * square_of(a):
        scales = nearest_scales(space, *(packing.pieces(space, network, sizes) for network in (a, moved)))
        nearer = element_of(space, sizes, scales=scales)
        if (less := distance_between(a, nearer.act(moved))) < distance:
            return nearer @ element, less
    return element, distance


def balancing_elements(space: WeightSpace, networks: Sequence[Network], sizes: Mapping[str, int]) -> list[GroupElement]:
    """The elements that balance the scales of networks; of all nodes, which products of elements need."""
    if not any(node.scales for node in space.nodes.values()):
        return [element_of(space, sizes)] * len(networks)
    batch = {name: torch.stack([network[name] for network in networks])[:, None] for name in space.parameters}
    logs = rescaling(space, space.pack(batch), signs=False, converge=True).logs
    return [
        element_of(space, sizes, scales={gauge: log[i].exp() for gauge, log in logs.items()})
        for i in range(len(networks))
    ]


class _Search:
    """Network b on its way to a, by permutations and signs.

    Attributes:
        a: the one network.
        b: the other, as moved so far.
        element: the element that has moved it.
    """

    def __init__(self, space: WeightSpace, a: Network, b: Network, sizes: Mapping[str, int]) -> None:
        self.space, self.a, self.b, self.sizes = space, dict(a), dict(b), sizes
        self.bases = sign_bases(space)
        self.element = element_of(space, sizes)
        self.parts = packing.pieces(space, self.a, sizes)
        self.norm = square_of(self.a)

    def left(self) -> float:
        """The squared distance, relative to the square of a's norm."""
        return distance_between(self.a, self.b) ** 2 / self.norm if self.norm else 0.0

    @property
    def work(self) -> int:
        """The number of products of two entries that a sweep takes, at least 1."""
        ends = [(link.parameter, end.node) for link in self.space.links for end in link.ends]
        return 1 + sum(self.parts[piece].numel() * self.space.count(node, self.sizes) for piece, node in ends)

    def shuffle(self, seed: int) -> None:
        """Moves neurons to random places."""
        generator = torch.Generator().manual_seed(seed)
        drawn = self.space.sample(sizes=self.sizes, generator=generator).matrices
        sources = {name: matrix.permutation for name, matrix in drawn.items()}
        self._move(element_of(self.space, self.sizes, sources=sources), self.b)

    def match(self) -> None:
        """Matches neurons by their features, then settles their signs."""
        moved = packing.pieces(self.space, self.b, self.sizes)
        features = [
            Refinement(self.space, whole_slices(self.space, x), self.sizes).refine() for x in (self.parts, moved)
        ]
        self._move(Match(self.space, self.sizes, *features).element(), self.b)
        products = {name: (x * self.b[name])[None, None] for name, x in self.a.items()}
        signs = relative_signs(self.space, self.space.pack(products, check_finite=False))
        self._move(element_of(self.space, self.sizes, scales=signs), self.b)

    def descend(self, seed: int) -> None:
        """Assigns the neurons of one family after the other anew, until that brings b no nearer.

        A family is left alone while nothing that it is linked to has moved. Large networks get fewer sweeps.
        """
        generator = torch.Generator().manual_seed(seed)
        order = roots(self.space)
        touched = {  # parameters that move along with a family
            root: {
                self.space.pieces[link.parameter].parameter
                for link in self.space.links
                if any(root in self.space.ancestry(end.node) for end in link.ends)
            }
            for root in order
        }
        stale = set(order)
        for _ in range(int(min(_SWEEPS, max(2, _ENOUGH / self.work)))):
            for i in torch.randperm(len(order), generator=generator).tolist():
                if order[i] in stale:
                    stale.discard(order[i])
                    if self._improve(order[i], touched[order[i]]):
                        stale |= {other for other in order if touched[other] & touched[order[i]]}
            if not stale:
                break

    def _improve(self, root: str, touched: set[str]) -> bool:
        """Assigns one family's neurons anew, with the best signs, where that brings b nearer; says whether it does."""
        sums = {name: of_node for name in family(self.space, root) if (of_node := self._sums(name))}
        fits = {name: self.bases[name].best(of_node)[0] for name, of_node in sums.items()}
        sources = assign(self.space, root, fits, self.sizes)
        signs: dict[NodeGauge, Tensor] = {}
        for name, products in sums.items():
            places = torch.arange(len(sources[name])), sources[name]
            best = self.bases[name].best({flips: x[places] for flips, x in products.items()})[1]
            signs |= self.bases[name].of_gauges(best)
        step = element_of(self.space, self.sizes, sources=sources, scales=signs)
        before = {name: self.b[name] for name in touched}
        after = step.act(before)
        gain = sum(float((self.a[name] * (after[name] - before[name])).sum()) for name in touched)
        if not gain > _NOISE * self.norm:
            return False
        self._move(step, before)
        return True

    def _move(self, step: GroupElement, tensors: Network) -> None:
        self.b |= step.act(tensors)
        self.element = step @ self.element

    def _sums(self, node: str) -> dict[int, Tensor]:
        """Class of signs -> ``(neurons, neurons)`` sums of products of the entries at a's neurons and at b's."""
        sums: dict[int, Tensor] = {}
        for link in self.space.links:
            parameter = self.space.pieces[link.parameter].parameter
            for end in (end for end in link.ends if end.node == node):
                moved = dict(packing.cut(self.space, parameter, self.b[parameter], self.sizes))[link.parameter]
                mine, other = (
                    end.flatten(x, 0).reshape(self.space.count(node, self.sizes), -1)
                    for x in (self.parts[link.parameter], moved)
                )
                flips = parity(self.space, node, end.charge)
                sums[flips] = sums.get(flips, 0) + mine @ other.T
        return sums
