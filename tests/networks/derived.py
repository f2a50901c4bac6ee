"""A weight space that was derived from a module, compared with the group that was written by hand."""

import torch
from networks.oracle import Function
from networks.zoo import Network
from torch import Tensor, nn

from nfn_monomial import WeightSpace


def weight_space(network: Network) -> tuple[nn.Module, WeightSpace]:
    """The module, in float64, and the space that is derived from it."""
    module = network.build().double().eval()
    inputs = tuple(x.double() if x.is_floating_point() else x for x in network.inputs())
    return module, WeightSpace.from_module(module, inputs)


def require_kept(network: Network, module: nn.Module, space: WeightSpace, elements: int = 3) -> None:
    """Random elements keep the function, at random weights and inputs of all sizes, to 1e-9."""
    for inputs in (network.inputs, network.other):
        if inputs is not None:
            _require_kept(Function(module, inputs), space, elements)


def _require_kept(function: Function, space: WeightSpace, elements: int) -> None:
    generator = torch.Generator().manual_seed(0)
    buffers = {name for name, _ in function.module.named_buffers()}  # left out where no neuron lies along them
    differing = (space.parameters.keys() ^ function.shapes.keys()) - (buffers - space.parameters.keys())
    assert not differing, f"in the module or in the space alone: {differing}"
    for _ in range(elements):
        weights, inputs = function.weights(), function.inputs()
        element = space.sample(generator=generator).proper()
        moved: dict[str, Tensor] = element.act({name: weights[name] for name in space.parameters})
        with torch.no_grad():
            expected, found = function(weights, inputs), function(weights | moved, inputs)
        assert any(not torch.equal(moved[name], weights[name]) for name in moved) == space_moves(space)
        error = float((found - expected).abs().max() / expected.abs().max())
        assert error < 1e-9, f"a random element changes the function by {error:.0e}"


def space_moves(space: WeightSpace) -> bool:
    """Whether a group is more than its identity."""
    return any(node.permutes and (node.size != 1 or node.scales or node.flips) for node in space.nodes.values())


def require_maximal(network: Network, space: WeightSpace) -> None:
    """As many scalings, signs and permutations as were counted by hand; fewer only where the network says so."""
    least, most = network.scalings - network.optional, network.scalings + network.extra
    assert least <= space.group_dimension <= most, f"{space.group_dimension} scalings, not {least} to {most}"
    if not network.optional:
        assert (found := permutations(space)) == network.permutations, f"permuted {found}, not {network.permutations}"
        assert (found := signs(space)) == network.signs, f"{found} signs, not {network.signs}"


def permutations(space: WeightSpace) -> list[str]:
    """Roots as `Network.permutations` writes them; a node of one item permutes nothing."""

    def tree(name: str) -> str:
        inside = sorted(tree(n) for n, node in space.nodes.items() if node.parent == name and node.size != 1)
        size = f"{'' if space.nodes[name].permutes else 'still '}{space.nodes[name].size}"
        return f"{size}[{', '.join(inside)}]" if inside else size

    roots = [n for n, node in space.nodes.items() if node.parent is None and node.size != 1]
    above = {node.parent for node in space.nodes.values() if node.size != 1}
    return sorted(tree(n) for n in roots if space.nodes[n].permutes or n in above)


def signs(space: WeightSpace) -> int:
    """The dimension over GF(2) of sign flips of items; those of whole tensors are not counted."""
    sizes = space.sizes()
    return sum(
        space.count(name, sizes) * sum(gauge.flips for gauge in node.gauges)
        for name, node in space.nodes.items()
        if node.size != 1
    )
