"""A folder of checkpoints and a table: which line means which file, what is asked, and who is on which side."""

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data.formats import labelled
from nfn_monomial.benchmarks.data.formats.base import CorpusError
from nfn_monomial.benchmarks.data.formats.labelled import LabelledCheckpoints, Request
from nfn_monomial.benchmarks.data.formats.result_tables import number_in
from nfn_monomial.benchmarks.data.formats.sides import sides_by, sides_drawn, together
from nfn_monomial.benchmarks.data.networks import fingerprint
from nfn_monomial.tools.definitions.define import Definition, define
from nfn_monomial.tools.predictors.matching import Candidate, match
from nfn_monomial.tools.predictors.models import NetworkInfo

RUNS, EPOCHS = 10, 3


def read(request: Request, definition: Definition) -> LabelledCheckpoints:
    """All networks are of this architecture."""
    return labelled.read_labelled(request, lambda arguments: definition)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


@pytest.fixture(scope="module")
def definition() -> Definition:
    return define(network(), torch.randn(2, 3), "Net")


@pytest.fixture(scope="module")
def states() -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return [network().state_dict() for _ in range(RUNS * EPOCHS)]


def write(folder: Path, states: Sequence[dict[str, torch.Tensor]], layout: str) -> list[str]:
    """The networks, three of each run; returns what people would call them."""
    names = []
    for i, state in enumerate(states):
        run, epoch = divmod(i, EPOCHS)
        flat, nested = f"run-{run}-{epoch}", f"run-{run}/checkpoints/epoch={epoch}.ckpt"
        name, path = {"flat": (flat, f"{flat}.pt"), "lightning": (nested, nested),
                      "folders": (flat, f"{flat}/model.safetensors")}[layout]  # fmt: skip
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if layout == "folders":
            safetensors.torch.save_file(state, folder / path)
        else:
            inner = {"state_dict": {f"model.{key}": t for key, t in state.items()}, "epoch": epoch}
            torch.save(inner if layout == "lightning" else state, folder / path)
        names.append(name)
    return names


