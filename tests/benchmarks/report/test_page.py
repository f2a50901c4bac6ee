"""Results folders as one page: complete, self-contained, and the same every time."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from pathlib import Path

import pytest
from invoking import invoke, said
from pages import RESULTS, check, finished_run, folder_of, png

from nfn_monomial.benchmarks.cli.options import console, errors
from nfn_monomial.benchmarks.report.page import find_results, png_size, render_page, write_page
from nfn_monomial.benchmarks.report.page_markdown import is_numeric
from nfn_monomial.benchmarks.settings.generalization import PredictConfig
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.train.runs import record


def test_committed_results() -> None:
    page = render_page(RESULTS)
    reader = check(page)
    assert not page.problems
    files = [*RESULTS.rglob("*.md"), *RESULTS.rglob("*.png"), *RESULTS.rglob("*.json")]
    assert len(reader.all("img")) == page.figures == sum(f.suffix == ".png" for f in files)
    assert page.figures >= 7
    assert page.folders >= 7
    rules = sum(
        len(re.findall(r"^\s*\|[\s:|-]+\|\s*$", f.read_text(encoding="utf-8"), re.M))
        for f in files
        if f.suffix == ".md"
    )
    assert page.tables == rules >= 13
    cells = {text.strip() for text in reader.within("td")}
    row = re.search(r"\| \*\*Monomial-NFN\*\* \|(.*)\|", (RESULTS / "demo" / "table.md").read_text(encoding="utf-8"))
    assert row is not None
    assert {"Monomial-NFN", "cpu", *(cell.strip() for cell in row[1].split("|"))} <= cells
    images = {base64.b64decode(attrs["src"].partition(",")[2]) for attrs in reader.all("img")}
    assert images == {f.read_bytes() for f in files if f.suffix == ".png"}


def test_prose_tables_figures_and_links(tmp_path: Path) -> None:
    readme = """# One & all

