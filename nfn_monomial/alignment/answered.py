"""What a module answers with the weights of two networks, and how alike its layers see it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial.read.probes import own_names
from nfn_monomial.read.sites import Site, sites_of
from nfn_monomial.space import packing
from nfn_monomial.space.axes import Axis
from nfn_monomial.space.certificate import answers, doubled, inputs_of, largest_change, running
from nfn_monomial.space.features import Features
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.weight_space import WeightSpace

_PAIRS = ((0, 1), (0, 0), (1, 1))


class Answers(NamedTuple):
    """What a module answers with the weights of two networks.

    Attributes:
        difference: the largest difference of any output.
        relative: to the largest output.
        cka: see `Comparison`.
    """

    difference: float
    relative: float
    cka: dict[str, float | None]


def answered(
    space: WeightSpace,
    element: GroupElement,
    module: nn.Module,
    inputs: Any,
    networks: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
) -> Answers:
    """What it answers, in float64.

    Args:
        space: of the networks.
        element: what moves the second next to the first.
        module: any with the space's parameters; left as it is.
        inputs: of the module.
        networks: parameter name -> tensor, of both.

    Raises:
        ValueError: if the module has other parameters, or does not run on these inputs.
    """
    names = own_names(module, space)
    state = {key: doubled(t) for key, t in (*module.named_parameters(), *module.named_buffers())}
    with running(module, "these inputs"):
        given = pytree.tree_map_only(Tensor, doubled, inputs_of(inputs))
    sizes = packing.check_tensors(space, {name: networks[0][name][None, None] for name in space.parameters})
    sites = {_label(site, own): site for name, own in names.items() for site in sites_of(module, space, {name: own})}
    outputs, seen = [], []
    try:
        for network in networks:
            tensors = state | {own: doubled(network[name]) for name, own in names.items()}
            with running(module, "these inputs with these networks, on the CPU in float64"):
                outputs.append(answers(module, tensors, given))
            seen.append({label: site.fields(sizes) for label, site in sites.items()})
            for site in sites.values():
                site.seen.clear()
    finally:
        for site in sites.values():
            site.remove()
    largest = 0.0
    for x, y in zip(*outputs, strict=True):
        if x.shape == y.shape and x.is_floating_point() and x.numel():
            largest = max(largest, float((x - y).abs().max()))
    cka: dict[str, float | None] = {}
    for label, site in sites.items():
        moved = [_moved(space, element, site, x) for x in seen[1][label]]
        if found := [_cka(x, y) for x, y in zip(seen[0][label], moved, strict=True)]:
            defined = [value for value in found if value is not None]
            cka[label] = sum(defined) / len(defined) if defined else None
    return Answers(largest, largest_change(outputs[1], outputs[0]), cka)


def _label(site: Site, name: str) -> str:
    layer = name.rpartition(".")[0]
    return layer if len(site.segments) == 1 else f"{layer}[{site.number}]"


def _moved(space: WeightSpace, element: GroupElement, site: Site, field: Tensor) -> Tensor:
    """Activations ``(*sizes, P)`` as the moved network has them."""
    *above, node = space.ancestry(site.node)
    layout = space.layout_of([(*(Axis(name, 0) for name in above), Axis(node, site.charge))], fold=False)
    return element.act(Features(layout, (field[None],))).tensors[0][0]


def _cka(x: Tensor, y: Tensor) -> float | None:
    """Linear CKA of activations ``(*sizes, P)``: ``|X'Y|^2 / (|X'X| |Y'Y|)``, centred; None where one does not vary."""
    centred = [t.flatten(0, -2).T - t.flatten(0, -2).mean(-1) for t in (x, y)]
    # The smaller of the two ways to the same number: products of neurons, or of samples.
    wide = centred[0].shape[1] > len(centred[0])
    grams = [t @ t.T for t in centred] if wide else []
    products = [(grams[i] * grams[j]).sum() if wide else (centred[i].T @ centred[j]).square().sum() for i, j in _PAIRS]
    both, own, other = map(float, products)
    return both / math.sqrt(own * other) if own and other else None
