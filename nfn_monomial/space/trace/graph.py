"""Programs of networks: exported, checked, and run through the rules of operators."""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from nfn_monomial.errors import InvalidTypeError, InvalidValueError

from .algebra.atoms import Cause, Structure
from .algebra.moves import Run
from .algebra.shifts import shifted_by
from .algebra.values import Bundle, Value
from .operators import MOVING, entry_of

_SHAPES_ONLY = {
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
}  # fmt: skip
_RANDOM = {"rand", "randn", "rand_like", "randn_like", "randint", "randperm", "bernoulli", "normal", "randint_like"}
# What makes more of inputs than a FIXED tensor: they are repeated, or stand beside a state that is 0 at first.
_JOINS = {"cat", "concat", "concatenate"}
_CUTS = {"select", "slice", "narrow", "split", "split_with_sizes", "chunk", "tensor_split", "unbind"}
_REPEATS = {"expand", "expand_as", "broadcast_to", "repeat", "tile", "repeat_interleave"}
_WRAPPERS = {"wrap_with_set_grad_enabled", "wrap_with_autocast"}


@dataclass(frozen=True)
class Program:
    """A network's computation.

    Attributes:
        graph: operations, in order, none of which changes its arguments.
        parameters: placeholder -> name of a parameter, or of a buffer that moves with these; tied ones share a name.
        tensors: name -> tensor of every parameter and moving buffer.
        constants: placeholder -> tensor, for other buffers and constants.
        unused: names of parameters that no operation reads.
    """

    graph: fx.Graph
    parameters: dict[str, str]
    tensors: dict[str, Tensor]
    constants: dict[str, Tensor]
    unused: tuple[str, ...]


