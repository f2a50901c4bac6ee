"""Errors of this package: one base class, so that a program can tell what went wrong in its input from a fault.

Each is an error of Python's own, too, so that ``except ValueError`` goes on working. Every message names the thing,
what was found, what is expected and the way out.
"""

from __future__ import annotations

__all__ = [
    "InvalidIndexError",
    "InvalidTypeError",
    "InvalidValueError",
    "MissingExtraError",
    "MissingFileError",
    "MonomialError",
    "UnsupportedError",
]


class MonomialError(Exception):
    """Base class: something that was given cannot be used. The command line prints it in one line and exits with 2.

    >>> from nfn_monomial import MonomialError, WeightSpace
    >>> try:
    ...     WeightSpace.mlp([2], "relu")
    ... except MonomialError as error:
    ...     print(error)
    mlp needs at least input and output size, found [2]
    """


class InvalidValueError(MonomialError, ValueError):
    """A value, a shape, a name or a file's content does not fit."""


class InvalidTypeError(MonomialError, TypeError):
    """Something of another kind is expected."""


class InvalidIndexError(MonomialError, IndexError):
    """An index points outside of what it indexes."""


class UnsupportedError(MonomialError, NotImplementedError):
    """This is defined, but not offered."""


class MissingFileError(MonomialError, FileNotFoundError):
    """A file or folder does not exist, or is no regular file."""


class MissingExtraError(MonomialError, ImportError):
    """A package that is not installed is needed."""
