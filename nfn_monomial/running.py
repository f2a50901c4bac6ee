"""Modules that run with other weights, in eval mode and float64, and the distances between their outputs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nfn_monomial.errors import InvalidValueError, MonomialError

_DEBUG = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
_STEADY = 1e-9  # of answers in float64 to the same inputs


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Turns on eval mode, without gradients; afterwards every submodule has its mode back."""
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
    """Returns the positional arguments of a module: a tuple or list as it is, anything else as the only one."""
    return tuple(example_inputs) if isinstance(example_inputs, tuple | list) else (example_inputs,)


def answers(
    module: nn.Module, tensors: Mapping[str, Tensor], inputs: Any, kwargs: Any = None, *, gradients: bool = False
) -> list[Tensor]:
    """Returns all tensors that a module with these parameters and buffers answers with, in eval mode.

    Where these are in float64, all is computed in it: also what the module casts to narrower types, or creates. Complex
    answers are handed on as pairs of real numbers. Inputs are copied, as a forward may write to them.

    Args:
        module: the network.
        tensors: parameter or buffer -> tensor, under any of its names; others are the module's own.
        inputs: a tensor, or a tuple of all positional arguments.
        kwargs: further arguments.
        gradients: whether answers are differentiable, by the running statistics of batch norms too.

    Raises:
        ValueError: if it returns no tensor.
    """
    arguments = pytree.tree_map_only(Tensor, torch.clone, (inputs_of(inputs), dict(kwargs or {})))
    with contextlib.ExitStack() as modes:
        modes.enter_context(evaluating(module))
        if all(t.dtype == torch.float64 for t in tensors.values() if t.is_floating_point()):
            modes.enter_context(Float64())  # type: ignore[no-untyped-call]
        if gradients:
            modes.enter_context(torch.enable_grad())
            modes.enter_context(_DifferentiableNorms())
        returned = called_with(module, tensors, *arguments)
        outputs = [t for t in pytree.tree_leaves(returned) if isinstance(t, Tensor)]
        outputs = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in outputs]
    if not outputs:
        raise InvalidValueError(f"{type(module).__name__} returns no tensor but {type(returned).__name__}")
    return outputs


class _DifferentiableNorms(TorchFunctionMode):
    """Computes batch norms by their formula, as torch has no derivatives of them by running statistics."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_batch_norm if function is nn.functional.batch_norm else function)(*args, **(kwargs or {}))


def _batch_norm(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None = None, bias: Tensor | None = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    if training:
        return nn.functional.batch_norm(x, mean, variance, weight, bias, training, momentum, eps)
    factor = (variance + eps).rsqrt() if weight is None else weight * (variance + eps).rsqrt()
    shift = -mean * factor if bias is None else bias - mean * factor
    shape = (-1, *[1] * (x.ndim - 2))
    return x * factor.view(shape) + shift.view(shape)


def random_sum(outputs: Sequence[Tensor], generator: torch.Generator) -> Tensor | None:
    """Returns the sum of all entries that have a gradient, each times a normal random number; None if none has."""
    terms = [(t * torch.randn(t.shape, dtype=t.dtype, generator=generator)).sum() for t in outputs if t.requires_grad]
    return torch.stack(terms).sum() if terms else None


def steady_answers(module: nn.Module, tensors: Mapping[str, Tensor], inputs: Any, kwargs: Any = None) -> list[Tensor]:
    """Returns `answers` that can be compared with others.

    Raises:
        ValueError: as `answers`; if they change when the module is called again, or are not finite.
    """
    first, second = (answers(module, tensors, inputs, kwargs) for _ in range(2))
    name = type(module).__name__
    alike = [x.shape for x in first] == [x.shape for x in second]
    defined = alike and all(torch.equal(x.isfinite(), y.isfinite()) for x, y in zip(first, second, strict=True))
    if not defined or not largest_change(_finite(second), _finite(first)) <= _STEADY:
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
    """Replaces entries that are not finite by 0."""
    return [torch.where(t.isfinite(), t, 0) for t in tensors]


def relative_error(x: Tensor, expected: Tensor, scale: Tensor) -> float:
    """Returns the largest difference, divided by ``scale``; 0 where there is none, NaN where one is NaN."""
    error, size = (float(t.detach()) for t in ((x - expected).abs().max(), scale))
    return error if not error else error / size if size else float("inf")


def largest_change(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Returns the largest change of any output, relative to its largest entry; infinity if an integer changes."""
    errors = [0.0]
    for a, b in zip(outputs, expected, strict=True):
        if not b.is_floating_point():
            errors.append(0.0 if torch.equal(a, b) else float("inf"))
        elif b.numel():
            errors.append(relative_error(a, b, b.abs().max()))
    return float("nan") if any(e != e for e in errors) else max(errors)


