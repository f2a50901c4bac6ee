"""Labelled checkpoints: a folder of anybody's checkpoints, and a table of results with a line for each.

Nothing has to be arranged for it. Files lie flat or in folders, the table names them by a path or a name, and any of
its columns can be learned. Lines and files that do not match are counted; nothing is guessed. `train` reads its data
in this way, and so does the format `checkpoints` of `nfn_monomial.benchmarks.data.formats.checkpoint_folder`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nfn_monomial.benchmarks.data.networks import SIDES, Corpus, Networks, Part
from nfn_monomial.benchmarks.experiments.predict import ColumnTask
from nfn_monomial.checks import listed, shown
from nfn_monomial.errors import MissingFileError, MonomialError
from nfn_monomial.tools.checkpoints.networks import Network
from nfn_monomial.tools.definitions.define import Definition
from nfn_monomial.tools.files.checkpoints import (
    INDEX,
    SAFE,
    TORCH,
    Checkpoint,
    TorchFile,
    checkpoints_in,
    read_checkpoint,
)
from nfn_monomial.tools.files.untrusted import FileError, damaged, parse_json
from nfn_monomial.tools.predictors.models import MixedInfo, NetworkInfo
from nfn_monomial.tools.predictors.tasks import MOST_WEIGHTS
from nfn_monomial.tools.results import Progress, silent
from nfn_monomial.tools.store import OTHERS, code_of, digest_of

from .base import CorpusError, require_folder
from .result_tables import TableLine, columns_of, number_in, read_table, require_points, text_of
from .sides import sides_by, sides_drawn, together

__all__ = ["LabelledCheckpoints", "Request", "read_labelled"]

FEWEST, FEWEST_OF_A_CLASS = 10, 3
STEP = re.compile(r"(?:epoch|step|iter|iteration|checkpoint|ckpt)[-_=. ]?(\d+)", re.IGNORECASE)
NO_PLACE = (ValueError, OSError, RuntimeError)  # errors of a path that leads nowhere, or in a circle
FORM = "a table with a line for each network: CSV with a header, or JSON, a list of objects"


@dataclass(frozen=True)
class Request:
    """A column to learn, and the checkpoints to learn it from.

    Attributes:
        folder: of the checkpoints, which may lie in folders below it.
        targets: the table.
        column: of the table, that is learned.
        names: the column that names the files, or a text with columns in braces, as ``run-{run}/epoch={epoch}.ckpt``;
            by default it is searched for.
        task: by default the one that the column's cells suggest.
        split: the column that says on which side a network is; by default sides are drawn.
        group: columns, whose equal cells stay on one side.
        key: of the state dict in files that hold several.
        seed: of the draw.
        arguments: the column of the arguments that a network is built with, objects (in CSV their JSON); none if all
            have one architecture.
        limit: take that many training networks, the first of the table.
        complete: a line or file that cannot be used is an error; otherwise it is left out and counted.
    """

    folder: Path
    targets: Path
    column: str
    names: str | None = None
    task: ColumnTask | None = None
    split: str | None = None
    group: tuple[str, ...] = ()
    key: str | None = None
    seed: int = 0
    arguments: str | None = None
    limit: int | None = None
    complete: bool = False


@dataclass(frozen=True)
class LabelledCheckpoints:
    """Networks, each with its target.

    Attributes:
        corpus: its targets are float64, or the numbers of classes; its name is that of the architecture, or ``mixed``.
        request: for which they were read.
        task: that of the request, or the one that the column suggests.
        classes: the texts of a column of classes, sorted; empty for numbers.
        unit: of numbers, as ``%``.
        paths: side -> files, in the order of the networks.
        notes: in words, how files and sides were chosen, and the lines and files that were left out.
    """

    corpus: Corpus
    request: Request
    task: ColumnTask
    classes: tuple[str, ...]
    unit: str
    paths: Mapping[str, tuple[Path, ...]]
    notes: tuple[str, ...]


@dataclass
class _Rows:
    """Lines of the table that can be used so far, each with its file; and the others by the reason, with examples."""

    table: Path
    lines: list[TableLine]
    complete: bool = False
    files: list[Path] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def keep(self, kept: Sequence[object], why: str, examples: Callable[[int], str]) -> None:
        """Keeps lines with a value; the others are counted, or are an error if all lines have to be used."""
        self.left_out[why] += [examples(i) for i, value in enumerate(kept) if value is None]
        if self.complete and self.left_out[why]:
            raise CorpusError(f"{self.table}: {'; '.join(self.notes())}")
        rows = [i for i, value in enumerate(kept) if value is not None]
        self.lines = [self.lines[i] for i in rows]
        self.files = [self.files[i] for i in rows] if self.files else []

    def notes(self) -> list[str]:
        """Returns in words the lines and files that were left out."""
        return [f"{len(shown)} {why}, as {', '.join(shown[:2])}" for why, shown in self.left_out.items() if shown]

    def require(self, count: int, what: str) -> None:
        if len(self.lines) < count:
            reasons = "; ".join(self.notes()) or "the table has no more lines"
            raise CorpusError(
                f"{self.table}: {len(self.lines)} {what}, at least {count} are needed. Left out: {reasons}"
            )


def read_labelled(
    request: Request, architecture: Callable[[Mapping[str, Any]], Definition], on_progress: Progress = silent
) -> LabelledCheckpoints:
    """Reads the table and all networks that it names, and puts each of them on a side.

    Args:
        request: see `Request`.
        architecture: returns that of networks by the arguments that they are built with, ``{}`` without a column of
            arguments.
        on_progress: called while files are read.

    Raises:
        FileNotFoundError: if there is no such table.
        CorpusError: naming the table, the fault and the way out, if it has no such column, fewer than ten networks
            are left, all have the same target, no sides can be drawn, or a line cannot be used and all have to be.
    """
    folder, table, column, key = require_folder(request.folder), request.targets, request.column, request.key
    rows = _Rows(table, read_table(table, FORM), request.complete)
    if not rows.lines:
        raise CorpusError(f"{table} has no lines: a line for each checkpoint is expected, below the names of columns")
    columns = columns_of(rows.lines)
    for name in (column, *(name for name in (request.split, request.arguments) if name), *request.group):
        _require(name, columns, table)
    files = _Files(folder, table.parent)
    how = _match(rows, files, columns, request)
    unnamed = sorted(set(files.all) - set(rows.files))
    rows.require(FEWEST, "lines name a checkpoint")
    task, why, unit, targets = _targets(rows, request)

    def arguments_of(line: TableLine) -> str:
        """Returns the arguments of a network as JSON, the same text for the same arguments."""
        cell = line.cells.get(request.arguments) if request.arguments else None
        with damaged(table, "expected an object, as {}", CorpusError):
            arguments = parse_json(cell) if isinstance(cell, str) and cell.strip() else cell or {}
        if not isinstance(arguments, dict):
            raise CorpusError(
                f"{table}, {line.place}: {request.arguments} are {shown(cell)}, expected an object, as {{}}"
            )
        return json.dumps(arguments, sort_keys=True)

    texts = [arguments_of(line) for line in rows.lines]
    definitions = {text: architecture(json.loads(text)) for text in sorted(set(texts))}
    for text, definition in definitions.items():
        _require_small(definition, texts.count(text))
    name = "mixed" if len(definitions) > 1 else definitions[texts[0]].name

    # The networks; those in files that cannot be used are left out.
    networks: list[dict[str, Tensor] | None] = []
    reasons: list[str] = []
    for file, text in zip(rows.files, texts, strict=True):
        try:
            networks.append(_read_network(definitions[text], key, file))
        except MonomialError as error:
            networks.append(None)
            reasons.append(str(error))
        on_progress(len(networks), len(texts))
    left = iter(reasons)
    rows.keep(networks, "files cannot be used", lambda i: next(left))
    rows.require(FEWEST, f"checkpoints are of {', '.join(dict.fromkeys(d.name for d in definitions.values()))}")
    targets = [target for target, network in zip(targets, networks, strict=True) if network is not None]
    read = [network for network in networks if network is not None]
    if task == "classification":
        rare = {label for label, count in Counter(targets).items() if count < FEWEST_OF_A_CLASS}
        kept = [None if target in rare else target for target in targets]
        many = f"lines have a class of fewer than {FEWEST_OF_A_CLASS} networks"
        rows.keep(kept, many, lambda i: str(targets[i]))
        read = [network for network, target in zip(read, kept, strict=True) if target is not None]
        targets = [target for target in targets if target not in rare]
        rows.require(FEWEST, f"networks are of a class of {column} that others have")
    if len(set(targets)) < 2:
        raise CorpusError(
            f"{table}: all {len(targets)} networks have {column} {shown(targets[0])}: there is nothing to learn"
        )

    # The corpus: networks of a side and an architecture are a part, in the order of the table.
    sides, split = _sides(rows, targets, read, request)
    classes = tuple(sorted(map(str, set(targets)))) if task == "classification" else ()
    values = torch.tensor(
        [classes.index(t) for t in targets] if classes else targets, dtype=None if classes else torch.float64
    )
    texts = [arguments_of(line) for line in rows.lines]
    places = {side: [i for i, other in enumerate(sides) if other == side] for side in SIDES}
    places["train"] = places["train"][: request.limit]
    places = {side: sorted(index, key=texts.__getitem__) for side, index in places.items()}
    infos = {
        text: _info_of(definition, _checkpoint_at(rows.files[texts.index(text)], key))
        for text, definition in definitions.items()
        if text in texts
    }
    parts: dict[str, tuple[Part, ...]] = dict.fromkeys(SIDES, ())
    for side, text in itertools.product(SIDES, infos):
        if index := [i for i in places[side] if texts[i] == text]:
            names = definitions[text].space.parameters
            tensors = {name: torch.stack([read[i].pop(name) for i in index]) for name in names}
            parts[side] += (Part(Networks(tensors, values[index]), infos[text]),)
    known = tuple({id(part.info): part.info for side in SIDES for part in parts[side]}.values())
    counts = {side: len(index) for side, index in places.items()}
    source = {
        "path": str(folder), "targets": str(table), "column": column, "task": task, "split": split, **counts,
        "architectures": len(known), "notes": rows.notes(), "definition": _computed_by(known),
    }  # fmt: skip
    notes = [
        f"{len(rows.files)} networks of {name}, {how}",
        f"{task} of {column}: {why}",
        f"{', '.join(f'{count} {side}' for side, count in counts.items())}: {split}",
        *rows.notes(),
        *[f"{len(unnamed)} files have no line, as {listed(map(str, unnamed), 3)}"] * bool(unnamed),
    ]
    corpus = Corpus(name, **parts, info=MixedInfo(known) if len(known) > 1 else known[0], source=source)
    paths = {side: tuple(rows.files[i] for i in index) for side, index in places.items()}
    return LabelledCheckpoints(corpus, request, task, classes, unit, paths, tuple(notes))


def _require(name: str, columns: Sequence[str], table: Path) -> None:
    if name not in columns:
        raise CorpusError(f"{table} has no column {shown(name)}: it has {listed(columns, 20)}")


# -- which file is meant ----------------------------------------------------------------------------------------------


class _Files:
    """All checkpoints of a folder, by the names that a table may have for them."""

    def __init__(self, folder: Path, beside: Path) -> None:
        self.folder, self.bases = folder.resolve(), (folder, beside, folder.parent, Path())
        try:
            self.all = checkpoints_in(folder)
        except FileError:  # there are none by their suffixes
            self.all = []
        self._paths: dict[str, set[Path]] = defaultdict(set)
        self._ends: dict[str, set[Path]] = defaultdict(set)
        for file in self.all:
            inner = file.relative_to(folder)
            for path in (inner, *inner.parents[:-1]):  # the file, and every folder that it is in
                for parts in {path.parts, (*path.parts[:-1], _stem(path.name))}:
                    self._paths["/".join(parts)].add(file)
                    for start in range(1, len(parts)):
                        self._ends["/".join(parts[start:])].add(file)

    def called(self, name: str) -> set[Path]:
        """Returns the files that a cell may mean: by a path from the folder, the table or here, or by a path's end.

        A file without a suffix is a checkpoint if it is called by its path from the folder on.
        """
        name = name.replace("\\", "/").rstrip("/").removeprefix("./")
        if not name:
            return set()
        if name in self._paths:
            return self._paths[name]
        with suppress(*NO_PLACE):
            file = self.folder / name
            if not file.suffix and file.is_file() and file.resolve().relative_to(self.folder):
                return {file}
        for text in (name, _stem(name)):
            for base in self.bases:
                with suppress(*NO_PLACE):
                    inner = (base / text).resolve().relative_to(self.folder)
                    if inner.as_posix() in self._paths:
                        return self._paths[inner.as_posix()]
            if text in self._ends:
                return self._ends[text]
        return set()


def _stem(name: str) -> str:
    """Returns a file's name without the suffixes of checkpoints."""
    index = INDEX.fullmatch(name)
    name = name if index is None else index["stem"]
    for suffix in (SAFE, ".tar", *TORCH):
        name = name.removesuffix(suffix)
    return name


