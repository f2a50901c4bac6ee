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

from .algebra.atoms import Cause, Product, Structure
from .algebra.ledger import OpaqueError
from .algebra.moves import Run
from .algebra.values import Bundle, Value
from .decomposed import Like, decomposed, likes_of, number, shapes_of
from .graph import Program, label, operation
from .operators import OPERATORS, Entry
from .operators.pointwise import where

_SHAPES_ONLY = {
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
}  # fmt: skip
_RANDOM = {"rand", "randn", "rand_like", "randn_like", "randint", "randperm", "bernoulli", "normal", "randint_like"}
# What makes more of inputs than a FIXED tensor: they are repeated, or stand beside a state that is 0 at first.
_JOINS = {"cat", "concat", "concatenate"}
_REPEATS = {"expand", "expand_as", "broadcast_to", "repeat", "tile", "repeat_interleave"}
_COUNTS = {"arange", "linspace", "logspace", "eye", "tril", "triu", "cumsum", "cumprod", "logcumsumexp"}
# What leaves positions of entries as they are, and what looks entries up by them.
_CARRIES = {
    "view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "transpose", "permute", "expand", "repeat",
    "clone", "contiguous", "detach", "alias", "to", "_to_copy", "select", "slice",
}  # fmt: skip
_FOLLOWS = {
    "index", "index_select", "gather", "embedding", "one_hot", "scatter", "scatter_add", "scatter_reduce", "index_add",
    "index_copy", "index_fill", "index_reduce", "index_put",
}  # fmt: skip
_WRAPPERS = {"wrap_with_set_grad_enabled", "wrap_with_autocast"}


