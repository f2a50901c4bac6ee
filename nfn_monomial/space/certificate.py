"""The certificate of a weight space: its group leaves what a real module computes alone (paper Prop. 4.4)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nfn_monomial.errors import InvalidValueError, MonomialError

from .groups import GroupElement
from .monomial import MonomialMatrix
from .packing import concrete
from .trace.graph import called_with

_RTOL = 1e-9  # in float64, where a group that keeps the function is right to 1e-12
_TRIALS = 4
_DRAWS = 3  # of weights and inputs for one trial, until the function is defined for them
_ORDERS = 8  # of magnitude that scales are drawn from, above 1 and below
_LARGE = 1_000_000  # with more entries than this, two trials have seen enough of them


class Float64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turns casts to other floating types into casts to float64, as those that many norms have inside.

    Casts to complex types are casts to complex128. What is created without a dtype, as the first state of a recurrent
    layer, is float64 too.
    """

    supports_higher_order_operators = True

    def __enter__(self) -> Self:
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *reason: Any) -> None:
        torch.set_default_dtype(self._default)
        super().__exit__(*reason)  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to keep a compiler out that nobody called, torch would import it, which takes seconds."""
        return False

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if (dtype := options.get("dtype")) is not None and (dtype.is_floating_point or dtype.is_complex):
            options["dtype"] = torch.complex128 if dtype.is_complex else torch.float64
        return operator(*args, **options)


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; behind it, every submodule has the mode back that it had."""
    modes = [(m, m.training) for m in module.modules()]
    for m, _ in modes:  # an exported program's module knows no eval()
        m.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for m, mode in modes:
            m.training = mode


def inputs_of(example_inputs: Any) -> tuple[Any, ...]:
    """The positional arguments of a module: a tuple or list as it is, anything else as the only one."""
    return tuple(example_inputs) if isinstance(example_inputs, tuple | list) else (example_inputs,)


def answers(module: nn.Module, tensors: Mapping[str, Tensor], inputs: Any, kwargs: Any = None) -> list[Tensor]:
    """All tensors that a module with these parameters and buffers answers with, in eval mode.

    Where these are in float64, all is computed in it: also what the module casts to narrower types, or creates. Complex
    answers are handed on as pairs of real numbers. Inputs are copied, as a forward may write to them.

    Raises:
        ValueError: if it returns no tensor.
    """
    whole = all(t.dtype == torch.float64 for t in tensors.values() if t.is_floating_point())
    mode = Float64() if whole else contextlib.nullcontext()  # type: ignore[no-untyped-call]
    arguments = pytree.tree_map_only(Tensor, torch.clone, (inputs_of(inputs), dict(kwargs or {})))
    with evaluating(module), mode:
        found = called_with(module, tensors, *arguments)
    outputs = [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor)]
    if not outputs:
        raise InvalidValueError(f"{type(module).__name__} returns no tensor but {type(found).__name__}")
    return [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in outputs]


def steady_answers(module: nn.Module, tensors: Mapping[str, Tensor], inputs: Any, kwargs: Any = None) -> list[Tensor]:
    """`answers`, once it is seen that they can be compared with others.

    Raises:
        ValueError: as `answers`; if they are others when the module is called again, or not finite.
    """
    first, second = (answers(module, tensors, inputs, kwargs) for _ in range(2))
    name = type(module).__name__
    alike = [x.shape for x in first] == [x.shape for x in second]
    defined = alike and all(torch.equal(x.isfinite(), y.isfinite()) for x, y in zip(first, second, strict=True))
    if not defined or not largest_change(_finite(second), _finite(first)) <= _RTOL:
        raise InvalidValueError(
            f"{name} answers otherwise when it is called again on the same inputs, so nothing can be compared: its "
            "forward is random or keeps a state. Turn that off (F.dropout needs training=self.training), or take "
            "random numbers as an input"
        )
    if not all(bool(t.isfinite().all()) for t in first):
        raise InvalidValueError(
            f"outputs of {name} hold NaN or infinite values, of which nothing can be said: give inputs and weights at "
            "which they are finite, or let it return what it computes before it masks or overflows"
        )
    return first


