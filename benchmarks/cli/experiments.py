"""The commands that train: the five experiments, made by one factory, and the demonstration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from nfn_monomial.benchmarks.settings.experiments import EXPERIMENTS
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.cli.options import console, errors

from .make import make_zoo_at
from .options import command, command_line, configured, prepare_process

if TYPE_CHECKING:  # they import torch
    from nfn_monomial.benchmarks.studies import News, Study

__all__ = ["SHARED", "add_experiments"]

SHARED = (
    "data", "data_options", "preset", "assignments", "models", "seeds", "seed", "device", "devices", "precision",
    "tensorboard",
)  # fmt: skip
"""The options that all experiments have."""


@dataclass(frozen=True)
class Experiment:
    """An experiment as a command.

    Attributes:
        study: module of `nfn_monomial.benchmarks.studies` with its `Study`; imported when the command runs.
        data: where the data are by default, and the command that makes them, by task if there are several.
        text: the help.
        options: that it has.
    """

    study: str
    data: Mapping[str, tuple[str, str]]
    text: str
    options: tuple[str, ...] = SHARED


ZOO = {"": ("zoos/digits", "nfn-monomial zoo make")}
KEPT = (
    "Finished runs are kept, and an unfinished one continues: a second call does only what is missing. The trained "
    "models are in `predictors/`, for the command `predict`."
)
COMMANDS = {
    "predict-generalization": Experiment(
        "predict_report",
        ZOO,
        f"""Predict the accuracy of CNNs from their weights, under permutations, scalings and sign flips (Sec. 6.1).

Trains every model on the zoo's training networks, as they are and augmented by random group elements, selects the epoch
by Kendall's tau on the validation networks, and tests on the test networks as they are, moved by the group, and with
more neurons but the same functions. Writes `table.md`, `results.json`, `figure1.png` and `config.json`. {KEPT} Networks
of different architectures are read by the models on graphs.

Presets: small, eight models, 12 epochs, some six minutes on 2 cores with a zoo of 1000 networks; paper, its models and
hyperparameters. `--models all`: all models that can read the networks, which takes hours, most of it for those on
graphs.

Examples:

- `nfn-monomial zoo make && nfn-monomial predict-generalization`

- `nfn-monomial predict-generalization --models monomial,hnp,balanced-hnp --seeds 1 --set training.epochs=5`

- `nfn-monomial predict-generalization --set widen=2 --set loss=rank --set scales=10,1e6 --set activations=relu`

- `nfn-monomial predict-generalization --data cifar10 --data-option split_file=cifar10_split.csv --preset paper
--device cuda`

- `nfn-monomial predict-generalization --data zoos/mixed --out results/mixed --data-option unseen_architectures=true`

- `torchrun --nproc-per-node 2 -m nfn_monomial.benchmarks predict-generalization`
""",
    ),
    "ablation": Experiment(
        "ablation",
        ZOO,
        f"""The paper's ablation: one to three equivariant layers, with and without a layer of HNP (Table 24).

Trains six stacks on the zoo's ReLU networks and tests them as `predict-generalization` does, under scales up to 1e4.
Writes `table.md`, `results.json`, `ablation.png` and `config.json`. {KEPT} About five minutes on 2 cores with a zoo of
1000 networks.

Examples:

- `nfn-monomial zoo make && nfn-monomial ablation`

- `nfn-monomial ablation --set activations=relu,tanh --seeds 1 --models mnf-1,mnf-1-hnp`
""",
    ),
    "augment": Experiment(
        "augment",
        ZOO,
        f"""Augmentation against symmetry: tau under scales up to 1e6 (Figure 1, Tables 2, 12 to 15), training curves.

Trains models on the networks as they are and augmented by random group elements, and tests them as
`predict-generalization` does; with `per_scale`, with an augmented set for every range of scales, as the paper. Then
trains on moved copies of the networks alone, in float64: the loss of an invariant model is the one on the original
networks, to rounding. Writes `table.md`, `results.json`, `figure1.png`, `training_curves.png` and `config.json`. {KEPT}
About ten minutes on 2 cores with a zoo of 1000 networks.

Examples:

- `nfn-monomial augment --models hnp,monomial --set scales=10,1e6`

- `nfn-monomial augment --set per_scale=true --set curve_models=`

- `nfn-monomial augment --data cifar10 --preset paper --device cuda`
""",
    ),
    "tune": Experiment(
        "tune.report",
        ZOO,
        """Search how models are best trained: learning rate and its schedule, decay, epochs, batches, averaging, loss.

One recipe for each model, for all zoos that are given, and all activations in them. The training networks are cut into
folds; a recipe is trained on some and judged on the others, and given up as soon as it is behind the median of those
before. What is chosen is then trained on all training networks, beside the training without a recipe, and compared on
the validation networks. Test networks are not read. Writes `table.md`, `results.json`, `search.png`, `config.json`, and
`recipe.json`, which the other experiments on zoos take: `--set recipe=results/tune/recipe.json`.

