"""Follows every link of the built site: ``python docs/links.py FOLDER`` prints those that lead nowhere, anchors too."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag


class Page(HTMLParser):
    """The links of a page, and the places that links may lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects them."""
        given = {name: value for name, value in attrs if value}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        self.links += [given[name] for name in ("href", "src") if name in given and tag != "link"]


def broken(site: Path) -> list[str]:
    """Returns the links inside of a site that lead nowhere, as ``page: link``."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in page.links:
            address, anchor = urldefrag(unquote(link))
            if ":" in address.split("/")[0] or address.startswith("//"):
                continue  # of another site
            target = path
            if address:
                target = (site / address[1:] if address.startswith("/") else path.parent / address).resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].places):
                found.append(f"{path.relative_to(site.resolve())}: {link}")
    return found


if __name__ == "__main__":
    lines = broken(Path(sys.argv[1]))
    sys.exit("\n".join(["links that lead nowhere:", *lines]) if lines else 0)
