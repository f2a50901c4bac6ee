"""The symmetries of any network, from its computation: index sets, nests, gauges, as nodes and axes.

The program is run through the rules of its operators until no dimension of a parameter is cut or factored any further.
What the last run ties is one node; the equations that it demands have the gauges of these as their solutions.
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

from .algebra.atoms import Product
from .graph import program_of, ties_of
from .interpreter import Interpreter
from .solve.gauges import Charges
from .solve.nests import nests_of
from .write import Ending, Entries, Writer

_PASSES = 32


class Derivation(NamedTuple):
    """What `WeightSpace` is made from.

    Attributes:
        nodes: name -> node, in the order of execution.
        parameters: name in the state dict -> dimensions. Parameters that are not read are left out.
        origin: what was found, lost and left out.
        ties: other name in the state dict -> name among ``parameters``.
    """

    nodes: dict[str, Node]
    parameters: dict[str, tuple[Dim, ...]]
    origin: Origin
    ties: dict[str, str]


@checked
def derive(
    module: nn.Module | ExportedProgram,
    example_inputs: Tensor | Sequence[Any] = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    frozen: Collection[str] = (),
    dead: Callable[..., Mapping[Entries, Ending]] | None = None,
) -> Derivation:
    """The nodes of a network, with all permutations, scalings and sign flips that its operators are known to allow.

    Args:
        module: any network that ``torch.export`` can trace, taken in eval mode; or an exported program.
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
    program = program_of(module, example_inputs, kwargs, frozen)
    if not program.tensors:
        raise InvalidValueError(
            f"{type(module).__name__} uses none of its parameters: there is nothing to derive a space of"
        )
    structures: dict[str, Any] = {
        name: tuple((Product((n,) if n > 1 else ()),) for n in tensor.shape) for name, tensor in program.tensors.items()
    }
    for _ in range(_PASSES):
        found = Interpreter(program, structures)
        refined = found.structures()
        if refined == structures:
            break
        structures = dict(refined)
    else:
        raise InvalidValueError(
            f"the views of {type(module).__name__} cut its parameters again and again; simplify its reshapes"
        )
    atoms = found.run.atoms
    classes = {
        atoms.find(unknown.atom)
        for unknown in found.run.unknowns
        if unknown.atom is not None and atoms.cause(unknown.atom) is None
    }
    parents = nests_of(found.run, classes, found.roots.values())
    charges = Charges(found.run, found.roots, parents)
    without = dead(program, found.roots, found.run.fixed) if dead else {}
    writer = Writer(found, charges, parents, program, without)
    return Derivation(writer.nodes, writer.parameters, writer.origin(), ties_of(module, writer.parameters))
