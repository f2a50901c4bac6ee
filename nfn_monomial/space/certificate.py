"""The certificate of a weight space: its group leaves what a real module computes alone (paper Prop. 4.4)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nfn_monomial.errors import InvalidValueError, MonomialError

from .groups import GroupElement
from .packing import concrete

_RTOL = 1e-9  # in float64, where a group that keeps the function is right to 1e-12
_TRIALS = 4
_LARGE = 1_000_000  # with more entries than this, two trials have seen enough of them


class Float64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turns casts to other floating types into casts to float64, as those that many norms have inside.

    Casts to complex types are casts to complex128.
    """

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

    Where these are in float64, all is computed in it: what the module casts to narrower types is not. Complex answers
    are handed on as pairs of real numbers.

    Raises:
        ValueError: if it returns no tensor.
    """
    whole = all(t.dtype == torch.float64 for t in tensors.values() if t.is_floating_point())
    mode = Float64() if whole else contextlib.nullcontext()  # type: ignore[no-untyped-call]
    with evaluating(module), mode:
        found = torch.func.functional_call(module, dict(tensors), inputs_of(inputs), dict(kwargs or {}))
    outputs = [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor)]
    if not outputs:
        raise InvalidValueError(f"{type(module).__name__} returns no tensor but {type(found).__name__}")
    return [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in outputs]


def steady_answers(module: nn.Module, tensors: Mapping[str, Tensor], inputs: Any, kwargs: Any = None) -> list[Tensor]:
    """`answers`, once it is seen that they can be compared with others.

    Raises:
        ValueError: as `answers`; if they are not finite, or others when the module is called again.
    """
    first, second = (answers(module, tensors, inputs, kwargs) for _ in range(2))
    name = type(module).__name__
    if not all(bool(t.isfinite().all()) for t in (*first, *second)):
        raise InvalidValueError(
            f"outputs of {name} hold NaN or infinite values, of which nothing can be said: give inputs and weights at "
            "which they are finite, or let it return what it computes before it masks or overflows"
        )
    alike = [x.shape for x in first] == [x.shape for x in second]
    if not alike or largest_change(second, first) > _RTOL:
        raise InvalidValueError(
            f"{name} answers otherwise when it is called again on the same inputs, so nothing can be compared: its "
            "forward is random or keeps a state. Turn that off (F.dropout needs training=self.training), or take "
            "random numbers as an input"
        )
    return first


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


def certify(
    module: nn.Module,
    example_inputs: Any,
    sample: Callable[..., GroupElement],
    *,
    kwargs: Mapping[str, Any] | None = None,
    blame: Callable[[str], str] = str,
) -> int:
    """Raise unless random group elements leave a module's function alone, on the example and in its neighbourhood.

    Everything is computed on the CPU in float64. The first element acts on the module's own parameters, those after it
    on parameters and inputs with random numbers of their own size added: what holds for weights of 0 alone is not
    enough.

    Args:
        module: the network, run in eval mode, each submodule's mode and all parameters left as they are.
        example_inputs: a tensor, or a tuple of all positional arguments.
        sample: `WeightSpace.sample` of the space that is in question.
        kwargs: further arguments of the module.
        blame: what to say of a node whose part of the group changes the function, such as what runs on it.

    Returns:
        The number of elements that were tried.

    Raises:
        ValueError: if the function changes, with its relative change and the nodes that are wrong; or if nothing can be
            said: the example holds no values, the module does not run in float64, or its outputs are not finite.
    """
    inputs = inputs_of(example_inputs)
    name, seen = type(module).__name__, [t for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor)]
    if not concrete(seen):
        raise InvalidValueError(
            "example_inputs hold no values (meta tensors, or under a transform): nothing can be checked"
        )
    generator = torch.Generator().manual_seed(0)
    own = {key: doubled(t) for key, t in (*module.named_parameters(), *module.named_buffers())}
    trials = _TRIALS if sum(t.numel() for t in own.values()) < _LARGE else 2
    for trial in range(trials):
        element = sample(generator=generator).proper()
        tensors, given = dict(own), pytree.tree_map_only(Tensor, doubled, (inputs, dict(kwargs or {})))
        if trial:
            tensors |= {key: disturbed(own[key], generator) for key in element.space.parameters}
            given = pytree.tree_map_only(Tensor, lambda t: disturbed(t, generator), given)

        def change(element: GroupElement, tensors: Any = tensors, given: Any = given) -> float:
            return largest_change(answers(module, element.act(tensors), *given), answers(module, tensors, *given))

        try:
            expected = (answers if trial else steady_answers)(module, tensors, *given)
            error = largest_change(answers(module, element.act(tensors), *given), expected)
        except RuntimeError as reason:
            raise InvalidValueError(
                f"{name} does not run on the CPU in float64, in which the example inputs are used to check the space "
                f"({reason}). A module that turns its inputs into another dtype itself cannot be checked"
            ) from reason
        if trial and not all(bool(t.isfinite().all()) for t in expected):
            continue  # random numbers may leave what the function is defined for
        if not error <= _RTOL:
            parts = {node: GroupElement(element.space, {node: m}) for node, m in element.matrices.items()}
            wrong = [node for node, part in parts.items() if not change(part) <= _RTOL]
            raise InvalidValueError(
                f"the group of {element.space} changes what {name} computes on the example inputs, by {error:.1e} "
                f"(relative), through {'; '.join(map(blame, wrong)) or 'several nodes together'}. An operator has a "
                "rule that is not true of it: register_operator(name, rule) gives it another; and tell us of it"
            )
    return trials


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
    """On the CPU, in float64 where it is floating point."""
    return t.detach().to("cpu", torch.float64) if t.is_floating_point() else t.detach().cpu()


def disturbed(t: Tensor, generator: torch.Generator) -> Tensor:
    """``t`` with normal random numbers of its root mean square added; of 0, as of a fresh layer of its width.

    What is positive throughout, as variances are, stays so: it is multiplied instead. Integers stay as they are.
    """
    if not t.is_floating_point() or not t.numel():
        return t
    noise = torch.randn(t.shape, dtype=t.dtype, generator=generator)
    if t.ndim < 2 and bool((t > 0).all()):
        return t * (noise / 2).exp()
    size = t.square().mean().sqrt()
    size = size if size > 0 else (t[0] if t.ndim else t).numel() ** -0.5
    return t + size * noise
