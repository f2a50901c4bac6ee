"""Nodes: sets of neurons, the gauges that act on each neuron, and the nodes that they are nested in."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import NamedTuple

from torch import nn

from nfn_monomial.checks import Size
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.symmetry import Symmetry

from .axes import Charge, powers

TAKEN = frozenset((*dir(nn.ModuleDict()), *dir(nn.ParameterDict())))
"""Names that no node can have."""


class Node(NamedTuple):
    """A set of neurons: the gauges that act on each of them, over one permutation of all, its size and its parent.

    Attributes:
        gauges: independent factors on every neuron, over one permutation: a positive number (SCALE), a sign (SIGN), or
            both with equal charges (MONOMIAL). PERMUTATION is no factor: charges on it only say which way a network
            runs. FIXED neurons have no other gauge.
        size: number of neurons, where it is known (always for FIXED); of a nested node, in each neuron of its parent.
        parent: the node in whose neurons these are nested, such as an attention head for its channels: they are
            permuted and scaled in each neuron of the parent independently, and move along with it. A parent may be
            FIXED, such as a set of experts in a fixed order: then fields have its axis, though nothing acts on it.
    """

    gauges: tuple[Symmetry, ...]
    size: Size | None = None
    parent: str | None = None

    @property
    def symmetry(self) -> Symmetry:
        """The smallest symmetry that contains all gauges: most nodes have one gauge, and this is it."""
        return functools.reduce(operator.or_, self.gauges)

    @property
    def permutes(self) -> bool:
        """True where neurons are permuted: on all nodes but FIXED ones."""
        return self.gauges[0].permutes

    @property
    def scales(self) -> bool:
        """True where a positive factor acts on a neuron."""
        return any(gauge.scales for gauge in self.gauges)

    @property
    def flips(self) -> bool:
        """True where a sign acts on a neuron."""
        return any(gauge.flips for gauge in self.gauges)

    def charge(self, charge: Charge) -> Charge:
        """Reduces ``charge`` to what the gauges can tell apart, see `Symmetry.charge`; a number for one gauge.

        A number on a node of several gauges is a charge on the first of them.
        """
        reduced = tuple([q and g.charge(q) for g, q in zip(self.gauges, self.spelled(charge), strict=True)])
        return reduced if len(reduced) > 1 else reduced[0]

    def spelled(self, charge: Charge) -> tuple[int, ...]:
        """``charge`` with one number for each gauge, not reduced."""
        numbers = powers(charge)
        if len(numbers) > len(self.gauges) or (not isinstance(charge, int) and len(numbers) < len(self.gauges)):
            raise InvalidValueError(
                f"charge {charge} has {len(numbers)} entries for the {len(self.gauges)} gauges of a node"
            )
        return (*numbers, *[0] * (len(self.gauges) - len(numbers)))

    def acting(self, charge: Charge) -> Symmetry:
        """The part of the node's group that an axis of this charge feels."""
        # An axis feels one or two gauges, even where there are hundreds, as on the stream of a deep network.
        felt = (gauge.acting(q) for gauge, q in zip(self.gauges, self.spelled(charge), strict=True) if q)
        return functools.reduce(operator.or_, felt, self.gauges[0].acting(0))

    def restricted(self, group: Symmetry) -> Node:
        """The same neurons under a smaller group: every gauge is intersected with it, and charges stay."""
        return self._replace(gauges=tuple(gauge & group for gauge in self.gauges))


def checked_nodes(nodes: Mapping[str, Symmetry | tuple[Symmetry, int | None] | Node]) -> dict[str, Node]:
    """Returns every node as a `Node`.

    Raises:
        ValueError: naming the node whose name, gauges, size or parent cannot be.
    """
    as_nodes: dict[str, Node] = {}
    for name, node in nodes.items():
        if isinstance(node, Node):
            as_nodes[name] = node._replace(gauges=tuple(node.gauges))
        else:
            as_nodes[name] = Node((node,)) if isinstance(node, Symmetry) else Node((node[0],), *node[1:])
    for name, node in as_nodes.items():
        if not name.isidentifier():
            raise InvalidValueError(f"node name {name!r}: names must be identifiers, as h1 or conv_2")
        if name in TAKEN:
            raise InvalidValueError(
                f"node name {name!r}: torch's containers of modules, in which layers keep what belongs to a node, "
                f"have an attribute of that name; use {name}_"
            )
        if not node.gauges or (len(node.gauges) > 1 and Symmetry.FIXED in node.gauges):
            raise InvalidValueError(f"node {name!r} has gauges {node.gauges}: one or more, FIXED only alone")
        if not node.permutes and node.size is None:
            raise InvalidValueError(f"node {name!r} is FIXED, so its size must be given: its axes become channels")
        if node.size is not None and node.size < 1:
            raise InvalidValueError(f"node {name!r} has size {node.size}; at least 1 is needed")
    for name, node in as_nodes.items():
        if node.parent is None:
            continue
        if node.parent not in as_nodes:
            raise InvalidValueError(
                f"node {name!r} is nested in {node.parent!r}, which is no node; nodes: {', '.join(as_nodes)}"
            )
        if not node.permutes:
            raise InvalidValueError(
                f"node {name!r} is nested in {node.parent!r}, so it may not be FIXED; use a size instead"
            )
        path = [name]
        while (parent := as_nodes[path[-1]].parent) in as_nodes:
            if parent in path:
                raise InvalidValueError(f"node {parent!r} is nested in itself")
            path.append(parent)
    return as_nodes


def ancestry(nodes: Mapping[str, Node], name: str) -> tuple[str, ...]:
    """A node after all that it is nested in, the outermost first."""
    parent = nodes[name].parent
    return (name,) if parent is None else (*ancestry(nodes, parent), name)
