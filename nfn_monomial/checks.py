"""What may be given to a function: read off its annotations, and checked at the door.

    @checked
    def sample(count: Count, kind: Literal["norm", "abs"] = "norm", noise: Finite = 0.0) -> Tensor: ...

Then ``sample(4.5)``, ``sample(True)``, ``sample(2, "l1")`` and ``sample(2, noise=nan)`` raise an error that names the
argument, what it must be and what was found. Tensors are looked at from outside only, never at their values.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar, Union, get_args, get_origin

import torch
from torch import Tensor

from .errors import InvalidTypeError, InvalidValueError, MonomialError

P = ParamSpec("P")
R = TypeVar("R")

WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The dtypes that torch computes with."""


class Within(NamedTuple):
    """Numbers in a range; NaN is in none."""

    low: float
    high: float

    def __call__(self, value: Any, name: str) -> None:
        """Raise unless the value is in it."""
        if not self.low <= value <= self.high:
            bound = f"at least {self.low}" if value < self.low else f"at most {self.high}"
            finite = abs(self.low) == abs(self.high) == sys.float_info.max or value != value
            raise InvalidValueError(f"{name} must be {'finite' if finite else bound}, found {shown(value)}")


def _there(value: torch.device | str, name: str) -> None:
    """Raise unless the device is there."""
    try:
        torch.empty(0, device=value)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidValueError(f"{name} must be a device that is there, found {value!r}: {reason}") from None


def _floating(value: torch.dtype, name: str) -> None:
    """Raise unless torch computes with the dtype."""
    if value not in FLOATING:
        raise InvalidTypeError(f"{name} must be {_either(map(str, FLOATING))}, found {value}")


