"""Pages that the site makes of files outside ``docs/``: the first page of README.md, one of every results folder, and
one of all frozen ones, whose code has left the package.

Such files are linked on the pages by their place in the repository (``../benchmarks/results/NAME/README.md``),
so that the pages read as well there.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from tables import FROZEN, experiment

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
RESULT_FILES = ("benchmarks/results/*.md", "benchmarks/results/*.toml", "benchmarks/results/**/*.png")
SHOWN = (
    *("demo", "zoos", "zoos-5000", "zoos-paper", "tune"),
    *("classify-inr-long", "edit-dilate", "ratios"),
)
OUTSIDE = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md", *RESULT_FILES)


def experiments() -> list[Path]:
    """Folders of results that have a page."""
    return sorted(path.parent for path in RESULTS.glob("*/README.md") if path.parent != ROOT / FROZEN)


def frozen() -> str:
    """The page of all frozen folders: their index, then a section each, which is linked by the folder's name."""
    index = (ROOT / FROZEN / "README.md").read_text(encoding="utf-8")
    sections = [re.sub(r"\]\(([\w-]+)/README\.md", r"](#\1", index)]
    for folder in sorted(path.parent for path in (ROOT / FROZEN).glob("*/README.md")):
        text = re.sub(r"^#", "##", experiment(folder), flags=re.MULTILINE)
        title, _, rest = text.partition("\n")
        rest = re.sub(r"\]\(\.\./([\w-]+)/(?:README|table)\.md", r"](#\1", rest)
        rest = re.sub(r"\]\(\.\./\.\./", "](../", rest)
        rest = re.sub(r"\]\((?=[\w-]+\.png)", f"](../{FROZEN}/{folder.name}/", rest)
        sections.append(f"{title} {{#{folder.name}}}\n{rest}")
    return "\n".join(sections)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Pages of some experiments stand below the results in the navigation; the page of results links all of them."""
    pages = [*(f"results/{name}.md" for name in SHOWN), "results/frozen.md"]
    config.nav = [{"Results": [*entry["Results"], *pages]} if "Results" in entry else entry for entry in config.nav]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Files from outside are on the site at the place that they have in the repository."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text(encoding="utf-8")))
    for folder in experiments():
        files.append(File.generated(config, f"results/{folder.name}.md", content=experiment(folder)))
    files.append(File.generated(config, "results/frozen.md", content=frozen()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links from ``docs/`` to what is outside, and back, as they are on the site."""
    return linked(markdown, page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of tutorials, which are pages of their own making: mkdocs leaves these as they are written."""
    if not page.file.src_uri.endswith(".py"):
        return html

    def on_site(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link["path"]))
        file = files.get_file_from_path(path)
        return link[0] if file is None else f'href="{file.url_relative_to(page.file)}{link["anchor"] or ""}"'

    return re.sub(r'href="(?P<path>[^":#]+\.(?:md|py))(?P<anchor>#[^"]*)?"', on_site, html)


def linked(markdown: str, page: str) -> str:
    """The text of a page with links as they are on the site."""
    folder, _, name = page.rpartition("/")
    if folder == "results":  # written in benchmarks/results/NAME
        markdown = re.sub(r"\]\((?:\.\./){3}docs/", "](../", markdown)
        markdown = re.sub(r"\]\(\.\./frozen/([\w-]+)/(?:README|table)\.md", r"](frozen.md#\1", markdown)
        markdown = re.sub(r"\]\((?:\.\./)?([\w-]+)/(?:README|table)\.md", r"](\1.md", markdown)
        markdown = re.sub(r"\]\((?:README|table)\.md", f"]({name}", markdown)
        markdown = re.sub(r"\]\(\.\./(?=search\.md)", "](../benchmarks/results/", markdown)
        return re.sub(r"\]\((?=[\w-]+\.png)", f"](../benchmarks/results/{name.removesuffix('.md')}/", markdown)
    if folder == "benchmarks/results":  # written beside the folders of results
        markdown = re.sub(r"\]\((?=(?:frozen/)?[\w-]+/(?:README|table)\.md)", "](../../benchmarks/results/", markdown)
    if page in ("index.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):  # written at the top
        markdown = re.sub(r"\]\(docs/", "](", markdown)
    else:
        up = "../" * (1 + page.count("/"))
        markdown = re.sub(
            rf"\]\({re.escape(up)}(?=benchmarks/|CHANGELOG|CONTRIBUTING|SECURITY)", f"]({up[3:]}", markdown
        )
    markdown = re.sub(rf"\]\(((?:\.\./)*){FROZEN}/([\w-]+)/(?:README|table)\.md", r"](\1results/frozen.md#\2", markdown)
    return re.sub(r"\]\(((?:\.\./)*)benchmarks/results/([\w-]+)/(?:README|table)\.md", r"](\1results/\2.md", markdown)
