"""Models that read the tensors of a network as a set: statistics of each, whatever the architecture.

What a vector of statistics is to networks of one architecture (`baselines.StatNN`, `invariant.Stats`), these are to
networks of any: a small MLP reads the statistics of every tensor and what kind of tensor it is; the mean and the
maximum over all tensors go on, or what a recurrent network makes of the tensors in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

from nfn_monomial import Axis, InvariantStatistics, WeightSpace, balance
from nfn_monomial.benchmarks.data.networks import MixedInfo, NetworkGroup, NetworkInfo
from nfn_monomial.space.axes import flow

from .base import Model, register
from .parts import Standardise, logits, mlp, statistics

__all__ = ["InvariantSet", "Recurrent", "StatisticsSet"]

WIDTH = 64  # of a tensor's features
HEAD_WIDTH = 200
OF_TENSOR = 11  # what `InvariantStatistics` takes of a tensor
KIND_FEATURES = 7  # see `_kinds`
FURTHEST = 5.0  # standard deviations: invariant statistics beyond are cut off, as those of one architecture are

Prepared = dict[str, Tensor]


class _TensorSet(Model):
    """A subclass says what `statistics` are, and their ``width``."""

    mixed = True
    width: int
    clamp = math.inf

    def __init__(self, networks: NetworkInfo | MixedInfo, out_features: int = 1) -> None:
        super().__init__()
        self.space = networks.architectures[0].space
        entries = self.width + KIND_FEATURES
        self.inputs = Standardise([entries])
        self.each = nn.Sequential(nn.Linear(entries, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.head = mlp(2 * WIDTH, HEAD_WIDTH, out_features)

    def statistics(self, tensors: Mapping[str, Tensor], space: WeightSpace) -> Tensor:
        """Parameter name -> ``(N, 1, *shape)``, to ``(N, parameters, width)``."""
        raise NotImplementedError

    def prepare(self, tensors: Mapping[str, Tensor]) -> Prepared:
        return self.prepare_groups([(tensors, self.space)])

    def prepare_groups(self, groups: Sequence[NetworkGroup]) -> Prepared:
        rows: list[Tensor] = []
        for tensors, space in groups:
            found = self.statistics(tensors, space)
            kinds = _kinds(tensors, space).to(found)
            rows += torch.cat([found, kinds.expand(len(found), -1, -1)], -1)
        counts = torch.tensor([len(row) for row in rows], device=rows[0].device)
        return {"tensors": pad_sequence(rows, batch_first=True), "counts": counts}

    def fit_inputs(self, prepared: Prepared) -> None:
        self.inputs.fit(prepared["tensors"][_present(prepared["tensors"], prepared["counts"])])

    def forward(self, batch: Prepared) -> Tensor:
        features = self.each(self.inputs(batch["tensors"]).clamp(-self.clamp, self.clamp))
        return logits(self.head(self.joined(features, batch["counts"])))

    def joined(self, features: Tensor, counts: Tensor) -> Tensor:
        """Features of tensors, at least 0, ``(N, longest, WIDTH)``, and the numbers of them -> ``(N, 2 WIDTH)``."""
        present = _present(features, counts)[..., None]
        mean = (features * present).sum(1) / counts[:, None]
        largest = features.masked_fill(~present, 0).amax(1)  # what a ReLU gives is 0 at least
        return torch.cat([mean, largest], -1)


def _present(tensors: Tensor, counts: Tensor) -> Tensor:
    """Which rows are tensors and no padding, ``(N, longest)``."""
    return torch.arange(tensors.shape[1], device=counts.device) < counts[:, None]


def _kinds(tensors: Mapping[str, Tensor], space: WeightSpace) -> Tensor:
    """What is known of every parameter but its values, ``(parameters, 7)``: its place between the first and the last;
    how many axes it has, one, two or more; whether its first axis leads to neurons; logarithms of its numbers of
    entries and of rows.
    """
    rows = []
    for i, name in enumerate(space.parameters):
        shape = tensors[name].shape[2:]
        first = next((axis for axis in space.axes.get(name, ()) if isinstance(axis, Axis)), None)
        rows.append([
            i / max(1, len(space.parameters) - 1), *(float(n == min(len(shape), 3)) for n in (1, 2, 3)),
            float(first is not None and flow(first.charge) > 0), math.log(shape.numel()), math.log(shape[0]),
        ])  # fmt: skip
    return torch.tensor(rows)


@register("statnn-set")
class StatisticsSet(_TensorSet):
    """STATNN of any architecture: mean, variance and quartiles of every tensor."""

    label, invariant_under = "STATNN (set)", "permutations"
    width = 7

    def statistics(self, tensors: Mapping[str, Tensor], space: WeightSpace) -> Tensor:
        return torch.stack([statistics(tensors[name].flatten(1)) for name in space.parameters], 1)


def _invariant(tensors: Mapping[str, Tensor], space: WeightSpace) -> Tensor:
    """`InvariantStatistics` of every tensor, ``(N, parameters, 11)``; those of nodes are left out."""
    found: Tensor = InvariantStatistics(space)(tensors)
    return found[:, : OF_TENSOR * len(space.parameters)].reshape(len(found), -1, OF_TENSOR)


@register("stats-set")
class InvariantSet(_TensorSet):
    """Invariant statistics of any architecture: those that `InvariantStatistics` takes of every tensor."""

    label, invariant_under = "invariant statistics (set)", "group"
    width, clamp = OF_TENSOR, FURTHEST

    def statistics(self, tensors: Mapping[str, Tensor], space: WeightSpace) -> Tensor:
        return _invariant(tensors, space)


@register("recurrent")
class Recurrent(InvariantSet):
    """Invariant statistics of tensors and of their neurons' norms, read in order by a GRU, forwards and backwards.

    Neurons have the norms of what enters and of what leaves them in the balanced network: of every tensor, statistics
    of the logarithms of the norms of its rows and of its columns.
    """

    label, width = "recurrent", OF_TENSOR + 2 * 7

    def __init__(self, networks: NetworkInfo | MixedInfo, out_features: int = 1) -> None:
        super().__init__(networks, out_features)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)

    def statistics(self, tensors: Mapping[str, Tensor], space: WeightSpace) -> Tensor:
        balanced, _ = balance(tensors, space, signs=False)
        norms = []
        for name in space.parameters:
            x = balanced[name].squeeze(1)
            ways = [
                x.flatten(2) if x.ndim > 2 else x[..., None],
                x.transpose(1, 2).flatten(2) if x.ndim > 2 else x[:, None],
            ]
            norms.append(torch.cat([statistics(way.norm(dim=-1).log1p()) for way in ways], -1))
        return torch.cat([_invariant(tensors, space), torch.stack(norms, 1)], -1)

    def joined(self, features: Tensor, counts: Tensor) -> Tensor:
        packed = pack_padded_sequence(features, counts.cpu(), batch_first=True, enforce_sorted=False)
        last: Tensor = self.gru(packed)[1]
        return last.transpose(0, 1).flatten(1)
