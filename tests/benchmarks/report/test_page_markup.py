"""Nothing in a file becomes markup, and nothing from outside of a folder gets into its page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import check, finished_run, folder_of, png

from nfn_monomial.benchmarks.report.page import UNSHOWABLE, render_page, write_page

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>&amp;"


@pytest.mark.parametrize(
    "text",
    [
        f"# {EVIL}\n\n{EVIL}\n",
        f"**{EVIL}**\n\n| {EVIL} |\n|---|\n| {EVIL} |\n",
        "[x](javascript:alert(1)) [x]( JaVaScRiPt:alert(1)) [x](vbscript:x) [x](data:text/html;base64,eA==)\n",
        "<javascript:alert(1)>\n\n[x][y]\n\n[y]: javascript:alert(1)\n",
        "[x](file:///etc/passwd) [x](//example.org) [x](http://[) ![x](javascript:x) ![](data:image/svg+xml,x)\n",
        '[x](https://a.b/" onclick="alert(1)) ![" onerror="alert(1)](a.png)\n',
        "<!-- a comment -->\n<style>*{}</style>\n<details open>\n",
        "```html\n<script>\n```\n\n    <script>\n",
    ],
)
def test_markup_in_markdown_is_text(tmp_path: Path, text: str) -> None:
    page = render_page(folder_of(tmp_path, {"README.md": text, "a.png": png()}))
    reader = check(page)
    assert not page.problems
    assert page.html.count("<style") == 1
    for part in ("<script>alert('x')</script>", "<!-- a comment -->", "<details open>"):
        assert (part in reader.text) == (part in text)


def test_markup_in_other_places_is_text(tmp_path: Path) -> None:
    name = "<b>&amp;"  # as far as file names may go
    run = replace(finished_run(tests=(EVIL,)), label=EVIL)
    record = {"command": EVIL, EVIL: 1, "config": {EVIL: [EVIL]}, "rows" + EVIL: [1], "settings": [{EVIL: EVIL}]}
    files = {
        f"{name}/README.md": "[x](ftp:table.md) [y](file:table.md)\n\n![" + EVIL + "](%3Cb%3E%26amp;.png)\n",
        f"{name}/table.md": "",
        f"{name}/{name}.md": "",
        f"{name}/{name}.png": png(),
        f"{name}/c{name}.png": png(),
        f"{name}/config.json": json.dumps(record),
        f"{name}/{name}.json": "{",
        f"{name}/d{name}.json": "{}",
        f"{name}/runs/a.json": run.to_json(),
    }
    page = render_page(folder_of(tmp_path / name, files))
    reader = check(page)
    assert not {"b"} & {tag for tag, _ in reader.tags}
    assert reader.all("img")[0]["alt"].startswith("<script>alert('x')</script>")
    assert len(reader.all("img")) == page.figures == 2
    assert reader.within("h1") == [f"Results: {name}"]
    assert {name, EVIL} <= {*reader.within("h2"), *reader.within("h3"), *reader.within("td")}
    assert f"tau {EVIL}" in reader.within("th")
    assert len(reader.all("a")) == 1  # the table of contents
    assert reader.text.count(EVIL) >= 9


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@given(title=st.text(), cell=st.text(), value=st.text(), config=VALUES)
@settings(max_examples=30)
def test_any_text_comes_out_as_text(
    tmp_path_factory: pytest.TempPathFactory, title: str, cell: str, value: str, config: object
) -> None:
    table = f"**{title}**\n\n| {cell} |\n|---|\n| {cell} |\n"
    record = json.dumps({"command": value, "config": config})
    folder = folder_of(
        tmp_path_factory.mktemp("any"),
        {"README.md": f"# {title}\n\n{cell}", "table.md": table.encode("utf-8", "replace"), "config.json": record},
    )
    page = render_page(folder)
    shown = UNSHOWABLE.sub("\ufffd", value).replace("\r\n", "\n").replace("\r", "\n")
    read = check(page).text.replace("\r\n", "\n").replace("\r", "\n")
    assert shown in read
    assert not page.problems
    assert page == render_page(folder)


def test_what_links_bring_in_from_outside_is_not_shown(tmp_path: Path) -> None:
    """Files, folders of runs, and the folder itself may be links; what is shown is in the folder."""
    files = {"a.md": "secret", "a.png": png(9, 9), "runs/r.json": finished_run().to_json()}
    secret = folder_of(tmp_path / "elsewhere", files | {"config.json": '{"command": "secret"}'})
    folder = folder_of(tmp_path / "results", {"README.md": "![x](a.png)\n", "own.md": "own text", "own.png": png()})
    for name in ("a.md", "a.png", "config.json", "runs"):
        (folder / name).symlink_to(secret / name)
    (folder / "same.md").symlink_to("own.md")
    (folder / "results.json").symlink_to("../elsewhere/config.json")
    (tmp_path / "link").symlink_to(folder)
    page = render_page(tmp_path / "link")
    reader = check(page)
    outside = "a link to a file outside of the folder"
    assert set(page.problems) == {
        f"{name}: {outside}" for name in ("a.md", "a.png", "config.json", "results.json", "runs/r.json")
    }
    assert "secret" not in page.html
    assert [img["width"] for img in reader.all("img")] == ["3"]
    assert reader.text.count("own text") == 2


def test_text_that_no_file_can_hold(tmp_path: Path) -> None:
    path, page = write_page(folder_of(tmp_path, {"config.json": '{"command": "a\\ud800b\\u0000c"}'}))
    assert "a\ufffdb\ufffdc" in check(page).text
    assert path.read_text(encoding="utf-8") == page.html


def test_the_checks_find_what_is_wrong(tmp_path: Path) -> None:
    page = render_page(folder_of(tmp_path, {"table.md": "text"}))
    for old, new in (
        ("text", "<p>"),
        ("text", '<a href="#gone"></a>'),
        ("text", '<i id="table.md"></i>'),
        ("text", '<img src="x.png" alt="x">'),
        ("text", "<script></script>"),
    ):
        assert old in page.html
        with pytest.raises(AssertionError):
            check(replace(page, html=page.html.replace(old, new)))
