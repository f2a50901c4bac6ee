"""The two passes of deriving: which dimensions are one index set, and what operations demand of scales and signs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nfn_monomial.errors import InvalidValueError

from .algebra.atoms import Atoms, Structure, Term
from .algebra.equations import Demand, Equations
from .algebra.run import Run
from .algebra.ties import Ties
from .algebra.values import Value
from .graph import Program
from .interpreter import Interpreter
from .solve.nests import nests_of

_ROUNDS = 32


def tie(program: Program) -> Ties:
    """Ties the dimensions of a program's tensors that have to be permuted together.

    The program is run through the rules of its operators, from parameters each of whose dimensions is one index set.
    Where an operator cuts or factors an index set, the program is run again, from parameters whose dimensions have
    these parts from the start, until nothing is cut any further. What operators demand of scales is not looked at.

    Raises:
        ValueError: if views cut parameters again and again.

    >>> import torch
    >>> from nfn_monomial.trace.graph import program_of
    >>> print(tie(program_of(torch.nn.Linear(3, 5), torch.ones(1, 3))))
    weight  (y, x)
    bias    (y)
    y       size 5, FIXED by y: output
    x       size 3, FIXED by x: input
    """
    structures: dict[str, tuple[Structure, ...]] = {
        name: tuple((Term((n,) if n > 1 else ()),) for n in tensor.shape) for name, tensor in program.tensors.items()
    }
    for _ in range(_ROUNDS):
        run = Run()
        parameters = _parameters(run, structures)
        interpreter = Interpreter(run)
        interpreter.execute(program, parameters)
        before, structures = structures, _structures(run.sets.atoms, parameters)
        if structures == before:
            break
    else:
        raise InvalidValueError("views cut the parameters of the module again and again; simplify its reshapes")
    atoms = run.sets.atoms
    moving = {u.atom for u in run.unknowns if u.atom is not None and atoms.cause(u.atom) is None}
    parents = nests_of(run, set(map(atoms.find, moving)), parameters.values())
    return Ties(
        atoms,
        parameters,
        structures,
        frozenset(run.sets.opened),
        parents,
        run.flows,
        interpreter.operations,
        interpreter.unknown,
        interpreter.probed,
        run.short,
    )


def demand(program: Program, ties: Ties) -> Equations:
    """Collects the equations that operators demand of log-scales and signs.

    The program is run through the rules once more, from parameters whose dimensions consist of the index sets of
    ``ties``: it ties these as before, and every atom has the number that it has there.

    >>> import torch
    >>> from nfn_monomial.trace.graph import program_of
    >>> program = program_of(torch.nn.Linear(3, 5), torch.ones(1, 3))
    >>> print(demand(program, tie(program)))
    linear: weight[1] = 0 in scale and sign
    linear: weight[0] = bias[0] in scale and sign
    linear: weight = bias in scale and sign
    y: weight[0] = 0 in scale and sign (output)
    y: weight = 0 in scale and sign (output)
    """
    demands: list[Demand] = []
    run = Run(demands)
    Interpreter(run).execute(program, _parameters(run, ties.structures))
    return Equations(run.unknowns, demands)


def _parameters(run: Run, structures: Mapping[str, Sequence[Structure]]) -> dict[str, Value]:
    return {name: run.parameter(name, structure) for name, structure in structures.items()}


def _structures(atoms: Atoms, parameters: Mapping[str, Value]) -> dict[str, tuple[Structure, ...]]:
    """Returns what the dimensions of parameters consist of after a run, as sizes."""
    return {
        name: tuple(
            atoms.sizes(atoms.sum([Term(tuple(i.atom for i in segment.indices), segment.lead) for segment in dim]))
            for dim in parameter.dims
        )
        for name, parameter in parameters.items()
    }
