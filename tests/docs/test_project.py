"""What stands in two places is the same in both: versions, pages, names."""

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from scripts import hook

import nfn_monomial

ROOT = Path(__file__).parents[2]
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().splitlines()
PINNED = dict(line.split("==") for line in CONSTRAINTS if "==" in line)
MODULES = (
    "space", "basis", "nn", "canonical", "read", "models", "report", "trace", "verify", "alignment", "fibre", "errors",
    "testing",
)  # fmt: skip


def read_yaml(path: Path) -> Any:
    return pytest.importorskip("yaml").safe_load(path.read_text(encoding="utf-8"))


def test_hooks_have_the_pinned_versions() -> None:
    settings = read_yaml(ROOT / ".pre-commit-config.yaml")
    required = [r for repo in settings["repos"] for hook in repo["hooks"] for r in hook["additional_dependencies"]]
    assert {r.split("==")[0] for r in required} == {"ruff", "mypy"}
    assert not [r for r in required if r.split("==")[1] != PINNED[r.split("==")[0]]]


def test_what_builds_the_pages_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.match(r"[\w-]+", requirement)[0] for requirement in project["optional-dependencies"]["docs"]]
    assert not [name for name in names if name not in PINNED]


def test_the_citation_is_of_this_version() -> None:
    assert read_yaml(ROOT / "CITATION.cff")["version"] == nfn_monomial.__version__


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1].split("\n\n")[0]
    folder = ROOT / "docs"
    pages = {page.relative_to(folder).as_posix() for page in (*folder.rglob("*.md"), *folder.glob("tutorials/*.py"))}
    outside = {"index.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
    assert set(re.findall(r"[\w/-]+\.(?:md|py)", navigation)) == pages | outside


def test_the_api_has_every_room_and_every_name_at_the_top() -> None:
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md")}
    assert not [name for name in MODULES if f"::: nfn_monomial.{name}\n" not in pages[name]]
    assert not [name for name in nfn_monomial.__all__ if f"[`{name}`][nfn_monomial." not in pages["index"]]
    for name in re.findall(r"^::: (\S+)", "\n".join(pages.values()), flags=re.MULTILINE):
        module, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), attribute), name


def test_rooms_of_the_core_have_pages() -> None:
    rooms = {path.parent.name for path in (ROOT / "nfn_monomial").glob("*/__init__.py")}
    assert rooms - {"tools"} == set(MODULES) - {"errors", "testing"}


def test_tests_are_collected_without_what_builds_the_pages(modules_of_collection: set[str]) -> None:
    assert not {"mkdocs", "griffe"} & modules_of_collection


@pytest.mark.parametrize(
    ("page", "written", "on_the_site"),
    [
        ("results.md", "[a](../benchmarks/results/search.md)", "[a](benchmarks/results/search.md)"),
        ("results.md", "[a](../benchmarks/results/demo/table.md)", "[a](results/demo.md)"),
        ("index.md", "[a](CONTRIBUTING.md) [b](docs/guide.md#c)", "[a](CONTRIBUTING.md) [b](guide.md#c)"),
        ("index.md", "![a](benchmarks/results/a/a.png)", "![a](benchmarks/results/a/a.png)"),
        ("guide.md", "[a](../CONTRIBUTING.md) [b](inrs.md)", "[a](CONTRIBUTING.md) [b](inrs.md)"),
        ("tutorials/a.py", "[a](../../benchmarks/results/demo/README.md)", "[a](../results/demo.md)"),
        ("results/demo.md", "[a](table.md#b) [c](../tune/README.md)", "[a](demo.md#b) [c](tune.md)"),
        ("results/demo.md", "![a](a.png) [b](../search.md)",
         "![a](../benchmarks/results/demo/a.png) [b](../benchmarks/results/search.md)"),
        ("benchmarks/results/search.md", "[a](tune/README.md) [b](frozen/merge/README.md)",
         "[a](../../results/tune.md) [b](../../results/frozen.md#merge)"),
        ("results.md", "[a](../benchmarks/results/frozen/merge/README.md)", "[a](results/frozen.md#merge)"),
        ("results/frozen.md", "[a](#merge) [b](../demo/README.md)", "[a](#merge) [b](demo.md)"),
        ("results/demo.md", "[a](../frozen/merge/README.md) [b](../frozen/README.md)",
         "[a](frozen.md#merge) [b](frozen.md)"),
        ("results/frozen.md", "[a](../../../docs/experiments.md#verdicts)", "[a](../experiments.md#verdicts)"),
        ("results.md", "[a](../benchmarks/results/frozen/README.md)", "[a](results/frozen.md)"),
        ("index.md", "[a](benchmarks/results/frozen/README.md)", "[a](results/frozen.md)"),
        ("benchmarks/results/search.md", "[a](frozen/README.md)", "[a](../../results/frozen.md)"),
        ("CONTRIBUTING.md", "[a](docs/extending.md)", "[a](extending.md)"),
        ("SECURITY.md", "[a](docs/limits.md#files-from-elsewhere)", "[a](limits.md#files-from-elsewhere)"),
        ("limits.md", "[a](../SECURITY.md)", "[a](SECURITY.md)"),
    ],
)  # fmt: skip
def test_links_on_the_site(page: str, written: str, on_the_site: str) -> None:
    assert hook("hooks").linked(written, page) == on_the_site


def test_examples_and_tables_of_docstrings_are_code() -> None:
    text = "First line.\n\n  >>> 1 + 1\n  2\n\nBetween.\n\n=== ===\na   b\n=== ==="
    assert hook("docstrings").fenced(text) == (
        "First line.\n\n  ```pycon\n  >>> 1 + 1\n  2\n  ```\n\nBetween.\n\n```text\n=== ===\na   b\n=== ===\n```"
    )
    assert hook("docstrings").fenced("No example: a >>> b.") == "No example: a >>> b."
