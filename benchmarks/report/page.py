"""One page of any results folders: their tables, figures, prose and configurations, in a file that needs no other.

What stands in a folder says what is shown: ``README.md`` and other Markdown, ``*.png``, ``*.json`` (of which settings
and environments are shown, not the numbers that the tables have), and finished runs, ``runs/*.json``. The page depends
on these files and on the folder's name alone, so that the same results give the same bytes. A file that cannot be read,
or that a link brings in from elsewhere, is named in its place. How the page looks is in ``page.html.j2`` and
``page.css``.
"""

from __future__ import annotations

import base64
import io
import os
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image, UnidentifiedImageError

from nfn_monomial.benchmarks.files import write_atomically
from nfn_monomial.benchmarks.reading import read_bytes
from nfn_monomial.benchmarks.train.runs import CONFIG_NAME
from nfn_monomial.errors import InvalidValueError

from .page_markdown import Prose, Surroundings, render_markdown
from .page_records import RunLine, counted, read_run, read_settings, runs_table

__all__ = ["PAGE_NAME", "Page", "ResultsFolder", "find_results", "png_size", "render_page", "write_page"]

T = TypeVar("T")

PAGE_NAME = "report.html"
README = "README.md"
UNSHOWABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")  # what HTML forbids, or no file can hold
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True, keep_trailing_newline=True,
)  # fmt: skip


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
        raise InvalidValueError(f"{root} {'is a file' if root.exists() else 'is not there'}: give a folder of results")
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
        raise InvalidValueError(
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
        raise InvalidValueError(f"{path} is a folder: give a file, as {path / PAGE_NAME}")
    page = render_page(root)
    write_atomically(path, page.html.encode())
    return path, page


def png_size(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG whose every chunk is whole.

    Raises:
        ValueError: if it is anything else.
    """
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            image.verify()
            return image.size
    except UnidentifiedImageError:
        raise InvalidValueError("not a PNG") from None
    except (OSError, SyntaxError) as error:  # which of them depends on where it is damaged
        raise InvalidValueError(f"damaged: {error}") from None


class _Writer:
    """The page as it is written. Every file is shown once, in an element whose id is known from the start."""

    def __init__(self, root: Path, folders: Sequence[ResultsFolder]) -> None:
        self.root, self.folders = root, folders
        self.name = os.path.basename(os.path.abspath(root)) or "/"
        self.tables = self.figures = 0
        self.problems: list[str] = []
        self._used: set[str] = set()
        self._shown: dict[str, str] = {}  # figure -> folder in whose section it is
        self._ids = {
            path: self._unique(self.name if path == "." else path)
            for f in folders
            for path in (f.path, *f.texts, *f.figures, *f.records, _runs_of(f))
        }

    def page(self) -> Page:
        sections = [self._section(folder) for folder in self.folders]
        counts = ((len(self.folders), "folder"), (self.tables, "table"), (self.figures, "figure"))
        text = TEMPLATES.get_template("page.html.j2").render(
            name=self.name, counts=", ".join(counted(n, what) for n, what in counts), sections=sections
        )
        html = UNSHOWABLE.sub("\ufffd", text)
        return Page(html, len(self.folders), self.tables, self.figures, tuple(self.problems))

    def _unique(self, text: str) -> str:
        """An id that reads like the text; numbered if another text has it."""
        base = re.sub("[^A-Za-z0-9._/-]+", "-", text)
        name, n = base, 1
        while name in self._used:
            n += 1
            name = f"{base}-{n}"
        self._used.add(name)
        return name

    def _read(self, path: str, parse: Callable[[bytes], T], failed: Callable[[Markup], T]) -> T:
        """What a file holds, or a line that says why it is not shown."""
        try:
            file = self.root / path
            if not file.resolve().is_relative_to(self.root.resolve()):
                raise InvalidValueError("a link to a file outside of the folder")
            return parse(read_bytes(file))
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self.problems.append(f"{path}: {reason}")
            return failed(Markup('<strong class="problem">{} is not shown: {}</strong>').format(path, reason))

    def _section(self, folder: ResultsFolder) -> dict[str, Any]:
        """What the template needs of a folder."""
        title = self.name if folder.path == "." else folder.path
        prose = []
        for path in folder.texts:
            readme = posixpath.basename(path) == README
            text = self._text(path, folder.path, level=2 if readme else 3)
            if readme:
                title = text.title or title
            heading = None if readme else text.title or posixpath.basename(path).removesuffix(".md")
            prose.append({"heading": heading, "id": self._ids[path], "html": text.html})
        figures = []
        for path in folder.figures:
            name, picture = posixpath.basename(path), None
            if path not in self._shown:
                picture = self._picture(path, folder.path, f"{title}: {name}")
            elif self._shown[path] == folder.path:  # where the prose has it
                continue
            figures.append({"name": name, "id": self._ids[path], "picture": picture})
        return {
            "id": self._ids[folder.path],
            "title": title,
            "path": "" if title == folder.path or folder.path == "." else folder.path,
            "prose": prose,
            "figures": figures,
            "records": [self._record(path) for path in folder.records],
            "runs": self._runs(folder) if folder.runs else None,
        }

    def _text(self, path: str, section: str, level: int) -> Prose:
        """A Markdown file. Figures of its folder and of those below are shown where it first has them."""
        folder = posixpath.dirname(path)

        def place(target: str) -> str:
            return posixpath.normpath(posixpath.join(folder, target))

        def image(source: str, alt: str) -> Markup | None:
            figure = place(source)
            known = figure in self._ids and figure.endswith(".png") and figure not in self._shown
            if not known or not figure.startswith(f"{folder}/" if folder else ""):
                return None
            return self._picture(figure, section, f"{alt or self.name} ({posixpath.basename(figure)})")

        around = Surroundings(
            level, lambda text: self._unique(f"{path}-{text}"), lambda target: self._ids.get(place(target)), image
        )
        prose = self._read(
            path, lambda data: render_markdown(data.decode("utf-8-sig"), around), lambda line: Prose(None, line, 0)
        )
        self.tables += prose.tables
        return prose

    def _picture(self, path: str, section: str, alt: str) -> Markup:
        """The image, as may stand anywhere in a text."""
        self._shown[path] = section

        def img(data: bytes) -> Markup:
            width, height = png_size(data)
            self.figures += 1
            source = base64.b64encode(data).decode()
            tag = Markup('<img src="data:image/png;base64,{}" width="{}" height="{}" alt="{}">')
            return tag.format(source, width, height, alt)

        return Markup('<span id="{}">{}</span>').format(self._ids[path], self._read(path, img, Markup))

    def _record(self, path: str) -> dict[str, Any]:
        common = {"id": self._ids[path], "name": posixpath.basename(path), "problem": None}
        return self._read(
            path, lambda data: common | vars(read_settings(data)), lambda problem: common | {"problem": problem}
        )

    def _runs(self, folder: ResultsFolder) -> dict[str, Any]:
        problems: list[Markup] = []
        found = [self._read(path, read_run, lambda line: problems.append(line)) for path in folder.runs]
        lines = [line for line in found if isinstance(line, RunLine)]
        return {
            "id": self._ids[_runs_of(folder)],
            "summary": counted(len(lines), "finished run"),
            "table": runs_table(lines),
            "problems": problems,
        }


def _runs_of(folder: ResultsFolder) -> str:
    return posixpath.normpath(posixpath.join(folder.path, "runs"))
