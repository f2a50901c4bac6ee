"""The experiments, which need more packages: they add commands, and models, tasks and architectures of predictors.

They are known by their name only. Their commands are always there, and say what to install; the rest is imported when
it is asked for and not known here.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from nfn_monomial.errors import MissingExtraError

__all__ = ["EXTRAS", "experiments", "missing_extra"]

EXTRAS = {
    "tools": ("lightning_fabric", "matplotlib", "pydantic", "rich", "typer"),
    "bench": ("PIL", "mlxtend", "optuna", "sklearn"),
}
"""Extra -> the packages that it installs, as they are imported."""


def missing_extra(error: ModuleNotFoundError, what: str) -> MissingExtraError:
    """The error that says how to install what is missing; ``what``: that needs it.

    Raises:
        ModuleNotFoundError: the error itself, if it is no package of an extra.
    """
    package = (error.name or "").split(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            return MissingExtraError(f"{what} needs the package {package}: pip install 'nfn-monomial[{extra}]'")
    raise error


def experiments(part: str) -> ModuleType:
    """A module of the experiments, which has registered what it adds.

    Raises:
        MissingExtraError: if a package is missing that it needs.
    """
    try:
        return import_module(f"nfn_monomial.benchmarks.{part}")
    except ModuleNotFoundError as error:
        raise missing_extra(error, "what the experiments add") from error
