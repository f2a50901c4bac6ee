"""Groups hold for every checkpoint and length: what the example does not reach or happens to hold says nothing."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.space.certificate import answers, doubled, largest_change


def moved_by(space: WeightSpace, module: nn.Module, *inputs: Tensor) -> float:
    """By how much a random group element changes the outputs, relative to them, in float64."""
    state = {k: doubled(t) for k, t in (*module.named_parameters(), *module.named_buffers())}
    element = space.sample(generator=torch.Generator().manual_seed(0)).proper()
    inputs = tuple(map(doubled, inputs))
    return largest_change(answers(module, element.act(state), inputs), answers(module, state, inputs))


def trained(module: nn.Module) -> nn.Module:
    """The module with parameters and buffers that no initialisation has."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return module


class Places(nn.Module):
    """A stream with a table of places, of which it reads as many rows as there are tokens."""

    def __init__(self, read) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(3, 6), nn.Linear(6, 2)
        self.places, self.read = nn.Parameter(torch.randn(1, 16, 6)), read

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(torch.relu(self.enter(x) + self.read(self.places, x.shape[1])))


READS = {
    "a slice": lambda table, length: table[:, :length],
    "the mean of some rows": lambda table, length: table[:, : length + 3].mean(1, keepdim=True),
    "the mean of all but one row": lambda table, length: table[:, : length + 11].mean(1, keepdim=True),
    "from a place on": lambda table, length: table[:, 5 : 5 + length],
    "a slice of what is made of it": lambda table, length: (table * 2)[:, :length],
    "one row": lambda table, length: table[:, length],
    "all of it": lambda table, length: table[:, :length] + table[:, length:].mean(1, keepdim=True),
}


@pytest.mark.parametrize("read", READS)
def test_rows_of_a_table_that_the_example_does_not_read_are_fixed(read):
    module = Places(READS[read])
    space = WeightSpace.from_module(module, torch.randn(2, 4, 3))
    assert space.group_dimension == 6, "the stream's scales, and nothing of the table alone"
    assert "read in part on the example" in space.explain()
    for length in (1, 2, 4, 5):
        assert moved_by(space, module, torch.randn(2, length, 3)) < 1e-9


class FrozenNorm(nn.Module):
    """A batch norm whose four vectors are buffers, 1 and 0 before any training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name, start in (("gain", 1.0), ("shift", 0.0), ("mean", 0.0), ("variance", 1.0)):
            self.register_buffer(name, torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        gain = self.gain * (self.variance + 1e-5).rsqrt()
        return x * gain[:, None, None] + (self.shift - self.mean * gain)[:, None, None]


def frozen() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), FrozenNorm(4), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def test_a_frozen_norm_has_one_group_fresh_and_trained():
    image = torch.randn(2, 1, 7, 7)
    fresh, later = (WeightSpace.from_module(module, image) for module in (frozen(), trained(frozen())))
    assert fresh == later
    assert {"1.gain", "1.shift", "1.mean", "1.variance"} <= fresh.parameters.keys()
    assert [node.size for node in fresh.nodes.values() if node.permutes] == [4]
    assert moved_by(fresh, trained(frozen()), image) < 1e-9


BUFFERS = {
    "a mask of the lottery": (torch.ones(4, 3), lambda s, x: F.linear(x, s.enter.weight * s.table, s.enter.bias)),
    "a mask of truths": (torch.ones(4, 3, dtype=torch.bool), lambda s, x: F.linear(x, s.enter.weight * s.table)),
    "a shift": (torch.zeros(4), lambda s, x: s.enter(x) + s.table),
    "an order of neurons": (torch.arange(4), lambda s, x: s.enter(x)[:, s.table]),
    "mean of the inputs": (torch.zeros(3), lambda s, x: s.enter(x - s.table)),
    "a single number": (torch.tensor(1.0), lambda s, x: s.enter(x) * s.table),
    "a number with a dimension": (torch.ones(1), lambda s, x: torch.tanh(F.linear(x, s.enter.weight * s.table))),
    "a fixed matrix": (torch.eye(4), lambda s, x: s.enter(x) @ s.table),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_values_of_buffers_decide_nothing(name):
    values, enter = BUFFERS[name]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave = nn.Linear(3, 4), nn.Linear(4, 2)
            self.register_buffer("table", values.clone())

        def forward(self, x: Tensor) -> Tensor:
            return self.leave(torch.relu(enter(self, x)))

    fresh, other = Net(), Net()
    generator = torch.Generator().manual_seed(2)
    if values.is_floating_point():
        other.table.copy_(torch.randn(values.shape, generator=generator))
    else:
        shuffled = torch.randperm(values.numel(), generator=generator).view(values.shape)
        other.table.copy_(shuffled % 2 == 0 if values.dtype == torch.bool else shuffled)
    x = torch.randn(5, 3)
    space = WeightSpace.from_module(fresh, x)
    assert space == WeightSpace.from_module(other, x)
    assert moved_by(space, other, x) < 1e-9
