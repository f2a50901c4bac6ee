"""What a file may make this process allocate: a model is built from numbers in a file, which may say anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nfn_monomial.errors import InvalidValueError

__all__ = ["Budget"]

MAKERS = (
    torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye, torch.arange, torch.linspace,
)  # fmt: skip
# What models make is little more than what their files hold: of all that are known here a few hundred numbers.
TIMES = 4
ENTRIES, CALLS = 2**22, 2000  # besides


class Budget(TorchFunctionMode):
    """A context in which so much may be made as goes with the tensors of a file; what is larger is refused before."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.entries = TIMES * sum(t.numel() for t in tensors.values()) + ENTRIES
        self.calls = TIMES * len(tensors) + CALLS

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called for every function of torch."""
        if func in MAKERS:
            self.calls -= 1
            self.entries -= _entries(func, args, kwargs or {})
            if self.entries < 0 or self.calls < 0:
                raise InvalidValueError("its model is larger than what the file holds of it")
        return func(*args, **(kwargs or {}))


def _entries(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """How many at most, of the sizes that a call gives."""
    given = [*args, *(kwargs[name] for name in ("size", "end", "steps") if name in kwargs)]
    numbers = [abs(int(n)) for value in given for n in (value if isinstance(value, list | tuple) else [value])
               if isinstance(n, int | float) and math.isfinite(n)]  # fmt: skip
    if func in (torch.arange, torch.linspace):
        return max(numbers, default=0)
    return math.prod(numbers)
