"""The networks of the experiment: one shape for zoos of one and of many architectures, and what they are turned into.

Networks moved by random elements of their symmetry group, and widened ones (`widen`), compute the same functions as
before, so their accuracies stay as they are.

Networks of one architecture may stay where they are (`Part.streamed`): then what they are turned into is made, and
prepared for models, batch by batch, and no function here holds more than a block of them. Corpora of many
architectures are in memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data.formats.checkpoints import IN_MEMORY_BYTES
from nfn_monomial.benchmarks.data.formats.mixed_zoo import Architecture, Group, MixedZoo, template
from nfn_monomial.benchmarks.data.formats.small_cnn_zoo import Networks, Zoo
from nfn_monomial.benchmarks.data.formats.zoo_layout import ZooError, cnn_geometry
from nfn_monomial.benchmarks.make.mixed_recipes import MODULES
from nfn_monomial.benchmarks.make.zoo import CONFIG_FILE
from nfn_monomial.benchmarks.models.base import MixedInfo, Model, NetworkGroup, NetworkInfo
from nfn_monomial.benchmarks.train.loop import Data, DataSet, StreamedData, derive_seed
from nfn_monomial.benchmarks.train.runs import WIDENED

from .moves import MovedRows, WidenedRows, draw_elements, draw_wider, elements_of, joined
from .rows import ConcatRows, Rows, TensorRows

__all__ = [
    "Corpus",
    "Part",
    "Parts",
    "TestSet",
    "accuracies",
    "augment",
    "corpus_of",
    "fingerprint",
    "groups_of",
    "looked_at",
    "prepared",
    "stated",
    "test_sets",
    "transform",
    "widened",
]

IMAGE_SIZES = {"digits": 8, "mnist5k": 28}
PUBLISHED_SIZE = 32  # pixels a side of the images of the published zoos, on which convolutions have no padding
BLOCK_BYTES = 2**26  # of networks that are read at once for the fingerprint
LOOKED_AT = 10_000  # training networks that input statistics are taken of, at most


@dataclass(frozen=True)
class Part:
    """Networks of one architecture and what is known of them."""

    networks: Networks
    info: NetworkInfo

    def __len__(self) -> int:
        return len(self.networks)

    @property
    def streamed(self) -> bool:
        """Whether the networks are not in memory, but read when they are asked for."""
        return not isinstance(self.networks.rows, TensorRows)


Parts = tuple[Part, ...]


@dataclass(frozen=True)
class Corpus:
    """The networks of a zoo, split; ``activation`` is its name in tables, ``mixed`` for many architectures.

    ``source``: where they come from, how they were split and what was left out, for the record.
    """

    activation: str
    train: Parts
    val: Parts
    test: Parts
    info: NetworkInfo | MixedInfo
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mixed(self) -> bool:
        """Whether only models that read different architectures can be trained on it."""
        return isinstance(self.info, MixedInfo)

    @property
    def scales(self) -> bool:
        """Whether the group of any network scales."""
        return _any(self.info.architectures, "scales")


@dataclass(frozen=True)
class TestSet:
    """Test networks, as they are (``scale`` None, name ``original``), moved by the group, or widened."""

    __test__ = False  # not a test case, whatever pytest makes of the name

    name: str
    scale: float | None
    parts: Parts


def corpus_of(zoo: Zoo | MixedZoo) -> Corpus:
    """The networks of a loaded zoo.

    Templates are built for 2-d convolutions of stride 2 with square kernels, all layers with a bias, and activations
    that mixed zoos have; padding and image size are those of ``zoo.json``, or of the published zoos.
    """
    if isinstance(zoo, Zoo):
        info = _info(zoo)
        parts = {name: (Part(getattr(zoo, name), info),) for name in ("train", "val", "test")}
        return Corpus(zoo.activation, **parts, info=info, source=zoo.info)
    size = IMAGE_SIZES.get(str(zoo.info["images"]), PUBLISHED_SIZE)

    def part(group: Group) -> Part:
        a = group.architecture
        names = "/".join(dict.fromkeys(a.activations))
        info = NetworkInfo(group.space, names, partial(template, a), (a.channels[0], size, size))
        return Part(Networks(group.tensors, group.accuracy), info)

    train, val, test = (tuple(map(part, groups)) for groups in (zoo.train, zoo.val, zoo.test))
    known = {(p.info.space, p.info.activation): p.info for p in (*train, *val, *test)}
    return Corpus("mixed", train, val, test, MixedInfo(tuple(known.values())), source=zoo.info)


def _info(zoo: Zoo) -> NetworkInfo:
    """Convolutions, global pooling, dense layers; the activation's symmetry."""
    geometry = cnn_geometry(zoo.layout)
    count = len(geometry.kernel_sizes)
    bias = [f"bias.{i}" in zoo.train.rows.shapes for i in range(count + len(geometry.head))]
    space = WeightSpace.cnn(
        geometry.channels, geometry.kernel_sizes, zoo.activation, head=geometry.head, bias=bias
    )  # fmt: skip
    square = all(len(k) == 2 and k[0] == k[1] for k in geometry.kernel_sizes)
    if not (square and all(bias) and geometry.head and zoo.activation in MODULES):
        return NetworkInfo(space, zoo.activation)
    known = stated(Path(str(zoo.info["path"]))) if "path" in zoo.info else {}
    size = IMAGE_SIZES.get(known.get("config", {}).get("images"), PUBLISHED_SIZE)
    architecture = Architecture(
        geometry.channels,
        kernel_sizes=tuple(k[0] for k in geometry.kernel_sizes),
        strides=(2,) * count,
        paddings=(int(known.get("padding", 0)),) * count,
        head=geometry.head,
        activations=(zoo.activation,) * (len(bias) - 1),  # type: ignore[arg-type]  # it is one of MODULES
    )
    return NetworkInfo(space, zoo.activation, partial(template, architecture), (geometry.channels[0], size, size))


