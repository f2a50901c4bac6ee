"""The code that a model is made of, as a hash: a model that was changed is another one, though its name is the same."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["code_of", "made_of"]

log = logging.getLogger(__name__)

PACKAGE = "nfn_monomial"
ROOMS = ("settings", "data", "make", "report", "studies", "speed", "cli")
APART = tuple(f"{PACKAGE}.benchmarks.{room}." for room in ROOMS)
"""What a run states in other ways: settings and data are in its `RunSettings`, the version stands for the rest."""
OTHERS = ("torch", *sys.stdlib_module_names)


def code_of(cls: type) -> str:
    """A hash of what a class is `made_of`, but for comments, docstrings and layout."""
    return _hash(frozenset(made_of(cls)))


@functools.cache
def _hash(modules: frozenset[str]) -> str:
    texts = sorted(filter(None, (_read(name)[0] for name in modules)))
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def made_of(cls: type) -> set[str]:
    """Modules that a class and its bases are written in, those of this package that they import, and the training.

    What is not in a file, as a class that was typed into a console, is left out with a warning.
    """
    found: set[str] = set()
    todo = [c.__module__ for c in cls.__mro__ if c.__module__.split(".")[0] not in OTHERS]
    todo.append(f"{PACKAGE}.benchmarks.train.loop")
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += _read(name)[1]
    return found


@functools.cache
def _read(name: str) -> tuple[str, tuple[str, ...]]:
    """What a module does, and the modules of this package that it imports."""
    path = _path(name)
    if path is None:
        log.warning("the source of %s is not known: its runs are kept though it may have changed", name)
        return "", ()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        match getattr(node, "body", None):
            case [ast.Expr(value=ast.Constant()), *_] as body:  # a docstring
                del body[0]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imported = {found for node in ast.walk(tree) for found in _imported(node, package)}
    return ast.dump(tree), tuple(sorted(m for m in imported if _inside(m)))


def _inside(name: str) -> bool:
    return name.split(".")[0] == PACKAGE and not f"{name}.".startswith(APART)


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parts = package.split(".")
        start = parts[: len(parts) - node.level + 1] if node.level else []
        module = ".".join([*start, *filter(None, [node.module])])
        yield module
        for alias in node.names:
            value = getattr(sys.modules.get(module), alias.name, None)  # as a package may pass on what is not its own
            home = getattr(value, "__module__", None) or getattr(value, "__name__", None)
            if isinstance(home, str):
                yield home


def _path(name: str) -> Path | None:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None and module is None:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        file = spec.origin if spec else None
    return Path(file) if file and Path(file).suffix == ".py" else None
