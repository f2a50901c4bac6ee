"""Every command that writes may die, be interrupted, or find the disk full, at any write: the next call finishes.

What an undisturbed call leaves is taken twice; where the two agree (all but times and memory), the call that
finished after a disturbance has to agree, too, file by file, and leave no other files. `make kill` tries many more
places than `make test` does.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import small_predictors
import torch
import typer
from commands import leaves
from killing import MOMENTS, STAYS, Ended, How, Plan, contents, determined, run, tree
from own_networks import mlp, saved
from torch import Tensor, nn

from nfn_monomial.benchmarks.models.inr import SineNetwork
from nfn_monomial.tools.cli.application import app
from nfn_monomial.tools.files.atomic import write_json

ONCE = ("--seeds", "1", "--set", "training.epochs=1", "--set", "training.checkpoint_seconds=0")
OWN = ("--activation", "relu")
ZOO, INRS = ("--data", "{zoo}", *ONCE, "--set", "scales=10"), ("--data", "{inrs}", *ONCE)
WRITING: Mapping[str, tuple[str, ...]] = {
    "zoo make": ("--networks", "40"),
    "zoo make, mixed": ("--vary-architecture", "--networks", "6"),
    "inr make": ("--images", "digits", "--networks", "60", "--steps", "2"),
    "predict-generalization": (*ZOO, "--models", "monomial", "--set", "widen=0", "--set", "activations=relu"),
    "ablation": (*ZOO, "--models", "mnf-1,mnf-1-hnp"),
    "tune": (
        "--data", "{zoo}", *ONCE, "--models", "statnn", "--set", "trials=2", "--set", "epochs=1,2", "--set", "cuts=1",
        "--set", "folds=2", "--set", "batch_size=32",
    ),
    "classify-inr": (*INRS, "--models", "statnn,mlp"),
    "edit-inr": (*INRS, "--models", "mlp,monomial", "--set", "shown=2"),
    "demo": ("--networks", "120", "--models", "statnn", "--set", "training.epochs=1", "--set", "scales=10"),
    "params": ("--set", "largest=8", "--set", "sizes=1,3,3,2", "--set", "channels=2,2"),
    "cost": (
        "--models", "hnp,statnn", "--set", "batch_sizes=2", "--set", "networks=4", "--set", "repeats=1",
        "--set", "activations=relu",
    ),
    "bench layers": ("--set", "batches=1", "--set", "repeats=1", "--set", "graphs=false", "--set", "channels=1"),
    "symmetries": ("{a}", *OWN),
    "compare": ("{a}", "{b}", *OWN),
    "compare, several": ("{a}", "{b}", "{c}", *OWN),
    "align": ("{a}", "{b}", "{c}", *OWN, "--merge", "0.5"),
    "balance": ("{b}", *OWN),
    "balance, of torch": ("{c}", *OWN),
    "train": (
        "{runs}", "--net", "{runs}/net.py:net", "--targets", "{runs}/runs.csv", "--column", "loss", "--models", "stats",
        *ONCE,
    ),
    "predict": ("{cnn}",),
    "predict, edits": ("{siren}", "--predictor", "{editor}"),
}  # fmt: skip
"""Command -> arguments with which it takes a second or two; behind a comma, which of its forms."""
QUICK: Mapping[str, tuple[How, ...]] = {
    "zoo make": ("kill", "locked"),
    "inr make": ("full",),
    "balance": ("interrupt", "full"),
}
CODES: Mapping[How, int] = {"kill": -9, "interrupt": 130, "terminate": 143, "full": 2, "read-only": 2, "locked": 2}

SAID: Mapping[How, str] = {
    "full": "No space left on device", "read-only": "Read-only file system", "locked": "Permission denied",
}  # fmt: skip


class Made(dict[str, str]):
    """Paths of what commands read; made when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, name: str) -> str:
        self[name] = str(MAKERS[name](self.folder))
        return self[name]