def _match(rows: _Rows, files: _Files, columns: Sequence[str], request: Request) -> str:
    """Gives every line its file; returns in words how files are named."""

    def name_of(line: TableLine, way: str) -> str:
        """Returns the name of a line's file, by a column or a text with columns in braces."""
        if "{" not in way:
            return text_of(line.cells.get(way))
        return re.sub(r"\{([^}]*)\}", lambda braces: text_of(line.cells.get(braces[1])), way)

    others = {request.column, request.split, *request.group}
    if request.names is None:
        ways = sorted((c for c in columns if c), key=lambda name: name in others)
    else:
        for name in re.findall(r"\{([^}]*)\}", request.names) or [request.names]:
            _require(name, columns, rows.table)
        ways = [request.names]
    calls = {way: [name_of(line, way) for line in rows.lines] for way in ways}
    known = {name: files.called(name) for names in calls.values() for name in set(names)}
    # A line that names a whole run means its last checkpoint; lines that name one run several times mean several.
    once = {name for names in calls.values() for name, count in Counter(names).items() if count == 1}
    lasts = {name: last for name in once if len(known[name]) > 1 and (last := last_of_run(known[name]))}
    known |= {name: {last} for name, last in lasts.items()}

    def fitting(way: str) -> int:
        return len({next(iter(paths)) for name in calls[way] if len(paths := known[name]) == 1})

    way = max(ways, key=fitting)
    if not fitting(way):
        several = max(ways, key=lambda way: sum(len(known[name]) > 1 for name in calls[way]))
        example = next((name for name in calls[several] if len(known[name]) > 1), None)
        hint = f"there are files such as {listed(map(str, files.all), 3)}, and columns {listed(columns, 20)}"
        if example is not None:
            hint = (
                f"{shown(example)} of {several} may be any of {len(known[example])} files, as "
                f"{listed(map(str, sorted(known[example])), 2)}"
            )
        raise CorpusError(
            f"no line of {rows.table} names one checkpoint in {files.folder}: {hint}; say "
            "which column does by --names COLUMN (--data-option names=COLUMN), or how columns do, as --names "
            "'run-{run}/epoch={epoch}.ckpt'"
        )
    for other in (c for c in ways if c not in others and fitting(c) == fitting(way)):
        for line, *names in zip(rows.lines, calls[way], calls[other], strict=True):
            one, two = (known[name] for name in names)
            if len(one) == len(two) == 1 and one != two:
                raise CorpusError(
                    f"{rows.table}: the columns {way} and {other} name different files, in {line.place} "
                    f"{next(iter(one))} and {next(iter(two))}: say which one is meant by --names COLUMN "
                    "(--data-option names=COLUMN)"
                )
    names = calls[way]
    rows.keep([None if len(known[n]) > 1 else n for n in names], "lines may mean several files", names.__getitem__)
    names = [name for name in names if len(known[name]) <= 1]
    rows.keep([next(iter(known[n]), None) for n in names], "lines have no file", names.__getitem__)
    rows.files = [file for name in names for file in known[name]]
    first: dict[Path, str] = {}
    for line, file in zip(rows.lines, rows.files, strict=True):
        if (other := first.setdefault(file, line.place)) != line.place:
            raise CorpusError(f"{rows.table}: {other} and {line.place} both name {file}: keep one of them")
    runs = [name for name in names if name in lasts]
    how = f"named by {way if request.names else f'the column {way}'}"
    if runs:
        how += f"; of {len(runs)} runs with several checkpoints the last was taken, as {lasts[runs[0]]}"
    return how


