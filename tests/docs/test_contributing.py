"""What CONTRIBUTING says is enough: the files that it shows are added where it says, and their tests pass."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = {
    title: {
        code.splitlines()[0].removeprefix("# "): code
        for _, block in re.findall(r"^( *)```python\n(.*?)^\1```$", text, flags=re.DOTALL | re.MULTILINE)
        if (code := textwrap.dedent(block)).startswith("# ")
    }
    for title, text in re.findall(r"^## (Add [^\n]+)\n(.*?)(?=^## )", PAGE, flags=re.DOTALL | re.MULTILINE)
}


def test_there_is_a_section_for_each() -> None:
    assert {"Add a layer", "Add an operator's rule", "Add a format of data"} <= set(SECTIONS)


@pytest.mark.parametrize("title", [title for title, files in SECTIONS.items() if files])
def test_the_files_of_a_section_are_all_that_it_takes(title: str, tmp_path: Path) -> None:
    tree = tmp_path / "nfn_monomial"  # the packages as one, as they are installed, with new files beside links
    links = {
        tree: ROOT / "nfn_monomial",
        tree / "adapters": ROOT / "adapters",
        tree / "benchmarks": ROOT / "benchmarks",
    }
    for new in SECTIONS[title]:
        if not new.startswith("tests/"):
            folder = Path(new).parent
            while folder != Path():
                links[tmp_path / folder if folder.parts[0] == "nfn_monomial" else tree / folder] = ROOT / folder
                folder = folder.parent
    for folder, source in links.items():
        folder.mkdir(parents=True, exist_ok=True)
        for entry in source.iterdir():
            if folder / entry.name not in links and entry.name != "__pycache__":
                (folder / entry.name).symlink_to(entry)
    for name, code in SECTIONS[title].items():
        inside = name if name.startswith(("nfn_monomial/", "tests/")) else f"nfn_monomial/{name}"
        (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / inside).write_text(code, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", "tests"],
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
