"""Modules by name or by a regular expression, as quantisers find them: ``re:`` and a pattern that begins the path."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

__all__ = ["Named", "family", "matches", "named"]


class Named(NamedTuple):
    """Lines of repeated blocks as one, or one line.

    Attributes:
        sides: one name or pattern, then those on the other side.
        lines: numbers of the lines that it stands for.
    """

    sides: tuple[str, tuple[str, ...]]
    lines: tuple[int, ...]


def family(path: str) -> str:
    """A path without the numbers of blocks: those that are a part of their own."""
    return ".".join("#" if part.isdigit() else part for part in path.split("."))


def matches(target: str, paths: Iterable[str]) -> list[str]:
    """The paths that a name or a pattern stands for."""
    pattern = target.removeprefix("re:")
    return [path for path in paths if (re.match(pattern, path) if pattern != target else path == target)]


def shortest(wanted: Collection[str], paths: Collection[str]) -> str | None:
    """The shortest pattern that stands for exactly these paths of one family; None if there is none."""
    parts = [r"\d+" if part.isdigit() else re.escape(part) for part in next(iter(wanted)).split(".")]
    tails = (r"\.".join(parts[n:]) for n in reversed(range(len(parts))))
    found = (f"re:.*{tail}$" for tail in tails)
    return next((target for target in found if {*matches(target, paths)} == {*wanted}), None)


def named(lines: Sequence[tuple[str, Sequence[str]]], paths: Collection[str]) -> list[Named]:
    """Lines with patterns in place of paths, where one pattern of each kind stands for all blocks; else as they are.

    A pattern matches exactly the paths that it stands for. Which of them belong to one line tells the longest
    beginning that their paths share, as the tools see it.
    """
    alike: dict[tuple[str, ...], list[int]] = {}
    for number, (one, others) in enumerate(lines):
        alike.setdefault((family(one), *dict.fromkeys(map(family, others))), []).append(number)
    found = []
    for kinds, numbers in alike.items():
        ones = [lines[n][0] for n in numbers]
        wanted = {kind: [p for n in numbers for p in lines[n][1] if family(p) == kind] for kind in kinds[1:]}
        targets = [shortest(those, paths) for those in (ones, *wanted.values())]
        clear = all(_nearest(path, ones) == [lines[n][0]] for n in numbers for path in lines[n][1])
        if clear and targets[0] is not None and None not in targets:
            first, *rest = [target for target in targets if target is not None]
            found.append(Named((first, tuple(rest)), tuple(numbers)))
        else:
            found += [Named((lines[n][0], tuple(lines[n][1])), (n,)) for n in numbers]
    return found


def _nearest(path: str, others: Sequence[str]) -> list[str]:
    """Those of some paths that share the longest beginning with a path."""
    shared = [_shared(path.split("."), other.split(".")) for other in others]
    return [other for other, count in zip(others, shared, strict=True) if count == max(shared)]


def _shared(a: Sequence[str], b: Sequence[str]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
