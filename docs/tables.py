"""Numbers of committed results on pages: ``python docs/tables.py`` copies them from the folder that each of them names.

A page says what it shows, and the script writes what stands between the comments:

    <!-- table
    from: benchmarks/results/zoos/table.md
    of: test networks as they are
    where: invariant = yes
    rows: Monomial-NFN; statistics + Gram matrices
    columns: model; tau = mean; rank
    -->
    <!-- end of table -->

``of`` is part of the line above the table in that file (the first table without it), ``where`` keeps lines with that
cell, ``rows`` lines by their first cell, in this order, ``columns`` their cells; with ``=``, under a name of the page's
own. Cells are copied as they are, never counted anew. Below the table its file is named, and what ± means in it.

    <!-- numbers
    networks; baseline; ours
    three kinds of networks; kinds; mixed networks; tau original; STATNN (set); invariant statistics (set)
    -->
    <!-- end of numbers -->

makes a line of each experiment: its name on the page, its folder, its table, a column, and under each further heading
the line of that table whose cell is shown (``-`` for none). ``<!-- scorecard -->`` gathers the claims of the paper from
all folders. `experiment` is the page of one folder, which the site has and the repository need not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
RESULTS = Path("benchmarks/results")
FROZEN = RESULTS / "frozen"  # folders whose code has left the package
BLOCK = re.compile(r"(<!-- table\n(.*?)-->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
NUMBERS = re.compile(r"(<!-- numbers\n(.*?)-->\n)(.*?)(<!-- end of numbers -->)", re.DOTALL)
SCORECARD = re.compile(r"(<!-- scorecard -->\n)(.*?)(<!-- end of scorecard -->)", re.DOTALL)
VERDICTS = ("holds", "does not hold", "cannot be told", "not comparable")


@dataclass(frozen=True)
class Table:
    """A table of a results folder, with the text above it and below it."""

    above: str
    header: tuple[str, ...]
    rule: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    below: str


def read_tables(text: str) -> list[Table]:
    """All tables of a Markdown text."""
    found = []
    parts = re.split(r"((?:^\|.*\n?)+)", text, flags=re.MULTILINE)
    for above, lines, below in zip(parts[::2], parts[1::2], parts[2::2], strict=False):
        header, rule, *rows = (tuple(map(str.strip, line.strip()[1:-1].split("|"))) for line in lines.splitlines())
        found.append(Table((above.strip().splitlines() or [""])[-1], header, rule, tuple(rows), below))
    return found


def plain(cell: str) -> str:
    """A cell without what makes it bold."""
    return cell.strip("*")


def asked(comment: str) -> dict[str, str]:
    """What a page asks for."""
    wishes = dict(line.split(":", 1) for line in comment.strip().splitlines())
    if unknown := set(wishes) - {"from", "of", "where", "rows", "columns"}:
        raise ValueError(f"a table's comment has {', '.join(sorted(unknown))}; see docs/tables.py for what it may have")
    return {name: value.strip() for name, value in wishes.items()}


def table_of(wishes: dict[str, str]) -> Table:
    """The lines and columns that are asked for.

    Raises:
        ValueError: if the file has no such table, line or column.
    """
    source = wishes["from"]
    of = wishes.get("of", "")
    matching = [t for t in read_tables((ROOT / source).read_text(encoding="utf-8")) if of in t.above]
    if not matching:
        raise ValueError(f"{source} has no table under a line with {of!r}")
    table = matching[0]
    rows: Sequence[tuple[str, ...]] = table.rows
    for condition in filter(None, wishes.get("where", "").split("; ")):
        name, value = condition.split(" = ")
        rows = [row for row in rows if row[_column(table, name, source)] == value]
    if "rows" in wishes:
        labels = [plain(row[0]) for row in rows]
        if missing := [name for name in wishes["rows"].split("; ") if labels.count(name) != 1]:
            raise ValueError(f"{source} has not one line of {', '.join(missing)}; it has {', '.join(labels)}")
        rows = [rows[labels.index(name)] for name in wishes["rows"].split("; ")]
    if not rows:
        raise ValueError(f"{source} has no line where {wishes.get('where')}")
    places, header = list(range(len(table.header))), table.header
    if "columns" in wishes:
        chosen = [name.split(" = ") for name in wishes["columns"].split("; ")]
        places = [_column(table, names[-1], source) for names in chosen]
        header = tuple(names[0] for names in chosen)
    kept = tuple(tuple(row[i] for i in places) for row in rows)
    return Table(_number(table, rows), header, tuple(table.rule[i] for i in places), kept, table.below)


def _column(table: Table, name: str, source: str) -> int:
    if table.header.count(name) != 1:
        raise ValueError(f"{source} has not one column {name!r}; it has {', '.join(table.header)}")
    return table.header.index(name)


def _number(table: Table, rows: Sequence[tuple[str, ...]]) -> str:
    """How many seeds or pairs the means of these lines are of; empty where that is not said."""
    unit = _unit(table.below)
    if unit not in table.header:
        return ""
    return "/".join(sorted({row[table.header.index(unit)] for row in rows} - {"-"}))


def _unit(below: str) -> str:
    """Over what means are taken: seeds, where nothing else is said."""
    found = re.search(r"± standard error over (pairs|groups)", below)
    return found[1] if found else "seeds"


def shown(wishes: dict[str, str], page: Path) -> str:
    """The table as the page has it, with its source."""
    table = table_of(wishes)
    lines = ["| " + " | ".join(cells) + " |" for cells in (table.header, table.rule, *table.rows)]
    link = Path(os.path.relpath(ROOT / wishes["from"], page.parent)).as_posix()
    source = f"From [{wishes['from'].removeprefix('benchmarks/')}]({link})"
    spread = any("±" in cell for row in table.rows for cell in row)
    if spread and "±" not in table.below:
        raise ValueError(f"{wishes['from']} does not say what ± means")
    if spread and "ean ± standard error" in table.below:  # not the paper's alone, which stands beside one seed of ours
        source += f": mean ± standard error over {table.above} {_unit(table.below)}".rstrip()
    elif table.above:
        source += ": one seed" if table.above == "1" else f": mean over {table.above} seeds"
    return "\n".join(["", *lines, "", f"<small>{source}.</small>", ""]) + "\n"


def numbers(wishes: str, page: Path) -> str:
    """A line of each experiment that is asked for, with one number of each kind of model."""
    header, *lines = (line.split("; ") for line in wishes.strip().splitlines())
    made = []
    for name, folder, of, column, *models in lines:
        cells = []
        for model in models:
            wish = {"from": f"{RESULTS}/{folder}/table.md", "of": of, "rows": model, "columns": column}
            cells.append("-" if model == "-" else f"{model} {table_of(wish).rows[0][0]}")
        made.append((f"[{name}]({_link(folder, page)})", *cells))
    return _written((tuple(header), ("---",) * len(header), *made))


def scorecard(page: Path) -> str:
    """The claims of the paper that were measured: what each folder says of them, and the difference that it saw."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for path in sorted((ROOT / RESULTS).glob("*/table.md")):
        for table in read_tables(path.read_text(encoding="utf-8")):
            for row in table.rows if "Claims of the paper" in table.above else ():
                cells = dict(zip(table.header, row, strict=True))
                if not cells["why"].startswith("not measured"):
                    key = f"{cells['of'].split()[0].lower()}: {cells['claim']}", cells["paper"]
                    seen = f"[{path.parent.name}]({_link(path.parent.name, page)})"
                    difference = re.search(r"^difference( \S.*)", cells["why"])
                    found.setdefault(key, {}).setdefault(cells["verdict"], []).append(
                        seen + difference[1] if difference else seen
                    )
    lines = [
        (*key, "; ".join(f"{verdict}: {', '.join(said[verdict])}" for verdict in VERDICTS if verdict in said))
        for key, said in sorted(found.items())
    ]
    return _written((("claim", "paper", "here"), ("---",) * 3, *lines))