class Interpreter:
    """Runs a program through the rules.

    Args:
        program: what is run.
        structures: for every parameter and each of its dimensions, the sizes that it consists of.

    Attributes:
        run: the state that rules changed.
        roots: parameters.
        unknown: operators without a rule that met something other than inputs and constants.
        operations: those that a rule said something of, with what they read, in order.
    """

    def __init__(self, program: Program, structures: Mapping[str, Sequence[Structure]]) -> None:
        self.run = Run()
        self.unknown: list[str] = []
        self.operations: list[tuple[str, tuple[Value, ...]]] = []
        self._whole = ""  # what the current operation is a part of
        self.roots = {name: self.run.parameter(name, structure) for name, structure in structures.items()}
        places = [node for node in program.graph.nodes if node.op == "placeholder"]
        inputs = {n.name for n in places} - {*program.parameters, *program.states, *program.constants}
        given = [self._placeholder(node, program, "x" if len(inputs) == 1 else node.name) for node in places]
        self._output(self._inside(program.graph, given))
        for name, root in self.roots.items():
            self.run.fix_unread(name, root)
        for name, root in self.roots.items():
            if name in program.optional:  # only along neurons: what nothing acts on is left out of the space
                self.run.demand_neurons(root)

    def structures(self) -> dict[str, tuple[Structure, ...]]:
        """What the dimensions of parameters consist of in the end, as sizes."""
        atoms = self.run.atoms
        found = {}
        for name, root in self.roots.items():
            dims = [[Product(tuple(i.atom for i in segment.indices), segment.lead) for segment in d] for d in root.dims]
            found[name] = tuple(atoms.sizes(atoms.sum(dim)) for dim in dims)
        return found

    def _placeholder(self, node: fx.Node, program: Program, name: str) -> Any:
        if node.name in program.parameters:
            return self.roots[program.parameters[node.name]]
        if node.name in program.states:
            self.run.cause = Cause(node.name, "")
            return self.run.inert(program.states[node.name], "a buffer")
        if node.name in program.constants:
            return self.run.constant(program.constants[node.name])
        self.run.cause = Cause(name, "input")
        known = node.meta.get("val")
        return self.run.inert(shapes_of(known)[0]) if isinstance(known, Tensor) else number(known)

    def _output(self, found: Any) -> None:
        self.run.cause = Cause("y", "output")
        self._fixed(_found(found), "output")

    def _step(self, node: fx.Node, known: dict[fx.Node, Any]) -> None:
        if node.op == "get_attr":
            owner = node.graph.owning_module
            found = operator.attrgetter(str(node.target))(owner)
            known[node] = self.run.constant(found) if isinstance(found, Tensor) else found
            return
        args = fx.map_arg(node.args, known.__getitem__)
        kwargs = {k: fx.map_arg(v, known.__getitem__) for k, v in node.kwargs.items()}
        known[node] = self._called(node, args, kwargs)

    def _called(self, node: fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
        run, name = self.run, operation(node)
        if name in _WRAPPERS:
            at = next(n for n, a in enumerate(args) if isinstance(a, fx.GraphModule))
            return self._inside(args[at].graph, args[at + 1 :])
        outputs = node.meta.get("val")
        run.cause = Cause(self._whole or label(node), "")
        run.shapes = shapes_of(outputs)
        run.shape = run.shapes[0] if run.shapes else ()
        run.real = not isinstance(outputs, Tensor) or outputs.is_floating_point() or outputs.is_complex()
        run.used = frozenset(u.args[1] for u in node.users if u.users and u.target is operator.getitem)  # type: ignore[misc]
        args, kwargs = _mapped(run.again, (args, kwargs))
        found = _found((args, kwargs))
        if node.target is operator.getitem:
            return args[0][args[1]]
        if not run.shapes:
            return self._counted(node, args, found)
        if name in _RANDOM:
            return run.inert(run.shape, "random numbers")
        if name in _SHAPES_ONLY:
            args = (torch.empty((), dtype=node.meta["val"].dtype).expand(found[0].shape), *args[1:])
            return self._constants(node, args, kwargs)
        if all(isinstance(v, Value) and v.data is not None for v in found):
            return self._constants(node, args, kwargs)
        plain = all(isinstance(v, Value) and (v.inert or v.data is not None) for v in found)
        mixed = name in _JOINS and not all(isinstance(v, Value) and v.inert for v in found)
        if plain and not mixed and name not in _REPEATS:
            return _each(outputs, run.inert)
        entry = Entry(self._chosen, bundles=True) if name == "cond" else OPERATORS.get(name)
        return self._ruled(node, entry, args, kwargs, found)

    def _counted(self, node: fx.Node, args: Any, found: list[Value | Bundle]) -> Any:
        """What is no tensor: sizes are those of the example, what is read from a tensor is an unknown number."""
        outputs = node.meta.get("val")
        if outputs is None:
            return None  # assertions
        if operation(node).startswith("sym_"):
            return number(outputs)
        if not found and not isinstance(node.target, torch._ops.OpOverload):
            return node.target(*args)  # type: ignore[operator]
        self._fixed(found, "a number is read from it")
        return Value(())

    def _fixed(self, found: Sequence[Value | Bundle], reason: str) -> None:
        """Nothing may act on values."""
        for part in _parts(found):
            self.run.placeholder(part, reason)

    def _opaque(self, found: Sequence[Value | Bundle], reason: str, outputs: Any) -> Any:
        """Results of an operation of which nothing is known."""
        self._fixed(found, reason)
        return _each(outputs, lambda shape: Value(tuple(self.run.fresh(n, reason) for n in shape)))

    def _chosen(self, run: Run, condition: Any, first: Any, second: Any, operands: Sequence[Any]) -> Any:
        """The results of one branch or the other, which transform alike."""
        cause = run.cause
        pairs = list(zip(*(self._inside(branch.graph, operands) for branch in (first, second)), strict=True))
        run.cause = cause
        return tuple(where(run, run.operand(condition), run.joined(a), run.joined(b)) for a, b in pairs)

    def _ruled(
        self, node: fx.Node, entry: Entry | None, args: Any, kwargs: dict[str, Any], found: list[Value | Bundle]
    ) -> Any:
        run, name, outputs = self.run, operation(node), node.meta["val"]
        if entry is None:
            likes = likes_of(node)
            if (parts := decomposed(node.target, *likes)) is not None:
                return self._apart(parts, likes, (args, kwargs))
            self.unknown.append(run.cause.operation)
            return self._opaque(found, f"no rule for {name}", outputs)
        cause, ties, used = run.cause, len(run.ties), run.used
        try:
            if not entry.bundles:
                args, kwargs = pytree.tree_map(
                    lambda v: run.joined(v) if isinstance(v, Bundle) else v, (args, kwargs), is_leaf=_is_found
                )
                found = [run.joined(v) for v in found]
            along = next((v.along for v in found if isinstance(v, Value) and v.along is not None), None)
            self.operations.append((run.cause.operation, tuple(v for v in found if isinstance(v, Value))))
            out = entry.rule(run, *args, **kwargs)
            if isinstance(outputs, list | tuple) and isinstance(out, Value):  # of others it says nothing
                out = (out, *map(run.inert, shapes_of(outputs)[1:]))
            if along is not None and name in _CARRIES and isinstance(out, Value):
                out = replace(out, along=along)
            elif along is not None and name not in _FOLLOWS:
                run.fix(along, "a position is read")
            _fitting(out, outputs, used)
        except MonomialError:
            raise
        except Exception as reason:  # a rule may meet anything: what it did not foresee is as good as no rule
            del run.ties[ties:]
            run.cause = cause
            if isinstance(reason, OpaqueError):
                return self._opaque(found, str(reason), outputs)
            self.unknown.append(f"{cause.operation} (its rule did not fit: {first_line(reason)})")
            return self._opaque(found, f"the rule of {name} did not fit", outputs)
        return out

    def _apart(self, parts: fx.GraphModule, likes: Any, arguments: Any) -> Any:
        """The results of an operation from those of its parts."""
        whole, self._whole = self._whole, self.run.cause.operation
        pairs = zip(
            pytree.tree_leaves(likes, is_leaf=lambda v: isinstance(v, Like)),
            pytree.tree_leaves(arguments, is_leaf=_is_found),
            strict=True,
        )
        found = self._inside(parts.graph, [value for like, value in pairs if isinstance(like, Like)])
        self._whole = whole
        return found

    def _inside(self, graph: fx.Graph, args: Sequence[Any]) -> Any:
        """What a graph gives for these arguments."""
        known: dict[fx.Node, Any] = {}
        given = iter(args)
        for node in graph.nodes:
            if node.op == "placeholder":
                known[node] = next(given)
            elif node.op == "output":
                return fx.map_arg(node.args[0], known.get)
            else:
                self._step(node, known)
        raise AssertionError("a graph has an output")

    def _constants(self, node: fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
        args, kwargs = _mapped(lambda v: v.data, (args, kwargs))
        try:
            out = _evaluated(node.target, args, kwargs)
        except Exception:  # sizes that depend on values, a device, what is made for graphs alone
            return _each(node.meta["val"], self.run.inert)
        counted = isinstance(out, Tensor) and _counts_one(operation(node), args, out.shape)
        if counted and not _is_for_masks(node):
            return self.run.untold(out.shape)
        if isinstance(out, Tensor):
            return self.run.constant(out)
        return tuple(self.run.constant(part) for part in out) if isinstance(out, list | tuple) else out


def _each(outputs: Any, change: Callable[[tuple[int, ...]], Value]) -> Any:
    """A value for each tensor that an operation gives, made of its shape."""
    made = tuple(map(change, shapes_of(outputs)))
    return made if isinstance(outputs, list | tuple) else made[0]


def _mapped(change: Any, found: Any) -> Any:
    return pytree.tree_map(lambda v: change(v) if isinstance(v, Value) else v, found, is_leaf=_is_found)


def _found(tree: Any) -> list[Value | Bundle]:
    return [v for v in pytree.tree_leaves(tree, is_leaf=_is_found) if _is_found(v)]


def _parts(found: Iterable[Value | Bundle]) -> list[Value]:
    return [part for v in found for part in (v.parts if isinstance(v, Bundle) else (v,))]


def _is_found(found: Any) -> bool:
    return isinstance(found, Value | Bundle)


def _fitting(out: Any, outputs: Any, used: Iterable[int]) -> None:
    """Raise unless a rule's results have the shapes that the program says, and it knows those that are read."""
    several = isinstance(outputs, list | tuple)
    parts = list(out) if several else [out]
    shapes, expected = tuple(part.shape for part in parts), shapes_of(outputs)
    if shapes != expected:
        raise ValueError(f"shapes {shapes} in place of {expected}")
    if several and any(isinstance(parts[n], Value) and parts[n].inert for n in used):
        raise ValueError("an output is read of which it says nothing")


def _counts_one(name: str, args: Sequence[Any], shape: Sequence[int]) -> bool:
    """Whether a constant counts places of which the example has one: nobody can say what it is of more."""
    counted = (args[1],) if "cum" in name else range(-min(len(shape), 2), 0)
    return name in _COUNTS and len(shape) > 0 and all(shape[dim] == 1 for dim in counted)


def _is_for_masks(node: fx.Node) -> bool:
    """Whether nothing reads a value but `flex_attention`, to know which blocks its mask leaves out."""
    for user in node.users:
        if operation(user) == "flex_attention":
            if node in user.args[:3]:
                return False
        elif not operation(user).startswith("_assert") and not _is_for_masks(user):
            return False
    return bool(node.users)


def _evaluated(target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = {k: torch.device("cpu") if k == "device" else v for k, v in kwargs.items()}
    with torch.no_grad():
        return target(*args, **given)
