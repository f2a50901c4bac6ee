"""What ``results.json`` has of every experiment that trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from nfn_monomial.benchmarks.train.runs import Run
from nfn_monomial.errors import InvalidValueError

__all__ = ["record_of"]


def record_of(runs: Sequence[Run]) -> dict[str, Any]:
    """What ``results.json`` has of every experiment: which runs, of which settings, on which networks and machines.

    Raises:
        ValueError: if there are none.
    """
    if not runs:
        raise InvalidValueError("no finished runs to report on")
    networks: dict[str, dict[str, int]] = {}
    for run in runs:
        networks.setdefault(run.settings.subject, run.networks)
    return {
        "runs": [run.settings.name for run in runs],
        "settings": _distinct([asdict(replace(run.settings, seed=0)) for run in runs]),
        "networks": networks,
        "environments": _distinct([run.environment for run in runs]),
    }


def _distinct(values: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [value for i, value in enumerate(values) if value not in values[:i]]
