"""What a network of the zoo is: a module, inputs for it, and the group that keeps its function, written by hand.

    @group({"a": Items(4, 1), "b": Items(5, 0, 1)}, {"fc": "a+b 2"})                   its nodes, its dimensions
    @net(gaussian((12, 2)), fc=nn.Linear(2, 9), ...)                                   its inputs, its parts
    def slices(m, x): ...                                                              what it makes of them

A node's sizes are unlike those of all other nodes of its network and of its inputs, so that the size of a dimension
tells which node it runs over. Where it does not, dimensions say it: ``"h+h x"`` are those of a matrix whose rows are
two segments over h; ``"H*k"`` is a row-major product; ``"H*(k+v)"`` has k and v in every H; numbers, names that are no
nodes, and what is left out behind, are fixed. ``fc`` is ``fc.weight``, whose rows are those of ``fc.bias``.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Inputs = Callable[[], tuple[Tensor, ...]]


class Items(NamedTuple):
    """A set of items that are permuted: ``size`` of them in each item of ``parent``, and the gauges of each.

    ``still`` ones are not permuted, but others are inside of each.
    """

    size: int
    scales: int = 0
    signs: int = 0
    parent: str | None = None
    still: bool = False


@dataclass(frozen=True)
class Network:
    """A small network and the symmetries of its parameters, running statistics included.

    Args:
        name: of the network, unique in the zoo.
        build: makes the module.
        inputs: draws inputs, other ones at every call.
        nodes: what is permuted, name -> items.
        dims: dimensions of parameters, pattern of names -> text; sizes tell those of the others.
        constants: scalings that act alike on all items of their tensors.
        entries: scalings of single items that stay where they are.
        dead: entries that the function does not depend on.
        extra: scalings beyond those, which nodes and constants cannot say: they need not be found.
        optional: scalings that need not be found either, where a weight space cannot say all of the group: fewer
            permutations and signs will do too.
        note: why there are such scalings.
        other: draws inputs of another size, at which the group keeps the function, too.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    nodes: Mapping[str, Items]
    dims: Mapping[str, str] = field(default_factory=dict)
    constants: int = 0
    entries: int = 0
    dead: int = 0
    extra: int = 0
    optional: int = 0
    note: str = ""
    other: Inputs | None = None

    def count(self, node: str) -> int:
        """Items of a node in all items of its parents."""
        items = self.nodes[node]
        return items.size * (1 if items.parent is None else self.count(items.parent))

    @property
    def scalings(self) -> int:
        """Independent continuous scalings of the group."""
        of_nodes = sum(self.count(name) * items.scales for name, items in self.nodes.items())
        return of_nodes + self.constants + self.entries

    @property
    def signs(self) -> int:
        """The dimension over GF(2) of the sign flips of items, without those of whole tensors."""
        return sum(self.count(name) * items.signs for name, items in self.nodes.items())

    def tree(self, node: str) -> str:
        """A node and what is nested in it as text: ``2[3, 3]``."""
        inside = sorted(self.tree(name) for name, items in self.nodes.items() if items.parent == node)
        size = f"{'still ' if self.nodes[node].still else ''}{self.nodes[node].size}"
        return f"{size}[{', '.join(inside)}]" if inside else size

    @property
    def permutations(self) -> list[str]:
        """All roots as text, sorted."""
        return sorted(self.tree(name) for name, items in self.nodes.items() if items.parent is None)


class Of(nn.Module):
    """A network of named parts and a function of these and the inputs."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


Unproved = tuple[str, nn.Module, Inputs]
"""A network of which the group is not said yet: name, module, inputs."""
NETWORKS: dict[str, Network] = {}


def group(nodes: Mapping[str, Items], dims: Mapping[str, str] | None = None, **more: Any) -> Callable[[Unproved], None]:
    """Says the group of a network, and puts it into the zoo; more: see `Network`."""

    def enter(network: Unproved) -> None:
        name, module, inputs = network
        assert name not in NETWORKS, f"two networks are called {name}"
        NETWORKS[name] = Network(name, partial(copy.deepcopy, module), inputs, nodes, dims or {}, **more)

    return enter


def net(inputs: Inputs, **parts: Any) -> Callable[[Callable[..., Any]], Unproved]:
    """Makes a network of a function and its parts, which has the function's name."""
    return lambda function: (function.__name__, Of(function, **parts), inputs)


def zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


def gaussian(*shapes: tuple[int, ...], deviation: float = 1.0) -> Inputs:
    """Inputs of these shapes, normal."""
    return lambda: tuple(deviation * torch.randn(*shape) for shape in shapes)


def tokens(vocabulary: int, *shapes: tuple[int, ...]) -> Inputs:
    """Token ids of these shapes."""
    return lambda: tuple(torch.randint(vocabulary, shape) for shape in shapes)
