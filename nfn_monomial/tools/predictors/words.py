"""Networks in words: which layers they have, for people who compare what they have with what is asked for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from nfn_monomial.adapters.chains import natural
from nfn_monomial.adapters.files import listed

__all__ = ["in_words"]


def in_words(shapes: Mapping[str, Sequence[int]]) -> str:
    """Networks with parameters of these shapes: their sizes and kernels if they are a chain of layers.

    >>> in_words({"0.weight": (16, 1, 3, 3), "0.bias": (16,), "2.weight": (10, 16)})
    '2 layers 1-16-10, kernels 3x3'
    >>> in_words({"q": (4, 8), "k": (4, 8)})
    'k (4, 8), q (4, 8)'
    """
    names = sorted(shapes, key=natural)
    weights = [tuple(shapes[name]) for name in names if len(shapes[name]) > 1]
    sizes = [(w[1], w[0]) for w in weights]
    follows = all(
        b[1] == a[0] or (len(a) > 2 == len(b) and b[1] % a[0] == 0)  # behind a flatten
        for a, b in itertools.pairwise(weights)
    )
    if not weights or not follows or len(weights) + sum(len(shape) == 1 for shape in shapes.values()) != len(shapes):
        return listed([f"{name} {tuple(shapes[name])}" for name in names], 6) or "nothing"
    kernels = ["x".join(map(str, w[2:])) for w in weights if len(w) > 2]
    chain = "-".join(map(str, (sizes[0][0], *(out for _, out in sizes))))
    return f"{len(weights)} layer{'s' * (len(weights) > 1)} {chain}" + (
        f", kernels {', '.join(kernels)}" if kernels else ""
    )
