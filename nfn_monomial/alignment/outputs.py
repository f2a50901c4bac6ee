"""The difference of a module's outputs with the weights of two networks, and the likeness of its activations."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.running import answers, doubled, inputs_of, largest_change, running, steady_answers
from nfn_monomial.sites import sites_of, template_names
from nfn_monomial.space import packing
from nfn_monomial.space.groups import GroupElement
from nfn_monomial.space.weight_space import WeightSpace

from .kinship import partnership
from .rounding import tolerance
from .verdict import Outputs

_KEPT = 1e-8  # to which an element of the group keeps outputs in float64
_MARGIN = 4  # of what rounding all weights once does to outputs


class OutputDifference(NamedTuple):
    """The difference of two networks' outputs, by `output_difference`; without a module, tensors that are not moved.

    Attributes:
        unmoved: the tensors of both networks that are not in the space, by key; the module's where a network has none.
        outputs: how far the outputs are apart; None without a module.
        read: the keys of the module's tensors that it reads; None where nobody knows.
    """

    unmoved: tuple[Mapping[str, Tensor], Mapping[str, Tensor]]
    outputs: Outputs | None = None
    read: Collection[str] | None = None


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
    """Runs a module, which is left as it is, with two networks, in float64.

    Parameters of the space go into it, and all else that has the name of one of the module's tensors. The element is
    what moves the second network next to the first.

    Raises:
        ValueError: if the module has other parameters, does not run on these inputs, or answers with what cannot be
            compared, see `steady_answers`; if a network has two values for one tensor of it.
    """
    names = template_names(module, space)
    with running(module, "these inputs"):
        wide_inputs = pytree.tree_map_only(Tensor, doubled, inputs_of(inputs))
    states, unmoved = zip(*(_state(module, names, network) for network in networks), strict=True)
    outputs, read = [], set()
    for state in states:
        with Reading(state) as reading:
            outputs.append(_answers(module, state, wide_inputs))
        read |= reading.keys
    moved = element.act({name: states[1][key] for name, key in names.items()})
    kept = answers(module, states[1] | {names[name]: t for name, t in moved.items()}, wide_inputs)
    eps = max(torch.finfo(network[name].dtype).eps for network in networks for name in names)
    rounding = _KEPT
    for i, (state, network) in enumerate(zip(states, networks, strict=True)):
        generator = torch.Generator().manual_seed(i)
        # Every entry is off by some of what rounding to its dtype may leave.
        noisy = {}
        for name, key in names.items():
            x = state[key]
            random = 2 * torch.rand(x.shape, dtype=x.dtype, generator=generator) - 1
            noisy[key] = x + tolerance(network[name].dtype) * x * random
        change = largest_change(answers(module, {**state, **noisy}, wide_inputs), outputs[i])
        rounding = max(rounding, _MARGIN * change) if math.isfinite(change) else rounding
    largest = 0.0
    for x, y in zip(*outputs, strict=True):
        if x.shape == y.shape and x.is_floating_point() and x.numel():
            largest = max(largest, float((x - y).abs().max()))
    relative = largest_change(outputs[1], outputs[0])
    alone = largest_change(kept, outputs[1]) <= _KEPT
    return OutputDifference(unmoved, Outputs(largest, relative, rounding, alone, eps), read)


def p_value_of_partners(
    space: WeightSpace, module: nn.Module, inputs: Any, networks: Sequence[Mapping[str, Tensor]]
) -> float | None:
    """Returns a p-value for "all these networks were trained apart, by one recipe", by the likeness of the first two.

    **Assumed** is that the networks after the first two, the references, were trained independently and by the same
    recipe (data, initialisation, number of steps may be drawn, but alike for all). If the first two are no relatives,
    then no order of all N networks is likelier than another, so that this pair is any of the ``N (N - 1) / 2``, and
    ``p = #{pairs whose partners are as alike} / (N (N - 1) / 2)`` is exact: ``P(p <= x) <= x``. The likeness of a pair
    is the mean of `partnership` over all layers and both directions, so neurons may stand in any order, scaled and
    flipped. The least p is one of all pairs: below 0.001 with 44 references.

    Returns:
        None where partners are not known: for fewer than 8 samples, or where no neuron varies.
    """
    names = template_names(module, space)
    with running(module, "these inputs"):
        wide_inputs = pytree.tree_map_only(Tensor, doubled, inputs_of(inputs))
    sizes = packing.check_tensors(space, {name: networks[0][name][None, None] for name in space.parameters})
    sites = sites_of(module, space, names)
    seen: list[list[list[Tensor]]] = []
    try:
        for network in networks:
            _answers(module, _state(module, names, network)[0], wide_inputs)
            # It ran twice.
            seen.append([fields[: len(fields) // 2] for fields in (site.fields(sizes) for site in sites)])
            for site in sites:
                site.seen.clear()
    finally:
        for site in sites:
            site.remove()

    def likeness(i: int, j: int) -> float:
        pairs = [(x[0], y[0]) for x, y in zip(seen[i], seen[j], strict=True) if x and y]
        both = [partnership(x, y) for one, other in pairs for x, y in ((one, other), (other, one))]
        known = [value for value in both if value is not None]
        return sum(known) / len(known) if known else math.nan

    alike = torch.tensor([likeness(i, j) for j in range(len(networks)) for i in range(j)], dtype=torch.float64)
    if bool(alike[0].isnan()):
        return None
    return float((~(alike < alike[0])).double().mean())


def _answers(module: nn.Module, state: Mapping[str, Tensor], inputs: Any) -> list[Tensor]:
    with running(module, "these inputs with these networks, on the CPU in float64"):
        return steady_answers(module, state, inputs)


def _state(
    module: nn.Module, names: Mapping[str, str], network: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """All tensors of a module, tied ones once, in float64 and those of the network where it has them; and its unmoved.

    Keys of the network are ``names``, parameters of the space -> of the module, then those of the module.
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
