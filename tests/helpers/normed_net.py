"""A small network with batch norm, and what it learns; commands take this file as one of a user's."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.enter, self.norm, self.head = nn.Linear(6, width), nn.BatchNorm1d(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.norm(self.enter(x))))
        return out


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :3].argmax(1)


def example_inputs() -> Tensor:
    return data()[0][:8]
