"""The training loop that all experiments share, on Lightning Fabric.

Batches are taken out of a data set by index, so that an epoch has no work per network in Python. The task is
injected: a loss, metrics, and the name of the metric that selects the best epoch on the validation set. Nothing else is
selected on, and the test set never comes here.

**Reproduced.** Epoch ``e`` is shuffled by a generator seeded by ``(seed, e)``, and whatever its step ``s`` draws, in
random layers (dropout, augmentation), by ``(seed, e, s)``. So an epoch does not depend on how it was reached, and a
training that was cut off anywhere continues exactly after the last epoch that its `UnfinishedTraining` has: of two
trainings with one seed on a CPU, one cut off and continued, one not, all is equal, bit by bit, but the times.

**Several processes** give the results of one to rounding, see `train.devices`. With random layers
they are equal in distribution only: every process draws for its own share.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial.benchmarks.data.batches import Data, pick
from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.models import recompute_blocks
from nfn_monomial.tools.predictors.models import at_once

from .checkpoint import UnfinishedTraining
from .devices import compiled, compiling, gathered, make_fabric, share
from .measure import Clock, step_memory

__all__ = ["Epoch", "FitResult", "Loss", "Metrics", "deterministic", "fit", "learning_rate", "predict"]

RISE = 0.3  # share of the steps of one cycle in which the learning rate rises

Loss = Callable[[Any, Any], Tensor]
"""(outputs, targets) of one batch -> scalar."""
Metrics = Callable[[Any, Any], Mapping[str, float]]
"""(outputs, targets) of a whole data set -> named numbers."""


@dataclass(frozen=True)
class Epoch:
    """One epoch. Times in seconds: ``seconds`` of the pass over the training set, of which ``step_seconds`` were
    forward, backward and optimiser; ``validation_seconds`` of the validation, if one followed.
    """

    number: int  # from 1
    train_loss: float
    metrics: dict[str, float]  # on the validation set; empty where it was not asked
    seconds: float
    step_seconds: float
    validation_seconds: float


@dataclass(frozen=True)
class FitResult:
    """The result of a training. ``best`` is the selected epoch, whose parameters the model has.

    ``seconds_per_epoch``: median over epochs of the pass over the training set. ``step_share``: the share of that
    time in forward, backward and optimiser. ``peak_bytes``: see `step_memory`, of one process. ``diverged``: the loss
    became NaN or infinite, which ended the training.
    """

    history: list[Epoch]
    best: Epoch
    seconds_per_epoch: float
    step_share: float
    peak_bytes: int
    diverged: bool


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
    checkpoint: Path | None = None,
) -> FitResult:
    """Trains ``model`` in place; it ends on the configured device with the parameters of the best epoch.

    Args:
        model: maps a batch of ``train``'s inputs to outputs, a pytree of tensors whose first dimension is the batch's.
        train: training data.
        val: validation data.
        config: see `TrainConfig`.
        loss: of a batch.
        metrics: of the whole validation set.
        select: the metric that decides on the best epoch, larger is better; the first of equal ones wins, and NaN
            is lower than any number.
        seed: of the order of the examples and of random layers.
        fabric: where to run; by default as the configuration says.
        on_epoch: called after every epoch; if a training continues, first for the epochs that are done.
        checkpoint: where the unfinished training is written at ends of epochs, and from where it continues if it is
            there, see `UnfinishedTraining`. It is for the caller to remove, when the result is safe, and to name by all
            that determines it.

    Raises:
        ValueError: if a data set is empty.
    """
    if not len(train) or not len(val):
        raise InvalidValueError(
            f"{len(train)} training and {len(val)} validation examples; at least one of each is needed"
        )
    fabric = fabric or make_fabric(config)
    devices = [fabric.device] if fabric.device.type == "cuda" else []
    # The global random state is given back as it was.
    with torch.random.fork_rng(devices=devices), deterministic(fabric.device), warnings.catch_warnings():
        # Its new name is not known to older versions of torch.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
        training = _Training(model, train, val, config, loss, metrics, select, seed, fabric)
        return training.run(on_epoch, UnfinishedTraining(checkpoint, config.checkpoint_seconds) if checkpoint else None)


@dataclass
class _State:
    """The state of a training after an epoch, besides the model and the optimiser."""

    history: list[Epoch] = field(default_factory=list)
    best: int = 0  # number of the best epoch
    best_model: dict[str, Tensor] = field(default_factory=dict)
    average: list[Tensor] = field(default_factory=list)  # of the parameters, if one is asked for


class _Leaves(nn.Module):
    """The model with its outputs as a list of tensors: DDP looks for them in lists, not in all pytrees.

    ``full``, the call for whole batches, may be compiled; smaller ones would be another graph to wait for.
    """

    def __init__(self, model: nn.Module, full: Callable[[Any], Any]) -> None:
        super().__init__()
        self.model, self.full = model, full
        self.unused = nn.Parameter(torch.zeros(()))  # or DDP, told to look for such, says where it found none
        self.structure: pytree.TreeSpec

    def forward(self, inputs: Any, full: bool) -> list[Tensor]:
        leaves, self.structure = pytree.tree_flatten((self.full if full else self.model)(inputs))
        return leaves


class _Training:
    """One call of `fit`."""

    def __init__(
        self, model: nn.Module, train: Data, val: Data, config: TrainConfig, loss: Loss, metrics: Metrics,
        select: str, seed: int, fabric: Fabric,
    ) -> None:  # fmt: skip
        device = fabric.device
        self.model, self.config, self.fabric, self.seed = model, config, fabric, seed
        self.loss, self.metrics, self.select = loss, metrics, select
        self.train, self.val = train.to(device), val.to(device)
        self.optimizer = torch.optim.AdamW(
            model.parameters(), config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        recompute_blocks(model, config.recompute)
        self.leaves = _Leaves(model, compiled(model, device) if config.compiled else model.__call__)
        self.wrapped, self.wrapped_optimizer = fabric.setup(self.leaves, self.optimizer)
        self.clock = Clock(device)
        self.state = _State()

    def run(self, on_epoch: Callable[[Epoch], None], checkpoint: UnfinishedTraining | None) -> FitResult:
        if checkpoint is not None:
            self._resume(checkpoint)
        config, state = self.config, self.state
        history = state.history
        for epoch in history:
            on_epoch(epoch)
        while not history or (
            history[-1].number < config.epochs
            and (not history[-1].metrics or history[-1].number - state.best < (config.patience or config.epochs))
            and math.isfinite(history[-1].train_loss)
        ):
            self._train_and_validate()
            if checkpoint is not None and checkpoint.due and self.fabric.is_global_zero:
                stated = {**vars(state), "history": [asdict(epoch) for epoch in history]}
                model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
                checkpoint.save({"model": model, "optimizer": optimizer, "state": stated})
            on_epoch(history[-1])
        # One more step, whose result is dropped, for the peak memory.
        batch = self._batches(1)[0]
        self.wrapped.train()
        self.optimizer.zero_grad(set_to_none=True)
        peak = step_memory(lambda: self._step(batch, 0), self.model, self.optimizer, self.fabric.device)
        self.optimizer.zero_grad(set_to_none=True)
        self.model.load_state_dict(state.best_model)
        self.model.eval()
        return FitResult(
            history,
            history[state.best - 1],
            seconds_per_epoch=sorted(e.seconds for e in history)[len(history) // 2],
            step_share=sum(e.step_seconds for e in history) / sum(e.seconds for e in history),
            peak_bytes=peak,
            diverged=not math.isfinite(history[-1].train_loss),
        )

    def _batches(self, epoch: int) -> tuple[Tensor, ...]:
        """Numbers of the examples of every batch of an epoch."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch, "order"))
        return torch.split(torch.randperm(len(self.train), generator=generator), self.config.batch_size)

    def _train_and_validate(self) -> None:
        """Does one epoch, adds it to the history, and keeps the model if the epoch is the best so far."""
        state, config, fabric = self.state, self.config, self.fabric
        number = len(state.history) + 1
        total = torch.zeros((), device=fabric.device)
        self.wrapped.train()
        start = self.clock.now()
        for i, index in enumerate(self._batches(number)):
            # As torch.manual_seed, in a hundredth of its time, which is that of a small step.
            seed = derive_seed(self.seed, number, i, fabric.global_rank)
            torch.default_generator.manual_seed(seed)
            if fabric.device.type == "cuda":
                torch.cuda.manual_seed(seed)
            total += self._step(index, i) * len(index)
        seconds, step_seconds = self.clock.stop(start)
        train_loss = fabric.broadcast(float(total) / len(self.train))
        # If an average of the parameters is asked for, the model has it while it is validated and copied.
        parameters = list(self.model.parameters()) if state.average else []
        newest = [p.detach().clone() for p in parameters]
        with torch.no_grad():
            for p, average in zip(parameters, state.average, strict=True):
                p.copy_(average)
            start = self.clock.now()
            due = number % config.validate_every == 0 or number == config.epochs or not math.isfinite(train_loss)
            metrics: dict[str, float] = {}
            if due:
                # One process decides for all, so that they do not decide differently.
                scores = self.metrics(predict(self.model, self.val, fabric), self.val.targets)
                metrics = fabric.broadcast({name: float(value) for name, value in scores.items()})
            validation_seconds, _ = self.clock.stop(start)
            state.history.append(Epoch(number, train_loss, metrics, seconds, step_seconds, validation_seconds))
            best = state.history[state.best - 1].metrics
            if due and (not state.best or _or_lowest(metrics[self.select]) > _or_lowest(best[self.select])):
                state.best = number
                state.best_model = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
            for p, value in zip(parameters, newest, strict=True):
                p.copy_(value)

    def _step(self, index: Tensor, place: int) -> Tensor:
        """One step on the batch with these numbers, of which this process has its share; ``place``: in its epoch."""
        fabric, config = self.fabric, self.config
        inputs, targets = pick(self.train.inputs, share(index, fabric)), pick(self.train.targets, index)
        start = self.clock.now()
        self.wrapped_optimizer.zero_grad(set_to_none=True)
        epoch_steps = math.ceil(len(self.train) / config.batch_size)
        done = len(self.state.history) * epoch_steps + place
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config, done, config.epochs * epoch_steps)
        full = len(index) == min(config.batch_size, len(self.train))
        outputs = gathered(self.wrapped(_converted(inputs, fabric), full), len(index), fabric)
        value = self.loss(pytree.tree_unflatten(outputs, self.leaves.structure), targets)
        with compiling(self.model, fabric.device):
            fabric.backward(value * fabric.world_size)  # see `devices` for why
        if config.clip_norm is not None:
            # An infinite norm makes its infinite entries NaN, so the next loss is NaN and ends the training.
            fabric.clip_gradients(
                self.wrapped, self.wrapped_optimizer, max_norm=config.clip_norm, error_if_nonfinite=False
            )
        self.wrapped_optimizer.step()
        if config.average_epochs:
            with torch.no_grad():
                parameters: list[Tensor] = list(self.model.parameters())
                self.state.average = self.state.average or [p.clone() for p in parameters]
                # At first the average is a plain mean, then an exponential one.
                weight = max(1 / (done + 1), 1 / max(1.0, config.average_epochs * epoch_steps))
                torch._foreach_lerp_(self.state.average, parameters, weight)
        self.clock.mark(start)
        return value.detach()

    def _resume(self, checkpoint: UnfinishedTraining) -> None:
        saved = checkpoint.load() if self.fabric.is_global_zero else None
        if saved is not None:
            shapes, expected = ({n: t.shape for n, t in s.items()} for s in (saved["model"], self.model.state_dict()))
            if shapes != expected:
                checkpoint.reject("it has other parameters than the model")
                saved = None
        if (saved := self.fabric.broadcast(saved)) is not None:
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            state = pytree.tree_map(lambda x: x.to(self.fabric.device) if isinstance(x, Tensor) else x, saved["state"])
            self.state = _State(**{**state, "history": [Epoch(**epoch) for epoch in state["history"]]})