def last_of_run(files: Collection[Path]) -> Path | None:
    """Returns the last of the checkpoints that one run has left, None if their names do not say which it is.

    It is called ``last`` or ``final``, or it is the one without a step among others of steps, which trainers write at
    the end, or the one of the highest epoch or step, if names differ in numbers alone.
    """
    if named := [file for file in files if re.search(r"(?<![a-z])(last|final)(?![a-z])", file.name.lower())]:
        return named[0] if len(named) == 1 else None
    steps = {file: tuple(int(number) for number in STEP.findall(file.as_posix())) for file in files}
    without = [file for file in files if not steps[file]]
    if without:
        found = without[0] if len(without) == 1 and len(files) > 1 else None
        return None if found is None or re.search("best|init|start", found.name.lower()) else found
    if len({re.sub(r"\d+", "#", file.as_posix()) for file in files}) > 1:
        return None
    last = max(files, key=steps.__getitem__)
    return last if sum(steps[file] == steps[last] for file in files) == 1 else None


# -- targets ----------------------------------------------------------------------------------------------------


def _targets(rows: _Rows, request: Request) -> tuple[ColumnTask, str, str, list[Any]]:
    """Returns the task, why it is this one, the unit, and the target of every line that has one."""
    cells = [line.cells.get(request.column) for line in rows.lines]
    numbers: list[tuple[float | None, str] | None] = []  # None for a text
    for cell in cells:
        try:
            numbers.append(number_in(cell))
        except ValueError:
            numbers.append(None)
    texts = [text_of(cell) for cell, number in zip(cells, numbers, strict=True) if number is None]
    values = [number for number in numbers if number is not None and number[0] is not None]
    task, why = request.task, "as asked for"
    if task is None:
        task, why = ("classification", "its cells are texts") if texts else ("regression", "its cells are numbers")
        if texts and values:
            raise CorpusError(
                f"{rows.table}: {request.column} has {len(values)} numbers and {len(texts)} texts, as "
                f"{listed(dict.fromkeys(texts), 3)}: empty these cells, or say "
                "--task classification, both for train"
            )
        if task == "regression" and len(different := {value for value, _ in values}) <= FEWEST:
            why += f", {len(different)} different ones; --task classification takes them for classes"
    elif task != "classification" and texts:
        raise CorpusError(
            f"{rows.table}: {task} is for numbers, but {request.column} has {len(texts)} texts, as "
            f"{listed(dict.fromkeys(texts), 3)}: empty these cells, or say "
            "--task classification, both for train"
        )
    units = {unit for _, unit in values}
    if task != "classification" and len(units) > 1:
        raise CorpusError(f"{rows.table}: {request.column} has numbers with % and without: write all of them one way")
    if task == "classification":
        targets: list[Any] = [text_of(cell) or None for cell in cells]
    else:
        require_points(request.column, [text_of(cell) for cell in cells], rows.table)
        targets = [None if number is None else number[0] for number in numbers]
    rows.keep(targets, f"lines have no {request.column} that is finite", lambda i: rows.lines[i].place)
    rows.require(FEWEST, f"networks have a {request.column}")
    return task, why, next(iter(units), ""), [target for target in targets if target is not None]


