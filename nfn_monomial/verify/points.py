"""Points at which a network is asked: weights, buffers and inputs, its own or random ones near them, in float64."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nfn_monomial.running import answers, disturbed, doubled, steady_answers
from nfn_monomial.trace.operators import short

_STRIDES = 5
_DRAWS = 3  # of weights and inputs for one point, until the function is defined for them
_LARGE = 1_000_000  # entries from which a module is run on shapes first
_MOST_WORK = 2e10  # additions and products of a forward pass with inputs of another size: a few seconds
_ORDERING = {"topk", "sort", "argsort", "argmax", "argmin", "max", "min", "kthvalue", "median", "nanmedian", "mode"}


class Resized(NamedTuple):
    """A point whose inputs have another size in place of one of the example's.

    Attributes:
        extent: the size that the example has.
        size: the other one.
        point: the inputs, with random weights; None where a forward pass would take too long.
        answers: the module's outputs there.
    """

    extent: int
    size: int
    point: Point | None
    answers: list[Tensor]


class Point(NamedTuple):
    """Weights, buffers and inputs at which a module is run.

    Attributes:
        module: that runs.
        inputs: positional arguments, and those with names.
        seed: of random numbers in place of its weights, see `disturbed`; None for its own.
        keep_signs: whether parameters keep theirs. Buffers do: masks and variances are among them.
        where: what its inputs are, in words.
    """

    module: nn.Module
    inputs: tuple[Any, Any]
    seed: int | None = None
    keep_signs: bool = False
    where: str = "the example inputs"

    @classmethod
    def of(cls, module: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Self:
        """The module's own weights, and the example inputs."""
        return cls(module, pytree.tree_map_only(Tensor, doubled, (inputs, dict(kwargs or {}))))

    def weights(self, change: Callable[[str, Tensor], Tensor] | None = None) -> dict[str, Tensor]:
        """Parameters and buffers, changed one by one, so that there is one copy of them."""
        parameters, weights = dict(self.module.named_parameters()), {}
        for i, (name, t) in enumerate((parameters | dict(self.module.named_buffers())).items()):
            tensor = doubled(t)
            if self.seed is not None:
                generator = torch.Generator().manual_seed(self.seed + i)
                tensor = disturbed(tensor, generator, self.keep_signs or name not in parameters)
            weights[name] = tensor if change is None else change(name, tensor)
        return weights

    def answers(self, change: Callable[[str, Tensor], Tensor] | None = None) -> list[Tensor]:
        """The module's outputs here, or with weights that are changed."""
        return answers(self.module, self.weights(change), *self.inputs)

    def steady_answers(self) -> list[Tensor]:
        """The same here, see `steady_answers`."""
        return steady_answers(self.module, self.weights(), *self.inputs)

    def neighbours(
        self, generator: torch.Generator, count: int, draws: int = _DRAWS
    ) -> Iterator[tuple[Point, list[Tensor]]]:
        """Yields random points near this one, and the outputs there; fewer if the function is seldom defined."""
        for _ in range(count):
            yield from self.near(generator, draws)

    def near(self, generator: torch.Generator, draws: int) -> Iterator[tuple[Point, list[Tensor]]]:
        """A point with random weights and inputs, and what the module answers there: none if it is not defined there.

        Others are drawn, up to as many as said, until all that it answers is finite.
        """
        for draw in range(draws):
            seed = int(torch.randint(2**48, (), generator=generator))
            inputs = pytree.tree_map_only(Tensor, lambda t: disturbed(t, generator, keep_signs=True), self.inputs)
            point, found = self._replace(seed=seed, keep_signs=draw > 0, inputs=inputs), None
            with contextlib.suppress(Exception):  # of any kind: modules raise what they like
                found = point.answers()
            if found is not None and all(bool(t.isfinite().all()) for t in found):
                yield point, found
                return

    def resized(self, generator: torch.Generator) -> Iterator[Resized]:
        """Points whose inputs have n + 1, n - 1, 2 n and 3 n in place of each size n, where the module runs.

        Where neither n + 1 nor n - 1 runs, n + s and n - s are tried for divisors s of n, such as strides. A size is
        changed wherever it occurs, and entries recur. If no other one runs, it is changed in each place of all shapes,
        and if none does, in each tensor alone: a number of tokens may happen to be that of channels. Sizes at which a
        pass would take long are left out, but for n + 1 and n - 1.
        """
        shapes = [t.shape for t in pytree.tree_leaves(self.inputs) if isinstance(t, Tensor)]
        work = self._work() / max(1, sum(shape.numel() for shape in shapes))
        shaped = sum(t.numel() for t in self.module.parameters()) > _LARGE and self._has_shapes()
        for n in sorted({n for shape in shapes for n in shape if n > 0}):
            every = [(i, dim) for i, shape in enumerate(shapes) for dim, extent in enumerate(shape) if extent == n]
            alike = [[place for place in every if place[1] == dim] for dim in sorted({dim for _, dim in every})]
            ran, tried = False, list[list[tuple[int, int]]]()
            for level in ([every], alike, [[place] for place in every]):
                for places in [places for places in level if not ran and places not in tried]:
                    tried.append(places)
                    strides = [s for s in range(1, n) if n % s == 0][:_STRIDES] or [1]
                    stride = 0  # the first one at which it runs
                    for size in dict.fromkeys([*(n + sign * s for s in strides for sign in (1, -1)), 2 * n, 3 * n]):
                        if size < 1 or (stride and size < 2 * n and abs(size - n) != stride):
                            continue
                        other = self._resized(places, size)
                        entries = sum(t.numel() for t in pytree.tree_leaves(other.inputs) if isinstance(t, Tensor))
                        if work * entries > _MOST_WORK and (abs(size - n) > 1 or places != every):
                            yield Resized(n, size, None, [])
                            continue
                        for point, found in other.near(generator, 1) if not shaped or other._has_shapes() else ():
                            ran, stride = True, stride or abs(size - n)
                            yield Resized(n, size, point, found)

    def _resized(self, places: Collection[tuple[int, int]], size: int) -> Point:
        leaves, spec = pytree.tree_flatten(self.inputs)
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for i, dim in places:
            t = leaves[at[i]]
            leaves[at[i]] = t.index_select(dim, torch.arange(size) % t.shape[dim])
        shapes = ", ".join(str(tuple(leaves[i].shape)) for i in at)
        return self._replace(inputs=pytree.tree_unflatten(leaves, spec), where=f"inputs of shape {shapes}")

    def _has_shapes(self) -> bool:
        """Tells whether it runs on shapes alone, without any values, which is cheap for large modules."""
        with contextlib.suppress(Exception), FakeTensorMode(allow_non_fake_inputs=True):
            weights = {
                name: torch.empty(t.shape, dtype=torch.float64 if t.is_floating_point() else t.dtype)
                for name, t in (*self.module.named_parameters(), *self.module.named_buffers())
            }
            inputs = pytree.tree_map_only(Tensor, lambda t: torch.empty(t.shape, dtype=t.dtype), self.inputs)
            return bool(answers(self.module, weights, *inputs))
        return False

    def _work(self) -> float:
        """Estimates the additions and products of a forward pass; 0 for few."""
        entries = sum(t.numel() for t in pytree.tree_leaves(self.inputs) if isinstance(t, Tensor))
        if entries * sum(t.numel() for t in self.module.parameters()) < _MOST_WORK / 100:
            return 0.0
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            self.answers()
        return max(float(counter.get_total_flops()), 1000.0 * entries)

    def ties(self) -> list[str]:
        """Returns the operators that put equal entries in an order here, where torch takes them by their places."""
        with _Ties() as seen:
            self.answers()
        return list(seen.names)


class _Ties(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the operators that tell equal entries apart."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: dict[str, None] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = operator(*args, **(kwargs or {}))
        if (name := short(str(operator))) in _ORDERING and not (isinstance(output, Tensor) and "arg" not in name):
            dims = [a for a in (*args[1:], (kwargs or {}).get("dim")) if isinstance(a, int)]
            dim = -1 if name in ("topk", "kthvalue") and len(dims) < 2 else (dims or [-1])[-1]
            if args[0].ndim and bool((args[0].sort(dim).values.diff(dim=dim) == 0).any()):
                self.names[name] = None
        return output
