"""What tests ask of a derivation: its group, and by how much random elements of that change a module's function."""

import torch
from networks import derived
from networks.zoo import Of
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial import WeightSpace
from nfn_monomial.trace import Derivation

__all__ = ["Element", "Of", "error", "outputs", "permutations", "scalings", "signs", "space_of"]


class Element:
    """A random element of a derived group, and what it makes of the parameters among some tensors."""

    def __init__(self, found: Derivation, seed: int = 0) -> None:
        self.element = space_of(found).sample(generator=torch.Generator().manual_seed(seed)).proper()

    def act(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.element.act({name: tensors[name] for name in self.element.space.parameters})


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
