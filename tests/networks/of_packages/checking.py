"""What is asked of the weight space of a network that others published."""

from typing import NamedTuple

import torch
from networks.derived import permutations, signs
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.space.certificate import answers, doubled, largest_change


class Expected(NamedTuple):
    """A group, counted by hand.

    Attributes:
        permutations: nodes that are permuted, ``"4[8, 8]"`` for one of 4 items with two nodes of 8 nested in it.
        scalings: how many are independent.
        signs: the dimension over GF(2) of the sign flips of items.
    """

    permutations: list[str]
    scalings: int
    signs: int


def disturbed(module: nn.Module) -> nn.Module:
    """The module with random numbers in place of zeros and ones, which would hide what moves."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.uniform_(0.5, 1.5)
            elif buffer.is_floating_point():
                buffer.mul_(0.5 + torch.rand_like(buffer))
    return module


def check(module: nn.Module, inputs: Tensor | tuple[Tensor, ...], expected: Expected) -> None:
    """The space of a module has the group that is expected, and its elements keep the function in float64."""
    module = module.double().eval()
    x = tuple(doubled(t) for t in (inputs if isinstance(inputs, tuple) else (inputs,)))
    space = WeightSpace.from_module(module, x)
    assert Expected(permutations(space), space.group_dimension, signs(space)) == expected

    own = {name: t.detach() for name, t in (*module.named_parameters(), *module.named_buffers())}
    before = answers(module, own, x)
    for seed in range(3):
        moved = space.sample(generator=torch.Generator().manual_seed(seed)).proper().act(own)
        assert any(not torch.equal(moved[name], own[name]) for name in space.parameters), "the group moves nothing"
        assert largest_change(answers(module, moved, x), before) < 1e-9
