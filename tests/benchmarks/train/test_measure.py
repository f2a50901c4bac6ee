"""Memory of a step, whatever ran before it."""

import gc

import torch
from torch import nn

from nfn_monomial.benchmarks.train.measure import step_memory


class _InACycle:
    """Holds a tensor, and is freed by the garbage collector alone."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held, self.itself = held, self


def test_garbage_of_an_earlier_step_is_not_counted() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    kept: list[_InACycle] = []

    def step() -> None:
        gc.collect()
        kept.append(_InACycle(torch.zeros(1_000_000)))

    first = step_memory(step, model, optimizer, torch.device("cpu"))
    kept.clear()
    assert first >= 4_000_000
    assert step_memory(step, model, optimizer, torch.device("cpu")) >= 4_000_000
