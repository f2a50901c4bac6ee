"""Sets of networks that were made here: one format, written shard by shard, whatever the networks are.

A set is a folder of ``zoo.json`` and ``shard-00000.safetensors`` and following. ``zoo.json`` states what kind of set it
is, its configuration, the numbers of its networks and shards and, once all are there, under ``made`` how they turned
out. A shard holds networks of one architecture, stacked: the parameters of the weight space ``(n, *shape)`` and what
is known of each network, ``(n,)``, see `COLUMNS`. The architecture, the networks' numbers in the set and how they were
trained are JSON in the file's metadata, under one checksum with all else: numbers and names, no code.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.images import IMAGE_SIZES, load_pictures
from nfn_monomial.benchmarks.data.networks import SIDES, Corpus, Networks, Part
from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart, Siren
from nfn_monomial.benchmarks.reading import read_json, whole
from nfn_monomial.checks import brief as shown
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files.atomic import write_atomically
from nfn_monomial.tools.files.sealed import read_sealed, seal
from nfn_monomial.tools.files.untrusted import damaged
from nfn_monomial.tools.predictors.architectures import Architecture, architecture_of
from nfn_monomial.tools.predictors.models import MixedInfo, NetworkInfo

from .base import CorpusError, Format, register_format
from .zoo_files import halves, row_order

__all__ = [
    "COLUMNS",
    "SHARDS",
    "ZOO_FILE",
    "Group",
    "Kind",
    "MadeInrs",
    "MadeMixedZoo",
    "MadeZoo",
    "Shard",
    "read_groups",
    "read_shard",
    "shard_path",
    "stated",
    "write_shard",
]

ZOO_FILE = "zoo.json"
WAY_OUT = "the command that made these networks, given the same options, makes what is missing or damaged"
SHARDS = "shard-*.safetensors"
Kind = Literal["cnn", "mixed", "inrs"]
COLUMNS: dict[Kind, dict[str, torch.dtype]] = {
    "cnn": {"accuracy": torch.float32},  # on the test images
    "mixed": {"accuracy": torch.float32},
    "inrs": {"label": torch.int64, "image": torch.int64, "split": torch.int64, "psnr": torch.float32},
}
LEAST_BOUND = 256  # an architecture's numbers, as pixels or strides, are at most that or a dimension of a tensor
# 40, 10 and 50 percent, as for zoos of one architecture, in an order that spreads the parts over any run of networks.
SLOTS = ("train", "test", "train", "test", "val", "test", "train", "test", "train", "test")


class Shard(NamedTuple):
    """Networks of one architecture that are in one file; what was read is mapped.

    Attributes:
        architecture: of all these networks.
        numbers: theirs in the set.
        tensors: their parameters, and the columns that the kind of the set has.
        stated: what else is known, as JSON has it.
    """

    architecture: Architecture | Siren
    numbers: list[int]
    tensors: dict[str, Tensor]
    stated: dict[str, Any]


class Group(NamedTuple):
    """All networks of one architecture, in the order of their numbers, and what is known of each, ``(n,)``."""

    architecture: Architecture | Siren
    numbers: list[int]
    tensors: dict[str, Tensor]
    columns: dict[str, Tensor]


def stated(folder: Path) -> dict[str, Any]:
    """``zoo.json`` of a set that was made here; empty where there is none.

    Raises:
        CorpusError: naming the file, if it is damaged or another program's.
    """
    path = folder / ZOO_FILE
    if not path.is_file():
        return {}
    with damaged(path, "restore the file, or delete the folder and make the networks again", CorpusError):
        found: dict[str, Any] = read_json(path)
        if not isinstance(found, dict) or found.get("kind") not in get_args(Kind):
            raise InvalidValueError(f"it describes nothing that was made here: {shown(found)}")
        if not isinstance(found["config"], dict) or not isinstance(found.get("made", {}), dict):
            raise InvalidValueError(f"config is {shown(found['config'])}")
        for name in ("networks", "shards"):
            whole(found[name], name, least=1)
        return found


def shard_path(folder: Path, number: int) -> Path:
    """The file of a shard."""
    return folder / SHARDS.replace("*", f"{number:05d}")


def write_shard(folder: Path, number: int, described: Mapping[str, Any], shard: Shard) -> None:
    """Write networks; the file appears under its name only when it is complete.

    Args:
        folder: of the set.
        number: of the shard.
        described: ``zoo.json`` as it is from the start.
        shard: the networks.
    """
    network = shard.architecture
    architecture = network.described() if isinstance(network, Architecture) else {"siren": asdict(network)}
    content = {"set": described, "number": number, "networks": shard.numbers, "architecture": architecture}
    write_atomically(shard_path(folder, number), seal(shard.tensors, content | shard.stated))


def read_shard(folder: Path, number: int, described: Mapping[str, Any]) -> Shard:
    """The shard of a set whose ``zoo.json`` was ``described`` from the start.

    Raises:
        CorpusError: naming the file, if it is missing, damaged, or of another set or place.
    """
    path = shard_path(folder, number)
    if not path.is_file():
        raise CorpusError(f"{path} is missing: {WAY_OUT}")
    with damaged(path, WAY_OUT, CorpusError):
        tensors, content = read_sealed(path)
        if (content["set"], content["number"]) != (described, number):
            raise InvalidValueError("it is a shard of another set or another place")
        architecture, count = _built(content["architecture"], tensors), len(content["networks"])
        expected = {name: (torch.float32, (count, *shape)) for name, shape in _shapes(architecture).items()}
        expected |= {name: (dtype, (count,)) for name, dtype in COLUMNS[described["kind"]].items()}
        for name in dict.fromkeys((*expected, *tensors)):
            there = (tensors[name].dtype, tuple(tensors[name].shape)) if name in tensors else "missing"
            if there != expected.get(name):
                raise InvalidValueError(f"{name} is {there}, expected {expected.get(name, 'nothing')}")
            if bad := (~tensors[name].isfinite()).reshape(count, -1).any(1).nonzero().flatten().tolist():
                raise InvalidValueError(f"{name} holds NaN or infinite values in row {bad[0]}")
        return Shard(architecture, content["networks"], tensors, content)


def _built(described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Architecture | Siren:
    """The architecture; its numbers are looked at before anything is built of them."""
    fields = described.get("siren", described)
    numbers = [n for value in fields.values() for n in (value if isinstance(value, list) else [value])]
    most = max(LEAST_BOUND, *itertools.chain.from_iterable(t.shape for t in tensors.values()))
    for number in numbers:
        if isinstance(number, int) and number > most:
            raise InvalidValueError(f"its architecture has {number} of something, its tensors have at most {most}")
    if fields is described:
        return architecture_of(described)
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    return Siren(**values)


def read_groups(folder: Path, kind: Kind) -> tuple[dict[str, Any], list[Group]]:
    """What ``zoo.json`` states, and the networks by architecture, in the order of the shards.

    Raises:
        CorpusError: naming the file, if the set is missing, not finished or of another kind, or a shard is damaged.
    """
    found = stated(folder)
    if found.get("kind") != kind:
        raise CorpusError(f"{folder} holds {found.get('kind', 'no')} networks made here, expected {kind}")
    if "made" not in found:
        raise CorpusError(f"{folder} is not finished, its making was interrupted: {WAY_OUT}")
    described = {name: value for name, value in found.items() if name != "made"}
    alike: dict[str, list[Shard]] = defaultdict(list)
    for number in range(found["shards"]):
        shard = read_shard(folder, number, described)
        alike[json.dumps(shard.stated["architecture"])].append(shard)
    groups = [_group(shards, kind) for shards in alike.values()]
    if (count := sum(len(group.numbers) for group in groups)) != found["networks"]:
        raise CorpusError(f"{folder} holds {count} networks, but {ZOO_FILE} states {found['networks']}: {WAY_OUT}")
    return found, groups


def _group(shards: Sequence[Shard], kind: Kind) -> Group:
    numbers = torch.tensor([number for shard in shards for number in shard.numbers])
    order, architecture = numbers.argsort(), shards[0].architecture

    def joined(names: Iterable[str]) -> dict[str, Tensor]:
        return {name: torch.cat([shard.tensors[name] for shard in shards])[order] for name in names}

    columns = joined(COLUMNS[kind])
    return Group(architecture, numbers[order].tolist(), joined(_shapes(architecture)), columns)


def _shapes(architecture: Architecture | Siren) -> dict[str, tuple[int, ...]]:
    return architecture.shapes() if isinstance(architecture, Architecture) else architecture.space.shapes()


def _classifiers(
    path: object, found: Mapping[str, Any], groups: Sequence[Group], chosen: Mapping[str, Mapping[int, Sequence[int]]]
) -> tuple[dict[str, tuple[Part, ...]], tuple[NetworkInfo, ...]]:
    """Parts by split, and all that is known of architectures; ``chosen``: split -> group -> places in it."""
    if empty := [name for name in SIDES if not any(chosen[name].values())]:
        what = f"no network is left for {' and '.join(empty)}: too few for three parts"
        raise CorpusError(f"{path}: {what}, make a larger zoo")
    size = IMAGE_SIZES[found["config"]["images"]]
    infos: dict[tuple[object, ...], NetworkInfo] = {}
    parts: dict[str, tuple[Part, ...]] = dict.fromkeys(SIDES, ())
    for name in SIDES:
        for k, places in sorted(chosen[name].items()):
            group, a = groups[k], groups[k].architecture
            assert isinstance(a, Architecture), "zoos of classifiers have no other"
            info = NetworkInfo(a.space, a.activation, a.module, (a.channels_in, size, size))
            networks = Networks(group.tensors, group.columns["accuracy"]).subset(list(places))
            parts[name] += (Part(networks, info),)
            infos.setdefault((info.space, info.activation), info)
    return parts, tuple(infos.values())


@register_format("made-zoo")
class MadeZoo(Format):
    """CNNs of one architecture, made by ``zoo make``; halved and cut as the Small CNN Zoo."""

    kind = "generalization"
    looks_for = f"{ZOO_FILE} of a zoo"

    @staticmethod
    def detects(path: Path) -> bool:
        return stated(path).get("kind") == "cnn"

    @staticmethod
    def load(path: str | Path, *, limit: int | None = None) -> dict[str, Corpus]:
        """Corpora by activation; ``limit`` keeps that many training networks of each.

        Raises:
            CorpusError: as `read_groups`, or if an activation has too few networks.
        """
        found, groups = read_groups(Path(path), "cnn")
        corpora = {}
        for k, group in enumerate(groups):
            place = {number: i for i, number in enumerate(group.numbers)}
            order = [place[number] for number in row_order(found["networks"]) if number in place]
            rows = halves(order)
            rows["train"] = rows["train"][:limit]
            parts, (info,) = _classifiers(path, found, groups, {name: {k: own} for name, own in rows.items()})
            source = {"path": str(path), **{name: len(own) for name, own in rows.items()}, "config": found["config"]}
            corpora[info.activation] = Corpus(info.activation, **parts, info=info, source=source)
        return dict(sorted(corpora.items()))


@register_format("mixed-zoo")
class MadeMixedZoo(Format):
    """Classifiers of many architectures, of one kind or several, made by ``zoo make --vary-architecture``."""

    kind = "generalization"
    looks_for = f"{ZOO_FILE} of a mixed zoo"

    @staticmethod
    def detects(path: Path) -> bool:
        return stated(path).get("kind") == "mixed"

    @staticmethod
    def load(
        path: str | Path,
        *,
        unseen_architectures: bool = False,
        seed: int = 0,
    ) -> dict[str, Corpus]:
        """One corpus, ``mixed``: 40 percent of the networks for training, 10 for validation, 50 for testing.

        Args:
            path: folder made by `make_zoo`.
            unseen_architectures: split the architectures rather than the networks, so that no two parts share one;
                otherwise the networks of every architecture are spread over the parts.
            seed: of the split.

        Raises:
            CorpusError: as `read_groups`, or if there are too few networks.
        """
        found, groups = read_groups(Path(path), "mixed")
        rng = random.Random(seed)
        units: list[tuple[int, list[int]]] = []  # a group and networks of it that stay together
        for k, group in enumerate(groups):
            places = list(range(len(group.numbers)))
            rng.shuffle(places)
            units += [(k, places)] if unseen_architectures else [(k, [place]) for place in places]
        if unseen_architectures:
            rng.shuffle(units)
        chosen: dict[str, dict[int, list[int]]] = {name: defaultdict(list) for name in SIDES}
        for slot, (k, places) in zip(itertools.cycle(SLOTS), units):
            chosen[slot][k] = sorted(chosen[slot][k] + places)
        parts, infos = _classifiers(path, found, groups, chosen)
        source = {
            "path": str(path), "images": found["config"]["images"], "architectures": len(groups),
            **{name: sum(map(len, part)) for name, part in parts.items()},
            "unseen_architectures": unseen_architectures, "split_seed": seed,
        }  # fmt: skip
        return {"mixed": Corpus("mixed", **parts, info=MixedInfo(infos), source=source)}


@register_format("made-inrs")
class MadeInrs(Format):
    """SIRENs fitted to images, made by ``inr make``."""

    kind = "inr"
    looks_for = f"{ZOO_FILE} of INRs"

    @staticmethod
    def detects(path: Path) -> bool:
        return stated(path).get("kind") == "inrs"

    @staticmethod
    def load(path: str | Path) -> InrCorpus:
        """The corpus, with the images it was fitted to.

        Raises:
            CorpusError: as `read_groups`, or if the images that are installed are others.
        """
        found, groups = read_groups(Path(path), "inrs")
        pictures = load_pictures(found["config"]["images"])
        if found["fingerprint"] != pictures.fingerprint:
            raise CorpusError(
                f"{path} was fitted to other images than the {pictures.name} installed here: install the versions that "
                f"{ZOO_FILE} names, or make the networks anew with --overwrite"
            )
        (group,) = groups
        assert isinstance(group.architecture, Siren), "sets of INRs have no other"

        def part(number: int) -> InrPart:
            chosen = torch.nonzero(group.columns["split"] == number).flatten()
            return InrPart(group.tensors, group.columns["label"], group.columns["image"]).subset(chosen)

        train, val, test = map(part, range(len(SIDES)))
        return InrCorpus(
            pictures.name, group.architecture, pictures.classes, train, val, test, pictures.pixels, found
        )  # fmt: skip
