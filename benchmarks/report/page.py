"""One page of any results folders: their tables, figures, prose and configurations, in a file that needs no other.

What stands in a folder says what is shown: ``README.md`` and other Markdown, ``*.png``, ``*.json`` (of which settings
and environments are shown, not the numbers that the tables have), and finished runs, ``runs/*.json``. The page depends
on these files and on the folder's name alone, so that the same results give the same bytes. A file that cannot be read
is named in its place.
"""

from __future__ import annotations

import base64
import json
import os
import posixpath
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TypeVar

from nfn_monomial.benchmarks.files import write_atomically
from nfn_monomial.benchmarks.train.runs import CONFIG_NAME

from .page_markdown import Prose, Surroundings, render_markdown
from .page_records import RunLine, counted, run_line, runs_table, settings_table
from .page_style import STYLE

__all__ = ["PAGE_NAME", "Page", "ResultsFolder", "find_results", "png_size", "render_page", "write_page"]

T = TypeVar("T")

PAGE_NAME = "report.html"
README = "README.md"
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # the page loads and runs nothing
UNSHOWABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")  # what HTML forbids, or no file can hold
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class ResultsFolder:
    """Files with paths from the folder that was asked for, ``/`` between; ``path`` is ``.`` for that one itself."""

    path: str
    texts: tuple[str, ...]
    figures: tuple[str, ...]
    records: tuple[str, ...]
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Page:
    """``problems``: files that are not shown, and why."""

    html: str
    folders: int
    tables: int
    figures: int
    problems: tuple[str, ...]


def find_results(root: Path) -> list[ResultsFolder]:
    """All results folders in a folder, itself included; hidden ones are passed over.

    JSON files make a folder one of results only as ``config.json``, ``results.json`` or runs, since data sets have
    such files, too.

    Raises:
        ValueError: if it is not there, or has no results.
    """
    if not root.is_dir():
        raise ValueError(f"{root} {'is a file' if root.exists() else 'is not there'}: give a folder of results")
    found = []
    for where, folders, _ in os.walk(root):
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=_natural)
        path = Path(where).relative_to(root)
        texts, figures, records = (_files(root, path, kind) for kind in (".md", ".png", ".json"))
        texts.sort(key=lambda name: posixpath.basename(name) != README)  # it comes first
        runs = _files(root, path / "runs", ".json")
        if texts or figures or runs or {"results.json", CONFIG_NAME} & {posixpath.basename(name) for name in records}:
            found.append(ResultsFolder(path.as_posix(), *map(tuple, (texts, figures, records, runs))))
    if not found:
        raise ValueError(
            f"no results in {root}: looked for {CONFIG_NAME}, results.json, *.md, *.png and runs/*.json, "
            "in it and in the folders below"
        )
    return found


def _files(root: Path, folder: Path, kind: str) -> list[str]:
    paths = (root / folder).glob(f"*{kind}")
    names = [p.name for p in paths if p.is_file() and not p.name.startswith(".")]
    return [(folder / name).as_posix() for name in sorted(names, key=_natural)]


