"""Tables on pages are those of the folder that each of them names, and those are what the folder's numbers say."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from scripts import hook, script

tables = script("tables")
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
SHOWING = ("README.md", "docs/results.md")
FROZEN = sorted(path.name for path in (ROOT / tables.FROZEN).iterdir() if path.is_dir())
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *RESULTS.glob("*/README.md"))
)
DECIMAL = r"([-+]?\d+\.\d+)"
ERROR = re.compile(rf"{DECIMAL} ±{DECIMAL}")
BOUNDS = re.compile(rf"{DECIMAL} to {DECIMAL}")
INTERVAL = re.compile(rf"{DECIMAL} \({BOUNDS.pattern}\b")
COMMIT = re.compile(r"\b[0-9a-f]{7}\b")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e-?\d+)?")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SHOWING)
def test_tables_are_those_of_their_folders(name: str) -> None:
    page = ROOT / name
    assert page in tables.PAGES
    assert tables.filled(read(name), page) == read(name), "run: python docs/tables.py"


def test_every_folder_has_a_page() -> None:
    hooks = hook("hooks")
    assert {path.parent for path in RESULTS.glob("*/table.md")} <= set(hooks.experiments())
    for folder in hooks.experiments():
        page = tables.experiment(folder)
        assert page.startswith("# ")
        assert "**Reading.**" in page


def test_frozen_folders_have_a_section_each_that_says_which_commit_has_the_code() -> None:
    parts = re.split(r"^## (.*) \{#([\w-]+)\}$", hook("hooks").frozen(), flags=re.MULTILINE)
    assert parts[2::3] == FROZEN
    assert sorted(re.findall(r"^- \[.*\]\(#([\w-]+)\)", parts[0], re.MULTILINE)) == FROZEN
    for text in parts[3::3]:
        assert re.search(r"^Frozen: commit [0-9a-f]{7} is the last that has the (?:code|command)", text, re.MULTILINE)
        assert "**Reading.**" in text
        for name in re.findall(r"\]\(#([\w-]+)", text):
            assert name in FROZEN
        for path in re.findall(r"\]\(\.\./(benchmarks/[\w/.-]+)", text):
            assert (ROOT / path).exists()


def test_the_index_of_frozen_folders_has_each_once_with_its_title_commits_and_numbers() -> None:
    index = read(f"{tables.FROZEN}/README.md")
    entries = re.findall(r"^- \[(.*)\]\(([\w-]+)/README\.md\): (.*(?:\n  .*)*)", index, re.MULTILINE)
    assert sorted(folder for _, folder, _ in entries) == FROZEN
    assert sorted(re.findall(r"\]\(([\w-]+)/", index)) == FROZEN, "not linked elsewhere"
    for title, folder, found in entries:
        page, table = (read(f"{tables.FROZEN}/{folder}/{name}.md") for name in ("README", "table"))
        assert page.startswith(f"# {title}\n")
        (first,) = re.findall(r"^Frozen: .*", page, re.MULTILINE)
        assert set(COMMIT.findall(found)) == set(COMMIT.findall(first)), folder
        numbers = set(NUMBER.findall(COMMIT.sub("", found)))
        assert numbers, folder
        assert numbers <= set(NUMBER.findall(page + table)), folder


@pytest.mark.parametrize("name", SHOWING)
def test_numbers_stand_in_such_tables_only(name: str) -> None:
    rest = tables.SCORECARD.sub("", tables.NUMBERS.sub("", tables.BLOCK.sub("", read(name))))
    assert not re.findall(r"^\|.*\d\.\d.*\|$", rest, flags=re.MULTILINE)


def agree(words: Sequence[str], values: Sequence[str]) -> bool:
    """Whether numbers are those of a table but for rounding."""
    digits = [min(len(number.partition(".")[2]) for number in pair) for pair in zip(words, values, strict=True)]
    pairs = zip(map(float, words), map(float, values), digits, strict=True)
    return all(abs(word - value) <= 0.501 * 10.0**-places for word, value, places in pairs)


def turned(number: str) -> str:
    return number[1:] if number.startswith("-") else f"-{number.removeprefix('+')}"


@pytest.mark.parametrize("name", [name for name in PAGES if ERROR.search(read(name)) or INTERVAL.search(read(name))])
def test_errors_and_intervals_in_words_are_those_of_a_table_of_the_page(name: str) -> None:
    """Of the page's own folder, or of one that it links; what is so far behind is the other so far ahead."""
    page, text = ROOT / name, " ".join(read(name).split())
    linked = [page.parent / link for link in re.findall(r"\]\(([^)#:]+/)(?:README|table)\.md", text)]
    paths = [folder / "table.md" for folder in (page.parent, *linked)]
    told = " ".join(path.read_text(encoding="utf-8") for path in paths if path.exists())
    errors, ahead = set(ERROR.findall(told)), set(INTERVAL.findall(told))
    intervals = ahead | {(turned(middle), turned(high), turned(low)) for middle, low, high in ahead}
    bounds = {(low, high) for _, low, high in intervals}
    for words, known in ((ERROR.findall(text), errors), (INTERVAL.findall(text), intervals)):
        for numbers in words:
            assert any(agree(numbers, values) for values in known), numbers
    for bracket in re.findall(r"\(([^()]*)\)", text):
        for numbers in BOUNDS.findall(bracket):
            assert any(agree(numbers, values) for values in bounds), bracket