def learning_rate(config: TrainConfig, step: int, steps: int) -> float:
    """Returns the learning rate of a step, counted from 0, of so many in all.

    It rises linearly over the warm-up; then it stays, or falls along half a cosine that would reach 0 at ``steps``.
    """
    warm = max(config.warmup_steps, math.ceil(RISE * steps) if config.schedule == "one-cycle" else 0)
    if step < warm or config.schedule == "constant":
        return config.learning_rate * min(1.0, (step + 1) / (warm + 1))
    done = min(1.0, (step - warm) / max(1, steps - warm))
    return config.learning_rate * (1 + math.cos(math.pi * done)) / 2


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """A block in which a GPU's operators are deterministic where they can be."""
    if device.type != "cuda":  # they are, and the switch would only slow them down
        yield
        return
    settings: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = False  # which would cost a kernel for every tensor
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        settings.fill_uninitialized_memory = fill


def predict(model: nn.Module, data: Data, fabric: Fabric) -> Any:
    """Outputs ``(N, ...)`` of the model in evaluation mode for a whole data set, in every process.

    Args:
        model: on the device of the data.
        data: ``N`` examples.
        fabric: shares them out over its processes, and has the precision.
    """
    precision = fabric.strategy.precision
    batches = torch.split(torch.arange(len(data)), at_once(data.nbytes / max(1, len(data))))
    model.eval()
    parts = []
    with torch.no_grad(), deterministic(fabric.device):
        for index in batches:
            inputs = _converted(pick(data.inputs, share(index, fabric)), fabric)
            with precision.forward_context():
                outputs = precision.convert_output(model(inputs))
            parts.append(gathered(outputs, len(index), fabric))
    return pytree.tree_map(lambda *tensors: torch.cat(tensors), *parts)


def _converted(inputs: Any, fabric: Fabric) -> Any:
    """Inputs as the precision wants them; Fabric by itself looks for tensors in lists and dicts, not in pytrees."""
    return pytree.tree_map(fabric.strategy.precision.convert_input, inputs)


def _or_lowest(value: float) -> float:
    return -math.inf if math.isnan(value) else value
