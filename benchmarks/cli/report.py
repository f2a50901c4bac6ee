"""The command `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from nfn_monomial.benchmarks.report.page import write_page
from nfn_monomial.benchmarks.report.page_records import counted

from .common import app, console, errors, user_errors

__all__ = ["report"]


@app.command("report")
@user_errors
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Results of a command, or a folder of several.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The page; by default DIR/report.html.")] = None,
) -> None:
    """One page of any results folders: tables, figures, what is written about them, settings and runs.

    The page is one HTML file that needs no other, for the screen, a phone or paper. All folders below DIR are searched.
    Files that cannot be read are named, on the page and here; the rest is shown.

    Examples:

    - `nfn-monomial report results`

    - `nfn-monomial report results/demo --out demo.html`
    """
    path, page = write_page(folder, out)
    for problem in page.problems:
        errors.print(f"[yellow]warning:[/] {escape(problem)}", soft_wrap=True, highlight=False)
    counts = ((page.folders, "folder"), (page.tables, "table"), (page.figures, "figure"))
    console.print(", ".join(counted(n, what) for n, what in counts), highlight=False)
    console.print(f"Page: {escape(str(path))}", soft_wrap=True, highlight=False)
