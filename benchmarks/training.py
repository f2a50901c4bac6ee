"""The training loop that all experiments share, on Lightning Fabric.

Data sets lie in memory as tensors and batches are taken out by index, so that an epoch has no work per network in
Python. What to learn is injected: a loss, metrics, and the name of the metric that selects the best epoch on the
validation set. Nothing else is selected on, and the test set never comes here.

Epoch ``e`` shuffles and draws with generators seeded by ``(seed, e)``, so it does not depend on how it was reached.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .measure import Clock, step_memory

__all__ = ["Data", "Epoch", "FitResult", "TrainConfig", "derive_seed", "fit", "make_fabric", "predict"]

Loss = Callable[[Any, Any], Tensor]
"""(outputs, targets) of one batch -> scalar."""
Metrics = Callable[[Any, Any], Mapping[str, float]]
"""(outputs, targets) of a whole data set -> named numbers."""

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class TrainConfig:
    """How to train. The defaults are the paper's for predicting generalisation (App. D.3).

    ``device``: ``cpu``, ``cuda`` or ``cuda:1``. ``warmup_steps``: the learning rate rises linearly over so many
    steps. ``patience``: stop after so many epochs without a better one; None trains all ``epochs``.
    ``clip_norm``: largest norm of the gradient; None does not clip. ``weight_decay`` is decoupled (AdamW).
    """

    epochs: int = 50
    batch_size: int = 8
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warmup_steps: int = 0
    clip_norm: float | None = None
    patience: int | None = None
    device: str = "cpu"
    precision: Literal["32-true", "bf16-mixed", "64-true"] = "32-true"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} is {value}, but must be at least 1")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate is {self.learning_rate}, but must be positive")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm is {self.clip_norm}, but must be positive, or None not to clip")


@dataclass(frozen=True)
class Data:
    """A data set: pytrees of tensors whose first dimension counts the examples."""

    inputs: Any
    targets: Any

    def __len__(self) -> int:
        return len(pytree.tree_leaves(self.targets)[0])

    def to(self, device: torch.device) -> Data:
        """Every tensor on this device."""
        inputs, targets = (pytree.tree_map(lambda t: t.to(device), x) for x in (self.inputs, self.targets))
        return Data(inputs, targets)

    def take(self, index: Tensor) -> Data:
        """The examples with these numbers."""
        inputs, targets = (pytree.tree_map(lambda t: t.index_select(0, index), x) for x in (self.inputs, self.targets))
        return Data(inputs, targets)


@dataclass(frozen=True)
class Epoch:
    """One epoch. Times in seconds: ``seconds`` of the pass over the training set, of which ``step_seconds`` were
    forward, backward and optimiser; ``validation_seconds`` of the validation that followed.
    """

    number: int  # from 1
    train_loss: float
    metrics: dict[str, float]  # on the validation set
    seconds: float
    step_seconds: float
    validation_seconds: float


@dataclass(frozen=True)
class FitResult:
    """What a training left. ``best`` is the selected epoch, whose parameters the model has.

    ``seconds_per_epoch``: median over epochs of the pass over the training set. ``step_share``: the share of that
    time in forward, backward and optimiser. ``peak_bytes``: see `step_memory`. ``diverged``: the loss became NaN or
    infinite, which ended the training.
    """

    history: list[Epoch]
    best: Epoch
    seconds_per_epoch: float
    step_share: float
    peak_bytes: int
    diverged: bool


def derive_seed(*parts: object) -> int:
    """A seed for `torch.Generator` from anything that has a repr; different parts give independent streams."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")


def make_fabric(config: TrainConfig) -> Fabric:
    """Fabric on the configured device.

    Raises:
        ValueError: if there is no such device.
    """
    try:
        device = torch.device(config.device)
    except RuntimeError:
        raise ValueError(f"device {config.device!r} is unknown; use cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {config.device!r} is not there: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA "
            "devices; use cpu"
        )
    devices: Any = 1 if device.index is None or device.type == "cpu" else [device.index]
    fabric = Fabric(accelerator=device.type, devices=devices, precision=config.precision)
    fabric.launch()  # makes a GPU the current one
    return fabric