@contextlib.contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    modes = [(m, m.training) for m in module.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    module.eval()
    torch.backends.mha.set_fastpath_enabled(False)  # one fused operation for all of an encoder layer
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for m, mode in modes:
            m.training = mode


def program_of(
    module: nn.Module | ExportedProgram,
    example_inputs: Tensor | Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Program:
    """The program of a module in eval mode, or one that was exported before.

    Raises:
        TypeError: for what is neither.
        ValueError: if it cannot be exported, or a parameter is complex, whole, not finite, or overlaps another.
    """
    if isinstance(module, nn.Module):
        _check(module)
        args = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
        exported = _exported(module, args, dict(kwargs or {}))
    elif isinstance(module, ExportedProgram):
        exported = module
    else:
        raise InvalidTypeError(f"a module or an exported program is expected, found {type(module).__name__}")
    if any(_mutates(node) for node in exported.graph.nodes):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = exported.run_decompositions({})
    return _program(exported, module.state_dict() if isinstance(module, nn.Module) else exported.state_dict)


def _exported(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    name = type(module).__name__
    with _evaluating(module), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            module(*args, **kwargs)
        except Exception as reason:
            raise InvalidValueError(
                f"{name} does not run on the example inputs, {', '.join(map(_described, args)) or 'none'}: {reason}; "
                "give inputs as for a call of the module, a tuple for several"
            ) from reason
        try:
            with _silent():
                return torch.export.export(module, args, kwargs, strict=False)
        except Exception as reason:
            raise InvalidValueError(
                f"{name} cannot be exported{_place(reason)} ({_first_line(reason)}). torch.export cannot follow "
                "control flow that depends on values: write it with torch.where, pass what it depends on as a "
                "constant, or derive the space of the part of the network that has none. Nor does it return what is "
                "no tensor, as a cache: turn that off, kwargs={'use_cache': False}"
            ) from reason


def _check(module: nn.Module) -> None:
    spans: dict[int, list[tuple[int, int, str, tuple[Any, ...]]]] = {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        if isinstance(tensor, nn.UninitializedParameter):
            raise InvalidValueError(f"{name} has no shape yet, as in lazy modules; run the network once before")
        if not tensor.is_floating_point():
            raise InvalidValueError(
                f"{name} has dtype {tensor.dtype}; parameters have to be real floating-point numbers"
            )
        if tensor.device.type == "meta":
            continue
        if not bool(tensor.isfinite().all()):
            raise InvalidValueError(
                f"{name} has entries that are NaN or infinite; load finite weights before deriving a space"
            )
        begin = int(tensor.storage_offset())
        end = begin + sum(int((n - 1) * s) for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        spans.setdefault(tensor.untyped_storage().data_ptr(), []).append((begin, end, name, _identity(tensor)))
    for found in spans.values():
        for (_, end, first, one), (begin, _, second, other) in zip(sorted(found), sorted(found)[1:], strict=False):
            if begin < end and one != other:
                raise InvalidValueError(
                    f"{first} and {second} are overlapping views of one tensor; keep that tensor as the parameter and "
                    "take the views in forward"
                )


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    if tensor.device.type == "meta":
        return (id(tensor),)
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def _described(found: Any) -> str:
    return f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without what torch prints of graphs that it cannot finish; its error says what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _place(reason: Exception) -> str:
    """The line of the user's that an error of ``torch.export`` is about, where it says it."""
    found = re.search(r'call raised this error:\s+File "(.*)", line (\d+)', str(reason))
    return f" at line {found[2]} of {found[1]}" if found else ""


def _first_line(reason: Exception) -> str:
    return next((line.strip() for line in str(reason).splitlines() if line.strip()), type(reason).__name__)


def _mutates(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _program(exported: ExportedProgram, names: Iterable[str]) -> Program:
    graph = exported.graph
    moving = {
        str(node.args[n])
        for node in graph.nodes
        for n in MOVING.get(operation(node), ())
        if node.op == "call_function" and len(node.args) > n and isinstance(node.args[n], fx.Node)
    }
    users = {node.name: len(node.users) for node in graph.nodes if node.op == "placeholder"}
    parameters, tensors, constants, unused = {}, {}, {}, []
    first: dict[tuple[Any, ...], str] = {}
    order = {name: n for n, name in enumerate(names)}  # of tied ones the first name is kept
    for spec in sorted(exported.graph_signature.input_specs, key=lambda s: order.get(s.target or "", len(order))):
        place, name = spec.arg.name, spec.target
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR) or name is None:
            continue
        known = exported.state_dict.get(name, exported.constants.get(name))
        assert isinstance(known, Tensor), "an exported program has all its tensors"
        if spec.kind is InputKind.PARAMETER or place in moving:
            own = first.setdefault(_identity(known), name)
            if users[place]:
                parameters[place] = own
                tensors[own] = known
            elif spec.kind is InputKind.PARAMETER and own == name:
                unused.append(name)
        else:
            constants[place] = known.detach().cpu()
    tensors = {name: tensors[name] for name in sorted(tensors, key=lambda n: order.get(n, len(order)))}
    return Program(graph, parameters, tensors, constants, tuple(n for n in unused if n not in tensors))


def operation(node: fx.Node) -> str:
    """The name of a node's operator, without library and overload where it is ATen's."""
    name = str(node.target)
    return name.split(".")[1] if name.startswith("aten.") else name


def label(node: fx.Node) -> str:
    """A node's operator and the module that it is in, for reports."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0].split("@")[0] if stack else ""
    return f"{path}: {operation(node)}" if path else operation(node)


class Interpreter:
    """Runs a program through the rules.

    Args:
        program: what is run.
        structures: for every parameter and each of its dimensions, the sizes that it consists of.

    Attributes:
        run: the state that rules changed.
        roots: parameters.
        unknown: operators without a rule that met something other than inputs and constants.
        places: parameter -> the operations that read it first, in order.
    """

    def __init__(self, program: Program, structures: Mapping[str, Sequence[Structure]]) -> None:
        self.run = Run()
        self.unknown: list[str] = []
        self.operations: list[tuple[str, tuple[Value, ...]]] = []
        self.roots = {name: self.run.parameter(name, structure) for name, structure in structures.items()}
        known: dict[fx.Node, Any] = {}
        names = [n.name for n in program.graph.nodes if n.op == "placeholder"]
        inputs = [n for n in names if n not in program.parameters and n not in program.constants]
        for node in program.graph.nodes:
            if node.op == "placeholder":
                known[node] = self._placeholder(node, program, "x" if len(inputs) == 1 else node.name)
            elif node.op == "output":
                self._output(fx.map_arg(node.args[0], known.get))
            else:
                self._step(node, known)

    def structures(self) -> dict[str, tuple[Structure, ...]]:
        """What the dimensions of parameters consist of in the end, as sizes."""
        atoms = self.run.atoms
        found = {}
        for name, root in self.roots.items():
            dims = []
            for dim in root.dims:
                parts = [atoms.product(tuple(i.atom for i in segment.indices)) for segment in dim]
                dims.append(tuple(atoms.sizes(tuple(p for part in parts for p in part))))
            found[name] = tuple(dims)
        return found

    def _placeholder(self, node: fx.Node, program: Program, name: str) -> Any:
        if node.name in program.parameters:
            return self.roots[program.parameters[node.name]]
        if node.name in program.constants:
            return self.run.constant(program.constants[node.name])
        self.run.cause = Cause(name, "input")
        shape = getattr(node.meta.get("val"), "shape", None)
        return node.meta.get("val") if shape is None else self.run.inert(shape)

    def _output(self, found: Any) -> None:
        self.run.cause = Cause("y", "output")
        self.run.matter |= _shifts(found)
        for part in torch.utils._pytree.tree_leaves(found):
            for value in part.parts if isinstance(part, Bundle) else [part]:
                if isinstance(value, Value):
                    self.run.placeholder(value, "output")

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
            return self._inside(args[at], args[at + 1 :])
        outputs = node.meta.get("val")
        run.cause = Cause(label(node), "")
        run.shapes = _shapes(outputs)
        run.shape = run.shapes[0] if run.shapes else ()
        run.used = frozenset(u.args[1] for u in node.users if u.users and u.target is operator.getitem)  # type: ignore[misc]
        args, kwargs = _mapped(run.again, (args, kwargs))
        found = [v for v in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(v, Value | Bundle)]
        if not isinstance(node.target, torch._ops.OpOverload):
            return node.target(*args, **kwargs) if callable(node.target) else None
        if not run.shapes:
            return None  # assertions
        if name in _RANDOM:
            return run.inert(run.shape, "random numbers")
        if name in _SHAPES_ONLY:
            args = (torch.empty((), dtype=node.meta["val"].dtype).expand(run.joined(found[0]).shape), *args[1:])
            return run.constant(_evaluated(node.target, args, kwargs))
        if all(isinstance(v, Value) and v.data is not None for v in found):
            return self._constants(node, args, kwargs)
        plain = all(isinstance(v, Value) and (v.inert or v.data is not None) for v in found)
        mixed = name in _JOINS and not all(isinstance(v, Value) and v.inert for v in found)
        if plain and not mixed and name not in _REPEATS:
            return self._wrapped(outputs, [run.inert(shape, "input") for shape in run.shapes])
        return self._ruled(node, name, args, kwargs, found)

    def _ruled(self, node: fx.Node, name: str, args: Any, kwargs: dict[str, Any], found: list[Any]) -> Any:
        entry, run = entry_of(str(node.target)), self.run
        if entry is None or not entry.bundles:
            args, kwargs = torch.utils._pytree.tree_map(
                lambda v: run.joined(v) if isinstance(v, Bundle) else v, (args, kwargs), is_leaf=_is_found
            )
            found = [run.joined(v) for v in found]
        if entry is None:
            self.unknown.append(label(node))
            whole = run.opaque(f"no rule for {name}", *found)
            rest = [run.inert(shape, f"no rule for {name}") for shape in run.shapes[1:]]
            return self._wrapped(node.meta["val"], [whole, *rest])
        self.operations.append((run.cause.operation, tuple(v for v in found if isinstance(v, Value))))
        run.subtracted.clear()
        out = entry.rule(run, *args, **kwargs)
        if name not in _CUTS:
            run.matter |= _shifts(found) - _shifts(out) - run.subtracted
        return out

    def _inside(self, module: fx.GraphModule, args: Sequence[Any]) -> Any:
        known: dict[fx.Node, Any] = {}
        given = iter(args)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                known[node] = next(given)
            elif node.op == "output":
                return fx.map_arg(node.args[0], known.get)
            else:
                self._step(node, known)
        raise AssertionError("a graph has an output")

    def _constants(self, node: fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
        args, kwargs = _mapped(lambda v: v.data, (args, kwargs))
        out = _evaluated(node.target, args, kwargs)
        if isinstance(out, Tensor):
            return self.run.constant(out)
        return tuple(self.run.constant(part) for part in out) if isinstance(out, list | tuple) else out

    @staticmethod
    def _wrapped(outputs: Any, values: list[Value]) -> Any:
        return tuple(values) if isinstance(outputs, list | tuple) else values[0]


def _mapped(change: Any, found: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda v: change(v) if isinstance(v, Value) else v, found, is_leaf=_is_found)


def _shifts(found: Any) -> set[int]:
    """Unknowns of the parameters that were added to values."""
    leaves = [v for v in torch.utils._pytree.tree_leaves(found, is_leaf=_is_found) if _is_found(v)]
    parts = [part for v in leaves for part in (v.parts if isinstance(v, Bundle) else (v,))]
    return set[int]().union(*map(shifted_by, parts))


def _is_found(found: Any) -> bool:
    return isinstance(found, Value | Bundle)


def _shapes(outputs: Any) -> tuple[tuple[int, ...], ...]:
    parts = outputs if isinstance(outputs, list | tuple) else [outputs]
    return tuple(tuple(map(int, part.shape)) for part in parts if isinstance(part, Tensor))


def _evaluated(target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = {k: torch.device("cpu") if k == "device" else v for k, v in kwargs.items()}
    with torch.no_grad():
        return target(*args, **given)
