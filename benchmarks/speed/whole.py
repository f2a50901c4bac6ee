"""Training steps of whole models, plain, in bfloat16, compiled; and what there is to wait for before the first step."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial import EquivariantLinear, EquivariantNorm, MessagePassing, WeightSpace
from nfn_monomial.benchmarks.experiments.speed import Way
from nfn_monomial.benchmarks.train.devices import compiled
from nfn_monomial.benchmarks.train.measure import race
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.models import MessagePassingNFN, MonomialNFN
from nfn_monomial.testing import random_networks
from nfn_monomial.tools.predictors.models import NetworkInfo, build_model
from nfn_monomial.tools.report import Table

from .harness import NETWORKS

__all__ = ["MODELS", "Start", "Step", "bench_models", "bench_starting", "model_table", "starting_table"]

NETWORK = "zoo CNN"
BLOCKS = 3
Made: TypeAlias = "Callable[[WeightSpace, Mapping[str, Tensor], int], tuple[nn.Module, Any]]"
"""Space, networks ``(N, 1, *shape)`` and blocks of message passing -> a model, and what it gets of the networks."""
CACHE = "TORCHINDUCTOR_CACHE_DIR"  # where torch's compiler keeps what it has compiled


@dataclass(frozen=True)
class Step:
    """One model in one setting.

    Attributes:
        model: its name in tables.
        batch: networks in a step.
        way: how it is run.
        ms: median of forward and backward.
        first_s: seconds of the very first, which compiles.
        skipped: why it did not run.
    """

    model: str
    batch: int
    way: Way
    ms: float = 0.0
    first_s: float = 0.0
    skipped: str = ""


def _registered(name: str) -> Made:
    def make(space: WeightSpace, networks: Mapping[str, Tensor], blocks: int) -> tuple[nn.Module, Any]:
        model = build_model(name, NetworkInfo(space, "relu"), seed=0)
        return model, model.prepare_groups([(networks, space)])

    return make


def _messages(space: WeightSpace, networks: Mapping[str, Tensor], blocks: int) -> tuple[nn.Module, Any]:
    """On networks that were balanced before, as in experiments."""
    torch.manual_seed(0)
    return MessagePassingNFN(space, layers=blocks, balance=False), dict(networks)


MODELS: dict[str, Made] = {
    "Monomial-NFN": _registered("monomial"),
    "message passing": _messages,
    "HNP": _registered("hnp"),
}


def bench_models(
    batches: Sequence[int],
    ways: Sequence[Way],
    repeats: int,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
    seconds: float = math.inf,
    blocks: int = BLOCKS,
) -> list[Step]:
    """Time a training step of each model on the Small CNN Zoo's network; ways take turns.

    Args:
        batches: numbers of networks.
        ways: as in `LayersConfig`; compiled as training is with ``training.compiled``, and nothing of it kept from an
            earlier run. A way that the machine does not have is left out.
        repeats: timed repetitions, after three that are not counted.
        device: ``"cpu"`` or ``"cuda"``.
        progress: called with a line of text before each setting.
        seconds: after so many a setting begins no further repetition.
        blocks: of message passing.
    """
    steps = []
    for name in MODELS:
        for batch in batches:
            progress(f"{name}, batch {batch}")
            ready: dict[Way, Callable[[], None]] = {}
            first: dict[Way, float] = {}
            skipped: dict[Way, str] = {}
            for way in ways:
                step = _step(name, batch, way, device, blocks)
                try:
                    skipped[way] = _missing(way, device)
                    if not skipped[way]:
                        first[way], ready[way] = _first(step), step
                except InvalidValueError as error:
                    skipped[way] = str(error)
            ms = race(ready, repeats, device, seconds)
            steps += [Step(name, batch, w, ms.get(w, 0.0), first.get(w, 0.0), skipped[w]) for w in ways]
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


def _first(step: Callable[[], None]) -> float:
    """Seconds of a first step."""
    begun = time.perf_counter()
    with _nothing_kept():
        step()
    return time.perf_counter() - begun


@contextmanager
def _nothing_kept() -> Iterator[None]:
    """A block in which a compiler finds nothing of an earlier run."""
    before = os.environ.get(CACHE)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ[CACHE] = folder
        try:
            yield
        finally:
            os.environ.pop(CACHE)
            if before is not None:
                os.environ[CACHE] = before


def _step(name: str, batch: int, way: Way, device: str, blocks: int) -> Callable[[], None]:
    space, place = NETWORKS[NETWORK](), torch.device(device)
    generator = torch.Generator().manual_seed(0)
    networks = random_networks(space, batch, dtype=torch.float32, generator=generator)
    model, prepared = MODELS[name](space, networks, blocks)
    inputs = pytree.tree_map(lambda t: t.to(place), prepared)
    model.to(place).train()
    call = compiled(model, place) if way == "compiled" else model.__call__

    def step() -> None:
        with torch.autocast(place.type, torch.bfloat16, enabled=way == "bfloat16"):
            out: Tensor = call(inputs)
        out.float().square().mean().backward()  # type: ignore[no-untyped-call]
        for parameter in model.parameters():
            parameter.grad = None

    return step


def model_table(steps: Sequence[Step], blocks: int = BLOCKS) -> Table:
    """A line for every model, batch and way: the gain over the first way, and when waiting for it has paid.

    ``blocks``: of message passing.
    """
    cells: list[tuple[str, ...]] = []
    for s in steps:
        plain = next(p for p in steps if (p.model, p.batch) == (s.model, s.batch))
        found = (s.skipped or "-", "-", "-", "-")
        if s.ms and plain.ms:
            gained = (plain.ms - s.ms) / 1e3
            pays = f"{(s.first_s - plain.first_s) / gained:,.0f}" if gained > 0 else "never"
            waited = (f"{s.first_s:.1f}", pays) if s.way == "compiled" else ("-", "-")
            found = f"{s.ms:.1f}", f"{plain.ms / s.ms:.2f}x", *waited
        cells.append((s.model, str(s.batch), s.way, *found))
    return Table(
        f"A training step of whole models on {NETWORK}",
        ("model", "batch", "way", "ms", "times as fast", "compiling s", "pays after steps"),
        tuple(cells),
        names=(0, 2),
        notes=(
            "Medians of forward and backward. bfloat16: products in it (autocast), parameters in float32. compiling: "
            "the first step, with nothing kept of an earlier run; it has paid after so many steps. Blocks of message "
            f"passing: {blocks}.",
        ),
    )


REPEATS = 3
IMPORTS = """
import time
begun = time.perf_counter()
import torch
between = time.perf_counter()
import nfn_monomial
print(between - begun, time.perf_counter() - between)
"""


@dataclass(frozen=True)
class Start:
    """What is waited for, and the least seconds of a few repetitions."""

    what: str
    seconds: float


def bench_starting(depth: int, progress: Callable[[str], None] = lambda _: None) -> list[Start]:
    """Time the import in fresh interpreters, and building on a chain of ``depth`` layers of 4 neurons, with biases.

    Every time on a new space: layers on one space share what they work out of it.
    """
    progress("import")
    imports = [
        [float(text) for text in subprocess.check_output([sys.executable, "-c", IMPORTS], text=True).split()]
        for _ in range(REPEATS)
    ]
    starts = [
        Start("import torch", min(torch for torch, _ in imports)),
        Start("import nfn_monomial after torch", min(core for _, core in imports)),
    ]

    def space() -> WeightSpace:
        return WeightSpace.mlp([4] * (depth + 1), "relu")

    builders: dict[str, Callable[[WeightSpace], object]] = {
        "WeightSpace": lambda _: space(),
        "EquivariantLinear": lambda chain: EquivariantLinear(chain, 4, 4),
        "EquivariantNorm": lambda chain: EquivariantNorm(chain, 4),
        "MessagePassing": lambda chain: MessagePassing(chain, 4),
        "MonomialNFN": MonomialNFN,
    }
    for name, build in builders.items():
        progress(f"{name} on {2 * depth} tensors")
        starts.append(Start(f"{name} on {2 * depth} tensors", min(_seconds(build, space()) for _ in range(REPEATS))))
    return starts


def _seconds(build: Callable[[WeightSpace], object], chain: WeightSpace) -> float:
    """As in a fresh process: Python's garbage collector does not look through what other timings left."""
    gc.collect()
    gc.freeze()
    try:
        begun = time.perf_counter()
        build(chain)
        return time.perf_counter() - begun
    finally:
        gc.unfreeze()


def starting_table(starts: Sequence[Start]) -> Table:
    """A line for each."""
    cells = tuple((s.what, f"{s.seconds:.2f}") for s in starts)
    return Table("Before the first step", ("what", "seconds"), cells, notes=(f"The least of {REPEATS}.",))