def fit(
    model: nn.Module,
    train: Data,
    val: Data,
    config: TrainConfig,
    *,
    loss: Loss,
    metrics: Metrics,
    select: str,
    seed: int,
    fabric: Fabric | None = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> FitResult:
    """Train ``model`` in place; it ends on the configured device with the parameters of the best epoch.

    Args:
        model: maps a batch of ``train.inputs`` to outputs.
        train: training data.
        val: validation data.
        config: see `TrainConfig`.
        loss: of a batch.
        metrics: of the whole validation set.
        select: the metric that decides on the best epoch, larger is better; the first of equal ones wins, and NaN
            is lower than any number.
        seed: of the order of the examples and of dropout.
        fabric: where to run; by default as the configuration says.
        on_epoch: called after every epoch.

    Raises:
        ValueError: if a data set is empty.
    """
    if not len(train) or not len(val):
        raise ValueError(f"{len(train)} training and {len(val)} validation examples; at least one of each is needed")
    fabric = fabric or make_fabric(config)
    device = fabric.device
    train, val = train.to(device), val.to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), config.learning_rate, weight_decay=config.weight_decay, fused=device.type in ("cpu", "cuda")
    )
    wrapped, wrapped_optimizer = fabric.setup(model, optimizer)
    rise = config.warmup_steps + 1
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / rise))

    def step(index: Tensor) -> Tensor:
        batch = train.take(index)
        start = clock.now()
        wrapped_optimizer.zero_grad(set_to_none=True)
        value = loss(wrapped(batch.inputs), batch.targets)
        fabric.backward(value)
        if config.clip_norm is not None:
            # An infinite norm makes its infinite entries NaN, so the next loss is NaN and ends the training.
            fabric.clip_gradients(wrapped, wrapped_optimizer, max_norm=config.clip_norm, error_if_nonfinite=False)
        wrapped_optimizer.step()
        clock.mark(start)
        return value.detach()

    history: list[Epoch] = []
    best: Epoch | None = None
    best_state: dict[str, Tensor] = {}
    with _seeded(device):
        for number in range(1, config.epochs + 1):
            torch.manual_seed(derive_seed(seed, number, "dropout"))
            clock = Clock(device)
            start = clock.now()
            order = torch.Generator().manual_seed(derive_seed(seed, number, "order"))
            indices = torch.randperm(len(train), generator=order).to(device)
            total = torch.zeros((), device=device)
            wrapped.train()
            for index in torch.split(indices, config.batch_size):
                total += step(index) * len(index)
                warm_up.step()
            seconds, step_seconds = clock.stop(start)
            train_loss = float(total) / len(train)
            start = clock.now()
            found = dict(metrics(predict(wrapped, val.inputs), val.targets))
            validation_seconds, _ = clock.stop(start)
            epoch = Epoch(number, train_loss, found, seconds, step_seconds, validation_seconds)
            history.append(epoch)
            if best is None or _or_lowest(found[select]) > _or_lowest(best.metrics[select]):
                best = epoch
                best_state = {name: t.detach().clone() for name, t in model.state_dict().items()}
            on_epoch(epoch)
            if not math.isfinite(train_loss) or number - best.number >= (config.patience or config.epochs):
                break
        wrapped.train()
        clock = Clock(device)
        optimizer.zero_grad(set_to_none=True)
        peak = step_memory(lambda: step(indices[: config.batch_size]), model, optimizer, device)
    assert best is not None, "there is at least one epoch"
    optimizer.zero_grad(set_to_none=True)
    model.load_state_dict(best_state)
    model.eval()
    return FitResult(
        history,
        best,
        seconds_per_epoch=sorted(e.seconds for e in history)[len(history) // 2],
        step_share=sum(e.step_seconds for e in history) / sum(e.seconds for e in history),
        peak_bytes=peak,
        diverged=not math.isfinite(history[-1].train_loss),
    )


def predict(model: nn.Module, inputs: Any, batch_size: int = EVALUATION_BATCH) -> Any:
    """Outputs of the model in evaluation mode for a whole data set, on the device of the inputs."""
    leaves, structure = pytree.tree_flatten(inputs)
    model.eval()
    parts = []
    with torch.no_grad():
        for start in range(0, len(leaves[0]), batch_size):
            batch = pytree.tree_unflatten([t[start : start + batch_size] for t in leaves], structure)
            parts.append(model(batch))
    return pytree.tree_map(lambda *tensors: torch.cat(tensors), *parts)


def _or_lowest(value: float) -> float:
    return -math.inf if math.isnan(value) else value


@contextmanager
def _seeded(device: torch.device) -> Iterator[None]:
    """Give the global random state back as it was."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
