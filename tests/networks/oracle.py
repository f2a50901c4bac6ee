"""Numeric oracles of symmetry: what keeps a module's function, found in float64 without any theory of operators.

A diagonal direction v keeps the function along ``theta exp(t v)`` for all theta if and only if it lies in the null
space of ``J(theta) diag(theta)`` for all theta; several draws of theta together leave only those.
"""

import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Tensors = dict[str, Tensor]
DRAWS = 16


class Function:
    """A module in float64 as a function of its parameters, the running statistics included."""

    def __init__(self, module: nn.Module, inputs: Callable[[], tuple[Tensor, ...]]) -> None:
        self.module = module.double().eval()
        self._inputs = inputs
        for m in self.module.modules():
            if isinstance(getattr(m, "eps", None), float):
                m.eps = 0.1  # any positive number has the same group; a large one is told from 0 with ease
        state = (*module.named_parameters(), *module.named_buffers())
        self.shapes = {name: t.shape for name, t in state if t.is_floating_point()}

    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(x.double() if x.is_floating_point() else x for x in self._inputs())

    def weights(self) -> Tensors:
        """Random weights, variances positive."""
        return {name: self._weight(name, shape) for name, shape in self.shapes.items()}

    def _weight(self, name: str, shape: torch.Size) -> Tensor:
        if name.endswith("running_var"):
            return torch.rand(shape, dtype=torch.float64) + 0.5
        fan_in = max(1, shape[1:].numel()) if len(shape) > 1 else 1
        return torch.randn(shape, dtype=torch.float64) * 1.2 * fan_in**-0.5

    def __call__(self, weights: Mapping[str, Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
        """All outputs as a vector."""
        found = torch.func.functional_call(self.module, dict(weights), inputs)
        return torch.cat([t.flatten() for t in pytree.tree_leaves(found) if isinstance(t, Tensor)])

    def jacobian(self, rows: int) -> Tensor:
        """``J(theta) diag(theta)`` (rows, P) at one draw of weights and inputs, its outputs mixed at random."""
        weights = {name: t.requires_grad_() for name, t in self.weights().items()}
        with warnings.catch_warnings(), mock.patch("torch.nn.functional.batch_norm", _batch_norm):
            warnings.simplefilter("ignore")  # operators without a batching rule are slower, no more
            outputs = self(weights, self.inputs())
            mixing = torch.eye(len(outputs), dtype=torch.float64)
            if rows < len(outputs):
                mixing = torch.randn(rows, len(outputs), dtype=torch.float64)
            found = torch.autograd.grad(
                outputs, list(weights.values()), mixing, is_grads_batched=True, allow_unused=True
            )
        products = [
            torch.zeros(len(mixing), *t.shape, dtype=torch.float64) if g is None else g * t.detach()
            for g, t in zip(found, weights.values(), strict=True)
        ]
        return (matrix := torch.cat([x.reshape(len(x), -1) for x in products], 1)) / matrix.norm()


def _batch_norm(
    x: Tensor, mean: Tensor, var: Tensor, gain: Tensor, shift: Tensor, _: bool, __: float, eps: float
) -> Tensor:
    """Batch norm in eval mode, which torch cannot differentiate by its running statistics."""
    mean, var, gain, shift = (t.reshape(-1, *[1] * (x.dim() - 2)) for t in (mean, var, gain, shift))
    return (x - mean) / (var + eps).sqrt() * gain + shift


class Scalings(NamedTuple):
    """Scalings that keep a function: how many, and the entries that do not matter, parameter -> boolean mask."""

    count: int
    dead: dict[str, Tensor]
    jacobian: Tensor


def nullity(matrix: Tensor) -> int:
    """The dimension of the null space of ``(rows, columns)``; a gap between what is 0 and what is not is asserted."""
    values = torch.linalg.svdvals(matrix)
    values = torch.cat([values, values.new_zeros(max(0, matrix.shape[1] - len(values)))])
    rank = int((values > 1e-9 * values[0]).sum())
    small = float(values[rank]) if rank < len(values) else 0.0
    assert small <= 1e-11 * float(values[0]), f"no gap: {values[max(0, rank - 2) : rank + 3].tolist()}"
    return len(values) - rank


def scalings(function: Function) -> Scalings:
    """The scalings of parameter entries that keep a function for all weights, without those of dead entries."""
    total = sum(shape.numel() for shape in function.shapes.values())
    matrices: list[Tensor] = []
    # Rows to spare: those of one draw may depend on each other.
    while len(matrices) < DRAWS or sum(map(len, matrices)) < 1.5 * total + 20:
        matrices.append(function.jacobian(total // 4 + 20))
        assert len(matrices) < 100, "too few outputs for so many parameters"
    jacobian = torch.cat(matrices)
    dead = jacobian.abs().amax(0) < 1e-13
    masks, start = {}, 0
    for name, shape in function.shapes.items():
        masks[name] = dead[start : start + shape.numel()].reshape(shape)
        start += shape.numel()
    return Scalings(nullity(jacobian[:, ~dead]), masks, jacobian)


class Probe:
    """A function at a few draws of weights and inputs, to try what keeps it: generic weights stand for all."""

    def __init__(self, function: Function, draws: int = 6) -> None:
        self.function = function
        self.draws = [(function.weights(), function.inputs()) for _ in range(draws)]
        with torch.no_grad():
            self.expected = [function(weights, inputs) for weights, inputs in self.draws]
        assert all(bool(x.std() > 1e-6 * x.abs().max()) for x in self.expected), "constant outputs prove nothing"

    def keeps(self, transform: Callable[[Tensors], Tensors]) -> bool:
        """Whether weights and transformed weights give the same outputs; NaN is none."""
        with torch.no_grad():
            for (weights, inputs), expected in zip(self.draws, self.expected, strict=True):
                found = self.function(weights | transform(weights), inputs)
                if not float((found - expected).abs().max()) < 1e-10 * float(expected.abs().max()):
                    return False
        return True

    def keeps_order(self, sources: Mapping[str, Tensor]) -> bool:
        return self.keeps(
            lambda weights: {name: weights[name].flatten()[x].reshape_as(weights[name]) for name, x in sources.items()}
        )


class Involution(NamedTuple):
    """What a flip or an exchange does to one parameter, by degrees: 1 is nothing, -1 all of it, 0 halfway."""

    parameter: str
    at: Callable[[Tensor, float], Tensor]


def flip(parameter: str, mask: Tensor) -> Involution:
    """The signs of masked entries."""
    return Involution(parameter, lambda weight, t: weight * (1 + mask * (t - 1)))


def exchange(parameter: str, source: Tensor) -> Involution:
    """Entries that change places, the flat position that each comes from."""
    return Involution(parameter, lambda w, t: (1 + t) / 2 * w + (1 - t) / 2 * w.flatten()[source].reshape_as(w))


def kept_subsets(probe: Probe, involutions: list[Involution]) -> list[tuple[int, ...]]:
    """A basis over GF(2) of the sets of commuting involutions that together keep a function, one bit for each.

    Weights are sums of a part that an involution leaves alone and one whose sign it flips. A set that keeps the
    function keeps it too where the second part of others is 0; products of signs that do not average out there are
    equations that it satisfies. Sets that satisfy those of few involutions are tried on the function itself. Where a
    part cannot be 0 (directions that are normalised), all sets are tried.
    """
    count = len(involutions)
    equations: list[int] = []
    trials = [*itertools.product(range(1, 5), range(len(probe.draws)))]
    trial = 0
    while trial < len(trials):
        degree, draw = trials[trial]
        # Those that are in no set are left alone; those that are in the same sets are as one.
        classes: dict[int, list[int]] = {}
        for i in range(count):
            classes.setdefault(_reduced(1 << i, equations), []).append(i)
        known = len(equations)
        for chosen in itertools.combinations([c for residue, c in classes.items() if residue], degree):
            now = {_reduced(1 << c[0], equations) for c in chosen}
            if 0 in now or len(now) < degree:
                continue  # known by now: the next round has fewer classes
            whole = [*classes.get(0, []), *itertools.chain(*chosen)]
            for bits in _odd_parts(probe, draw, involutions, whole, chosen):
                if row := _reduced(bits, equations):
                    equations.append(row)
        basis = _kernel(equations, count)
        if all(_keeps(probe, involutions, bits) for bits in basis):
            return basis
        trial = 0 if len(equations) > known else trial + 1
    assert count < 9, "a set satisfies all equations of four and changes the function"
    every = itertools.product((0, 1), repeat=count)
    kept = [sum(b << i for i, b in enumerate(bits)) for bits in every if _keeps(probe, involutions, bits)]
    return _kernel([sum(b << i for i, b in enumerate(row)) for row in _kernel(kept, count)], count)


def _odd_parts(
    probe: Probe, draw: int, involutions: list[Involution], whole: list[int], chosen: tuple[list[int], ...]
) -> list[int]:
    """Bits of one involution of every class in which outputs are odd somewhere, at 0 of all that are not ``whole``."""
    weights, inputs = probe.draws[draw]
    signs = torch.tensor(list(itertools.product((1.0, -1.0), repeat=len(chosen))), dtype=torch.float64)
    values = []
    for point in signs:
        degrees = {i: float(x) for c, x in zip(chosen, point, strict=True) for i in c}
        changed = dict(weights)
        for i, (name, at) in enumerate(involutions):
            changed[name] = at(changed[name], degrees.get(i, 1.0) if i in whole else 0.0)
        with torch.no_grad():
            values.append(probe.function(changed, inputs))
    outputs = torch.stack(values)
    parts = []
    for odd in itertools.product((0, 1), repeat=len(chosen)):
        products = (signs ** torch.tensor(odd)).prod(1)
        if float((products @ outputs).abs().max()) > 1e-10 * float(outputs.abs().max()):
            parts.append(sum(1 << c[0] for c, o in zip(chosen, odd, strict=True) if o))
    return parts


def _keeps(probe: Probe, involutions: list[Involution], bits: tuple[int, ...]) -> bool:
    def applied(weights: Tensors) -> Tensors:
        changed = dict(weights)
        for (name, at), bit in zip(involutions, bits, strict=True):
            changed[name] = at(changed[name], -1.0) if bit else changed[name]
        return changed

    return probe.keeps(applied)


def _reduced(row: int, rows: list[int]) -> int:
    """A row over GF(2) minus what earlier ones, each with a highest bit of its own, say."""
    for other in sorted(rows, reverse=True):
        row = min(row, row ^ other)
    return row


def _kernel(equations: list[int], length: int) -> list[tuple[int, ...]]:
    """A basis of the vectors that are orthogonal to rows over GF(2)."""
    pivots: dict[int, int] = {}
    for row in equations:
        for bit, other in pivots.items():
            if row >> bit & 1:
                row ^= other
        if row:
            bit = row.bit_length() - 1
            pivots = {b: other ^ row if other >> bit & 1 else other for b, other in pivots.items()} | {bit: row}
    free = [i for i in range(length) if i not in pivots]
    return [tuple(int(i == f or (i in pivots and pivots[i] >> f & 1)) for i in range(length)) for f in free]