def _made_by(*arguments: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        assert run([*arguments, "--out", arguments[0]], folder).code == 0
        return folder / arguments[0]

    return make


def _in_two_files(folder: Path, state: Mapping[str, Tensor]) -> Path:
    """With an index, whose path this is."""
    index, keys = folder / "model.safetensors.index.json", sorted(state)
    places = {key: f"model-{1 + (key > keys[2])}.safetensors" for key in keys}
    for name in set(places.values()):
        saved(folder / name, {key: state[key] for key in keys if places[key] == name})
    write_json(index, {"weight_map": places})
    return index


def _cnn() -> nn.Module:
    """A network that the predictor which ships reads."""
    torch.manual_seed(0)
    pairs = ((1, 16), (16, 16), (16, 16))
    layers = [part for a, b in pairs for part in (nn.Conv2d(a, b, 3), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def _siren(folder: Path) -> Path:
    torch.manual_seed(0)
    return saved(folder / "siren.safetensors", SineNetwork(small_predictors.SIREN).state_dict())


def _runs(folder: Path) -> Path:
    """Checkpoints of small networks, what network they are, and a table of results."""
    place = folder / "runs"
    for seed in range(20):
        saved(place / f"{seed}.pt", mlp(seed))
    lines = ["file,loss", *(f"{seed}.pt,{seed / 7:.3f}" for seed in range(20))]
    (place / "runs.csv").write_text("\n".join(lines), encoding="utf-8")
    (place / "net.py").write_text(
        "import torch\nfrom torch import nn\ndef net():\n    layers = (nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), "
        "nn.ReLU(), nn.Linear(5, 2))\n    return nn.Sequential(*layers), torch.ones(2, 4)\n",
        encoding="utf-8",
    )
    return place


MAKERS: Mapping[str, Callable[[Path], Path]] = {
    "zoo": _made_by("zoo", "make", "--networks", "160"),
    "inrs": _made_by("inr", "make", "--images", "digits", "--networks", "60", "--steps", "2"),
    "a": lambda folder: saved(folder / "a.safetensors", mlp(0)),
    "b": lambda folder: _in_two_files(folder / "b", mlp(1)),
    "c": lambda folder: saved(folder / "c.pt", mlp(2)),
    "cnn": lambda folder: saved(folder / "cnn.safetensors", _cnn().state_dict()),
    "siren": _siren,
    "runs": _runs,
    "editor": lambda folder: small_predictors.editors(folder / "editor", ["mlp"])["mlp"][1],
}


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("data"))


class Command:
    """A command and what it leaves undisturbed."""

    def __init__(self, name: str, data: Made, root: Path) -> None:
        self.name, self.data, self.root, self.calls = name, data, root, 0
        first, second = (self.undisturbed() for _ in range(2))
        assert first[0].writes == second[0].writes
        self.writes = first[0].writes
        self.expected = determined(*(contents(files) for _, files in (first, second)))
        assert set(self.expected) == set(first[1])

    def folder(self) -> Path:
        self.calls += 1
        made = self.root / str(self.calls)
        made.mkdir()
        return made

    def call(self, folder: Path, plan: Plan | None = None) -> Ended:
        words = self.name.partition(",")[0].split()
        given = [text.format_map(self.data) for text in WRITING[self.name]]
        return run([*words, *given, "--out", "o"], folder, plan)

    def undisturbed(self) -> tuple[Ended, dict[str, bytes]]:
        folder = self.folder()
        ended = self.call(folder)
        assert ended.code == 0, ended.err
        return ended, tree(folder)

    def disturb(self, plan: Plan) -> None:
        """Call it with a disturbance, then without: the end is as if nothing had been."""
        folder = self.folder()
        ended = self.call(folder, plan)
        assert ended.code == CODES[plan.how], f"{plan}: {ended}"
        if plan.how != "kill":
            lines = [line for line in ended.err.splitlines() if line.strip() and "CPUAllocator" not in line]
            assert len(lines) == 1, f"{plan}: {ended.err}"
            assert SAID.get(plan.how, "the same command continues") in lines[0], f"{plan}: {ended.err}"
            assert not [name for name in tree(folder) if name.endswith(".partial")], plan
        again = self.call(folder)
        assert again.code == 0, f"{plan}: {again.err}"
        found = contents(tree(folder))
        assert found.keys() == self.expected.keys(), f"{plan}: {sorted(found.keys() ^ self.expected.keys())}"
        for name, value in self.expected.items():
            assert determined(value, found[name]) == value, f"{plan}: {name} differs"

    def plans(self, hows: tuple[How, ...], count: int, seed: int) -> list[Plan]:
        """Some of all places at which each of these may happen, drawn at random."""
        chosen = random.Random(f"{self.name} {seed}")
        found = []
        for how in hows:
            moments = MOMENTS[:3] if how in STAYS else MOMENTS
            places = [Plan(at, moment, how) for at in range(self.writes) for moment in moments]
            if how == "locked":
                places = [Plan(0, "before", how)]
            found += chosen.sample(places, min(count, len(places)))
        return found


def test_every_command_that_writes_is_in_the_table() -> None:
    commands = {" ".join(path) for path, _ in leaves(typer.main.get_command(app))}
    assert commands == {name.partition(",")[0] for name in WRITING}


@pytest.mark.parametrize("name", QUICK)
def test_a_disturbed_command_is_finished_by_the_next_call(name: str, data: Made, tmp_path: Path) -> None:
    command = Command(name, data, tmp_path)
    for plan in command.plans(QUICK[name], 1, 0):
        command.disturb(plan)


@pytest.mark.kill
@pytest.mark.parametrize("name", WRITING)
def test_many_disturbances(name: str, data: Made, tmp_path: Path) -> None:
    command = Command(name, data, tmp_path)
    plans = command.plans(tuple(CODES), int(os.environ.get("KILLS", "6")), 1)
    for plan in plans:
        command.disturb(plan)
    print(f"\n{name}: {command.writes} writes, {len(plans)} disturbances")
