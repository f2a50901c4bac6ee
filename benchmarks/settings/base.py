"""Settings: frozen dataclasses that are checked against their annotations, and read ``key=value``.

    @dataclass(frozen=True)
    class Sizes(Settings):
        width: Count = 16
        names: Some[str] = ("np",)

``Sizes(width=0)`` raises, and so does ``override(Sizes(), ["width=none"])``, because of the annotations. No module
of this room imports torch, so that a command line can be built from settings without it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from nfn_monomial.errors import InvalidValueError

__all__ = [
    "AtLeastZero",
    "Count",
    "Positive",
    "Seed",
    "Settings",
    "Some",
    "Span",
    "assignment",
    "override",
    "read_value",
]

SHOWN = 80
"""Characters of a value that errors show."""
C = TypeVar("C")
T = TypeVar("T")


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values or len(set(values)) != len(values):
        raise InvalidValueError("should be at least one, and none twice")
    return values


def _rising(ends: tuple[Any, Any]) -> tuple[Any, Any]:
    if ends[0] > ends[1]:
        raise InvalidValueError("should be the lowest, then the highest")
    return ends


Count = Annotated[int, Field(ge=1, le=10**6)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
AtLeastZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Some = Annotated[tuple[T, ...], Field(max_length=1000), AfterValidator(_distinct)]
"""At least one, none twice, and no more than a thousand."""
Span = Annotated[tuple[T, T], AfterValidator(_rising)]
"""The lowest, then the highest, both included."""


class Settings:
    """Base of dataclasses whose fields are checked by their types, pydantic's constraints in them included.

    Values are converted where that is safe: a list to a tuple, an integer to a float, a text to a number.

    Raises:
        ValueError: naming the field, its value and the expected one.
    """

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, kind in _kinds(cls).items():
            object.__setattr__(self, name, _read(getattr(self, name), kind, name))
        self.check()

    def check(self) -> None:
        """Raises a ValueError if fields do not go together."""


@functools.cache
def _kinds(cls: Any) -> dict[str, Any]:
    """Returns the annotations of all fields."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _read(value: Any, kind: Any, key: str) -> Any:
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        place = ".".join([key, *(part for part in details["loc"] if isinstance(part, str))])
        expected = details["msg"].removeprefix("Input ").removeprefix("Value error, ")
        if details["type"] == "missing" and isinstance(last := details["loc"][-1], int):
            expected = f"value {last + 1} is missing"
        text = repr(details["input"])
        text = text if len(text) <= SHOWN else f"{text[:SHOWN]}.."
        raise InvalidValueError(f"{place} is {text}, but {expected}") from None


def read_value(text: str, kind: Any, key: str) -> Any:
    """The text as a value of this type: ``none`` is None, and commas are between the values of a tuple.

    Args:
        text: as typed.
        kind: a type, with pydantic's constraints if it has some.
        key: its name in errors.

    Raises:
        ValueError: naming the key, the expected value and the text.
    """
    readings: tuple[Any, ...] = (text, tuple(part.strip() for part in text.split(",") if part.strip()))
    if text.lower() == "none":
        readings = (None, *readings)
    for reading in readings[:-1]:
        try:
            return _adapter(kind).validate_python(reading)
        except ValidationError as error:
            several = error.errors()[0]["type"] in ("tuple_type", "sequence_str")
    return _read(readings[-1] if several else text, kind, key)


def override(config: C, assignments: Sequence[str]) -> C:
    """A copy of a dataclass with fields replaced, those of dataclasses in it as ``training.epochs=3``.

    All at once, so that fields which only go together can be given in any order.

    Args:
        config: a dataclass.
        assignments: each ``key=value``, read by `read_value`; of several for one key the last wins.

    Raises:
        ValueError: for a text without ``=``, an unknown key (listing the known ones), or as the dataclass.
    """
    texts = {tuple(key.split(".")): value for key, value in map(assignment, assignments)}
    return _replaced(config, texts) if texts else config


def assignment(text: str) -> tuple[str, str]:
    """Key and value of ``key=value``.

    Raises:
        ValueError: for a text without ``=``.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidValueError(f"{text!r}: expected key=value, as training.epochs=3")
    return key.strip(), value.strip()


def _replaced(config: C, texts: Mapping[tuple[str, ...], str], above: tuple[str, ...] = ()) -> C:
    """A copy with the values at these paths, which begin below ``above``."""
    some: Any = config
    cls: Any = type(some)
    kinds, changed = _kinds(cls), dict[str, Any]()
    for path, text in texts.items():
        (name, *rest), key = path, ".".join((*above, *path))
        if name not in kinds:
            raise InvalidValueError(f"unknown key {key!r}: {cls.__name__} has {', '.join(kinds)}")
        current = getattr(some, name)
        if not dataclasses.is_dataclass(current):
            if rest:
                raise InvalidValueError(f"unknown key {key!r}: {'.'.join(path[:-1])} is a single value")
            changed[name] = read_value(text, kinds[name], key)
        elif not rest:
            inner = ", ".join(f"{key}.{f.name}" for f in dataclasses.fields(current))
            raise InvalidValueError(f"{key} is a group of settings: set one of {inner}")
        elif name not in changed:
            of_it = {other[1:]: value for other, value in texts.items() if other[0] == name and len(other) > 1}
            changed[name] = _replaced(current, of_it, (*above, name))
    return dataclasses.replace(some, **changed)  # type: ignore[no-any-return]
