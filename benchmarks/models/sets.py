"""Models that read the tensors of a network as a set: statistics of each, whatever the architecture.

`baselines.StatNN` and `combined.Stats` read a vector of statistics, of networks of one architecture; these models read
any: a small MLP gets the statistics and the kind of every tensor, and its mean and maximum over all tensors go on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from nfn_monomial import Axis, InvariantStatistics, WeightSpace
from nfn_monomial.space.axes import flow
from nfn_monomial.tools.predictors.models import (
    MixedInfo,
    Model,
    NetworkGroup,
    NetworkInfo,
    Standardise,
    logits,
    register,
)

from .parts import mlp, statistics

__all__ = ["InvariantSet", "StatisticsSet"]

WIDTH = 64  # of a tensor's features
HEAD_WIDTH = 200
OF_TENSOR = 11  # statistics that `InvariantStatistics` takes of a tensor
KIND_FEATURES = 7  # see `_kinds`
FURTHEST = 5.0  # standard deviations: invariant statistics beyond are cut off, as those of one architecture are

Prepared = dict[str, Tensor]


class _TensorSet(Model):
    """Base of models on sets; a subclass has `statistics` and their ``width``."""

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
            values = self.statistics(tensors, space)
            kinds = _kinds(tensors, space).to(values)
            rows += torch.cat([values, kinds.expand(len(values), -1, -1)], -1)
        counts = torch.tensor([len(row) for row in rows], device=rows[0].device)
        return {"tensors": pad_sequence(rows, batch_first=True), "counts": counts}

    def fit_inputs(self, prepared: Prepared) -> None:
        self.inputs.fit(prepared["tensors"][_present(prepared["tensors"], prepared["counts"])])

    def forward(self, batch: Prepared) -> Tensor:
        features = self.each(self.inputs(batch["tensors"]).clamp(-self.clamp, self.clamp))
        counts = batch["counts"]
        present = _present(features, counts)[..., None]
        mean = (features * present).sum(1) / counts[:, None]
        largest = features.masked_fill(~present, 0).amax(1)  # outputs of a ReLU are 0 at least
        return logits(self.head(torch.cat([mean, largest], -1)))


def _present(tensors: Tensor, counts: Tensor) -> Tensor:
    """Returns a mask ``(N, longest)`` of rows that are tensors, and no padding."""
    return torch.arange(tensors.shape[1], device=counts.device) < counts[:, None]


def _kinds(tensors: Mapping[str, Tensor], space: WeightSpace) -> Tensor:
    """Describes every parameter apart from its values, ``(parameters, 7)``: its place between the first and the last;
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


@register("stats-set")
class InvariantSet(_TensorSet):
    """Invariant statistics of any architecture: those that `InvariantStatistics` takes of every tensor."""

    label, invariant_under = "invariant statistics (set)", "group"
    width, clamp = OF_TENSOR, FURTHEST

    def statistics(self, tensors: Mapping[str, Tensor], space: WeightSpace) -> Tensor:
        """Returns the statistics of tensors, without those of nodes."""
        values: Tensor = InvariantStatistics(space)(tensors)
        return values[:, : OF_TENSOR * len(space.parameters)].reshape(len(values), -1, OF_TENSOR)
