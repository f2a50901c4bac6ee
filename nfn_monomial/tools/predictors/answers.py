"""Answers of predictors for checkpoints: rows of a table, JSON, edited networks and pictures."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nfn_monomial.tools.files.atomic import write_atomically, write_json
from nfn_monomial.tools.results import Results

from .predictor import Predictor
from .tasks import Prediction

__all__ = ["PREDICTIONS", "Answers"]

PREDICTIONS = "predictions.json"


@dataclass(frozen=True)
class Answers:
    """A predictor's answers for checkpoints, in the order of the files; ``skipped``: path -> why it was left out."""

    predictor: Predictor
    predictions: tuple[Prediction, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """Notes on how networks were read."""
        return list(dict.fromkeys(prediction.doubt for prediction in self.predictions if prediction.doubt))

    @functools.cached_property
    def entries(self) -> list[dict[str, Any]]:
        """The answers as JSON has them, one for each file."""
        return self.predictor.task.entries(self.predictions)

    def to_json(self) -> dict[str, Any]:
        """Returns the predictor, and an entry for each file; numbers that are not finite are None."""
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
                for prediction, entry in zip(self.predictions, self.entries, strict=True)
            ],
            "notes": self.notes,
            "skipped": [{"file": path, "reason": reason} for path, reason in self.skipped.items()],
        }

    def rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Returns headings and rows of a table."""
        task = self.predictor.task
        rows = [(str(p.path), *task.cells(entry)) for p, entry in zip(self.predictions, self.entries, strict=True)]
        return ("checkpoint", *task.heads), rows

    def write(self, results: Results) -> list[Path]:
        """Writes ``predictions.json``; for an editor also every edited network, in its original form, and its picture.

        Raises:
            ValueError: before anything is written, if a file is there already, was read, or two have one name.
        """
        edits = self.predictions if self.predictor.task.edits else ()
        names = [Path(edit.checkpoint.name) for edit in edits]
        files = [file for name, edit in zip(names, edits, strict=True)
                 for file in (name.with_suffix(".png"), *edit.checkpoint.outputs(str(name)))]  # fmt: skip
        read = {file.resolve(): str(p.path) for p in self.predictions for file in p.checkpoint.files}
        paths = results.claim([PREDICTIONS, *files], read)
        folder = results.folder
        for name, edit in zip(names, edits, strict=True):
            edit.checkpoint.write(folder, str(name), edit.answer)
            write_atomically(folder / name.with_suffix(".png"), self.predictor.task.picture(edit))
        write_json(paths[0], self.to_json())
        results.finish()
        return paths