Text with `code <b>`, [the table](table.md), [elsewhere](sub/), [the web](https://example.org/a?b=1&c=2),
[gone](gone.md), [above](../../etc/passwd), [below](#a-part-of-it), [nowhere](#nowhere), [settings](config.json).

![the curve](curve.png) and again ![the curve](curve.png) and ![not here](https://example.org/x.png)

## A part of it

- a **bold** point
"""
    files = {
        "README.md": readme,
        "table.md": "**Bold & big**\n\n| model | tau | what | mixed |\n|---|---:|---|---|\n"
        "| **NP** | 0.5 | 1,000 | x |\n| HNP | - | 2.5 ±0.1 | 2 |\n\nA note.\n",
        "config.json": json.dumps({"command": "x"}),
        "curve.png": png(30, 20),
        "other.png": png(4, 4),
        "sub/table.md": "| a |\n|---|\n| 1 |\n",
    }
    page = render_page(folder_of(tmp_path / "my", files))
    reader = check(page)
    assert (page.folders, page.tables, page.figures) == (2, 2, 2)
    assert reader.within("h2") == ["One & all", "sub"]
    assert reader.within("h1") == ["Results: my"]
    assert "A part of it" in reader.within("h3")
    assert "code <b>" in reader.within("code")
    linked = {text: href["href"] for text, href in zip(reader.within("a"), reader.all("a"), strict=True)}
    assert linked["the web"] == "https://example.org/a?b=1&c=2"
    assert linked["the table"] == "#table.md"
    assert linked["elsewhere"] == "#sub"
    assert linked["settings"] == "#config.json"
    assert linked["below"] == "#README.md-a-part-of-it"
    assert linked["the curve"] == "#curve.png"  # shown once, linked to the second time
    assert linked["not here"] == "https://example.org/x.png"
    assert not {"gone", "above", "nowhere"} & set(linked)
    assert all(word in reader.text for word in ("gone", "above", "nowhere"))
    assert [(i["alt"], i["width"], i["height"]) for i in reader.all("img")] == [
        ("the curve (curve.png)", "30", "20"),
        ("One & all: other.png", "4", "4"),
    ]
    classes = [attrs.get("class") for attrs in reader.all("th")[:4]]
    assert classes == [None, "n", "n", None]  # as stated, and where there is nothing but numbers
    assert [attrs.get("class") for attrs in reader.all("td")[:8]] == classes * 2
    assert {"NP", "bold"} <= set(reader.within("strong"))
    assert [attrs["aria-label"] for attrs in reader.all("div") if "aria-label" in attrs] == ["Bold & big", "Table"]


def test_figures_of_folders_below_are_shown_once(tmp_path: Path) -> None:
    files = {
        "README.md": "![x](sub/a.png)\n",
        "sub/a.png": png(),
        "sub/README.md": "![up](../b.png)\n",
        "b.png": png(5),
    }
    page = render_page(folder_of(tmp_path, files))
    reader = check(page)
    assert page.figures == 2
    assert {"a.png", "up"} <= set(reader.within("a"))


def test_settings_read_like_assignments(tmp_path: Path) -> None:
    config = PredictConfig(models=("np", "hnp"), training=TrainConfig(7, patience=None), loss="mse")
    record(tmp_path, "nfn-monomial x --seeds 2", config, {"networks": {"train": 5}}, "cpu")
    files = {
        "results.json": json.dumps(
            {
                "rows": [{}, {}],
                "seed": 4,
                "settings": [{"model": "np", "epochs": 3}, {"model": "hnp", "epochs": 3}],
                "environments": [{"cores": 2, "commit": "abc+"}],
            }
        ),
        "data.json": '{"zeros": {}}',
    }
    reader = check(render_page(folder_of(tmp_path, files)))
    rows = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', render_page(tmp_path).html)
    values = dict(rows)
    assert values["command"] == "nfn-monomial x --seeds 2"
    assert values["training.epochs"] == "7"
    assert values["training.patience"] == "none"
    assert values["models"] == "np, hnp"
    assert values["networks.train"] == "5"
    assert values["versions.torch"]
    assert values["model"] == "np; hnp"  # what differs between the objects of a list
    assert values["epochs"] == "3"
    assert (values["cores"], values["commit"], values["seed"]) == ("2", "abc+", "4")
    assert "Also in the file: rows (2)" in reader.text
    assert "Also in the file: zeros (0)" in reader.text


def test_runs(tmp_path: Path) -> None:
    runs = [finished_run(seed=s) for s in (0, 10, 2)] + [finished_run("mlp", tests=("original", "widened"))]
    (tmp_path / "runs").mkdir()
    for run in runs:
        (tmp_path / "runs" / f"{run.settings.model}-seed{run.settings.seed}.json").write_text(
            run.to_json(), encoding="utf-8"
        )
    (tmp_path / "runs" / ".x.json").write_text("half", encoding="utf-8")
    page = render_page(tmp_path)
    reader = check(page)
    assert not page.problems
    assert "4 finished runs" in reader.within("summary")
    header = reader.within("th")
    assert header == [
        *("networks", "model", "trained on", "seed", "tau original", "tau widened", "best epoch", "parameters")
    ]
    rows = [reader.within("td")[i : i + 8] for i in range(0, 32, 8)]
    assert rows[0] == ["relu", "MLP", "original", "0", "0.5", "0.5", "2 of 3", "12,345"]
    assert [row[3] for row in rows[1:]] == ["0", "2", "10"]
    assert [row[5] for row in rows[1:]] == ["-"] * 3


def test_damaged_files_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    whole = png(40, 40, shade=7)
    run = json.loads(finished_run().to_json())
    files: dict[str, str | bytes] = {
        "README.md": "# Title\n\n![early](cut.png)\n",
        "table.md": b"| a |\n|---|\n| \xff |\n",
        "good.md": "| a |\n|---|\n| 1 |\n",
        "good.png": whole,
        "cut.png": whole[:-20],
        "flipped.png": whole[:45] + bytes([whole[45] ^ 1]) + whole[46:],
        "text.png": "no image",
        "config.json": '{"a": ',
        "deep.json": "[" * 100_000,
        "list.json": "[1]",
        "results.json": '{"seed": 5}',
        "runs/bad.json": "{}",
        "runs/worse.json": json.dumps(run | {"tests": [{"name": "a", "scale": None, "metrics": 3, "non_finite": 0}]}),
        "runs/good.json": json.dumps(run),
    }
    page = render_page(folder_of(tmp_path, files))
    reader = check(page)
    reasons = dict(problem.split(": ", 1) for problem in page.problems)
    assert reasons == {
        "cut.png": reasons["cut.png"],
        "flipped.png": "damaged: broken PNG file (bad header checksum in b'IDAT')",
        "text.png": "not a PNG",
        "table.md": reasons["table.md"],
        "config.json": "not JSON: Expecting value: line 1 column 7 (char 6)",
        "deep.json": "not JSON: nested more than 64 deep",
        "list.json": "expected a JSON object, found a list",
        "runs/bad.json": "not the fields of a run",
        "runs/worse.json": reasons["runs/worse.json"],
    }
    assert "utf-8" in reasons["table.md"]
    assert reasons["cut.png"].startswith("damaged: ")
    for problem in page.problems:
        name, reason = problem.split(": ", 1)
        assert f"{name} is not shown: {reason}" in reader.within("strong")
    assert (page.tables, page.figures) == (1, 1)
    assert "1 finished run" in reader.within("summary")
    assert "5" in reader.within("td")


def test_png_size() -> None:
    assert png_size(png(7, 9)) == (7, 9)
    for file in RESULTS.rglob("*.png"):
        assert min(png_size(file.read_bytes())) > 100
    for cut in range(len(png()) - 4):  # the last four bytes are the checksum of the mark of the end
        with pytest.raises(ValueError, match=r"not a PNG|damaged"):
            png_size(png()[:cut])


def test_is_numeric() -> None:
    assert is_numeric(["0.736 ±0.002", "-", "1e6", "1.06M", "90,472", "1.00x, 2x", ".8 / .7", "**3**", "", "-2", "5%"])
    assert not is_numeric(["-", ""])
    assert not is_numeric([])
    for text in ("NP", "3 layers", "x", "1 of 2", "e", "2-32-1 MLP"):
        assert not is_numeric(["1", text])


def test_folders(tmp_path: Path) -> None:
    files = {
        "run10/table.md": "",
        "run9/figure.png": png(),
        "zoo/zoo.json": "{}",  # data, not results
        ".hidden/table.md": "",
        "some/where/deep/config.json": "{}",
        "some/.table.md": "",
        "unfinished/runs/a.json": finished_run().to_json(),
        "unfinished/checkpoints/a.safetensors": b"",
    }
    found = find_results(folder_of(tmp_path, files))
    assert [f.path for f in found] == ["run9", "run10", "some/where/deep", "unfinished"]
    assert found[-1].runs == ("unfinished/runs/a.json",)


def test_bytes_depend_on_the_files_alone(tmp_path: Path) -> None:
    files = {name: f"| {name} |\n|---|\n| 1 |\n" for name in ("b.md", "a.md", "README.md", "sub/c.md")}
    one = folder_of(tmp_path / "x" / "same", files)
    two = folder_of(tmp_path / "y" / "same", dict(reversed(files.items())))
    path, page = write_page(one)
    assert path == one / "report.html"
    first = path.read_bytes()
    assert write_page(one)[0].read_bytes() == first  # also with the page of before in the folder
    assert write_page(two, tmp_path / "deep" / "out.html")[0].read_bytes() == first
    assert str(tmp_path) not in page.html
    assert not list(tmp_path.rglob("*.partial"))
    (two / "a.md").write_text("other", encoding="utf-8")
    assert write_page(two)[0].read_bytes() != first


@pytest.mark.skipif(sys.getfilesystemencoding() == "ascii", reason="no such names of files in this locale")
def test_ids_stay_unique(tmp_path: Path) -> None:
    files = {"a b/x.md": "# T\n\n## H\n\n## H\n\n## ???\n", "a-b/x.md": "## H\n\n[h](#h)\n", "\u00fc/x.md": ""}
    page = render_page(folder_of(tmp_path, files))
    assert page.folders == 3
    check(page)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for shown in (console, errors):
        monkeypatch.setattr(shown, "_width", 60)  # paths are not broken, however long
    files = {"a/table.md": "| a |\n|---|\n| 1 |\n", "a/x.png": png(), "b/results.json": "{", "b/y[0].png": png()}
    folder = folder_of(tmp_path / "results", files)
    result = invoke("report", folder)
    assert result.exit_code == 0, result.output
    assert "2 folders, 1 table, 2 figures" in result.output
    assert f"Page: {folder / 'report.html'}" in result.output
    assert "warning: b/results.json: not JSON" in result.output
    assert "b/results.json is not shown" in (folder / "report.html").read_text(encoding="utf-8")
    out = tmp_path / "new" / "page.html"
    assert invoke("report", folder, "--out", out).exit_code == 0
    assert out.read_bytes() == (folder / "report.html").read_bytes()


def test_command_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        ([tmp_path / "gone"], "gone is not there: give a folder of results"),
        ([tmp_path / "file"], "file is a file: give a folder of results"),
        ([tmp_path / "empty"], "looked for config.json, results.json, *.md, *.png and runs/*.json"),
        ([RESULTS, "--out", tmp_path], "is a folder: give a file, as"),
    ):
        assert message in said("report", *arguments, code=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file"]


def test_texts_that_take_long_are_named(tmp_path: Path) -> None:
    """A parser of Markdown needs time that is quadratic in brackets that nothing closes."""
    texts = {
        "brackets.md": "[" * 100_000,
        "images.md": "a\n" + "![" * 50_000,
        "long.md": "a" * 300_000,
        "lines.md": "a\n" * 20_000,
        "links.md": "[a](b) " * 200 + "\n\n" + "[" * 60,
    }
    page = render_page(folder_of(tmp_path, texts))
    assert sorted(page.problems) == [
        "brackets.md: more than 64 brackets in one another, in line 1",
        "images.md: more than 64 brackets in one another, in line 2",
        "lines.md: too long for a page: 40000 characters in 20000 lines, at most 262144 and 10000 are shown",
        "long.md: too long for a page: 300000 characters in 0 lines, at most 262144 and 10000 are shown",
    ]


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"README.md": "text"})
    os.mkfifo(folder / "pipe.md")
    (folder / "zero.png").symlink_to("/dev/zero")
    page = render_page(folder)
    assert (page.figures, page.problems) == (0, ())