@contextlib.contextmanager
def attention_in_parts() -> Iterator[None]:
    """In it PyTorch's attention and encoder layers compute by operations that have derivatives and call hooks.

    In eval mode they may take one fused operation for all of a layer. The setting is one for all threads.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


@contextlib.contextmanager
def running(module: nn.Module, on: str) -> Iterator[None]:
    """Turns errors of any kind, which modules raise while they run, into one.

    Args:
        module: that runs.
        on: its inputs, in words, as ``"the inputs"``.

    Raises:
        ValueError: with the text of the module's error.
    """
    try:
        yield
    except MonomialError:
        raise
    except Exception as reason:
        raise InvalidValueError(f"{type(module).__name__} does not run on {on}: {reason}") from reason


def called_with(module: nn.Module, tensors: Mapping[str, Tensor], args: Any = (), kwargs: Any = None) -> Any:
    """Calls a module with other tensors in place of its own, as `torch.func.functional_call` does.

    It takes modules that have one submodule under two names, too: torch writes to these twice, and leaves them with
    other tensors than they had. Tied tensors may have any of their names.
    """
    names: dict[int, list[str]] = {}  # of each tensor, through each submodule once
    for prefix, part in module.named_modules():
        for name, t in _tensors_of(part, recurse=False):
            names.setdefault(id(t), []).append(f"{prefix}.{name}" if prefix else name)
    known = {name: id(t) for name, t in _tensors_of(module)}
    tied = {other: t for name, t in tensors.items() for other in names.get(known.get(name, 0), [name])}
    return torch.func.functional_call(module, tied, args, kwargs, tie_weights=False)


def _tensors_of(module: nn.Module, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Yields parameters and buffers under all their names."""
    yield from module.named_parameters(recurse=recurse, remove_duplicate=False)
    yield from module.named_buffers(recurse=recurse, remove_duplicate=False)


def first_line(reason: Exception) -> str:
    """Returns the first line of an error that is not empty."""
    return next((line.strip() for line in str(reason).splitlines() if line.strip()), type(reason).__name__)


class Float64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turns casts to other floating types, which many norms make, into casts to float64.

    Casts to complex types are casts to complex128. Tensors created without a dtype, such as the first state of a
    recurrent layer, are float64 too. Operators that call a compiler, as `flex_attention` and `torch.cond` do, run as
    they are written: the compiler knows no dispatch modes, and after `torch.cond` under one it fails without one, too.
    """

    supports_higher_order_operators = True

    def __enter__(self) -> Self:
        self._undo = contextlib.ExitStack()
        self._undo.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        flex = sys.modules.get("torch.nn.attention.flex_attention")  # None if nobody has imported it
        if (debug := getattr(flex, _DEBUG, None)) is not None:  # some versions of torch have no such switch
            self._undo.callback(setattr, flex, _DEBUG, debug)
            setattr(flex, _DEBUG, True)
        if "torch._dynamo" in sys.modules:  # else nothing has been compiled, and importing it takes seconds
            self._undo.enter_context(torch.compiler.set_stance("force_eager"))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *reason: Any) -> None:
        self._undo.close()
        super().__exit__(*reason)  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Returns False: to keep out a compiler that nobody called, torch would import it, which takes seconds."""
        return False

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if (dtype := options.get("dtype")) is not None and (dtype.is_floating_point or dtype.is_complex):
            options["dtype"] = torch.complex128 if dtype.is_complex else torch.float64
        return operator(*args, **options)


def doubled(t: Tensor) -> Tensor:
    """Returns a copy on the CPU, in float64 if it is floating point."""
    return t.detach().to("cpu", torch.float64 if t.is_floating_point() else t.dtype, copy=True)


def disturbed(t: Tensor, generator: torch.Generator, keep_signs: bool = False, spread: float = 1.0) -> Tensor:
    """Adds normal random numbers of the size of a tensor: its root mean square, or that of a new layer if it is 0.

    Vectors of positive numbers, such as variances, stay positive: they are multiplied instead. Integers stay the same.

    Args:
        t: of any shape.
        generator: source of randomness.
        keep_signs: whether every entry is multiplied, by a positive number. Entries of 0 become random numbers all the
            same; positive ones, if no entry is negative.
        spread: a factor of the numbers that are added.
    """
    if t.is_complex():
        return torch.view_as_complex(disturbed(torch.view_as_real(t.resolve_conj()), generator, keep_signs, spread))
    if not t.is_floating_point() or not t.numel():
        return t
    noise = torch.randn(t.shape, dtype=t.dtype, generator=generator)
    fresh = (t[0] if t.ndim else t).numel() ** -0.5
    if keep_signs or (spread == 1 and t.ndim < 2 and bool((t > 0).all())):
        start = noise.abs() if bool((t >= 0).all()) else noise
        return torch.where(t == 0, fresh * start, t * (noise / 2).exp())
    size = t.square().mean().sqrt()
    return t + spread * (size if size > 0 else fresh) * noise
