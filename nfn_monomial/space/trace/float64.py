"""Networks in float64, at random weights."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_DEBUG = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"


class Float64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Turns casts to other floating types into casts to float64, as those that many norms have inside.

    Casts to complex types are casts to complex128. What is created without a dtype, as the first state of a recurrent
    layer, is float64 too.
    """

    supports_higher_order_operators = True

    def __enter__(self) -> Self:
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        self._plain = _without_compiler()
        self._plain.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *reason: Any) -> None:
        torch.set_default_dtype(self._default)
        self._plain.__exit__(*reason)
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
def _without_compiler() -> Iterator[None]:
    """`flex_attention` as it is written: else it calls a compiler, which knows no dispatch modes."""
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    before = getattr(flex, _DEBUG, None)
    if before is None:  # nobody has imported it, or this torch has no such switch
        yield
        return
    setattr(flex, _DEBUG, True)
    try:
        yield
    finally:
        setattr(flex, _DEBUG, before)


def doubled(t: Tensor) -> Tensor:
    """A copy on the CPU, in float64 where it is floating point."""
    return t.detach().to("cpu", torch.float64 if t.is_floating_point() else t.dtype, copy=True)


def disturbed(t: Tensor, generator: torch.Generator, keep_signs: bool = False, spread: float = 1.0) -> Tensor:
    """``t`` with normal random numbers of its root mean square added; of 0, as of a fresh layer of its width.

    What is positive throughout, as variances are, stays so: it is multiplied instead. Integers stay as they are.

    Args:
        t: of any shape.
        generator: source of randomness.
        keep_signs: whether every entry is multiplied, by a positive number. Those of 0 become random numbers all the
            same; positive ones, if no entry is negative.
        spread: how many times larger the numbers are that are added.
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
