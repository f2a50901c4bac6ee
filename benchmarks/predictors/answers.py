"""What predictors say of checkpoints, for people and programs: rows of a table, JSON, edited networks and pictures."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nfn_monomial.benchmarks.calls import Call
from nfn_monomial.benchmarks.files import write_atomically, write_json

from .predictor import Prediction, Predictor
from .tasks import Classification, Editing, Generalization

__all__ = ["PREDICTIONS", "Answers"]

PREDICTIONS = "predictions.json"
LIKELIEST = 3  # classes that a table shows
ENLARGED = 8  # pixels of a picture for each of an image


@dataclass(frozen=True)
class Answers:
    """What a predictor says of some checkpoints.

    Attributes:
        predictor: who says it.
        predictions: what, in the order of the files.
    """

    predictor: Predictor
    predictions: tuple[Prediction, ...]

    def to_json(self) -> dict[str, Any]:
        """Which predictor, and an entry for each file; numbers that are not finite are None."""
        record = self.predictor.record
        return {
            "predictor": {
                "task": self.predictor.task.name,
                "answers": self.predictor.task.answers,
                "reads": self.predictor.reads,
                "model": record["settings"]["model"],
                "metrics": self.predictor.metrics,
            },
            "networks": [
                {"path": str(prediction.path), **entry}
                for prediction, entry in zip(self.predictions, self._entries(), strict=True)
            ],
        }

    def rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings and rows of a table."""
        heads = {
            Generalization.name: ("predicted test accuracy", "rank"),
            Classification.name: ("class", "probability", "then"),
            Editing.name: ("pixels changed by (RMS)",),
        }
        rows = [(str(p.path), *_cells(entry)) for p, entry in zip(self.predictions, self._entries(), strict=True)]
        return ("checkpoint", *heads[self.predictor.task.name]), rows

    def write(self, call: Call) -> list[Path]:
        """Write ``predictions.json``; of an editor also every edited network, in the form it came in, and its picture.

        Args:
            call: whose results these are; it says where to, and whether files that are there are replaced.

        Raises:
            ValueError: if a file is there already, was read, or two would have one name; nothing is written then.
        """
        edits = self.predictions if isinstance(self.predictor.task, Editing) else ()
        names = [Path(edit.checkpoint.name) for edit in edits]
        files = [file for name, edit in zip(names, edits, strict=True)
                 for file in (name.with_suffix(".png"), *edit.checkpoint.outputs(str(name)))]  # fmt: skip
        read = {file.resolve(): str(p.path) for p in self.predictions for file in p.checkpoint.files}
        paths = call.claim([PREDICTIONS, *files], read)
        folder = paths[0].parent
        for name, edit in zip(names, edits, strict=True):
            edit.checkpoint.write(folder, str(name), edit.answer)
            write_atomically(folder / name.with_suffix(".png"), self._picture(edit))
        write_json(paths[0], self.to_json())
        return paths

    def _entries(self) -> list[dict[str, Any]]:
        match self.predictor.task:
            case Generalization():
                values = [float(p.answer) for p in self.predictions]
                ordered = sorted(v for v in values if _finite(v) is not None)
                ranks = {v: len(ordered) - i for i, v in enumerate(ordered)}  # equal ones share the best
                return [{"accuracy": _finite(v), "rank": ranks.get(v)} for v in values]
            case Classification(classes=classes):
                return [
                    {
                        "class": classes[int(p.answer.nan_to_num(-1).argmax())],
                        "probabilities": dict(zip(classes, map(_finite, p.answer.tolist()), strict=True)),
                    }
                    for p in self.predictions
                ]
        shown = [self._images(p) for p in self.predictions]
        return [{"change": _finite(float((after - before).square().mean().sqrt()))} for before, after in shown]

    def _images(self, prediction: Prediction) -> list[Tensor]:
        """What a network shows before and after the edit, ``(C, H, W)`` each."""
        task = self.predictor.task
        assert isinstance(task, Editing), "only editors have pictures"
        return [
            task.siren.render({name: state[key].float()[None] for name, key in prediction.names.items()})[0]
            for state in (prediction.checkpoint, prediction.answer)
        ]

    def _picture(self, prediction: Prediction) -> bytes:
        """Before and after side by side, as PNG."""
        from PIL import Image

        before, after = self._images(prediction)
        gap = torch.ones(before.shape[0], before.shape[1], 1)
        both = torch.cat([before, gap, after], -1).nan_to_num(0).clamp(0, 1)
        pixels = (255 * both).round().byte().permute(1, 2, 0).numpy()
        image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
        file = io.BytesIO()
        image.resize((ENLARGED * image.width, ENLARGED * image.height), Image.Resampling.NEAREST).save(file, "PNG")
        return file.getvalue()


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    match entry:
        case {"accuracy": accuracy, "rank": rank}:
            return _shown(accuracy), "-" if rank is None else str(rank)
        case {"probabilities": probabilities}:
            ranked = sorted(probabilities.items(), key=lambda item: -(item[1] or 0))
            first, *others = [(name, _shown(p)) for name, p in ranked[:LIKELIEST]]
            return *first, ", ".join(f"{name} {p}" for name, p in others)
    return (_shown(entry["change"]),)


def _finite(value: float) -> float | None:
    return value if value - value == 0 else None


def _shown(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3f}"
