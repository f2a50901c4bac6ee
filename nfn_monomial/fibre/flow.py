"""Constants on one way through a program: changes, value by value, until parameters take them or nothing is left."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from nfn_monomial.trace.decomposed import is_linear
from nfn_monomial.trace.graph import Program, facts_of, operation
from nfn_monomial.trace.operators.linear import letters_of_product

Tensors = Mapping[str, Tensor]

_RTOL = 1e-9
_ATOL = 1e-12
_MASKED = -1e4


class BlockedError(Exception):
    """A constant meets an operation that does not carry it on."""


class Source(NamedTuple):
    """Constants that a parameter gives away.

    Attributes:
        parameter: its name.
        kind: ``"all"`` of its entries, the part that its ``"rows"`` have in common, the ``"mean"`` of them; or, for a
            matrix that reads a norm's output, whose mean is 0 but for gain and bias, the part that sees nothing of that
            ``"norm"`` but its bias.
        start, stop: range of its entries; all, where ``stop`` is None.
        taker: the parameter that takes them where an operation adds two of its own; carried through the program else.
        gain: of the norm.
    """

    parameter: str
    kind: str = "all"
    start: int = 0
    stop: int | None = None
    taker: str | None = None
    gain: str = ""

    @property
    def whole(self) -> bool:
        """True if the parameter gives away all that it holds."""
        return self.kind == "all" and self.stop is None

    def part(self, x: Tensor, tensors: Tensors) -> Tensor:
        """Returns the part of this kind of a tensor of the parameter's shape, among these parameters."""
        if self.kind == "norm":
            gain = tensors[self.gain]
            return (x * gain).mean(-1, keepdim=True) / gain
        if self.kind == "rows":
            return x.mean(tuple(range(x.ndim - 1)), keepdim=True).expand_as(x)
        if self.kind == "mean":
            return x.mean().expand_as(x)
        if self.stop is None:
            return x
        places = torch.arange(x.shape[0])
        return x * ((places >= self.start) & (places < self.stop)).to(x.dtype)

    def dimension(self, shape: Sequence[int]) -> int:
        """Returns how many numbers they are, for a parameter of this shape."""
        if self.kind == "all":
            return math.prod(shape) if self.stop is None else self.stop - self.start
        return {"rows": shape[-1], "norm": shape[0], "mean": 1}[self.kind]


