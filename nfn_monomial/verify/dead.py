"""Parameters that do not matter to the function, such as biases of keys, which a softmax ignores.

The gradient of the outputs by an entry that does not matter is 0 at all points. But it is 0, too, for entries before a
ReLU that is off, an ``argmax``, a rounding, or an index that the example does not have. So parts without a gradient at
random points are followed through the program: they are changed by random numbers, and everything that changes with
them has to end at operators that see the change and ignore it whatever their arguments are: a softmax or a norm that
meets the same number everywhere along its dimension, a difference whose two sides change alike. Multiplication by a
small number does not hide a change: that ends at a sum, which would show a change of the size of its terms.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial.running import doubled, random_sum
from nfn_monomial.trace.algebra.values import Dimension, Value, blocks, extent
from nfn_monomial.trace.graph import Program
from nfn_monomial.trace.write import Ending, Entries

from .points import Point
from .twins import MattersError, Twin, TwinRun, is_real

_NO_GRADIENT = 1e-11  # of the largest one: what has less is followed
_CHANGES = (1.0, 1e5)  # sizes of changes: large ones, too, as far as a network may cut off
_POINTS = 4
_MOST = 100  # runs of the program


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
    search = _DeadSearch(program, roots, fixed)
    with contextlib.suppress(Exception):  # of any kind, as of operators without a gradient: then no more is known
        search.run(Point.of(module, inputs, kwargs))
    return {part: Ending(reason, search.places(part)) for part, reason in search.dead.items()}


class _DeadSearch:
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

        def begin(name: str, tensor: Tensor) -> Twin:
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
            return Twin(tensor, tensor)

        with torch.enable_grad():
            run = TwinRun(self.program, self._values, self._seed, begin)
            answers = [t.before for t in run.answers if is_real(t.before)]
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
        except MattersError as reason:
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
            MattersError: if one does not.
        """
        self._runs += 1

        def begin(name: str, tensor: Tensor) -> Twin:
            if not (changing := [part for part in parts if part[0] == name]):
                return Twin(tensor, tensor)
            generator, after = torch.Generator().manual_seed(self._seed), tensor.clone()
            for _, choice in changing:
                grid = torch.meshgrid(*self._at[name][choice], indexing="ij") if tensor.ndim else ()
                after[grid] += size * torch.randn(after[grid].shape, dtype=after.dtype, generator=generator)
            return Twin(tensor, after, frozenset(changing))

        with torch.no_grad():
            run = TwinRun(self.program, self._values, self._seed, begin)
        for answer in run.answers:
            if answer.after is not answer.before:
                raise MattersError(answer.parts)
        return run.endings


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
