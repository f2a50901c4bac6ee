"""The commands that count, time and learn without data: `params`, `cost` and those of `bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from nfn_monomial.benchmarks.settings.experiments import EXPERIMENTS
from nfn_monomial.tools.cli.options import console

from .options import command, command_line, configured, prepare_process

__all__ = ["add_measurements", "bench_app"]

bench_app = typer.Typer(no_args_is_help=True, help="Compare speed and memory, what layers can learn, what align finds.")


def add_measurements(app: typer.Typer) -> None:
    """Add all of them."""
    common = ("assignments", "device")
    for group, name, options, measure, text in (
        (app, "params", ("assignments",), _params, PARAMS),
        (app, "cost", ("preset", "models", *common), _cost, COST),
        (bench_app, "layers", ("preset", *common), _layers, LAYERS),
        (bench_app, "expressivity", ("seeds", "seed", *common), _expressivity, EXPRESSIVITY),
        (bench_app, "merge", ("assignments",), _merge, MERGE),
    ):
        command(
            group,
            name,
            options,
            f"results/{name}",
            text,
            _body(name, measure),
            keeps=measure is _merge,
        )


def _body(name: str, measure: Callable[[Any, Path], Any]) -> Callable[..., None]:
    def body(assignments: Sequence[str], out: Path | None, preset: str = "small", **given: Any) -> None:
        config = configured(EXPERIMENTS[name], preset, assignments, **given)
        prepare_process()
        from nfn_monomial.benchmarks.train.devices import require_device
        from nfn_monomial.benchmarks.train.runs import record

        device = getattr(config, "device", "cpu")
        require_device(device)
        folder = out or Path("results") / name
        record(folder, command_line(), config, {}, device)  # raises if nothing can be written there
        report = measure(config, folder)
        paths = report.write(folder)
        report.show(console)
        console.print("", *map(str, paths), sep="\n", highlight=False)

    return body


PARAMS = """Count the parameters of one layer and of every model, against the paper's (Tables 1, 17, 21, 22). Seconds.

Writes `table.md`, `results.json`, `params.png` and `config.json`. Nothing is trained.

Examples:

- `nfn-monomial params`

- `nfn-monomial params --set sizes=784,128,128,10 --set kernel=1 --set channels=1,16`
"""


def _params(config: Any, folder: Path) -> Any:
    from nfn_monomial.benchmarks.studies.params_report import params_report

    return params_report(config)


COST = """Run time and memory of training for every model in one run, relative to HNP (Tables 10 and 11).

Models take turns, step by step, on networks with random weights: time and memory do not depend on the weights, and no
zoo is needed. About five minutes on 2 cores; use an idle machine. Writes `table.md`, `results.json`, `cost.png` and
`config.json`.

Examples:

- `nfn-monomial cost`

- `nfn-monomial cost --models np,hnp,gnn,monomial --device cuda --set batch_sizes=8,64,512`
"""


def _cost(config: Any, folder: Path) -> Any:
    from nfn_monomial.benchmarks.studies.cost import cost_report, measure_costs

    with console.status("timing") as status:
        costs = measure_costs(config, lambda text: status.update(f"timing {text}"))
    return cost_report(costs, config)


LAYERS = """Time one layer, and a stack of three, against nfn's layers and the matrix products that no layer can avoid.

On the Small CNN Zoo's network and the SIREN 2-32-32-1, forward and forward + backward; contenders take turns, so the
ratios are of one run. Then message passing: dense layers against the same on graphs and PNAConv, in time and memory.
Use an idle machine. Writes `table.md`, `results.json` and `config.json`.

The preset `quick` (five minutes) leaves out large batches, and adds training steps of whole models, as they
are, in bfloat16 and compiled (which needs a C++ compiler; with the seconds that it takes), the time of the import, and
of building layers on a network of 1,000 tensors.

Examples:

- `nfn-monomial bench layers --preset quick`

- `nfn-monomial bench layers --set batches=64 --set repeats=50`

- `nfn-monomial bench layers --set graphs=false`
"""


def _layers(config: Any, folder: Path) -> Any:
    from nfn_monomial.benchmarks.speed.graphs import bench_speed

    with console.status("timing") as status:
        return bench_speed(config, lambda text: status.update(f"timing {text}"))


EXPRESSIVITY = """Predict the outputs of random networks from their weights: message passing against linear layers.

Both models have equally many parameters. Five to ten minutes on 2 cores. Writes `table.md`, `results.json`,
`expressivity.png` and `config.json`.

Examples:

- `nfn-monomial bench expressivity --set activations=relu --seeds 3`
"""


def _expressivity(config: Any, folder: Path) -> Any:
    from nfn_monomial.benchmarks.make.jobs import progress_bar
    from nfn_monomial.benchmarks.studies.expressivity import bench_expressivity, expressivity_report

    with progress_bar("training") as progress:
        outcomes = bench_expressivity(config, progress)
    return expressivity_report(outcomes, config)


MERGE = """Merge networks that were trained on their own: as they are, permuted, permuted and scaled.

Pairs of MLPs, VGG-like CNNs and ResNet-20 of several widths are trained on digits and MNIST; the loss on the line
between them is measured with and without REPAIR, and that of the mean of four networks. About half an hour on one core.
Trained networks and finished pairs stay in the folder: an interrupted call goes on where it was. Writes `table.md`,
`results.json`, `merge.png` and `config.json`.

Examples:

- `nfn-monomial bench merge`

- `nfn-monomial bench merge --set subjects=digits-mlp-64 --set several=digits-mlp-64 --set pairs=3`
"""


def _merge(config: Any, folder: Path) -> Any:
    from nfn_monomial.benchmarks.make.jobs import progress_bar
    from nfn_monomial.benchmarks.studies.merge.measure import measure_merging
    from nfn_monomial.benchmarks.studies.merge.report import merge_report

    with progress_bar("merging") as progress:
        findings = measure_merging(config, folder, progress)
    return merge_report(findings, config)