class Chain(NamedTuple):
    """The way of a value from one parameter: nothing but moves of its entries, and nothing else reads it.

    Attributes:
        parameter: its name.
        moves: the nodes that move them, in order.
        added: whether the parameter was added to something, in the last operation before the moves.
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
        changes: parameter -> its change.
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
        changes: Tensors,
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
                if name in changes:
                    self._changes[node] = changes[name]
            elif any(arg in self._changes for arg in node.all_input_nodes):
                change = self._step(node)
                if change is not None and (not isinstance(change, Tensor) or self._is_live(node, change)):
                    self._changes[node] = change

    def _is_live(self, node: Any, change: Tensor) -> bool:
        if self._looks and bool(change.any()):
            self.live.add(node)
        return node in self.live

    def _value(self, argument: Any) -> Any:
        """Returns the value of an argument; `BlockedError` for one that depends on inputs."""
        if isinstance(argument, list | tuple):
            return type(argument)(map(self._value, argument))
        if not isinstance(argument, fx.Node):
            return argument
        if argument not in self._values:
            if argument.name in self.program.parameters:
                self._values[argument] = self.tensors[self.program.parameters[argument.name]]
            elif argument.name in self.program.constants:
                constant = self.program.constants[argument.name]
                self._values[argument] = constant.double() if constant.is_floating_point() else constant
            elif argument.op == "call_function":
                kwargs = {k: self._value(v) for k, v in argument.kwargs.items()}
                self._values[argument] = argument.target(*self._value(argument.args), **kwargs)  # type: ignore[operator]
            else:
                raise BlockedError
        return self._values[argument]

    def _of(self, argument: Any) -> Any:
        """Returns the change of an argument, or None."""
        return self._changes.get(argument) if isinstance(argument, fx.Node) else None

    def _none(self, *arguments: Any) -> None:
        """Raises if any of these arguments changes."""
        if any(self._of(argument) is not None for argument in arguments):
            raise BlockedError

    def _constant_along(self, change: Tensor, *dims: int) -> None:
        """Raises unless a change is the same along dimensions; a change that is not looked at was so before."""
        for dim in dims:
            first = change.narrow(dim, 0, 1).expand_as(change)
            if self._looks and not torch.allclose(change, first, rtol=_RTOL, atol=_ATOL):
                raise BlockedError

    def _step(self, node: Any) -> Any:
        """Returns the change of a node's value; None where nothing is left of it."""
        name, args = operation(node) if node.op == "call_function" else "", list(node.args)
        facts = facts_of(node)
        if node.target is operator.getitem:
            return self._of(args[0])[args[1]]
        x = self._of(args[0]) if args else None
        if x is not None and is_linear(node):
            return _run(node, x, self._arguments(node, x))
        if facts.family == "sum" and not node.kwargs:
            return self._sum(node, args[0], args[1], -1 if name == "sub" else 1)
        if facts.family == "product":
            return self._scaled(node, name)
        if name == "cat":
            like = x if x is not None else next(self._of(part) for part in args[0] if self._of(part) is not None)
            parts = [like.new_zeros(p.meta["val"].shape) if self._of(p) is None else self._of(p) for p in args[0]]
            return torch.cat(parts, *args[1:])
        if name == "masked_fill" and x is not None and args[2] <= _MASKED:  # of a softmax: it gives no weight to these
            return x
        if facts.family == "softmax" and x is not None:
            self._constant_along(x, args[1])
            return None
        if facts.family == "matrix product":
            *letters, product = letters_of_product(*(arg.meta["val"].ndim for arg in args))
            return self._product(node, letters, product, args)
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
            return self._biased(node, None)
        if name == "batch_norm":
            self._none(args[1], args[3], args[4])
            weight, mean, var = self._value([args[1], args[3], args[4]])
            rest = (weight, None, torch.zeros_like(mean), var, *node.args[5:])
            return self._biased(node, None if x is None else node.target(x, *rest))
        if name == "linear" and (matrix := self._of(args[1])) is not None:
            try:
                inputs, weight = self._value([args[0], args[1]])
            except BlockedError:
                return self._biased(node, self._unseen(node, matrix))
            changed = node.target(inputs if x is None else inputs + x, weight + matrix)
            return self._biased(node, changed - node.target(inputs, weight))
        if name == "linear" or facts.family == "convolution":
            self._none(args[1])
            if name != "linear" and x is not None and args[4] not in (None, 0, [0], [0, 0], [0, 0, 0]):
                raise BlockedError  # what is padded with zeros is not the same everywhere
            out = None if x is None else node.target(x, self._value(args[1]), None, *node.args[3:], **node.kwargs)
            return self._biased(node, out)
        if name == "addmm":
            self._none(args[2])
            first = self._of(args[1])
            return self._biased(node, None if first is None else first @ self._value(args[2]))
        raise BlockedError

    def _arguments(self, node: Any, x: Tensor) -> Any:
        """Returns all arguments but the first. Where inputs choose entries of it, these are alike, and any will do."""
        name, args = operation(node), list(node.args[1:])
        self._none(*(arg for arg in node.all_input_nodes if arg is not node.args[0]))
        try:
            return self._value(args)
        except BlockedError:
            if facts_of(node).family != "look-up":
                raise
        at = args[0] if name == "index_select" else 0
        places = args[0] if name == "index" else [None] * at + [args[-1 if name == "index_select" else 0]]
        self._constant_along(x, *(n for n, index in enumerate(places) if index is not None))
        return fx.map_arg(args, lambda index: torch.zeros(index.meta["val"].shape, dtype=torch.int64))

    def _scaled(self, node: Any, name: str) -> Tensor:
        """Returns the change of a product with a number, or with what is made of parameters and constants."""
        a, b = node.args[:2]
        shape = node.meta["val"].shape
        if self._of(b) is None:
            return node.target(self._of(a), self._value(b)).expand(shape)  # type: ignore[no-any-return]
        self._none(a)
        if name == "div":
            raise BlockedError
        return node.target(self._value(a), self._of(b)).expand(shape)  # type: ignore[no-any-return]

    def _product(self, node: Any, terms: Sequence[str], out: str, factors: Sequence[Any]) -> Tensor:
        """Returns the change of a sum of products of two factors: with a parameter, or with what a softmax weighs.

        Args:
            node: computes it.
            terms: the letters of the factors' dimensions.
            out: the letters of its own dimensions.
            factors: the two.
        """
        shape = node.meta["val"].shape
        changes = [*map(self._of, factors)]
        if all(change is not None for change in changes):
            before = self._value(list(factors))
            after = [value + change for value, change in zip(before, changes, strict=True)]
            first, second = (torch.einsum(f"{terms[0]},{terms[1]}->{out}", *pair) for pair in (after, before))
            return first - second
        changing = 0 if changes[1] is None else 1
        x, (mine, other) = self._of(factors[changing]), (terms[changing], terms[1 - changing])
        summed = [letter for letter in mine if letter not in out]
        if summed == [other[-1]] and _sums_to_one(factors[1 - changing]):
            self._constant_along(x, mine.index(summed[0]))
            change, left = x.select(mine.index(summed[0]), 0), mine.replace(summed[0], "")
        else:
            try:
                return torch.einsum(f"{mine},{other}->{out}", x, self._value(factors[1 - changing]))
            except BlockedError:  # not known, but alike along what it does not have: any numbers stand for it
                self._constant_along(x, *(mine.index(letter) for letter in mine if letter not in other))
            left = "".join(letter for letter in out if letter in other)
            sizes = [shape[out.index(letter)] for letter in left]
            change = torch.arange(math.prod(sizes), dtype=x.dtype).cos().reshape(sizes)
        order = [left.index(letter) for letter in out if letter in left]
        ordered: Tensor = change.permute(order)
        return ordered[tuple(slice(None) if letter in left else None for letter in out)].expand(shape)

    def _attended(self, node: Any) -> Tensor | None:
        """Returns the change of attention: its weights sum to 1, and do not see what all keys share."""
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
        """Returns the change of a product with a matrix whose change sees nothing of a norm but its bias."""
        norm = norm_before(node)
        if norm is None:
            raise BlockedError
        gain, bias = self._value(norm.args[2:4])
        self._constant_along(matrix * gain, -1)
        return (matrix @ bias).expand(node.meta["val"].shape)  # type: ignore[no-any-return]

    def _biased(self, node: Any, out: Tensor | None) -> Tensor | None:
        """Returns the change of an operation's output after its bias, which takes what it can of it."""
        argument, dim = facts_of(node).bias or (0, 0)
        bias = node.args[argument] if len(node.args) > argument else None
        if not isinstance(bias, fx.Node):
            return out
        shape = node.meta["val"].shape
        if out is not None and (chain := self._chain(bias)) is not None:
            rows = out.movedim(dim, 0).reshape(shape[dim], -1)
            self._constant_along(rows, 1)
            left = self._kept(chain.parameter, self._moved_back(chain, rows[:, 0]))
            out = None if left is None else _along(self._moved(chain, left), shape, dim)
        if (change := self._of(bias)) is None:
            return out
        change = _along(change, shape, dim)
        return change if out is None else out + change

    def _sum(self, node: Any, a: Any, b: Any, sign: int) -> Tensor | None:
        """Returns the change of a sum: a parameter that is a term, or was added to one last, takes what it can."""
        shape, signed = node.meta["val"].shape, ((a, 1), (b, sign))
        terms = [factor * self._of(term).expand(shape) for term, factor in signed if self._of(term) is not None]
        total: Tensor = sum(terms[1:], terms[0])
        for term, factor in signed:
            chain = self._chain(term)
            if chain is not None and not any(source.whole for source in self._gives.get(chain.parameter, ())):
                return self._taken_from(total, chain, factor)
        return total

    def _taken_from(self, total: Tensor, chain: Chain, factor: int) -> Tensor | None:
        """Returns what a parameter leaves of a change that is alike but along the last dimension, or has its shape."""
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
        """Returns what is left of a change that a parameter takes: the part that this gives away itself."""
        gives = self._gives.get(name, [])
        passed = [source.part(change, self.tensors) for source in gives]
        left = sum(passed[1:], passed[0]) if passed else None
        if not any(source.whole for source in gives):
            taken = -change if left is None else left - change
            if taken.shape != self.tensors[name].shape:
                raise BlockedError
            self.taken[name] = self.taken[name] + taken if name in self.taken else taken
        return left

    def _chain(self, value: Any) -> Chain | None:
        """Returns the way of a value from one parameter, if there is one."""
        moves: list[Any] = []
        added = False
        while isinstance(value, fx.Node) and value.op == "call_function":
            if len(value.users) != 1 and isinstance(value.meta["val"], Tensor):
                return None
            argument, dim = facts_of(value).bias or (0, 0)
            if dim == -1 and not added:
                value, moves, added = value.args[argument] if len(value.args) > argument else None, [], True
            elif is_linear(value):
                moves.insert(0, value)
                value = value.args[0]
            else:
                return None
        name = self.program.parameters.get(value.name, "") if isinstance(value, fx.Node) else ""
        if list(self.program.parameters.values()).count(name) != 1 or len(value.users) != 1:
            return None
        return Chain(name, tuple(moves), added)

    def _moved(self, chain: Chain, x: Tensor) -> Any:
        """Applies moves to a tensor in the place of their parameter."""
        for node in chain.moves:
            x = _run(node, x, self._value(list(node.args[1:])))
        return x

    def _moved_back(self, chain: Chain, x: Tensor) -> Tensor:
        """Returns a tensor that moves lead to, in the place of their parameter; 0 where they cut it."""
        if not chain.moves:
            return x
        like = torch.zeros_like(self.tensors[chain.parameter])
        return torch.func.vjp(lambda tensor: self._moved(chain, tensor), like)[1](x)[0]  # type: ignore[no-any-return]