Everything that was tried is kept, and a training that was cut off continues: a second call does only what is missing,
also with more `trials`. The same seed gives the same search.

With 500 ReLU and 500 tanh training networks, 40 recipes for `stats` took four minutes of one core; an epoch of message
passing takes some sixty times as long as one of `stats`, so give it a limit: `seconds`, of the CPU, for each model.

Examples:

- `nfn-monomial zoo make && nfn-monomial tune --models stats,probes`

- `nfn-monomial tune --data zoos/digits --data zoos/mnist --models stats --set trials=100`

- `nfn-monomial tune --models combined --set seconds=3600 --set cuts=1 --set epochs=10,40 --set loss=bce,rank`

- `nfn-monomial predict-generalization --models stats --set recipe=results/tune/recipe.json`
""",
        ("zoos", *(name for name in SHARED if name not in ("data", "devices", "tensorboard"))),
    ),
    "classify-inr": Experiment(
        "classify_report",
        {"": ("inrs/mnist5k", "nfn-monomial inr make --images mnist5k")},
        f"""Classify images by the weights of the networks that show them (Sec. 6.2).

Trains every model on the training networks, selects the epoch by the accuracy on the validation networks, and tests on
the test networks as they are, with signs flipped and neurons permuted, and with phases shifted. Writes `table.md`,
`results.json`, `confusion.png`, `learning.png` and `config.json`. {KEPT}

Presets: small; medium (eight models on several fits of every image, some two hours of one core); paper (the paper's
hyperparameters for MNIST), paper-fashion and paper-cifar. How networks are prepared
is part of the configuration: `inputs.absorb_omega`, `.canonical_phase`, `.normalize`, `.augment`, `.warp`.

Examples:

- `nfn-monomial inr make && nfn-monomial classify-inr`

- `nfn-monomial inr make --fits 8 --seed 1 --out inrs/mnist5k8 && nfn-monomial classify-inr --data inrs/mnist5k8
--preset medium`

- `nfn-monomial classify-inr --models inr-hnp,inr-monomial-hnp --set inputs.canonical_phase=false --seeds 3`

- `nfn-monomial classify-inr --data siren_cifar_wts --preset paper-cifar --device cuda`
""",
    ),
    "edit-inr": Experiment(
        "edit_report",
        {
            "dilate": ("inrs/mnist5k", "nfn-monomial inr make --images mnist5k"),
            "contrast": ("inrs/crops", "nfn-monomial inr make --images crops"),
        },
        f"""Edit INRs so that their images are dilated, or have more contrast (Sec. 6.3).

Trains every editor to change the weights of the training networks so that they render the changed image, selects the
epoch on the validation networks, and tests on the test networks as they are and moved by sign flips and permutations.
Writes `table.md`, `results.json`, `edits.png` (originals, targets and edits side by side), `learning.png` and
`config.json`. {KEPT}

The task is `dilate`, by default on inrs/mnist5k, or `contrast`, by default on inrs/crops.

Examples:

- `nfn-monomial inr make && nfn-monomial edit-inr`

- `nfn-monomial inr make --images crops && nfn-monomial edit-inr --set task=contrast --seeds 3`

- `nfn-monomial edit-inr --data siren_mnist_wts --preset paper --device cuda`

- `nfn-monomial edit-inr --models np,message-passing --set training.epochs=2 --set limit=500`
""",
    ),
}


DEMO = """The paper's first experiment in one command, in about five minutes on 2 cores.

Makes a zoo on scikit-learn's digits, trains six models on its ReLU networks and three on its tanh networks, prints the
tables and leaves the figure. `--augmented` trains on networks moved by random group elements, too. Interrupted, the
same command continues; a second call only prints.

Examples:

- `nfn-monomial demo`

