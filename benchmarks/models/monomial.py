"""The paper's own models (Sec. 6.1, App. D.3): stacks of equivariant layers, its hybrid with HNP, and its ablation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from nfn_monomial import Canonicalize, EquivariantLinear, Features, InvariantPool, PointwiseActivation
from nfn_monomial.benchmarks.experiments.ablation import STACKS
from nfn_monomial.models import equivariant_stack
from nfn_monomial.tools.predictors.models import Model, NetworkInfo, logits, register

from .parts import CHANNELS, mlp

__all__ = ["Monomial", "MonomialHNP", "MonomialStack"]


class MonomialStack(Model):
    """(MNF-ReLU) x depth -> Norm [-> (HNP-ReLU) x 1] -> Avg -> MLP, in the words of the paper's ablation (Table 24).

    Equivariant layers, canonicalise, perhaps a layer of HNP, average, MLP. The last of these layers has 5 channels,
    all before it 16 (App. D.3). After `Canonicalize` only permutations act, and `EquivariantLinear` on the uncharged
    space is HNP's layer. Without it this is `MonomialNFN`.

    Attributes:
        depth: number of equivariant layers.
        hnp: whether a layer of HNP follows.
    """

    invariant_under = "group"
    depth: ClassVar[int] = 3
    hnp: ClassVar[bool] = False

    def __init__(self, networks: NetworkInfo, out_features: int = 1, *, head_dropout: float = 0.0) -> None:
        super().__init__()
        self.space = networks.space
        wide, narrow = CHANNELS[0], CHANNELS[-1]
        last = wide if self.hnp else narrow
        self.body = equivariant_stack(self.space, [1, *[wide] * (self.depth - 1), last])
        self.body.append(PointwiseActivation(self.space, "auto"))
        self.body.append(Canonicalize(self.space, last))
        if self.hnp:
            plain = self.space.uncharged()
            self.body.append(EquivariantLinear(plain, wide, narrow))
            self.body.append(PointwiseActivation(plain, "relu"))
        self.pool = InvariantPool(self.space, narrow)
        scales = any(node.scales for node in self.space.nodes.values())  # as in ReLU networks (App. D.3)
        self.head = mlp(self.pool.out_features, 200 if scales else 1000, out_features, head_dropout)

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
