"""How far the outputs of a module with the weights of two networks are apart, and how alike its layers see them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.read.probes import template_names
from nfn_monomial.read.sites import Site, sites_of
from nfn_monomial.space import packing
from nfn_monomial.space.axes import Axis
from nfn_monomial.space.certificate import answers, doubled, inputs_of, largest_change, running, steady_answers
from nfn_monomial.space.features import Features
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.weight_space import WeightSpace

_PAIRS = ((0, 1), (0, 0), (1, 1))
_KEPT = 1e-8  # to which an element of the group keeps outputs in float64


class OutputDifference(NamedTuple):
    """What `output_difference` finds.

    Attributes:
        largest: the largest difference of any output.
        relative: to the largest output.
        kept: whether the group element leaves the second network's outputs alone.
        cka: see `Comparison`.
        unmoved: of both networks what is not in the space: key -> tensor, the module's where a network has none.
        read: the keys of the module's tensors that it reads.
    """

    largest: float
    relative: float
    kept: bool
    cka: dict[str, float | None]
    unmoved: tuple[dict[str, Tensor], dict[str, Tensor]]
    read: frozenset[str]


class Reading(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees which tensors are arguments of an operation of torch: those whose values a computation may depend on.

    Args:
        tensors: key -> tensor, as the computation has them; a tensor may have several keys.

    Attributes:
        keys: of those that were read.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._keys_of: dict[int, list[str]] = {}
        for key, tensor in tensors.items():
            self._keys_of.setdefault(id(tensor), []).append(key)
        self.keys: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: as of `Float64`."""
        return False

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs)):
            self.keys.update(self._keys_of.get(id(leaf), ()))
        return operator(*args, **(kwargs or {}))


def output_difference(
    space: WeightSpace,
    element: GroupElement,
    module: nn.Module,
    inputs: Any,
    networks: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
) -> OutputDifference:
    """Run a module with two networks, in float64; all their keys that it has go into it.

    Args:
        space: of the networks.
        element: what moves the second next to the first.
        module: any with the space's parameters; left as it is.
        inputs: of the module.
        networks: parameter of the space, or other key of the module -> tensor, of both.

    Raises:
        ValueError: if the module has other parameters, does not run on these inputs, or answers with what cannot be
            compared, see `steady_answers`; if a network has two values for one tensor of it.
    """
    names = template_names(module, space)
    with running(module, "these inputs"):
        wide_inputs = pytree.tree_map_only(Tensor, doubled, inputs_of(inputs))
    states, unmoved = zip(*(_state(module, names, network) for network in networks), strict=True)
    sizes = packing.check_tensors(space, {name: networks[0][name][None, None] for name in space.parameters})
    sites = {_label(site, key): site for name, key in names.items() for site in sites_of(module, space, {name: key})}
    outputs, seen, read = [], [], set()
    try:
        for state in states:
            with running(module, "these inputs with these networks, on the CPU in float64"), Reading(state) as reading:
                outputs.append(steady_answers(module, state, wide_inputs))
            read |= reading.keys
            # It ran twice.
            seen.append({label: x[: len(x) // 2] for label, s in sites.items() for x in [s.fields(sizes)]})
            for site in sites.values():
                site.seen.clear()
    finally:
        for site in sites.values():
            site.remove()
    moved = element.act({name: states[1][key] for name, key in names.items()})
    kept = answers(module, states[1] | {names[name]: t for name, t in moved.items()}, wide_inputs)
    largest = 0.0
    for x, y in zip(*outputs, strict=True):
        if x.shape == y.shape and x.is_floating_point() and x.numel():
            largest = max(largest, float((x - y).abs().max()))
    cka: dict[str, float | None] = {}
    for label, site in sites.items():
        fields = [_moved(space, element, site, x) for x in seen[1][label]]
        if values := [_cka(x, y) for x, y in zip(seen[0][label], fields, strict=True)]:
            defined = [value for value in values if value is not None]
            cka[label] = sum(defined) / len(defined) if defined else None
    relative = largest_change(outputs[1], outputs[0])
    return OutputDifference(largest, relative, largest_change(kept, outputs[1]) <= _KEPT, cka, unmoved, frozenset(read))


def _state(
    module: nn.Module, names: Mapping[str, str], network: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """All tensors of a module, tied ones once, in float64 and those of the network where it has them; and its unmoved.

    Args:
        module: which runs.
        names: parameter of the space -> of the module.
        network: the keys that count are those of the space, then those of the module.
    """
    name_of = {key: name for name, key in names.items()}
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    tensors.sort(key=lambda pair: pair[0] not in name_of)  # of tied ones the key of the space counts
    first: dict[int, str] = {}
    state: dict[str, Tensor] = {}
    for key, tensor in tensors:
        known, name = first.setdefault(id(tensor), key), name_of.get(key, key)
        value = network.get(name, tensor)
        if known not in state or state[known] is tensor:
            state[known] = value
        elif name in network and not torch.equal(doubled(value), doubled(state[known])):
            raise InvalidValueError(
                f"{known} and {key} are one tensor of {type(module).__name__}, but a network has two values for them: "
                "leave one of them out"
            )
    keys = {*names, *(key for key, _ in tensors)}
    unmoved = {key: tensor for key, tensor in state.items() if key not in name_of}
    unmoved |= {key: network[key] for key in network if key not in keys}
    return {key: doubled(tensor) for key, tensor in state.items()}, unmoved


def _label(site: Site, key: str) -> str:
    layer = key.rpartition(".")[0]
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
    between, one, other = map(float, products)
    return between / math.sqrt(one * other) if one and other else None
