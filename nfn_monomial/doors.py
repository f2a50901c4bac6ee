"""Packages that show the names of their modules, and import a module when one of its names is first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["lazy"]


def lazy(
    package: str,
    names: Mapping[str, Sequence[str]],
    missing: Callable[[ModuleNotFoundError, str], Exception] | None = None,
) -> None:
    """Gives a package names that are looked up in its modules when they are first asked for.

    Its ``__init__`` calls this where it is no type checker that reads it, and imports the same names where it is one::

        if TYPE_CHECKING:
            from .linear import EquivariantLinear
        else:
            lazy(__name__, {"linear": ["EquivariantLinear"]})

    Args:
        package: its ``__name__``.
        names: module of the package -> the names that the package shows of it.
        missing: makes the error for a name whose module needs something that is not installed.
    """
    module_of = {name: module for module, shown in names.items() for name in shown}

    class Door(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name not in module_of:
                if name in names:
                    return import_module(f"{package}.{name}")
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            try:
                value = getattr(import_module(f"{package}.{module_of[name]}"), name)
            except ModuleNotFoundError as error:
                if missing is None:
                    raise
                raise missing(error, f"{package}.{name}") from error
            setattr(self, name, value)
            return value

        def __setattr__(self, name: str, value: Any) -> None:
            # Importing `canonical.balance` makes the module an attribute of `canonical`, which shows a function of
            # that name.
            if isinstance(value, ModuleType) and name in module_of:
                value = getattr(value, name)
            super().__setattr__(name, value)

        def __dir__(self) -> list[str]:
            inside = (module for module in names if "." not in module)
            return sorted({*super().__dir__(), *inside, *module_of})

    sys.modules[package].__class__ = Door
