"""Finished runs on disk: a piece of a `Store` and one trained model each, whole or not there at all.

The names of a run's files end in a hash of everything that determines its result (`RunSettings`), so a folder may hold
runs of many configurations and a later call finds exactly those it asks for. The model is written first, the piece
last: a run counts as finished when the store has it and its model is there too. Anything else is run again.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import logging
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nfn_monomial import __version__
from nfn_monomial.benchmarks.settings.training import RUNTIME, TrainConfig
from nfn_monomial.tools.files.atomic import results_folder, write_atomically
from nfn_monomial.tools.files.sealed import read_sealed, seal
from nfn_monomial.tools.store import SUFFIX, Store, digest_of

from .checkpoint import UnfinishedTraining

__all__ = [
    "CONFIG_NAME",
    "Run",
    "RunSettings",
    "RunStore",
    "TestResult",
    "environment",
    "record",
]

log = logging.getLogger(__name__)

CONFIG_NAME = "config.json"
RECORDED = ("settings", "label", "invariant_under", "sees", "parameters", "networks", "tests", "val", "best_epoch")
"""The fields of a run that a predictor's file has: none that depends on times and machines."""
PACKAGES = ("nfn-monomial", "torch", "nfn", "torch-geometric", "lightning-fabric", "numpy", "scipy")


@dataclass(frozen=True)
class RunSettings:
    """The settings that determine the result of one run.

    Attributes:
        experiment: the command's name, as ``predict-generalization``.
        subject: which networks are read, as ``relu`` or ``mnist5k``.
        model: registered name.
        train_set: the training networks, as ``original`` or ``augmented``.
        seed: of everything random.
        options: other settings of the experiment, as JSON has them.
        loss: name of the loss; as ``training``, with the settings that the model asks for.
        training: how it was trained.
        data: fingerprint of the data.
        code: hash of torch's version and of the file of a user's own model, see `code_of`.
        version: of the code that computes results; it is raised when results change.
    """

    experiment: str
    subject: str
    model: str
    train_set: str
    seed: int
    options: dict[str, Any]
    loss: str
    training: TrainConfig
    data: str
    code: str
    version: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", json.loads(json.dumps(self.options)))  # equal to what is read back

    @property
    def key(self) -> dict[str, Any]:
        """Returns all that determines the result, as JSON has it."""
        values = asdict(self)
        for name in RUNTIME:
            del values["training"][name]
        return values

    @property
    def trained_on(self) -> str:
        """The train set as tables name it, with the number of networks where a run has a part of them."""
        number = self.options.get("train_networks")
        return f"{number} {self.train_set}" if number else self.train_set

    @property
    def name(self) -> str:
        """Stem of the run's file names."""
        return f"{self.subject}-{self.model}-{self.train_set}-seed{self.seed}-{digest_of(self.key)[:10]}"


@dataclass(frozen=True)
class TestResult:
    """One model on one test set. ``scale``: upper bound of the scales, None where nothing was scaled.

    ``non_finite``: how many of the predictions were NaN or infinite.
    """

    __test__ = False  # not a test case, whatever pytest makes of the name

    name: str
    scale: float | None
    metrics: dict[str, float]
    non_finite: int


@dataclass(frozen=True)
class Run:
    """A finished run; times in seconds, see `nfn_monomial.benchmarks.train.loop.FitResult`."""

    settings: RunSettings
    label: str
    invariant_under: str
    sees: str
    parameters: int
    networks: dict[str, int]  # numbers of networks for train, val, test; and of the pool that those for train are of
    tests: tuple[TestResult, ...]
    val: dict[str, float]  # metrics of the best epoch on the validation set
    best_epoch: int
    seconds_per_epoch: float
    step_share: float
    peak_bytes: int
    diverged: bool
    history: tuple[dict[str, Any], ...]  # one entry an epoch; numbers that were not finite are None
    environment: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)  # more results of the experiment, as JSON has them

    def metric(self, test: str, name: str) -> float:
        """A metric on the test set of this name."""
        return next(t.metrics[name] for t in self.tests if t.name == test)

    def to_json(self) -> dict[str, Any]:
        """Returns the run as JSON has it."""
        values: dict[str, Any] = _finite(asdict(self))
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Run:
        """The run that `to_json` wrote."""
        settings = {**values["settings"], "training": TrainConfig(**values["settings"]["training"])}
        read = {
            "settings": RunSettings(**settings),
            "tests": tuple(TestResult(**test) for test in values["tests"]),
            "history": tuple(values["history"]),
        }
        return cls(**{**values, **read})


