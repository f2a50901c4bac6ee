"""The certificate of a weight space: its group leaves what a real module computes alone (paper Prop. 4.4)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.running import answers, disturbed, doubled, first_line, inputs_of, largest_change, steady_answers
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix
from nfn_monomial.space.origin import Part
from nfn_monomial.space.packing import concrete, cut, joined, sizes_in
from nfn_monomial.trace.graph import of_experts
from nfn_monomial.trace.operators import short

_RTOL = 1e-9  # in float64, where a group that keeps the function is right to 1e-12
_ROUNDING = 1e-12  # of what outputs are at random weights
_STRIDES = 5
_TRIALS = 4
_DRAWS = 3  # of weights and inputs for one trial, until the function is defined for them
_ORDERS = 8  # of magnitude that scales are drawn from, above 1 and below
_LARGE = 1_000_000  # with more entries than this, two trials have seen enough of them
_MOST_WORK = 2e10  # additions and products of a forward pass with inputs of another size: a few seconds
_ORDERING = {"topk", "sort", "argsort", "argmax", "argmin", "max", "min", "kthvalue", "median", "nanmedian", "mode"}


class Move(NamedTuple):
    """A change of weights that leaves the function alone: an element, behind random numbers for what does not matter.

    Attributes:
        element: of the group.
        dead: pieces of parameters that become random numbers.
    """

    element: GroupElement
    dead: Collection[str] = ()

    def moved(self, name: str, tensor: Tensor) -> Tensor:
        """One parameter or buffer, moved."""
        space = self.element.space
        if any(piece in self.dead for piece in space.pieces_of.get(name, ())):
            generator, sizes = torch.Generator().manual_seed(len(name)), self.element.sizes
            sizes = sizes_in(space, name, tuple(tensor.shape), sizes)
            pieces = dict(cut(space, name, tensor, sizes))
            for piece in [piece for piece in pieces if piece in self.dead]:
                pieces[piece] = disturbed(pieces[piece], generator, spread=100.0)
            tensor = joined(space, name, pieces, sizes)
        return self.element.act({name: tensor})[name]

    def parts(self) -> Iterator[tuple[Part, Move]]:
        """All factors of its element, and each piece that does not matter, one by one."""
        space, moves = self.element.space, self.element.matrices
        for node, matrix in moves.items():
            ones = [torch.ones_like(scale) for scale in matrix.scales]
            factors: list[tuple[Part, MonomialMatrix]] = []
            if matrix.permutes and matrix.size > 1:
                factors.append((Part(node, "permutation"), MonomialMatrix(ones, matrix.permutation)))
            for n, (gauge, scale) in enumerate(zip(space.nodes[node].gauges, matrix.scales, strict=True)):
                if gauge.scales:
                    scales = [*ones[:n], scale.abs(), *ones[n + 1 :]]
                    factors.append((Part(node, "scale", n), MonomialMatrix.diagonal(scales)))
                if gauge.flips:
                    scales = [*ones[:n], scale.sign(), *ones[n + 1 :]]
                    factors.append((Part(node, "sign", n), MonomialMatrix.diagonal(scales)))
            yield from ((part, Move(GroupElement(space, {node: factor}))) for part, factor in factors)
        yield from ((Part(piece, "dead"), Move(GroupElement(space, {}), (piece,))) for piece in self.dead)

    def of_nodes(self) -> Iterator[tuple[str, Move]]:
        """What it does on each node alone, and all that does not matter under no name."""
        space = self.element.space
        for node, matrix in self.element.matrices.items():
            yield node, Move(GroupElement(space, {node: matrix}))
        if self.dead:
            yield "", Move(GroupElement(space, {}), self.dead)


class Resized(NamedTuple):
    """Inputs that have another size in place of one of the example's.

    Attributes:
        extent: the size that the example has.
        size: the one that stands in its place.
        point: with such inputs and random weights; None where it would take too long.
        answers: of the module there.
    """

    extent: int
    size: int
    point: Point | None
    answers: list[Tensor]


class Point(NamedTuple):
    """Where a module is tested.

    Attributes:
        module: that runs.
        inputs: positional arguments, and those with names.
        seed: of random numbers in place of its weights, see `disturbed`; None for its own.
        keep_signs: whether parameters keep theirs. Buffers do: masks and variances are among them.
        where: what its inputs are, in words.
    """

    module: nn.Module
    inputs: tuple[Any, Any]
    seed: int | None = None
    keep_signs: bool = False
    where: str = "the example inputs"

    def weights(self, move: Move | None = None) -> dict[str, Tensor]:
        """Parameters and buffers in float64 on the CPU, moved one by one: there is one copy of them."""
        parameters, found = dict(self.module.named_parameters()), {}
        for i, (name, own) in enumerate((parameters | dict(self.module.named_buffers())).items()):
            tensor = doubled(own)
            if self.seed is not None:
                generator = torch.Generator().manual_seed(self.seed + i)
                tensor = disturbed(tensor, generator, self.keep_signs or name not in parameters)
            found[name] = tensor if move is None else move.moved(name, tensor)
        return found

    def answers(self, move: Move | None = None) -> list[Tensor]:
        """What the module answers here, or with weights that are moved."""
        return answers(self.module, self.weights(move), *self.inputs)

    def steady_answers(self) -> list[Tensor]:
        """The same here, see `steady_answers`."""
        return steady_answers(self.module, self.weights(), *self.inputs)

    def near(self, generator: torch.Generator, draws: int) -> Iterator[tuple[Point, list[Tensor]]]:
        """A point with random weights and inputs, and what the module answers there: none if it is not defined there.

        Others are drawn, up to as many as said, until all that it answers is finite.
        """
        for draw in range(draws):
            seed = int(torch.randint(2**48, (), generator=generator))
            inputs = pytree.tree_map_only(Tensor, lambda t: disturbed(t, generator, keep_signs=True), self.inputs)
            point, found = self._replace(seed=seed, keep_signs=draw > 0, inputs=inputs), None
            with contextlib.suppress(Exception):  # of any kind: modules raise what they like
                found = point.answers()
            if found is not None and all(bool(t.isfinite().all()) for t in found):
                yield point, found
                return

    def resized(self, generator: torch.Generator) -> Iterator[Resized]:
        """Points whose inputs have n + 1, n - 1, 2 n and 3 n in place of each size n, where the module runs.

        Where neither n + 1 nor n - 1 runs, n + s and n - s are tried for divisors s of n, such as strides. A size is
        changed wherever it occurs, and entries recur. If no other one runs, it is changed in each place of all shapes,
        and if none does, in each tensor alone: a number of tokens may happen to be that of channels. Sizes at which a
        pass would take long are left out, but for n + 1 and n - 1.
        """
        shapes = [t.shape for t in pytree.tree_leaves(self.inputs) if isinstance(t, Tensor)]
        work = self._work() / max(1, sum(shape.numel() for shape in shapes))
        shaped = sum(t.numel() for t in self.module.parameters()) > _LARGE and self._has_shapes()
        for n in sorted({n for shape in shapes for n in shape if n > 0}):
            every = [(i, dim) for i, shape in enumerate(shapes) for dim, extent in enumerate(shape) if extent == n]
            alike = [[place for place in every if place[1] == dim] for dim in sorted({dim for _, dim in every})]
            ran, tried = False, list[list[tuple[int, int]]]()
            for level in ([every], alike, [[place] for place in every]):
                for places in [places for places in level if not ran and places not in tried]:
                    tried.append(places)
                    strides = [s for s in range(1, n) if n % s == 0][:_STRIDES] or [1]
                    stride = 0  # the first one at which it runs
                    for size in dict.fromkeys([*(n + sign * s for s in strides for sign in (1, -1)), 2 * n, 3 * n]):
                        if size < 1 or (stride and size < 2 * n and abs(size - n) != stride):
                            continue
                        other = self._resized(places, size)
                        entries = sum(t.numel() for t in pytree.tree_leaves(other.inputs) if isinstance(t, Tensor))
                        if work * entries > _MOST_WORK and (abs(size - n) > 1 or places != every):
                            yield Resized(n, size, None, [])
                            continue
                        for point, found in other.near(generator, 1) if not shaped or other._has_shapes() else ():
                            ran, stride = True, stride or abs(size - n)
                            yield Resized(n, size, point, found)

    def _resized(self, places: Collection[tuple[int, int]], size: int) -> Point:
        leaves, spec = pytree.tree_flatten(self.inputs)
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for i, dim in places:
            t = leaves[at[i]]
            leaves[at[i]] = t.index_select(dim, torch.arange(size) % t.shape[dim])
        shapes = ", ".join(str(tuple(leaves[i].shape)) for i in at)
        return self._replace(inputs=pytree.tree_unflatten(leaves, spec), where=f"inputs of shape {shapes}")

    def _has_shapes(self) -> bool:
        """Whether it runs on shapes alone, without any values: so it is seen that a large module does not run."""
        with contextlib.suppress(Exception), FakeTensorMode(allow_non_fake_inputs=True):
            weights = {
                name: torch.empty(t.shape, dtype=torch.float64 if t.is_floating_point() else t.dtype)
                for name, t in (*self.module.named_parameters(), *self.module.named_buffers())
            }
            inputs = pytree.tree_map_only(Tensor, lambda t: torch.empty(t.shape, dtype=t.dtype), self.inputs)
            return bool(answers(self.module, weights, *inputs))
        return False

    def _work(self) -> float:
        """About how many additions and products a forward pass takes; 0 for few."""
        entries = sum(t.numel() for t in pytree.tree_leaves(self.inputs) if isinstance(t, Tensor))
        if entries * sum(t.numel() for t in self.module.parameters()) < _MOST_WORK / 100:
            return 0.0
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            self.answers()
        return max(float(counter.get_total_flops()), 1000.0 * entries)

    def ties(self) -> list[str]:
        """Operators that put equal entries in an order here, where torch takes them by their places."""
        with _Ties() as seen:
            self.answers()
        return list(seen.names)


class _Ties(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the operators that tell equal entries apart."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: dict[str, None] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = operator(*args, **(kwargs or {}))
        if (name := short(str(operator))) in _ORDERING and not (isinstance(found, Tensor) and "arg" not in name):
            dims = [a for a in (*args[1:], (kwargs or {}).get("dim")) if isinstance(a, int)]
            dim = -1 if name in ("topk", "kthvalue") and len(dims) < 2 else (dims or [-1])[-1]
            if args[0].ndim and bool((args[0].sort(dim).values.diff(dim=dim) == 0).any()):
                self.names[name] = None
        return found


class Sizes(NamedTuple):
    """The sizes at which a module was tested in place of one that the example has.

    Attributes:
        extent: the size that the example has.
        ran: the others that were tested.
        too_large: those that would have taken long.
    """

    extent: int
    ran: tuple[int, ...]
    too_large: tuple[int, ...]


class Certificate(NamedTuple):
    """What was tested.

    Attributes:
        elements: how many group elements were tested where inputs have the example's sizes.
        ties: operators that tell entries apart which are equal at the module's own weights, so that the element there
            changed the outputs and says nothing.
        sizes: what was tested besides, for each size in the shapes of inputs.
    """

    elements: int
    ties: tuple[str, ...]
    sizes: tuple[Sizes, ...]


Shrink: TypeAlias = Callable[[Sequence[Part], str], Callable[..., GroupElement]]
"""Takes what does not hold, and where, out of a space, whose ``sample`` it gives back."""


def certify(
    module: nn.Module,
    example_inputs: Any,
    sample: Callable[..., GroupElement],
    *,
    kwargs: Mapping[str, Any] | None = None,
    blame: Callable[[str], str] = str,
    shrink: Shrink | None = None,
) -> Certificate:
    """Raise if random group elements change a module's function, on the example or in its neighbourhood.

    Everything is computed on the CPU in float64, with scales of many orders of magnitude, see `widened`. The first
    element acts on the module's own parameters, those after it on random ones, with random buffers and inputs, all of
    the size of the module's own: what holds for weights of 0, or for the statistics of a fresh norm, alone is not
    enough. Where the function is not defined for these (its outputs are not finite, or it raises an error), others are
    drawn; after a few, the element is left out. These elements move every neuron, so that none of a node's neurons is
    told apart from the others unseen. Parameters that are said not to matter become random numbers. At last, inputs get
    other sizes, see `Point.resized`: a number of tokens, of networks, of pixels.

    Where a module's own entries are equal, as of a router that starts at zeros, operators such as ``topk`` choose by
    place, which no group keeps: such weights say nothing, the random ones decide.

    Args:
        module: the network, run in eval mode, each submodule's mode and all parameters left as they are.
        example_inputs: a tensor, or a tuple of all positional arguments.
        sample: `WeightSpace.sample` of the space that is in question.
        kwargs: further arguments of the module.
        blame: what to say of a node whose part of the group changes the function, such as what runs on it.
        shrink: takes parts of the group away that hold at the example's sizes, but not at others. Without it, these are
            an error.

    Raises:
        ValueError: if the function changes, with its relative change and the nodes that are wrong; or if nothing can be
            said: the example holds no values, the module does not run in float64, its forward is random, or its
            outputs are not finite, at its own parameters or at all others that were drawn.
    """
    inputs = inputs_of(example_inputs)
    name, seen = type(module).__name__, [t for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor)]
    if not concrete(seen):
        raise InvalidValueError(
            "example_inputs hold no values (meta tensors, or under a transform): nothing can be checked"
        )
    generator = torch.Generator().manual_seed(0)
    own = Point(module, pytree.tree_map_only(Tensor, doubled, (inputs, dict(kwargs or {}))))
    trials = _TRIALS if sum(t.numel() for t in (*module.parameters(), *module.buffers())) < _LARGE else 2

    def move() -> Move:
        element = sample(generator=generator).proper().cyclic()
        return Move(widened(element), element.space.dead)

    def change(moved: Move, point: Point, expected: list[Tensor]) -> float:
        return largest_change(point.answers(moved), expected)

    def refuse(moved: Move, point: Point, expected: list[Tensor]) -> InvalidValueError:
        point.steady_answers()  # own weights of 0 may have hidden that it is random
        wrong = [
            blame(node) if node else f"what should not matter, {', '.join(part.dead)}"
            for node, part in moved.of_nodes()
            if not change(part, point, expected) <= _RTOL
        ]
        ties = ", ".join(point.ties())
        tied = f" Entries that {ties} takes by their places are equal there." if ties else ""
        return InvalidValueError(
            f"the group of {moved.element.space} changes what {name} computes on {point.where}, by "
            f"{change(moved, point, expected):.1e} (relative), through {'; '.join(wrong) or 'several nodes together'}."
            f"{tied} An operator has a rule that is not true of it, or not of this size: register_operator(name, rule) "
            "gives it another; and tell us of it"
        )

    try:
        # What does not matter stays: where it alone is not 0 at first, answers are nothing but rounding.
        first, expected = Move(widened(sample(generator=generator).proper())), own.steady_answers()
        kept = change(first, own, expected) <= _RTOL
        ties = [] if kept else own.ties()
        points = [point for _ in range(trials - 1) for point in own.near(generator, _DRAWS)]
        if not kept and not ties:
            # Answers may be 0 at its own weights, and what they are then is rounding.
            outputs = zip(own.answers(first), expected, *(found for _, found in points), strict=True)
            if not points or not all(_vanishes(*output) for output in outputs):
                raise refuse(first, own, expected)
        for point, expected in points:
            while not change(moved := move(), point, expected) <= _RTOL:
                lost = _failing(moved, lambda part: change(part, point, expected))  # noqa: B023
                if shrink is None or any(part.kind != "dead" for part in lost):
                    raise refuse(moved, point, expected)
                sample = shrink(lost, point.where)  # it is no rule that says what does not matter
        elements, sizes = len(points) + kept, dict[int, tuple[list[int], list[int]]]()
        if not points:
            raise InvalidValueError(
                f"{name} could be tested at no weights but its own: at random ones near these its outputs are not "
                "finite, or it raises an error. Give weights and inputs with room around them, or certify=False for a "
                "space that nothing has tested"
            )
        for extent, size, other, expected in own.resized(generator):
            ran, too_large = sizes.setdefault(extent, ([], []))
            (too_large if other is None else ran).append(size)
            while other is not None and not change(moved := move(), other, expected) <= _RTOL:
                if shrink is None or not (lost := _failing(moved, lambda part: change(part, other, expected))):  # noqa: B023
                    raise refuse(moved, other, expected)
                sample = shrink(lost, other.where)
    except RuntimeError as reason:
        raise InvalidValueError(
            f"{name} does not run on the CPU in float64, in which the example inputs are used to check the space "
            f"({first_line(reason)}). A module that turns its inputs into another dtype itself cannot be checked"
            f"{of_experts(module)}"
        ) from reason
    tried = {n for t in pytree.tree_leaves((inputs, kwargs)) if isinstance(t, Tensor) for n in t.shape}
    return Certificate(
        elements, tuple(ties), tuple(Sizes(n, *map(tuple, sizes.get(n, ((), ())))) for n in sorted(tried))
    )


def _vanishes(found: Tensor, expected: Tensor, *usual: Tensor) -> bool:
    """Whether an output is 0 but for rounding, and stays so, beside what it is at random weights."""
    moved, first, *others = [float(x.abs().max()) if x.numel() else 0.0 for x in (found, expected, *usual)]
    return max(moved, first) <= _ROUNDING * max(others)


def _failing(moved: Move, change: Callable[[Move], float]) -> list[Part]:
    """The parts of a move that change the function; all of them where it takes several together."""
    wrong = {node for node, part in moved.of_nodes() if not change(part) <= _RTOL}
    parts = [part for part in moved.parts() if not wrong or ("" if part[0].kind == "dead" else part[0].node) in wrong]
    return [part for part, alone in parts if not change(alone) <= _RTOL] or [part for part, _ in parts]


def widened(element: GroupElement) -> GroupElement:
    """The same with log-normal scales spread evenly over orders of magnitude, signs and permutations as they are.

    So a function that is homogeneous at scales near 1 alone, as one that is cut off at 10^4, is seen. Float64 stays
    exact: what a factor multiplies in a group element, its inverse multiplies before anything is added.
    """

    def wide(scale: Tensor) -> Tensor:
        return scale.sign() * 10 ** (_ORDERS * torch.erf(scale.abs().log() / 2**0.5))

    matrices = {
        name: MonomialMatrix([*map(wide, matrix.scales)], matrix.permutation, matrix.permutes)
        for name, matrix in element.matrices.items()
    }
    return GroupElement(element.space, matrices)