def _natural(name: str) -> list[str | int]:
    """So that 500 is before 5000, and seed2 before seed10."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split("([0-9]+)", name))]


def render_page(root: Path) -> Page:
    """The page of all results in a folder.

    Raises:
        ValueError: see `find_results`.
    """
    return _Writer(root, find_results(root)).page()


def write_page(root: Path, out: Path | None = None) -> tuple[Path, Page]:
    """Write the page, by default to ``report.html`` in the folder; the file appears whole or not at all.

    Raises:
        ValueError: see `find_results`, or if ``out`` is a folder.
    """
    path = root / PAGE_NAME if out is None else out
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give a file, as {path / PAGE_NAME}")
    page = render_page(root)
    write_atomically(path, page.html.encode())
    return path, page


def png_size(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG whose every chunk is whole.

    Raises:
        ValueError: if it is anything else.
    """
    if not data.startswith(PNG_SIGNATURE + b"\0\0\0\rIHDR"):
        raise ValueError("not a PNG")
    at = len(PNG_SIGNATURE)
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 8 + length
        if end + 4 > len(data):
            break
        if zlib.crc32(data[at + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            raise ValueError(f"damaged: wrong checksum of its chunk {kind!r}")
        if kind == b"IEND":
            width, height = struct.unpack_from(">II", data, 16)
            return width, height
        at = end + 4
    raise ValueError("damaged: it ends too early")


class _Writer:
    """The page as it is written. Every file is shown once, in an element whose id is known from the start."""

    def __init__(self, root: Path, folders: Sequence[ResultsFolder]) -> None:
        self.root, self.folders = root, folders
        self.name = os.path.basename(os.path.abspath(root)) or "/"
        self.tables = self.figures = 0
        self.problems: list[str] = []
        self._used: set[str] = set()
        self._shown: set[str] = set()
        self._ids = {
            path: self._unique(self.name if path == "." else path)
            for f in folders
            for path in (f.path, *f.texts, *f.figures, *f.records, _runs_of(f))
        }

    def page(self) -> Page:
        sections = [self._section(folder) for folder in self.folders]
        contents = [
            f'<li><a href="#{self._ids[f.path]}">{escape(title)}</a></li>'
            for f, (title, _) in zip(self.folders, sections, strict=True)
        ]
        counts = ((len(self.folders), "folder"), (self.tables, "table"), (self.figures, "figure"))
        html = [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Results: {escape(self.name)}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            f"<header><h1>Results: {escape(self.name)}</h1>",
            f'<p class="faint">{", ".join(counted(n, what) for n, what in counts)}</p></header>',
            '<nav aria-label="Contents"><ul>',
            *contents,
            "</ul></nav>\n<main>",
            *(html for _, html in sections),
            "</main>\n</body>\n</html>\n",
        ]
        text = UNSHOWABLE.sub("\ufffd", "\n".join(html))
        return Page(text, len(self.folders), self.tables, self.figures, tuple(self.problems))

    def _unique(self, text: str) -> str:
        """An id that reads like the text; numbered if another text has it."""
        base = re.sub("[^A-Za-z0-9._/-]+", "-", text)
        name, n = base, 1
        while name in self._used:
            n += 1
            name = f"{base}-{n}"
        self._used.add(name)
        return name

    def _read(self, path: str, parse: Callable[[bytes], T], failed: Callable[[str], T]) -> T:
        """What a file holds, or a line that says why it is not shown."""
        try:
            return parse((self.root / path).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            reason = {json.JSONDecodeError: f"not JSON: {error}", RecursionError: "nested too deeply"}.get(type(error))
            reason = reason or (error.strerror if isinstance(error, OSError) else None) or str(error)
            self.problems.append(f"{path}: {reason}")
            return failed(f'<strong class="problem">{escape(path)} is not shown: {escape(reason)}</strong>')

    def _section(self, folder: ResultsFolder) -> tuple[str, str]:
        """Title and HTML."""
        title = self.name if folder.path == "." else folder.path
        parts = []
        for path in folder.texts:
            readme = posixpath.basename(path) == README
            prose = self._text(path, level=2 if readme else 3)
            if readme:
                title = prose.title or title
            else:
                parts.append(f"<h3>{escape(prose.title or posixpath.basename(path)[:-3])}</h3>")
            parts.append(f'<div id="{self._ids[path]}">\n{prose.html}</div>')
        for path in folder.figures:
            name = posixpath.basename(path)
            if path not in self._shown:
                shown = self._figure(path, f"{title}: {name}")
                parts.append(f"<figure>{shown}<figcaption>{escape(name)}</figcaption></figure>")
            elif not any(f'id="{self._ids[path]}"' in part for part in parts):  # the prose of a folder above has it
                parts.append(f'<p><a href="#{self._ids[path]}">{escape(name)}</a> is shown above.</p>')
        parts += map(self._settings, folder.records)
        if folder.runs:
            parts.append(self._runs(folder))
        path = "" if title == folder.path or folder.path == "." else f'\n<p class="faint">{escape(folder.path)}</p>'
        head = f'<section id="{self._ids[folder.path]}">\n<h2>{escape(title)}</h2>{path}'
        return title, "\n".join([head, *parts, "</section>"])

    def _text(self, path: str, level: int) -> Prose:
        """A Markdown file. Figures of its folder and of those below are shown where it first has them."""
        folder = posixpath.dirname(path)

        def place(target: str) -> str:
            return posixpath.normpath(posixpath.join(folder, target))

        def image(source: str, alt: str) -> str | None:
            figure = place(source)
            known = figure in self._ids and figure.endswith(".png") and figure not in self._shown
            if not known or not figure.startswith(f"{folder}/" if folder else ""):
                return None
            return self._figure(figure, f"{alt or self.name} ({posixpath.basename(figure)})")

        around = Surroundings(
            level, lambda text: self._unique(f"{path}-{text}"), lambda target: self._ids.get(place(target)), image
        )
        prose = self._read(
            path, lambda data: render_markdown(data.decode("utf-8-sig"), around), lambda html: Prose(None, html, 0)
        )
        self.tables += prose.tables
        return prose

    def _figure(self, path: str, alt: str) -> str:
        """The image, as may stand anywhere in a text."""
        self._shown.add(path)

        def img(data: bytes) -> str:
            width, height = png_size(data)
            self.figures += 1
            source = base64.b64encode(data).decode()
            return f'<img src="data:image/png;base64,{source}" width="{width}" height="{height}" alt="{escape(alt)}">'

        return f'<span id="{self._ids[path]}">{self._read(path, img, str)}</span>'

    def _settings(self, path: str) -> str:
        name, summary = self._ids[path], f"Settings and environment: {posixpath.basename(path)}"
        return self._read(
            path,
            lambda data: _details(name, summary, settings_table(data)),
            lambda problem: f'<p id="{name}">{problem}</p>',
        )

    def _runs(self, folder: ResultsFolder) -> str:
        found = [self._read(path, run_line, str) for path in folder.runs]
        lines = [line for line in found if isinstance(line, RunLine)]
        html = _details(self._ids[_runs_of(folder)], counted(len(lines), "finished run"), runs_table(lines))
        return "\n".join([html, *(f"<p>{problem}</p>" for problem in found if isinstance(problem, str))])


def _runs_of(folder: ResultsFolder) -> str:
    return posixpath.normpath(posixpath.join(folder.path, "runs"))


def _details(name: str, summary: str, html: str) -> str:
    return f'<details id="{name}"><summary>{escape(summary)}</summary>\n{html}\n</details>'
