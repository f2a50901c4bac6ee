"""Training steps of whole models: as they are, in bfloat16, and compiled, as ratios taken in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nfn_monomial import Features, WeightSpace
from nfn_monomial.benchmarks.report.tables import Table
from nfn_monomial.benchmarks.settings.measurements import Way
from nfn_monomial.benchmarks.train.measure import race
from nfn_monomial.models import MessagePassingNFN, MonomialNFN
from nfn_monomial.testing import random_networks

from .layers import NETWORKS

__all__ = ["MODELS", "Step", "bench_models", "model_table"]

MODELS: dict[str, Callable[[WeightSpace], nn.Module]] = {
    "MonomialNFN": MonomialNFN,
    "MessagePassingNFN": MessagePassingNFN,
}
NETWORK = "zoo CNN"


@dataclass(frozen=True)
class Step:
    """One model in one setting: median milliseconds of forward and backward; ``skipped`` says why it did not run."""

    model: str
    batch: int
    way: Way
    ms: float = 0.0
    skipped: str = ""


def bench_models(
    batches: Sequence[int],
    ways: Sequence[Way],
    repeats: int,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> list[Step]:
    """Time a training step of each model on the Small CNN Zoo's network; ways take turns.

    Args:
        batches: numbers of networks.
        ways: as in `LayersConfig`. On a GPU compiled models run as CUDA graphs.
        repeats: timed repetitions, after three that are not counted; the first of them compiles.
        device: ``"cpu"`` or ``"cuda"``.
        progress: called with a line of text before each setting.
    """
    steps = []
    for name in MODELS:
        for batch in batches:
            progress(f"{name}, batch {batch}")
            left_out = {way: reason for way in ways if (reason := _missing(way, device))}
            calls = {way: _step(name, batch, way, device) for way in ways if way not in left_out}
            ms = race(calls, repeats, device)
            steps += [Step(name, batch, way, ms.get(way, 0.0), left_out.get(way, "")) for way in ways]
    return steps


def _missing(way: Way, device: str) -> str:
    """Why the machine cannot do it, empty if it can."""
    if way != "bfloat16":
        return ""
    if device.startswith("cuda"):
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = torch.backends.mkldnn.enabled and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "" if fast else f"no instructions for bfloat16 on {device}"


def _step(name: str, batch: int, way: Way, device: str) -> Callable[[], None]:
    space = NETWORKS[NETWORK]()
    generator = torch.Generator().manual_seed(0)
    packed = space.pack(random_networks(space, batch, dtype=torch.float32, generator=generator)).to(device)
    torch.manual_seed(0)
    model = MODELS[name](space).to(device)

    def forward(*tensors: Tensor) -> Tensor:
        out: Tensor = model(Features(packed.layout, tensors))
        return out

    call: Callable[..., Tensor] = forward
    if way == "compiled":
        call = torch.compile(forward, mode="reduce-overhead" if device.startswith("cuda") else None)

    def step() -> None:
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=way == "bfloat16"):
            loss = call(*packed.tensors).float().square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter in model.parameters():
            parameter.grad = None

    return step


def model_table(steps: Sequence[Step]) -> Table:
    """A line for every model, batch and way, with the gain over the first way of the same setting."""
    cells: list[tuple[str, ...]] = []
    for s in steps:
        first = next(p for p in steps if (p.model, p.batch) == (s.model, s.batch))
        found = (f"{s.ms:.1f}", f"{first.ms / s.ms:.2f}x") if s.ms and first.ms else (s.skipped or "-", "-")
        cells.append((s.model, str(s.batch), s.way, *found))
    return Table(
        f"A training step of whole models on {NETWORK}",
        ("model", "batch", "way", "ms", "times as fast"),
        tuple(cells),
        names=(0, 2),
        notes=("Medians of forward and backward. bfloat16: products in it (autocast), parameters in float32.",),
    )
