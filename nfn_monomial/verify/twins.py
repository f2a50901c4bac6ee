"""Programs that run on values before and after a change of parameters, and operators that ignore such a change."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from nfn_monomial.running import Float64, doubled
from nfn_monomial.trace.graph import Program, label, operation
from nfn_monomial.trace.write import Entries

_SAME = 1e-9  # of the change, in float64
_MASKS = 1e3  # times the change: arguments become random around what is as large, 0 else
_CUTS = {"select", "slice", "split", "split_with_sizes", "unbind", "chunk", "narrow", "tensor_split", "unsafe_split"}
_ALIASES = {"detach", "alias", "lift_fresh_copy"}
_REASONS = {"softmax": "softmax", "attention": "softmax", "norm": "a mean is subtracted"}
_WRAPPERS = {"wrap_with_set_grad_enabled", "wrap_with_autocast"}


class Twin(NamedTuple):
    """A value before and after a change.

    Attributes:
        before, after: the value; one object where it does not change.
        parts: of parameters, whose change is in it.
        chosen: whether it is made of whole numbers or truth values in inputs or buffers.
    """

    before: Tensor
    after: Tensor
    parts: frozenset[Entries] = frozenset()
    chosen: bool = False

    @property
    def change(self) -> Tensor:
        """The difference; 0 where both are infinite, or for truth values."""
        if not is_real(self.before):
            return torch.zeros(())
        return torch.where(self.before == self.after, 0, self.after - self.before).nan_to_num(0, 0, 0)


class MattersError(Exception):
    """A change reaches an answer, or ends at what does not ignore it."""

    def __init__(self, parts: frozenset[Entries]) -> None:
        super().__init__()
        self.parts = parts


class TwinRun:
    """One run of a program at a point.

    Args:
        program: of a network.
        values: placeholder -> what is there at the point.
        seed: of random choices.
        begin: makes a twin of each parameter, of its name and value.

    Attributes:
        answers: all outputs.
        endings: part of a parameter -> the operation that ignores its change, ``"module.path: operator: reason"``.

    Raises:
        MattersError: if a change ends at an operation that does not ignore it.
    """

    def __init__(
        self, program: Program, values: Mapping[str, Any], seed: int, begin: Callable[[str, Tensor], Twin]
    ) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.endings: dict[Entries, str] = {}

        def placeholder(place: str) -> Any:
            value = values[place]
            if not isinstance(value, Tensor):
                return value
            if place in program.parameters:
                return begin(program.parameters[place], value)
            if place in program.constants:
                return Twin(value, value)
            if value.dtype == torch.bool:
                value = torch.rand(value.shape, generator=self._generator) < 0.5
            return Twin(value, value, chosen=not is_real(value))

        with Float64():  # type: ignore[no-untyped-call]
            arguments = [placeholder(node.name) for node in program.graph.nodes if node.op == "placeholder"]
            self.answers = _twins(self._inside(program.graph, arguments))

    def _inside(self, graph: fx.Graph, args: Sequence[Any]) -> Any:
        """Returns the outputs of a graph for these arguments."""
        known: dict[fx.Node, Any] = {}
        last = {used: node for node in graph.nodes for used in node.all_input_nodes}
        arguments = iter(args)
        for node in graph.nodes:
            if node.op == "placeholder":
                known[node] = next(arguments)
            elif node.op == "output":
                return fx.map_arg(node.args[0], known.get)
            elif node.op == "get_attr":
                value = operator.attrgetter(str(node.target))(graph.owning_module)
                if isinstance(value, Tensor):
                    value = doubled(value)
                    value = Twin(value, value)
                known[node] = value
            else:
                known[node] = self._step(node, *fx.map_arg((node.args, node.kwargs), known.__getitem__))
            for used in [n for n in node.all_input_nodes if last[n] is node]:
                del known[used]
        raise AssertionError("a graph has an output")

    def _step(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        name = operation(node)
        if name in _WRAPPERS:
            at = next(n for n, a in enumerate(args) if isinstance(a, fx.GraphModule))
            return self._inside(args[at].graph, args[at + 1 :])
        if node.target is operator.getitem or name in _ALIASES:
            return args[0][args[1]] if node.target is operator.getitem else args[0]
        if node.meta.get("val") is None:
            return None  # assertions
        kwargs = {k: torch.device("cpu") if k == "device" else v for k, v in kwargs.items()}

        def called(change: Callable[[Twin], Tensor], arguments: Any = (args, kwargs)) -> Any:
            new = pytree.tree_map(lambda v: change(v) if _is_twin(v) else v, arguments, is_leaf=_is_twin)
            return node.target(*new[0], **new[1])  # type: ignore[operator]

        before = called(lambda twin: twin.before)
        if isinstance(before, Tensor) and is_real(before):
            other = pytree.tree_map(
                lambda v: self._otherwise(v) if _is_twin(v) else v, (args, kwargs), is_leaf=_is_twin
            )
            with contextlib.suppress(Exception):  # of what looks entries up by whole numbers
                before, (args, kwargs) = called(lambda twin: twin.before, other), other
        after, twins = before, _twins((args, kwargs))
        changing = [twin for twin in twins if twin.after is not twin.before]
        if changing:
            after = called(lambda twin: twin.after, (args, kwargs))
        parts = frozenset[Entries]().union(*(twin.parts for twin in changing))
        size = max((float(twin.change.abs().max()) for twin in changing if twin.before.numel()), default=0.0)
        n = itertools.count()

        def made(old: Any, new: Any) -> Any:
            at = next(n)
            if not isinstance(old, Tensor):
                return old
            twin = self._with_choices(Twin(old, new, parts if new is not old else frozenset()), twins)
            if new is old or not _alike(twin, size):
                return twin
            indices = [t for t in twins if not is_real(t.before) and t.before.dtype != torch.bool]
            if name in _CUTS or (indices and not any(t.chosen for t in indices)):  # what changes is in another part
                return twin._replace(after=twin.before, parts=frozenset())
            if not _ignored(lambda change: pytree.tree_leaves(called(change, (args, kwargs)))[at], twins, size):
                raise MattersError(parts)
            reason = next((why for kind, why in _REASONS.items() if kind in name), "it cancels")
            self.endings.update(dict.fromkeys(parts, f"{label(node)}: {reason}"))
            return twin._replace(after=twin.before, parts=frozenset())

        return pytree.tree_map(made, before, after)

    def _otherwise(self, twin: Twin) -> Twin:
        """Replaces numbers that inputs chose by others, as if inputs had chosen otherwise; masks stay masks."""
        t = twin.before
        if not twin.chosen or t.dtype == torch.bool:
            return twin
        if bool(((t == 0) | (t == 1)).all()):
            t = (torch.rand(t.shape, generator=self._generator) < 0.5).to(t.dtype)
        else:
            t = t + torch.randn(t.shape, generator=self._generator, dtype=torch.float64)
        return Twin(t, t)

    def _with_choices(self, twin: Twin, arguments: Sequence[Twin]) -> Twin:
        """Makes an output of numbers that inputs choose: truth values are others, entries that are looked up random."""
        before, after = twin.before, twin.after
        if not (chosen := [argument.before for argument in arguments if argument.chosen]):
            return twin
        if not is_real(before):
            if before.dtype == torch.bool and after is before:
                before = after = torch.rand(before.shape, generator=self._generator) < 0.5
            return twin._replace(before=before, after=after, chosen=True)
        if all(t.dtype == torch.bool for t in chosen):
            return twin
        noise = torch.randn(before.shape, dtype=before.dtype, generator=self._generator)
        noisy = before + noise
        return twin._replace(before=noisy, after=noisy if after is before else after + noise)


def _ignored(called: Callable[[Callable[[Twin], Tensor]], Tensor], arguments: Sequence[Twin], size: float) -> bool:
    """Tells whether an operator sees what changes, but ignores such a change whatever its arguments are."""
    for seed, factor in enumerate((0.1, 1.0, 10.0)):
        generator = torch.Generator().manual_seed(seed)
        random, others = {}, {}
        for twin in arguments:
            if is_real(twin.before):
                large = torch.where(twin.before.abs() <= _MASKS * size, 0, twin.before)
                draws = [torch.randn(large.shape, dtype=large.dtype, generator=generator) for _ in range(2)]
                random[id(twin)] = large + factor * size * draws[0]
                others[id(twin)] = torch.where(twin.change == 0, random[id(twin)], large + factor * size * draws[1])
        plain = called(lambda twin: random.get(id(twin), twin.before))  # noqa: B023
        moved = called(lambda twin: random[id(twin)] + twin.change if id(twin) in random else twin.before)  # noqa: B023
        other = called(lambda twin: others.get(id(twin), twin.before))  # noqa: B023
        if not _alike(Twin(plain, moved), size) or _alike(Twin(plain, other), size):
            return False
    return True


def _alike(twin: Twin, size: float) -> bool:
    """Tells whether two values are the same but for rounding, after a change of some size; NaN equals nothing."""
    if not is_real(twin.before):
        return torch.equal(twin.before, twin.after)
    if bool(twin.before.isnan().any()) or bool((twin.before.isfinite() != twin.after.isfinite()).any()):
        return False
    return not twin.before.numel() or float(twin.change.abs().max()) <= _SAME * size


def _twins(tree: Any) -> list[Twin]:
    return [v for v in pytree.tree_leaves(tree, is_leaf=_is_twin) if _is_twin(v)]


def _is_twin(value: Any) -> bool:
    return isinstance(value, Twin)


def is_real(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()