def _run(node: Any, x: Tensor, rest: Sequence[Any]) -> Any:
    """Runs an operation on another tensor, which a view may need to be contiguous."""
    return node.target(x.contiguous() if operation(node) == "view" else x, *rest, **node.kwargs)


def _sums_to_one(value: Any) -> bool:
    """Returns whether the rows of a value sum to one, as a softmax's do."""
    while _keeps_rows(value):
        value = value.args[0]
    if not isinstance(value, fx.Node) or operation(value) not in ("softmax", "_softmax"):
        return False
    return value.args[1] in (-1, len(value.meta["val"].shape) - 1)


def _keeps_rows(value: Any) -> bool:
    """Returns whether a value may have the rows of the one it is made of: a gradient sees later if it has not."""
    if not isinstance(value, fx.Node) or value.op != "call_function" or not is_linear(value):
        return False
    sizes = [node.meta["val"].shape[-1:] for node in (value, value.args[0]) if isinstance(node.meta["val"], Tensor)]  # type: ignore[union-attr]
    return len(sizes) == 2 and sizes[0] == sizes[1]


def norm_before(node: Any) -> Any:
    """Returns the norm with gain and bias whose output a linear operation reads, through moves that keep its rows."""
    value = node.args[0]
    while _keeps_rows(value):
        value = value.args[0]
    if not isinstance(value, fx.Node) or operation(value) != "layer_norm":
        return None
    args: Any = value.args
    return value if len(args) > 3 and len(args[1]) == 1 and None not in args[2:4] else None


def _along(x: Tensor, shape: Sequence[int], dim: int) -> Tensor:
    """Returns a vector along one dimension of a shape."""
    return x.reshape(-1, *[1] * (len(shape) - 1 - dim % len(shape))).expand(shape)
