"""The origin of a derived weight space: what its nodes run through, and which symmetries were lost where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from nfn_monomial.symmetry import Symmetry


class GroupFactor(NamedTuple):
    """One factor of a group.

    Attributes:
        node: on whose neurons it acts; the name of a piece that does not matter to the function, for ``"dead"``.
        kind: the factor of the group; ``"dead"`` replaces that piece by random numbers.
        gauge: number of the node's gauge, for scales and signs.
    """

    node: str
    kind: Literal["permutation", "scale", "sign", "dead"]
    gauge: int = 0


@dataclass(frozen=True)
class NodeReport:
    """One node.

    Attributes:
        name: of the node.
        size: number of its neurons; in each neuron of its parent, where it is nested.
        gauges: of the node.
        parent: the node that it is nested in.
        tensors: names of parameters with an axis on it.
        operations: what it runs through, in order: ``"module.path: operator"``.
    """

    name: str
    size: int
    gauges: tuple[Symmetry, ...]
    parent: str | None
    tensors: tuple[str, ...]
    operations: tuple[str, ...]


@dataclass(frozen=True)
class Loss:
    """A symmetry that a node does not have, because of one operation.

    Attributes:
        node: its name.
        symmetry: ``"permutation"``, ``"scale"`` or ``"sign"``.
        operation: ``"module.path: operator"``; the name of an input or output where that is the cause.
        reason: in a few words.
    """

    node: str
    symmetry: str
    operation: str
    reason: str


@dataclass(frozen=True)
class Dead:
    """A parameter that does not matter to the function, or is not read at all.

    Attributes:
        parameter: its name.
        reason: in a few words.
        left_out: whether the space is without it.
    """

    parameter: str
    reason: str
    left_out: bool


@dataclass(frozen=True)
class Origin:
    """Findings of deriving and testing a space, for `WeightSpace.explain`.

    Attributes:
        nodes: in the order of execution.
        losses: symmetries that nodes do not have, and the operations that cost them.
        dead: parameters that do not matter.
        unknown: operators without a rule, whose axes are FIXED: ``register_operator`` adds one.
        short: operations of which the example is too short to tell what they do: ``"module.path: operator"``.
        tested: how the group was tested, in words.
        lost: losses that the test made, which a narrower module passes on: parts of the group, and the sizes of inputs.
        probed: operators without a rule that were run alone, on random tensors, where they keep some permutations.
    """

    nodes: tuple[NodeReport, ...]
    losses: tuple[Loss, ...]
    dead: tuple[Dead, ...]
    unknown: tuple[str, ...]
    short: tuple[str, ...] = ()
    tested: str = ""
    lost: tuple[tuple[tuple[GroupFactor, ...], str], ...] = ()
    probed: tuple[str, ...] = ()
