"""The symmetries of any network, from its computation: index sets, nests, gauges, as nodes and axes.

Two passes over the program, with a value between them: `tie` says which dimensions are one index set, `demand` which
equations scales and signs have to fulfil. The solutions of these are the gauges, and all of it is written as nodes and
axes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.export import ExportedProgram

from nfn_monomial.checks import checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.space.axes import Dim
from nfn_monomial.space.nodes import Node
from nfn_monomial.space.origin import Origin

from .graph import Program, program_of
from .passes import demand, tie
from .solve.gauges import Gauges
from .write import Ending, Entries, Writer


class Derivation(NamedTuple):
    """The arguments that a `WeightSpace` is made from.

    Attributes:
        nodes: name -> node, in the order of execution.
        parameters: name in the state dict -> dimensions. Parameters that are not read are left out.
        origin: what nodes run through, and what was lost and left out.
        ties: other name in the state dict -> name among ``parameters``.
    """

    nodes: dict[str, Node]
    parameters: dict[str, tuple[Dim, ...]]
    origin: Origin
    ties: dict[str, str]


@checked
def derive(
    module: nn.Module | ExportedProgram | Program,
    example_inputs: Tensor | Sequence[Any] = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    frozen: Collection[str] = (),
    dead: Callable[..., Mapping[Entries, Ending]] | None = None,
) -> Derivation:
    """Derives nodes with all permutations, scalings and sign flips that a network's operators are known to allow.

    Args:
        module: any network that ``torch.export`` can trace, taken in eval mode; an exported program; or a
            `Program`, which needs none of the next three arguments.
        example_inputs: one tensor or a tuple of arguments; not needed for an exported program.
        kwargs: keyword arguments of the call.
        frozen: names of parameters and buffers that stay as they are.
        dead: finds parts of parameters that do not matter, see `nfn_monomial.verify.dead.dead_parts`.

    Raises:
        TypeError: if ``module`` is neither.
        ValueError: if it does not run on the inputs, cannot be exported, uses no parameter, or has parameters
            that no group can act on (complex or whole numbers, NaN, overlapping views).

    How it is done: docs/any-network.md.
    """
    program = module if isinstance(module, Program) else program_of(module, example_inputs, kwargs, frozen)
    if not program.tensors:
        raise InvalidValueError(f"{program.name} uses none of its parameters: there is nothing to derive a space of")
    ties = tie(program)
    equations = demand(program, ties)
    gauges = Gauges(ties, equations)
    without = dead(program, ties.parameters, ties.fixed) if dead else {}
    writer = Writer(program, ties, equations, gauges, without)
    other_names = {other: name for other, name in program.ties.items() if name in writer.parameters}
    return Derivation(writer.nodes, writer.parameters, writer.origin(), other_names)
