"""Constants that flow from one parameter to another: a bias that a later bias, or nothing, takes back.

A constant that is added to a value everywhere alike is carried through the linear operations that follow, until another
parameter that is added takes it over, or a softmax or a norm subtracts it. Where it meets anything else, it stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nfn_monomial.space.weight_space import WeightSpace
from nfn_monomial.trace.decomposed import is_linear
from nfn_monomial.trace.graph import Program, facts_of, operation

from .flow import Flow, Source, Tensors, norm_before
from .slopes import Slope, Slopes

_RTOL = 1e-9
_ATOL = 1e-12
_GATES = {"lstm": 1.0, "rnn_tanh": 1.0, "rnn_relu": 1.0, "gru": 2 / 3}  # the share of gates that add two biases


class Statistics(NamedTuple):
    """Names of the tensors of one batch norm, which returns ``gain (x - mean) / sqrt(variance + eps) + shift``."""

    gain: str
    shift: str
    mean: str
    variance: str
    eps: float

    def replaced(self, tensors: Tensors, mean: Tensor, variance: Tensor) -> dict[str, Tensor]:
        """Returns tensors of networks with these statistics in place of their own, and the same function."""
        gain, shift, center, spread = (tensors[name] for name in self[:4])
        taken = gain * ((variance + self.eps) / (spread + self.eps)).sqrt()
        shift = shift + taken * mean / (variance + self.eps).sqrt() - gain * center / (spread + self.eps).sqrt()
        return {**tensors, self.gain: taken, self.shift: shift, self.mean: mean, self.variance: variance}


def statistics_of(program: Program, space: WeightSpace) -> list[Statistics]:
    """Returns the statistics of all batch norms with gain and shift whose tensors nothing else reads."""
    names = list(program.parameters.values())
    norms = []
    for node in program.graph.nodes:
        if node.op == "call_function" and operation(node) == "batch_norm" and all(node.args[1:5]):
            four = [program.parameters.get(arg.name, "") for arg in node.args[1:5]]
            alone = all(names.count(name) == 1 for name in four) and all(len(arg.users) == 1 for arg in node.args[1:5])
            if alone and all(name in space.parameters for name in four) and not node.args[5]:
                gain, shift, mean, variance = four
                norms.append(Statistics(gain, shift, mean, variance, node.args[7]))
    return norms


class Constants:
    """All constants that parameters can give away, and where they go.

    Args:
        program: a network's computation.
        space: of its parameters.
        parts: sizes of the parts that parameters of one dimension are the concatenation of.

    Attributes:
        sources: what is given away, each by itself and all together.
        statistics: of batch norms, which become those of a fresh one.
        idle: names of parameters that do not matter once constants are given away.
    """

    def __init__(self, program: Program, space: WeightSpace, parts: Mapping[str, Sequence[int]]) -> None:
        self.program = program
        self.statistics = statistics_of(program, space)
        self.sources: list[Source] = []
        self.idle: set[str] = set()
        self._generating = self._parameters_that_generate()
        self._candidates = [*self._in_cells(), *self._added(parts)]
        self._live: set[Any] = set()  # nodes whose values change on the way

    def settled_at(self, slopes: Slopes) -> Iterator[Slope]:
        """Finds what is given away; hands on all points, the first time that they are looked at.

        At the first point candidates are taken one after the other, each if it survives beside those before it. What
        does not survive a later point is refused, which may make room for others: so all points are looked at again.
        """
        refused: set[Source] = set()
        for again in itertools.count():
            before = len(refused)
            for number, slope in enumerate(slopes.at()):
                if number:
                    refused |= {source for source in self.sources if not self._survives(source, slope)}
                else:
                    self.sources = []
                    for source in (source for source in self._candidates if source not in refused):
                        whole = source.stop is None
                        alike = (s for s in self.sources if s.parameter == source.parameter)
                        if not any(whole or s.stop is None for s in alike):
                            self.sources.append(source)
                            if not self._survives(source, slope):
                                self.sources.pop()
                if not again:
                    yield slope
            if len(refused) == before:
                return

    def find_idle(self, slopes: Slopes) -> None:
        """Finds parameters that do not matter once constants are given away: they give nothing away themselves."""
        idle = self._generating & {*slopes.space.parameters} - self.emptied()
        for slope in slopes.at(self.given_away) if idle else ():
            idle = {name for name in idle if slope.ignores(name)}
        self.idle = idle
        self.sources = [source for source in self.sources if source.parameter not in idle]

    def emptied(self) -> set[str]:
        """Returns the parameters that give all away that they hold, or are idle."""
        shapes = {name: t.shape for name, t in self.program.tensors.items()}
        counts = {name: sum(s.dimension(shapes[name]) for s in self.sources if s.parameter == name) for name in shapes}
        return {name for name, shape in shapes.items() if counts[name] == shape.numel()} | self.idle

    def leave_out_means(self, names: Set[str]) -> None:
        """Forgets the means that parameters give away, as a norm subtracts these anyhow."""
        self.sources = [s for s in self.sources if s.kind not in ("mean", "norm") or s.parameter not in names]

    def given_away(self, tensors: Tensors) -> dict[str, Tensor]:
        """Returns parameters of one network, of which every source and batch norm has given all that it can."""
        for norm in self.statistics:
            fresh = torch.zeros_like(tensors[norm.mean]), torch.ones_like(tensors[norm.variance])
            tensors = norm.replaced(tensors, *fresh)
        return self._moved(tensors, lambda source, now: source.part(now[source.parameter], now))

    def moved(self, tensors: Tensors, constants: Mapping[Source, Tensor]) -> dict[str, Tensor]:
        """Parameters of one network with these constants given away, and taken by others."""
        return self._moved(tensors, lambda source, _: constants[source])

    def _moved(self, tensors: Tensors, amount: Callable[[Source, Tensors], Tensor]) -> dict[str, Tensor]:
        # Matrices first: what they do to constants later is not what they did.
        ndim = {name: t.ndim for name, t in self.program.tensors.items()}
        matrices = {s for s in self.sources if s.kind == "norm" or (s.kind == "all" and ndim[s.parameter] > 1)}
        for first in (True, False):
            constants = {s: amount(s, tensors) for s in self.sources if (s in matrices) == first}
            changes = self._carried(tensors, constants, self._live)
            tensors = {n: t + changes[n] if n in changes else t for n, t in tensors.items()}
        return dict(tensors)

    def _carried(
        self, tensors: Tensors, constants: Mapping[Source, Tensor], live: set[Any] | None
    ) -> dict[str, Tensor]:
        """The changes of all parameters when sources give these constants away; see `Flow` for ``live``."""
        changes: dict[str, Tensor] = {}
        for source, x in constants.items():
            _add(changes, source.parameter, -x)
        through = {s.parameter: changes[s.parameter] for s in constants if s.taker is None}
        for source, x in constants.items():
            if source.taker is not None:
                _add(changes, source.taker, x)
        if through:
            flow = Flow(self.program, self.sources, tensors, through, live)
            self._live |= flow.live
            for name, change in flow.taken.items():
                _add(changes, name, change)
        return changes

    def _survives(self, source: Source, slope: Slope) -> bool:
        """True if a source's constants find takers, and the function stays as it is, to first order."""
        tensors, gradients = slope.tensors, slope.gradients
        try:
            changes = self._carried(tensors, {source: source.part(tensors[source.parameter], tensors)}, None)
        except Exception:  # of any kind: constants are fed to operations of all kinds
            return False
        if not set(changes) <= set(gradients):
            return False
        terms = [gradients[name] * change for name, change in changes.items()]
        moved = sum(float(change.norm()) for change in changes.values())
        rounding = _RTOL * sum(float(term.abs().sum()) for term in terms) + _ATOL * slope.length * moved
        return abs(sum(float(term.sum()) for term in terms)) <= rounding

    def _added(self, parts: Mapping[str, Sequence[int]]) -> Iterator[Source]:
        """Candidates that are added somewhere, last first: parameters, their parts, what their rows have in common."""
        nodes, tensors = list(self.program.graph.nodes), self.program.tensors
        order = {node: n for n, node in enumerate(nodes)}
        users: dict[str, list[Any]] = {}
        for node in nodes:
            name = self.program.parameters.get(node.name, "") if node.op == "placeholder" else ""
            if name in tensors and node.users:
                users.setdefault(name, []).extend(node.users)
        for name in sorted(users, key=lambda n: -min(order[user] for user in users[n])):
            if tensors[name].ndim == 1:
                yield Source(name)
                ends = list(itertools.accumulate(parts.get(name, ()), initial=0))
                if len(ends) > 2:
                    yield from (Source(name, "all", a, b) for a, b in itertools.pairwise(ends))
                yield Source(name, "mean")
            elif tensors[name].ndim > 1 and _are_added(users[name]):
                yield Source(name, "rows")
            elif name in self._generating:
                yield Source(name)
            elif tensors[name].ndim == 2 and (gain := self._gain_before(users[name])):
                yield Source(name, "norm", gain=gain)

    def _parameters_that_generate(self) -> set[str]:
        """Returns parameters that no operation reads beside a value that depends on inputs, as of generated weights."""
        names, moving = set(self.program.parameters.values()), set[Any]()
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                if node.name not in self.program.parameters and node.name not in self.program.constants:
                    moving.add(node)
            elif node.op == "output" or any(arg in moving for arg in node.all_input_nodes):
                moving.add(node)
                names -= {self.program.parameters.get(arg.name, "") for arg in node.all_input_nodes}
        return names

    def _gain_before(self, users: Sequence[Any]) -> str | None:
        """The gain of the norm whose output a matrix reads, if it reads nothing else."""
        norm = norm_before(users[0]) if len(users) == 1 and operation(users[0]) == "linear" else None
        return None if norm is None else self.program.parameters.get(norm.args[2].name)

    def _in_cells(self) -> Iterator[Source]:
        """Candidates in recurrent cells: the first of the two biases that every gate adds."""
        for node in self.program.graph.nodes:
            share = _GATES.get(operation(node)) if node.op == "call_function" else None
            if share is not None and node.args[3]:
                names = [self.program.parameters.get(weight.name) for weight in node.args[2]]
                for first, second in zip(names[2::4], names[3::4], strict=True):
                    if first and second and first != second:
                        yield Source(first, stop=round(self.program.tensors[first].shape[0] * share), taker=second)


def _are_added(users: Sequence[Any]) -> bool:
    """Returns True if a parameter's rows are looked up, or it is added, and nothing is multiplied by it."""

    def adds(user: Any) -> bool:
        return operation(user) in ("add", "cat") or facts_of(user).family == "look-up"

    while users and not any(map(adds, users)) and all(map(is_linear, users)):
        users = [user for move in users for user in move.users]
    return bool(users) and all(map(adds, users))


def _add(changes: dict[str, Tensor], name: str, change: Tensor) -> None:
    changes[name] = changes[name] + change if name in changes else change