def _finite(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same with 0 for what is not finite."""
    return [torch.where(t.isfinite(), t, 0) for t in tensors]


def relative_error(found: Tensor, expected: Tensor, scale: Tensor) -> float:
    """The largest difference, divided by ``scale``; 0 where there is none, NaN where one is NaN."""
    error = float((found - expected).detach().abs().max())
    return error if not error else error / float(scale) if float(scale) else float("inf")


def largest_change(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest change of any output, relative to its largest entry; of integers, infinity for any change."""
    errors = [0.0]
    for a, b in zip(found, expected, strict=True):
        if not b.is_floating_point():
            errors.append(0.0 if torch.equal(a, b) else float("inf"))
        elif b.numel():
            errors.append(relative_error(a, b, b.abs().max()))
    return float("nan") if any(e != e for e in errors) else max(errors)


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

    def weights(self, element: GroupElement | None = None) -> dict[str, Tensor]:
        """Parameters and buffers in float64 on the CPU, moved by an element one by one: there is one copy of them."""
        parameters, found = dict(self.module.named_parameters()), {}
        for i, (name, own) in enumerate((parameters | dict(self.module.named_buffers())).items()):
            tensor = doubled(own)
            if self.seed is not None:
                generator = torch.Generator().manual_seed(self.seed + i)
                tensor = disturbed(tensor, generator, self.keep_signs or name not in parameters)
            found[name] = tensor if element is None else element.act({name: tensor})[name]
        return found

    def answers(self, element: GroupElement | None = None) -> list[Tensor]:
        """What the module answers here, or where the element moves the weights."""
        return answers(self.module, self.weights(element), *self.inputs)

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

    def resized(self) -> Iterator[Point]:
        """Inputs with one more, or one less, along all of their dimensions that have one size; entries recur."""
        for n in sorted({n for t in pytree.tree_leaves(self.inputs) if isinstance(t, Tensor) for n in t.shape}):
            for size in (n + 1, n - 1) if n > 1 else (2,):
                changed = functools.partial(_resized, n=n, size=size)
                inputs = pytree.tree_map_only(Tensor, changed, self.inputs)
                shapes = (str(tuple(t.shape)) for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor))
                yield self._replace(inputs=inputs, where=f"inputs of shape {', '.join(shapes)}")


def _resized(t: Tensor, n: int, size: int) -> Tensor:
    for dim in (dim for dim, extent in enumerate(t.shape) if extent == n):
        t = t.index_select(dim, torch.arange(size) % n)
    return t