TABLE = """**One**

| model | tau | seeds |
| --- | ---: | ---: |
| **A** | 0.1 ±0.2 | 2 |
| B | - | 2 |

Mean ± standard error over seeds.

**Two**

| model | tau | seeds |
| --- | ---: | ---: |
| A | 0.3 | 1 |
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    (tmp_path / "table.md").write_text(TABLE, encoding="utf-8")
    return tmp_path


def shown(folder: Path, **wishes: str) -> list[str]:
    text: str = tables.shown({"from": "table.md", **wishes}, folder / "page.md")
    return [line for line in text.splitlines() if line]


SMALL = "<small>From [table.md](table.md): {}.</small>"


def test_what_a_comment_asks_for(folder: Path) -> None:
    assert shown(folder, rows="B; A", columns="model; as it is = tau") == [
        "| model | as it is |", "| --- | ---: |", "| B | - |", "| **A** | 0.1 ±0.2 |",
        SMALL.format("mean ± standard error over 2 seeds"),
    ]  # fmt: skip
    assert shown(folder, where="model = B", columns="tau")[2:] == ["| - |", SMALL.format("mean over 2 seeds")]
    assert shown(folder, of="Two")[2:] == ["| A | 0.3 | 1 |", SMALL.format("one seed")]
    text = TABLE.replace("error over seeds", "error over pairs").replace("| seeds |", "| pairs |")
    (folder / "table.md").write_text(text, encoding="utf-8")
    assert shown(folder)[-1] == SMALL.format("mean ± standard error over 2 pairs")


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"of": "Three"}, "no table under a line with 'Three'"),
        ({"rows": "A; C"}, "not one line of C; it has A, B"),
        ({"columns": "model; R2"}, "not one column 'R2'; it has model, tau, seeds"),
        ({"where": "model = C"}, "no line where model = C"),
        ({}, "does not say what ± means"),
    ],
)
def test_what_is_not_there_is_named(wishes: dict[str, str], message: str, folder: Path) -> None:
    if not wishes:
        (folder / "table.md").write_text(TABLE.replace("Mean ± standard error", "Something"), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        shown(folder, **wishes)
    with pytest.raises(ValueError, match="comment has form"):
        tables.asked("form: table.md")


CLAIMS = """**Claims of the paper**

| of | claim | verdict | paper | why |
| --- | --- | --- | --- | --- |
| relu networks | A is above B | {verdict} | Table 1 | {why} |
| relu networks | A is above C | cannot be told | Table 1 | not measured: C |
"""


def test_numbers_and_claims_are_gathered_from_all_folders(folder: Path) -> None:
    said = {
        "a": ("holds", "difference +0.1 (+0.0 to +0.2)"),
        "b": ("does not hold", "difference -0.2 (-0.3 to -0.1)"),
        "c": ("holds", "difference +0.3, one seed"),
        "d": ("not comparable", "9 steps; the paper has 10"),
    }
    for name, (verdict, why) in said.items():
        (folder / tables.RESULTS / name).mkdir(parents=True)
        text = TABLE + "\n" + CLAIMS.format(verdict=verdict, why=why)
        (folder / tables.RESULTS / name / "table.md").write_text(text, encoding="utf-8")
    a, b, c, d = (f"[{name}](benchmarks/results/{name}/README.md)" for name in said)
    assert tables.scorecard(folder / "page.md").split("\n")[3:-2] == [
        f"| relu: A is above B | Table 1 | holds: {a} +0.1 (+0.0 to +0.2), {c} +0.3, one seed; does not hold: {b} -0.2 "
        f"(-0.3 to -0.1); not comparable: {d} |"
    ]
    text = tables.numbers("what; one; two; three\nfirst; a; One; tau; A; -; B\n", folder / "page.md")
    assert text.split("\n")[3:-2] == ["| [first](benchmarks/results/a/README.md) | A 0.1 ±0.2 | - | B - |"]


@pytest.mark.parametrize(
    ("command", "commits", "words"),
    [
        ("nfn-monomial demo", ["0123456789+", "abcdef0123"], "`nfn-monomial demo`; commit 0123456+ and abcdef0,"),
        (None, [None], "a command that was not recorded; commit not recorded,"),
    ],
)
def test_what_made_a_folder_is_what_was_recorded(
    command: str | None, commits: list[str | None], words: str, tmp_path: Path
) -> None:
    said = {"command": command, "commits": commits, "version": "0.1.0", "date": "2026-11-22"}
    (tmp_path / "made.json").write_text(json.dumps(said), encoding="utf-8")
    assert tables.made(tmp_path) == f"Made by {words} version 0.1.0, 2026-11-22."


def test_a_page_says_how_its_folder_is_made_again() -> None:
    assert "`make results ONLY=params` makes it again" in tables.experiment(RESULTS / "params")
    assert "makes it again" not in tables.experiment(ROOT / tables.FROZEN / FROZEN[0])


def test_spread_is_the_same_everywhere() -> None:
    texts = [path.read_text(encoding="utf-8") for path in RESULTS.rglob("*.md")]
    assert {name for text in texts for name in re.findall(r"± (?:is the )?(standard \w+)", text)} == {"standard error"}
