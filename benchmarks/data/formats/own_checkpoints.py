"""A folder of anybody's checkpoints and a table of results: which line means which file, and who is on which side.

Nothing has to be arranged for it. Files lie flat or in folders, the table names them by a path or a name, and any of
its columns may be asked for. What does not match is counted, not guessed. `train` reads its data so, and so does the
format `checkpoints` of `nfn_monomial.benchmarks.data.formats.checkpoint_folder`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.networks import SIDES, Corpus, Networks, Part
from nfn_monomial.benchmarks.experiments.predict import ColumnTask
from nfn_monomial.checks import brief as shown
from nfn_monomial.checks import listed
from nfn_monomial.errors import MonomialError
from nfn_monomial.tools.definitions.define import Definition
from nfn_monomial.tools.files.checkpoints import INDEX, SAFE, TORCH, checkpoints_in
from nfn_monomial.tools.files.untrusted import FileError, damaged, parse_json
from nfn_monomial.tools.predictors.models import MixedInfo
from nfn_monomial.tools.results import Progress, silent

from .base import CorpusError, require_folder
from .checkpoints import checkpoint_at, counter, info_of, read_defined, require_small
from .result_tables import Line, Number, columns_of, number_in, read_table, require_points, text_of
from .sides import sides_by, sides_drawn, together

__all__ = ["Asked", "OwnCheckpoints", "read_own"]

FEWEST, FEWEST_OF_A_CLASS = 10, 3
NO_PLACE = (ValueError, OSError, RuntimeError)  # what a path that leads nowhere, or in a circle, raises
FORM = "a table with a line for each network: CSV with a header, or JSON, a list of objects"


@dataclass(frozen=True)
class Asked:
    """What a user wants to know of which files.

    Attributes:
        folder: of the checkpoints, which may lie in folders below it.
        targets: the table.
        column: of the table, that is asked for.
        names: the column that names the files, or a text with columns in braces, as ``run-{run}/epoch={epoch}.ckpt``;
            by default found out.
        task: by default what the column's cells suggest.
        split: the column that says on which side a network is; by default sides are drawn.
        group: columns, whose equal cells stay on one side.
        key: of the state dict in files that hold several.
        seed: of the draw.
        arguments: the column of what builds a network, objects (in CSV their JSON); none where all have one
            architecture.
        limit: take that many training networks, the first of the table.
        complete: a line or file that cannot be used is an error, and not left out and counted.
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
class OwnCheckpoints:
    """Networks, what is asked of them, and what was found out on the way.

    Attributes:
        corpus: its targets are float64, or the numbers of classes; its name is that of the architecture, or ``mixed``.
        asked: what for.
        task: which it is.
        classes: the texts of a column of classes, sorted; none of numbers.
        unit: of numbers, as ``%``.
        paths: side -> files, in the order of the networks.
        notes: in words, what was chosen, counted and left out.
    """

    corpus: Corpus
    asked: Asked
    task: ColumnTask
    classes: tuple[str, ...]
    unit: str
    paths: Mapping[str, tuple[Path, ...]]
    notes: tuple[str, ...]


@dataclass
class _Rows:
    """Lines of the table that are still in, each with its file; and what was left out, with examples."""

    table: Path
    lines: list[Line]
    complete: bool = False
    files: list[Path] = field(default_factory=list)
    lost: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def keep(self, kept: Sequence[object], why: str, examples: Callable[[int], str]) -> None:
        """Keep those lines that have something; the others are counted, or an error where all have to be used."""
        self.lost[why] += [examples(i) for i, one in enumerate(kept) if one is None]
        if self.complete and self.lost[why]:
            raise CorpusError(f"{self.table}: {'; '.join(self.notes())}")
        rows = [i for i, one in enumerate(kept) if one is not None]
        self.lines = [self.lines[i] for i in rows]
        self.files = [self.files[i] for i in rows] if self.files else []

    def notes(self) -> list[str]:
        """In words, what was left out."""
        return [f"{len(found)} {why}, as {', '.join(found[:2])}" for why, found in self.lost.items() if found]

    def require(self, count: int, what: str) -> None:
        if len(self.lines) < count:
            told = "; ".join(self.notes()) or "the table has no more lines"
            raise CorpusError(f"{self.table}: {len(self.lines)} {what}, at least {count} are needed. Left out: {told}")


