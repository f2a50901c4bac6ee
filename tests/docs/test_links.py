"""The walk through the built site finds links that lead nowhere, and no others."""

from pathlib import Path

from scripts import script

links = script("links")


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "guide").mkdir()
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "index.html").write_text(
        '<h1 id="top"></h1><a href="guide/">1</a> <a href="guide/#here">2</a> <a href="#top">3</a> <img src="a.png">'
        '<a href="https://example.org/x">4</a> <a href="mailto:a@example.org">5</a> <a href="guide/#gone">6</a>'
        '<a href="guide.md">7</a> <img src="b.png">',
        encoding="utf-8",
    )
    (tmp_path / "guide" / "index.html").write_text(
        '<p id="here"></p><a href="..">1</a> <a href="../index.html#nowhere">2</a> <a href="/guide/#here">3</a>',
        encoding="utf-8",
    )
    assert links.broken(tmp_path) == [
        "guide/index.html: ../index.html#nowhere",
        "index.html: guide/#gone",
        "index.html: guide.md",
        "index.html: b.png",
    ]
