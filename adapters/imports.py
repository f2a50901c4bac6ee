"""Code that a user names: run with the imports that Python would find, and what goes wrong in it told with its place.

A file is run as ``python file.py`` runs it: modules beside it are found before others. A file with relative imports is
imported as a part of its package. Behind what is installed, the working directory is searched. All of that holds while
the code runs, and no longer; modules of one name in two projects are kept apart.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from nfn_monomial.errors import InvalidValueError

from .files import listed

__all__ = ["FORMS", "SHOWN", "DefinitionError", "arguments_of", "called", "importing", "named", "own_code"]

SHOWN = 6  # names in a message
FORMS = "module.py:Class, package.module:Class, hf:FOLDER, timm:NAME, torchvision:NAME, or a program's path, net.pt2"
LIBRARIES = ("<", __file__, *(str(Path(module.__file__ or "").parent) + os.sep for module in (ast, torch)))
"""Where the files of Python and torch are, and this one: what goes wrong in them is due to their callers."""


class DefinitionError(InvalidValueError):
    """A definition that cannot be read; the message names it, what was found and the way out."""


def called(function: Callable[..., Any], text: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """What a user's function returns.

    Args:
        function: a class or function.
        text: its name, as the user gave it.
        arguments: by keyword; None for one that never gets any.

    Raises:
        DefinitionError: naming it, if it wants other arguments or fails.
    """
    given = arguments or {}
    with own_code(f"{text} fails"), importing(text):
        try:
            return function(**given)
        except TypeError as error:
            if reason := _misfit(function, given):
                way_out = "" if arguments is None else "give its arguments by --net-args width=64,depth=3, or "
                raise DefinitionError(
                    f"{text} cannot be called: {reason}: {way_out}name a function that gives the others"
                ) from error
            raise


def _misfit(function: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """Why a function does not take these arguments, and which it takes; nothing if it does, or nobody knows."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return ""
    try:
        signature.bind(**given)
    except TypeError as reason:
        return f"{reason}; it is {getattr(function, '__name__', '')}{signature}"
    return ""


