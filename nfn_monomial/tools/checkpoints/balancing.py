"""The canonical form of a network as a checkpoint: balanced scales, fixed signs, the same function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nfn_monomial import balance
from nfn_monomial.tools.calls import ALONE, Call
from nfn_monomial.tools.report import Report, Table

from .networks import Net, Network, PathLike, difference_as_written, left_behind, read_networks
from .outputs import Finding, Written

__all__ = ["Balanced", "balance_checkpoint"]


@dataclass(frozen=True)
class Balanced(Finding):
    """What `balance` made.

    Attributes:
        tensors: parameter -> its value there, float64.
        fingerprint: the same for all networks that are equal up to the group, see `Network.fingerprint`.
        difference: the largest that it makes to any output, as it is written, relative to the largest; None where no
            module runs the network.
    """

    tensors: Mapping[str, Tensor]
    fingerprint: str
    difference: float | None

    @property
    def network(self) -> Network:
        """That was given."""
        return self.networks[0]

    @property
    def checkpoints(self) -> Sequence[Written]:
        return [Written(self.network, self.network.checkpoint.name, self.tensors)]

    @property
    def summary(self) -> str:
        if self.difference is None:
            said = f"Its outputs were not compared: {self.network.why_not}."
        else:
            said = f"No output changes by more than {self.difference:.1e} of the largest."
        lines = [f"Fingerprint of {self.network.label}: {self.fingerprint}", said, *left_behind([self.network])]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        before, after = _norms(self.network), _norms(self.tensors)
        return {
            "network": self.network.definition.name,
            "checkpoint": str(self.network.checkpoint.path),
            "fingerprint": self.fingerprint,
            "max_output_difference": self.difference,
            "left": list(self.network.unread),
            "norm": {"before": _total(before), "after": _total(after)},
            "layers": {name: {"before": before[name], "after": after[name]} for name in before},
        }

    def report(self) -> Report:
        found = self.to_json()
        lines = [(name, f"{norm['before']:.4g}", f"{norm['after']:.4g}") for name, norm in found["layers"].items()]
        lines.append(("all", f"{found['norm']['before']:.4g}", f"{found['norm']['after']:.4g}"))
        header = ("parameter", "L2 norm", "balanced")
        title = f"The canonical form of {self.network.label}"
        return Report([Table(title, header, tuple(lines))], found)


def balance_checkpoint(
    checkpoint: PathLike,
    *,
    net: Net = None,
    input_shape: Sequence[int] | None = None,
    activation: str | None = None,
    key: str | None = None,
    call: Call = ALONE,
) -> Balanced:
    """The canonical form of a checkpoint: of all networks that scales and signs lead to, the balanced one.

    See `nfn_monomial.balance`. The function is the same; neurons stay in their places.

    Args:
        checkpoint: the network.
        net: see `read_architecture`, as ``input_shape`` and ``activation``; **its code runs**.
        input_shape: of the example inputs, batch included; of a module that does not state any.
        activation: between the layers of a chain, by name.
        key: of the state dict in a file of ``torch.save``, where it has several.
        call: which keeps what is finished.

    Raises:
        FileNotFoundError: if there is no such checkpoint.
        ValueError: naming what cannot be used, and the way out; if outputs would change.
    """
    (network,) = read_networks([checkpoint], net, input_shape=input_shape, activation=activation, key=key)

    def make() -> tuple[Any, Mapping[str, Tensor]]:
        before = {name: t.double() for name, t in network.items()}
        balanced, _ = balance({name: t[None, None] for name, t in before.items()}, network.space)
        after = {name: t[0, 0] for name, t in balanced.items()}
        return [network.fingerprint(), difference_as_written(network, after)], after

    (printed, difference), tensors = call.piece("balanced", make)
    return Balanced((network,), tensors, printed, difference)


def _norms(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: float(t.double().norm()) for name, t in tensors.items()}


def _total(norms: Mapping[str, float]) -> float:
    return float(torch.tensor(list(norms.values()), dtype=torch.float64).norm())
