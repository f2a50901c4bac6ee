"""Lists of names made short: those of repeated blocks as one, with the range of their numbers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence


def pattern_of(name: str) -> str:
    """Returns a name without its numbers, which is the same in repeated blocks."""
    return re.sub(r"\d+", "#", name)


def kind_of(name: str) -> str:
    """Returns a parameter's name without the numbers of blocks: all but those in its module's own name in a block."""
    path = name.partition("[")[0].split(".")
    module = len(path) - 2
    return ".".join(p if n == module > 0 and not p.isdigit() else pattern_of(p) for n, p in enumerate(path))


def folded(names: Iterable[str]) -> list[str]:
    """Writes names that differ in one number as one, with its range.

    >>> folded(["layer1.0.weight", "layer1.1.weight", "layer1.2.weight", "fc.bias"])
    ['layer1.{0-2}.weight', 'fc.bias']
    """
    short = list(dict.fromkeys(names))
    for place in range(max((len(re.findall(r"\d+", name)) for name in short), default=0)):
        groups: dict[str, list[str]] = {}
        for name in short:
            numbers = list(re.finditer(r"\{[^}]*\}|\d+", name))
            if place < len(numbers) and numbers[place].group()[0] != "{":
                a, b = numbers[place].span()
                groups.setdefault(f"{name[:a]}\0{name[b:]}", []).append(numbers[place].group())
            else:
                groups[name] = []
        short = [
            key.replace("\0", _range(sorted(map(int, values)), values[0])) if values else key
            for key, values in groups.items()
        ]
    return short


def ranges(names: Iterable[str]) -> list[str]:
    """Writes names that differ in any numbers as one, with all numbers that occur in each place, however combined.

    >>> ranges(["block1.layer1.norm1.bias[0]", "block1.layer2.norm1.bias[1]", "block2.layer1.norm1.bias[0]"])
    ['block{1-2}.layer{1-2}.norm1.bias[{0-1}]']
    """
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(kind_of(name), []).append(name)
    short = []
    for group in groups.values():
        places = zip(*(re.findall(r"\d+", name) for name in group), strict=False)
        numbers = iter([_range(sorted({*map(int, values)}), values[0]) for values in places])
        short.append(re.sub(r"\d+", lambda match: next(numbers, match[0]), group[0]))  # noqa: B023
    return short


def _range(numbers: Sequence[int], alone: str) -> str:
    """Writes ``{0-2,5}``; one number as it stands in its name."""
    if len(numbers) == 1:
        return alone
    parts = []
    for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        first, *rest = [number for _, number in run]
        parts.append(f"{first}-{rest[-1]}" if rest else f"{first}")
    return f"{{{','.join(parts)}}}"
