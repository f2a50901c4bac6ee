"""Random elements of a derived group, applied to parameters with plain loops over dimensions."""

import itertools
import math

import torch
from networks import derived
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial import WeightSpace
from nfn_monomial.space.axes import Axis, parents_of, powers, segments_of
from nfn_monomial.space.trace import Derivation


class Of(nn.Module):
    """A network of named parts and a function of these and the inputs."""

    def __init__(self, function, **parts) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor):
        return self.function(self, *inputs)


class Element:
    """For every node a permutation and a factor for each gauge, in every item of its parents."""

    def __init__(self, found: Derivation, seed: int = 0) -> None:
        self.found, self.generator = found, torch.Generator().manual_seed(seed)
        self.nesting = {name: node.parent for name, node in found.nodes.items() if node.parent is not None}
        self.orders, self.factors = {}, {}
        for name, node in found.nodes.items():
            shape = [found.nodes[n].size for n in self.path(name)]
            order = torch.argsort(torch.rand(shape, generator=self.generator), -1)
            self.orders[name] = order if node.permutes else torch.arange(shape[-1]).expand(shape)
            self.factors[name] = [self.factor(gauge, shape) for gauge in node.gauges]

    def path(self, name: str) -> list[str]:
        above = self.nesting.get(name)
        return [name] if above is None else [*self.path(above), name]

    def factor(self, gauge, shape) -> Tensor:
        scale = torch.exp(torch.randn(shape, generator=self.generator, dtype=torch.float64))
        sign = torch.sign(torch.randn(shape, generator=self.generator, dtype=torch.float64))
        return (scale if gauge.scales else 1.0) * (sign if gauge.flips else torch.ones(shape, dtype=torch.float64))

    def piece(self, flat: list[Axis | int], x: Tensor) -> Tensor:
        """``x`` with one dimension for each axis or size."""
        parents = parents_of(flat, self.nesting)
        positions = []
        for n, part in enumerate(flat):
            view = [1] * len(flat)
            view[n] = self.size(part)
            positions.append(torch.arange(self.size(part)).view(view))
        factor, sources = torch.ones((), dtype=torch.float64), []

        def chain(n: int) -> list[Tensor]:
            return [*([] if parents[n] is None else chain(parents[n])), positions[n]]

        for n, part in enumerate(flat):
            if isinstance(part, int):
                sources.append(positions[n])
                continue
            sources.append(self.orders[part.node][tuple(chain(n))])
            for values, q in zip(self.factors[part.node], powers(part.charge), strict=True):
                factor = factor * values[tuple(chain(n))] ** q
        return x[tuple(sources)] * factor

    def act(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: self.whole(dims, tensors[name]) for name, dims in self.found.parameters.items()}

    def whole(self, dims, x: Tensor) -> Tensor:
        choices = [segments_of(dim) for dim in dims]
        extents = [[math.prod(self.size(p) for p in segment) for segment in dim] for dim in choices]
        assert [sum(e) for e in extents] == list(x.shape), (dims, x.shape)
        out = x.clone()
        for choice in itertools.product(*(range(len(c)) for c in choices)):
            place = tuple(slice(sum(e[:s]), sum(e[: s + 1])) for e, s in zip(extents, choice, strict=True))
            flat = [part for c, s in zip(choices, choice, strict=True) for part in c[s]]
            if flat:
                shape = [self.size(part) for part in flat]
                out[place] = self.piece(flat, x[place].reshape(shape)).reshape(x[place].shape)
        return out

    def size(self, part: Axis | int) -> int:
        return part if isinstance(part, int) else self.found.nodes[part.node].size


def outputs(module: nn.Module, tensors: dict[str, Tensor], inputs: tuple[Tensor, ...], **kwargs) -> Tensor:
    """What a module answers in eval mode with these tensors, flattened."""
    module.eval()
    with torch.no_grad():
        found = torch.func.functional_call(module, tensors, inputs, kwargs)
    return torch.cat([t.flatten().double() for t in pytree.tree_leaves(found) if isinstance(t, Tensor)])


def error(module: nn.Module, found: Derivation, inputs: tuple[Tensor, ...], seeds: int = 3, **kwargs) -> float:
    """The largest relative change of a module's function, in float64, under random elements, with random weights."""
    module = module.double().eval()
    inputs = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    state = {n: t.detach() for n, t in (*module.named_parameters(), *module.named_buffers())}
    largest = 0.0
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        tensors = dict(state)
        for name in found.parameters:
            noise = torch.randn(state[name].shape, generator=generator, dtype=torch.float64) * 0.5
            tensors[name] = noise.exp() if name.endswith("running_var") else state[name] + noise
        before = outputs(module, tensors, inputs, **kwargs)
        after = outputs(module, tensors | Element(found, seed).act(tensors), inputs, **kwargs)
        assert before.isfinite().all()
        largest = max(largest, float((after - before).abs().max() / before.abs().max()))
    return largest


def scalings(found: Derivation) -> int:
    """Independent continuous scalings."""
    return space_of(found).group_dimension


def signs(found: Derivation) -> int:
    """Sign flips of items; those of whole tensors are not counted."""
    return derived.signs(space_of(found))


def permutations(found: Derivation) -> list[str]:
    """Nodes that are permuted, as sizes, ``2[3, 3]`` for nested ones."""
    return derived.permutations(space_of(found))


def space_of(found: Derivation) -> WeightSpace:
    return WeightSpace(found.nodes, found.parameters)