def csv(path: Path, columns: dict[str, Sequence[Any]], mark: str = ",") -> Path:
    lines = [mark.join(columns), *(mark.join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def flat(tmp_path: Path, states: list[dict[str, torch.Tensor]]) -> tuple[Path, dict[str, Sequence[Any]]]:
    """A folder, and columns of a table for it."""
    folder = tmp_path / "runs"
    names = write(folder, states, "flat")
    numbers = range(len(names))
    return folder, {"name": names, "run": [i // EPOCHS for i in numbers], "loss": [0.5 + i / 7 for i in numbers]}


def losses(checkpoints: LabelledCheckpoints) -> dict[str, float]:
    """Returns the target of each file by its path."""
    parts = (checkpoints.corpus.train, checkpoints.corpus.val, checkpoints.corpus.test)
    pairs = zip(
        sum((checkpoints.paths[s] for s in checkpoints.paths), ()),
        torch.cat([p[0].networks.accuracy for p in parts]),
        strict=True,
    )
    return {path.as_posix(): float(loss) for path, loss in pairs}


@pytest.mark.parametrize("layout", ["flat", "lightning", "folders"])
def test_layouts_are_the_same_networks(
    tmp_path: Path, definition: Definition, states: list[dict[str, torch.Tensor]], layout: str
) -> None:
    folder = tmp_path / "runs"
    names = write(folder, states, layout)
    other = [f"{i} of {len(names)}" for i in range(len(names))]
    table = csv(tmp_path / "runs.csv", {"note": other, "file": names, "loss": range(len(names))})
    checkpoints = read(Request(folder, table, "loss"), definition)
    assert (checkpoints.task, checkpoints.classes) == ("regression", ())
    assert [len(checkpoints.paths[side]) for side in ("train", "val", "test")] == [22, 4, 4]
    for side, parts in (("train", checkpoints.corpus.train), ("test", checkpoints.corpus.test)):
        networks = parts[0].networks
        assert networks.accuracy.dtype == torch.float64
        for row, path in enumerate(checkpoints.paths[side]):
            number = int(networks.accuracy[row])
            assert names[number].removesuffix(".ckpt") in str(path)
            assert torch.equal(networks.tensors["1.running_var"][row], states[number]["1.running_var"])


def test_ways_to_name_a_file(tmp_path: Path, definition: Definition, flat: tuple[Path, dict[str, Any]]) -> None:
    folder, columns = flat
    names, loss = columns["name"], columns["loss"]
    ways = {
        "with a suffix": [f"{name}.pt" for name in names],
        "with that of another file": [f"{name}.safetensors" for name in names],
        "from the table on": [f"runs/{name}.pt" for name in names],
        "backwards": [f".\\runs\\{name}.pt" for name in names],
        "from the root on": [str(folder / name) for name in names],
    }
    expected = losses(read(Request(folder, csv(tmp_path / "t.csv", columns), "loss"), definition))
    for way, cells in ways.items():
        table = csv(tmp_path / "t.csv", {"file": cells, "loss": loss}, ";")
        assert losses(read(Request(folder, table, "loss"), definition)) == expected, way
    lines = [json.dumps({"name": name, "loss": value, "more": None}) for name, value in zip(names, loss, strict=True)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "t.json").write_text(f"[{', '.join(lines)}]", encoding="utf-8")
    epochs = [i % EPOCHS for i in range(len(names))]
    parts = csv(tmp_path / "parts.tsv", {"run": columns["run"], "epoch": epochs, "loss": loss}, "\t")
    for table, way in ((tmp_path / "t.jsonl", None), (tmp_path / "t.json", "name"), (parts, "run-{run}-{epoch}")):
        assert losses(read(Request(folder, table, "loss", way), definition)) == expected


def test_what_does_not_match_is_counted(
    tmp_path: Path, definition: Definition, flat: tuple[Path, dict[str, Any]]
) -> None:
    folder, columns = flat
    columns["loss"] = ["", "nan", "1e300", *columns["loss"][3:]]
    columns["name"] = [*columns["name"][:28], "run-99", "run-98"]
    state = torch.load(folder / "run-3-0.pt")
    state["0.bias"][0] = torch.nan
    torch.save(state, folder / "run-3-0.pt")
    checkpoints = read(Request(folder, csv(tmp_path / "t.csv", columns), "loss"), definition)
    said = "\n".join(checkpoints.notes)
    assert "24 networks of Net, named by the column name" in said
    assert "2 lines have no file, as run-99, run-98" in said
    assert "3 lines have no loss that is finite, as line 2, line 3" in said
    assert "1 files cannot be used, as " in said
    assert "run-3-0.pt: 0.bias holds NaN" in said
    assert "2 files have no line" in said


NUMBERS: list[tuple[Any, float | None, str]] = [
    (0.5, 0.5, ""), ("1e-3", 1e-3, ""), (" 93.1 % ", 93.1, "%"), ("0,931", 0.931, ""), ("-2", -2, ""), (None, None, ""),
    ("NaN", None, ""), ("-", None, ""), ("1e999", None, ""),
]  # fmt: skip


@pytest.mark.parametrize(("cell", "value", "unit"), NUMBERS)
def test_numbers(cell: Any, value: float | None, unit: str) -> None:
    assert number_in(cell) == (value, unit)


@pytest.mark.parametrize("cell", ["sgd", "1,000.5", True, "0x10", "0_1"])
def test_what_is_no_number(cell: Any) -> None:
    with pytest.raises(ValueError):
        number_in(cell)


def test_classes_and_numbers(tmp_path: Path, definition: Definition, flat: tuple[Path, dict[str, Any]]) -> None:
    folder, columns = flat
    kinds = ["sgd", "adam"] * 14 + ["lion", "sgd"]
    table = csv(tmp_path / "t.csv", columns | {"kind": kinds, "share": [f"{v}%" for v in columns["loss"]]})
    checkpoints = read(Request(folder, table, "kind"), definition)
    assert (checkpoints.task, checkpoints.classes) == ("classification", ("adam", "sgd"))
    assert "1 lines have a class of fewer than 3 networks, as lion" in checkpoints.notes
    for path, label in losses(checkpoints).items():
        assert checkpoints.classes[int(label)] == kinds[columns["name"].index(Path(path).stem)]
    few = read(Request(folder, table, "run"), definition).notes[1]
    assert few.endswith("numbers, 10 different ones; --task classification takes them for classes")
    assert read(Request(folder, table, "loss"), definition).notes[1].endswith("its cells are numbers")
    assert read(Request(folder, table, "run", task="classification"), definition).classes[:2] == ("0", "1")
    assert read(Request(folder, table, "share", task="ranking"), definition).unit == "%"


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"column": "los"}, r"t\.csv has no column 'los': it has name, run, loss"),
    ({}, {"group": ("seed",)}, r"has no column 'seed'"),
    ({"loss": [0.5] * 30}, {}, r"all 30 networks have loss 0\.5: there is nothing to learn"),
    ({"name": ["x"] * 30, "run": ["y"] * 30}, {}, r"no line of .* names one checkpoint in .*; say which column"),
    ({"name": ["run-0-0"] * 30}, {}, r"line 2 and line 3 both name .*run-0-0\.pt: keep one of them"),
    ({"name": [f"x{i}" if i > 4 else f"run-{i}-0" for i in range(30)]}, {}, r"5 lines name a checkpoint, .* 10"),
    ({"loss": ["diverged", *range(29)]}, {}, r"loss has 29 numbers and 1 texts, as diverged: empty these cells"),
    ({"loss": ["a"] * 30}, {"task": "ranking"}, r"ranking is for numbers, but loss has 30 texts"),
    ({"loss": ["1%", *range(29)]}, {}, r"numbers with % and without"),
    ({"loss": ['"1,000"', *range(970, 999)]}, {}, r"loss has '1,000' and '970': are commas points"),
    ({"loss": [f"c{i}" for i in range(30)]}, {}, r"0 networks are of a class of loss that others have"),
    ({"loss": ["a"] * 30}, {}, r"all 30 networks have loss 'a'"),
    ({"run": ["a"] * 30}, {"group": ("run",)}, r"30 networks in 1 groups cannot be drawn"),
    ({"run": ["left"] * 30}, {"split": "run"}, r"line 2: run is 'left', expected train, val, test"),
    ({"run": ["train"] * 30}, {"split": "run"}, r"two different values in test"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "asked", "message"), WRONG)
def test_tables_that_cannot_be_used(
    tmp_path: Path, definition: Definition, flat: tuple[Path, dict[str, Any]], changed: Any, asked: Any, message: str
) -> None:
    folder, columns = flat
    table = csv(tmp_path / "t.csv", columns | changed)
    with pytest.raises(CorpusError, match=message):
        read(Request(**{"folder": folder, "targets": table, "column": "loss"} | asked), definition)


def test_a_folder_of_several_is_not_guessed(
    tmp_path: Path, definition: Definition, states: list[dict[str, torch.Tensor]]
) -> None:
    write(tmp_path / "runs", states, "lightning")
    runs = [f"run-{i // EPOCHS}" for i in range(len(states))]
    table = csv(tmp_path / "t.csv", {"run": runs, "loss": range(len(states))})
    with pytest.raises(CorpusError, match="'run-0' of run may be any of 3 files"):
        read(Request(tmp_path / "runs", table, "loss"), definition)


@pytest.mark.parametrize(
    ("names", "last"),
    [
        (["epoch=9-step=90.ckpt", "epoch=10-step=100.ckpt"], "epoch=10-step=100.ckpt"),
        (["checkpoint-500/model.pt", "checkpoint-1500/model.pt"], "checkpoint-1500/model.pt"),
        (["checkpoint-500/model.pt", "checkpoint-1500/model.pt", "model.pt"], "model.pt"),
        (["epoch=9.ckpt", "last.ckpt", "best.ckpt"], "last.ckpt"),
        (["ckpt_2.pt", "ckpt_11.pt"], "ckpt_11.pt"),
        (["val_loss=0.9-epoch=2.ckpt", "val_loss=0.1-epoch=3.ckpt"], "val_loss=0.1-epoch=3.ckpt"),
        (["epoch=9.ckpt", "best.ckpt"], None),
        (["epoch=9.ckpt", "epoch=9-v1.ckpt"], None),
        (["epoch=9.ckpt", "step=100.ckpt"], None),
        (["net-1.pt", "net-2.pt"], None),
        (["a/epoch=1.pt", "b/epoch=2.pt"], None),
    ],
)
def test_the_last_checkpoint_of_a_run(names: list[str], last: str | None) -> None:
    for order in (names, names[::-1]):
        assert labelled.last_of_run([Path("runs/run-3", name) for name in order]) == (last and Path("runs/run-3", last))


def test_of_a_run_that_has_a_line_the_last_checkpoint_is_taken(
    tmp_path: Path, definition: Definition, states: list[dict[str, torch.Tensor]]
) -> None:
    write(tmp_path / "runs", states, "lightning")
    table = csv(tmp_path / "t.csv", {"run": [f"run-{i}" for i in range(RUNS)], "loss": range(RUNS)})
    read_runs = read(Request(tmp_path / "runs", table, "loss"), definition)
    last = f"checkpoints/epoch={EPOCHS - 1}.ckpt"
    assert losses(read_runs) == {(tmp_path / f"runs/run-{i}/{last}").as_posix(): float(i) for i in range(RUNS)}
    told = f"of 10 runs with several checkpoints the last was taken, as {tmp_path}/runs/run-0/{last}"
    assert read_runs.notes[0].endswith(told)


def test_two_columns_that_name_all_files_are_asked_about(
    tmp_path: Path, definition: Definition, states: list[dict[str, torch.Tensor]]
) -> None:
    (tmp_path / "runs").mkdir()
    for i, state in enumerate(states):
        torch.save(state, tmp_path / "runs" / f"{i}.pt")
    numbers = range(len(states))
    table = csv(tmp_path / "t.csv", {"seed": numbers[::-1], "id": numbers, "loss": numbers})
    with pytest.raises(CorpusError, match=r"seed and id name different files, .*29\.pt and .*0\.pt: .*--names COLUMN"):
        read(Request(tmp_path / "runs", table, "loss"), definition)
    expected = {(tmp_path / "runs" / f"{i}.pt").as_posix(): float(i) for i in numbers}
    assert losses(read(Request(tmp_path / "runs", table, "loss", "id"), definition)) == expected
    assert read(Request(tmp_path / "runs", table, "seed"), definition).notes[0].endswith("by the column id")
    table = csv(tmp_path / "t.csv", {"id": numbers, "file": [f"{i}.pt" for i in numbers], "loss": numbers})
    assert read(Request(tmp_path / "runs", table, "loss"), definition).notes[0].endswith("by the column id")


def test_predictors_know_the_keys_that_files_have(
    tmp_path: Path, definition: Definition, states: list[dict[str, torch.Tensor]]
) -> None:
    """As of classes that save others than they have."""
    saved = [{f"old_{key}": t for key, t in state.items()} for state in states]
    table = csv(tmp_path / "t.csv", {"name": write(tmp_path / "runs", saved, "flat"), "loss": range(len(saved))})
    renaming = replace(definition, renamed=lambda key: key.removeprefix("old_"))
    (part,) = read(Request(tmp_path / "runs", table, "loss"), renaming).corpus.train
    for prefix in ("", "old_"):
        state = {f"{prefix}{key}": t for key, t in states[0].items() if t.is_floating_point()}
        names = match(Candidate("a file", state), [part.info], True, "Net")[1]
        assert names == {name: f"{prefix}{name}" for name in definition.space.parameters}


def test_what_cannot_be_learned_from_is_not_read(
    definition: Definition, tmp_path: Path, flat: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Request(flat[0], csv(tmp_path / "t.csv", flat[1]), "loss")
    monkeypatch.setattr(labelled, "_read_network", None)
    monkeypatch.setattr(labelled, "MOST_WEIGHTS", 41)
    with pytest.raises(CorpusError, match=r"Net has 42 weights; .* of 41 at most"):
        read(asked, definition)
    monkeypatch.setattr(labelled, "MOST_WEIGHTS", 42)
    monkeypatch.setattr(labelled, "_memory", lambda: 30 * 42 * 4 - 1)
    with pytest.raises(CorpusError, match=r"30 networks of 42 weights take .* GiB .* fewer lines"):
        read(asked, definition)


# -- sides ------------------------------------------------------------------------------------------------------------


def test_groups_and_copies_stay_together(
    tmp_path: Path, definition: Definition, flat: tuple[Path, dict[str, Any]], states: list[dict[str, torch.Tensor]]
) -> None:
    folder, columns = flat
    torch.save(states[0], folder / "run-9-2.pt")  # a copy: so runs 0 and 9 are one group
    checkpoints = read(Request(folder, csv(tmp_path / "t.csv", columns), "loss", group=("run",), seed=3), definition)
    side = {path.stem: name for name, paths in checkpoints.paths.items() for path in paths}
    assert set(side.values()) == {"train", "val", "test"}
    for run in range(RUNS):
        assert len({side[f"run-{run}-{epoch}"] for epoch in range(EPOCHS)}) == 1
    assert side["run-0-0"] == side["run-9-2"]


def test_a_leak_of_a_column_is_told(
    tmp_path: Path, definition: Definition, flat: tuple[Path, dict[str, Any]], states: list[dict[str, torch.Tensor]]
) -> None:
    folder, columns = flat
    torch.save(states[0], folder / "run-9-2.pt")
    columns["side"] = [["Train", "valid", "test"][i // 10] for i in range(30)]
    checkpoints = read(Request(folder, csv(tmp_path / "t.csv", columns), "loss", split="side"), definition)
    assert [len(paths) for paths in checkpoints.paths.values()] == [10, 10, 10]
    assert "1 networks are a copy, or of the group, of one on another side" in "\n".join(checkpoints.notes)


def test_draws() -> None:
    groups = together([["a"], ["b", "c"], ["c"], ["a", "d"], [], ["d"]])
    assert [groups.index(g) for g in groups] == [0, 1, 1, 0, 4, 0]
    targets = [0.0] * 50 + [1.0, 2.0, 3.0, 4.0]
    sides = sides_drawn(range(54), targets, seed=0)
    assert sides == sides_drawn(range(54), targets, seed=0) != sides_drawn(range(54), targets, seed=1)
    for side in ("train", "val", "test"):
        assert len({t for t, s in zip(targets, sides, strict=True) if s == side}) > 1, "tau means something"
    assert [sides.count(side) for side in ("val", "test")] == [8, 8]
    classes = ["a"] * 20 + ["b"] * 3
    for seed in range(5):
        drawn = sides_drawn(range(23), classes, seed)
        assert {t for t, s in zip(classes, drawn, strict=True) if s == "train"} == {"a", "b"}


def test_validation_is_drawn_where_a_column_has_none() -> None:
    from nfn_monomial.benchmarks.data.formats.result_tables import TableLine

    lines = [TableLine(f"line {i}", {"s": "test" if i > 20 else "train"}) for i in range(30)]
    sides, said = sides_by("s", lines, range(30), list(range(30)), 0)
    assert [sides.count(side) for side in ("train", "val", "test")] == [18, 3, 9]
    assert said == "by the column s, val drawn from train with seed 0"


def test_what_networks_compute_is_in_their_fingerprint(
    flat: tuple[Path, dict[str, Sequence[Any]]], definition: Definition
) -> None:
    """Weights are the same for all of these: runs of one are none of another."""
    folder, columns = flat
    request = Request(folder, csv(folder / "t.csv", columns), "loss")

    def other() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))

    definitions = [definition, replace(definition, template=other), replace(definition, input_shape=(5, 3))]
    prints = [fingerprint(read(request, one).corpus) for one in definitions]
    assert len(set(prints)) == len(prints)
    assert fingerprint(read(request, replace(definition)).corpus) == prints[0]


@pytest.mark.parametrize("forward", ["return {} * x", "f = {}; return self.times(f, x)", ""])
def test_a_class_whose_file_changes_computes_something_else(
    forward: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if torch wraps its forward, or it has none; where it is in memory is nothing that it computes."""
    prints = []
    for times in ("2", "2", "3"):
        body = f"    @torch.no_grad()\n    def forward(self, x):\n        {forward.format(times)}\n" * bool(forward)
        text = f"import torch\nTIMES = {times}\nclass Net(torch.nn.Sequential):\n{body}"
        (tmp_path / "own_net.py").write_text(
            text + "    def extra_repr(self): return str(object())\n", encoding="utf-8"
        )
        monkeypatch.syspath_prepend(tmp_path)
        sys.modules.pop("own_net", None)
        net = importlib.import_module("own_net").Net
        prints.append(labelled._computed_by([NetworkInfo(WeightSpace.mlp([2, 3, 1], "relu"), "relu", net, (2,))]))
    assert prints[0] == prints[1] != prints[2]


def test_functions_in_place_of_methods_are_no_obstacle() -> None:
    net = type("Net", (nn.Module,), {"forward": staticmethod(torch.relu)})
    info = NetworkInfo(WeightSpace.mlp([2, 3, 1], "relu"), "relu", net, (2,))
    assert labelled._computed_by([info]) == labelled._computed_by([info])


@pytest.mark.parametrize("text", ["name,loss\n", ""])
def test_a_table_without_lines_is_said_to_have_none(
    text: str, flat: tuple[Path, dict[str, Sequence[Any]]], definition: Definition
) -> None:
    (flat[0] / "t.csv").write_text(text, encoding="utf-8")
    with pytest.raises(CorpusError, match=r"t\.csv .*has no lines: a line for each checkpoint"):
        read(Request(flat[0], flat[0] / "t.csv", "loss"), definition)
