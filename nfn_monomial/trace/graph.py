"""Programs of networks: exported and checked."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from nfn_monomial.errors import InvalidTypeError, InvalidValueError
from nfn_monomial.running import attention_in_parts, called_with, evaluating, first_line

from .decomposed import mutates
from .operators import Entry, entry_of, short


@dataclass(frozen=True)
class Program:
    """A network's computation.

    Attributes:
        name: of the module's class.
        graph: operations, in order, none of which changes its arguments.
        parameters: placeholder -> name of a parameter, or of a buffer that may move with these; tied ones share a name.
        tensors: name -> tensor of every parameter and such buffer.
        optional: those of these that are in the space only where they move: buffers that are no running statistics.
        states: placeholder -> shape, for other buffers: whatever a checkpoint holds in them, nothing acts on it.
        constants: placeholder -> tensor, for constants of the code.
        unused: names of parameters that no operation reads.
        values: placeholder -> its value in this module and on the example, if that is known.
        ties: other name of a tied tensor in the state dict -> its name in ``tensors``.
    """

    name: str
    graph: fx.Graph
    parameters: dict[str, str]
    tensors: dict[str, Tensor]
    optional: frozenset[str]
    states: dict[str, torch.Size]
    constants: dict[str, Tensor]
    unused: tuple[str, ...]
    values: dict[str, Any]
    ties: dict[str, str]

    def holding(self, names: Collection[str]) -> Self:
        """Returns the same program with some of its tensors as constants, as if they had been ``frozen``."""
        held = {place: self.tensors[name] for place, name in self.parameters.items() if name in names}
        return replace(
            self,
            parameters={place: name for place, name in self.parameters.items() if name not in names},
            tensors={name: t for name, t in self.tensors.items() if name not in names},
            optional=self.optional.difference(names),
            states=self.states | {place: t.shape for place, t in held.items()},
            constants=self.constants | {place: t.detach().cpu() for place, t in held.items()},
            ties={other: name for other, name in self.ties.items() if name not in names},
        )


def program_of(
    module: nn.Module | ExportedProgram,
    example_inputs: Tensor | Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    frozen: Collection[str] = (),
) -> Program:
    """Returns the program of a module in eval mode, or of an exported one; ``frozen`` tensors are constants in it.

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
    # Calls that begin or end a `torch.vmap`: its operators see one network or example of many.
    mapped = any(getattr(node.target, "__name__", "") == "_add_batch_dim" for node in exported.graph.nodes)
    if mapped or any(map(mutates, exported.graph.nodes)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = exported.run_decompositions({})
    state = module.state_dict(keep_vars=True) if isinstance(module, nn.Module) else exported.state_dict
    return _program(type(module).__name__, exported, state, frozen)


def _exported(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    name = type(module).__name__
    with evaluating(module), attention_in_parts(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:  # on copies of what it may write to; on the meta device there are no values that a forward could look at
            buffers = {key: buffer.clone() for key, buffer in module.named_buffers()}
            if not any(t.is_meta for t in (*module.parameters(), *buffers.values())):
                called_with(module, buffers, *pytree.tree_map_only(Tensor, torch.clone, (args, kwargs)))
        except Exception as reason:
            raise InvalidValueError(
                f"{name} does not run on the example inputs, {', '.join(map(_described, args)) or 'none'}: {reason}; "
                "give inputs as for a call of the module, a tuple for several"
            ) from reason
        try:
            with _silent():
                return torch.export.export(module, args, kwargs, strict=False)
        except Exception as reason:
            line = re.search(r'call raised this error:\s+File "(.*)", line (\d+)', str(reason))  # of the user's code
            place = f" at line {line[2]} of {line[1]}" if line else ""
            failed = f"{name} cannot be exported{place} ({first_line(reason)})."
            if "data-dependent" in str(reason):
                raise InvalidValueError(
                    f"{failed} Python reads a number from a tensor there, as float(t), int(t) or `if t:` do, which "
                    "torch.export cannot follow: compute with the tensor itself (x * self.scale), write t.item() for "
                    "float(t) and torch.where for an if, or keep the number as an attribute that is no tensor"
                    f"{of_experts(module)}"
                ) from reason
            raise InvalidValueError(
                f"{failed} torch.export cannot follow control flow that depends on values: write it with torch.where, "
                "pass what it depends on as a constant, or derive the space of the part of the network that has none. "
                "Nor does it return what is no tensor, as a cache: turn that off, kwargs={'use_cache': False}"
                f"{of_experts(module)}"
            ) from reason


def of_experts(module: nn.Module) -> str:
    """Returns advice on mixtures of experts of transformers, which compute in one of several ways; else nothing."""
    settable = any(hasattr(part, "set_experts_implementation") for part in module.modules())
    if not settable or not any("Experts" in type(part).__name__ for part in module.modules()):
        return ""
    return (
        ". Experts of transformers are computed in several ways: after model.set_experts_implementation('batched_mm') "
        "they can be exported, and run in float64"
    )


def _check(module: nn.Module) -> None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.layout is not torch.strided:
            raise InvalidValueError(
                f"{name} is a sparse tensor ({tensor.layout}), a dense one is expected: keep its to_dense(), or its "
                "values, dense, as the parameter, and make the sparse one of these in forward"
            )
    spans: dict[int, list[tuple[int, int, str, tuple[Any, ...]]]] = {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        if isinstance(tensor, nn.UninitializedParameter):
            raise InvalidValueError(f"{name} has no shape yet, as in lazy modules; run the network once before")
        if not tensor.is_floating_point():
            raise InvalidValueError(
                f"{name} has dtype {tensor.dtype}; parameters have to be real floating-point numbers: keep "
                "torch.view_as_real of a complex one, and take torch.view_as_complex of that in forward"
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
    for stored in spans.values():
        for (_, end, first, one), (begin, _, second, other) in itertools.pairwise(sorted(stored)):
            if begin < end and one != other:
                raise InvalidValueError(
                    f"{first} and {second} are overlapping views of one tensor; keep that tensor as the parameter and "
                    "take the views in forward"
                )


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    if tensor.device.type == "meta":
        return (id(tensor),)
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def _described(argument: Any) -> str:
    return f"{argument.dtype} {tuple(argument.shape)}" if isinstance(argument, Tensor) else type(argument).__name__


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Hides what torch prints of graphs that it cannot finish; its error says what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _program(class_name: str, exported: ExportedProgram, state: Mapping[str, Any], frozen: Collection[str]) -> Program:
    graph = exported.graph
    moving = {
        str(node.args[n])
        for node in graph.nodes
        for n in (facts_of(node).statistics if node.op == "call_function" else ())
        if len(node.args) > n and isinstance(node.args[n], fx.Node)
    }
    users = {node.name: len(node.users) for node in graph.nodes if node.op == "placeholder"}
    parameters, tensors, optional, states, constants, unused = {}, {}, set[str](), {}, {}, []
    first: dict[tuple[Any, ...], str] = {}
    order = {name: n for n, name in enumerate(state)}  # of tied ones the first name is kept
    for spec in sorted(exported.graph_signature.input_specs, key=lambda s: order.get(s.target or "", len(order))):
        place, name = spec.arg.name, spec.target
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR) or name is None:
            continue
        tensor = exported.state_dict.get(name, exported.constants.get(name))
        assert isinstance(tensor, Tensor), "an exported program has all its tensors"
        if name in frozen:  # other modules have other values in it; `constants` has those of this one
            states[place], constants[place] = tensor.shape, tensor.detach().cpu()
            continue
        moves = spec.kind is InputKind.BUFFER and spec.persistent and tensor.is_floating_point()
        if spec.kind is InputKind.PARAMETER or moves:
            shared = first.setdefault(_identity(tensor), name)  # tied tensors have one name
            if users[place]:
                parameters[place] = shared
                tensors[shared] = tensor
                if moves and place not in moving and shared == name:
                    optional.add(name)
            elif spec.kind is InputKind.PARAMETER and shared == name:
                unused.append(name)
        elif spec.kind is InputKind.BUFFER:
            states[place] = tensor.shape
        else:
            constants[place] = tensor.detach().cpu()
    tensors = {name: tensors[name] for name in sorted(tensors, key=lambda n: order.get(n, len(order)))}
    unread = tuple(n for n in unused if n not in tensors)
    known, specs = exported.state_dict | exported.constants, exported.graph_signature.input_specs
    values = {spec.arg.name: known[spec.target] for spec in specs if spec.target in known}
    examples = pytree.tree_leaves(exported.example_inputs or ())
    places = [node.name for node in graph.nodes if node.op == "placeholder" and node.name not in values]
    values |= dict(zip(places, examples, strict=False)) if len(places) == len(examples) else {}
    identities = {name: _identity(tensor) for name, tensor in state.items() if isinstance(tensor, Tensor)}
    kept = {identities[name]: name for name in tensors if name in identities}
    ties = {name: kept[one] for name, one in identities.items() if name not in tensors and one in kept}
    return Program(class_name, graph, parameters, tensors, frozenset(optional), states, constants, unread, values, ties)


def operation(node: fx.Node) -> str:
    """Returns the name of a node's operator in the table of operators."""
    return short(str(node.target))


def facts_of(node: fx.Node) -> Entry:
    """Returns what the table of operators knows of a node's operator."""
    return entry_of(operation(node))


def label(node: fx.Node) -> str:
    """Returns a node's operator and the module that it is in, for reports."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0].split("@")[0] if stack else ""
    return f"{path}: {operation(node)}" if path else operation(node)
