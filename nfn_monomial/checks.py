"""Checks of arguments, read off a function's annotations.

    @checked
    def sample(count: Count, kind: Literal["norm", "abs"] = "norm", noise: Finite = 0.0) -> Tensor: ...

Then ``sample(4.5)``, ``sample(True)``, ``sample(2, "l1")`` and ``sample(2, noise=nan)`` raise an error that names the
argument, the kinds that it may have and the value found. Values of tensors are never looked at.
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
        """Raises unless the value is in it."""
        if not self.low <= value <= self.high:
            bound = f"at least {self.low}" if value < self.low else f"at most {self.high}"
            finite = abs(self.low) == abs(self.high) == sys.float_info.max or value != value
            raise InvalidValueError(f"{name} must be {'finite' if finite else bound}, found {shown(value)}")


def _there(value: torch.device | str, name: str) -> None:
    """Raises unless the device is there."""
    try:
        torch.empty(0, device=value)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidValueError(f"{name} must be a device that is there, found {value!r}: {reason}") from None


def _floating(value: torch.dtype, name: str) -> None:
    """Raises unless torch computes with the dtype."""
    if value not in FLOATING:
        raise InvalidTypeError(f"{name} must be {_either(map(str, FLOATING))}, found {value}")


Count: TypeAlias = Annotated[int, Within(1, 2**20)]
"""Number of channels, layers or draws."""
Size: TypeAlias = Annotated[int, Within(1, 2**31 - 1)]
"""Number of neurons, networks or positions."""
Finite: TypeAlias = Annotated[float, Within(-sys.float_info.max, sys.float_info.max)]
AtLeastZero: TypeAlias = Annotated[float, Within(0, sys.float_info.max)]
Share: TypeAlias = Annotated[float, Within(0, 1)]
Seed: TypeAlias = Annotated[int, Within(-(2**63), 2**64 - 1)]
"""A seed that a generator takes."""
Device: TypeAlias = Annotated[torch.device | str, _there]
Floating: TypeAlias = Annotated[torch.dtype, _floating]


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Wraps a function so that it checks its arguments against its annotations; not while torch compiles it."""

    @functools.wraps(function)
    def checking(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.compiler.is_compiling():
            signature, kinds = _signature(function)
            where = function.__qualname__.removesuffix(".__init__")
            try:
                arguments = signature.bind(*args, **kwargs).arguments
            except TypeError:  # Python itself says which argument is missing or too much
                return function(*args, **kwargs)
            for name, value in arguments.items():
                form = signature.parameters[name].kind
                if name in kinds and form is not inspect.Parameter.VAR_KEYWORD:
                    for each in value if form is inspect.Parameter.VAR_POSITIONAL else (value,):
                        require(each, kinds[name], f"{where}: {name}")
        return function(*args, **kwargs)

    return checking


@functools.cache
def _signature(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """The signature of a function and the types of its arguments; the type that it returns need not be importable."""
    annotations = {name: kind for name, kind in function.__annotations__.items() if name != "return"}
    arguments, names = types.SimpleNamespace(__annotations__=annotations), inspect.unwrap(function).__globals__
    return inspect.signature(function), typing.get_type_hints(arguments, names, include_extras=True)


def require(value: Any, kind: Any, name: str) -> None:
    """Raises unless a value is of a type, bounds in ``Annotated`` included.

    Items of sequences and dicts are looked at; items of other iterables are not, because that would use them up.

    Raises:
        TypeError: for a value of another kind, such as a bool or a text where a number is expected.
        ValueError: for a number out of range, or a word that is none of those expected.
    """
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is Annotated:
        require(value, inner[0], name)
        for bound in inner[1:]:
            bound(value, name)
    elif origin in (Union, UnionType):
        _require_any(value, inner, kind, name)
    elif origin is Literal:
        if not any(type(value) is type(word) and value == word for word in inner):
            error = InvalidValueError if isinstance(value, str) else InvalidTypeError
            raise error(f"{name} must be {_text(kind)}, found {shown(value)}")
    elif origin is not Any and isinstance(origin, type):  # no variable of types
        if not _fits(value, origin):
            raise InvalidTypeError(f"{name} must be {_text(kind)}, found {shown(value)}")
        for place, item, each in _inside(value, origin, inner, name):
            require(item, each, place)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, whatever its bounds and its items."""
    if isinstance(kind, type) and kind is not Any:
        return _KINDS[kind].fits(value) if kind in _KINDS else isinstance(value, kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _fits(value, inner[0])
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    return origin is Literal or not isinstance(origin, type) or _fits(value, origin)  # else Any, or a variable of types


def _require_any(value: Any, kinds: Sequence[Any], kind: Any, name: str) -> None:
    errors = []
    for each in kinds:
        if _fits(value, each):  # else a text would be made of the value, which may be long, for an error that is none
            try:
                return require(value, each, name)
            except MonomialError as error:
                errors.append(error.with_traceback(None))  # whose frames would hold the caller's tensors
    # The error that came furthest: about an item of a value that fits, else about a number out of range.
    inside = [error for error in errors if not str(error).startswith(f"{name} ")]
    inside += [error for error in errors if isinstance(error, InvalidValueError)]
    raise (*inside, InvalidTypeError(f"{name} must be {_text(kind)}, found {shown(value)}"))[0]


def _inside(value: Any, origin: Any, inner: Sequence[Any], name: str) -> Iterator[tuple[str, Any, Any]]:
    """The items of a value: their places, they themselves, and their types."""
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


def is_dense(x: Tensor) -> bool:
    """True for an ordinary tensor, which is neither sparse nor nested nor quantised."""
    return x.layout is torch.strided and not x.is_nested and not x.is_quantized


def same_numbers(x: Tensor, like: Tensor, where: str) -> None:
    """Raises unless two tensors that are multiplied have one dtype and device; autocast sees to dtypes itself."""
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


class _Kind(NamedTuple):
    """The words for a type in messages, and the predicate of its values."""

    words: str
    fits: Callable[[Any], bool]


def _number(kind: type) -> Callable[[Any], bool]:
    """A bool is an int to Python, and a mistake where a number is expected."""
    return lambda value: isinstance(value, kind) and not isinstance(value, bool)


def _items(kind: type) -> Callable[[Any], bool]:
    """Texts, mappings and arrays would be read letter by letter, name by name or row by row."""
    return lambda value: (
        isinstance(value, kind) and not isinstance(value, (str, bytes, Mapping)) and not hasattr(value, "__array__")
    )


_KINDS: dict[Any, _Kind] = {
    int: _Kind("a whole number", _number(numbers.Integral)),
    float: _Kind("a number", _number(numbers.Real)),
    bool: _Kind("True or False", lambda value: isinstance(value, bool)),
    str: _Kind("a text", lambda value: isinstance(value, str)),
    NoneType: _Kind("None", lambda value: value is None),
    Tensor: _Kind("a dense tensor", lambda value: isinstance(value, Tensor) and is_dense(value)),
    Callable: _Kind("a function", callable),
    list: _Kind("list", _items(list)),
    # A named tuple is a record, and no sequence of values.
    tuple: _Kind("a tuple", lambda value: _items(tuple)(value) and not hasattr(value, "_fields")),
    Sequence: _Kind("a sequence", _items(Sequence)),
    Collection: _Kind("a sequence", _items(Collection)),
    Iterable: _Kind("a sequence", _items(Iterable)),
    Mapping: _Kind("a mapping", lambda value: isinstance(value, Mapping)),
    os.PathLike: _Kind("a path", lambda value: isinstance(value, os.PathLike)),
}
"""Types of arguments; values of other types are instances of them."""


def _text(kind: Any) -> str:
    """A type in words."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is Annotated:
        return _text(inner[0])
    if origin in (Union, UnionType, Literal):
        return _either(dict.fromkeys(map(repr if origin is Literal else _text, inner)))
    if origin is Mapping and inner == (str, Tensor):
        return "named tensors, parameter name -> tensor"
    words = _KINDS[origin].words if origin in _KINDS else str(getattr(origin, "__name__", kind))
    if not inner or origin not in (list, tuple, Sequence, Collection, Iterable):
        return words
    return f"{words} of {' and '.join(dict.fromkeys(_text(each) for each in inner if each is not Ellipsis))}"


def _either(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


class _Short(reprlib.Repr):
    """Texts of plain values, of this package's and of containers of them; other objects by their class alone, because
    their texts may have any length."""

    def repr_instance(self, value: object, level: int) -> str:
        plain = isinstance(value, str | bytes | numbers.Number | torch.dtype | type | NoneType)
        ours = type(value).__module__.partition(".")[0] == __package__
        return super().repr_instance(value, level) if plain or ours else type(value).__name__


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 3
_LONGEST = 300


def shown(value: object) -> str:
    """A value as messages show it: short and in one line, whatever it is."""
    if isinstance(value, Tensor):
        kind = "" if is_dense(value) else "nested " if value.is_nested else f"{value.layout} "
        shape = "" if value.is_nested else f" of shape {tuple(value.shape)}"
        return f"a {kind}tensor{shape}, {value.dtype}, on {value.device}"
    try:
        text = " ".join(_SHORT.repr(value).split())
    except ValueError:  # Python prints no integers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def listed(names: Iterable[object], most: int = 8) -> str:
    """The first few of some names as messages list them, each of them short."""
    every = list(names)
    first = ", ".join(shown(name)[1:-1] if isinstance(name, str) else shown(name) for name in every[:most])
    return first + (f" and {len(every) - most} more" if len(every) > most else "")


def require_numbers(tensor: object, what: str) -> Tensor:
    """Returns the tensor if it is a dense one of finite floating point numbers of 16 to 64 bits.

    Raises:
        TypeError: naming ``what``, if it is anything else.
        ValueError: naming ``what``, if a number is NaN or infinite.
    """
    if not isinstance(tensor, Tensor) or not is_dense(tensor) or tensor.is_meta:
        raise InvalidTypeError(f"{what} is {shown(tensor)}, expected a dense tensor that holds its numbers")
    if tensor.dtype not in FLOATING:
        way_out = "give real and imaginary parts to a network" if tensor.is_complex() else "convert it by .float()"
        raise InvalidTypeError(
            f"{what} has dtype {tensor.dtype}; floating point is expected, of 16, 32 or 64 bits: {way_out}"
        )
    if not bool(torch.isfinite(tensor).all()):
        raise InvalidValueError(f"{what} holds NaN or infinite values: its training diverged, leave it out")
    return tensor