Count: TypeAlias = Annotated[int, Within(1, 2**20)]
"""How many channels, layers or draws."""
Size: TypeAlias = Annotated[int, Within(1, 2**31 - 1)]
"""How many neurons, networks or positions."""
Finite: TypeAlias = Annotated[float, Within(-sys.float_info.max, sys.float_info.max)]
AtLeastZero: TypeAlias = Annotated[float, Within(0, sys.float_info.max)]
Share: TypeAlias = Annotated[float, Within(0, 1)]
Seed: TypeAlias = Annotated[int, Within(-(2**63), 2**64 - 1)]
"""What a generator takes."""
Device: TypeAlias = Annotated[torch.device | str, _there]
Floating: TypeAlias = Annotated[torch.dtype, _floating]


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which refuses arguments that are not what its annotations say; not looked at while compiling."""

    @functools.wraps(function)
    def door(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.compiler.is_compiling():
            _check(function, args, kwargs)
        return function(*args, **kwargs)

    return door


def _check(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    signature, hints = _door(function)
    where = function.__qualname__.removesuffix(".__init__")
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # Python itself says what is missing or too much
        return
    for name, value in given.items():
        kind = signature.parameters[name].kind
        if name in hints and kind is not inspect.Parameter.VAR_KEYWORD:
            for each in value if kind is inspect.Parameter.VAR_POSITIONAL else (value,):
                require(each, hints[name], f"{where}: {name}")


@functools.cache
def _door(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """The signature of a function, and the types of its arguments; that of what it returns need not be importable."""
    annotations = {name: kind for name, kind in function.__annotations__.items() if name != "return"}
    arguments, names = types.SimpleNamespace(__annotations__=annotations), inspect.unwrap(function).__globals__
    return inspect.signature(function), typing.get_type_hints(arguments, names, include_extras=True)


def require(value: Any, kind: Any, name: str) -> None:
    """Raise unless a value is what a type says, bounds in ``Annotated`` included.

    Items of sequences and dicts are looked at, those of other iterables are not, as that would use them up.

    Raises:
        TypeError: for something of another kind, such as a bool or a text where a number is expected.
        ValueError: for a number out of range, or a word that is none of those expected.
    """
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is Annotated:
        require(value, inner[0], name)
        for bound in inner[1:]:
            bound(value, name)
    elif origin in (Union, UnionType):
        _require_any(value, inner, kind, name)
    elif not _fits(value, origin, inner):
        error = InvalidValueError if origin is Literal and isinstance(value, str) else InvalidTypeError
        raise error(f"{name} must be {_text(kind)}, found {shown(value)}")
    else:
        for place, item, each in _inside(value, origin, inner, name):
            require(item, each, place)


def _require_any(value: Any, kinds: Sequence[Any], kind: Any, name: str) -> None:
    errors = []
    for each in kinds:
        try:
            return require(value, each, name)
        except MonomialError as error:
            errors.append(error.with_traceback(None))  # whose frames would hold the caller's tensors
    # The one that came furthest: inside of what fits, else a number out of range.
    inside = [error for error in errors if not str(error).startswith(f"{name} ")]
    inside += [error for error in errors if isinstance(error, InvalidValueError)]
    raise (*inside, InvalidTypeError(f"{name} must be {_text(kind)}, found {shown(value)}"))[0]


def _inside(value: Any, origin: Any, inner: Sequence[Any], name: str) -> Iterator[tuple[str, Any, Any]]:
    """What a value holds: places, items, and what these must be."""
    if not isinstance(origin, type):
        return  # Any, a word, or a variable of types
    if hasattr(origin, "_fields"):
        for field, each in _fields(origin).items():
            yield f"{name}.{field}", getattr(value, field), each
    elif inner and isinstance(value, dict) and issubclass(origin, Mapping):  # others may read their items from a file
        for key, item in value.items():
            yield f"a name in {name}", key, inner[0]
            yield f"{name}[{key!r}]", item, inner[1]
    elif inner and isinstance(value, Sequence) and issubclass(origin, Iterable):
        if origin is not tuple or Ellipsis in inner:
            if inner[0] is int and {*map(type, value)} <= {int}:
                return  # charges of deep networks are long
            inner = [inner[0]] * len(value)
        elif len(value) != len(inner):
            raise InvalidValueError(f"{name} must be {len(inner)} values, found {shown(value)}")
        yield from ((f"{name}[{i}]", item, each) for i, (item, each) in enumerate(zip(value, inner, strict=True)))


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    """Field -> type, of a named tuple."""
    return typing.get_type_hints(kind, include_extras=True)


def _fits(value: Any, known: Any, inner: Sequence[Any]) -> bool:
    if known is Literal:
        return any(type(value) is type(word) and value == word for word in inner)
    if known is Any or not isinstance(known, type):
        return True
    if known in _CONTAINERS and (isinstance(value, (str, bytes, Mapping)) or hasattr(value, "__array__")):
        return False  # which would be read letter by letter, name by name or row by row
    if (known is tuple and hasattr(value, "_fields")) or (known in (int, float) and isinstance(value, bool)):
        return False  # a record means something else; a bool is an int to Python, and a mistake where a number is meant
    if known is Callable or known is Tensor:
        return callable(value) if known is Callable else isinstance(value, Tensor) and is_dense(value)
    return isinstance(value, numbers.Integral if known is int else numbers.Real if known is float else known)


def is_dense(x: Tensor) -> bool:
    """Whether a tensor is an ordinary one: neither sparse nor nested nor quantised."""
    return x.layout is torch.strided and not x.is_nested and not x.is_quantized


def same_numbers(x: Tensor, like: Tensor, where: str) -> None:
    """Raise unless two tensors that are to be multiplied have one dtype and device; autocast sees to dtypes itself."""
    if x.dtype != like.dtype and not torch.is_autocast_enabled(x.device.type):
        raise InvalidTypeError(
            f"{where}: the networks are {x.dtype}, the parameters of the layer {like.dtype}: convert one of them, as "
            f"with .to({like.dtype})"
        )
    if x.device != like.device:
        raise InvalidTypeError(
            f"{where}: the networks are on {x.device}, the parameters of the layer on {like.device}: move one of them, "
            f"as with .to({str(like.device)!r})"
        )


def shown(value: Any) -> str:
    """A value as errors show it: short."""
    if isinstance(value, Tensor):
        kind = "" if is_dense(value) else "nested " if value.is_nested else f"{value.layout} "
        shape = "" if value.is_nested else f" of shape {tuple(value.shape)}"
        return f"a {kind}tensor{shape}, {value.dtype}, on {value.device}"
    plain = (str, bytes, numbers.Number, torch.dtype, type, NoneType)
    items = value[:_SHOWN] if isinstance(value, (list, tuple)) else [value]
    text = repr(value) if all(isinstance(item, plain) for item in items) else type(value).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}.."


_SHOWN = 60
_CONTAINERS = (Sequence, Collection, Iterable, list, tuple)
_WORDS = [
    (int, "a whole number"), (float, "a number"), (bool, "True or False"), (str, "a text"), (NoneType, "None"),
    (Tensor, "a dense tensor"), (Callable, "a function"), (tuple, "a tuple"), (Sequence, "a sequence"),
    (Collection, "a sequence"), (Iterable, "a sequence"), (Mapping, "a mapping"), (os.PathLike, "a path"),
]  # fmt: skip


def _text(kind: Any) -> str:
    """A type in words."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is Annotated:
        return _text(inner[0])
    if origin in (Union, UnionType, Literal):
        return _either(dict.fromkeys(map(repr if origin is Literal else _text, inner)))
    if origin is Mapping and inner == (str, Tensor):
        return "named tensors, parameter name -> tensor"
    word = next((words for known, words in _WORDS if known is origin), str(getattr(origin, "__name__", kind)))
    if origin not in _CONTAINERS or not inner:
        return word
    return f"{word} of {' and '.join(dict.fromkeys(_text(each) for each in inner if each is not Ellipsis))}"


