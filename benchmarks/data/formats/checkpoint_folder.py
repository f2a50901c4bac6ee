"""A folder of checkpoints and a table of targets: the format for networks of anybody's, of any architecture."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nfn_monomial.adapters.definitions import Definition, DefinitionError, read_definition
from nfn_monomial.adapters.files import damaged, listed, shown
from nfn_monomial.benchmarks.data.networks import Corpus, Networks, Part, Parts
from nfn_monomial.benchmarks.reading import number
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools.predictors.models import MixedInfo
from nfn_monomial.tools.reading import parse_json

from .base import CorpusError, Format, OnProgress, register_format
from .checkpoints import counter, info_of, read_defined, read_stacked, require_folder, silent
from .result_tables import columns_of, read_table

__all__ = ["CheckpointFolder"]

TABLES = ("targets.csv", "targets.json")
COLUMNS = ("checkpoint", "accuracy", "split", "arguments")
SPLITS = ("train", "val", "test")
SHARES = (0.15, 0.15)  # of the networks for validation and for testing, where the table does not say
FORM = "columns checkpoint and accuracy and, if you like, split and arguments"


class _Line(NamedTuple):
    """One network; ``arguments`` of what builds it, as JSON."""

    file: Path
    accuracy: float
    split: str
    arguments: str


@register_format("checkpoints")
class CheckpointFolder(Format):
    """Checkpoints at any places in a folder, and beside them ``targets.csv`` or ``targets.json``.

    The table has a line for each network: ``checkpoint``, the path of a ``.safetensors`` file or of a state dict that
    ``torch.save`` wrote, from the folder on; ``accuracy``, a share in [0, 1]; ``split``, which is ``train``, ``val`` or
    ``test``, for all networks or for none; and ``arguments``, a dict (in CSV as JSON) by which ``net`` is called, where
    architectures vary. JSON is a list of objects.
    """

    kind = "generalization"
    looks_for = f"{' or '.join(TABLES)}, a table with columns checkpoint and accuracy"

    @staticmethod
    def detects(path: Path) -> bool:
        return any((path / name).is_file() for name in TABLES)

    @staticmethod
    def load(
        path: str | Path,
        *,
        net: str | None = None,
        input_shape: tuple[int, ...] | None = None,
        key: str | None = None,
        seed: int = 0,
        limit: int | None = None,
        on_progress: OnProgress = silent,
    ) -> dict[str, Corpus]:
        """Load all networks of the table, as one corpus: ``mixed`` where arguments vary, else by the name of ``net``.

        Args:
            path: the folder.
            net: the networks' architecture, ``module.py:Class``, ``package.module:Class`` or the path of a program that
                ``torch.export.save`` wrote. A class or function is called with the network's arguments, if there are
                any, and makes the module, or a pair of it and its example inputs. **Its code runs, that in a program
                too**, so it is read from the place that is named here and never from beside the weights.
            input_shape: of one input of such a module, as ``3,32,32``, if it states no example inputs.
            key: of the state dict in files that hold more than that.
            seed: of the split, 70, 15 and 15 percent, where the table has none.
            limit: take that many training networks.
            on_progress: called while files are read.

        Raises:
            CorpusError: naming the line of the table, the file or ``net``, if one cannot be used or they do not fit.
        """
        folder = require_folder(path)
        if net is None:
            raise CorpusError(
                f"{folder}: say what these networks are: net (--data-option net=module.py:Class, "
                "net=package.module:Class, or net=PATH.pt2)"
            )
        table = _table(folder)
        lines = _split(table, folder, seed)
        defined = {text: _defined(net, input_shape, text) for text in sorted({line.arguments for line in lines})}
        places: list[tuple[str, Definition, list[_Line]]] = []
        for part in SPLITS:
            own = list(islice((line for line in lines if line.split == part), limit if part == "train" else None))
            for text, definition in defined.items():
                if found := [line for line in own if line.arguments == text]:
                    places.append((part, definition, found))
        like: dict[int, Path] = {}
        step = counter(sum(len(found) for *_, found in places), on_progress)
        infos = {id(d): info_of(d) for _, d, _ in places}
        parts: dict[str, Parts] = dict.fromkeys(SPLITS, ())
        for part, definition, found in places:
            files, first = [line.file for line in found], like.setdefault(id(definition), found[0].file)
            tensors = read_stacked(files, partial(read_defined, definition, key), first, step)
            networks = Networks(tensors, torch.tensor([line.accuracy for line in found]))
            parts[part] += (Part(networks, infos[id(definition)]),)
        architectures = tuple(infos.values())
        mixed = len(architectures) > 1
        name = "mixed" if mixed else architectures[0].activation
        source = {
            "format": "checkpoints", "path": str(folder), "net": net, "architectures": len(architectures),
            "split": "as the table says" if _stated(table) else f"70/15/15 percent of networks, seed {seed}",
            **{part: sum(map(len, found)) for part, found in parts.items()},
        }  # fmt: skip
        return {
            name: Corpus(name, **parts, info=MixedInfo(architectures) if mixed else architectures[0], source=source)
        }


def _table(folder: Path) -> list[_Line]:
    """The networks as the table has them; ``split`` may be empty."""
    (path, *more) = [folder / name for name in TABLES if (folder / name).is_file()] or [folder / TABLES[0]]
    if more:
        raise CorpusError(f"{path} and {more[0].name} are both there: delete one")
    lines, seen = [], set[Path]()
    with damaged(path, f"expected {FORM}", CorpusError):
        table = read_table(path, FORM)
        if unknown := [name for name in columns_of(table) if name not in COLUMNS]:
            raise CorpusError(f"{path} has columns {listed(unknown)}, expected {FORM}")
        for place, cells in table:
            where = f"{path}, {place}"
            if missing := [name for name in COLUMNS[:2] if cells.get(name) in (None, "")]:
                raise CorpusError(f"{where} has no {' and no '.join(missing)}, expected {FORM}")
            inner = Path(str(cells["checkpoint"]))
            file = folder / inner
            if inner.is_absolute() or ".." in inner.parts or not file.is_file():
                raise CorpusError(f"{where}: checkpoint {shown(str(inner))} is no file in {folder}")
            if file in seen:
                raise CorpusError(f"{where}: checkpoint {shown(str(inner))} occurs twice")
            seen.add(file)
            split = cells.get("split") or ""
            if split not in ("", *SPLITS):
                raise CorpusError(f"{where}: split is {shown(split)}, expected {', '.join(SPLITS)}")
            lines.append(
                _Line(file, _share(cells["accuracy"], where), split, _arguments(cells.get("arguments"), where))
            )
    return lines


def _share(value: Any, where: str) -> float:
    try:
        found = number(value, "accuracy")
    except InvalidValueError:
        found = math.nan
    if not 0 <= found <= 1:
        raise CorpusError(f"{where}: accuracy is {shown(value)}, expected a share in [0, 1]")
    return found


def _arguments(value: Any, where: str) -> str:
    """The arguments as JSON, the same text for the same ones."""
    found = parse_json(value) if isinstance(value, str) and value else value or {}
    if not isinstance(found, dict):
        raise CorpusError(f"{where}: arguments are {shown(value)}, expected an object, as {{}}")
    return json.dumps(found, sort_keys=True)


def _stated(lines: Sequence[_Line]) -> bool:
    return any(line.split for line in lines)


def _split(lines: list[_Line], folder: Path, seed: int) -> list[_Line]:
    """The same with a split for each: as they state it, or 70, 15 and 15 percent at random."""
    if _stated(lines):
        if without := [line.file for line in lines if not line.split]:
            raise CorpusError(f"{without[0]} has no split, but others have: give one for all networks, or for none")
    elif len(lines) >= len(SPLITS):
        order = torch.randperm(len(lines), generator=torch.Generator().manual_seed(seed)).tolist()
        val, test = (max(1, round(share * len(lines))) for share in SHARES)
        names = ["val"] * val + ["test"] * test + ["train"] * (len(lines) - val - test)
        lines = [lines[i]._replace(split=name) for i, name in sorted(zip(order, names, strict=True))]
    if empty := [name for name in SPLITS if not any(line.split == name for line in lines)]:
        raise CorpusError(f"{folder}: {len(lines)} networks, none of them for {' and '.join(empty)}")
    return lines


def _defined(net: str, input_shape: Sequence[int] | None, arguments: str) -> Definition:
    given: dict[str, Any] = json.loads(arguments)
    try:
        return read_definition(net, input_shape, arguments=given)
    except DefinitionError as error:
        raise CorpusError(f"{error}" + f" (of networks with the arguments {arguments})" * bool(given)) from error
