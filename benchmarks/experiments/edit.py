"""Editing INRs: change a network so that it shows a changed image (paper Sec. 6.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from nfn_monomial.benchmarks.settings.base import Count, Positive, Seed, Settings, Some
from nfn_monomial.benchmarks.settings.register import Experiment, register
from nfn_monomial.benchmarks.settings.training import TrainConfig

from .predict import KEPT

__all__ = ["EDIT", "EditConfig", "EditorConfig", "Task"]


@dataclass(frozen=True)
class EditorConfig(Settings):
    """Sizes of the editors and the preparation of their input. The defaults are the paper's (App. D.5).

    Attributes:
        inputs: ``stored`` gives the weights as they are, without omega_0. ``canonical`` absorbs omega_0 into them,
            reduces the phases (`canonical_phase`) and brings every entry to size 1 (`InputNorm`); edits happen there,
            and are carried back. Neither changes what the networks compute, and both commute with the symmetry group.
        fourier: channels of the Gaussian Fourier features of NP, HNP and the hybrid, half of them sines: the published
            parameter counts are those of 256 channels.
        fourier_scale: standard deviation of their frequencies.
        width: channels of NP and HNP.
        monomial: channels of the monomial layers.
        mlp: width of its three hidden layers; with 1000 it has the published 4.5M parameters.
        messages: channels of message passing.
        blocks: its depth.
        init_scale: of the change at the start; learned, for every parameter of a network by itself.
    """

    inputs: Literal["stored", "canonical"] = "stored"
    fourier: Annotated[int, Field(ge=2, multiple_of=2)] = 256
    fourier_scale: Positive = 10.0
    width: Count = 128
    monomial: Count = 16
    mlp: Count = 1000
    messages: Count = 32
    blocks: Count = 3
    init_scale: Positive = 0.01


Task = Literal["dilate", "contrast"]
_EDITORS = ("mlp", "np", "hnp", "monomial-np")  # the paper's


@dataclass(frozen=True)
class EditConfig(Settings):
    """Editing INRs, see `nfn_monomial.benchmarks.studies.edit`.

    Attributes:
        models: registered names, see `nfn_monomial.benchmarks.models.editors`.
        task: the change of images.
        seeds: one run of every editor for each.
        limit: train on so many networks, drawn; None for all.
        steps: train for so many steps, rounded up to whole epochs, instead of ``training.epochs``.
        shown: of how many test networks, at equal distances, the edited images are kept for the figure.
        editor: sizes of the editors.
        training: see `TrainConfig`.
    """

    models: Some[str]
    task: Task = "dilate"
    seeds: Some[Seed] = (0,)
    limit: Count | None = None
    steps: Count | None = None
    shown: Count = 5
    editor: EditorConfig = field(default_factory=EditorConfig)
    training: TrainConfig = field(default_factory=TrainConfig)


EDIT = {
    "small": EditConfig(
        models=(*_EDITORS, "balanced-np", "monomial", "message-passing"),
        editor=EditorConfig(
            inputs="canonical", fourier=32, fourier_scale=0.3, width=32, mlp=256, messages=16, init_scale=0.1
        ),
        training=TrainConfig(epochs=8, batch_size=16, learning_rate=3e-3, warmup_steps=100, clip_norm=1.0),
    ),
    # App. D.5 and the table of hyperparameters for weight space style editing; five runs, as its results have.
    "paper": EditConfig(
        models=(*_EDITORS, "monomial", "message-passing"),
        seeds=(0, 1, 2, 3, 4),
        steps=50_000,
        training=TrainConfig(batch_size=32, learning_rate=1e-3),
    ),
}

register(
    Experiment(
        "edit-inr",
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
        EDIT,
        "edit",
        {
            "dilate": ("inrs/mnist5k", "nfn-monomial inr make --images mnist5k"),
            "contrast": ("inrs/crops", "nfn-monomial inr make --images crops"),
        },
        inrs=True,
        out="results/edit-TASK",
    )
)
