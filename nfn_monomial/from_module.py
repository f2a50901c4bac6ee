"""`WeightSpace.from_module`: derives a space from a module's program, tests it, leaves out what the test refutes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from nfn_monomial.checks import checked
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.running import inputs_of
from nfn_monomial.space.axes import Axis, Dim, Sum, each_axis, flatten_dims, flow
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.nodes import TAKEN, Node
from nfn_monomial.space.origin import GroupFactor, Loss, Origin
from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.symmetry import Symmetry
from nfn_monomial.trace.derive import derive
from nfn_monomial.trace.graph import Program, program_of
from nfn_monomial.trace.write import Ending, Entries
from nfn_monomial.verify.certificate import certify as require_kept
from nfn_monomial.verify.dead import dead_parts

UNTESTED = (
    "Not tested, and parameters that do not matter to the function were not looked for: from_module(..., certify=False)"
)


@checked
def from_module(
    module: nn.Module | ExportedProgram,
    example_inputs: Any,
    *,
    kwargs: Mapping[str, Any] | None = None,
    certify: bool | nn.Module = True,
    frozen: Collection[str] = (),
) -> WeightSpace:
    """See `WeightSpace.from_module`."""
    name, exported = type(module).__name__, module
    if isinstance(module, ExportedProgram):
        if example_inputs is None:
            example_inputs, kwargs = module.example_inputs or ((), {})
        module = module.module(check_guards=False)
    inputs = () if example_inputs is None else inputs_of(example_inputs)
    examples = (inputs, kwargs)
    if any(t.is_meta for t in (*module.parameters(), *module.buffers())):
        if certify is True:
            raise InvalidValueError(
                f"{name} is on the meta device, where nothing can be tested: certify=False, or certify=net with a "
                "narrower module of the same class that has values"
            )
        examples = pytree.tree_map_only(Tensor, lambda t: t.to("meta"), examples)

    program = program_of(exported, *examples, frozen)
    if certify is True:
        return certified(program, module, inputs, kwargs)
    space = _derived(program)
    if isinstance(certify, nn.Module):
        return _tested_on(space, from_module(certify, inputs, kwargs=kwargs, frozen=frozen))
    return space


def certified(
    program: Program, module: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> WeightSpace:
    """Returns the space of a module's program, without what does not hold at other sizes of its inputs.

    Raises:
        ValueError: if random elements of its group change the module's function.
    """
    space = _derived(program, functools.partial(dead_parts, module=module, inputs=inputs, kwargs=kwargs))
    operations = {node.name: ", ".join(dict.fromkeys(node.operations)) for node in _origin(space).nodes}

    def shrink(parts: Sequence[GroupFactor], where: str) -> Callable[..., GroupElement]:
        nonlocal space
        space = _without(space, parts, where)
        return space.sample

    certificate = require_kept(
        module, inputs, space.sample, kwargs=kwargs, blame=lambda n: f"{n} ({operations.get(n, '')})", shrink=shrink
    )
    space.origin = dataclasses.replace(_origin(space), tested=str(certificate))
    return space


def _derived(program: Program, dead: Callable[..., Mapping[Entries, Ending]] | None = None) -> WeightSpace:
    nodes, parameters, origin, ties = derive(program, dead=dead)
    unimportant = [part.parameter for part in origin.dead if not part.left_out]
    space = WeightSpace(nodes, parameters, label=f"from_module({program.name})", dead=unimportant, ties=ties)
    space.origin = dataclasses.replace(origin, tested=UNTESTED)
    return space


def _without(space: WeightSpace, parts: Sequence[GroupFactor], where: str) -> WeightSpace:
    """Returns a derived space without parts of its group, which do not hold at other sizes of inputs."""
    gauges = {name: list(node.gauges) for name, node in space.nodes.items()}
    for name, kind, n in parts:
        if kind in ("scale", "sign"):
            gauges[name][n] &= Symmetry.SIGN if kind == "scale" else Symmetry.SCALE
    fixed = {part.node for part in parts if part.kind == "permutation"}
    # Neurons that are nested in others cannot stay where they are: they become sizes, with all that is nested in them.
    unnamed = {n for n in space.nodes if any(a in fixed and a in space.nesting for a in space.ancestry(n))}
    nodes, entries, taken = dict[str, Node](), dict[str, str](), {*space.nodes, *TAKEN}
    for name, node in space.nodes.items():
        if name in unnamed:
            continue
        node = node._replace(gauges=tuple(gauges[name]))
        if name not in fixed:
            nodes[name] = node
            continue
        nodes[name] = Node((Symmetry.FIXED,), node.size)
        if node.scales or node.flips:  # of single entries, which stay where they are
            names = (f"{name}_entries{'_' * i}" for i in range(len(taken) + 1))
            entries[name] = next(n for n in names if n not in taken)
            nodes[entries[name]] = Node(node.gauges, 1, name)

    def change(axis: Axis) -> list[Axis | int]:
        if axis.node in unnamed:
            return [space.sizes()[axis.node]]
        if axis.node not in fixed:
            return [axis]
        still = Axis(axis.node, (flow(axis.charge) > 0) - (flow(axis.charge) < 0))
        return [still, Axis(entries[axis.node], axis.charge)] if axis.node in entries else [still]

    parameters = {name: tuple(each_axis(dim, change) for dim in dims) for name, dims in space.parameters.items()}
    alive = {part.node for part in parts if part.kind == "dead"}
    dead = [piece for piece in space.dead if piece not in alive]
    smaller = WeightSpace(nodes, parameters, label=space.label, dead=dead, ties=space.ties)
    losses = [Loss(name, kind, where, "holds at the example's sizes only") for name, kind, _ in parts if kind != "dead"]
    origin = _origin(space)
    smaller.origin = dataclasses.replace(
        origin,
        losses=(*origin.losses, *dict.fromkeys(losses)),
        dead=tuple(d for d in origin.dead if d.left_out or d.parameter not in alive),
        lost=(*origin.lost, (tuple(parts), where)),
    )
    return smaller


def _tested_on(space: WeightSpace, narrower: WeightSpace) -> WeightSpace:
    """Returns a derived space with all that was tested on a narrower module of the same class."""
    origin = _origin(narrower)
    for parts, where in origin.lost:
        space = _without(space, [part for part in parts if part.kind != "dead"], where)

    def unsized(dim: Dim) -> object:
        if isinstance(dim, Sum):
            return "sum", dim.shared, tuple(map(unsized, dim.parts))
        return tuple([factor if isinstance(factor, Axis) else "size" for factor in flatten_dims((dim,))])

    wide, narrow = (
        {f"node {name}": (node.gauges, node.parent) for name, node in s.nodes.items()}
        | {name: tuple(map(unsized, dims)) for name, dims in s.parameters.items()}
        for s in (space, narrower)
    )
    if different := sorted(key for key in wide.keys() | narrow.keys() if wide.get(key) != narrow.get(key)):
        raise InvalidValueError(
            f"certify=: {narrower} has another group than {space}: {', '.join(different[:3])} differ. A narrower "
            "module of the same class, depth and options is expected, with two or more of everything"
        )
    tested = WeightSpace(space.nodes, space.parameters, label=space.label, dead=narrower.dead, ties=space.ties)
    tested.origin = dataclasses.replace(
        _origin(space),
        dead=origin.dead,
        tested=f"{origin.tested}. All this on a narrower module: {narrower}, {narrower.group_dimension} scalings",
    )
    return tested


def _origin(space: WeightSpace) -> Origin:
    assert space.origin is not None, "a derived space knows its origin"
    return space.origin
