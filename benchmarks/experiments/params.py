"""Numbers of parameters of layers and models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from nfn_monomial.benchmarks.settings.base import Count, Settings
from nfn_monomial.benchmarks.settings.register import Experiment, register

__all__ = ["ParamsConfig"]


@dataclass(frozen=True)
class ParamsConfig(Settings):
    """Numbers of parameters, see `nfn_monomial.benchmarks.studies.params`.

    Attributes:
        sizes: of the network that one layer reads, inputs first, outputs last.
        kernel: side of the square kernels of all its layers but the last; 1 for an MLP.
        channels: in and out of that layer.
        largest: of the inputs and of the depth in the figure.
    """

    sizes: Annotated[tuple[Count, ...], Field(min_length=3)] = (1, 16, 16, 16, 10)
    kernel: Count = 3
    channels: tuple[Count, Count] = (16, 16)
    largest: Annotated[int, Field(ge=8)] = 1024

    @property
    def kernels(self) -> tuple[int, ...]:
        """Sides of the kernels, layer by layer."""
        return (*[self.kernel] * (len(self.sizes) - 2), 1)


register(
    Experiment(
        "params",
        """Count the parameters of one layer and of every model, against the paper's (Tables 1, 17, 21, 22). Seconds.

Writes `table.md`, `results.json`, `params.png` and `config.json`. Nothing is trained.

Examples:

- `nfn-monomial params`

- `nfn-monomial params --set sizes=784,128,128,10 --set kernel=1 --set channels=1,16`
""",
        {"small": ParamsConfig()},
        "params",
        keeps=False,
    )
)
