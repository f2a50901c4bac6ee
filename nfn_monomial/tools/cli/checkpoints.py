"""The commands for a user's own networks: each is a function of `nfn_monomial.tools`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from nfn_monomial.errors import InvalidValueError

from .options import (
    FORMS,
    KEY,
    ORDER,
    OUTPUT,
    SKIP,
    add_command,
    console,
    option,
    prepare_process,
    results_of,
    show,
    show_left_out,
    shown_progress,
    split_names,
)

__all__ = ["add_checkpoints"]

READ = f"read without running code: {FORMS}"
_NETWORK = {
    "net": option(
        str | None,
        "--net",
        "The network: module.py:NAME or package.module:NAME, a class or a function that returns a module (or a pair of "
        "it and its example inputs); hf:FOLDER, timm:NAME, torchvision:NAME; or an exported program, net.pt2. **Its "
        "code runs.** Without it, the checkpoint has to be that of a chain of layers.",
    ),
    "net_args": option(
        str | None, "--net-args", "Arguments of the class or function of --net, such as width=64,depth=3, or as JSON."
    ),
    "input_shape": option(
        str | None,
        "--input",
        "Shape of its inputs, batch included, such as 1,3,32,32; not needed if the file of --net has a function "
        "example_inputs().",
    ),
    "activation": option(
        str | None, "--activation", "The activation between the layers of a chain, such as relu; without --net."
    ),
    **ORDER,
    **KEY,
}
"""Options that say which network it is, with the names that the Python functions have for them."""
_FIBRE = {
    "fibre": option(
        bool,
        "--fibre",
        "Write networks in normal form, by all that leaves a function as it is, if that is more than permutations, "
        "scales and signs.",
        False,
    )
}
_SEED = {"seed": option(int, "--seed", "Seed of the alignment.", 0, min=0)}
_SEVERAL: Any = Annotated[
    list[Path],
    typer.Argument(show_default=False, metavar="CHECKPOINT", help=f"Two or more, or a folder of them; {READ}."),
]


@dataclass(frozen=True)
class Command:
    """A command for a user's own networks."""

    function: str  # of `nfn_monomial.tools`
    paths: tuple[Any, Any]  # the checkpoints, as typer takes them, and their default
    options: Mapping[str, tuple[Any, Any]]  # more options, with the names that the function has for them
    out: str  # the default results folder; empty for a command that writes nothing unless it is asked to
    text: str  # the help
    takes: tuple[str, ...] = ()  # "store" and "progress", if the function takes them


