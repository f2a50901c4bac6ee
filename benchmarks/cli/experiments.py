"""The commands of experiments, all made from the register, and the demonstration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, get_args

import typer

from nfn_monomial.benchmarks.experiments import EXPERIMENTS, Experiment
from nfn_monomial.benchmarks.settings.register import News
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.cli.options import EXPERIMENTS_PANEL, console, errors, progress_bar, shown_progress
from nfn_monomial.tools.files.atomic import results_folder

from .make import make_zoo_at
from .options import command, command_line, configured, prepare_process

__all__ = ["add_experiments", "bar_of_runs"]

DEMO = """The paper's first experiment in one command, in about five minutes on 2 cores.

Makes a zoo on scikit-learn's digits, trains six models on its ReLU networks and three on its tanh networks, prints the
tables and draws the figure. `--augmented` also trains on networks moved by random group elements. If it is interrupted,
the same command continues; a second call only prints.

Examples:

- `nfn-monomial demo`

- `nfn-monomial demo --models monomial,hnp --augmented --seeds 2 --out results/more`
"""


def add_experiments(app: typer.Typer) -> None:
    """Adds the demonstration, all experiments of the register, and the group `bench`."""
    bench = typer.Typer(no_args_is_help=True, help="Compare speed and memory.")
    options = ("networks", "augmented", "assignments", "models", "seeds", "seed", "device", "devices")
    demo = {"demo": EXPERIMENTS["predict-generalization"].presets["demo"]}
    command(app, "demo", options, "results/demo", DEMO, _demo, keeps=True, presets=demo)
    for e in EXPERIMENTS.values():
        group = bench if e.name.startswith("bench ") else app
        command(group, e.key, e.options, e.folder, e.text, partial(_run, e), keeps=e.keeps, presets=e.presets)
    app.add_typer(bench, name="bench", rich_help_panel=EXPERIMENTS_PANEL)


def _run(
    experiment: Experiment, assignments: Sequence[str], out: Path | None, preset: str = "small",
    data: Path | None = None, zoos: Sequence[Path] = (), data_options: Sequence[str] = (), **hardware: Any,
) -> None:  # fmt: skip
    """Does an experiment by the options of its command."""
    config = configured(experiment.presets, preset, assignments, **hardware)
    task = getattr(config, "task", "")
    folders = [*zoos, *([data] if data else [])]
    if experiment.data and not folders:
        wanted = experiment.sets.get(preset) or dict([experiment.data[task]])
        folders = [Path(folder) for folder in wanted]
        if missing := {folder: make for folder, make in wanted.items() if not Path(folder).exists()}:
            are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
            commands = " ".join(f"`{make}`" for make in missing.values())
            raise InvalidValueError(
                f"{', '.join(missing)} {are} not there: make {them} by {commands}, or give another folder by --data"
            )
    _do(experiment, config, folders, data_options, out or Path(experiment.folder.replace("TASK", task)))


def _demo(networks: int, augmented: bool, assignments: Sequence[str], out: Path | None, **hardware: Any) -> None:
    start = time.perf_counter()
    experiment = EXPERIMENTS["predict-generalization"]
    preset = experiment.presets["demo"]
    if augmented:
        preset = replace(preset, train_sets=("original", "augmented"))
    if hardware["models"]:
        preset = replace(preset, left_out=())
    config = configured({"demo": preset}, "demo", assignments, **hardware)
    folder = out or Path("results/demo")
    _do(
        experiment, config, [folder / "zoo"], (), folder,
        make=lambda: make_zoo_at(folder / "zoo", config.training.device, networks=networks),
    )  # fmt: skip
    console.print(f"Took {(time.perf_counter() - start) / 60:.1f} minutes.", highlight=False)


def _do(
    experiment: Experiment,
    config: Any,
    folders: Sequence[Path],
    data_options: Sequence[str],
    out: Path,
    make: Callable[[], None] | None = None,
) -> None:
    """Does an experiment and reports on it. Errors of the configuration come before data are made or files written.

    Args:
        experiment: one of the register.
        config: its configuration.
        folders: of the data; several only of classifiers, none for an experiment without data.
        data_options: of their format.
        out: folder of the results.
        make: makes the data, for the demonstration, which is not compared with the paper.
    """
    prepare_process()
    from nfn_monomial.benchmarks.report.beside import beside_paper
    from nfn_monomial.benchmarks.train.devices import is_main_process, make_fabric, require_device
    from nfn_monomial.benchmarks.train.runs import CONFIG_NAME, RunStore, record

    console.quiet = errors.quiet = not is_main_process()
    once = lru_cache(maxsize=1)
    study = experiment.load()
    study.check(config)
    results_folder(out, CONFIG_NAME)
    hardware = getattr(config, "training", config)
    device = getattr(hardware, "device", "cpu")
    store = RunStore(out)
    fabric = make_fabric(config.training) if hardware is not config else None
    if fabric is None:
        require_device(device)
    if make and fabric:
        with fabric.rank_zero_first():  # the other processes use the data that it has made
            make()
    data, source = _load(experiment, folders, data_options, config)
    config = study.choose(config, data)
    described = {"path": ", ".join(map(str, folders)), **source} if folders else {}
    write_down = once(lambda: record(out, command_line(), config, described, device))
    with bar_of_runs() as tell:

        def begun(news: News) -> None:  # what the data do not allow was refused before, and leaves all as it was
            write_down()
            tell(news)

        results = study.run(data, config, store, begun)
    if is_main_process():  # all may have been kept
        write_down()
    if not is_main_process():  # the others end before tables and figures are written
        raise typer.Exit
    report = study.tables(results, config, store)
    report = report if make else beside_paper(report, experiment.key, study.kept(results, store))
    paths = report.write(out)
    if report.heading:
        console.print("", report.heading, sep="\n", highlight=False)
    report.show(console)
    console.print("", *map(str, paths), sep="\n", highlight=False)


def _load(
    experiment: Experiment, folders: Sequence[Path], options: Sequence[str], config: Any
) -> tuple[Any, dict[str, Any]]:
    """Returns the data and their description for the record; corpora of several folders are named by these, too."""
    from nfn_monomial.benchmarks.data.formats.detection import load_generalization, load_inr
    from nfn_monomial.benchmarks.data.networks import fingerprint
    from nfn_monomial.tools.predictors.architectures import MixedActivation

    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        raise InvalidValueError(f"several folders have one name: {', '.join(names)}; give each another")
    corpora: dict[str, Any] = {}
    source: dict[str, Any] = {}
    marks: dict[str, Path] = {}
    for folder, folder_name in zip(folders, names, strict=True):
        with shown_progress(f"reading {folder}") as progress:
            if experiment.inrs:
                inrs = load_inr(folder, options, on_progress=progress)
                corpora, source = {inrs.name: inrs}, inrs.info
            else:
                activations = () if len(folders) > 1 else getattr(config, "activations", ())  # others are chosen later
                read = load_generalization(folder, options, activations=activations, on_progress=progress)
                if len(folders) > 1:
                    for activation, corpus in read.items():
                        if (first := marks.setdefault(fingerprint(corpus), folder)) != folder:
                            raise InvalidValueError(
                                f"{first} and {folder} hold the same {activation} networks: give each zoo once"
                            )
                    named = [part for part in folder_name.split("-") if part in get_args(MixedActivation)]
                    called = {a: folder_name if named == [a] else f"{folder_name}-{a}" for a in read}
                    read = {called[a]: replace(corpus, activation=called[a]) for a, corpus in read.items()}
                if both := set(corpora) & set(read):
                    raise InvalidValueError(f"two zoos are called {', '.join(both)}: give their folders other names")
                corpora |= read
                source |= {name: dict(corpus.source) for name, corpus in read.items()}
    for name, corpus in corpora.items():
        sides = (corpus.train, corpus.val, corpus.test)
        train, val, test = (len(side) if experiment.inrs else sum(map(len, side)) for side in sides)
        console.print(f"{name}: {train} training, {val} validation, {test} test networks", highlight=False)
        for note in () if experiment.inrs else corpus.source.get("notes", ()):
            console.print(f"{name}: {note}", highlight=False)
    if experiment.inrs:
        return next(iter(corpora.values())), source
    return corpora or None, source


@contextmanager
def bar_of_runs() -> Iterator[Callable[[News], None]]:
    """Shows a bar over all runs and their epochs, and a line for every run that is finished; both on stderr."""
    bar = progress_bar()
    with nullcontext() if bar.disable else bar:
        task = bar.add_task("starting", total=None)

        def show(progress: News) -> None:
            if progress.line:
                bar.console.print(progress.line, highlight=False)
            bar.update(task, description=progress.title, completed=progress.done, total=progress.total)

        yield show
