"""Code that a user names: run with the imports that Python would find; its errors are reported with their place.

A file finds the modules beside it, as in ``python file.py``, and a module of a package those of the working directory,
as in ``python -m package.module``, while the code runs and no longer.
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
from typing import Any

import torch
from torch import nn

from nfn_monomial.checks import listed
from nfn_monomial.errors import InvalidValueError

__all__ = ["FORMS", "SHOWN", "DefinitionError", "arguments_of", "called", "importing", "named", "own_code"]

SHOWN = 6  # names in a message
FORMS = "module.py:Class, package.module:Class, hf:FOLDER, timm:NAME, torchvision:NAME, or a program's path, net.pt2"
LIBRARIES = ("<", __file__, *(str(Path(module.__file__ or "").parent) + os.sep for module in (ast, torch)))
"""Where the files of Python and torch are, and this one: their callers are to blame for errors in them."""


class DefinitionError(InvalidValueError):
    """Refuses a definition; the message names it, the reason and a way out."""


def called(function: Callable[..., Any], text: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """Calls a user's function.

    Args:
        function: a class or function.
        text: its name, as the user wrote it.
        arguments: by keyword; None for a function that never takes any.

    Raises:
        DefinitionError: naming it, if it wants other arguments or fails.
    """
    with own_code(f"{text} fails"), importing(text):
        try:
            return function(**arguments or {})
        except TypeError as error:
            try:
                signature = inspect.signature(function)
                signature.bind(**arguments or {})
            except TypeError as reason:
                way_out = "" if arguments is None else "give its arguments by --net-args width=64,depth=3, or "
                raise DefinitionError(
                    f"{text} cannot be called: {reason}; it is {getattr(function, '__name__', '')}{signature}: "
                    f"{way_out}name a function that gives the others"
                ) from error
            except ValueError:  # its signature is not known
                pass
            raise


def arguments_of(text: str) -> dict[str, Any]:
    """Parses arguments, ``width=64,depth=3`` or JSON, ``{"width": 64}``; a value that is not Python is a text.

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
        values: dict[str, Any] = {}
        for keyword in call.keywords:
            value = values[str(keyword.arg)] = ast.get_source_segment(source, keyword.value) or ""
            for read in (ast.literal_eval, json.loads):  # JSON last, so that it counts
                with contextlib.suppress(SyntaxError, ValueError):
                    values[str(keyword.arg)] = read(value)
        return values
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DefinitionError(
            f"--net-args {text}: give arguments by name, as width=64,name='a b', or as JSON, {{\"width\": 64}}"
        ) from error


@contextlib.contextmanager
def own_code(what: str) -> Iterator[None]:
    """Reports whatever a user's code raises inside, or that it exits, as an error with its place."""
    try:
        yield
    except DefinitionError:
        raise
    except (Exception, SystemExit) as error:
        way_out = (
            "; a file finds the modules beside it, package.module:NAME those of the working directory, and both find "
            "what is installed"
        ) * isinstance(error, ImportError)
        places = [  # of the user's own lines, the last of which is to blame
            f" ({frame.filename}, line {frame.lineno})"
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith(LIBRARIES)
        ]
        place = places[-1] if places else ""
        raise DefinitionError(f"{what}: {type(error).__name__}: {error}{place}{way_out}") from error


def named(text: str, others: tuple[type, ...] = ()) -> tuple[ModuleType, Any]:
    """Imports ``module.py:name`` or ``package.module:name``: the Python module, and the object of that name.

    ``others`` are the types that the object may have, beside a class or a function.

    Raises:
        DefinitionError: naming what is missing, and the names that there are.
    """
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise DefinitionError(f"{text!r} names no network, expected {FORMS}")
    with importing(text):
        if place.endswith(".py"):
            home = _run(Path(place).resolve())
        else:
            with own_code(f"{place} cannot be imported, expected {FORMS}"):
                home = importlib.import_module(place)
    value = getattr(home, name, None)
    if not callable(value) and not isinstance(value, others):
        known = [key for key, cls in vars(home).items() if inspect.isclass(cls) and issubclass(cls, nn.Module)]
        raise DefinitionError(f"{place} has no class or function {name}; its modules: {listed(known, SHOWN) or 'none'}")
    return home, value


@functools.cache
def _run(path: Path) -> ModuleType:
    """Runs a file as a module, once."""
    if not path.is_file():
        raise DefinitionError(f"{path}: no such file, expected {FORMS}")
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"  # another file of this name is another
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "its name ends as a Python file's does"
    assert spec.loader is not None, "files have one"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look there
    with own_code(f"{path} cannot be run"):
        spec.loader.exec_module(module)
    return module


_folders: dict[str, Path] = {}  # module that some user's code imported -> the folder in which it was found


@contextlib.contextmanager
def importing(text: str) -> Iterator[None]:
    """Imports modules as the user's code does: `named`, and all calls of its object, run inside of this.

    Raises:
        DefinitionError: naming the module, if another one of that name was imported from another folder.
    """
    place = text.rpartition(":")[0]
    folder = Path(place).resolve().parent if place.endswith(".py") else Path.cwd()

    def has(name: str) -> bool:
        return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()

    others = {name: other for name, other in _folders.items() if other != folder and has(name)}
    aside = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in others}
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        tops = {name.partition(".")[0] for name in sys.modules.keys() - before}
        _folders.update({name: folder for name in tops - others.keys() if has(name)})
        sys.modules.update(aside)
    if twice := sorted(tops & others.keys()):
        raise DefinitionError(
            f"{text}: {folder} and {others[twice[0]]} both have a module {twice[0]}, and Python imports one of that "
            "name: give it another name in one of them"
        )