def certify(
    module: nn.Module,
    example_inputs: Any,
    sample: Callable[..., GroupElement],
    *,
    kwargs: Mapping[str, Any] | None = None,
    blame: Callable[[str], str] = str,
) -> int:
    """Raise if random group elements change a module's function, on the example or in its neighbourhood.

    Everything is computed on the CPU in float64, with scales of many orders of magnitude, see `widened`. The first
    element acts on the module's own parameters, those after it on random ones, with random buffers and inputs, all of
    the size of the module's own: what holds for weights of 0, or for the statistics of a fresh norm, alone is not
    enough. Where the function is not defined for these (its outputs are not finite, or it raises an error), others are
    drawn; after a few, the element is left out. These elements move every neuron, so that none of a node's neurons is
    told apart from the others unseen. At last, inputs get another size of each dimension that the module lets vary, one
    after the other: a number of tokens, of networks, of pixels.

    Args:
        module: the network, run in eval mode, each submodule's mode and all parameters left as they are.
        example_inputs: a tensor, or a tuple of all positional arguments.
        sample: `WeightSpace.sample` of the space that is in question.
        kwargs: further arguments of the module.
        blame: what to say of a node whose part of the group changes the function, such as what runs on it.

    Returns:
        The number of elements that were tested: 2 at least, one at the module's own parameters, the others at random
        ones.

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

    def elements() -> Iterator[GroupElement]:
        yield widened(sample(generator=generator).proper())
        while True:
            yield widened(sample(generator=generator).proper().cyclic())

    def points() -> Iterator[tuple[Point, list[Tensor]]]:
        yield own, own.steady_answers()
        for _ in range(trials - 1):
            yield from own.near(generator, _DRAWS)
        for other in own.resized():  # at most sizes a module does not run, whatever its weights
            yield from other.near(generator, 1)

    tested = 0
    try:
        for element, (point, expected) in zip(elements(), points(), strict=False):
            error = largest_change(point.answers(element), expected)
            if not error <= _RTOL:
                point.steady_answers()  # own weights of 0 may have hidden that it is random
                parts = {node: GroupElement(element.space, {node: m}) for node, m in element.matrices.items()}
                changes = {node: largest_change(point.answers(part), expected) for node, part in parts.items()}
                wrong = [blame(node) for node, change in changes.items() if not change <= _RTOL]
                raise InvalidValueError(
                    f"the group of {element.space} changes what {name} computes on {point.where}, by {error:.1e} "
                    f"(relative), through {'; '.join(wrong) or 'several nodes together'}. An operator has a rule that "
                    "is not true of it, or not of this size: register_operator(name, rule) gives it another; and tell "
                    "us of it"
                )
            tested += point.where == own.where
    except RuntimeError as reason:
        raise InvalidValueError(
            f"{name} does not run on the CPU in float64, in which the example inputs are used to check the space "
            f"({reason}). A module that turns its inputs into another dtype itself cannot be checked"
        ) from reason
    if tested < 2:
        raise InvalidValueError(
            f"{name} could be tested at no weights but its own: at random ones near these its outputs are not finite, "
            "or it raises an error. Give weights and inputs with room around them, or certify=False for a space that "
            "nothing has tested"
        )
    return tested


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


@contextlib.contextmanager
def running(module: nn.Module, on: str) -> Iterator[None]:
    """Whatever goes wrong while a module runs is told as one error: modules raise all kinds of them.

    Args:
        module: that runs.
        on: what, as ``"the inputs"``.

    Raises:
        ValueError: with the module's own words.
    """
    try:
        yield
    except MonomialError:
        raise
    except Exception as reason:
        raise InvalidValueError(f"{type(module).__name__} does not run on {on}: {reason}") from reason


def doubled(t: Tensor) -> Tensor:
    """A copy on the CPU, in float64 where it is floating point."""
    return t.detach().to("cpu", torch.float64 if t.is_floating_point() else t.dtype, copy=True)


def disturbed(t: Tensor, generator: torch.Generator, keep_signs: bool = False) -> Tensor:
    """``t`` with normal random numbers of its root mean square added; of 0, as of a fresh layer of its width.

    What is positive throughout, as variances are, stays so: it is multiplied instead. Integers stay as they are.

    Args:
        t: of any shape.
        generator: source of randomness.
        keep_signs: whether every entry is multiplied, by a positive number. Those of 0 become random numbers all the
            same; positive ones, if no entry is negative.
    """
    if t.is_complex():
        return torch.view_as_complex(disturbed(torch.view_as_real(t.resolve_conj()), generator, keep_signs))
    if not t.is_floating_point() or not t.numel():
        return t
    noise = torch.randn(t.shape, dtype=t.dtype, generator=generator)
    fresh = (t[0] if t.ndim else t).numel() ** -0.5
    if keep_signs or (t.ndim < 2 and bool((t > 0).all())):
        start = noise.abs() if bool((t >= 0).all()) else noise
        return torch.where(t == 0, fresh * start, t * (noise / 2).exp())
    size = t.square().mean().sqrt()
    return t + (size if size > 0 else fresh) * noise
