"""The numerical oracle of completeness: it counts equivariant maps and knows no partitions."""

import torch

from nfn_monomial import Features, GroupElement, MonomialMatrix
from nfn_monomial.space import Layout


def basis_features(layout: Layout, sizes: dict[str, int]) -> Features:
    """The identity matrix as a batch: one network for each coordinate of the fields, c = 1."""
    shapes = [(*(sizes[a.node] for a in t), m) for t, m in zip(layout.types, layout.multiplicities, strict=True)]
    lengths = [torch.Size(s).numel() for s in shapes]
    columns = torch.eye(sum(lengths), dtype=torch.float64).split(lengths, 1)
    return Features(layout, tuple(c.reshape(-1, *s) for c, s in zip(columns, shapes, strict=True)))


def flat(features: Features) -> torch.Tensor:
    return torch.cat([x.flatten(1) for x in features.tensors], 1)


def known_sizes(space) -> dict[str, int]:
    return {name: node.size for name, node in space.nodes.items()}


def generators(space, sizes):
    """What commutes with these commutes with the whole group: on every node a cycle, a swap, and one neuron's scale.

    One scale for each gauge; a power of a scale that is no root of unity is 1 only where the exponent is 0. Of a
    nested node, all that in the parent's first neuron: the parent's own generators move it to the others. Of what a
    FIXED node is above, in every one of that.
    """
    for name, node in space.nodes.items():
        if not node.permutes:
            continue
        own, still = sizes[name], torch.arange(space.count(name, sizes))
        ones = [torch.ones(len(still), dtype=torch.float64) for _ in node.gauges]
        cycle, swap = torch.arange(own).roll(1), torch.cat([torch.arange(own)[:2].flip(0), torch.arange(own)[2:]])
        moves = []
        root = space.ancestry(name)[0]
        for start in range(0, len(still), len(still) // (1 if space.nodes[root].permutes else sizes[root])):
            moves += [(ones, torch.cat([still[:start], start + p, still[start + own :]])) for p in (cycle, swap)]
            for i, gauge in enumerate(node.gauges):
                scales = [scale.clone() for scale in ones]
                scales[i][start] = (1.3 if gauge.scales else 1.0) * (-1.0 if gauge.flips else 1.0)
                moves.append((scales, still))
        for scales, p in moves:
            yield GroupElement(space, {name: MonomialMatrix(scales, p)})


def invariant_dimension(space, inputs: list[Layout], target: Layout, sizes) -> int:
    """Dimension of the space of T, multilinear in the inputs, with T(rho_1(g) x, ..) = rho'(g) T(x, ..) for all g.

    Constants for no input, linear maps for one, bilinear ones for two.
    """
    x, y = [basis_features(layout, sizes) for layout in inputs], basis_features(target, sizes)
    n = torch.Size([len(y), *map(len, x)]).numel()
    gram = torch.zeros(n, n, dtype=torch.float64)
    for g in generators(space, sizes):
        rho = torch.ones(1, 1, dtype=torch.float64)
        for z in x:  # flat(g.act(z)) has rho of basis vector i in row i: rho transposed
            rho = torch.kron(rho, flat(g.act(z)))
        rho_out = flat(g.act(y)).T.contiguous()
        # C^T C of the commutator C = rho' x 1 - 1 x rho, without a product of matrices of that size
        gram += torch.kron(rho_out.T @ rho_out, torch.eye(len(rho))) + torch.kron(torch.eye(len(rho_out)), rho.T @ rho)
        gram -= torch.kron(rho_out.T.contiguous(), rho) + torch.kron(rho_out, rho.T.contiguous())
    return int((torch.linalg.eigvalsh(gram) < 1e-9 * max(1.0, float(gram.abs().max()))).sum())


def oracle_dimensions(space, source: Layout, target: Layout, sizes) -> tuple[int, int]:
    """Dimensions of the spaces of A with rho'(g) A = A rho(g) and of b with rho'(g) b = b, over random g."""
    return tuple(invariant_dimension(space, inputs, target, sizes) for inputs in ([source], []))
