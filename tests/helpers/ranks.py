"""How many independent maps a layer can be, over all values of its parameters."""

import torch
from oracle import basis_features, flat

from nfn_monomial import EquivariantLinear, Features, TensorProduct


def layer_ranks(layer: EquivariantLinear, sizes, masks=None) -> tuple[int, int]:
    """Ranks of the layer's linear maps and of its constants, over all values of its parameters (outside masks 0)."""
    layer = layer.double()
    x = basis_features(layer.in_layout, sizes)
    probe = Features(x.layout, tuple(torch.cat([t, torch.zeros_like(t[:1])]) for t in x.tensors))
    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    lengths = [p.numel() for p in parameters.values()]
    one_hot = torch.eye(sum(lengths), dtype=torch.float64).split(lengths, 1)
    one_hot = [o * (masks or {}).get(n, torch.ones(1)).reshape(1, -1) for o, n in zip(one_hot, parameters, strict=True)]
    stacked = {name: o.reshape(-1, *p.shape) for o, (name, p) in zip(one_hot, parameters.items(), strict=True)}
    maps = torch.func.vmap(lambda p: flat(torch.func.functional_call(layer, p, (probe,))))(stacked)
    constants = maps[:, -1]
    linear = (maps[:, :-1] - constants[:, None]).flatten(1)
    return int(torch.linalg.matrix_rank(linear)), int(torch.linalg.matrix_rank(constants))


def bilinear_rank(layer: TensorProduct, sizes) -> int:
    """Rank of the layer's bilinear maps over all values of its parameters."""
    layer = layer.double()
    x, y = basis_features(layer.in_layout, sizes), basis_features(layer.second_layout, sizes)
    pairs = x.map(lambda t: t.repeat_interleave(len(y), 0)), y.map(lambda t: torch.cat([t] * len(x)))
    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    lengths = [p.numel() for p in parameters.values()]
    one_hot = torch.eye(sum(lengths), dtype=torch.float64).split(lengths, 1)
    stacked = {name: o.reshape(-1, *p.shape) for o, (name, p) in zip(one_hot, parameters.items(), strict=True)}
    maps = torch.func.vmap(lambda p: flat(torch.func.functional_call(layer, p, pairs)))(stacked)
    return int(torch.linalg.matrix_rank(maps.flatten(1)))
