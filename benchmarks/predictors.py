"""The tasks of predictors that read INRs, to classify and to edit the image; and all else that experiments add."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import torch
from PIL import Image
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from nfn_monomial.canonical import absorb_omega
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors import Prediction
from nfn_monomial.tools.predictors.models import NetworkInfo, build_model
from nfn_monomial.tools.predictors.tasks import (
    CLASS_HEADS,
    MOST_INPUTS,
    MOST_WEIGHTS,
    Task,
    class_cells,
    class_entries,
    finite,
    number,
)

from .data.architectures import residual, transformers  # noqa: F401  (which adds them to those that are known)
from .data.sirens import Siren
from .experiments.classify import InputConfig, Sizes
from .experiments.edit import EditorConfig
from .models.editors import Editor, build_editor
from .models.inr import inr_info
from .models.inr_input import Classifier, prepared_siren

__all__ = ["Classification", "Editing"]

ENLARGED = 8  # pixels of a picture for each of an image


@dataclass(frozen=True)
class Classification(Task):
    """The class of the image that an INR shows."""

    name = "classify-inr"
    answers = "the probability of each class"
    heads = ("class", *CLASS_HEADS)

    siren: Siren
    classes: tuple[str, ...]
    loss: str

    @property
    def infos(self) -> tuple[NetworkInfo, ...]:
        return (_siren_info(self.siren),)

    def build(self, model: str, options: Mapping[str, Any]) -> Classifier:
        inputs = InputConfig(**options["inputs"])
        info = inr_info(prepared_siren(inputs, self.siren))
        checked = Sizes(**options["sizes"])
        sizes = {name: getattr(checked, name) for name in options["sizes"]}
        built = build_model(model, info, seed=0, out_features=len(self.classes), **sizes)
        return Classifier(built, self.siren, inputs)

    def answer(self, model: Any, tensors: Mapping[str, Tensor], info: NetworkInfo) -> Tensor:
        logits = model(tensors)
        return torch.sigmoid(logits) if self.loss == "bce" else torch.softmax(logits, -1)

    def entries(self, predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
        return class_entries(self.classes, predictions)

    def cells(self, entry: Mapping[str, Any]) -> tuple[str, ...]:
        return class_cells(entry)

    def _fields(self) -> dict[str, Any]:
        return {"siren": asdict(self.siren), "classes": list(self.classes), "loss": self.loss}

    @classmethod
    def _read(cls, fields: Mapping[str, Any]) -> Self:
        return cls(_siren(fields["siren"]), tuple(map(str, fields["classes"])), str(fields["loss"]))


@dataclass(frozen=True)
class Editing(Task):
    """The network whose image is that of a given INR, edited."""

    name = "edit-inr"
    answers = "the edited network"
    heads = ("pixels changed by (RMS)",)
    edits = True

    siren: Siren
    edit: str

    @property
    def infos(self) -> tuple[NetworkInfo, ...]:
        return (_siren_info(self.siren),)

    def build(self, model: str, options: Mapping[str, Any]) -> Editor:
        return build_editor(model, self.siren, EditorConfig(**options["editor"]), seed=0)

    def answer(self, model: Any, tensors: Mapping[str, Tensor], info: NetworkInfo) -> dict[str, Tensor]:
        """The edited networks, for the omega_0 of the given ones."""
        edited = model.edited(model.prepare({name: t.squeeze(1) for name, t in tensors.items()}))
        networks = {name: t.unsqueeze(1) for name, t in edited.items()}
        return absorb_omega(networks, info.space, model.siren.omega_0 / self.siren.omega_0)

    def entries(self, predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
        shown = map(self._images, predictions)
        return [{"change": finite((after - before).square().mean().sqrt())} for before, after in shown]

    def cells(self, entry: Mapping[str, Any]) -> tuple[str, ...]:
        return (number(entry["change"]),)

    def picture(self, prediction: Prediction) -> bytes:
        before, after = self._images(prediction)
        gap = torch.ones(before.shape[0], before.shape[1], 1)
        both = torch.cat([before, gap, after], -1).nan_to_num(0).clamp(0, 1)
        image = Image.fromarray((255 * both).round().byte().permute(1, 2, 0).squeeze(-1).numpy())
        file = io.BytesIO()
        image.resize((ENLARGED * image.width, ENLARGED * image.height), Image.Resampling.NEAREST).save(file, "PNG")
        return file.getvalue()

    def _images(self, prediction: Prediction) -> list[Tensor]:
        """Returns the images of a network before and after the edit, ``(C, H, W)`` each."""
        return [
            self.siren.render({name: state[key].float()[None] for name, key in prediction.names.items()})[0]
            for state in (prediction.checkpoint, prediction.answer)
        ]

    def _fields(self) -> dict[str, Any]:
        return {"siren": asdict(self.siren), "edit": self.edit}

    @classmethod
    def _read(cls, fields: Mapping[str, Any]) -> Self:
        return cls(_siren(fields["siren"]), str(fields["edit"]))


def _siren_info(siren: Siren) -> NetworkInfo:
    return replace(inr_info(siren), activation=f"sin with omega_0 {siren.omega_0:g}")


def _siren(value: Any) -> Siren:
    try:
        siren = TypeAdapter(Siren).validate_python(value)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        raise InvalidValueError(f"{'.'.join(map(str, ('siren', *wrong['loc'])))}: {wrong['msg']}") from None
    weights = sum(a * b for a, b in itertools.pairwise(siren.sizes))
    if weights > MOST_WEIGHTS or math.prod(siren.image) > MOST_INPUTS:
        raise InvalidValueError(
            f"{siren}: expected at most {MOST_WEIGHTS} weights, and {MOST_INPUTS} pixels and channels of an image"
        )
    return siren
