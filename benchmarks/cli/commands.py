"""All commands of the experiments, for the application of `nfn_monomial.tools`."""

from __future__ import annotations

import typer

from nfn_monomial.tools.cli.options import DATA_PANEL

from .experiments import add_experiments
from .make import inr_app, zoo_app
from .train import add_train

__all__ = ["add_commands"]


def add_commands(app: typer.Typer) -> None:
    """Adds all commands."""
    add_experiments(app)
    add_train(app)
    app.add_typer(zoo_app, name="zoo", rich_help_panel=DATA_PANEL)
    app.add_typer(inr_app, name="inr", rich_help_panel=DATA_PANEL)
