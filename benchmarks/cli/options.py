"""Options that the commands of experiments share, and configurations made of them."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, cast, get_args

import typer

from nfn_monomial.benchmarks.settings import assignment, override
from nfn_monomial.benchmarks.settings.training import Precision
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.cli import options as tools
from nfn_monomial.tools.cli.options import EXPERIMENTS_PANEL, add_command, option, own_process

from .settings import SET_BY_OPTION, settings_help

__all__ = ["Device", "Networks", "command", "command_line", "configured", "prepare_process", "split"]

C = TypeVar("C")

Networks = Annotated[
    int, typer.Option("--networks", min=1, max=10**6, help="How many networks to train, shared by the activations.")
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")]
OPTIONS: dict[str, tuple[Any, Any]] = {
    "networks": (Networks, 1000),
    "augmented": option(bool, "--augmented", "Also train on augmented ReLU networks, which takes longer.", False),
    "data": option(Path | None, "--data", "Folder of networks, made here or published; its format is detected."),
    "zoos": option(list[Path], "--data", "Folder of networks, made here or published; repeat it for several.", []),
    "data_options": option(
        list[str],
        "--data-option",
        "key=value for an option of the data's format, as limit=1000; repeat it for several. "
        "For an unknown one, the error lists those that the format has.",
        [],
    ),
    "preset": option(
        str,
        "--preset",
        "small (minutes on 2 cores), paper (the paper's hyperparameters), or another one listed below.",
        "small",
    ),
    "assignments": option(
        list[str],
        "--set",
        "key=value for any setting that has no option; repeat it for several settings. All are below.",
        [],
    ),
    "models": option(
        str | None,
        "--models",
        "Comma-separated; by default the preset's. For an unknown name, the error lists all.",
    ),
    "seeds": option(int | None, "--seeds", "Number of seeds; by default the preset's.", min=1, max=1000),
    "seed": option(int, "--seed", "First seed.", 0, min=0, max=2**31 - 1),
    "device": (Device, "cpu"),
    "devices": option(
        int, "--devices", "Processes that share every batch; on cuda, a GPU for each.", 1, min=1, max=1024
    ),
    "precision": option(str | None, "--precision", f"{', '.join(get_args(Precision))}."),
    "tensorboard": option(bool, "--tensorboard", "Log epochs to tensorboard/ in the results folder.", False),
}
"""Options that several commands share, each with its type and default."""


def command(
    group: typer.Typer, name: str, options: Sequence[str], out: str, text: str, body: Callable[..., None], keeps: bool,
    presets: Mapping[str, Any], more: Mapping[str, tuple[Any, Any]] = MappingProxyType({}),
    panel: str = EXPERIMENTS_PANEL,
) -> None:  # fmt: skip
    """Adds a command.

    Args:
        group: to which it belongs.
        name: of the command.
        options: those of `OPTIONS` that it has, by name; ``out`` is added.
        out: the results folder by default, where ``TASK`` may stand for that of the configuration.
        text: the help.
        body: called with the options as keyword arguments.
        keeps: whether finished work in the results folder is kept.
        presets: configurations by name, whose settings the help shows after the options.
        more: options that no other command has; they come first.
        panel: the group of commands in the application's help.
    """
    kept = "finished work in it is kept" if keeps else "results of an earlier call are replaced"
    folder = option(Path | None, "--out -o", f"Folder for the results, by default {out}; {kept}.", show_default=False)
    kinds = {**more, **{name: OPTIONS[name] for name in options}, "out": folder}
    add_command(group, name, kinds, text, body, panel, epilog=settings_help(presets))


def prepare_process() -> None:
    """Prepares the process as every command does, and for training."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler, which measures memory, writes two lines at its start
    tools.prepare_process()
    if own_process.get():
        import lightning_fabric  # noqa: F401  (which sets the level of its log, and takes seconds)

        logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # every process would say that it is there


def configured(
    presets: Mapping[str, C],
    preset: str = "small",
    assignments: Sequence[str] = (),
    *,
    models: str | None = None,
    seeds: int | None = None,
    seed: int = 0,
    **hardware: Any,
) -> C:
    """Returns a preset, changed by options and by ``key=value``.

    Args:
        presets: name -> configuration.
        preset: name of one of them.
        assignments: see `override`.
        models: comma-separated names; without any, those of the preset.
        seeds: how many seeds; by default as many as the preset has.
        seed: the first.
        hardware: fields of `TrainConfig`, or of the configuration if it has no training; None leaves the preset's.

    Raises:
        ValueError: for an unknown preset or key, a key that has an option, and as the configuration.
    """
    if preset not in presets:
        raise InvalidValueError(f"unknown preset {preset!r}: choose from {', '.join(presets)}")
    for text in assignments:
        if option := SET_BY_OPTION.get(assignment(text)[0]):
            raise InvalidValueError(f"--set {text}: use {option}, which is the one way to set it")
    config: Any = presets[preset]
    changed: dict[str, Any] = {}
    if models is not None:
        if not split(models):
            raise InvalidValueError("--models names none: leave it out for those of the preset")
        changed["models"] = split(models)
        if hasattr(config, "augmented_models"):
            changed["augmented_models"] = None  # all that were named
    if hasattr(config, "seeds"):
        changed["seeds"] = tuple(range(seed, seed + (seeds or len(config.seeds))))
    chosen = {name: value for name, value in hardware.items() if value is not None}
    changed |= {"training": replace(config.training, **chosen)} if hasattr(config, "training") else chosen
    return cast("C", override(replace(config, **changed), assignments))


def command_line() -> str:
    """Returns the command as typed."""
    return shlex.join(["nfn-monomial", *sys.argv[1:]])


def split(text: str) -> tuple[str, ...]:
    """Returns the parts between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
