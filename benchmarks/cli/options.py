"""What the commands of experiments share: options that have one meaning, and configurations made of them."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args

import typer

from nfn_monomial.benchmarks.settings import assignment, override
from nfn_monomial.benchmarks.settings.training import Precision
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.cli import options as tools
from nfn_monomial.tools.cli.options import add_command, own_process

__all__ = ["OWN_OPTIONS", "Device", "Networks", "command", "command_line", "configured", "prepare_process", "split"]

C = TypeVar("C")

Networks = Annotated[
    int, typer.Option("--networks", min=1, max=10**6, help="How many networks to train, shared by the activations.")
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")]
_KINDS: dict[str, tuple[Any, Any]] = {
    "networks": (Networks, 1000),
    "augmented": (
        Annotated[bool, typer.Option("--augmented", help="Train on augmented ReLU networks, too, which takes longer.")],
        False,
    ),
    "data": (
        Annotated[
            Path | None,
            typer.Option("--data", help="Folder of networks, made here or published; its format is detected."),
        ],
        None,
    ),
    "zoos": (
        Annotated[
            list[Path],
            typer.Option("--data", help="Folder of networks, made here or published; repeat it for several."),
        ],
        [],
    ),
    "data_options": (
        Annotated[
            list[str],
            typer.Option(
                "--data-option",
                help="key=value for an option of the format of the data, as limit=1000; repeat it for several. "
                "`list formats` has all.",
            ),
        ],
        [],
    ),
    "preset": (
        Annotated[
            str,
            typer.Option(
                "--preset",
                help="small (minutes on 2 cores), paper (its hyperparameters), or others that `list settings` names.",
            ),
        ],
        "small",
    ),
    "assignments": (
        Annotated[
            list[str],
            typer.Option(
                "--set",
                help="key=value for any setting that has no option, as training.epochs=3; repeat it for several. "
                "`list settings` has all.",
            ),
        ],
        [],
    ),
    "models": (
        Annotated[
            str,
            typer.Option("--models", help="Comma-separated; by default the preset's. `list models` has all."),
        ],
        "",
    ),
    "seeds": (
        Annotated[
            int | None, typer.Option("--seeds", min=1, max=1000, help="Number of seeds; by default the preset's.")
        ],
        None,
    ),
    "seed": (Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="First seed.")], 0),
    "device": (Device, "cpu"),
    "devices": (
        Annotated[
            int,
            typer.Option(
                "--devices", min=1, max=1024, help="Processes that share every batch; on cuda, a GPU for each."
            ),
        ],
        1,
    ),
    "precision": (Annotated[str | None, typer.Option("--precision", help=f"{', '.join(get_args(Precision))}.")], None),
    "tensorboard": (
        Annotated[bool, typer.Option("--tensorboard", help="Log epochs to tensorboard/ in the results folder.")],
        False,
    ),
}
"""Option -> its type and default. ``out`` has a default of its own for every command."""
OWN_OPTIONS = {
    "models": "--models",
    "seeds": "--seeds and --seed",
    "device": "--device",
    "training.device": "--device",
    "training.devices": "--devices",
    "training.precision": "--precision",
    "training.tensorboard": "--tensorboard",
}
"""Settings that have an option, which is the one way to set them."""


def command(
    group: typer.Typer, name: str, options: Sequence[str], out: str, text: str, body: Callable[..., None], keeps: bool
) -> None:
    """Add a command.

    Args:
        group: what it belongs to.
        name: of the command.
        options: those that it has, by name; ``out`` comes on top.
        out: the results folder by default, where ``TASK`` may stand for that of the configuration.
        text: the help.
        body: called with the options as keyword arguments.
        keeps: whether finished work in the results folder is kept.
    """
    kept = "finished work in it is kept" if keeps else "what it has of an earlier call is replaced"
    folder = Annotated[
        Path | None,
        typer.Option("--out", "-o", help=f"Folder for the results, by default {out}; {kept}.", show_default=False),
    ]
    kinds = {name: _KINDS[name] for name in options} | {"out": (folder, None)}
    add_command(group, name, kinds, text, body)


def prepare_process() -> None:
    """As that of all commands, for one that trains."""
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
    models: str = "",
    seeds: int | None = None,
    seed: int = 0,
    **hardware: Any,
) -> C:
    """A preset, changed by options and by ``key=value``.

    Args:
        presets: name -> configuration.
        preset: which.
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
        if option := OWN_OPTIONS.get(assignment(text)[0]):
            raise InvalidValueError(f"--set {text}: use {option}, which is the one way to set it")
    config: Any = presets[preset]
    changed: dict[str, Any] = {}
    if models:
        changed["models"] = split(models)
        if hasattr(config, "augmented_models"):
            changed["augmented_models"] = None  # of what was asked for, all
    if hasattr(config, "seeds"):
        changed["seeds"] = tuple(range(seed, seed + (seeds or len(config.seeds))))
    given = {name: value for name, value in hardware.items() if value is not None}
    changed |= {"training": replace(config.training, **given)} if hasattr(config, "training") else given
    return cast("C", override(replace(config, **changed), assignments))


def command_line() -> str:
    """The command as typed."""
    return shlex.join(["nfn-monomial", *sys.argv[1:]])


def split(text: str) -> tuple[str, ...]:
    """The parts between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
