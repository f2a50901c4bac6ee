"""The experiments, each with what is written about it. `Study` is all that the command line knows of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from nfn_monomial.benchmarks.train.runs import RunStore
from nfn_monomial.tools.report import Report

__all__ = ["News", "Study"]


class News(Protocol):
    """Where an experiment stands: what it does, how much of how much is done, and a line to say once, or none."""

    @property
    def title(self) -> str: ...
    @property
    def done(self) -> float: ...
    @property
    def total(self) -> int: ...
    @property
    def line(self) -> str: ...


@dataclass(frozen=True)
class Study:
    """An experiment; its module has one under the name ``STUDY``.

    Attributes:
        run: data, configuration, store and a callback for `News` -> what was found; does what the store does not
            have.
        report: what was found, configuration and store -> tables and figures.
        check: raises a ValueError for a configuration that no data can be used with, before any are read.
        choose: configuration and data -> the configuration with what depends on the data.
    """

    run: Callable[[Any, Any, RunStore, Callable[[News], None]], Any]
    report: Callable[[Any, Any, RunStore], Report]
    check: Callable[[Any], None]
    choose: Callable[[Any, Any], Any] = lambda config, data: config
