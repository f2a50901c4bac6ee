"""The commands of experiments, all made from the register, and the demonstration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from nfn_monomial.benchmarks.experiments import EXPERIMENTS, Experiment
from nfn_monomial.benchmarks.settings.register import News
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.cli.options import console, errors, shown_progress

from .make import make_zoo_at
from .options import command, command_line, configured, prepare_process

__all__ = ["add_experiments", "bar_of_runs"]

DEMO = """The paper's first experiment in one command, in about five minutes on 2 cores.

Makes a zoo on scikit-learn's digits, trains six models on its ReLU networks and three on its tanh networks, prints the
tables and leaves the figure. `--augmented` trains on networks moved by random group elements, too. Interrupted, the
same command continues; a second call only prints.

Examples:

- `nfn-monomial demo`

- `nfn-monomial demo --models monomial,hnp --augmented --seeds 2 --out results/more`
"""


def add_experiments(app: typer.Typer) -> None:
    """Add the demonstration, all that is registered, and the group `bench`."""
    bench = typer.Typer(no_args_is_help=True, help="Compare speed and memory.")
    options = ("networks", "augmented", "assignments", "models", "seeds", "seed", "device", "devices")
    demo = {"demo": EXPERIMENTS["predict-generalization"].presets["demo"]}
    command(app, "demo", options, "results/demo", DEMO, _demo, keeps=True, presets=demo)
    for e in EXPERIMENTS.values():
        group = bench if e.name.startswith("bench ") else app
        command(group, e.key, e.options, e.folder, e.text, _body(e), keeps=e.keeps, presets=e.presets)
    app.add_typer(bench, name="bench")


def _body(experiment: Experiment) -> Callable[..., None]:
    def body(
        assignments: Sequence[str], out: Path | None, preset: str = "small", data: Path | None = None,
        zoos: Sequence[Path] = (), data_options: Sequence[str] = (), **given: Any,
    ) -> None:  # fmt: skip
        config = configured(experiment.presets, preset, assignments, **given)
        task = getattr(config, "task", "")
        folders = [*zoos, *([data] if data else [])]
        if experiment.data and not folders:
            folder, make = experiment.data[task]
            folders = [Path(folder)]
            if not folders[0].exists():
                raise InvalidValueError(f"{folder} is not there: make it by `{make}`, or give another folder by --data")
        _run(experiment, config, folders, data_options, out or Path(experiment.folder.replace("TASK", task)))

    return body


def _demo(networks: int, augmented: bool, assignments: Sequence[str], out: Path | None, **given: Any) -> None:
    start = time.perf_counter()
    experiment = EXPERIMENTS["predict-generalization"]
    preset = experiment.presets["demo"]
    if augmented:
        preset = replace(preset, train_sets=("original", "augmented"))
    if given["models"]:
        preset = replace(preset, left_out=())
    config = configured({"demo": preset}, "demo", assignments, **given)
    folder = out or Path("results/demo")
    _run(
        experiment, config, [folder / "zoo"], (), folder,
        make=lambda: make_zoo_at(folder / "zoo", config.training.device, networks=networks),
    )  # fmt: skip
    console.print(f"Took {(time.perf_counter() - start) / 60:.1f} minutes.", highlight=False)


def _run(
    experiment: Experiment,
    config: Any,
    folders: Sequence[Path],
    data_options: Sequence[str],
    out: Path,
    make: Callable[[], None] | None = None,
) -> None:
    """Do an experiment and report on it; what cannot be done is found out before data are made or anything is written.

    Args:
        experiment: which.
        config: its configuration.
        folders: of the data; several only of classifiers, none for an experiment without data.
        data_options: of their format.
        out: folder of the results.
        make: makes the data, for the demonstration, which is not set beside the paper.
    """
    prepare_process()
    from nfn_monomial.benchmarks.report.beside import beside_paper
    from nfn_monomial.benchmarks.train.devices import is_main_process, make_fabric, require_device
    from nfn_monomial.benchmarks.train.runs import RunStore, record

    console.quiet = errors.quiet = not is_main_process()
    study = experiment.load()
    study.check(config)
    hardware = getattr(config, "training", config)
    device = getattr(hardware, "device", "cpu")
    store = RunStore(out)
    fabric = make_fabric(config.training) if hardware is not config else None
    if fabric is None:
        require_device(device)
    if make and fabric:
        with fabric.rank_zero_first():  # the others find what it has made
            make()
    data, source = _load_all(experiment, folders, data_options, config) if folders else (None, {})
    config = study.choose(config, data)
    record(out, command_line(), config, {"path": ", ".join(map(str, folders)), **source} if folders else {}, device)
    with bar_of_runs() as tell:
        found = study.run(data, config, store, tell)
    if not is_main_process():  # the others end before tables and figures are written
        raise typer.Exit
    report = study.tables(found, config, store)
    report = report if make else beside_paper(report, experiment.key)
    paths = report.write(out)
    report.show(console)
    console.print("", *map(str, paths), sep="\n", highlight=False)


def _load_all(
    experiment: Experiment, folders: Sequence[Path], options: Sequence[str], config: Any
) -> tuple[Any, dict[str, Any]]:
    """As `_load`; corpora of several folders have these in their names."""
    found = [_load(experiment, folder, options, config) for folder in folders]
    if len(found) == 1:
        return found[0]
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        raise InvalidValueError(f"several folders have one name: {', '.join(names)}; give each another")
    pairs = list(zip(names, found, strict=True))
    data = {f"{name}-{key}": corpus for name, (corpora, _) in pairs for key, corpus in corpora.items()}
    source = {f"{name}-{key}": known for name, (_, sources) in pairs for key, known in sources.items()}
    return {name: replace(corpus, activation=name) for name, corpus in data.items()}, source


def _load(experiment: Experiment, folder: Path, options: Sequence[str], config: Any) -> tuple[Any, dict[str, Any]]:
    """The data, and what is recorded of them, with a bar while files are read."""
    from nfn_monomial.benchmarks.data.formats.detection import load_generalization, load_inr

    with shown_progress(f"reading {folder}") as progress:
        if experiment.inrs:
            data: Any = load_inr(folder, options, on_progress=progress)
            sizes, source = {data.name: ((data.train,), (data.val,), (data.test,))}, data.info
        else:
            activations = getattr(config, "activations", ())
            data = load_generalization(folder, options, activations=activations, on_progress=progress)
            sizes = {name: (corpus.train, corpus.val, corpus.test) for name, corpus in data.items()}
            source = {name: dict(corpus.source) for name, corpus in data.items()}
    for name, parts in sizes.items():
        train, val, test = (sum(map(len, part)) for part in parts)
        console.print(f"{name}: {train} training, {val} validation, {test} test networks", highlight=False)
    return data, source


@contextmanager
def bar_of_runs() -> Iterator[Callable[[News], None]]:
    """A bar over all runs and their epochs, and a line for every run that is finished."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(progress: News) -> None:
            if progress.line:
                bar.console.print(progress.line, highlight=False)
            bar.update(task, description=progress.title, completed=progress.done, total=progress.total)

        yield show
