"""The application: the commands for a user's own networks, and those of the experiments."""

from __future__ import annotations

from typing import Annotated

import typer

from nfn_monomial import __version__
from nfn_monomial.tools.experiments import experiments

from .checkpoints import add_checkpoints
from .options import console, debug, own_process
from .predict import add_predict

__all__ = ["app", "run"]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="The symmetries of neural networks: permutations, scalings and sign flips of their neurons.\n\n"
    "For networks of your own: `symmetries`, `compare`, `align` and `balance` read checkpoints; `train` learns a "
    "column of a table from them, and `predict` asks what was learned about new ones.\n\n"
    "The paper's experiments: start with `nfn-monomial demo`, or step by step: `nfn-monomial zoo make` trains many "
    "small CNNs, `nfn-monomial predict-generalization` learns to read their accuracy off their weights.",
)


def _version(asked: bool) -> None:
    if asked:
        console.print(f"nfn-monomial {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    show_traceback: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. Before the command.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options that all commands have."""
    debug.set(show_traceback)


add_checkpoints(app)
add_predict(app)
experiments("cli.commands").add_commands(app)


def run() -> None:
    """Entry point."""
    own_process.set(True)
    app(prog_name="nfn-monomial")
