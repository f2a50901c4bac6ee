"""The paper's own models (Sec. 6.1, App. D.3): stacks of equivariant layers, its hybrid with HNP, and its ablation.

And the same stack with a data-dependent group element in front of every layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from nfn_monomial import Canonicalize, EquivariantLinear, Features, InvariantPool, PointwiseActivation, WeightSpace
from nfn_monomial.benchmarks.data.networks import NetworkInfo
from nfn_monomial.benchmarks.settings.generalization import STACKS
from nfn_monomial.canonical.charges import along
from nfn_monomial.models import equivariant_stack
from nfn_monomial.space.axes import Axis, paths_of, powers

from .base import Model, register
from .parts import CHANNELS, logits, mlp

__all__ = ["LearnedScales", "Monomial", "MonomialHNP", "MonomialStack", "QuasiMonomial"]


def _head_width(space: WeightSpace) -> int:
    """The paper's width of the MLP: 200 for ReLU networks, 1000 for tanh networks (App. D.3)."""
    return 200 if any(node.scales for node in space.nodes.values()) else 1000


class LearnedScales(nn.Module):
    """Move a network by a diagonal group element that depends on it: ``x -> s(x) . x``.

    Each neuron has a scale ``s_j = exp(tanh(a_j))`` for each of its gauges, between 1/e and e; ``a`` is an affine map
    of the features with their charges killed, which starts at 0. So ``s`` is an invariant of its neuron, which
    permutations alone move: ``s(g x) = P s(x) P^-1`` for ``g = D P``. Diagonal matrices commute, therefore
    ``s(g x) g = P s(x) P^-1 D P = D P s(x) = g s(x)``: the map is equivariant, though not linear. Positive scales
    commute with sign flips as well.

    Shapes: as the input.

    Source: the data-dependent group elements of quasi-equivariant networks; that their elements are invariants, which
    makes the layer equivariant, is ours.

    Args:
        space: of the features, whose fields are those of its parameters; some neurons scale or flip signs.
        channels: of the features.
    """

    def __init__(self, space: WeightSpace, channels: int) -> None:
        super().__init__()
        self.space, plain = space, space.uncharged()
        moving = {axis.node for axes in space.layout.types for axis in axes if any(powers(axis.charge))}
        self.nodes = tuple(filter(moving.__contains__, space.nodes))
        gauges = max((len(space.nodes[node].gauges) for node in self.nodes), default=1)
        types = [tuple(Axis(name, 0) for name in space.ancestry(node)) for node in self.nodes]
        self.kill = Canonicalize(space, channels)
        self.logs = EquivariantLinear(plain, channels, gauges, out_types=types)
        for parameter in self.logs.parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Features) -> Features:
        logs = dict(zip(self.nodes, self.logs(self.kill(features)).tensors, strict=True))
        moved = []
        for axes, x in zip(features.layout.types, features.tensors, strict=True):
            total = x.new_zeros(())
            for axis, path in zip(axes, paths_of(axes, self.space.nesting), strict=True):
                for gauge, power in enumerate(powers(axis.charge)):
                    if power:
                        own = power * logs[axis.node][..., gauge].tanh()
                        total = total + along(own, [1 + i for i in path], x.ndim)
            moved.append(x * total.exp())
        return Features(features.layout, tuple(moved))


class MonomialStack(Model):
    """(MNF-ReLU) x depth -> Norm [-> (HNP-ReLU) x 1] -> Avg -> MLP, in the words of the paper's ablation (Table 24).

    Equivariant layers, canonicalise, perhaps a layer of HNP, average, MLP. The last of these layers has 5 channels,
    all before it 16 (App. D.3). After `Canonicalize` only permutations act, and `EquivariantLinear` on the uncharged
    space is HNP's layer. Without it this is `MonomialNFN`.

    Attributes:
        depth: number of equivariant layers.
        hnp: whether a layer of HNP follows.
        quasi: whether `LearnedScales` are in front of every equivariant layer, where neurons scale or flip signs.
    """

    invariant_under = "group"
    depth: ClassVar[int] = 3
    hnp: ClassVar[bool] = False
    quasi: ClassVar[bool] = False

    def __init__(self, networks: NetworkInfo, out_features: int = 1) -> None:
        super().__init__()
        self.space = networks.space
        wide, narrow = CHANNELS[0], CHANNELS[-1]
        last = wide if self.hnp else narrow
        self.body = nn.Sequential()
        for layer in equivariant_stack(self.space, [1, *[wide] * (self.depth - 1), last]):
            if self.quasi and self.space.layout.charged and isinstance(layer, EquivariantLinear):
                self.body.append(LearnedScales(self.space, layer.in_channels))
            self.body.append(layer)
        self.body.append(PointwiseActivation(self.space, "auto"))
        self.body.append(Canonicalize(self.space, last))
        if self.hnp:
            plain = self.space.uncharged()
            self.body.append(EquivariantLinear(plain, wide, narrow))
            self.body.append(PointwiseActivation(plain, "relu"))
        self.pool = InvariantPool(self.space, narrow)
        self.head = mlp(self.pool.out_features, _head_width(self.space), out_features)

    def prepare(self, tensors: Mapping[str, Tensor]) -> Features:
        return self.space.pack(tensors)

    def forward(self, batch: Features) -> Tensor:
        return logits(self.head(self.pool(self.body(batch))))


@register("monomial")
class Monomial(MonomialStack):
    """The paper's Monomial-NFN: three equivariant layers, canonicalise, average, MLP."""

    label = "Monomial-NFN"


@register("monomial-hnp")
class MonomialHNP(MonomialStack):
    """The same with a layer of HNP before the average: the hybrid of the paper's ablation."""

    label, hnp = "Monomial-HNP", True


@register("quasi-monomial")
class QuasiMonomial(MonomialStack):
    """Monomial-NFN with a data-dependent group element in front of every equivariant layer."""

    label, quasi = "quasi-monomial", True


for _name, (_depth, _hnp) in STACKS.items():
    _values = {
        "__doc__": MonomialStack.__doc__,
        "__module__": __name__,
        "task": "ablation",
        "depth": _depth,
        "hnp": _hnp,
    }
    _values["label"] = f"MNF x {_depth}{', HNP' * _hnp}"
    register(_name)(type(_name, (MonomialStack,), _values))
