"""Merging of networks that were trained on their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, cast, get_args

from pydantic import Field

from nfn_monomial.benchmarks.settings.base import Count, Settings, Some
from nfn_monomial.benchmarks.settings.register import Experiment, register
from nfn_monomial.errors import InvalidValueError

__all__ = ["Kind", "MergeConfig", "Subject", "read_subject"]

Kind = Literal["mlp", "vgg", "resnet", "transformer", "transformer2"]
_IMAGES = ("digits", "mnist5k")


class Subject(NamedTuple):
    """Networks that are merged with one another: the images they classify, their architecture and its width."""

    images: str
    kind: Kind
    width: int

    def __str__(self) -> str:
        return f"{self.images}-{self.kind}-{self.width}"


def read_subject(text: str) -> Subject:
    """What ``digits-mlp-32`` says.

    Raises:
        ValueError: for anything else.
    """
    images, kind, width = [*text.split("-"), "", "", ""][:3]
    if text.count("-") != 2 or images not in _IMAGES or kind not in get_args(Kind) or not width.isdecimal():
        raise InvalidValueError(
            f"subjects: {text!r} is not images-architecture-width, as digits-mlp-32; images: {', '.join(_IMAGES)}; "
            f"architectures: {', '.join(get_args(Kind))}"
        )
    if not 1 <= int(width[:9]) <= 4096 or len(width) > 9:
        raise InvalidValueError(f"subjects: the width of {text[:40]!r} must be 1 to 4096")
    return Subject(images, cast("Kind", kind), int(width))


@dataclass(frozen=True)
class MergeConfig(Settings):
    """Merging of independently trained networks, see `nfn_monomial.benchmarks.studies.merge`.

    Attributes:
        subjects: images, architecture and width, as ``digits-mlp-32``.
        several: the same of networks that are merged several at once.
        together: so many.
        pairs: of each, whose lines are measured on the test images.
        validation_pairs: of each, other networks, on the validation images: they decide between variants.
        steps: of training.
        batch_size: images in a step.
        points: of a line, both ends included.
        inputs: training images by which activations are matched and statistics are reset.
        seed: of all.
    """

    subjects: Some[str] = (
        "digits-mlp-32", "digits-mlp-512", "digits-vgg-8", "digits-vgg-16", "digits-vgg-32", "digits-resnet-8",
        "digits-resnet-16", "mnist5k-mlp-256", "mnist5k-vgg-8", "mnist5k-resnet-8",
    )  # fmt: skip
    several: str = "digits-mlp-32"
    together: Annotated[int, Field(ge=2)] = 4
    pairs: Count = 5
    validation_pairs: Count = 3
    steps: Count = 400
    batch_size: Count = 64
    points: Annotated[int, Field(ge=3)] = 7
    inputs: Annotated[int, Field(ge=2)] = 200
    seed: int = 1

    def check(self) -> None:
        kinds = {read_subject(text).kind for text in (*self.subjects, self.several)}
        if 0 < sum(kind.startswith("transformer") for kind in kinds) < len(kinds):
            raise InvalidValueError(
                f"subjects and several are of {', '.join(sorted(kinds))}, but transformers are merged by methods of "
                "their own: give them a run of their own"
            )
        if self.points % 2 == 0:
            raise InvalidValueError(f"points is {self.points}, but it must be odd: the middle of a line is one of them")
        if self.together > 2 * self.pairs:
            raise InvalidValueError(f"together is {self.together}, but there are only {2 * self.pairs} networks")


TRANSFORMERS = MergeConfig(
    subjects=(
        "digits-transformer-32", "digits-transformer-64", "digits-transformer2-32", "digits-transformer2-64",
        "mnist5k-transformer-32",
    ),
    several="digits-transformer-32",
    steps=800,
)  # fmt: skip

register(
    Experiment(
        "bench merge",
        """Merge networks that were trained on their own: as they are, permuted, permuted and scaled.

Pairs of MLPs, VGG-like CNNs and ResNet-20 of several widths are trained on digits and MNIST; the loss on the line
between them is measured with and without REPAIR, and that of the mean of four networks. About half an hour on one core.
`--preset transformers` takes pairs of small transformers, which are brought into one frame by their normal forms.
Trained networks and finished pairs stay in the folder: an interrupted call goes on where it was. Writes `table.md`,
`results.json`, `merge.png` and `config.json`.

Examples:

- `nfn-monomial bench merge`

- `nfn-monomial bench merge --set subjects=digits-mlp-64 --set several=digits-mlp-64 --set pairs=3`
""",
        {"small": MergeConfig(), "transformers": TRANSFORMERS},
        "merge.report",
    )
)
