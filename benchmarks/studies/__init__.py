"""The experiments, each with what is written about it. `Study` is all that the command line knows of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nfn_monomial.benchmarks.report.results import Report
from nfn_monomial.benchmarks.train.runs import RunStore

__all__ = ["Study"]


@dataclass(frozen=True)
class Study:
    """An experiment; its module has one under the name ``STUDY``.

    Attributes:
        run: data, configuration, store and a callback for `Progress` -> what was found; does what the store does not
            have.
        report: what was found, configuration and store -> tables and figures.
        check: raises a ValueError for a configuration that no data can be used with, before any are read.
        choose: configuration and data -> the configuration with what depends on the data.
    """

    run: Callable[[Any, Any, RunStore, Callable[[Any], None]], Any]
    report: Callable[[Any, Any, RunStore], Report]
    check: Callable[[Any], None]
    choose: Callable[[Any, Any], Any] = lambda config, data: config
