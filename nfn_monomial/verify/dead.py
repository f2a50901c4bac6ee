"""Parameters that do not matter to the function, such as biases of keys, which a softmax ignores.

The gradient of what a network answers, by an entry that does not matter, is 0 wherever it is taken. But so it is for
entries behind a ReLU that is off, an ``argmax``, a rounding, or an index that the example does not have. So what has no
gradient at random weights is followed through the program: it is changed by random numbers, and all that changes with
it has to end at operators that see it and ignore such a change whatever their arguments are: a softmax or a norm that
meets the same number everywhere along its dimension, a difference whose two sides change alike. A small number in the
way is none of these: what it makes of the change ends at a sum, which would show a change of the size of its terms.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from nfn_monomial.running import Float64, doubled, random_sum
from nfn_monomial.trace.algebra.values import Dimension, Value, blocks, extent
from nfn_monomial.trace.graph import Program, label, operation
from nfn_monomial.trace.write import Ending, Entries

from .points import Point

_NO_GRADIENT = 1e-11  # of the largest one: what has less is followed
_SAME = 1e-9  # of the change, in float64
_CHANGES = (1.0, 1e5)  # sizes of changes: large ones, too, as far as a network may cut off
_MASKS = 1e3  # times the change: arguments become random around what is as large, 0 else
_POINTS = 4
_MOST = 100  # runs of the program
_CUTS = {"select", "slice", "split", "split_with_sizes", "unbind", "chunk", "narrow", "tensor_split", "unsafe_split"}
_ALIASES = {"detach", "alias", "lift_fresh_copy"}
_REASONS = {"softmax": "softmax", "attention": "softmax", "norm": "a mean is subtracted"}
_WRAPPERS = {"wrap_with_set_grad_enabled", "wrap_with_autocast"}


class _Twin(NamedTuple):
    """A value before and after a change.

    Attributes:
        before, after: the value; one object where it does not change.
        parts: whose change is in it.
        chosen: whether it is made of whole numbers or truth values that inputs or buffers hold.
    """

    before: Tensor
    after: Tensor
    parts: frozenset[Entries] = frozenset()
    chosen: bool = False

    @property
    def change(self) -> Tensor:
        """The difference; 0 where both are infinite, or for truth values."""
        if not _is_real(self.before):
            return torch.zeros(())
        return torch.where(self.before == self.after, 0, self.after - self.before).nan_to_num(0, 0, 0)


class _MattersError(Exception):
    """A change reaches an answer, or ends at what does not ignore it."""

    def __init__(self, parts: frozenset[Entries]) -> None:
        super().__init__()
        self.parts = parts


def dead_parts(
    program: Program,
    roots: Mapping[str, Value],
    fixed: Callable[[Dimension], bool],
    *,
    module: nn.Module,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> dict[Entries, Ending]:
    """Returns the parts of parameters that do not matter to the function, and for each what ignores it.

    Args:
        program: of the network; there are none where values of its tensors or inputs are missing.
        roots: its parameters, whose dimensions the derivation has cut into segments.
        fixed: tells whether nothing permutes a dimension.
        module: that the program was made from.
        inputs: its positional arguments.
        kwargs: further arguments.
    """
    values = program.values
    known = all(node.name in values for node in program.graph.nodes if node.op == "placeholder")
    if not known or any(isinstance(t, Tensor) and t.is_meta for t in values.values()):
        return {}
    search = _Search(program, roots, fixed)
    with contextlib.suppress(Exception):  # of any kind, as of operators without a gradient: then no more is known
        search.run(Point.of(module, inputs, kwargs))
    return {part: Ending(reason, search.places(part)) for part, reason in search.dead.items()}


class _Search:
    """Runs a program at random points.

    Attributes:
        dead: parts that do not matter at any point until now -> the operations at which their changes end.
    """

    def __init__(self, program: Program, roots: Mapping[str, Value], fixed: Callable[[Dimension], bool]) -> None:
        self.program, self.dead = program, dict[Entries, str]()
        self._runs = 0
        self._at: dict[str, dict[tuple[int, ...], list[Tensor]]] = {}
        self._vectors: dict[str, Tensor] = {}  # FIXED ones, by the gradients of their entries
        for name, root in roots.items():
            if isinstance(program.tensors[name], nn.Parameter):
                every = [list(enumerate(_places(dim, torch.arange(extent(dim))))) for dim in root.dims]
                chosen = itertools.product(*every)
                self._at[name] = {tuple(n for n, _ in c): [at for _, at in c] for c in chosen}
                if list(self._at[name]) == [(0,)] and fixed(root.dims[0]):
                    self._vectors[name] = torch.zeros(root.shape)

    def places(self, part: Entries) -> list[Tensor]:
        """Returns the places of its entries along each dimension."""
        return self._at[part[0]][part[1]]

    def run(self, example: Point) -> None:
        """Keeps the parts that do not matter at any of several points near the example."""
        first = True
        for point, _ in example.neighbours(torch.Generator().manual_seed(0), _POINTS):
            self._values, self._seed = self._values_at(point), point.seed or 0
            if (largest := self._gradients()) is None:
                continue
            bound = _NO_GRADIENT * max(largest.values(), default=0.0)
            for name, sizes in self._vectors.items() if first else ():
                if bool((sizes <= bound).any()) and bool((sizes > bound).any()):
                    self._at[name][-1,] = [(sizes <= bound).nonzero().flatten()]
                    largest[name, (-1,)] = 0.0
            still = [part for part, size in largest.items() if size <= bound and (first or part in self.dead)]
            self.dead, first = {}, False
            if bound:
                self._follow(still)
            if not self.dead:
                return

    def _values_at(self, point: Point) -> dict[str, Any]:
        """Returns the values of the program's placeholders at a point; constants of the code are what they are."""
        weights, inputs = point.weights(), pytree.tree_leaves(point.inputs)
        names = {id(t): name for name, t in (*point.module.named_parameters(), *point.module.named_buffers())}
        places = [node.name for node in self.program.graph.nodes if node.op == "placeholder"]
        values = dict(zip(places[len(places) - len(inputs) :], inputs, strict=True))  # after all tensors
        for place in places[: len(places) - len(inputs)]:
            value = self.program.values[place]
            name = self.program.parameters.get(place) or names.get(id(value))
            values[place] = weights[name] if name in weights and place not in self.program.constants else doubled(value)
        return values

    def _gradients(self) -> dict[Entries, float] | None:
        """Returns the largest gradient of a random sum of answers in each part; None where answers are not finite."""
        largest: dict[Entries, float] = {}
        leaves: dict[str, Tensor] = {}

        def begin(name: str, tensor: Tensor) -> _Twin:
            def look(leaf: Tensor) -> None:  # and forget it: all of them are as large as the network
                if name in self._vectors and leaf.grad is not None:
                    self._vectors[name] = leaf.grad.abs()
                for choice, at in self._at[name].items():
                    largest[name, choice] = float(_taken(leaf.grad, at).abs().max()) if leaf.grad is not None else 0.0
                leaf.grad = None

            if name in self._at and name not in leaves:
                leaves[name] = tensor.clone().requires_grad_()
                leaves[name].register_post_accumulate_grad_hook(look)  # type: ignore[no-untyped-call]
                largest.update({(name, choice): 0.0 for choice in self._at[name]})
            tensor = leaves.get(name, tensor)
            return _Twin(tensor, tensor)

        with torch.enable_grad():
            answers = [t.before for t in self._answers(begin) if _is_real(t.before)]
            if not all(bool(t.isfinite().all()) for t in answers):
                return None
            answers = [torch.view_as_real(t) if t.is_complex() else t for t in answers]
            total = random_sum(answers, torch.Generator().manual_seed(self._seed))
            if total is not None:
                total.backward()  # type: ignore[no-untyped-call]
        return largest

    def _follow(self, parts: Sequence[Entries]) -> None:
        """Enters those that do not matter: all of them, or what is left without those that may."""
        if not parts or self._runs >= _MOST:
            return
        try:
            endings = [self._endings(parts, size) for size in _CHANGES]
        except _MattersError as reason:
            seen = [part for part in parts if part in reason.parts]
            rest = [part for part in parts if part not in reason.parts]
            if not rest and len(seen) > 1:
                seen, rest = seen[: len(seen) // 2], seen[len(seen) // 2 :]
            if rest:
                self._follow(rest)
                self._follow(seen)
            return
        self.dead |= {part: endings[0][part] for part in parts if part in endings[0]}

    def _endings(self, parts: Collection[Entries], size: float) -> dict[Entries, str]:
        """Returns the operation at which the change of each part ends.

        Raises:
            _MattersError: if one does not.
        """
        self._runs += 1
        endings: dict[Entries, str] = {}

        def begin(name: str, tensor: Tensor) -> _Twin:
            if not (changing := [part for part in parts if part[0] == name]):
                return _Twin(tensor, tensor)
            generator, after = torch.Generator().manual_seed(self._seed), tensor.clone()
            for _, choice in changing:
                grid = torch.meshgrid(*self._at[name][choice], indexing="ij") if tensor.ndim else ()
                after[grid] += size * torch.randn(after[grid].shape, dtype=after.dtype, generator=generator)
            return _Twin(tensor, after, frozenset(changing))

        with torch.no_grad():
            for answer in self._answers(begin, endings):
                if answer.after is not answer.before:
                    raise _MattersError(answer.parts)
        return endings

    def _answers(self, begin: Callable[[str, Tensor], _Twin], endings: dict[Entries, str] | None = None) -> list[_Twin]:
        """Returns all answers at the point, with twins of parameters that ``begin`` makes, and enters their endings."""
        self._generator = torch.Generator().manual_seed(self._seed)
        graph, self._ends = self.program.graph, {} if endings is None else endings

        def placeholder(place: str) -> Any:
            value = self._values[place]
            if not isinstance(value, Tensor):
                return value
            if place in self.program.parameters:
                return begin(self.program.parameters[place], value)
            if place in self.program.constants:
                return _Twin(value, value)
            if value.dtype == torch.bool:
                value = torch.rand(value.shape, generator=self._generator) < 0.5
            return _Twin(value, value, chosen=not _is_real(value))

        with Float64():  # type: ignore[no-untyped-call]
            arguments = [placeholder(node.name) for node in graph.nodes if node.op == "placeholder"]
            return _twins(self._inside(graph, arguments))

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
                    value = _Twin(value, value)
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

        def called(change: Callable[[_Twin], Tensor], arguments: Any = (args, kwargs)) -> Any:
            new = pytree.tree_map(lambda v: change(v) if _is_twin(v) else v, arguments, is_leaf=_is_twin)
            return node.target(*new[0], **new[1])  # type: ignore[operator]

        before = called(lambda twin: twin.before)
        if isinstance(before, Tensor) and _is_real(before):
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
            twin = self._with_choices(_Twin(old, new, parts if new is not old else frozenset()), twins)
            if new is old or not _alike(twin, size):
                return twin
            indices = [t for t in twins if not _is_real(t.before) and t.before.dtype != torch.bool]
            if name in _CUTS or (indices and not any(t.chosen for t in indices)):  # what changes is in another part
                return twin._replace(after=twin.before, parts=frozenset())
            if not _ignored(lambda change: pytree.tree_leaves(called(change, (args, kwargs)))[at], twins, size):
                raise _MattersError(parts)
            reason = next((why for kind, why in _REASONS.items() if kind in name), "it cancels")
            self._ends.update(dict.fromkeys(parts, f"{label(node)}: {reason}"))
            return twin._replace(after=twin.before, parts=frozenset())

        return pytree.tree_map(made, before, after)

    def _otherwise(self, twin: _Twin) -> _Twin:
        """Replaces numbers that inputs chose by others, as if inputs had chosen otherwise; masks stay masks."""
        t = twin.before
        if not twin.chosen or t.dtype == torch.bool:
            return twin
        if bool(((t == 0) | (t == 1)).all()):
            t = (torch.rand(t.shape, generator=self._generator) < 0.5).to(t.dtype)
        else:
            t = t + torch.randn(t.shape, generator=self._generator, dtype=torch.float64)
        return _Twin(t, t)

    def _with_choices(self, twin: _Twin, arguments: Sequence[_Twin]) -> _Twin:
        """Makes an output of numbers that inputs choose: truth values are others, entries that are looked up random."""
        before, after = twin.before, twin.after
        if not (chosen := [argument.before for argument in arguments if argument.chosen]):
            return twin
        if not _is_real(before):
            if before.dtype == torch.bool and after is before:
                before = after = torch.rand(before.shape, generator=self._generator) < 0.5
            return twin._replace(before=before, after=after, chosen=True)
        if all(t.dtype == torch.bool for t in chosen):
            return twin
        noise = torch.randn(before.shape, dtype=before.dtype, generator=self._generator)
        noisy = before + noise
        return twin._replace(before=noisy, after=noisy if after is before else after + noise)


def _ignored(called: Callable[[Callable[[_Twin], Tensor]], Tensor], arguments: Sequence[_Twin], size: float) -> bool:
    """Tells whether an operator sees what changes, but ignores such a change whatever its arguments are."""
    for seed, factor in enumerate((0.1, 1.0, 10.0)):
        generator = torch.Generator().manual_seed(seed)
        random, others = {}, {}
        for twin in arguments:
            if _is_real(twin.before):
                large = torch.where(twin.before.abs() <= _MASKS * size, 0, twin.before)
                draws = [torch.randn(large.shape, dtype=large.dtype, generator=generator) for _ in range(2)]
                random[id(twin)] = large + factor * size * draws[0]
                others[id(twin)] = torch.where(twin.change == 0, random[id(twin)], large + factor * size * draws[1])
        plain = called(lambda twin: random.get(id(twin), twin.before))  # noqa: B023
        moved = called(lambda twin: random[id(twin)] + twin.change if id(twin) in random else twin.before)  # noqa: B023
        other = called(lambda twin: others.get(id(twin), twin.before))  # noqa: B023
        if not _alike(_Twin(plain, moved), size) or _alike(_Twin(plain, other), size):
            return False
    return True


def _alike(twin: _Twin, size: float) -> bool:
    """Tells whether two values are the same but for rounding, after a change of some size; NaN equals nothing."""
    if not _is_real(twin.before):
        return torch.equal(twin.before, twin.after)
    if bool(twin.before.isnan().any()) or bool((twin.before.isfinite() != twin.after.isfinite()).any()):
        return False
    return not twin.before.numel() or float(twin.change.abs().max()) <= _SAME * size


def _places(dim: Dimension, at: Tensor) -> Iterator[Tensor]:
    """Yields the places of each segment of a dimension."""
    if len(dim) == 1:
        yield at
        return
    lead = min(segment.lead for segment in dim[1:])
    parts = blocks(dim, lead)
    rows = torch.split(at.view(lead, -1), [extent(part) // lead for part in parts], 1)
    for part, row in zip(parts, rows, strict=True):
        yield from _places(part, row.flatten())


def _taken(x: Tensor, at: Sequence[Tensor]) -> Tensor:
    """Returns the entries of a tensor at some places along each of its dimensions."""
    for dim, places in enumerate(at):
        x = x if len(places) == x.shape[dim] else x.index_select(dim, places)
    return x


def _twins(tree: Any) -> list[_Twin]:
    return [v for v in pytree.tree_leaves(tree, is_leaf=_is_twin) if _is_twin(v)]


def _is_twin(value: Any) -> bool:
    return isinstance(value, _Twin)


def _is_real(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()