- `nfn-monomial demo --models monomial,hnp --augmented --seeds 2 --out results/more`
"""


def add_experiments(app: typer.Typer) -> None:
    """Add all of them."""
    options = ("networks", "augmented", "assignments", "models", "seeds", "seed", "device", "devices")
    command(app, "demo", options, "results/demo", DEMO, _demo, keeps=True)
    for name, experiment in COMMANDS.items():
        out = f"results/{'edit-TASK' if name == 'edit-inr' else name.removesuffix('-generalization')}"
        command(app, name, experiment.options, out, experiment.text, _body(name, experiment, out), keeps=True)


def _body(name: str, experiment: Experiment, default: str) -> Callable[..., None]:
    def body(
        data_options: Sequence[str], preset: str, assignments: Sequence[str], out: Path | None,
        data: Path | None = None, zoos: Sequence[Path] = (), **given: Any,
    ) -> None:  # fmt: skip
        config = configured(EXPERIMENTS[name], preset, assignments, **given)
        task = getattr(config, "task", "")
        folder, make = experiment.data[task]
        folders = [*zoos, *([data] if data else [])] or [Path(folder)]
        if not (zoos or data) and not Path(folder).exists():
            raise InvalidValueError(f"{folder} is not there: make it by `{make}`, or give another folder by --data")
        place = out or Path(default.replace("TASK", task))
        _run(experiment.study, config, folders, data_options, place, published=name)

    return body


def _demo(networks: int, augmented: bool, assignments: Sequence[str], out: Path | None, **given: Any) -> None:
    start = time.perf_counter()
    preset = EXPERIMENTS["predict-generalization"]["demo"]
    if augmented:
        preset = replace(preset, train_sets=("original", "augmented"))
    if given["models"]:
        preset = replace(preset, left_out=())
    config = configured({"demo": preset}, "demo", assignments, **given)
    folder = out or Path("results/demo")
    _run(
        "predict_report", config, [folder / "zoo"], (), folder,
        make=lambda: make_zoo_at(folder / "zoo", config.training.device, networks=networks),
    )  # fmt: skip
    console.print(f"Took {(time.perf_counter() - start) / 60:.1f} minutes.", highlight=False)


def _run(
    study: str,
    config: Any,
    folders: Sequence[Path],
    data_options: Sequence[str],
    out: Path,
    make: Callable[[], None] | None = None,
    published: str = "",
) -> None:
    """Do an experiment and report on it; what cannot be done is found out before data are made or anything is written.

    Args:
        study: module that has its `Study`.
        config: its configuration.
        folders: of the data; several only of classifiers.
        data_options: of their format.
        out: folder of the results.
        make: makes the data.
        published: the experiment's name where the paper's numbers are, see `beside_paper`.
    """
    prepare_process()
    from nfn_monomial.benchmarks.report.beside import beside_paper
    from nfn_monomial.benchmarks.train.devices import is_main_process, make_fabric, on_main_process_first
    from nfn_monomial.benchmarks.train.runs import RunStore, record

    console.quiet = errors.quiet = not is_main_process()
    known: Study = import_module(f"nfn_monomial.benchmarks.studies.{study}").STUDY
    known.check(config)
    store, fabric = RunStore(out), make_fabric(config.training)
    if make:
        with on_main_process_first(fabric):
            make()
    data, source = _load_all(folders, data_options, config)
    config = known.choose(config, data)
    path = ", ".join(map(str, folders))
    record(out, command_line(), config, {"path": path, **source}, config.training.device)
    with _training_bar() as progress:
        found = known.run(data, config, store, progress)
    if not is_main_process():  # the others end before tables and figures are written
        raise typer.Exit
    report = beside_paper(known.report(found, config, store), published)
    paths = report.write(out)
    report.show(console)
    console.print("", *map(str, paths), sep="\n", highlight=False)


def _load_all(folders: Sequence[Path], options: Sequence[str], config: Any) -> tuple[Any, dict[str, Any]]:
    """As `_load`; corpora of several folders have these in their names."""
    found = [_load(folder, options, config) for folder in folders]
    if len(found) == 1:
        return found[0]
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        raise InvalidValueError(f"several folders have one name: {', '.join(names)}; give each another")
    pairs = list(zip(names, found, strict=True))
    data = {f"{name}-{key}": corpus for name, (corpora, _) in pairs for key, corpus in corpora.items()}
    source = {f"{name}-{key}": known for name, (_, sources) in pairs for key, known in sources.items()}
    return {name: replace(corpus, activation=name) for name, corpus in data.items()}, source


def _load(folder: Path, options: Sequence[str], config: Any) -> tuple[Any, dict[str, Any]]:
    """The data, and what is recorded of them, with a bar while files are read."""
    from nfn_monomial.benchmarks.data.formats.detection import load_generalization, load_inr

    with Bar(console=console, transient=True) as bar:
        task = bar.add_task(f"reading {folder}", total=None, visible=False)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=True)

        if hasattr(config, "activations"):
            data: Any = load_generalization(folder, options, activations=config.activations, on_progress=show)
            sizes = {name: (corpus.train, corpus.val, corpus.test) for name, corpus in data.items()}
            source = {name: dict(corpus.source) for name, corpus in data.items()}
        else:
            data = load_inr(folder, options, on_progress=show)
            sizes, source = {data.name: ((data.train,), (data.val,), (data.test,))}, data.info
    for name, parts in sizes.items():
        train, val, test = (sum(map(len, part)) for part in parts)
        console.print(f"{name}: {train} training, {val} validation, {test} test networks", highlight=False)
    return data, source


@contextmanager
def _training_bar() -> Iterator[Callable[[News], None]]:
    """A bar over all runs and their epochs, and a line for every run that is finished."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(progress: News) -> None:
            if progress.line:
                bar.console.print(progress.line, markup=False, highlight=False)
            bar.update(task, description=progress.title, completed=progress.done, total=progress.total)

        yield show
