"""One way of constants through a program: what changes, value by value, until parameters take it or nothing is left."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from nfn_monomial.trace.decomposed import is_linear
from nfn_monomial.trace.graph import Program, operation
from nfn_monomial.trace.operators.reduce import SOFTMAX

from .sources import Source, Tensors

_RTOL = 1e-9
_ATOL = 1e-12
_MASKED = -1e4
LOOKS_UP = ("embedding", "index", "index_select")
_CONVOLUTIONS = {"conv1d", "conv2d", "conv3d", "convolution"}
_BIAS = {"linear": 2, "addmm": 0, "layer_norm": 3}  # which argument is added last


class BlockedError(Exception):
    """A constant meets an operation that does not carry it on."""


class Chain(NamedTuple):
    """How a value comes from one parameter: nothing but moves of its entries, and nothing else reads it.

    Attributes:
        parameter: its name.
        moves: the nodes that move them, in order.
        added: whether the parameter was added to something, in the last operation in front of the moves.
    """

    parameter: str
    moves: tuple[Any, ...]
    added: bool


class Flow:
    """Changes of a program's values when parameters give constants away.

    Args:
        program: a network's computation.
        sources: all that parameters give away, here or at other times.
        tensors: parameters of one network.
        given: parameter -> its change.
        live: nodes whose values change; None to find out, by a look at values.

    Attributes:
        taken: parameter -> how it changes to take constants over.
        live: nodes whose values have changed.

    Raises:
        BlockedError: if a constant meets what does not carry it on.
    """

    def __init__(
        self,
        program: Program,
        sources: Sequence[Source],
        tensors: Tensors,
        given: Tensors,
        live: set[Any] | None = None,
    ) -> None:
        self.program, self.tensors, self._looks = program, tensors, live is None
        self.live: set[Any] = set() if live is None else live
        self.taken: dict[str, Tensor] = {}
        self._gives: dict[str, list[Source]] = {}
        for source in sources:
            if source.taker is None:
                self._gives.setdefault(source.parameter, []).append(source)
        self._values: dict[Any, Any] = {}
        self._changes: dict[Any, Any] = {}
        for node in program.graph.nodes:
            if node.op == "placeholder":
                name = program.parameters.get(node.name, "")
                if name in given:
                    self._changes[node] = given[name]
            elif any(arg in self._changes for arg in node.all_input_nodes):
                change = self._step(node)
                if change is not None and (not isinstance(change, Tensor) or self._is_live(node, change)):
                    self._changes[node] = change

    def _is_live(self, node: Any, change: Tensor) -> bool:
        if self._looks and bool(change.any()):
            self.live.add(node)
        return node in self.live

    def _value(self, found: Any) -> Any:
        """What is made of parameters and constants alone; `BlockedError` for what depends on inputs."""
        if isinstance(found, list | tuple):
            return type(found)(map(self._value, found))
        if not hasattr(found, "op"):
            return found
        if found not in self._values:
            if found.name in self.program.parameters:
                self._values[found] = self.tensors[self.program.parameters[found.name]]
            elif found.name in self.program.constants:
                constant = self.program.constants[found.name]
                self._values[found] = constant.double() if constant.is_floating_point() else constant
            elif found.op == "call_function":
                kwargs = {k: self._value(v) for k, v in found.kwargs.items()}
                self._values[found] = found.target(*self._value(found.args), **kwargs)
            else:
                raise BlockedError
        return self._values[found]

    def _of(self, found: Any) -> Any:
        """The change of an argument, or None."""
        return self._changes.get(found) if hasattr(found, "op") else None

    def _none(self, *found: Any) -> None:
        """Raise if any of these changes."""
        if any(self._of(f) is not None for f in found):
            raise BlockedError

    def _constant_along(self, change: Tensor, *dims: int) -> None:
        """Raise unless a change is the same along dimensions; where that is not looked at, it was so before."""
        for dim in dims:
            first = change.narrow(dim, 0, 1).expand_as(change)
            if self._looks and not torch.allclose(change, first, rtol=_RTOL, atol=_ATOL):
                raise BlockedError

    def _step(self, node: Any) -> Any:
        """The change of a node's value; None where nothing is left of it."""
        name, args = operation(node) if node.op == "call_function" else "", list(node.args)
        if node.target is operator.getitem:
            return self._of(args[0])[args[1]]
        x = self._of(args[0]) if args else None
        if x is not None and is_linear(node):
            return _run(node, x, self._arguments(node, x))
        if name in ("add", "sub") and not node.kwargs:
            return self._sum(node, args[0], args[1], -1 if name == "sub" else 1)
        if name in ("mul", "div"):
            return self._scaled(node, name)
        if name == "cat":
            like = x if x is not None else next(self._of(part) for part in args[0] if self._of(part) is not None)
            parts = [like.new_zeros(p.meta["val"].shape) if self._of(p) is None else self._of(p) for p in args[0]]
            return torch.cat(parts, *args[1:])
        if name == "masked_fill" and x is not None and args[2] <= _MASKED:  # of a softmax: it gives no weight to these
            return x
        if name in SOFTMAX and x is not None:
            self._constant_along(x, args[1])
            return None
        if name in ("matmul", "bmm", "mm", "mv", "dot"):
            return self._product(node, *_letters([arg.meta["val"].ndim for arg in args]), args)
        if name == "einsum" and args[0].count(",") == 1 and "..." not in args[0]:
            both, out = args[0].replace(" ", "").split("->")
            return self._product(node, both.split(","), out, args[1])
        if name == "scaled_dot_product_attention":
            return self._attended(node)
        args += [None] * 4
        if name == "layer_norm":
            if x is not None:
                self._constant_along(x, *range(-len(args[1]), 0))
            self._none(args[2])
            return self._biased(node, None, args[3], -1)
        if name == "batch_norm":
            self._none(args[1], args[3], args[4])
            weight, mean, var = self._value([args[1], args[3], args[4]])
            rest = (weight, None, torch.zeros_like(mean), var, *node.args[5:])
            return self._biased(node, None if x is None else node.target(x, *rest), args[2], 1)
        if name == "linear" and (matrix := self._of(args[1])) is not None:
            try:
                inputs, weight = self._value([args[0], args[1]])
            except BlockedError:
                return self._biased(node, self._unseen(node, matrix), args[2], -1)
            changed = node.target(inputs if x is None else inputs + x, weight + matrix)
            return self._biased(node, changed - node.target(inputs, weight), args[2], -1)
        if name == "linear" or name in _CONVOLUTIONS:
            self._none(args[1])
            if name != "linear" and x is not None and args[4] not in (None, 0, [0], [0, 0], [0, 0, 0]):
                raise BlockedError  # what is padded with zeros is not the same everywhere
            out = None if x is None else node.target(x, self._value(args[1]), None, *node.args[3:], **node.kwargs)
            return self._biased(node, out, args[2], -1 if name == "linear" else 1)
        if name == "addmm":
            self._none(args[2])
            first = self._of(args[1])
            return self._biased(node, None if first is None else first @ self._value(args[2]), args[0], -1)
        raise BlockedError

    def _arguments(self, node: Any, x: Tensor) -> Any:
        """All arguments but the first. Where inputs choose entries of it, these are alike, and any will do."""
        name, args = operation(node), list(node.args[1:])
        self._none(*(arg for arg in node.all_input_nodes if arg is not node.args[0]))
        try:
            return self._value(args)
        except BlockedError:
            if name not in LOOKS_UP:
                raise
        at = args[0] if name == "index_select" else 0
        places = args[0] if name == "index" else [None] * at + [args[-1 if name == "index_select" else 0]]
        self._constant_along(x, *(n for n, index in enumerate(places) if index is not None))
        return fx.map_arg(args, lambda index: torch.zeros(index.meta["val"].shape, dtype=torch.int64))

    def _scaled(self, node: Any, name: str) -> Tensor:
        """Of a product with a number, or with what is made of parameters and constants."""
        a, b = node.args[:2]
        shape = node.meta["val"].shape
        if self._of(b) is None:
            return node.target(self._of(a), self._value(b)).expand(shape)  # type: ignore[no-any-return]
        self._none(a)
        if name == "div":
            raise BlockedError
        return node.target(self._value(a), self._of(b)).expand(shape)  # type: ignore[no-any-return]

    def _product(self, node: Any, terms: Sequence[str], out: str, factors: Sequence[Any]) -> Tensor:
        """Of a sum of products of two factors: with a parameter, or with what a softmax weighs.

        Args:
            terms: the letters of the factors' dimensions.
            out: of the result's.
        """
        shape = node.meta["val"].shape
        changes = [*map(self._of, factors)]
        if all(change is not None for change in changes):
            before = self._value(list(factors))
            after = [value + change for value, change in zip(before, changes, strict=True)]
            first, second = (torch.einsum(f"{terms[0]},{terms[1]}->{out}", *pair) for pair in (after, before))
            return first - second
        own = 0 if changes[1] is None else 1
        x, (mine, other) = self._of(factors[own]), (terms[own], terms[1 - own])
        summed = [letter for letter in mine if letter not in out]
        if summed == [other[-1]] and _sums_to_one(factors[1 - own]):
            self._constant_along(x, mine.index(summed[0]))
            found, left = x.select(mine.index(summed[0]), 0), mine.replace(summed[0], "")
        else:
            try:
                return torch.einsum(f"{mine},{other}->{out}", x, self._value(factors[1 - own]))
            except BlockedError:  # not known, but alike along what it does not have: any numbers stand for it
                self._constant_along(x, *(mine.index(letter) for letter in mine if letter not in other))
            left = "".join(letter for letter in out if letter in other)
            sizes = [shape[out.index(letter)] for letter in left]
            found = torch.arange(math.prod(sizes), dtype=x.dtype).cos().reshape(sizes)
        order = [left.index(letter) for letter in out if letter in left]
        ordered: Tensor = found.permute(order)
        return ordered[tuple(slice(None) if letter in left else None for letter in out)].expand(shape)

    def _attended(self, node: Any) -> Tensor | None:
        """Of attention: its weights sum to 1, and do not see what all keys share."""
        query, key, value = node.args[:3]
        shape = node.meta["val"].shape
        self._none(query)
        if (keys := self._of(key)) is not None:
            self._constant_along(keys, -2)
        if (values := self._of(value)) is None:
            return None
        self._constant_along(values, -2)
        first = values.narrow(-2, 0, 1)
        if node.kwargs.get("enable_gqa"):
            first = first.repeat_interleave(shape[1] // first.shape[1], 1)
        return first.expand(*first.shape[:-2], *shape[-2:])  # type: ignore[no-any-return]

    def _unseen(self, node: Any, matrix: Tensor) -> Tensor:
        """Of a product with a matrix that changes by what sees nothing of a norm but its bias."""
        norm = norm_before(node)
        if norm is None:
            raise BlockedError
        gain, bias = self._value(norm.args[2:4])
        self._constant_along(matrix * gain, -1)
        return (matrix @ bias).expand(node.meta["val"].shape)  # type: ignore[no-any-return]

    def _biased(self, node: Any, out: Tensor | None, bias: Any, dim: int) -> Tensor | None:
        """Of what comes out of an operation, which adds a bias along one dimension: this takes what it can."""
        if not hasattr(bias, "op"):
            return out
        shape = node.meta["val"].shape
        if out is not None and (chain := self._chain(bias)) is not None:
            rows = out.movedim(dim, 0).reshape(shape[dim], -1)
            self._constant_along(rows, 1)
            left = self._kept(chain.parameter, self._moved_back(chain, rows[:, 0]))
            out = None if left is None else _along(self._moved(chain, left), shape, dim)
        own = self._of(bias)
        if own is None:
            return out
        own = _along(own, shape, dim)
        return own if out is None else out + own

    def _sum(self, node: Any, a: Any, b: Any, sign: int) -> Tensor | None:
        """Of a sum: a parameter that is one of the two, or was added to one last, takes what it can."""
        shape, signed = node.meta["val"].shape, ((a, 1), (b, sign))
        terms = [factor * self._of(term).expand(shape) for term, factor in signed if self._of(term) is not None]
        total: Tensor = sum(terms[1:], terms[0])
        for term, factor in signed:
            chain = self._chain(term)
            if chain is not None and not any(source.whole for source in self._gives.get(chain.parameter, ())):
                return self._taken_from(total, chain, factor)
        return total

    def _taken_from(self, total: Tensor, chain: Chain, factor: int) -> Tensor | None:
        """What a parameter leaves of a change: of one that is alike but along the last dimension, or of its shape."""
        like, shape = self.tensors[chain.parameter], total.shape
        if chain.moves or chain.added or like.ndim == 1:
            self._constant_along(total, *range(total.ndim - 1))
            last = total.reshape(-1, shape[-1])[0]
            if like.shape[-1] != len(last):
                raise BlockedError
            left = self._kept(chain.parameter, (factor * last).expand_as(like))
            return None if left is None else (factor * left.reshape(-1, shape[-1])[0]).expand(shape)
        while total.ndim > like.ndim:
            self._constant_along(total, 0)
            total = total[0]
        for dim, size in enumerate(like.shape):
            if size < total.shape[dim]:
                self._constant_along(total, dim)
                total = total.narrow(dim, 0, 1)
        left = self._kept(chain.parameter, factor * total)
        return None if left is None else (factor * left).expand(shape)

    def _kept(self, name: str, change: Tensor) -> Tensor | None:
        """What is left of a change of values that a parameter is added to: what this gives away itself."""
        gives = self._gives.get(name, [])
        passed = [source.part(change, self.tensors) for source in gives]
        left = sum(passed[1:], passed[0]) if passed else None
        if not any(source.whole for source in gives):
            taken = -change if left is None else left - change
            if taken.shape != self.tensors[name].shape:
                raise BlockedError
            self.taken[name] = self.taken[name] + taken if name in self.taken else taken
        return left

    def _chain(self, found: Any) -> Chain | None:
        """How a value comes from one parameter, if it does."""
        moves: list[Any] = []
        added = False
        while hasattr(found, "op") and found.op == "call_function":
            name = operation(found)
            if len(found.users) != 1 and isinstance(found.meta["val"], Tensor):
                return None
            if name in _BIAS and not added:
                found, moves, added = dict(enumerate(found.args)).get(_BIAS[name]), [], True
            elif is_linear(found):
                moves.insert(0, found)
                found = found.args[0]
            else:
                return None
        name = self.program.parameters.get(found.name, "") if hasattr(found, "op") else ""
        if list(self.program.parameters.values()).count(name) != 1 or len(found.users) != 1:
            return None
        return Chain(name, tuple(moves), added)

    def _moved(self, chain: Chain, x: Tensor) -> Any:
        """What moves make of a tensor in the place of their parameter."""
        for node in chain.moves:
            x = _run(node, x, self._value(list(node.args[1:])))
        return x

    def _moved_back(self, chain: Chain, x: Tensor) -> Tensor:
        """A tensor that moves lead to, in the place of their parameter; 0 where they cut it."""
        if not chain.moves:
            return x
        like = torch.zeros_like(self.tensors[chain.parameter])
        return torch.func.vjp(lambda own: self._moved(chain, own), like)[1](x)[0]  # type: ignore[no-any-return]


def _run(node: Any, x: Tensor, rest: Sequence[Any]) -> Any:
    """An operation on another tensor, which need not lie in memory as the program's own does: some views ask for it."""
    return node.target(x.contiguous() if operation(node) == "view" else x, *rest, **node.kwargs)


def _letters(dims: Sequence[int]) -> tuple[list[str], str]:
    """The letters of a matrix product's factors of so many dimensions, and of what comes out."""
    before = ["abcdefgh"[8 - max(n - 2, 0) :] for n in dims]
    row, column = "x" * (dims[0] > 1), "z" * (dims[1] > 1)
    return [before[0] + row + "y", before[1] + "y" + column], max(before, key=len) + row + column


def _sums_to_one(found: Any) -> bool:
    """Whether the rows of a value do, as a softmax's."""
    while _keeps_rows(found):
        found = found.args[0]
    if not hasattr(found, "op") or operation(found) not in ("softmax", "_softmax"):
        return False
    return found.args[1] in (-1, len(found.meta["val"].shape) - 1)


def _keeps_rows(found: Any) -> bool:
    """Whether a value may have the rows of the one that it is made of: what is wrong is seen by a gradient later."""
    if not hasattr(found, "op") or found.op != "call_function" or not is_linear(found):
        return False
    sizes = [node.meta["val"].shape[-1:] for node in (found, found.args[0]) if isinstance(node.meta["val"], Tensor)]
    return len(sizes) == 2 and sizes[0] == sizes[1]


def norm_before(node: Any) -> Any:
    """The norm with gain and bias whose output a linear operation reads, through moves that keep its last dimension."""
    found = node.args[0]
    while _keeps_rows(found):
        found = found.args[0]
    if not hasattr(found, "op") or operation(found) != "layer_norm":
        return None
    return found if len(found.args) > 3 and len(found.args[1]) == 1 and None not in found.args[2:4] else None


def _along(x: Tensor, shape: Sequence[int], dim: int) -> Tensor:
    """A vector along one dimension of a shape."""
    return x.reshape(-1, *[1] * (len(shape) - 1 - dim % len(shape))).expand(shape)
