"""The register of experiments, from which their commands and the help of their settings are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from nfn_monomial.errors import InvalidValueError

__all__ = ["EXPERIMENTS", "Experiment", "News", "Study", "register"]


@dataclass(frozen=True)
class News:
    """The progress of an experiment: its current work, how much of how much is done, and a line to print, or none."""

    title: str
    done: float = 0
    total: int | None = None
    line: str = ""


@dataclass(frozen=True)
class Study:
    """The functions of an experiment.

    Attributes:
        run: data, configuration, store and a callback for `News` -> results; does only the runs that the store, a
            `RunStore`, does not have. An experiment without data gets None.
        tables: results, configuration and store -> a `Report`.
        check: raises a ValueError for a configuration that no data can be used with, before any are read.
        choose: configuration and data -> the configuration, completed by settings that depend on the data.
        kept: results and store -> answers by network, by which claims are judged: see `kept_outcomes`.
    """

    run: Callable[[Any, Any, Any, Callable[[News], None]], Any]
    tables: Callable[[Any, Any, Any], Any]
    check: Callable[[Any], None] = lambda config: None
    choose: Callable[[Any, Any], Any] = lambda config, data: config
    kept: Callable[[Any, Any], Mapping[Any, Any]] = lambda results, store: {}


@dataclass(frozen=True)
class Experiment:
    """An experiment: all that its command and the help of it are made from.

    Attributes:
        name: of its command; one of a group has the group's name in front, as ``bench layers``.
        text: the help of the command.
        presets: name -> configuration; one of them is ``small``.
        study: its `Study`, or the name of a module of `studies` that has it as ``STUDY``, imported when it runs.
        data: folder where the data are by default -> the command that makes them, by task if there are several tasks;
            empty for an experiment without data.
        sets: preset -> folders that it takes by default, with the commands that make them.
        inrs: whether these are INRs, and not classifiers.
        several: whether it takes several folders of data.
        keeps: whether finished work in its results folder is kept.
        out: its results folder by default, where ``TASK`` stands for that of the configuration.
        without: options that it does not have, though its configuration has the setting.
    """

    name: str
    text: str
    presets: Mapping[str, Any]
    study: Study | str
    data: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    sets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    inrs: bool = False
    several: bool = False
    keeps: bool = True
    out: str = ""
    without: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Its name without that of a group."""
        return self.name.rpartition(" ")[2]

    @property
    def options(self) -> tuple[str, ...]:
        """Names of its command's options, by the settings of its configuration."""
        config = self.presets["small"]
        held = {f.name for f in dataclasses.fields(config)}
        names = ["zoos" if self.several else "data", "data_options"] * bool(self.data)
        names += ["preset"] * bool(self.data or len(self.presets) > 1)
        names += ["assignments", *["models"] * ("models" in held), *["seeds", "seed"] * ("seeds" in held)]
        names += ["device"] * bool({"device", "training"} & held)
        names += ["devices", "precision", "tensorboard"] * ("training" in held)
        return tuple(name for name in names if name not in self.without)

    @property
    def folder(self) -> str:
        """Its results folder by default."""
        return self.out or f"results/{self.key}"

    def load(self) -> Study:
        """Returns the study, imported if it has to be."""
        if isinstance(self.study, Study):
            return self.study
        study: Study = import_module(f"nfn_monomial.benchmarks.studies.{self.study}").STUDY
        return study


EXPERIMENTS: dict[str, Experiment] = {}
"""Name without a group -> experiment."""


def register(experiment: Experiment) -> Experiment:
    """Adds an experiment; returns it.

    Raises:
        ValueError: if there is one of this name, or it has no preset ``small``.
    """
    if experiment.key in EXPERIMENTS:
        raise InvalidValueError(f"there is an experiment {experiment.key} already: choose another name")
    if "small" not in experiment.presets:
        raise InvalidValueError(f"{experiment.name} has no preset 'small', but {', '.join(experiment.presets)}")
    return EXPERIMENTS.setdefault(experiment.key, experiment)