COMMANDS = {
    "symmetries": Command(
        "find_symmetries",
        (
            Annotated[
                Path | None,
                typer.Argument(show_default=False, metavar="CHECKPOINT", help=f"Weights on which to test it; {READ}."),
            ],
            None,
        ),
        {
            "format": option(
                str | None,
                "--format",
                "smoothquant, awq or spinquant: print, and nothing else, which modules share a scale or a rotation, as "
                "the YAML that llm-compressor takes, each line with its tested error; mappings.yaml in `--out`.",
            )
        },
        "",
        """Which neurons of a network may be permuted, scaled and flipped without a change of its function, and why.

They are derived from the network's computation, and tested: random elements of the group are applied, and outputs
compared in float64. With a checkpoint the test is on its weights, and a table shows for every node how far apart the
scales of its neurons are, how many are dead, and how many are there twice. `--out` also writes a picture:
symmetries.svg.

Examples:

- `nfn-monomial symmetries --net resnet.py:ResNet --input 1,3,32,32 --out results/symmetries`

- `nfn-monomial symmetries mlp.safetensors --activation relu`

- `nfn-monomial symmetries --net llama.py:small --format awq`
""",
    ),
    "compare": Command(
        "compare_checkpoints",
        (_SEVERAL, ...),
        {
            "apart": option(
                str | None,
                "--apart",
                "A folder of other networks that were trained apart by the same recipe, for a p-value of two that "
                "does not depend on the order of neurons; 44 or more make p below 0.001 possible.",
            ),
            **_SEED,
            **SKIP,
        },
        "",
        """Are two networks the same function up to symmetry, and what is left between them? Of more: who is related?

With two networks, the second is moved next to the first by permutations, scales and signs. The command prints the
verdict, the largest difference of outputs, the distance of every parameter before and after, the share of it that each
kind of symmetry explains, and a p-value for the hypothesis that the two were trained independently. If the move does
not make them equal, and `--net` allows more (such as matrices between values and outputs of attention, or rotations
that norms allow), the command compares their normal forms. With more networks, or a folder, it prints the distances of
all pairs once symmetry is taken out, their tree, and p-values, corrected for the number of pairs. `--out` also writes
the picture: compare.png or family.png.

Examples:

- `nfn-monomial compare a.safetensors b.safetensors --net resnet.py:ResNet --input 16,3,32,32`

- `nfn-monomial compare mlps --activation relu --out results/family`
""",
        ("store", "progress"),
    ),
    "align": Command(
        "align_checkpoints",
        (_SEVERAL, ...),
        {
            "merge": option(
                float | None,
                "--merge",
                "Also write a merged network, with this share of all but the first, such as 0.5. It is on "
                "the line of the table whose loss is the lowest.",
            ),
            "symmetry": option(
                str | None,
                "--symmetry",
                "The symmetries that move the networks that are written, and the merged one: none, permutation or all.",
            ),
            "data": option(
                str | None,
                "--data",
                "module.py:NAME, a torch Dataset or DataLoader, or a function that returns one, or inputs and targets. "
                "**Its code runs.** Without it, outputs on the example inputs are compared.",
            ),
            "repair_data": option(
                str | None,
                "--repair-data",
                "Training data, in the form of --data, on which REPAIR takes its statistics.",
            ),
            **_FIBRE,
            **_SEED,
            **SKIP,
        },
        "results/align",
        """Move networks into the frame of the first one, without a change of what they compute, and merge them.

Writes the second checkpoint, and all after it, in the frame of the first, with the same name, keys, dtypes and form as
before, so that the same code loads it. On the line from the first to the mean of the others the loss is computed: as
they are, moved by permutations only, and moved by all symmetries; the figure is barrier.png. With data, networks with
running statistics (batch norm) also get new ones (REPAIR), best from `--repair-data`. The best line is chosen on
`--data`: judge the merged network on other data.

Examples:

- `nfn-monomial align a.safetensors b.safetensors --net resnet.py:ResNet --input 64,3,32,32 --merge 0.5`

- `nfn-monomial align a.pt b.pt --net resnet.py:ResNet --input 1,3,32,32 --data data.py:test_set --out aligned`
""",
        ("progress",),
    ),
    "balance": Command(
        "balance_checkpoint",
        (Annotated[Path, typer.Argument(show_default=False, metavar="CHECKPOINT", help=f"The network; {READ}.")], ...),
        _FIBRE,
        "results/balance",
        """Write the canonical form of a network: balanced scales, fixed signs, the same function.

It has the least norm of all networks that scalings and sign flips lead to, which is useful before quantisation. The
checkpoint keeps its name, keys, dtypes and form. The printed fingerprint is the same for all networks that are equal up
to permutations, scales and signs; with `--net` also up to whatever else leaves a function as it is, such as matrices
between values and outputs of attention.

Examples:

- `nfn-monomial balance model.safetensors --net resnet.py:ResNet --input 1,3,32,32`

- `nfn-monomial balance mlp.pt --activation tanh --out balanced --json`
""",
    ),
}


def add_checkpoints(app: typer.Typer) -> None:
    """Adds the commands."""
    for name, command in COMMANDS.items():
        where = f"by default {command.out}" if command.out else "without which nothing is written"
        default = Path(command.out) if command.out else None
        out = option(Path | None, "--out -o", f"Folder for the results, {where}.", default, show_default=False)
        kinds = {"paths": command.paths, **_NETWORK, **command.options, "out": out, **OUTPUT}
        add_command(app, name, kinds, command.text, functools.partial(_run, name, command))


def _run(
    name: str, command: Command, paths: Any, out: Path | None, as_json: bool, force: bool, input_shape: str | None,
    **options: Any,
) -> None:  # fmt: skip
    prepare_process()
    from nfn_monomial import tools

    sizes = None if input_shape is None else [size.strip() for size in input_shape.split(",")]
    if sizes and not all(size.isascii() and size.isdigit() and len(size) < 10 for size in sizes):
        raise InvalidValueError(f"--input {input_shape}: give sizes with commas between, batch included, as 1,3,32,32")
    options["input_shape"] = None if sizes is None else tuple(map(int, sizes))
    options["order"] = split_names(options["order"])
    several = isinstance(paths, list)
    read = [path for path in (paths if several else (paths,)) if path is not None]
    read += [Path(options["apart"])] if options.get("apart") else []
    code = [options["net"], options.get("data"), options.get("repair_data")]
    results = results_of(out, name, options, read, code, "table.md", force=force)
    with shown_progress(name) as progress:
        work = {"store": results and results.store, "progress": progress}
        options |= {key: work[key] for key in command.takes}
        finding = getattr(tools, command.function)(*(paths if several else [paths]), **options)
    written = finding.write(results) if results else []

    def print_tables() -> None:
        console.print(finding.summary, highlight=False, soft_wrap=True)
        finding.report().show(console)
        show_left_out({entry["file"]: entry["reason"] for entry in finding.results.get("skipped", ())})

    show(finding.to_json(), as_json, print_tables, written)