# -- networks ---------------------------------------------------------------------------------------------------------


def _read_network(definition: Definition, key: str | None, path: Path) -> dict[str, Tensor]:
    """Returns the parameters of one network, float32, from a file of any form that `read_checkpoint` reads.

    Raises:
        FileNotFoundError: if the file does not exist.
        CorpusError: naming the file, if it is damaged or of another architecture, or the tensor, if it holds NaN.
    """
    try:
        network = Network(definition, _checkpoint_at(path, key))
        tensors = {name: t.float() for name, t in network.items()}
        shapes = definition.space.shapes()
        if others := [f"{n} is {tuple(t.shape)}, not {shapes[n]}" for n, t in tensors.items() if t.shape != shapes[n]]:
            raise CorpusError(
                f"{path}: the weights are of another architecture than {definition.name}: of other shape: "
                f"{listed(others)}"
            )
        return tensors
    except MissingFileError:
        raise
    except MonomialError as error:
        raise CorpusError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def _checkpoint_at(path: Path, key: str | None) -> Checkpoint:
    """Opens a file; files of ``torch.save`` may be called anything."""
    return read_checkpoint(path) if path.suffix and path.suffix not in TORCH else TorchFile(path, key)


def _info_of(definition: Definition, keys: Iterable[str]) -> NetworkInfo:
    """Describes the networks of an architecture, whose files have these keys, for models."""
    parameters = definition.space.parameters
    others = {key: definition.tied.get(key) for key in definition.shapes if key not in parameters}
    saved = {key: name for key in keys if (name := definition.renamed(key)) != key}
    others |= {key: others.get(name, name) for key, name in saved.items() if name in definition.shapes}
    return NetworkInfo(
        definition.space, definition.name, definition.template, definition.input_shape, tuple(others.items())
    )


