"""Every command line on every page, and in the help of every command, is one that the application takes."""

import re
from pathlib import Path

import pytest
import typer
from commands import check, command_lines, leaves

from nfn_monomial.tools.cli.application import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += [page for folder in ("docs", "benchmarks") for page in sorted((ROOT / folder).rglob("*.md"))]
PAGES = [page for page in PAGES if "frozen" not in page.parts]  # of commands that there were

COMMANDS = dict(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_command_lines_on_pages(page: Path) -> None:
    """But for those that tables were made with, by versions that had them."""
    text = re.sub("<!-- made -->.*<!-- end of made -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for line in command_lines(text):
        check(line)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_command_lines_in_help(path: tuple[str, ...]) -> None:
    text = COMMANDS[path].help or ""
    lines = command_lines(text)
    assert len(lines) == text.count("`nfn-monomial ") + text.count("`torchrun")
    for line in lines:
        check(line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nfn-monomial predict", "Usage: nfn-monomial"),
        ("nfn-monomial ablation --epochs 3", "Usage: nfn-monomial"),
        ("OMP_NUM_THREADS=1 nfn-monomial ablation --seeds none  # with a comment", "Usage: nfn-monomial"),
        ("nfn-monomial zoo make && nfn-monomial edit-inr --task contrast", "Usage: nfn-monomial"),
        ("torchrun --nproc-per-node 2 -m nfn_monomial.benchmarks ablation --seeds 0", "Usage: nfn-monomial"),
        ("nfn-monomial predict-generalization --set widn=2", "widn"),
        ("nfn-monomial predict-generalization --set widen=0.5", "widen"),
        ("nfn-monomial predict-generalization --set training.epochs=none", "training.epochs"),
        ("nfn-monomial predict-generalization --set widen", "widen"),
    ],
)
def test_what_the_application_does_not_take_is_found(line: str, message: str) -> None:
    assert command_lines(f"```sh\n{line}\n```") == [line]
    with pytest.raises(ValueError, match=message):
        check(line)


def test_lines_of_a_text() -> None:
    text = """Use `nfn-monomial params`, and `nfn-monomial COMMAND --help` for more:

```sh
cd somewhere
$ nfn-monomial inr make \\
    --images crops    # colours
nfn-monomial --version
```

```python
# nfn-monomial nothing
```
"""
    lines = command_lines(text)
    assert [line.split() for line in lines] == [
        ["$", "nfn-monomial", "inr", "make", "--images", "crops", "#", "colours"],
        ["nfn-monomial", "--version"],
        ["nfn-monomial", "params"],
    ]
    for line in lines:
        check(line)