def read_own(
    asked: Asked, architecture: Callable[[Mapping[str, Any]], Definition], on_progress: Progress = silent
) -> OwnCheckpoints:
    """Read the table and all networks that it names, and decide on which side each of them is.

    Args:
        asked: see `Asked`.
        architecture: that of networks by the arguments of what builds them, none without a column of arguments.
        on_progress: called while files are read.

    Raises:
        FileNotFoundError: if there is no such table.
        CorpusError: naming the table, what was found and the way out, if it has no such column, fewer than ten networks
            are left, they cannot be told apart by the column, no sides can be drawn, or a line cannot be used and all
            have to be.
    """
    folder, table = require_folder(asked.folder), asked.targets
    rows = _Rows(table, read_table(table, FORM), asked.complete)
    columns = columns_of(rows.lines)
    for name in (asked.column, *(name for name in (asked.split, asked.arguments) if name), *asked.group):
        _require(name, columns, table)
    files = _Files(folder, table.parent)
    how = _match(rows, files, columns, asked)
    unnamed = sorted(set(files.all) - set(rows.files))
    rows.require(FEWEST, "lines name a checkpoint")
    task, why, unit, targets = _targets(rows, asked)
    texts = [_arguments(line, asked) for line in rows.lines]
    definitions = {text: architecture(json.loads(text)) for text in sorted(set(texts))}
    for text, definition in definitions.items():
        require_small(definition, texts.count(text))
    name = "mixed" if len(definitions) > 1 else definitions[texts[0]].name
    networks = _networks(rows, [definitions[text] for text in texts], asked.key, on_progress)
    rows.require(FEWEST, f"checkpoints are of {', '.join(dict.fromkeys(d.name for d in definitions.values()))}")
    targets = [target for target, network in zip(targets, networks, strict=True) if network is not None]
    read = [network for network in networks if network is not None]
    if task == "classification":
        rare = {name for name, count in Counter(targets).items() if count < FEWEST_OF_A_CLASS}
        kept = [None if target in rare else target for target in targets]
        many = f"lines have a class of fewer than {FEWEST_OF_A_CLASS} networks"
        rows.keep(kept, many, lambda i: str(targets[i]))
        read = [one for one, target in zip(read, kept, strict=True) if target is not None]
        targets = [target for target in targets if target not in rare]
        rows.require(FEWEST, f"networks are of a class of {asked.column} that others have")
    if len(set(targets)) < 2:
        raise CorpusError(
            f"{table}: all {len(targets)} networks have {asked.column} {shown(targets[0])}: there is nothing to learn"
        )
    sides, said = _sides(rows, targets, read, asked)
    classes = tuple(sorted(map(str, set(targets)))) if task == "classification" else ()
    values = torch.tensor(
        [classes.index(t) for t in targets] if classes else targets, dtype=None if classes else torch.float64
    )
    places = {side: [i for i, own in enumerate(sides) if own == side] for side in SIDES}
    places["train"] = places["train"][: asked.limit]
    texts = [_arguments(line, asked) for line in rows.lines]
    places = {side: sorted(index, key=texts.__getitem__) for side, index in places.items()}  # as they stand in parts
    infos = {
        text: info_of(definition, checkpoint_at(rows.files[texts.index(text)], asked.key))
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
        "path": str(folder), "targets": str(table), "column": asked.column, "task": task, "split": said, **counts,
        "architectures": len(known), "notes": rows.notes(),
    }  # fmt: skip
    notes = [
        f"{len(rows.files)} networks of {name}, {how}",
        f"{task} of {asked.column}: {why}",
        f"{', '.join(f'{count} {side}' for side, count in counts.items())}: {said}",
        *rows.notes(),
        *[f"{len(unnamed)} files have no line, as {listed(map(str, unnamed), 3)}"] * bool(unnamed),
    ]
    corpus = Corpus(name, **parts, info=MixedInfo(known) if len(known) > 1 else known[0], source=source)
    paths = {side: tuple(rows.files[part] for part in index) for side, index in places.items()}
    return OwnCheckpoints(corpus, asked, task, classes, unit, paths, tuple(notes))