class RunStore:
    """The runs of one results folder: in ``runs/`` a piece of a `Store` for each, with its numbers and artifacts; in
    ``predictors/*.safetensors`` their models; in ``partial/`` those that are in training.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = results_folder(folder)

    def run_file(self, settings: RunSettings) -> Path:
        return self.folder / "runs" / f"{settings.name}{SUFFIX}"

    def predictor_file(self, settings: RunSettings) -> Path:
        """The trained model, with all that it takes to apply it: see `nfn_monomial.tools.Predictor`."""
        return self.folder / "predictors" / f"{settings.name}.safetensors"

    def partial(self, settings: RunSettings) -> Path:
        """The file of the run while it trains, see `UnfinishedTraining`; `save` and `clear` remove it."""
        return self.folder / "partial" / settings.name

    def artifacts(self, settings: RunSettings) -> dict[str, Tensor]:
        """The tensors that a finished run left beside its numbers."""
        piece = self._kept(settings).get(settings.name)
        return {} if piece is None else piece[1]

    def load(self, settings: RunSettings) -> Run | None:
        """The finished run with these settings, or None if it has to be run."""
        piece = self._kept(settings).get(settings.name)
        if piece is None:
            return None
        try:
            read_sealed(self.predictor_file(settings))
        except Exception as reason:  # damaged files make parsers raise errors of any kind
            log.warning("%s cannot be used (%s): this run is done again", self.predictor_file(settings), reason)
            return None
        return Run.from_json(piece[0])

    def save(
        self, run: Run, state: Mapping[str, Tensor], artifacts: Mapping[str, Tensor], predictor: Mapping[str, Any]
    ) -> None:
        """Writes the model, then the run, each whole or not at all.

        Args:
            run: a finished run.
            state: of its model.
            artifacts: tensors to keep beside.
            predictor: all that is needed to build and apply the model again, as JSON has it.
        """
        settings, made = run.settings, run.to_json()
        record = {"predictor": dict(predictor)} | {name: made[name] for name in RECORDED}
        write_atomically(self.predictor_file(settings), seal(state, record))
        self._kept(settings).put(settings.name, made, artifacts)
        self.clear(settings)

    def clear(self, settings: RunSettings) -> None:
        """Forgets the training of a run that is finished."""
        UnfinishedTraining(self.partial(settings)).remove()

    def _kept(self, settings: RunSettings) -> Store:
        return Store(self.folder / "runs", settings.key)


def environment(device: str) -> dict[str, Any]:
    """Describes the machine and software: versions, commit if this is a checkout, kind of machine (no names)."""
    kind = torch.device(device).type
    return {
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "commit": _commit(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if kind == "cuda" else kind,
    }


def record(folder: Path, command: str, config: Any, data: dict[str, Any], device: str) -> Path:
    """Writes ``config.json``: command, configuration, data and machine, so that it can be done again.

    Args:
        folder: of the results.
        command: as typed.
        config: a dataclass.
        data: their description.
        device: where it ran.

    Raises:
        ValueError: if the folder is a file.
    """
    values = {
        "command": command,
        "version": __version__,
        "config": asdict(config),
        "data": data,
        "environment": environment(device),
    }
    path = results_folder(folder) / CONFIG_NAME
    write_atomically(path, (json.dumps(values, indent=1, default=str) + "\n").encode())
    return path


@functools.cache
def _commit() -> str | None:
    """Commit of the checkout that this file is tracked in, with ``+`` if tracked files were changed."""
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _finite(value: Any) -> Any:
    """Replaces NaN and infinity, which JSON does not have, by None; only the history of a diverged run has any."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and value - value != 0 else value
