"""The commands that count, time and learn without data: `params`, `cost` and those of `bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from nfn_monomial.benchmarks.settings.experiments import EXPERIMENTS

from .options import command, command_line, configured, console, prepare_process

__all__ = ["add_measurements", "bench_app"]

bench_app = typer.Typer(no_args_is_help=True, help="Compare speed and memory, what layers can learn, what align finds.")


def add_measurements(app: typer.Typer) -> None:
    """Add all of them."""
    common = ("assignments", "device")
    for group, name, options, measure, text in (
        (app, "params", ("assignments",), _params, PARAMS),
        (app, "cost", ("preset", "models", *common), _cost, COST),
        (bench_app, "layers", ("preset", *common), _layers, LAYERS),
        (bench_app, "scaling", common, _scaling, SCALING),
        (bench_app, "streaming", ("models", "assignments"), _streaming, STREAMING),
        (bench_app, "processes", ("models", "assignments"), _processes, PROCESSES),
        (bench_app, "expressivity", ("seeds", "seed", *common), _expressivity, EXPRESSIVITY),
        (bench_app, "planted", ("assignments",), _planted, PLANTED),
        (bench_app, "merge", ("assignments",), _merge, MERGE),
        (bench_app, "verdicts", ("assignments",), _verdicts, VERDICTS),
    ):
        command(
            group,
            name,
            options,
            f"results/{name}",
            text,
            _body(name, measure),
            keeps=measure in (_merge, _scaling, _verdicts),
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


SCALING = """How time and memory of a training step grow with width, depth and the number of blocks.

Layers on MLPs up to 2,048 wide and 100 deep: slopes over the edges, where 1 is linear. Then a whole message-passing
model, with its blocks' activations kept and computed again in backward (`recompute_blocks`). What would take more than
half of the free memory is left out. Some minutes on one core; an interrupted run goes on where it was. Writes
`table.md`, `results.json`, `scaling.png`, `cells.json` and `config.json`.

Examples:

- `nfn-monomial bench scaling`

- `nfn-monomial bench scaling --set widths=16,64,256 --set depths=2,8 --set blocks=8`
"""


def _scaling(config: Any, folder: Path) -> Any:
    from nfn_monomial.benchmarks.make.jobs import progress_bar
    from nfn_monomial.benchmarks.speed.scaling import measure_scaling, scaling_report

    with progress_bar("timing") as progress:
        scaling = measure_scaling(config, folder, progress)
    return scaling_report(scaling)


STREAMING = """Train on a zoo of 20 GiB that stays on disk: how fast beside one in memory, and in how much memory.

The zoo is made up and written to the folder of the results; it is removed at the end. Passes streamed and in
memory take turns. Some ten minutes, most of them for writing and reading. Writes `table.md`, `results.json` and
`config.json`.

Examples:

- `nfn-monomial bench streaming`

- `nfn-monomial bench streaming --set gib=2 --models stats --out /mnt/disk/streaming`
"""


def _streaming(config: Any, folder: Path) -> Any:
    from nfn_monomial.benchmarks.models.catalogue import require_task
    from nfn_monomial.benchmarks.speed.streaming import measure_streaming, streaming_report

    require_task(config.models, "generalization", "ablation")
    with console.status("streaming") as status:
        return streaming_report(measure_streaming(config, folder, lambda text: status.update(text)))


PROCESSES = """Train in one process and in two: what is left of the seconds of an epoch.

Every training is a torchrun of its own on random networks; numbers of processes take turns. Each process has one
thread. Some minutes; use an idle machine. Writes `table.md`, `results.json` and `config.json`.

Examples:

- `nfn-monomial bench processes`

- `nfn-monomial bench processes --models message-passing --set processes=1,2,4 --set batch_sizes=512`
"""


def _processes(config: Any, folder: Path) -> Any:
    from nfn_monomial.benchmarks.make.jobs import progress_bar
    from nfn_monomial.benchmarks.models.catalogue import require_task
    from nfn_monomial.benchmarks.speed.processes import measure_processes, processes_report

    require_task(config.models, "generalization", "ablation")
    with progress_bar("training") as progress:
        timings = measure_processes(config, progress)
    return processes_report(timings, config)


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


PLANTED = """Move networks by random group elements, and count how often `align` finds the way back.

MLPs, VGGs, ResNet-18 with norms, and a GPT block; as they are, rounded to float32, and with noise on every weight. Half
an hour on one core. Writes `table.md`, `results.json` and `config.json`.

Examples:

- `nfn-monomial bench planted`

- `nfn-monomial bench planted --set runs=20 --set changed_runs=20 --set noise=0.03`
"""


def _planted(config: Any, folder: Path) -> Any:
    from nfn_monomial.benchmarks.make.jobs import progress_bar
    from nfn_monomial.benchmarks.studies.alignment.planted import planted_report, recover_planted

    with progress_bar("aligning") as progress:
        recoveries = recover_planted(config, progress)
    return planted_report(recoveries, config)


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


VERDICTS = """Count how often `compare` calls pairs of networks the same function that are, and that are not.

Pairs that are not: independent ones, and ones that differ by a single weight, by noise, by the sign or the place of a
neuron on one side. 11,000 pairs take about a quarter of an hour on one core; an interrupted run goes on where it was.
Writes `table.md`, `results.json`, `cells.json` and `config.json`.

Examples:

- `nfn-monomial bench verdicts`

- `nfn-monomial bench verdicts --set different=500 --set same=100`
"""


def _verdicts(config: Any, folder: Path) -> Any:
    from nfn_monomial.benchmarks.make.jobs import progress_bar
    from nfn_monomial.benchmarks.studies.alignment.verdicts import count_verdicts, verdicts_report

    with progress_bar("comparing") as progress:
        cells = count_verdicts(config, folder, progress)
    return verdicts_report(cells, config)
