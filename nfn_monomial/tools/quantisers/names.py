"""Modules by name or by a regular expression, as quantisers find them: ``re:`` and a pattern that begins the path."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

from nfn_monomial.space import WeightSpace

__all__ = ["family", "modules_of", "named"]

Named: TypeAlias = tuple[str, tuple[str, ...], tuple[int, ...]]
"""A name or pattern, those on the other side of the line, and the numbers of the lines that it stands for."""


def modules_of(space: WeightSpace, pieces: Iterable[str]) -> tuple[str, ...]:
    """Returns the modules of parameters; for parameters of the network itself, the parameters."""
    names = [space.pieces[piece].parameter for piece in pieces]
    return tuple(dict.fromkeys(name.rpartition(".")[0] or name for name in names))


def family(path: str) -> str:
    """Replaces the numbers of blocks in a path, which are parts of their own, by ``#``."""
    return ".".join("#" if part.isdigit() else part for part in path.split("."))


def shortest(wanted: Collection[str], paths: Collection[str]) -> str | None:
    """Returns the shortest pattern that matches exactly these paths of one family; None if there is none."""
    parts = [r"\d+" if part.isdigit() else re.escape(part) for part in next(iter(wanted)).split(".")]
    tails = (r"\.".join(parts[n:]) for n in reversed(range(len(parts))))
    patterns = (f".*{tail}$" for tail in tails)
    return next((f"re:{p}" for p in patterns if {path for path in paths if re.match(p, path)} == {*wanted}), None)


def named(lines: Sequence[tuple[str, Sequence[str]]], paths: Collection[str]) -> list[Named]:
    """Replaces paths in lines by patterns, if one pattern of each kind stands for all blocks.

    A pattern matches exactly the paths that it stands for. Paths that share the longest beginning belong to one line,
    by the rule of llm-compressor.
    """
    alike: dict[tuple[str, ...], list[int]] = {}
    for number, (one, others) in enumerate(lines):
        alike.setdefault((family(one), *dict.fromkeys(map(family, others))), []).append(number)
    names: list[Named] = []
    for kinds, numbers in alike.items():
        ones = [lines[n][0] for n in numbers]
        wanted = {kind: [p for n in numbers for p in lines[n][1] if family(p) == kind] for kind in kinds[1:]}
        targets = [shortest(those, paths) for those in (ones, *wanted.values())]
        clear = all(nearest(path, ones) == [lines[n][0]] for n in numbers for path in lines[n][1])
        if clear and targets[0] is not None and None not in targets:
            first, *rest = [target for target in targets if target is not None]
            names.append((first, tuple(rest), tuple(numbers)))
        else:
            names += [(lines[n][0], tuple(lines[n][1]), (n,)) for n in numbers]
    return names


def nearest(path: str, others: Sequence[str]) -> list[str]:
    """Returns the paths that share the longest beginning with a path."""
    shared = []
    for other in others:
        pairs = zip(path.split("."), other.split("."), strict=False)
        shared.append(sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return [other for other, count in zip(others, shared, strict=True) if count == max(shared)]
