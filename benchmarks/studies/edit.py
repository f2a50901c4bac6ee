"""Editing INRs: change the weights of a sine network so that it shows a changed image (paper Sec. 6.3, App. D.5).

An editor sees weights alone and answers with weights; the loss is the mean squared error between the image
of the edited network and the ground truth. (App. D.5 speaks of cross-entropy there, Sec. 6.3 of squared errors.) The
ground truth is the original image dilated, or its contrast enhanced (`dilate`, `contrast`); if the images are not
known, those of the unedited networks replace them. All pixels lie in [0, 1]; rendered ones are not clamped.

Epochs are selected by the error on the validation networks alone. Each editor is then tested on the test networks as
they are (``original``) and on the same networks moved by random elements of their symmetry group, sign flips and
permutations (``moved``), which changes no image.

**Units.** The paper does not name the range of its pixels. Errors of pixels in [-1, 1] are 4 times those here, and are
what its numbers look like: for dilation it has 0.306 for the MLP, where leaving MNIST as it is costs 0.095 here and
0.378 in these units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure
from scipy.ndimage import grey_dilation
from torch import Tensor
from torch.nn.functional import mse_loss

from nfn_monomial.benchmarks.data.batches import Data, pick
from nfn_monomial.benchmarks.data.seeds import derive_seed
from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart
from nfn_monomial.benchmarks.experiments.edit import EditConfig, EditorConfig, Task
from nfn_monomial.benchmarks.models.editors import build_editor, register_editor
from nfn_monomial.benchmarks.predictors import Editing
from nfn_monomial.benchmarks.report.beside import Kept, kept_outcomes
from nfn_monomial.benchmarks.report.figures import draw_learning
from nfn_monomial.benchmarks.report.tables import by_model, model_table, over_seeds, record_of, row_of
from nfn_monomial.benchmarks.settings.register import Study
from nfn_monomial.benchmarks.train.runs import Run, RunSettings, RunStore
from nfn_monomial.benchmarks.train.sweep import Job, OnProgress, Test, Trial, sweep
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.report import Report, Table, panels
from nfn_monomial.tools.store import code_of

from .classify import fingerprint, subset

__all__ = ["check", "contrast", "dilate", "draw_edits", "edit_inrs", "edit_report", "plan", "prepare", "scores"]

VERSION = 3  # raise it when results change, or finished runs of before are taken for new ones
COMPUTED_BY = ("models/editors.py", "models/inr_input.py", "models/parts.py")
"""Modules that the results depend on, besides this one and training; a test names VERSION when they change."""
CONTRAST = 2.0
GREY = (0.299, 0.587, 0.114)  # luminance of red, green and blue (ITU-R 601)
LARGEST = 1e6  # the error of a pixel that is not finite, or further off
LEAST_CHANGE = 1e-6  # mean squared difference between images and targets below which there is nothing to learn
BATCH = 512  # networks that are rendered at once


def dilate(images: Tensor) -> Tensor:
    """Replaces every pixel by the largest of the 3x3 pixels around it, within the image; ``(N, C, H, W)``."""
    return torch.from_numpy(grey_dilation(images.numpy(), size=(1, 1, 3, 3)))


def contrast(images: Tensor) -> Tensor:
    """Doubles the distance of every pixel from the mean grey value of its image; ends are 0 and 1.

    The contrast of Pillow's ``ImageEnhance`` with factor 2. The paper does not give its transformation.
    """
    grey = images.mean(1) if images.shape[1] == 1 else torch.einsum("nchw,c->nhw", images, images.new_tensor(GREY))
    mean = grey.mean((1, 2))[:, None, None, None]
    return (mean + CONTRAST * (images - mean)).clamp(0, 1)


TARGETS: dict[Task, Callable[[Tensor], Tensor]] = {"dilate": dilate, "contrast": contrast}


def edit_inrs(
    corpus: InrCorpus,
    config: EditConfig,
    store: RunStore,
    on_progress: OnProgress = lambda progress: None,
) -> list[Run]:
    """Does all runs that the store does not have; returns all, kept and new, in the order of the plan. See `sweep`.

    Every run keeps, as artifacts, ``edited`` and ``moved``, the edited images of some test networks and of the same
    networks moved, and ``unedited`` and ``target``, ``(shown, C, H, W)``; ``extra`` has the networks' numbers.

    Raises:
        ValueError: if a device is not there, or as `check`.
    """
    check(config, corpus)
    return sweep(plan(config, corpus), store, on_progress)


def require_models(config: EditConfig) -> None:
    """Checks that there are such editors.

    Raises:
        ValueError: naming those that there are.
    """
    for name in config.models:
        register_editor[name]


def check(config: EditConfig, corpus: InrCorpus) -> None:
    """Raises errors of the configuration before hours of work.

    Raises:
        ValueError: if the task changes nothing about the images, there is no such editor, or one that cannot read the
            networks.
    """
    require_models(config)
    for model in config.models:
        build_editor(model, corpus.siren, config.editor, seed=0)
    images = _Images(corpus, config.task)
    change = float((images.target("val") - images.original(corpus.val)).square().mean())
    if not change >= LEAST_CHANGE:
        raise InvalidValueError(
            f"{config.task} leaves the images of {corpus.name} as they are (mean squared difference {change:.1e}): "
            "there is nothing to learn; use other networks or another task"
        )


def plan(config: EditConfig, corpus: InrCorpus) -> list[Job]:
    """Returns all runs, seed by seed."""
    data = fingerprint(corpus)
    corpus = replace(corpus, train=subset(corpus.train, None, config.limit))
    images = _Images(corpus, config.task)
    return [
        Job(
            RunSettings(
                experiment="edit-inr",
                subject=corpus.name,
                model=model,
                train_set="original",
                seed=seed,
                options={
                    "task": config.task, "limit": config.limit and [config.limit, "drawn"],
                    "shown": config.shown, "editor": asdict(config.editor),
                },
                loss="mse",
                training=config.training.lasting(config.steps, len(corpus.train)),
                data=data,
                code=code_of(register_editor[model]),
                version=VERSION,
            ),
            partial(prepare, images),
        )
        for seed in config.seeds
        for model in config.models
    ]  # fmt: skip


class _Images:
    """Original and wanted images of the networks of a corpus, made once for all runs."""

    def __init__(self, corpus: InrCorpus, task: Task) -> None:
        self.corpus, self.task = corpus, task
        self._targets: dict[str, Tensor] = {}

    def rendered(self, part: InrPart) -> Tensor:
        """Returns the images that the networks show, ``(N, C, H, W)``."""
        numbers = torch.split(torch.arange(len(part)), BATCH)
        with torch.no_grad():
            return torch.cat([self.corpus.siren.render(pick(part.tensors, index)) for index in numbers])

    def original(self, part: InrPart) -> Tensor:
        """Returns the images that were fitted, or if they are not known, those that the networks show."""
        pixels = self.corpus.pixels
        return self.rendered(part).clamp(0, 1) if pixels is None else pixels[part.image]

    def target(self, name: str) -> Tensor:
        """Returns the wanted images of all networks of a split."""
        if name not in self._targets:
            self._targets[name] = TARGETS[self.task](self.original(getattr(self.corpus, name)))
        return self._targets[name]


def prepare(images: _Images, settings: RunSettings) -> Trial:
    """Returns model and data of one run."""
    options, seed, corpus = settings.options, settings.seed, images.corpus
    config = EditorConfig(**options["editor"])
    editor = build_editor(settings.model, corpus.siren, config, seed=derive_seed(seed, "model"))

    def data(name: str) -> Data:
        return Data(editor.prepare(getattr(corpus, name).tensors), images.target(name))

    train = data("train")
    editor.fit_inputs(pick(train.inputs, index) for index in torch.split(torch.arange(len(train)), BATCH))

    def tests() -> Iterator[Test]:
        tensors = corpus.test.tensors
        generator = torch.Generator().manual_seed(derive_seed(seed, "moved"))
        moved = corpus.siren.space.sample(len(corpus.test), generator=generator).act(tensors)
        for name, networks in (("original", tensors), ("moved", moved)):
            yield Test(name, Data(editor.prepare(networks), images.target("test")))

    def finish(answers: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        unedited, target = images.rendered(corpus.test), images.target("test")
        shown = torch.linspace(0, len(target) - 1, min(options["shown"], len(target))).round().long()
        kept = {"unedited": unedited, "target": target, "edited": answers["original"], "moved": answers["moved"]}
        validated = scores(images.rendered(corpus.val), images.target("val"))
        extra = {"unedited": scores(unedited, target), "unedited, val": validated, "shown": shown.tolist()}
        return extra, {name: t[shown] for name, t in kept.items()}

    return Trial(
        settings, editor, train, data("val"), tests, mse_loss, scores, select="psnr", finish=finish,
        outcome=lambda images, targets: {"answers": squares(images, targets).flatten(1).mean(1)},
        predictor=Editing(corpus.siren, options["task"]).written(),
    )  # fmt: skip


def squares(images: Tensor, targets: Tensor) -> Tensor:
    """Returns the squared error of every pixel; arguments as of `scores`."""
    return torch.nan_to_num(images.detach().double() - targets, nan=LARGEST).clamp(-LARGEST, LARGEST).square()


def scores(images: Tensor, targets: Tensor) -> dict[str, float]:
    """Mean squared error over all pixels of all images, and the same as a peak signal-to-noise ratio, to select by.

    Both are finite whatever is rendered: a pixel counts as off by 1e6 at most, and if it is NaN.
    """
    mse = float(squares(images, targets).mean())
    return {"psnr": -10 * math.log10(max(mse, 1e-30)), "mse": mse}


# -- tables and figures ------------------------------------------------------------------------------------------------

NO_EDIT = "no edit"
DIGITS = 4  # of errors


def edit_report(runs: Sequence[Run], store: RunStore) -> Report:
    """Returns table, images and learning curves of finished runs, which the store has.

    Args:
        runs: of one task and configuration, see `edit_inrs`.
        store: that has them.

    Raises:
        ValueError: if there are no runs, or runs that would share a line differ in more than their seed.
    """
    record, first = record_of(runs), runs[0]
    results: dict[str, Any] = {
        "task": first.settings.options["task"],
        "subject": first.settings.subject,
        "unedited": first.extra["unedited"],
        "rows": [row_of(group, "mse") for group in by_model(runs).values()],
        **record,
    }
    curve = {"mean squared error on validation networks": lambda epoch: float(epoch["metrics"]["mse"])}
    validated = first.extra.get("unedited, val")  # runs of before have none
    learning = draw_learning(runs, curve, (NO_EDIT, validated["mse"]) if validated else None)
    learning.axes[0].set_title(f"{first.settings.options['task']}, {first.settings.subject}", fontsize=10)
    return Report([edit_table(runs)], results, {"edits.png": draw_edits(runs, store), "learning.png": learning})


def edit_table(runs: Sequence[Run]) -> Table:
    """A line per editor, with its test errors; above them the error without an edit."""
    first = runs[0]
    notes = [
        "Mean squared error between the edited network's image and the ground truth, pixels in [0, 1]; in [-1, 1], as "
        "presumably in the paper, it is 4 times as much. moved: the same test networks, moved by permutations and "
        "sign flips that change no image. invariant is here whether the edited image stays. "
        f"{over_seeds(runs).capitalize()}; epochs are selected on validation networks.",
    ]
    what = f"{first.settings.subject} INRs, {first.settings.options['task']}"
    table = model_table(
        f"Editing {what}: mean squared error on {first.networks['test']} test networks",
        runs,
        {"MSE": lambda run: run.metric("original", "mse"), "MSE moved": lambda run: run.metric("moved", "mse")},
        digits=DIGITS,
        notes=notes,
    )
    cost = f"{first.extra['unedited']['mse']:.{DIGITS}f}"
    nothing = (NO_EDIT, "-", "yes", cost, cost, "0", "-", "-", "-")
    return replace(
        table, subject=first.settings.subject, cells=(nothing, *table.cells), bold=frozenset(i + 1 for i in table.bold)
    )


def draw_edits(runs: Sequence[Run], store: RunStore) -> Figure:
    """A row per test network, and one for the first of them moved; original, target, every editor's image.

    Below every image its mean squared error. Of several seeds the first is shown.
    """
    groups = [group[0] for group in by_model(runs).values()]
    kept = [store.artifacts(run.settings) for run in groups]
    unedited, target = kept[0]["unedited"], kept[0]["target"]
    columns = {"original INR": unedited, "target": target}
    columns |= {run.label: artifacts["edited"] for run, artifacts in zip(groups, kept, strict=True)}
    columns = {label: torch.cat([images, images[:1]]) for label, images in columns.items()}
    for run, artifacts in zip(groups, kept, strict=True):
        columns[run.label][-1] = artifacts["moved"][0]
    target = columns["target"]
    rows, wide = len(target), len(columns)
    figure, axes = panels(rows, wide, (max(1.15 * wide + 0.4, 4.6), 1.38 * rows + 0.5), grid=False)
    for j, (label, images) in enumerate(columns.items()):
        axes[j].set_title(label.replace(" ", "\n", 1), fontsize=8)
        for i, ax in enumerate(axes[j::wide]):
            pixels = torch.nan_to_num(images[i]).clamp(0, 1).movedim(0, -1).squeeze(-1).numpy()
            ax.imshow(pixels, cmap="gray", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
            if label != "target":
                error = float((images[i] - target[i]).double().square().mean())
                ax.set_xlabel(f"{error:.{DIGITS}f}", fontsize=7, labelpad=2)
    axes[-wide].set_ylabel("moved", fontsize=8)
    settings = runs[0].settings
    figure.suptitle(f"{settings.options['task']}, {settings.subject}: mean squared errors below the images", fontsize=9)
    figure.supxlabel("Last row: the first network again, moved by permutations and sign flips.", fontsize=8)
    return figure


def kept(runs: Sequence[Run], store: RunStore) -> Kept:
    """Returns the answers that the errors are counted from."""
    return kept_outcomes(runs, store, lambda test: "MSE" * (test.name == "original"), train_sets=False)


STUDY = Study(edit_inrs, lambda runs, config, store: edit_report(runs, store), require_models, kept=kept)