def _require(name: str, columns: Sequence[str], table: Path) -> None:
    if name not in columns:
        raise CorpusError(f"{table} has no column {shown(name)}: it has {listed(columns, 20)}")


# -- which file is meant ----------------------------------------------------------------------------------------------


class _Files:
    """All checkpoints of a folder, by what a table may call them."""

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
        """Those that a cell may mean: by a path, from the folder, the table or here, or else by the end of a path.

        A file without a suffix is a checkpoint if its path from the folder on is called.
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
    """Without the suffixes of checkpoints."""
    index = INDEX.fullmatch(name)
    name = name if index is None else index["stem"]
    for suffix in (SAFE, ".tar", *TORCH):
        name = name.removesuffix(suffix)
    return name


def _match(rows: _Rows, files: _Files, columns: Sequence[str], asked: Asked) -> str:
    """Give every line its file; in words, by what."""
    others = {asked.column, asked.split, *asked.group}
    if asked.names is None:
        ways = sorted((c for c in columns if c), key=lambda name: name in others)
    else:
        for name in re.findall(r"\{([^}]*)\}", asked.names) or [asked.names]:
            _require(name, columns, rows.table)
        ways = [asked.names]
    calls = {way: [_called(line, way) for line in rows.lines] for way in ways}
    known = {name: files.called(name) for names in calls.values() for name in set(names)}

    def fitting(way: str) -> int:
        return len({next(iter(found)) for name in calls[way] if len(found := known[name]) == 1})

    way = max(ways, key=fitting)
    if not fitting(way):
        several = max(ways, key=lambda way: sum(len(known[name]) > 1 for name in calls[way]))
        example = next((name for name in calls[several] if len(known[name]) > 1), None)
        told = f"there are files such as {listed(map(str, files.all), 3)}, and columns {listed(columns, 20)}"
        if example is not None:
            told = (
                f"{shown(example)} of {several} may be any of {len(known[example])} files, as "
                f"{listed(map(str, sorted(known[example])), 2)}"
            )
        raise CorpusError(
            f"no line of {rows.table} names one checkpoint in {files.folder}: {told}; say "
            "which column does by --names COLUMN (--data-option names=COLUMN), or how columns do, as --names "
            "'run-{run}/epoch={epoch}.ckpt'"
        )
    for other in (c for c in ways if c not in others and fitting(c) == fitting(way)):
        for line, *names in zip(rows.lines, calls[way], calls[other], strict=True):
            one, two = (known[name] for name in names)
            if len(one) == len(two) == 1 and one != two:
                raise CorpusError(
                    f"{rows.table}: the columns {way} and {other} name other files, in {line.place} {next(iter(one))} "
                    f"and {next(iter(two))}: say which one is meant by --names COLUMN (--data-option names=COLUMN)"
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
    return f"named by {way if asked.names else f'the column {way}'}"


def _called(line: Line, way: str) -> str:
    """What a line calls its file, by a column or a text with columns in braces."""
    if "{" not in way:
        return text_of(line.cells.get(way))
    return re.sub(r"\{([^}]*)\}", lambda found: text_of(line.cells.get(found[1])), way)


# -- what is asked ----------------------------------------------------------------------------------------------------


def _targets(rows: _Rows, asked: Asked) -> tuple[ColumnTask, str, str, list[Any]]:
    """Task, why it is this one, unit, and the target of every line that has one."""
    cells = [line.cells.get(asked.column) for line in rows.lines]
    numbers: list[Number | None] = []
    for cell in cells:
        try:
            numbers.append(number_in(cell))
        except ValueError:
            numbers.append(None)
    texts = [text_of(cell) for cell, number in zip(cells, numbers, strict=True) if number is None]
    values = [number for number in numbers if number is not None and number.value is not None]
    task, why = asked.task, "as asked for"
    if task is None:
        task, why = ("classification", "its cells are texts") if texts else ("regression", "its cells are numbers")
        if texts and values:
            raise CorpusError(
                f"{rows.table}: {asked.column} has {len(values)} numbers and {len(texts)} texts, as "
                f"{listed(dict.fromkeys(texts), 3)}: empty these cells, or say "
                "--task classification, both for train"
            )
        if task == "regression" and len(different := {number.value for number in values}) <= FEWEST:
            why += f", {len(different)} different ones; --task classification takes them for classes"
    elif task != "classification" and texts:
        raise CorpusError(
            f"{rows.table}: {task} is of numbers, and {asked.column} has {len(texts)} texts, as "
            f"{listed(dict.fromkeys(texts), 3)}: empty these cells, or say "
            "--task classification, both for train"
        )
    units = {number.unit for number in values}
    if task != "classification" and len(units) > 1:
        raise CorpusError(f"{rows.table}: {asked.column} has numbers with % and without: write all of them one way")
    if task == "classification":
        targets: list[Any] = [text_of(cell) or None for cell in cells]
    else:
        require_points(asked.column, [text_of(cell) for cell in cells], rows.table)
        targets = [None if number is None else number.value for number in numbers]
    rows.keep(targets, f"lines have no {asked.column} that is finite", lambda i: rows.lines[i].place)
    rows.require(FEWEST, f"networks have a {asked.column}")
    return task, why, next(iter(units), ""), [target for target in targets if target is not None]


def _arguments(line: Line, asked: Asked) -> str:
    """What builds a network, as JSON, the same text for the same arguments."""
    cell = line.cells.get(asked.arguments) if asked.arguments else None
    with damaged(asked.targets, "expected an object, as {}", CorpusError):
        arguments = parse_json(cell) if isinstance(cell, str) and cell.strip() else cell or {}
    if not isinstance(arguments, dict):
        raise CorpusError(
            f"{asked.targets}, {line.place}: {asked.arguments} are {shown(cell)}, expected an object, as {{}}"
        )
    return json.dumps(arguments, sort_keys=True)


def _networks(
    rows: _Rows, definitions: Sequence[Definition], key: str | None, on_progress: Progress
) -> list[dict[str, Tensor] | None]:
    """The networks in the files, None for those that cannot be used, which are left out."""
    step = counter(len(rows.files), on_progress)
    found: list[dict[str, Tensor] | None] = []
    reasons: list[str] = []
    for file, definition in zip(rows.files, definitions, strict=True):
        try:
            found.append(read_defined(definition, key, file))
        except MonomialError as error:
            found.append(None)
            reasons.append(str(error))
        step()
    told = iter(reasons)
    rows.keep(found, "files cannot be used", lambda i: next(told))
    return found


def _sides(
    rows: _Rows, targets: Sequence[Any], networks: Sequence[Mapping[str, Tensor]], asked: Asked
) -> tuple[list[str], str]:
    """The side of every network, those with the same weights in one group; in words, how."""
    copies = [_digest(network) for network in networks]
    shared = [
        [("", copy), *((name, text) for name in asked.group if (text := text_of(line.cells.get(name))))]
        for copy, line in zip(copies, rows.lines, strict=True)
    ]
    groups = together(shared)
    try:
        if asked.split is None:
            stay = f", the same {' or '.join(asked.group)} on one side" * bool(asked.group)
            sides = sides_drawn(groups, targets, asked.seed)
            beside = together([[file.parent] for file in rows.files])
            if not asked.group and 1 < len(set(beside)) < len(beside):
                stay += (
                    "; if files of one folder are of one run, keep them on one side by --group COLUMN "
                    "(--data-option group=COLUMN)"
                )
            return sides, f"drawn with seed {asked.seed}{stay}"
        sides, said = sides_by(asked.split, rows.lines, groups, targets, asked.seed)
    except CorpusError as error:
        raise CorpusError(f"{rows.table}, {asked.column}: {error}") from error
    first: dict[int, int] = {}
    for i, group in enumerate(groups):
        if sides[other := first.setdefault(group, i)] != sides[i]:
            what = "networks are a copy, or of the group, of one on another side, which makes results too good"
            rows.lost[what].append(f"{rows.files[i]} of {rows.files[other]}")
    return sides, said


def _digest(network: Mapping[str, Tensor]) -> str:
    """The same for the same weights."""
    digest = hashlib.sha256()
    for tensor in network.values():
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