def arguments_of(text: str) -> dict[str, Any]:
    """Arguments as ``width=64,depth=3``, or as JSON, ``{"width": 64}``; a value that is none of Python's is a text.

    Raises:
        DefinitionError: if it is neither.
    """
    try:
        if text.lstrip().startswith("{"):
            return dict(json.loads(text))
        source = f"f({text}\n)"
        call = ast.parse(source, mode="eval").body
        names = [keyword.arg for keyword in call.keywords] if isinstance(call, ast.Call) else [None]
        if not isinstance(call, ast.Call) or call.args or None in names or len(set(names)) < len(names):
            raise ValueError(text)
        return {str(k.arg): _value(ast.get_source_segment(source, k.value) or "") for k in call.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DefinitionError(
            f"--net-args {text}: give arguments by name, as width=64,name='a b', or as JSON, {{\"width\": 64}}"
        ) from error


def _value(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(SyntaxError, ValueError):
            return read(text)
    return text


@contextlib.contextmanager
def own_code(what: str) -> Iterator[None]:
    """Whatever a user's own code raises inside, or that it wants to leave, is told as an error, with its place."""
    try:
        yield
    except DefinitionError:
        raise
    except (Exception, SystemExit) as error:
        way_out = (
            "; what it imports is looked for beside it, in the working directory, and in what is installed"
            * isinstance(error, ImportError)
        )
        raise DefinitionError(f"{what}: {type(error).__name__}: {error}{_place(error)}{way_out}") from error


def _place(error: BaseException) -> str:
    """The last line of a user's own that led to an error."""
    lines = [
        f" ({frame.filename}, line {frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(LIBRARIES)
    ]
    return lines[-1] if lines else ""


def named(text: str, others: tuple[type, ...] = ()) -> tuple[ModuleType, Any]:
    """What ``module.py:name`` or ``package.module:name`` names, and the Python module that it is in.

    ``others`` are types of what it may be beside a class or a function.

    Raises:
        DefinitionError: naming what was not found, and what is there.
    """
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise DefinitionError(f"{text!r} names no network, expected {FORMS}")
    with importing(text):
        home = (
            _run(Path(place).resolve())
            if place.endswith(".py")
            else _imported(place, f"{place} cannot be imported, expected {FORMS}")
        )
    found = getattr(home, name, None)
    if not callable(found) and not isinstance(found, others):
        known = [key for key, value in vars(home).items() if inspect.isclass(value) and issubclass(value, nn.Module)]
        raise DefinitionError(f"{place} has no class or function {name}; its modules: {listed(known, SHOWN) or 'none'}")
    return home, found


@functools.cache
def _run(path: Path) -> ModuleType:
    """A file that has run, once, alone or as a part of its package."""
    home = _home(path)
    if home.module is not None:
        return _imported(home.module, f"{path} cannot be run as {home.module}, as its relative imports ask for")
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"  # another file of this name is another
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DefinitionError(f"{path} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look there
    with own_code(f"{path} cannot be run"):
        spec.loader.exec_module(module)
    return module


def _imported(name: str, fails: str) -> ModuleType:
    with own_code(fails):
        return importlib.import_module(name)


class _Home(NamedTuple):
    """Where the imports of a file begin: folders in front of all others, and behind; its name in its package."""

    front: Path
    behind: tuple[str, ...]
    module: str | None


@functools.cache
def _home(path: Path) -> _Home:
    if not path.is_file():
        raise DefinitionError(f"{path}: no such file, expected {FORMS}")
    with own_code(f"{path} cannot be run"):
        tree = ast.parse(path.read_bytes(), str(path))
    levels = max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)
    own = [] if path.stem == "__init__" else [path.stem]
    parts, folder = own, path.parent
    while (folder / "__init__.py").is_file() or len(parts) < levels + len(own):
        parts, folder = [folder.name, *parts], folder.parent
    behind = () if folder == path.parent else (str(path.parent),)
    return _Home(folder, behind, ".".join(parts) if levels else None)


_kept: dict[Path, dict[str, ModuleType]] = {}  # by folder, what it has of names that are others' elsewhere


@contextlib.contextmanager
def importing(text: str) -> Iterator[None]:
    """The imports that code gets which a user names so: `named`, and what it makes, run inside of this."""
    place = text.rpartition(":")[0]
    home = _home(Path(place).resolve()) if place.endswith(".py") else None
    front, behind = ([], []) if home is None else ([str(home.front)], list(home.behind))
    before, hidden = list(sys.path), {} if home is None else _hidden(home)
    kept = {} if home is None else _kept.setdefault(home.front, {})
    sys.path[:] = [*front, *sys.path, *behind, *([] if str(Path.cwd()) in before else [str(Path.cwd())])]
    for name in hidden:
        del sys.modules[name]
    sys.modules.update(kept)
    importlib.invalidate_caches()
    tops = {name.partition(".")[0] for name in hidden}
    try:
        yield
    finally:
        sys.path[:] = before
        if tops:
            kept |= {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in tops}
            sys.modules.update(hidden)


def _hidden(home: _Home) -> dict[str, ModuleType]:
    """Modules that were imported elsewhere, and have names of modules at home; but for Python's own."""
    entries = set(os.listdir(home.front))
    names = {name.partition(".")[0] for name in sys.modules}.difference(sys.stdlib_module_names)
    names = {n for n in names if f"{n}.py" in entries or (n in entries and (home.front / n / "__init__.py").is_file())}
    if home.module is not None:
        names.add(home.module.partition(".")[0])
    elsewhere = {name for name in names if name in sys.modules and not _is_at(sys.modules[name], home.front / name)}
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in elsewhere}


def _is_at(module: ModuleType, place: Path) -> bool:
    file = os.path.realpath(getattr(module, "__file__", None) or "")
    return file in (f"{place}.py", str(place / "__init__.py")) or str(place) in getattr(module, "__path__", ())