def stated(folder: Path) -> dict[str, Any]:
    """``zoo.json`` of a zoo that was made here; nothing for a published one.

    Raises:
        ZooError: naming the file, if it is damaged.
    """
    path = folder / CONFIG_FILE
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return dict(found)
    except (ValueError, TypeError) as error:
        raise ZooError(f"{path} is damaged ({error}): make the zoo again, or restore the file") from error


def groups_of(parts: Parts) -> list[NetworkGroup]:
    """What `Model.prepare_groups` takes: all networks, read into memory."""
    return [(_with_channel(part.networks.tensors), part.info.space) for part in parts]


def prepared(parts: Parts, model: Model) -> DataSet:
    """The networks as inputs of a model, with their accuracies; read and prepared batch by batch if they are streamed.

    Models whose `Model.prepare` treats each network alone get the same inputs in both cases, bit by bit but for what
    is iterated until a whole batch converges (`balance`), which is equal to rounding.
    """
    if len(parts) != 1 or not parts[0].streamed:
        return Data(model.prepare_groups(groups_of(parts)), accuracies(parts))
    networks, space = parts[0].networks, parts[0].info.space
    return StreamedData(
        networks.rows, lambda tensors: model.prepare_groups([(_with_channel(tensors), space)]), networks.accuracy
    )


