"""The certificate of a weight space: its group leaves what a real module computes alone (paper Prop. 4.4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.running import disturbed, first_line, inputs_of, largest_change
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.monomial import MonomialMatrix
from nfn_monomial.space.origin import GroupFactor
from nfn_monomial.space.packing import concrete, cut, joined, sizes_in
from nfn_monomial.trace.graph import of_experts

from .points import Point

_RTOL = 1e-9  # in float64, where a group that keeps the function is right to 1e-12
_ROUNDING = 1e-12  # of what outputs are at random weights
_TRIALS = 4
_ORDERS = 8  # of magnitude that scales are drawn from, above 1 and below
_LARGE = 1_000_000  # with more entries than this, two trials have seen enough of them


class Transformation(NamedTuple):
    """A change of weights that leaves the function alone: random numbers in place of dead pieces, then an element.

    Attributes:
        element: of the group.
        dead: pieces of parameters that become random numbers.
    """

    element: GroupElement
    dead: Collection[str] = ()

    def moved(self, name: str, tensor: Tensor) -> Tensor:
        """Moves one parameter or buffer."""
        space = self.element.space
        if any(piece in self.dead for piece in space.pieces_of.get(name, ())):
            generator, sizes = torch.Generator().manual_seed(len(name)), self.element.sizes
            sizes = sizes_in(space, name, tuple(tensor.shape), sizes)
            pieces = dict(cut(space, name, tensor, sizes))
            for piece in [piece for piece in pieces if piece in self.dead]:
                pieces[piece] = disturbed(pieces[piece], generator, spread=100.0)
            tensor = joined(space, name, pieces, sizes)
        return self.element.act({name: tensor})[name]

    def parts(self) -> Iterator[tuple[GroupFactor, Transformation]]:
        """Yields all factors of the element, and each dead piece, one by one."""
        space = self.element.space
        for node, matrix in self.element.matrices.items():
            ones = [torch.ones_like(scale) for scale in matrix.scales]
            factors: list[tuple[GroupFactor, MonomialMatrix]] = []
            if matrix.permutes and matrix.size > 1:
                factors.append((GroupFactor(node, "permutation"), MonomialMatrix(ones, matrix.permutation)))
            for n, (gauge, scale) in enumerate(zip(space.nodes[node].gauges, matrix.scales, strict=True)):
                if gauge.scales:
                    scales = [*ones[:n], scale.abs(), *ones[n + 1 :]]
                    factors.append((GroupFactor(node, "scale", n), MonomialMatrix.diagonal(scales)))
                if gauge.flips:
                    scales = [*ones[:n], scale.sign(), *ones[n + 1 :]]
                    factors.append((GroupFactor(node, "sign", n), MonomialMatrix.diagonal(scales)))
            yield from ((part, Transformation(GroupElement(space, {node: factor}))) for part, factor in factors)
        yield from (
            (GroupFactor(piece, "dead"), Transformation(GroupElement(space, {}), (piece,))) for piece in self.dead
        )

    def by_node(self) -> Iterator[tuple[str, Transformation]]:
        """Yields what it does on each node alone, and to all dead pieces together, under no name."""
        space = self.element.space
        for node, matrix in self.element.matrices.items():
            yield node, Transformation(GroupElement(space, {node: matrix}))
        if self.dead:
            yield "", Transformation(GroupElement(space, {}), self.dead)

    def wrong_parts(self, change: Callable[[Transformation], float]) -> list[GroupFactor]:
        """Returns the parts that change the function; all of them where it takes several together."""
        nodes = {node for node, alone in self.by_node() if not change(alone) <= _RTOL}
        parts = [
            (part, alone) for part, alone in self.parts()
            if not nodes or ("" if part.kind == "dead" else part.node) in nodes
        ]  # fmt: skip
        return [part for part, alone in parts if not change(alone) <= _RTOL] or [part for part, _ in parts]


class Certificate(NamedTuple):
    """The record of a test, which prints as a paragraph of `WeightSpace.explain`.

    Attributes:
        elements: how many group elements were tested where inputs have the example's sizes.
        ties: operators that tell entries apart which are equal at the module's own weights, so that the element there
            changed the outputs and says nothing.
        sizes: each size in the shapes of inputs -> sizes in its place that were tested, and those at which a forward
            pass would have taken too long.
    """

    elements: int
    ties: tuple[str, ...]
    sizes: Mapping[int, tuple[set[int], set[int]]]

    def __str__(self) -> str:
        first = "" if self.ties else "1 at the module's own weights, "
        text = (
            f"Tested: {self.elements} random elements of the group changed no output by more than 1e-9 in float64: "
            f"{first}{self.elements - (not self.ties)} at random weights, buffers and inputs near these"
        )
        if several := {n: tested for n, (tested, _) in self.sizes.items() if tested}:
            sizes = [f"{_listed(sorted(tested - {n}))} in place of {n}" for n, tested in several.items()]
            text += f". Axes of inputs were also tested at other sizes: {'; '.join(sizes)}"
        if alone := [n for n in self.sizes if n not in several]:
            text += f". Axes of size {_listed(alone)} were tested at no other size"
        if large := sorted(set().union(*(too_large for _, too_large in self.sizes.values()))):
            text += f". Sizes too large to be tried: {_listed(large)}"
        if self.ties:
            text += (
                f". Entries that {_listed(self.ties)} puts in order are equal at the module's own weights, where torch "
                "takes them by their places: there the group does not keep the outputs"
            )
        return text


def _listed(items: Sequence[object]) -> str:
    """Returns ``1, 2 and 3``."""
    *most, last = map(str, items)
    return f"{', '.join(most)} and {last}" if most else last


Shrink: TypeAlias = Callable[[Sequence[GroupFactor], str], Callable[..., GroupElement]]
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
    inputs, name = inputs_of(example_inputs), type(module).__name__
    tensors = [t for t in pytree.tree_leaves((inputs, kwargs)) if isinstance(t, Tensor)]
    if not concrete([t for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor)]):
        raise InvalidValueError(
            "example_inputs hold no values (meta tensors, or under a transform): nothing can be checked"
        )
    generator = torch.Generator().manual_seed(0)
    example = Point.of(module, inputs, kwargs)
    trials = _TRIALS if sum(t.numel() for t in (*module.parameters(), *module.buffers())) < _LARGE else 2

    def change(move: Transformation, point: Point, expected: list[Tensor]) -> float:
        return largest_change(point.answers(move.moved), expected)

    def refuse(move: Transformation, point: Point, expected: list[Tensor]) -> InvalidValueError:
        point.steady_answers()  # own weights of 0 may have hidden that it is random
        wrong = [
            blame(node) if node else f"what should not matter, {', '.join(part.dead)}"
            for node, part in move.by_node()
            if not change(part, point, expected) <= _RTOL
        ]
        ties = ", ".join(point.ties())
        tied = f" Entries that {ties} takes by their places are equal there." if ties else ""
        return InvalidValueError(
            f"the group of {move.element.space} changes what {name} computes on {point.where}, by "
            f"{change(move, point, expected):.1e} (relative), through {'; '.join(wrong) or 'several nodes together'}."
            f"{tied} An operator has a rule that is not true of it, or not of this size: register_operator(name, rule) "
            "gives it another; and tell us of it"
        )

    def require_kept(point: Point, expected: list[Tensor], resized: bool) -> None:
        """Tests one element of a group that loses what does not hold, until the rest does.

        At the example's sizes only dead pieces can be lost: it is no rule that says what does not matter.
        """
        nonlocal sample
        while True:
            element = sample(generator=generator).proper().cyclic()
            move = Transformation(widened(element), element.space.dead)
            if change(move, point, expected) <= _RTOL:
                return
            wrong = move.wrong_parts(lambda part: change(part, point, expected))
            if shrink is None or not wrong or not (resized or all(part.kind == "dead" for part in wrong)):
                raise refuse(move, point, expected)
            sample = shrink(wrong, point.where)

    try:
        # Dead pieces stay as they are: where they alone are not 0 at first, answers are nothing but rounding.
        first, expected = Transformation(widened(sample(generator=generator).proper())), example.steady_answers()
        kept = change(first, example, expected) <= _RTOL
        ties = [] if kept else example.ties()
        points = list(example.neighbours(generator, trials - 1))
        if not kept and not ties:
            # Answers may be 0 at its own weights, and what they are then is rounding.
            outputs = zip(example.answers(first.moved), expected, *(answers for _, answers in points), strict=True)
            if not points or not all(_vanishes(*output) for output in outputs):
                raise refuse(first, example, expected)
        for point, expected in points:
            require_kept(point, expected, resized=False)
        if not points:
            raise InvalidValueError(
                f"{name} could be tested at no weights but its own: at random ones near these its outputs are not "
                "finite, or it raises an error. Give weights and inputs with room around them, or certify=False for a "
                "space that nothing has tested"
            )
        sizes = {n: (set[int](), set[int]()) for n in sorted({n for t in tensors for n in t.shape})}
        for extent, size, other, expected in example.resized(generator):
            tested, too_large = sizes[extent]
            if other is None:
                too_large.add(size)
            else:
                tested.add(size)
                require_kept(other, expected, resized=True)
    except RuntimeError as reason:
        raise InvalidValueError(
            f"{name} does not run on the CPU in float64, in which the example inputs are used to check the space "
            f"({first_line(reason)}). A module that turns its inputs into another dtype itself cannot be checked"
            f"{of_experts(module)}"
        ) from reason
    return Certificate(len(points) + kept, tuple(ties), sizes)


def _vanishes(moved: Tensor, expected: Tensor, *random: Tensor) -> bool:
    """Tells whether an output is 0 but for rounding, and stays so, compared with its size at random weights."""
    after, before, *others = [float(x.abs().max()) if x.numel() else 0.0 for x in (moved, expected, *random)]
    return max(after, before) <= _ROUNDING * max(others)


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
