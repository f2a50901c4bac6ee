"""Rules of recurrent layers: one step written out, and a second one that must not change the state's forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from nfn_monomial.trace.algebra.run import Run
from nfn_monomial.trace.algebra.values import UNIT, Bundle, Value

from .linear import linear
from .table import operator

State: TypeAlias = tuple[Value, ...]
Weights: TypeAlias = Sequence[Value]
Cell: TypeAlias = Callable[[Run, Value, State, Weights], State]


def _gates(run: Run, x: Value, weight: Value, bias: Value | None, count: int) -> list[Value]:
    """``W x + b`` for each of the blocks of rows that belong to gates."""
    size = weight.shape[0] // count
    blocks = [(n * size, (n + 1) * size) for n in range(count)]
    return [
        linear(run, x, run.narrowed(weight, 0, *block), None if bias is None else run.narrowed(bias, 0, *block))
        for block in blocks
    ]


def _split(weights: Weights) -> tuple[Value, Value, Value | None, Value | None, Value | None]:
    """Weights of inputs and state, biases, and the projection of the state."""
    inputs, state, *rest = weights
    biases = rest[:2] if len(rest) >= 2 else (None, None)
    return inputs, state, biases[0], biases[1], rest[-1] if len(rest) % 2 else None


def _sums(run: Run, x: Value, h: Value, weights: Weights, count: int) -> list[Value]:
    inputs, state, bias, other, _ = _split(weights)
    pairs = zip(_gates(run, x, inputs, bias, count), _gates(run, h, state, other, count), strict=True)
    return [run.add(a, b) for a, b in pairs]


def _lstm_cell(run: Run, x: Value, state: State, weights: Weights) -> State:
    enter, forget, new, out = _sums(run, x, state[0], weights, 4)
    kept = run.multiply(run.unary(forget, "any"), state[1])
    cell = run.add(run.multiply(run.unary(enter, "any"), run.unary(new, "odd")), kept)
    hidden = run.multiply(run.unary(out, "any"), run.unary(cell, "odd"))
    project = _split(weights)[-1]
    return (hidden if project is None else linear(run, hidden, project)), cell


def _gru_cell(run: Run, x: Value, state: State, weights: Weights) -> State:
    inputs, other, bias, shift, _ = _split(weights)
    first, second = _gates(run, x, inputs, bias, 3), _gates(run, state[0], other, shift, 3)
    reset, update = (run.unary(run.add(a, b), "any") for a, b in zip(first[:2], second[:2], strict=True))
    new = run.unary(run.add(first[2], run.multiply(reset, second[2])), "odd")
    return (run.add(run.multiply(update, new), run.multiply(update, state[0])),)


def _tanh_cell(run: Run, x: Value, state: State, weights: Weights) -> State:
    return (run.unary(_sums(run, x, state[0], weights, 1)[0], "odd"),)


def _relu_cell(run: Run, x: Value, state: State, weights: Weights) -> State:
    return (run.unary(_sums(run, x, state[0], weights, 1)[0], "homogeneous", zero=True),)


def _layer(run: Run, cell: Cell, x: Value, state: State, weights: Weights) -> State:
    """Returns a layer's state, in all steps: that of the first one and of one after it transform alike."""
    first = cell(run, x, state, weights)
    after = cell(run, x, first, weights)
    return tuple(run.add(a, b) for a, b in zip(first, after, strict=True))


def _enter(name: str, cell: Cell) -> None:
    def rule(
        run: Run, x: Value, state: Any, params: Weights, biases: bool, layers: int, dropout: float, train: bool,
        both: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        time = 1 if len(x.dims) == 3 and batch_first else 0
        places, states = run.sets.fresh(x.shape[time], "time"), _states(state)
        count = len(params) // (layers * (1 + both))
        x = run.without(run.settle(x, +1), (time,), "time")
        ends: list[list[Value]] = [[] for _ in states]
        for layer in range(layers):
            outputs = []
            for n in range(layer * (1 + both), (layer + 1) * (1 + both)):
                begin = tuple(run.selected(run.again(s), 0, n) for s in states)
                last = _layer(run, cell, x, begin, params[n * count : (n + 1) * count])
                outputs.append(last[0])
                for end, part in zip(ends, last, strict=True):
                    end.append(part.put(0, 0, UNIT))
            x = outputs[0] if len(outputs) == 1 else run.concatenated(outputs, -1)
        out = run.note(x.over(x.put(time, time, places).dims))
        return out, *(end[0] if len(end) == 1 else Bundle(tuple(end), 0) for end in ends)

    def one(run: Run, x: Value, state: Any, *weights: Any) -> Any:
        after = cell(run, run.settle(x, +1), _states(state), [w for w in weights if w is not None])
        return after[0] if len(after) == 1 else after

    operator(name)(rule)
    operator(f"{name}_cell")(one)


def _states(state: Any) -> State:
    return (state,) if isinstance(state, Value) else tuple(state)


_enter("lstm", _lstm_cell)
_enter("gru", _gru_cell)
_enter("rnn_tanh", _tanh_cell)
_enter("rnn_relu", _relu_cell)