def _written(rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join(["", *("| " + " | ".join(cells) + " |" for cells in rows), "", ""])


def _link(folder: str, page: Path) -> str:
    return Path(os.path.relpath(ROOT / RESULTS / folder / "README.md", page.parent)).as_posix()


def filled(text: str, page: Path) -> str:
    """The text of a page with its numbers as they are in the results folders."""
    text = BLOCK.sub(lambda m: m[1] + shown(asked(m[2]), page) + m[4], text)
    text = NUMBERS.sub(lambda m: m[1] + numbers(m[2], page) + m[4], text)
    return SCORECARD.sub(lambda m: m[1] + scorecard(page) + m[3], text)


def experiment(folder: Path) -> str:
    """The page of a results folder: what made it, its reading, its figures, its tables."""
    title, _, reading = (folder / "README.md").read_text(encoding="utf-8").partition("\n")
    figures = [f"![{path.stem}]({path.name})" for path in sorted(folder.glob("*.png"))]
    parts = [title, made(folder), again(folder.name), reading.strip(), *figures]
    if (folder / "table.md").exists():
        parts += ["## Tables", (folder / "table.md").read_text(encoding="utf-8").strip()]
    return "\n\n".join(filter(None, parts)) + "\n"


def made(folder: Path) -> str:
    """What ``made.json`` says of a folder; ``+`` behind a commit: files had been changed since."""
    if not (folder / "made.json").exists():
        return ""
    said = json.loads((folder / "made.json").read_text(encoding="utf-8"))
    command = f"`{said['command']}`" if said["command"] else "a command that was not recorded"
    commits = [commit[:7] + "+" * commit.endswith("+") for commit in said["commits"] if commit] or ["not recorded"]
    return f"Made by {command}; commit {' and '.join(commits)}, version {said['version']}, {said['date']}."


def again(name: str) -> str:
    """How a folder is made again; empty if no command makes it."""
    commands = tomllib.loads((ROOT / RESULTS / "commands.toml").read_text(encoding="utf-8"))["results"]
    if name not in commands:
        return ""
    return f"`make results ONLY={name}` makes it again, in about {commands[name]['minutes']} minutes of one core."


def main() -> None:
    """Write the pages' tables; with --check say which are not up to date."""
    parser = argparse.ArgumentParser(description="Copy tables of results onto the pages that show them.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not up to date")
    check = parser.parse_args().check
    stale = False
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (now := filled(text, page)) != text:
            stale = True
            if not check:
                page.write_text(now, encoding="utf-8")
            print(page.relative_to(ROOT), "is not up to date" if check else "written")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
