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
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.images import IMAGE_SIZES, load_pictures
from nfn_monomial.benchmarks.data.networks import SIDES, Corpus, Networks, Part, row_order, split_rows
from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart, Siren
from nfn_monomial.benchmarks.reading import read_json, whole
from nfn_monomial.checks import shown
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.files.atomic import write_atomically
from nfn_monomial.tools.files.sealed import read_sealed, seal
from nfn_monomial.tools.files.untrusted import damaged
from nfn_monomial.tools.predictors.architectures import Architecture, architecture_of
from nfn_monomial.tools.predictors.models import MixedInfo, NetworkInfo

from .base import CorpusError, Format, register_format

__all__ = [
    "COLUMNS",
    "SHARDS",
    "ZOO_FILE",
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
    """Networks of one architecture that are in one file; tensors that were read are mapped.

    Attributes:
        architecture: of all these networks.
        numbers: theirs in the set.
        tensors: their parameters, and the columns that the kind of the set has.
        stated: more about them, as JSON has it.
    """

    architecture: Architecture | Siren
    numbers: list[int]
    tensors: dict[str, Tensor]
    stated: dict[str, Any]

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The tensors without the columns."""
        return {name: self.tensors[name] for name in _shapes(self.architecture)}


def stated(folder: Path) -> dict[str, Any]:
    """Reads ``zoo.json`` of a set that was made here; empty if there is none.

    Raises:
        CorpusError: naming the file, if it is damaged or another program's.
    """
    path = folder / ZOO_FILE
    if not path.is_file():
        return {}
    with damaged(path, "restore the file, or delete the folder and make the networks again", CorpusError):
        description: dict[str, Any] = read_json(path)
        if not isinstance(description, dict) or description.get("kind") not in get_args(Kind):
            raise InvalidValueError(f"it describes nothing that was made here: {shown(description)}")
        if not isinstance(description["config"], dict) or not isinstance(description.get("made", {}), dict):
            raise InvalidValueError(f"config is {shown(description['config'])}")
        for name in ("networks", "shards"):
            whole(description[name], name, least=1)
        return description


def shard_path(folder: Path, number: int) -> Path:
    """The file of a shard."""
    return folder / SHARDS.replace("*", f"{number:05d}")


def write_shard(folder: Path, number: int, described: Mapping[str, Any], shard: Shard) -> None:
    """Writes networks; the file appears under its name only when it is complete.

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


def read_groups(folder: Path, kind: Kind) -> tuple[dict[str, Any], list[Shard]]:
    """Returns the content of ``zoo.json``, and the networks of every architecture as one shard, ordered by number.

    Raises:
        CorpusError: naming the file, if the set is missing, not finished or of another kind, or a shard is damaged.
    """
    description = stated(folder)
    if description.get("kind") != kind:
        raise CorpusError(f"{folder} holds {description.get('kind', 'no')} networks made here, expected {kind}")
    if "made" not in description:
        raise CorpusError(f"{folder} is not finished, its making was interrupted: {WAY_OUT}")
    described = {name: value for name, value in description.items() if name != "made"}
    alike: dict[str, list[Shard]] = defaultdict(list)
    for number in range(description["shards"]):
        shard = read_shard(folder, number, described)
        alike[json.dumps(shard.stated["architecture"])].append(shard)
    groups = []
    for shards in alike.values():
        numbers = torch.tensor([number for shard in shards for number in shard.numbers])
        order = numbers.argsort()
        tensors = {name: torch.cat([shard.tensors[name] for shard in shards])[order] for name in shards[0].tensors}
        groups.append(Shard(shards[0].architecture, numbers[order].tolist(), tensors, {}))
    if (count := sum(len(group.numbers) for group in groups)) != description["networks"]:
        raise CorpusError(
            f"{folder} holds {count} networks, but {ZOO_FILE} states {description['networks']}: {WAY_OUT}"
        )
    return description, groups


def _shapes(architecture: Architecture | Siren) -> dict[str, tuple[int, ...]]:
    return architecture.shapes() if isinstance(architecture, Architecture) else architecture.space.shapes()


def _classifiers(
    path: object, size: int, groups: Sequence[Shard], chosen: Mapping[str, Mapping[int, Sequence[int]]]
) -> tuple[dict[str, tuple[Part, ...]], tuple[NetworkInfo, ...]]:
    """Returns parts by split, and the architectures.

    Args:
        path: of the zoo.
        size: of its images, pixels a side.
        groups: all networks of an architecture each.
        chosen: split -> number of a group -> places in it.
    """
    if empty := [name for name in SIDES if not any(chosen[name].values())]:
        what = f"no network is left for {' and '.join(empty)}: too few for three parts"
        raise CorpusError(f"{path}: {what}, make a larger zoo")
    infos: dict[tuple[object, ...], NetworkInfo] = {}
    parts: dict[str, tuple[Part, ...]] = dict.fromkeys(SIDES, ())
    for name in SIDES:
        for k, places in sorted(chosen[name].items()):
            group, a = groups[k], groups[k].architecture
            assert isinstance(a, Architecture), "zoos of classifiers have no other"
            info = NetworkInfo(a.space, a.activation, a.module, (a.channels_in, size, size))
            networks = Networks(group.parameters, group.tensors["accuracy"]).subset(list(places))
            parts[name] += (Part(networks, info),)
            infos.setdefault((info.space, info.activation), info)
    return parts, tuple(infos.values())


@register_format("made-zoo")
class MadeZoo(Format):
    """CNNs of one architecture, made by ``zoo make``; split as the Small CNN Zoo."""

    kind = "generalization"
    looks_for = f"{ZOO_FILE} of a zoo"

    @staticmethod
    def detects(path: Path) -> bool:
        return stated(path).get("kind") == "cnn"

    @staticmethod
    def load(path: str | Path, *, limit: int | None = None, tested: float = 0.5) -> dict[str, Corpus]:
        """Corpora by activation, each with its networks split by `split_rows`.

        Args:
            path: folder made by `make_zoo`.
            limit: keeps that many training networks of each activation.
            tested: the share of the networks that are for testing; of the others four fifths are for training.

        Raises:
            CorpusError: as `read_groups`, if an activation has too few networks, or ``tested`` is no share.
        """
        if not 0 < tested < 1:
            raise CorpusError(f"tested is {tested}, expected a share of the networks between 0 and 1, as 0.5")
        description, groups = read_groups(Path(path), "cnn")
        config, corpora = description["config"], {}
        for k, group in enumerate(groups):
            place = {number: i for i, number in enumerate(group.numbers)}
            order = [place[number] for number in row_order(description["networks"]) if number in place]
            rows = split_rows(order, tested)
            if tested != 0.5 and (none := [name for name, places in rows.items() if not places]):
                raise CorpusError(
                    f"{path}: with tested={tested} no network of {len(order)} is left for {' and '.join(none)}: take "
                    "another share, or make a larger zoo"
                )
            rows["train"] = rows["train"][:limit]
            chosen = {name: {k: places} for name, places in rows.items()}
            parts, (info,) = _classifiers(path, IMAGE_SIZES[config["images"]], groups, chosen)
            source = {"path": str(path), **{name: len(places) for name, places in rows.items()}, "config": config}
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
        description, groups = read_groups(Path(path), "mixed")
        images = description["config"]["images"]
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
        parts, infos = _classifiers(path, IMAGE_SIZES[images], groups, chosen)
        source = {
            "path": str(path), "images": images, "architectures": len(groups),
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
        description, groups = read_groups(Path(path), "inrs")
        pictures = load_pictures(description["config"]["images"])
        if description["fingerprint"] != pictures.fingerprint:
            raise CorpusError(
                f"{path} was fitted to other images than the {pictures.name} installed here: install the versions that "
                f"{ZOO_FILE} names, or make the networks again with --overwrite"
            )
        (group,) = groups
        siren, columns = group.architecture, group.tensors
        assert isinstance(siren, Siren), "sets of INRs have no other"
        networks = InrPart(group.parameters, columns["label"], columns["image"])
        train, val, test = (
            networks.subset(torch.nonzero(columns["split"] == number).flatten()) for number in range(len(SIDES))
        )
        return InrCorpus(
            pictures.name, siren, pictures.classes, train, val, test, pictures.pixels, description
        )  # fmt: skip
