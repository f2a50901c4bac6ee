"""From a folder of checkpoints and a table to a predictor, and what it says of new ones: the commands of the page."""

import csv
import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from invoking import invoke, said
from scripts import script
from torch import nn

from nfn_monomial import WeightSpace
from nfn_monomial.adapters.modules import stack_networks
from nfn_monomial.benchmarks.studies.columns import metrics_of, models_for
from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools import Predictor, define
from nfn_monomial.tools.predictors.models import NetworkInfo
from nfn_monomial.tools.predictors.quantiles import Quantiles
from nfn_monomial.tools.predictors.tasks import Column, read_task

RUNS = 12


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The networks of the page, fewer of them, a predictor of their loss, and one that runs them of the optimiser."""
    folder = tmp_path_factory.mktemp("learn") / "home"
    script("learn").make(folder, RUNS)
    train(folder, "loss", "--models", "stats")
    train(folder, "optimiser", "--models", "probes-stats", "--out", folder / "classes")
    return folder


def asked(folder: Path, column: str, *more: object) -> tuple[object, ...]:
    words = (folder / "runs", "--net", f"{folder / 'net.py'}:Net", "--targets", folder / "runs.csv", "--column", column)
    out = () if "--out" in more else ("--out", folder / "out")
    return ("train", *words, "--epochs", 2, "--group", "run", *out, *more)


def train(folder: Path, column: str, *more: object, code: int = 0) -> str:
    return said(*asked(folder, column, *more), code=code)


def table(folder: Path) -> list[dict[str, str]]:
    with open(folder / "runs.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_numbers(home: Path) -> None:
    results = json.loads((home / "out" / "results.json").read_text())
    assert [row["model"] for row in results["rows"]] == ["stats", "statnn", "constant"]
    assert results["notes"][0] == "36 networks of Net, named by the column checkpoint"
    chosen = max(results["rows"][:2], key=lambda row: row["validation"]["selection"])
    assert (chosen["model"], chosen["chosen"]) == (results["chosen"], True)
    assert {row["model"] for row in results["rows"] if row["test"]} == {results["chosen"], "statnn", "constant"}
    for name in ("table.md", "config.json", "predicted.png", "predictor.safetensors"):
        assert (home / "out" / name).stat().st_size
    true = {str(home / row["checkpoint"]): float(row["loss"]) for row in table(home)}
    assert all(one["true"] == pytest.approx(true[one["path"]]) for one in results["test"])
    mae = sum(abs(one["true"] - one["predicted"]) for one in results["test"]) / len(results["test"])
    assert mae == pytest.approx(chosen["test"]["mae"])


@pytest.mark.parametrize(
    ("name", "text"),
    [("table.md", "mine"), ("results.json", "{}"), ("config.json", '{"model_type": "bert"}'), ("config.json", "[1]")],
)
def test_somebody_elses_files_stay(name: str, text: str, home: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    refused = train(home, "loss", "--models", "stats", "--out", tmp_path, code=2)
    assert f"{name} is not of this command, and would be replaced" in " ".join(refused.split())
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {name: text}


def test_predictions_are_in_the_units_of_the_column(home: Path) -> None:
    """Whatever form a checkpoint comes in, and whatever prefix its keys have."""
    results = json.loads((home / "out" / "results.json").read_text())
    expected = {one["path"]: one["predicted"] for one in results["test"]}
    predictor = home / "out" / "predictor.safetensors"
    answer = json.loads(invoke("predict", *expected, "--predictor", predictor, "--json").output)
    for one in answer["networks"]:
        assert one["predicted"] == pytest.approx(expected[one["path"]], rel=1e-6)
    assert answer["predictor"]["answers"] == "loss, in its own units"
    assert sorted(one["rank"] for one in answer["networks"])[0] == 1
    loaded = Predictor.load(predictor)
    state = torch.load(next(iter(expected)), weights_only=True)["state_dict"]
    plain = {key.removeprefix("model."): t for key, t in state.items()}
    plain.pop("body.1.num_batches_tracked")
    assert loaded(plain).item() == pytest.approx(next(iter(expected.values())), rel=1e-6)
    space = loaded.task.infos[0].space
    moved = space.sample(scale_range=(1.0, 10.0)).act({name: plain[name] for name in space.parameters})
    if results["chosen"] == "stats":
        assert loaded(moved).item() == pytest.approx(next(iter(expected.values())), rel=1e-4)


def test_one_that_runs_networks_takes_their_code(home: Path) -> None:
    results = json.loads((home / "classes" / "results.json").read_text())
    assert (results["task"], len(results["rows"])) == ("classification", 3)
    options = [settings["options"] for settings in results["settings"]]
    assert {tuple(some["classes"]) for some in options} == {("adam", "rmsprop", "sgd")}, "others are other runs"
    path = home / "classes" / "predictors" / "probes-stats"
    (path,) = path.parent.glob("Net-probes-stats-*")
    checkpoint, net = home / "runs" / "run-3" / "epoch-8.ckpt", f"{home / 'net.py'}:Net"
    refused = said("predict", checkpoint, "--predictor", path, code=2)
    assert "its model probes-stats needs the networks' code, which no file has" in refused
    assert "--net module.py:Net" in refused
    answer = json.loads(invoke("predict", checkpoint, "--predictor", path, "--net", net, "--json").output)
    (one,) = answer["networks"]
    assert set(one["probabilities"]) == {"adam", "rmsprop", "sgd"}
    assert sum(one["probabilities"].values()) == pytest.approx(1)
    assert one["class"] == max(one["probabilities"], key=one["probabilities"].__getitem__)
    assert one["class"] in said("predict", checkpoint, "--predictor", path, "--net", net)
    other = define(nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)), torch.randn(2, 64))
    with pytest.raises(InvalidValueError, match=r"trained on networks of Net, .* but --net is Sequential"):
        Predictor.load(path, other)


def test_a_second_call_does_what_is_missing_and_nothing_is_replaced_unasked(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "out", tmp_path / "out")
    again = train(home, "loss", "--models", "stats", "--out", tmp_path / "out")
    assert again.count("(kept)") == 2
    assert f"nfn-monomial predict NEW --predictor {tmp_path / 'out' / 'predictor.safetensors'}" in again
    assert "was learned from others" in train(home, "accuracy", "--models", "stats", "--out", tmp_path / "out", code=2)
    forced = train(home, "accuracy", "--models", "stats", "--out", tmp_path / "out", "--force", "--task", "ranking")
    assert "ranking of accuracy: as asked for" in forced
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["rows"][0]["validation"].keys() == {"tau", "r2", "mae", "selection"}
    assert len(results["test"]) < 30
    score = results["rows"][0]["validation"]
    table = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert f"| {score['tau']:.2f} | {score['r2']:.3f} |" in table, "tau of few networks has two digits"
    warning = f"Tau of {len(results['test'])} networks is rough: of random answers, 95 % have one from -"
    assert warning in table
    assert warning in said(
        "predict", home / "runs" / "run-1", "--predictor", tmp_path / "out" / "predictor.safetensors"
    )
    assert "%" in said("predict", home / "runs" / "run-1", "--predictor", tmp_path / "out" / "predictor.safetensors")


def test_json_and_nothing_else(home: Path) -> None:
    assert json.loads(invoke(*asked(home, "loss", "--models", "stats", "--json")).stdout)["column"] == "loss"
    assert "los" in train(home, "loss", "--task", "los", code=2)
    assert "unknown model 'x'" in train(home, "loss", "--models", "x", code=2)


# -- models and numbers -----------------------------------------------------------------------------------------------


def info_of(module: nn.Module, *shape: int) -> NetworkInfo:
    x = torch.randn(2, *shape)
    return NetworkInfo(WeightSpace.from_module(module, x), "Net", lambda: module, shape)


def test_models_that_suit_networks() -> None:
    small = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
    assert models_for(info_of(small, 3)) == (("gram-stats", "probes-stats", "combined", "statnn"), [])
    one = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    names, said = models_for(info_of(one, 3))
    assert names == ("gram-stats", "message-passing-stats", "stats", "statnn")
    assert said[0] == "probes-stats was left out: it reads logits of classes, which these networks do not give"
    large = nn.Sequential(nn.Linear(30, 800), nn.ReLU(), nn.Linear(800, 4))
    names, said = models_for(info_of(large, 30))
    assert names == ("gram-stats", "probes-stats", "stats", "statnn")
    assert said[0] == "combined was left out: it takes long for 28004 weights; --models has it trained"
    wide = nn.Sequential(nn.Linear(3, 1025), nn.ReLU(), nn.Linear(1025, 4))
    names, said = models_for(info_of(wide, 3))
    assert names == ("probes-stats", "combined", "message-passing-stats", "statnn")
    assert said == ["gram-stats was left out: it takes long for layers of 1025 neurons; --models has it trained"]


def test_networks_of_large_inputs_are_not_run_for_hours() -> None:
    images = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    for size, left_out in ((8, False), (256, True)):
        names, said = models_for(info_of(images, 3, size, size))
        assert ("probes-stats" not in names) == ("combined" not in names) == left_out, size
        if left_out:  # 2 for each weight of the convolution and place, and for each of the linear layer
            work = 2 * (8 * 27 * 254**2 + 32)
            assert said[0].startswith(f"probes-stats was left out: it takes long for networks of {work:,} operations")


def test_metrics() -> None:
    truth = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64) * 1e9
    assert metrics_of(truth, truth, "regression") == {"mae": 0, "r2": 1, "tau": 1, "selection": 0}
    assert metrics_of(truth.mean().expand(4), truth, "ranking") == {"tau": 0, "r2": 0, "mae": 2.25e9, "selection": 0}
    assert metrics_of(torch.tensor([torch.nan, 2e9, 4e9, 8e9]), truth, "regression")["mae"] == 0
    sure = torch.eye(3)
    metrics = metrics_of(sure, torch.tensor([0, 1, 1]), "classification")
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert metrics["selection"] == -metrics["loss"] < 0


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_numbers_of_any_size_come_back(size: float) -> None:
    targets = size * (3 + torch.rand(200, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    task = Column(info_of(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), 2), Quantiles.of(targets), "loss")
    logits = torch.logit(task.quantiles.level(targets))  # type: ignore[union-attr]
    torch.testing.assert_close(task.read(logits), targets, rtol=1e-9, atol=0)
    again = read_task(task.written())
    assert isinstance(again, Column)
    assert (again.column, again.quantiles, again.classes) == ("loss", task.quantiles, ())


@pytest.mark.parametrize("classes", [("a",), ("a", "a"), ()])
def test_what_no_column_has(classes: tuple[str, ...]) -> None:
    info = info_of(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), 2)
    with pytest.raises(InvalidValueError, match="quantiles, or two or more classes"):
        Column(info, None, "kind", "", classes)


EXAMPLE = "def example_inputs():\n    return torch.randn(2, 4)\n"


class Tied(nn.Module):
    """Two keys of one tensor, a mask that nothing moves, and a layer that is not read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.last = (nn.Linear(4, n) for n in (4, 4, 4, 3))
        self.third.weight = self.second.weight
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0, 1.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x * self.mask))
        return self.last(torch.tanh(self.third(torch.tanh(self.second(x)))))


