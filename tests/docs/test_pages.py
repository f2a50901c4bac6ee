"""All pages: their Python runs as printed, their commands exist, and so do the files they show or link."""

import re
import shlex
import textwrap
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from nfn_monomial.trace.operators.table import OPERATORS

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
# Code that makes zoos is run by tests/benchmarks/test_extending.py, files to be added by test_contributing.py, and the
# README, whose commands need its file, by test_readme.py.
ELSEWHERE = {"docs/extending.md", "CONTRIBUTING.md", "README.md"}
TEXTS = {name: page.read_text(encoding="utf-8") for name, page in zip(NAMES, PAGES, strict=True)}


def blocks(text: str, language: str) -> list[str]:
    """The blocks of a page in one language, those in lists without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", text, flags=re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(code) for _, code in found]


CODE = [
    (name, i, code) for name in NAMES if name not in ELSEWHERE for i, code in enumerate(blocks(TEXTS[name], "python"))
]
COMMANDS = sorted(
    {
        (name, line.split("#")[0].strip())
        for name, text in TEXTS.items()
        for block in blocks(text, "sh")
        for line in block.splitlines()
        if name != "README.md" and "nfn-monomial" not in line and "torchrun" not in line
    }
)


@pytest.mark.parametrize(("name", "number", "code"), CODE, ids=[f"{name}-{number}" for name, number, _ in CODE])
def test_python_runs_as_printed(name: str, number: int, code: str) -> None:
    torch.manual_seed(0)
    block = f"{name}, block {number}"
    with patch.dict(OPERATORS):  # a page registers one
        exec(compile(code, block, "exec", dont_inherit=True), {"__name__": block})


@pytest.mark.parametrize(("name", "line"), COMMANDS, ids=[line for _, line in COMMANDS])
def test_commands_exist(name: str, line: str) -> None:
    """All but those of ours, which `tests/test_commands.py` looks at, and those of the README, which are run."""
    for command in line.split(" && "):
        program, *arguments = shlex.split(command)
        if program == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert set(arguments) <= set(targets)
        elif program.startswith(".venv/bin/"):
            paths = [a for a in arguments if "/" in a and not a.startswith(".venv")]
            assert not [path for path in paths if not (ROOT / path).exists()]
        else:
            assert (program, arguments[0]) == ("pip", "install")


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", TEXTS[name])
    missing = [link for link in links if not (ROOT / name).parent.joinpath(link).exists()]
    assert not missing
