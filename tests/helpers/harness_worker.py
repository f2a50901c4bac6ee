"""A small experiment for tests that need processes of their own: ``python harness_worker.py FOLDER [JSON]``.

JSON may have ``devices``; ``fail``, the rank that shall raise in its tenth step; and ``kinds``, which are
done.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data.batches import Data
from nfn_monomial.benchmarks.models.monomial import Monomial  # alone: all models take a second to import
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.devices import make_fabric
from nfn_monomial.benchmarks.train.runs import RunSettings, RunStore
from nfn_monomial.benchmarks.train.sweep import Job, Test, Trial, sweep
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.predictors.models import NetworkInfo

SPACE = WeightSpace.mlp([2, 4, 1], "relu")
# Clipped, with warm-up, decay and a cosine, averaged; 13 networks in batches of 4 leave a last batch of one, smaller
# than two processes.
TRAINING = TrainConfig(
    epochs=4, batch_size=4, learning_rate=1e-2, weight_decay=0.1, warmup_steps=5, clip_norm=8.0, schedule="cosine",
    average_epochs=0.5, precision="64-true", checkpoint_seconds=0,
)  # fmt: skip
EXACT = ("monomial", "parts")  # without dropout
JOBS = (*EXACT, "dropout")


class Answer:
    """A pytree that DDP knows nothing of."""

    def __init__(self, values: Tensor, squares: Tensor) -> None:
        self.values, self.squares = values, squares


pytree.register_pytree_node(Answer, lambda a: ([a.values, a.squares], None), lambda leaves, _: Answer(*leaves))


class Parts(nn.Module):
    """Two outputs, dropout, and a parameter that no output depends on."""

    label, invariant_under, sees = "parts", "nothing", "weights"

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.values = nn.Sequential(nn.Linear(17, 8), nn.Dropout(dropout), nn.Tanh(), nn.Linear(8, 1)).double()
        self.squares = nn.Linear(17, 1).double()
        self.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Answer:
        return Answer(self.values(x).squeeze(-1), self.squares(x).squeeze(-1) ** 2)


def prepare(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([t.flatten(1) for t in tensors.values()], 1).double()


def data(seed: int, count: int) -> Data:
    """Networks, and the sums of their weights."""
    tensors = random_networks(SPACE, count, generator=torch.Generator().manual_seed(seed))
    plain = {name: t.squeeze(1) for name, t in tensors.items()}
    return Data(prepare(plain), prepare(plain).sum(1))


def values_of(outputs: Any) -> Tensor:
    """The answers, to which squares add what is not negative."""
    return outputs.values + outputs.squares if isinstance(outputs, Answer) else outputs


def loss(outputs: Any, targets: Tensor) -> Tensor:
    """Not a mean over the examples: all pairs in a batch, and the largest error."""
    values = values_of(outputs)
    pairs = (values[:, None] - values) - (targets[:, None] - targets)
    return pairs.square().sum() / len(targets) + (values - targets).abs().max()


def failing(outputs: Any, targets: Tensor, steps: Iterator[int]) -> Tensor:
    if next(steps) == 9:
        raise RuntimeError("broken on purpose")
    return loss(outputs, targets)


def metrics(outputs: Any, targets: Tensor) -> dict[str, float]:
    return {"score": -float((values_of(outputs) - targets).square().mean())}


class Packed(nn.Module):
    """The paper's model behind a vector of all parameters."""

    label, invariant_under, sees = "monomial", "group", "weights"

    def __init__(self) -> None:
        super().__init__()
        self.model = Monomial(NetworkInfo(SPACE, "relu")).double()

    def forward(self, x: Tensor) -> Tensor:
        shapes = SPACE.shapes()
        parts = x.split([torch.Size(shape).numel() for shape in shapes.values()], 1)
        tensors = {n: t.reshape(-1, 1, *s) for (n, s), t in zip(shapes.items(), parts, strict=True)}
        return self.model(self.model.prepare(tensors))


def settings_of(kind: str, training: TrainConfig = TRAINING) -> RunSettings:
    return RunSettings("harness", kind, "toy", "original", 0, {}, "pairs", training, "none", "code", 1)


def trial(settings: RunSettings, **changed: Any) -> Trial:
    kind = settings.subject
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Packed() if kind == "monomial" else Parts(dropout=0.3 if kind == "dropout" else 0.0)
    sets = [data(seed, count) for seed, count in enumerate((13, 7, 5))]
    given: dict[str, Any] = {"loss": loss, "metrics": metrics, **changed}
    return Trial(settings, model, sets[0], sets[1], lambda: [Test("plain", sets[2])], select="score", **given)


def jobs(kinds: Any = JOBS, training: TrainConfig = TRAINING, **changed: Any) -> list[Job]:
    return [Job(settings_of(kind, training), functools.partial(trial, **changed)) for kind in kinds]


def gradients(folder: Path, devices: int = 1) -> dict[str, Tensor]:
    """By kind, of every step of an epoch that leaves the parameters where they are; unclipped, to see their size.

    Adam divides a gradient by its size, so where that is small, rounding decides where parameters go. Where they stay,
    the gradients of two processes are those of one to rounding, on every machine.
    """
    still = replace(TRAINING, epochs=1, learning_rate=1e-14, clip_norm=None, devices=devices)
    found: dict[str, list[Tensor]] = {kind: [] for kind in EXACT}
    for kind, steps in found.items():

        def record(optimizer: torch.optim.Optimizer, *_: Any, steps: list[Tensor] = steps) -> None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            steps.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))

        hook = register_optimizer_step_pre_hook(record)
        sweep(jobs([kind], still), RunStore(folder))
        hook.remove()
    return {kind: torch.stack(steps) for kind, steps in found.items()}


def main(folder: Path, devices: int = 1, fail: int | None = None, **asked: Any) -> None:
    fabric = make_fabric(replace(TRAINING, devices=devices))
    rank = fabric.global_rank
    made = folder / "made"
    with fabric.rank_zero_first():
        if rank == 0:
            time.sleep(0.3)
            made.mkdir(parents=True, exist_ok=True)
        assert made.exists(), "made by the main process before the others come here"
    changed: dict[str, Any] = {}
    if fail == rank:
        changed = {"loss": functools.partial(failing, steps=iter(range(100)))}
    asked_jobs = jobs(training=replace(TRAINING, devices=devices), **asked, **changed)
    told: list[object] = []
    runs = sweep(asked_jobs, RunStore(folder), told.append)
    assert sweep(asked_jobs, RunStore(folder)) == runs, "kept by all"
    if fail is None:
        save_file(gradients(folder / "still", devices), folder / f"gradients{rank}.safetensors")
    record = {"runs": [run.to_json() for run in runs], "told": len(told), "world": fabric.world_size}
    (folder / f"rank{rank}.json").write_text(json.dumps(record), encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), **(json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}))
