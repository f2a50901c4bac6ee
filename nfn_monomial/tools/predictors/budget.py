"""A limit on the memory that a file can make this process allocate: a model is built from any numbers in a file."""

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
# Models make few tensors that their files do not hold: a few hundred numbers for all known models.
TIMES = 4
ENTRIES, CALLS = 2**22, 2000  # besides


class Budget(TorchFunctionMode):
    """A context in which new tensors are refused if they are much larger than all tensors of a file."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.entries = TIMES * sum(t.numel() for t in tensors.values()) + ENTRIES
        self.calls = TIMES * len(tensors) + CALLS

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called for every function of torch."""
        if func in MAKERS:
            self.calls -= 1
            # the sizes that a call states are at most these numbers
            sizes = [*args, *(kwargs[name] for name in ("size", "end", "steps") if name in (kwargs or {}))]
            numbers = [abs(int(n)) for size in sizes for n in (size if isinstance(size, list | tuple) else [size])
                       if isinstance(n, int | float) and math.isfinite(n)]  # fmt: skip
            ranges = func in (torch.arange, torch.linspace)
            self.entries -= max(numbers, default=0) if ranges else math.prod(numbers)
            if self.entries < 0 or self.calls < 0:
                raise InvalidValueError("its model is larger than what the file holds of it")
        return func(*args, **(kwargs or {}))