def _computed_by(networks: Iterable[NetworkInfo]) -> str:
    """Returns a hash of what networks compute: their modules, the files of their own classes, and the inputs' shape."""
    described = []
    for info in networks:
        with torch.random.fork_rng(devices=[]):
            module = info.template() if info.template else nn.Module()
        kinds = {type(part) for part in module.modules() if type(part).__module__.split(".")[0] not in OTHERS}
        own = sorted(kinds, key=lambda kind: (kind.__module__, kind.__qualname__))
        shown = re.sub(r" at 0x\w+", "", repr(module))  # objects in it are elsewhere in every process
        described.append([shown, getattr(module, "code", ""), code_of(*own), info.input_shape])
    return digest_of(described)[:16]


def _require_small(definition: Definition, count: int) -> None:
    """Raises a CorpusError for so many networks that no predictor may read, or memory does not hold."""
    weights = sum(map(math.prod, definition.space.shapes().values()))
    if weights > MOST_WEIGHTS:
        raise CorpusError(
            f"{definition.name} has {weights:,} weights; predictors read networks of {MOST_WEIGHTS:,} at most"
        )
    if 4 * weights * count > (memory := _memory()):
        raise CorpusError(
            f"{count} networks of {weights:,} weights take {4 * weights * count / 2**30:.1f} GiB of memory, and this "
            f"machine has {memory / 2**30:.1f}: give a table of fewer lines"
        )