def looked_at(parts: Parts) -> Parts:
    """Networks to take input statistics of: all, or of many some from all over, 10,000 and 2 GiB at most."""
    count, size = sum(map(len, parts)), sum(part.networks.rows.nbytes for part in parts)
    share = min(1.0, LOOKED_AT / count, IN_MEMORY_BYTES / size)
    if share == 1:
        return parts

    def some(part: Part) -> Part:
        n = max(1, int(share * len(part)))
        return replace(part, networks=part.networks.subset(torch.arange(n) * len(part) // n))

    return tuple(map(some, parts))


def accuracies(parts: Parts) -> Tensor:
    """``(N,)``, all networks in order."""
    return torch.cat([part.networks.accuracy for part in parts])


def transform(parts: Parts, scale: float, seed: int) -> Parts:
    """Every network moved by a random element of its own: permuted, and scaled in ``[1, scale]`` or sign-flipped."""
    return tuple(_moved(part, part.info.space, scale, derive_seed(seed, i)) for i, part in enumerate(parts))


def _moved(part: Part, group: WeightSpace, scale: float, seed: int) -> Part:
    networks = part.networks
    rows = MovedRows(networks.rows, draw_elements(group, len(part), scale, seed))
    return replace(part, networks=Networks(_placed(networks.rows, rows), networks.accuracy))


def _placed(origin: Rows, rows: Rows) -> Rows:
    """Rows made of others: in memory if those are."""
    return TensorRows(rows.read_all()) if isinstance(origin, TensorRows) else rows


def widened(parts: Parts, factor: float, seed: int) -> Parts:
    """Every network with ``factor`` times the hidden neurons and the same function; copies in random places.

    A template stays that of the networks before: its functional calls take wider parameters as well.
    """
    wide = []
    for i, part in enumerate(parts):
        networks, space = part.networks, part.info.space
        drawn = draw_wider(networks.rows, space, factor, derive_seed(seed, i, "widen"))
        rows = _placed(networks.rows, WidenedRows(networks.rows, drawn))
        larger = Part(Networks(rows, networks.accuracy), replace(part.info, space=drawn.wider))
        wide.append(_moved(larger, drawn.wider.restricted("permutation"), 1.0, derive_seed(seed, i, "permute")))
    return tuple(wide)


def test_sets(corpus: Corpus, scales: Sequence[float], widen: float, seed: int) -> Iterator[TestSet]:
    """The test networks as they are; moved: once per scale, or once if no group scales; and widened unless by 0."""
    yield TestSet("original", None, corpus.test)
    if not corpus.scales:
        flips = _any(corpus.info.architectures, "flips")
        yield TestSet(
            "sign flips" if flips else "permuted", None, transform(corpus.test, 1.0, derive_seed(seed, "test"))
        )
    else:
        for scale in scales:
            yield TestSet(f"scale {scale:g}", scale, transform(corpus.test, scale, derive_seed(seed, "test", scale)))
    if widen:
        yield TestSet(WIDENED, None, widened(corpus.test, widen, derive_seed(seed, WIDENED)))


test_sets.__test__ = False  # type: ignore[attr-defined]


def augment(parts: Parts, scales: Sequence[float], seed: int) -> Parts:
    """In every part its networks, then a moved copy of each whose range of scales is drawn from ``scales``."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "ranges"))
    twice = []
    for i, part in enumerate(parts):
        choice = torch.randint(len(scales), (len(part),), generator=generator)
        counts = choice.bincount(minlength=len(scales)).tolist()
        drawn = [
            draw_elements(part.info.space, count, scale, derive_seed(seed, i, scale))
            for scale, count in zip(scales, counts, strict=True)
        ]
        element = elements_of(joined(drawn), choice.argsort(stable=True).argsort())
        rows, accuracy = part.networks.rows, part.networks.accuracy
        both = _placed(rows, ConcatRows([rows, MovedRows(rows, element)]))
        twice.append(replace(part, networks=Networks(both, torch.cat([accuracy, accuracy]))))
    return tuple(twice)


def fingerprint(corpus: Corpus) -> str:
    """A hash over all networks and accuracies, so that results are never taken for those of other data."""
    digest = hashlib.sha256(corpus.activation.encode())
    for parts in (corpus.train, corpus.val, corpus.test):
        for part in parts:
            digest.update(part.info.activation.encode())
            rows = part.networks.rows
            block = max(1, BLOCK_BYTES * len(rows) // max(1, rows.nbytes))
            for index in torch.arange(len(rows)).split(block):
                tensors = {**rows.read(index), "accuracy": part.networks.accuracy[index]}
                for name, tensor in sorted(tensors.items()):
                    digest.update(f"{name}{tuple(tensor.shape)}".encode())
                    digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()[:16]


def _any(architectures: Sequence[NetworkInfo], what: str) -> bool:
    return any(getattr(node.symmetry, what) for info in architectures for node in info.space.nodes.values())


def _with_channel(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.unsqueeze(1) for name, t in tensors.items()}
