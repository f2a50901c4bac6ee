"""Places of a module at which the activations of a node's neurons can be seen: where a layer reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.running import answers, disturbed, doubled, largest_change
from nfn_monomial.space import packing
from nfn_monomial.space.axes import Axis, Charge, Dim, opposite, segments_of
from nfn_monomial.space.features import Features
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.weight_space import WeightSpace

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(eq=False)
class Site:
    """A layer that reads a node's neurons.

    Attributes:
        layer: whose input it is, see `LAYERS`.
        node: of the neurons.
        charge: of their activations.
        columns: the dimension that the layer's columns run over.
        number: of its segment that is the node's.
        kept: the positions of the node's axes among the segment's factors, the outermost first.
        seen: the layer's inputs, averaged over positions, ``(P, columns)`` for each call until someone clears it.
    """

    layer: InitVar[nn.Module]
    node: str
    charge: Charge
    columns: Dim
    number: int
    kept: tuple[int, ...]
    seen: list[Tensor] = field(default_factory=list)

    def __post_init__(self, layer: nn.Module) -> None:
        self._handle = layer.register_forward_pre_hook(self)

    def __call__(self, layer: nn.Module, args: tuple[Any, ...]) -> None:
        x: Tensor = args[0] if args[0].ndim > 1 else args[0][None]
        channels = x.movedim(-1, 1) if isinstance(layer, nn.Linear) else x
        self.seen.append(channels.flatten(2).mean(-1) if channels.ndim > 2 else channels)

    def remove(self) -> None:
        """Stops looking."""
        self._handle.remove()

    def fields(self, sizes: Mapping[str, int]) -> list[Tensor]:
        """The activations seen, averaged over positions: ``(*sizes, P)`` for each call; ``sizes`` are of all nodes."""
        factors_of = segments_of(self.columns)[self.number]
        extents = [p if isinstance(p, int) else sizes[p.node] for p in factors_of]
        others = [1 + i for i in range(len(extents)) if i not in self.kept]
        fields = []
        for x in self.seen:
            factors = packing.parted(x, 1, self.columns, sizes)[self.number].reshape(len(x), *extents)
            fields.append((factors.mean(others) if others else factors).movedim(0, -1))
        return fields

    def moved(self, space: WeightSpace, element: GroupElement, field: Tensor) -> Tensor:
        """Activations ``(*sizes, P)`` as a network has them that the element has moved."""
        *above, node = space.ancestry(self.node)
        layout = space.layout_of([(*(Axis(name, 0) for name in above), Axis(node, self.charge))], fold=False)
        return element.act(Features(layout, (field[None],))).tensors[0][0]


def sites_of(template: nn.Module, space: WeightSpace, names: Mapping[str, str]) -> list[Site]:
    """All layers of a module that read neurons of one node of the space, which other parameters lead to.

    ``names`` are those of the space's parameters in the module.
    """
    reached = {link.target for link in space.links}
    sites = []
    for name, key in names.items():
        path, _, kind = key.rpartition(".")
        layer = template.get_submodule(path)
        if kind != "weight" or not isinstance(layer, LAYERS) or getattr(layer, "groups", 1) != 1:
            continue
        columns = space.parameters[name][1]
        for number, segment in enumerate(segments_of(columns)):
            axes = [i for i, part in enumerate(segment) if isinstance(part, Axis)]
            last = segment[axes[-1]] if axes else None
            if not isinstance(last, Axis) or last.node not in reached or not space.nodes[last.node].permutes:
                continue
            # The axes of the segment are those of one node, after those of the nodes that it is nested in.
            if [part.node for part in segment if isinstance(part, Axis)] == list(space.ancestry(last.node)):
                sites.append(Site(layer, last.node, opposite(last.charge), columns, number, tuple(axes)))
    return sites


def true_sites(template: nn.Module, space: WeightSpace, names: Mapping[str, str], x: Tensor) -> list[Site]:
    """Sites at which neurons move as their charges say when a random group element moves the template.

    Other sites stop looking, and so do those whose layers are not run, or run on something else than a row for each
    input. Sites are in the order of the space's nodes; ``x`` is an input with a batch dimension.
    """
    sites, count = sites_of(template, space, names), 7  # a number that tells inputs from positions
    x = doubled(x.expand(count, *x.shape[1:]))
    generator = torch.Generator().manual_seed(0)
    state = {k: disturbed(doubled(t), generator) for k, t in (*template.named_parameters(), *template.named_buffers())}
    tensors = {name: state[key][None, None] for name, key in names.items()}
    sizes = packing.check_tensors(space, tensors)
    element = space.sample(sizes=sizes, generator=generator).proper()
    moved = {names[name]: t[0, 0] for name, t in element.act(tensors).items()}
    fields: list[list[list[Tensor]]] = []
    for parameters in (state, state | moved):
        answers(template, parameters, x)
        by_input = [all(len(rows) == count for rows in site.seen) for site in sites]
        fields.append([site.fields(sizes) if rows else [] for site, rows in zip(sites, by_input, strict=True)])
        for site in sites:
            site.seen.clear()
    kept = []
    for site, before, after in zip(sites, *fields, strict=True):
        expected = [site.moved(space, element, t) for t in before]
        if before and largest_change(after, expected) <= 1e-8:
            kept.append(site)
        else:
            site.remove()
    return sorted(kept, key=lambda site: list(space.nodes).index(site.node))


def state_of(template: nn.Module) -> dict[str, Tensor]:
    """Parameters, under all their names, and buffers of a module."""
    return {**dict(template.named_parameters(remove_duplicate=False)), **dict(template.named_buffers())}


def template_names(template: nn.Module, space: WeightSpace) -> dict[str, str]:
    """Parameter of the space -> of the template: the same name, or else the one in its place."""
    state = state_of(template)
    if all(name in state for name in space.parameters):
        return {name: name for name in space.parameters}
    keys = [key for key, _ in template.named_parameters()]
    if len(keys) != len(space.parameters):  # those of layers alone: slopes of activations are in no space
        keys = [key for key in keys if isinstance(template.get_submodule(key.rpartition(".")[0]), LAYERS)]
    if len(keys) != len(space.parameters):
        raise InvalidValueError(
            f"ProbeFeatures: the template has {len(keys)} parameters ({', '.join(keys)}), the space "
            f"{len(space.parameters)} ({', '.join(space.parameters)})"
        )
    return dict(zip(space.parameters, keys, strict=True))
