"""Tutorials run from top to bottom; those on the site, which train as long as they say, when it is built."""

import re
import runpy
from pathlib import Path

import pytest
from commands import check, command_lines

TUTORIALS = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.py"))


@pytest.mark.slow  # building the site runs them, too
@pytest.mark.parametrize("path", TUTORIALS, ids=[path.stem for path in TUTORIALS])
def test_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    short = tmp_path / path.name
    short.write_text(re.sub(r"for _ in range\(.*\):", "for _ in range(2):", path.read_text(encoding="utf-8")))
    runpy.run_path(str(short))
    said = capsys.readouterr()
    assert said.out
    assert not re.search(r"\bnan\b", said.out)


@pytest.mark.parametrize("path", TUTORIALS, ids=[path.stem for path in TUTORIALS])
def test_links_and_commands(path: Path) -> None:
    text = re.sub(r"^# ?", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert text.startswith("%% [markdown]\n# ")
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (path.parent / link).exists(), link
    for line in command_lines(text):
        check(line)
