"""Markdown as a part of an HTML page: nothing in it is markup of its own, and its links stay within the page.

Raw HTML comes out as text. A link to another address is kept (http, https, mailto), one to a file is a link to where
the page shows that file, and is plain text if it does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from nfn_monomial.errors import InvalidValueError

__all__ = ["Prose", "Surroundings", "is_numeric", "render_markdown"]

NUMBER = re.compile(r"(?=.*\d)[-+\u2212±.,:/%()\s\dexkM]+")  # as 0.736 ±0.002, 1e6, 1.06M, 90,472, 1.00x, .8 / .7
NOTHING = ("", "-", "\u2013")
CHARACTERS, LINES, DEPTH = 2**18, 10_000, 64  # of a text: what a parser needs more than a second or two for
EXTERNAL = ("http", "https", "mailto")
RIGHT = "text-align:right"


@dataclass(frozen=True)
class Surroundings:
    """The page around a Markdown file.

    Attributes:
        level: of the heading that is above the text; its own headings are below it.
        unique: a text -> an id that nothing else on the page has.
        target: path of a file, as a link states it -> id of the element that shows it, or None.
        image: path of an image and its description -> what shows it, or None.
    """

    level: int
    unique: Callable[[str], str]
    target: Callable[[str], str | None]
    image: Callable[[str, str], Markup | None]


@dataclass(frozen=True)
class Prose:
    """``title``: the heading the text starts with, which is not in ``html``; None if it starts otherwise."""

    title: str | None
    html: Markup
    tables: int


def render_markdown(text: str, page: Surroundings) -> Prose:
    """HTML of a Markdown text with tables.

    Raises:
        ValueError: for a text that would take long: too many lines or brackets that nothing closes.
    """
    _require_short(text)
    md = MarkdownIt("js-default")  # with tables, without HTML; the preset "commonmark" lets HTML through
    md.add_render_rule("table_open", _table_open)
    md.add_render_rule("table_close", lambda *_: "</table></div>\n")
    tokens = md.parse(text)
    title = None
    if [t.type for t in tokens[:3]] == ["heading_open", "inline", "heading_close"] and tokens[0].tag == "h1":
        title, tokens = _text(tokens[1]), tokens[3:]
    _headings(tokens, page)
    _tables(tokens)
    slugs = {t.meta["slug"]: str(t.attrs["id"]) for t in reversed(tokens) if t.type == "heading_open"}
    for token in tokens:
        if token.children:
            _links(token.children, page, slugs)
    html = Markup(md.renderer.render(tokens, md.options, {}))
    return Prose(title, html, sum(t.type == "table_open" for t in tokens))


def _require_short(text: str) -> None:
    lines, depth = text.count("\n") + text.count("\r"), 0
    if len(text) > CHARACTERS or lines > LINES:
        raise InvalidValueError(
            f"too long for a page: {len(text)} characters in {lines} lines, at most {CHARACTERS} and {LINES} are shown"
        )
    for mark in re.finditer(r"[\[\]]|\n\s*\n", text):
        depth = 0 if "\n" in mark[0] else max(0, depth + (1 if mark[0] == "[" else -1))
        if depth > DEPTH:
            raise InvalidValueError(
                f"more than {DEPTH} brackets in one another, in line {text.count(chr(10), 0, mark.start()) + 1}"
            )


def is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column of these cells holds numbers, and nothing else but gaps."""
    found = [cell.strip(" *") for cell in cells]
    found = [cell for cell in found if cell not in NOTHING]
    return bool(found) and all(NUMBER.fullmatch(cell) for cell in found)


def _text(inline: Token) -> str:
    """What is read, without how it is set."""
    breaks = {"softbreak": " ", "hardbreak": " "}
    return "".join(breaks.get(t.type, t.content) for t in inline.children or ()).strip()


def _headings(tokens: Sequence[Token], page: Surroundings) -> None:
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            level = min(6, max(page.level + 1, page.level - 1 + int(token.tag[1])))
            token.tag = tokens[i + 2].tag = f"h{level}"
            slug = re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", _text(tokens[i + 1]).lower()))
            token.meta["slug"] = slug
            token.attrSet("id", page.unique(slug))


def _tables(tokens: Sequence[Token]) -> None:
    """Columns of numbers are flush right, stated or not; a bold paragraph above a table is its title."""
    for start, token in enumerate(tokens):
        if token.type != "table_open":
            continue
        rows: list[list[tuple[Token, str]]] = []
        for cell, content in zip(tokens[start:], tokens[start + 1 :], strict=False):
            if cell.type == "table_close":
                break
            if cell.type == "tr_open":
                rows.append([])
            elif cell.type in ("th_open", "td_open"):
                rows[-1].append((cell, content.content))
        for column in zip(*rows, strict=True):
            stated = column[0][0].attrs.get("style")
            if stated == RIGHT or (stated is None and is_numeric([text for _, text in column[1:]])):
                for cell, _ in column:
                    cell.attrs = {"class": "n"}
        above = tokens[max(0, start - 3) : start]
        if [t.type for t in above] == ["paragraph_open", "inline", "paragraph_close"]:
            marks = [t.type for t in above[1].children or () if t.type != "text" or t.content]
            if marks[:1] == ["strong_open"] and marks.index("strong_close") == len(marks) - 1:
                above[0].attrSet("class", "title")
                token.meta["title"] = _text(above[1])


def _table_open(self: Any, tokens: Sequence[Token], at: int, *_: Any) -> str:
    label = escape(tokens[at].meta.get("title", "Table"))
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table>\n'


def _links(tokens: list[Token], page: Surroundings, slugs: dict[str, str]) -> None:
    """Links and images of one paragraph, as the module says. Links do not nest."""
    href: str | None = None
    inside = False
    for token in tokens:
        if token.type == "link_open":
            href, inside = _resolve(str(token.attrs["href"]), page, slugs), True
            if href is None:
                _become(token, "")
            else:
                token.attrs = {"href": href}
        elif token.type == "link_close":
            if href is None:
                _become(token, "")
            inside = False
        elif token.type == "image":
            source, alt = str(token.attrs["src"]), _text(token) or token.content
            shown = page.image(unquote(source), alt)
            if shown is None:
                address = None if inside else _resolve(source, page, slugs)
                shown = (
                    Markup('<a href="{}">{}</a>').format(address, alt or source) if address else escape(alt or source)
                )
            _become(token, shown)


def _become(token: Token, html: str) -> None:
    token.type, token.content, token.children = "html_inline", html, None


def _resolve(href: str, page: Surroundings, slugs: dict[str, str]) -> str | None:
    """An address outside, a place on this page, or None."""
    try:
        parts = urlsplit(href)
    except ValueError:  # as for an IPv6 address without its end
        return None
    if parts.scheme in EXTERNAL:
        return href
    if parts.scheme or parts.netloc:
        return None
    place = page.target(unquote(parts.path)) if parts.path else slugs.get(unquote(parts.fragment).lower())
    return None if place is None else f"#{place}"
