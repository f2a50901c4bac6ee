"""Programs of networks, run through the rules of operators."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from nfn_monomial.errors import MonomialError
from nfn_monomial.running import first_line

from .algebra.run import OpaqueError, Run
from .algebra.values import Bundle, Value
from .decomposed import Like, decomposed, likes_of, number, shapes_of
from .graph import Program, label, operation
from .operators import Entry, entry_of
from .operators.pointwise import where
from .probe import Probe, probe

_WRAPPERS = {"wrap_with_set_grad_enabled", "wrap_with_autocast"}


class Interpreter:
    """Runs a program through the rules of its operators.

    Args:
        run: what the rules are written in: it holds the index sets, and hands on demands.

    Attributes:
        unknown: operators without a rule that met something other than inputs and constants.
        probed: those of them that were run alone on random tensors, where they keep some permutations.
        operations: those that a rule said something of, with the values that they read, in order.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.unknown: list[str] = []
        self.probed: list[str] = []
        self.operations: list[tuple[str, tuple[Value, ...]]] = []
        self._whole = ""  # the operation that the current one is a part of

    def execute(self, program: Program, parameters: Mapping[str, Value]) -> None:
        """Runs a program on values of its parameters. Nothing may act on its inputs and outputs."""
        run = self.run
        places = [node for node in program.graph.nodes if node.op == "placeholder"]
        inputs = {n.name for n in places} - {*program.parameters, *program.states, *program.constants}
        arguments = []
        for node in places:
            name, example = node.name, node.meta.get("val")
            if name in program.parameters:
                arguments.append(parameters[program.parameters[name]])
            elif name in program.states:
                run.sets.operation = name
                arguments.append(run.inert(program.states[name], "a buffer"))
            elif name in program.constants:
                arguments.append(run.constant(program.constants[name]))
            else:
                run.sets.operation = "x" if len(inputs) == 1 else name
                arguments.append(run.inert(shapes_of(example)[0]) if isinstance(example, Tensor) else number(example))
        outputs = self._inside(program.graph, arguments)
        run.sets.operation = "y"
        self._pin(_values(outputs), "output")
        for name, parameter in parameters.items():
            run.fix_unread(name, parameter)
        for name in parameters:
            if name in program.optional:  # only along neurons: what nothing acts on is left out of the space
                run.demand_neurons(parameters[name])

    def _inside(self, graph: fx.Graph, arguments: Sequence[Any]) -> Any:
        """Returns the outputs of a graph for these arguments."""
        values: dict[fx.Node, Any] = {}
        left = iter(arguments)
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = next(left)
            elif node.op == "get_attr":
                held = operator.attrgetter(str(node.target))(node.graph.owning_module)
                values[node] = self.run.constant(held) if isinstance(held, Tensor) else held
            elif node.op == "output":
                return fx.map_arg(node.args[0], values.get)
            else:
                args = fx.map_arg(node.args, values.__getitem__)
                kwargs = {k: fx.map_arg(v, values.__getitem__) for k, v in node.kwargs.items()}
                values[node] = self._called(node, args, kwargs)
        raise AssertionError("a graph has an output")

    def _called(self, node: fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
        """Returns the outputs of one operation."""
        run, name, outputs = self.run, operation(node), node.meta.get("val")
        if name in _WRAPPERS:
            at = next(n for n, a in enumerate(args) if isinstance(a, fx.GraphModule))
            return self._inside(args[at].graph, args[at + 1 :])
        run.sets.operation = self._whole or label(node)
        run.shapes = shapes_of(outputs)
        run.real = not isinstance(outputs, Tensor) or outputs.is_floating_point() or outputs.is_complex()
        run.used = frozenset(u.args[1] for u in node.users if u.users and u.target is operator.getitem)  # type: ignore[misc]
        read = _values((args, kwargs))
        if any(isinstance(v, Value) and v.data is not None for v in read):
            args, kwargs = _mapped(run.again, (args, kwargs))
            read = _values((args, kwargs))
        if node.target is operator.getitem:
            return args[0][args[1]]
        if not run.shapes:
            return self._number(node, args, read)
        entry = Entry(self._chosen, bundles=True) if name == "cond" else entry_of(name)
        if entry.constants == "random":
            return run.inert(run.shape, "random numbers")
        if entry.constants == "filled":
            args = (torch.empty((), dtype=node.meta["val"].dtype).expand(read[0].shape), *args[1:])
            return self._constants(node, args, kwargs)
        if all(isinstance(v, Value) and v.data is not None for v in read):
            return self._constants(node, args, kwargs)
        plain = all(isinstance(v, Value) and (v.inert or v.data is not None) for v in read)
        joined = entry.constants == "joined" and not all(isinstance(v, Value) and v.inert for v in read)
        if plain and not joined and entry.constants != "repeated":
            return _each(outputs, run.inert)
        return (
            self._ruled(node, entry, args, kwargs) if entry.rule is not None else self._taken_apart(node, args, kwargs)
        )

    def _number(self, node: fx.Node, args: Any, read: list[Value | Bundle]) -> Any:
        """Returns what is no tensor: sizes are those of the example, a number that is read from a tensor is unknown."""
        outputs = node.meta.get("val")
        if outputs is None:
            return None  # assertions
        if operation(node).startswith("sym_"):
            return number(outputs)
        if not read and not isinstance(node.target, torch._ops.OpOverload):
            return node.target(*args)  # type: ignore[operator]
        self._pin(read, "a number is read from it")
        return Value(())

    def _ruled(self, node: fx.Node, entry: Entry, args: Any, kwargs: dict[str, Any]) -> Any:
        """Returns what the rule of an operation says; if it does not fit, all that the operation reads is FIXED."""
        run, name, outputs, read = self.run, operation(node), node.meta["val"], _values((args, kwargs))
        cause, ties, used = run.sets.operation, len(run.sets.ties), run.used
        assert entry.rule is not None, "an entry with a rule"
        try:
            if not entry.bundles:
                args, kwargs = pytree.tree_map(
                    lambda v: run.joined(v) if isinstance(v, Bundle) else v, (args, kwargs), is_leaf=_is_value
                )
                read = [run.joined(v) for v in read]
            along = next((v.along for v in read if isinstance(v, Value) and v.along is not None), None)
            self.operations.append((cause, tuple(v for v in read if isinstance(v, Value))))
            out = entry.rule(run, *args, **kwargs)
            if isinstance(outputs, list | tuple) and isinstance(out, Value):  # of others it says nothing
                out = (out, *map(run.inert, shapes_of(outputs)[1:]))
            if along is not None and entry.positions == "kept" and isinstance(out, Value):
                out = replace(out, along=along)
            elif along is not None and entry.positions != "followed":
                run.sets.fix(along, "a position is read")
            _require_fit(out, outputs, used)
        except MonomialError:
            raise
        except Exception as reason:  # a rule may meet anything: what it did not foresee is as good as no rule
            del run.sets.ties[ties:]
            run.sets.operation = cause
            if isinstance(reason, OpaqueError):
                return self._opaque(read, str(reason), outputs)
            self.unknown.append(f"{cause} (its rule did not fit: {first_line(reason)})")
            return self._opaque(read, f"the rule of {name} did not fit", outputs)
        return out

    def _taken_apart(self, node: fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
        """Returns the outputs of an operation without a rule from those of its parts, or as it is found alone."""
        likes = likes_of(node)
        pairs = zip(
            pytree.tree_leaves(likes, is_leaf=lambda v: isinstance(v, Like)),
            pytree.tree_leaves((args, kwargs), is_leaf=_is_value),
            strict=True,
        )
        tensors = [value for like, value in pairs if isinstance(like, Like)]
        if (parts := decomposed(node.target, *likes)) is not None:
            whole, self._whole = self._whole, self.run.sets.operation
            outputs = self._inside(parts.graph, tensors)
            self._whole = whole
            return outputs
        read = _values((args, kwargs))
        if len(read) == len(tensors) and (kept := probe(node.target, *likes)) is not None:
            return self._probed(node, kept, list(map(self.run.joined, read)))
        self.unknown.append(self.run.sets.operation)
        return self._opaque(read, f"no rule for {operation(node)}", node.meta["val"])

    def _probed(self, node: fx.Node, kept: Probe, read: Sequence[Value]) -> Any:
        """Returns the outputs of an operation that keeps these permutations: all else is FIXED, and no scale passes."""
        run, outputs, reason = self.run, node.meta["val"], f"no rule for {operation(node)}"
        self.probed.append(run.sets.operation)
        self.operations.append((run.sets.operation, tuple(read)))
        if kept.pointwise:
            out = run.unary(read[0], "any", reason=reason)
            return type(outputs)([out]) if isinstance(outputs, list | tuple) else out
        read = [run.settle(value, +1) for value in read]
        for value in read:
            run.vanish(value, reason=reason)
        moving = {place for tie in kept.ties for place in tie.inputs}
        for i, value in enumerate(read):
            for d, dim in enumerate(value.dims):
                if (i, d) not in moving:
                    run.sets.fix(run.sets.resolve(dim), reason)
        made = [[run.sets.fresh(n, reason) for n in shape] for shape in shapes_of(outputs)]
        for tie in kept.ties:
            dims = [read[i].dims[d] for i, d in tie.inputs]
            for other in dims[1:]:
                run.sets.align(dims[0], other)
            dim = run.sets.resolve(dims[0])
            run.note(Value((dim,)))  # permuted alike in all entries of other dimensions: it is nested in none of them
            for o, j in tie.outputs:
                made[o][j] = dim
        values = [run.note(run.kept(Value(tuple(dims)), scale=False, sign=False), *read) for dims in made]
        return tuple(values) if isinstance(outputs, list | tuple) else values[0]

    def _chosen(self, run: Run, condition: Any, first: Any, second: Any, operands: Sequence[Any]) -> Any:
        """Returns the outputs of one branch or the other, which transform alike."""
        operation = run.sets.operation
        pairs = list(zip(*(self._inside(branch.graph, operands) for branch in (first, second)), strict=True))
        run.sets.operation = operation
        return tuple(where(run, run.operand(condition), run.joined(a), run.joined(b)) for a, b in pairs)

    def _pin(self, values: Iterable[Value | Bundle], reason: str) -> None:
        """Lets nothing act on values."""
        for value in values:
            for part in value.parts if isinstance(value, Bundle) else (value,):
                self.run.pin(part, reason)

    def _opaque(self, read: Iterable[Value | Bundle], reason: str, outputs: Any) -> Any:
        """Returns the outputs of an operation of which nothing is known."""
        self._pin(read, reason)
        return _each(outputs, lambda shape: Value(tuple(self.run.sets.fresh(n, reason) for n in shape)))

    def _constants(self, node: fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
        """Returns what an operation makes of constants."""
        args, kwargs = _mapped(lambda v: v.data, (args, kwargs))
        try:
            with torch.no_grad():
                out = node.target(*args, **{k: torch.device("cpu") if k == "device" else v for k, v in kwargs.items()})  # type: ignore[operator]
        except Exception:  # sizes that depend on values, a device, what is made for graphs alone
            return _each(node.meta["val"], self.run.inert)
        if isinstance(out, Tensor):
            unclear = _counts_one(operation(node), args, out.shape) and not _is_for_masks(node)
            return self.run.too_short(out.shape) if unclear else self.run.constant(out)
        return tuple(self.run.constant(part) for part in out) if isinstance(out, list | tuple) else out


def _each(outputs: Any, change: Callable[[tuple[int, ...]], Value]) -> Any:
    """Returns a value for each tensor that an operation returns, made of its shape."""
    made = tuple(map(change, shapes_of(outputs)))
    return made if isinstance(outputs, list | tuple) else made[0]


def _mapped(change: Any, tree: Any) -> Any:
    return pytree.tree_map(lambda v: change(v) if isinstance(v, Value) else v, tree, is_leaf=_is_value)


def _values(tree: Any) -> list[Value | Bundle]:
    return [v for v in pytree.tree_leaves(tree, is_leaf=_is_value) if _is_value(v)]


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, Value | Bundle)


def _require_fit(out: Any, outputs: Any, used: Iterable[int]) -> None:
    """Raises unless a rule's results have the shapes that the program says, and it knows those that are read."""
    several = isinstance(outputs, list | tuple)
    parts = list(out) if several else [out]
    shapes, expected = tuple(part.shape for part in parts), shapes_of(outputs)
    if shapes != expected:
        raise ValueError(f"shapes {shapes} in place of {expected}")
    if several and any(isinstance(parts[n], Value) and parts[n].inert for n in used):
        raise ValueError("an output is read of which it says nothing")


def _counts_one(name: str, args: Sequence[Any], shape: Sequence[int]) -> bool:
    """Returns whether a constant counts places of which the example has one: nobody can say what it is of more."""
    if entry_of(name).constants != "counted" or not shape:
        return False
    counted = (args[1],) if "cum" in name else range(-min(len(shape), 2), 0)
    return all(shape[dim] == 1 for dim in counted)


def _is_for_masks(node: fx.Node) -> bool:
    """Returns whether nothing reads a value but `flex_attention`, to know which blocks its mask leaves out."""
    for user in node.users:
        if operation(user) == "flex_attention":
            if node in user.args[:3]:
                return False
        elif not operation(user).startswith("_assert") and not _is_for_masks(user):
            return False
    return bool(node.users)