def _memory() -> float:
    """Returns the bytes of the machine; infinite if it does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # Windows
        return math.inf


# -- sides ------------------------------------------------------------------------------------------------------------


def _sides(
    rows: _Rows, targets: Sequence[Any], networks: Sequence[Mapping[str, Tensor]], request: Request
) -> tuple[list[str], str]:
    """Returns the side of every network, and in words how sides were chosen. Equal networks are of one group."""
    copies = []
    for network in networks:
        digest = hashlib.sha256()
        for tensor in network.values():
            digest.update(tensor.contiguous().numpy().data)
        copies.append(digest.hexdigest())
    shared = [
        [("", copy), *((name, text) for name in request.group if (text := text_of(line.cells.get(name))))]
        for copy, line in zip(copies, rows.lines, strict=True)
    ]
    groups = together(shared)
    try:
        if request.split is None:
            stay = f", the same {' or '.join(request.group)} on one side" * bool(request.group)
            sides = sides_drawn(groups, targets, request.seed)
            beside = together([[file.parent] for file in rows.files])
            if not request.group and 1 < len(set(beside)) < len(beside):
                stay += (
                    "; if files of one folder are of one run, keep them on one side by --group COLUMN "
                    "(--data-option group=COLUMN)"
                )
            return sides, f"drawn with seed {request.seed}{stay}"
        sides, how = sides_by(request.split, rows.lines, groups, targets, request.seed)
    except CorpusError as error:
        raise CorpusError(f"{rows.table}, {request.column}: {error}") from error
    first: dict[int, int] = {}
    for i, group in enumerate(groups):
        if sides[other := first.setdefault(group, i)] != sides[i]:
            what = "networks are a copy, or of the group, of one on another side, which makes results too good"
            rows.left_out[what].append(f"{rows.files[i]} of {rows.files[other]}")
    return sides, how
