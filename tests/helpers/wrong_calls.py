"""Wrong calls: what is no argument, and calls of public names in which it takes the place of one.

A `Call` is a right one. Each of its arguments is replaced by everything in `WRONG`; what comes out is an error of ours,
or, where the replacement means something, an answer. What may be answered is what a table says, None where that is the
argument's default, and True where the argument is a bool.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from nfn_monomial import MonomialError

D = torch.float64
WRONG: dict[str, Any] = {
    "None": None,
    "text": "nonsense",
    "no text": "",
    "bytes": b"x",
    "True": True,
    "0": 0,
    "-1": -1,
    "2**40": 2**40,
    "4.5": 4.5,
    "NaN": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "complex": 1j,
    "dict": {},
    "dict of None": {"weight.0": None},
    "list": [],
    "list of None": [None],
    "list of 4.5": [4.5, 4.5],
    "list of text": ["a", "b"],
    "tuple": (),
    "object": object(),
    "class": int,
    "module": torch,
    "tensor": torch.ones(3, dtype=D),
    "scalar": torch.ones((), dtype=D),
    "empty": torch.empty(0, dtype=D),
    "whole": torch.ones(2, 3, dtype=torch.int64),
    "bool tensor": torch.ones(3, dtype=torch.bool),
    "complex tensor": torch.ones(2, 3, dtype=torch.complex64),
    "sparse": torch.ones(2, 3, dtype=D).to_sparse(),
    "meta": torch.ones(2, 3, dtype=D, device="meta"),
    "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "float8": torch.ones(2, 3).to(torch.float8_e4m3fn),
    "NaN tensor": torch.full((2, 3), math.nan, dtype=D),
    "array": torch.ones(2, 3).numpy(),
}
"""What takes the place of an argument, by name."""
ANSWERED = "is answered"


@dataclass(frozen=True)
class Call:
    """A right call.

    Attributes:
        of: what is called.
        given: its arguments, all by name.
        also: errors that are right besides ours: Python's TypeError for operands that it knows nothing to do with, what
            a function that was given raises, and a failed assertion.
    """

    of: Callable[..., Any]
    given: Mapping[str, Any]
    also: tuple[type[Exception], ...] = ()

    def wrong(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Argument, name of what stands for it, and all arguments."""
        for argument, right in self.given.items():
            for name, value in WRONG.items():
                if value is not right:
                    yield argument, name, {**self.given, argument: value}
            if isinstance(right, Mapping):  # of named tensors and sizes, each may be wrong
                for name, value in (*WRONG.items(), *_near(right)):
                    first = next(iter(right), "weight.0")
                    yield argument, f"[{name}]", {**self.given, argument: {**right, first: value}}
                yield argument, "[more]", {**self.given, argument: {**right, "nonsense": next(iter(right.values()), 1)}}

    def outcome(self, argument: str, given: Mapping[str, Any]) -> str | None:
        """What is wrong with what a wrong call leads to; None if nothing is."""
        try:
            self.of(**given)
        except MonomialError as error:
            return None if len(str(error)) > 10 else f"says no more than {str(error)!r}"
        except Exception as error:
            return None if isinstance(error, self.also) else _short(error)
        default = _default(self.of, argument)
        value = given[argument]
        if value is None and default is None:
            return None
        if value is True and isinstance(default, bool):
            return None
        return ANSWERED


def _near(right: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is almost a right tensor."""
    x = next(iter(right.values()), None)
    if isinstance(x, torch.Tensor) and x.ndim > 2:
        yield "other dtype", x.float()
        yield "of whole numbers", x.long()
        yield "on meta", x.to("meta")
        yield "more channels", torch.cat([x, x], 1)
        yield "no networks", x[:0]
        yield "a dimension less", x[0]
        yield "a dimension more", x[None]
        yield "wider", torch.cat([x, x], -1)
        yield "with NaN", x * math.nan
        yield "infinite", x / 0
        yield "sparse, else right", x.to_sparse()


def _default(function: Callable[..., Any], argument: str) -> Any:
    parameter = inspect.signature(function).parameters.get(argument)
    return inspect.Parameter.empty if parameter is None else parameter.default


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:110]


def faults(calls: Mapping[str, Call], takes: Mapping[str, Mapping[str, str]]) -> tuple[int, list[str]]:
    """How many wrong calls there are, and those that are not answered as they should be.

    Args:
        calls: by name.
        takes: call -> argument -> names of what means something there; what is refused all the same is found, too.
    """
    count, found = 0, []
    for key, call in calls.items():
        call.of(**call.given)  # as it stands, it is right
        expected = {(argument, name) for argument, names in takes.get(key, {}).items() for name in names.split(", ")}
        for argument, name, given in call.wrong():
            count += 1
            reason = call.outcome(argument, given)
            if (reason == ANSWERED) != ((argument, name) in expected) or reason not in (None, ANSWERED):
                found.append(f"{key}({argument}={name}) {reason or 'is refused'}")
    return count, found


def uncovered(module: ModuleType, calls: Mapping[str, Call]) -> list[str]:
    """Public names of a module that can be called, of which the table has no call."""
    known = {key.split(".")[0].split(" ")[0] for key in calls}
    public = [name for name in module.__all__ if callable(getattr(module, name)) and _own(getattr(module, name))]
    return [name for name in public if name not in known]


def _own(thing: Any) -> bool:
    """Whether it is a function or a class of this package; errors are raised, not called."""
    if isinstance(thing, type) and issubclass(thing, BaseException):
        return False
    return str(getattr(thing, "__module__", "")).startswith("nfn_monomial")
