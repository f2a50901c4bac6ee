"""Measuring: the time of training, memory and operators of a step, and the speed of calls that take turns."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Clock", "operators", "race", "step_memory"]

Key = TypeVar("Key", bound=Hashable)


def step_memory(
    step: Callable[[], object], model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> int:
    """Largest number of bytes of tensors alive at once in one training step, without the data set.

    Counted: parameters, buffers and the optimiser's state, which live all the time, and whatever the step allocates
    (the batch, activations, gradients), temporary results of operators included. From the allocator: its statistics
    on CUDA, its log of allocations and frees (torch.profiler) on a CPU. Call it when gradients are freed. Not counted:
    the memory of CUDA graphs, which they allocated when they were captured.
    """
    gc.collect()  # else tensors of an earlier step that are in cycles may be freed in this one, and count
    state = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, Tensor)]
    persistent = sum(t.nbytes for t in (*model.parameters(), *model.buffers(), *state))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return persistent + torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    assert profile.profiler is not None, "the profiler has run"
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return persistent + peak


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators that are called in it, backward passes included."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (func.is_view or func is torch.ops.aten._unsafe_view.default)
        return func(*args, **(kwargs or {}))


def operators(call: Callable[[], object]) -> int:
    """Number of operators that a call runs. Views do not count, since they compute nothing.

    Where networks are few, they decide how long a call takes: each takes some microseconds to start.
    """
    with _Operators() as counter:
        call()
    count: int = counter.count
    return count


class Clock:
    """Seconds of marked stretches; on CUDA between events in the stream, so that measuring waits for nothing."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marked: list[tuple[Any, Any]] = []

    def now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def mark(self, start: Any) -> None:
        """Counts the time from ``start`` until now."""
        self._marked.append((start, self.now()))

    def stop(self, start: Any) -> tuple[float, float]:
        """Seconds since ``start``, and seconds marked; forgets the marks."""
        end = self.now()
        if self._cuda:
            end.synchronize()
        marked, self._marked = self._marked, []
        return self._between(start, end), sum(self._between(*pair) for pair in marked)

    def _between(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1000 if self._cuda else end - start


def race(
    calls: Mapping[Key, Callable[[], object]], repeats: int, device: str, seconds: float = math.inf
) -> dict[Key, float]:
    """Median milliseconds of each call, which take turns; the first three rounds are not counted.

    Args:
        calls: to time.
        repeats: rounds that are counted.
        device: ``"cpu"`` or ``"cuda"``.
        seconds: after so many no further round begins, but for the first of all and the first that is counted.
    """
    times: dict[Key, list[float]] = {key: [] for key in calls}
    start = time.perf_counter()
    for repeat in range(-3, repeats):
        late = time.perf_counter() - start > seconds
        if late and repeat > 0:
            break
        if late and -3 < repeat < 0:
            continue
        for key, call in calls.items():
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            begin = time.perf_counter()
            call()
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            if repeat >= 0:
                times[key].append(1e3 * (time.perf_counter() - begin))
    return {key: statistics.median(milliseconds) for key, milliseconds in times.items()}
