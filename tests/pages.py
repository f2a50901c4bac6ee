"""Results folders and pages of them, for tests."""

from __future__ import annotations

import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path

from made_up_runs import made_up_run

from nfn_monomial.benchmarks.report.page import Page
from nfn_monomial.benchmarks.train.runs import Run

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
VOID = ("meta", "img", "br", "hr")


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int = 3, height: int = 2, shade: int = 0) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress((b"\0" + bytes([shade]) * width) * height))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b"")


class Reader(HTMLParser):
    """What a browser would find; fails on tags that are not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.inside: list[tuple[str, str]] = []  # (innermost element, text)
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        self.inside.append((self.open[-1] if self.open else "", data))

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.tags if name == tag]

    def within(self, tag: str) -> list[str]:
        return [text for element, text in self.inside if element == tag]


def check(page: Page) -> Reader:
    """A page that holds together: tags closed, ids unique, links that lead somewhere, nothing loaded or run."""
    assert page.html.startswith("<!DOCTYPE html>\n")
    reader = Reader(page.html)
    ids = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert not [name for name in ids if not name or re.search(r"\s", name)]
    for tag, attrs in reader.tags:
        assert tag not in ("script", "link", "iframe", "object", "base", "form")
        assert not [name for name in attrs if name.startswith("on")]
        if tag == "a":
            assert attrs["href"].startswith(("#", "http://", "https://", "mailto:"))
            assert not attrs["href"].startswith("#") or attrs["href"][1:] in ids
        assert attrs.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
        assert tag != "img" or attrs["alt"]
    assert "url(" not in page.html.split("<style>")[1].split("</style>")[0]
    return reader


def folder_of(path: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def finished_run(model: str = "np", seed: int = 0, tests: tuple[str, ...] = ("original",)) -> Run:
    return made_up_run(model, seed, {name: {"tau": 0.5 + seed / 8} for name in tests})