def _either(words: Iterable[str]) -> str:
    *before, last = words
    return f"{', '.join(before)} or {last}" if before else last


class _Short(reprlib.Repr):
    """Of containers of other classes the class: their own text may be of any length."""

    def repr_instance(self, value: object, level: int) -> str:
        return type(value).__name__ if isinstance(value, dict | list | tuple) else super().repr_instance(value, level)


_repr = _Short()
_repr.maxstring = _repr.maxother = _repr.maxlong = 80
_repr.maxlevel = 3


def brief(value: object) -> str:
    """A value for a message: short and in one line, whatever it is."""
    if isinstance(value, Tensor):
        return shown(value)
    try:
        return " ".join(_repr.repr(value).split())
    except ValueError:  # Python prints no integers of more than 4,300 digits
        return "a number of thousands of digits"


def listed(names: Iterable[object], most: int = 8) -> str:
    """The first of some names for a message, each of them short."""
    every = list(names)
    first = ", ".join(brief(name)[1:-1] if isinstance(name, str) else brief(name) for name in every[:most])
    return first + (f" and {len(every) - most} more" if len(every) > most else "")


def require_numbers(tensor: object, what: str) -> Tensor:
    """A dense tensor of finite floating point numbers of 16 to 64 bits.

    Raises:
        TypeError: naming ``what``, if it is anything else.
        ValueError: naming ``what``, if a number is NaN or infinite.
    """
    if not isinstance(tensor, Tensor) or not is_dense(tensor) or tensor.is_meta:
        raise InvalidTypeError(f"{what} is {brief(tensor)}, expected a dense tensor that holds its numbers")
    if tensor.dtype not in FLOATING:
        way_out = "give real and imaginary parts to a network" if tensor.is_complex() else "convert it by .float()"
        raise InvalidTypeError(
            f"{what} has dtype {tensor.dtype}; floating point is expected, of 16, 32 or 64 bits: {way_out}"
        )
    if not bool(torch.isfinite(tensor).all()):
        raise InvalidValueError(f"{what} holds NaN or infinite values: its training diverged, leave it out")
    return tensor
