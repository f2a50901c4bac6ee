"""Many networks in one frame, so that the ways between them compose: from i to j to k is from i to k.

Matched pair by pair, they do not: permutations found from 1 to 2, 2 to 3 and 3 to 1 need not lead back. With one
element ``g_i`` for each network, which leads to a frame that all share, ``g_ij = g_i^{-1} g_j`` does by construction
(Crisostomi et al. 2024, C2M3; Ainsworth et al. 2022, Sec. 3.4, merge many networks in the same way).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from nfn_monomial.checks import Seed, checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.geometry import SymmetryLike
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.weight_space import WeightSpace

from .align import align, balancing_elements
from .networks import distance_between, in_float64, sizes_of
from .path import mean_of

_ROUNDS = 100
_WON = 1e-9  # of a distance: less is rounding


class CommonFrame(NamedTuple):
    """Networks in one frame, by `align_all`.

    Attributes:
        elements: one for each network, in float64; the first is the identity. ``elements[i].inverse() @ elements[j]``
            moves network j into the frame of network i.
        aligned: ``elements[i].act(networks[i])``, all in the frame of the first network. Their mean (`mean_of`) is the
            merged network.
    """

    elements: list[GroupElement]
    aligned: list[dict[str, Tensor]]


@checked
def align_all(
    space: WeightSpace,
    networks: Sequence[Mapping[str, Tensor]],
    *,
    symmetry: SymmetryLike | None = None,
    seed: Seed = 0,
) -> CommonFrame:
    """Moves N networks next to one another by group elements: the sum of squared distances of all pairs is small.

    Scales are fixed by balancing every network (see `nfn_monomial.balance`): distances between balanced networks know
    permutations and signs only, and do not shrink because all networks do. Then all networks are aligned to the first,
    and after that, round by round, each to the mean of the others, which is to the others: for given others,
    ``sum_j ||x - y_j||^2`` and ``||x - mean y||^2`` have the same least x. At last everything is moved into the frame
    of the first network as it was given.

    Args:
        space: the weight space.
        networks: N >= 2 of them, parameter name -> tensor ``(*shape)``, all of one architecture.
        symmetry: a smaller group, see `align`.
        seed: see `align`.

    Raises:
        ValueError: for fewer than two networks, or as `align`.
        TypeError: as `align`.

    >>> import torch
    >>> space = WeightSpace.mlp([2, 8, 1], "relu")
    >>> a = {name: torch.randn(shape, dtype=torch.float64) for name, shape in space.shapes().items()}
    >>> frame = align_all(space, [a, *(space.sample().act(a) for _ in range(3))])
    >>> all(torch.allclose(network["weight.0"], a["weight.0"]) for network in frame.aligned)
    True
    """
    if len(networks) < 2:
        raise InvalidValueError(f"align_all: at least two networks are needed, found {len(networks)}")
    group = space if symmetry is None else space.restricted(symmetry)
    rigid = group.restricted("sign")
    sizes = sizes_of(space, {f"{number}": network for number, network in enumerate(networks)})
    wide = [in_float64(space, network) for network in networks]
    elements = balancing_elements(group, wide, sizes)
    moved = [element.act(network) for element, network in zip(elements, wide, strict=True)]

    def improve(i: int, target: Mapping[str, Tensor]) -> bool:
        alignment = align(rigid, target, moved[i], seed=seed)
        won = alignment.distance < (1 - _WON) * distance_between(target, moved[i])
        if won:
            elements[i] = GroupElement(group, alignment.element.matrices) @ elements[i]
            moved[i] = alignment.aligned
        return won

    for i in range(1, len(moved)):
        improve(i, moved[0])
    for _ in range(_ROUNDS):
        if not sum(improve(i, mean_of(moved[:i] + moved[i + 1 :])) for i in range(len(moved))):
            break
    back = elements[0].inverse()
    whole = [GroupElement(space, {}), *(GroupElement(space, (back @ g).matrices) for g in elements[1:])]
    return CommonFrame(whole, [g.act(network) for g, network in zip(whole, networks, strict=True)])