def test_keys_that_are_in_no_space_are_known(tmp_path: Path) -> None:
    """As a file has them: both keys of what is tied, or one, and a mask."""
    source = f"import torch\nfrom torch import nn\n\n{inspect.getsource(Tied)}\n{EXAMPLE}"
    (tmp_path / "tied.py").write_text(source, encoding="utf-8")
    (tmp_path / "runs").mkdir()
    rows: list[dict[str, Any]] = []
    for i in range(20):
        torch.manual_seed(i)
        state = Tied().state_dict()
        if i % 2:
            del state["first.weight"], state["first.bias"]
        torch.save(state, tmp_path / "runs" / f"{i}.pt")
        rows.append({"name": i, "size": float(state["last.weight"].abs().sum())})
    (tmp_path / "t.json").write_text(json.dumps(rows), encoding="utf-8")
    said("train", tmp_path / "runs", "--net", f"{tmp_path / 'tied.py'}:Tied", "--targets", tmp_path / "t.json",
         "--column", "size", "--models", "stats", "--epochs", 1, "--out", tmp_path / "out")  # fmt: skip
    predictor = Predictor.load(next((tmp_path / "out" / "predictors").glob("*-stats-*")))
    whole = Tied().state_dict()
    parts = {key: t for key, t in whole.items() if key != "second.weight"}
    assert predictor(whole) == predictor(parts)
    wrapped = {f"module.{key}": t for key, t in whole.items()}
    assert predictor(wrapped) == predictor(whole)
    space = predictor.task.infos[0].space
    assert stack_networks(whole, space, ignore=("mask", "third.weight")).keys() == space.parameters.keys()
