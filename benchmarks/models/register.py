"""Classes known by a name, to experiments and on the command line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

__all__ = ["BALANCED", "Register"]

BALANCED = "balanced-"
T = TypeVar("T", bound=type[Any])


class Register(Generic[T]):
    """Classes by name, in the order in which they were added.

    ``balanced-`` in front of a name makes a subclass whose networks are brought into canonical form first, which takes
    scalings and sign flips away from it.

    Args:
        what: they are, as ``model``.
        balanced: makes that subclass; ``label`` and ``invariant_under`` are set here.
    """

    def __init__(self, what: str, balanced: Callable[[T], T]) -> None:
        self._what, self._balanced = what, functools.cache(functools.partial(_named, balanced))
        self.classes: dict[str, T] = {}

    def __call__(self, name: str) -> Callable[[T], T]:
        """Class decorator: make a class known by this name."""

        def add(cls: T) -> T:
            if self.classes.setdefault(name, cls) is not cls:
                taken = self.classes[name].__qualname__
                raise ValueError(f"another {self._what} is registered as {name!r} already: {taken}")
            return cls

        return add

    def __iter__(self) -> Iterator[str]:
        return iter(self.classes)

    def __getitem__(self, name: str) -> T:
        """The class of a name.

        Raises:
            ValueError: listing the known names.
        """
        plain = name.removeprefix(BALANCED)
        if plain not in self.classes:
            known = ", ".join(self.classes)
            raise ValueError(
                f"unknown {self._what} {name!r}: choose from {known}, each also with {BALANCED!r} in front"
            )
        return self.classes[plain] if plain == name else self._balanced(self.classes[plain])


def _named(balanced: Callable[[Any], Any], base: Any) -> Any:
    cls = balanced(base)
    cls.label = f"balanced {base.label}"
    cls.invariant_under = "group" if base.invariant_under == "permutations" else base.invariant_under
    return cls
