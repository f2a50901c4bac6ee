"""What the site takes from outside ``docs/``: committed results with their readings, the changelog, how to contribute.

On the pages themselves such files are linked by their place in the repository (``../benchmarks/results/...``), so that
the pages read as well there.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/results/**/*.md", "benchmarks/results/**/*.png")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Files from outside are on the site at the place that they have in the repository."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links from ``docs/`` to what is outside, and back, as they are on the site."""
    return linked(markdown, page.file.src_uri)


def linked(markdown: str, page: str) -> str:
    """The text of a page with links as they are on the site."""
    if page in ("CHANGELOG.md", "CONTRIBUTING.md"):
        return re.sub(r"\]\(docs/", "](", markdown)
    return re.sub(r"\]\(\.\./(?=benchmarks/|CHANGELOG|CONTRIBUTING)", "](", markdown)
