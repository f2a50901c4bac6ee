"""The commands for networks of one's own: each is a function of `nfn_monomial.tools`."""

from __future__ import annotations

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
    split_names,
    told_progress,
)

__all__ = ["add_checkpoints"]

READ = f"read without running code: {FORMS}"
_NETWORK = {
    "net": option(
        str | None,
        "--net",
        "The network: module.py:NAME or package.module:NAME, a class or a function that returns a module (or a pair of "
        "it and its example inputs); hf:FOLDER, timm:NAME, torchvision:NAME; or an exported program, net.pt2. **Its "
        "code runs.** Without it a chain of layers is read off the checkpoint.",
    ),
    "net_args": option(
        str | None, "--net-args", "Arguments of the class or function of --net, as width=64,depth=3, or as JSON."
    ),
    "input_shape": option(
        str | None,
        "--input",
        "Shape of its inputs, batch included, as 1,3,32,32; not needed where a function example_inputs() stands beside "
        "it.",
    ),
    "activation": option(str | None, "--activation", "Of a chain of layers without --net, between them, as relu."),
    **ORDER,
    **KEY,
}
"""Options that say what network it is, as of the Python function."""
_FIBRE = {
    "fibre": option(
        bool,
        "--fibre",
        "By all that leaves a function as it is, where that is more than permutations, scales and signs: networks in "
        "normal form are written.",
        False,
    )
}
_SEED = {"seed": option(int, "--seed", "Of the alignment.", 0, min=0)}
_SEVERAL: Any = Annotated[
    list[Path],
    typer.Argument(show_default=False, metavar="CHECKPOINT", help=f"Two or more, or a folder of them; {READ}."),
]


@dataclass(frozen=True)
class Command:
    """A command for networks of one's own."""

    function: str  # of `nfn_monomial.tools`
    paths: tuple[Any, Any]  # the checkpoints, as typer takes them, and their default
    options: Mapping[str, tuple[Any, Any]]  # of its own, as of the function
    out: str  # the results folder by default; empty for a command that writes nothing unless it is asked to
    text: str  # the help
    takes: tuple[str, ...] = ()  # what the function takes besides, of long work


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

Found from what the network computes, and tested: random elements of the group are applied, and outputs compared in
float64. With a checkpoint the test is on its weights, and of every node it is told how far apart the scales of its
neurons are, how many are dead, and how many are there twice. `--out` writes a picture, too: symmetries.svg.

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
                "Of two: a folder of other networks that were trained apart by the same recipe, for a p-value that "
                "does not ask in which order neurons stand; 44 or more make p below 0.001 possible.",
            ),
            **_SEED,
            **SKIP,
        },
        "",
        """Are two networks the same function up to symmetry, and what is left between them? Of more: who is related?

Of two, the second is moved next to the first by permutations, scales and signs. Told are the verdict, the largest
difference of outputs, the distance of every parameter before and after, what part of it each kind of symmetry
explains, and a p-value of kinship: how likely networks that were trained apart are to have their neurons so alike,
place by place. If that does not make them equal, and `--net` allows more (as matrices
between values and outputs of attention, or rotations that norms allow), their normal forms are compared. Of more, or of
a folder: the distances of all pairs once symmetry is taken out, their tree, and p-values of kinship, corrected for the
number of pairs. `--out` writes the picture, too: compare.png or family.png.

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
                "Write a merged network, too; of this share of all but the first, as 0.5. It is "
                "that of the table's lines whose loss is the lowest.",
            ),
            "symmetry": option(
                str | None,
                "--symmetry",
                "What the networks that are written are moved by, the merged one, too: none, permutation or all.",
            ),
            "data": option(
                str | None,
                "--data",
                "module.py:NAME, a torch Dataset or DataLoader, or a function that returns one, or inputs and targets. "
                "**Its code runs.** Without it outputs on the example inputs are compared.",
            ),
            "repair_data": option(
                str | None, "--repair-data", "Training data, given as --data are, on which REPAIR takes its statistics."
            ),
            **_FIBRE,
            **_SEED,
            **SKIP,
        },
        "results/align",
        """Move networks into the frame of the first one, without a change of what they compute, and merge them.

Writes the second checkpoint, and all behind it, in the frame of the first, with its own name, keys, dtypes and form, so
that it loads where it did before. On the line from the first to the mean of the others the loss is taken: as they are,
moved by permutations only, and moved by all symmetries; the figure is barrier.png. With data, networks with running
statistics (batch norm) get new ones, too (REPAIR), best from `--repair-data`. What is best is chosen on `--data`: judge
the merged network on others.

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

Of all networks that scalings and sign flips lead to it is the one of least norm, which is useful in front of
quantisation. The checkpoint keeps its name, keys, dtypes and form. The fingerprint that is printed is the same for all
networks that are equal up to permutations, scales and signs; with `--net` also up to what else leaves a function as it
is, as matrices between values and outputs of attention.

Examples:

- `nfn-monomial balance model.safetensors --net resnet.py:ResNet --input 1,3,32,32`

- `nfn-monomial balance mlp.pt --activation tanh --out balanced --json`
""",
    ),
}


def add_checkpoints(app: typer.Typer) -> None:
    """Add all of them."""
    for name, command in COMMANDS.items():
        _add(app, name, command)


def _add(app: typer.Typer, name: str, command: Command) -> None:
    written = f"by default {command.out}" if command.out else "without which nothing is written"
    default = Path(command.out) if command.out else None
    out = option(Path | None, "--out -o", f"Folder for the results, {written}.", default, show_default=False)
    kinds = {"paths": command.paths, **_NETWORK, **command.options, "out": out, **OUTPUT}

    def run(paths: Any, out: Path | None, as_json: bool, force: bool, input_shape: str | None, **given: Any) -> None:
        prepare_process()
        from nfn_monomial import tools

        given["input_shape"] = _sizes(input_shape)
        given["order"] = split_names(given["order"])
        several = isinstance(paths, list)
        read = [path for path in (paths if several else (paths,)) if path is not None]
        read += [Path(given["apart"])] if given.get("apart") else []
        code = [given["net"], given.get("data"), given.get("repair_data")]
        results = results_of(out, name, given, read, code, "table.md", force=force)
        with told_progress(name) as progress:
            work = {"store": results and results.store, "progress": progress}
            given |= {key: work[key] for key in command.takes}
            found = getattr(tools, command.function)(*(paths if several else [paths]), **given)
        written = found.write(results) if results else []

        def tell() -> None:
            console.print(found.summary, highlight=False, soft_wrap=True)
            found.report().show(console)

        show(found.to_json(), as_json, tell, written)

    add_command(app, name, kinds, command.text, run)


def _sizes(text: str | None) -> tuple[int, ...] | None:
    """Sizes between commas."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise InvalidValueError(f"--input {text}: give sizes with commas between, batch included, as 1,3,32,32")
    return tuple(map(int, parts))
