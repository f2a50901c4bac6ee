"""Trainings of a linear model on made-up numbers, which take a moment."""

import torch
from torch import Tensor, nn

from nfn_monomial.benchmarks.data.batches import Data
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.loop import FitResult, fit

CONFIG = TrainConfig(epochs=4, batch_size=8, learning_rate=1e-2)


def toy(count: int = 64, seed: int = 0) -> Data:
    """A linear function of eight numbers, which lie in a pytree."""
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return Data({"all": [x]}, x @ torch.arange(8.0))


class Linear(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Dropout(dropout), nn.Linear(8, 1))

    def forward(self, batch: dict[str, list[Tensor]]) -> Tensor:
        out: Tensor = self.layers(batch["all"][0]).squeeze(-1)
        return out


def linear(dropout: float = 0.0, seed: int = 0) -> Linear:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Linear(dropout)


def negative_error(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    return {"score": -float((outputs - targets).square().mean())}


def run(model: nn.Module, config: TrainConfig = CONFIG, seed: int = 0, **kwargs: object) -> FitResult:
    given = {"loss": nn.functional.mse_loss, "metrics": negative_error, "select": "score", **kwargs}
    return fit(model, toy(), toy(32, seed=1), config, seed=seed, **given)  # type: ignore[arg-type]
