"""Checkpoints moved into one frame: what they compute stays, what lies between is measured, merged ones load."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from own_networks import mlp, moved, saved, weights
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from nfn_monomial.tools import align_checkpoints, balance_checkpoint
from nfn_monomial.tools.checkpoints import alignments
from nfn_monomial.tools.checkpoints.losses import loss_on
from nfn_monomial.tools.definitions.define import Definition, define

METHODS = ["as they are", "permutation", "all symmetries"]


def outputs(definition: Definition, path: Path, x: Tensor) -> Tensor:
    """What a checkpoint computes, which has to fit to the last key."""
    module: nn.Module = type(definition.template())().eval().requires_grad_(False)
    module.load_state_dict(torch.load(path, weights_only=True))
    found: Tensor = module(x)
    return found


def test_a_moved_network_comes_back(residual: Definition, tmp_path: Path) -> None:
    state = weights(residual, 1)
    a, b = saved(tmp_path / "a.safetensors", state), saved(tmp_path / "b.pt", moved(residual, state, 2))
    steps: list[tuple[int, int]] = []
    found = align_checkpoints(a, b, net=residual, merge=0.5, progress=lambda *step: steps.append(step))
    said = found.to_json()
    assert steps == [(i, 36) for i in range(1, 37)], "three methods, eleven places and the one asked for"
    (told,) = said["moved"].values()
    assert list(told["distance"]) == list(said["lines"]) == METHODS
    naive, permuted, best = told["distance"].values()
    assert naive > permuted > 1e3 * best
    assert told["max_output_difference"] < 1e-6
    lines = said["lines"]
    assert lines["as they are"]["t"] == [i / 10 for i in range(11)]
    assert lines["all symmetries"]["barrier"] < 1e-9 < lines["as they are"]["barrier"]
    assert lines["all symmetries"]["merged"]["loss"] < 1e-9
    paths = found.write(tmp_path / "out")
    assert [p.name for p in paths] == ["b.pt", "merged.safetensors", "table.md", "results.json", "barrier.png"]
    written = torch.load(paths[0], weights_only=True)
    assert list(written) == list(state)
    for key, tensor in state.items():
        torch.testing.assert_close(written[key], tensor, rtol=1e-4, atol=1e-5)


def test_of_several_the_frame_is_the_first_networks(pruned: Definition, tmp_path: Path) -> None:
    paths = [saved(tmp_path / f"{i}" / "net.pt", weights(pruned, i)) for i in (1, 2, 3)]
    found = align_checkpoints(*paths, net=pruned)
    written = found.write(tmp_path / "out")[:2]
    assert [path.name for path in written] == ["2-net.pt", "3-net.pt"]
    for before, after, told in zip(paths[1:], written, found.to_json()["moved"].values(), strict=True):
        answers = [outputs(pruned, path, pruned.inputs[0]) for path in (before, after)]
        torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-5)
        assert told["distance"]["all symmetries"] < told["distance"]["as they are"]


def test_losses_on_data_are_those_of_the_networks(residual: Definition, tmp_path: Path) -> None:
    torch.manual_seed(3)
    x, y = torch.randn(40, 1, 6, 6), torch.arange(40) % 3
    states = [weights(residual, i) for i in (1, 2)]
    paths = [saved(tmp_path / f"{i}.pt", state) for i, state in enumerate(states)]
    found = align_checkpoints(*paths, net=residual, data=lambda: (x, y), merge=0.25)
    said = found.to_json()
    for path, score in zip(paths, said["own"], strict=True):
        answers = outputs(residual, path, x)
        assert score["loss"] == pytest.approx(float(F.cross_entropy(answers, y)), rel=1e-5)
        assert score["accuracy"] == pytest.approx(float((answers.argmax(1) == y).float().mean()))
    assert list(said["lines"]) == [m + r for m in METHODS for r in ("", ", REPAIR")]
    # Where a line ends, repair changes nothing, whatever frame the other network was moved to.
    for line in said["lines"].values():
        ends = [score["loss"] for score in said["own"]]
        assert [line["loss"][0], line["loss"][-1]] == pytest.approx(ends, rel=1e-3)
    line = said["lines"]["as they are"]
    between = {k: 0.75 * states[0][k] + 0.25 * states[1][k] for k in residual.space.parameters}
    mean = saved(tmp_path / "mean.pt", states[0] | between)
    assert line["merged"]["loss"] == pytest.approx(float(F.cross_entropy(outputs(residual, mean, x), y)), rel=1e-4)
    losses = torch.tensor(line["loss"])
    excess = losses - torch.lerp(losses[0], losses[-1], torch.linspace(0, 1, 11))
    assert line["barrier"] == pytest.approx(float(excess.max().clamp(min=0)), abs=1e-5)
    report = found.report()
    assert len(report.figures["barrier.png"].axes) == 2, "loss and accuracy"  # type: ignore[union-attr]
    assert report.tables[0].header[2:] == ("barrier", "loss at 0.25", "accuracy at 0.25")


@pytest.fixture
def course(residual: Definition, tmp_path: Path) -> tuple[list[Path], Tensor, Tensor]:
    """Two networks, and data to judge them on."""
    torch.manual_seed(3)
    paths = [saved(tmp_path / f"{i}.pt", weights(residual, i)) for i in (1, 2)]
    return paths, torch.randn(40, 1, 6, 6), torch.arange(40) % 3


@pytest.mark.parametrize("symmetry", [None, "none", "permutation", "all"])
def test_the_merged_network_is_the_best_of_the_table_or_the_one_that_is_named(
    symmetry: str | None, course: tuple[list[Path], Tensor, Tensor], residual: Definition, tmp_path: Path
) -> None:
    paths, x, y = course
    method = {None: "", "none": "as they are", "permutation": "permutation", "all": "all symmetries"}[symmetry]
    found = align_checkpoints(*paths, net=residual, data=lambda: (x, y), merge=0.25, symmetry=symmetry)
    said = found.to_json()
    losses = {name: line["merged"]["loss"] for name, line in said["lines"].items() if name.startswith(method)}
    assert losses[said["merged_by"]] == min(losses.values())
    moved, merged, *_ = found.write(tmp_path / "out")
    assert float(F.cross_entropy(outputs(residual, merged, x), y)) == pytest.approx(min(losses.values()), rel=1e-4)
    words = f"Merged at 0.25 by {said['merged_by']}"
    chosen = ", the lowest loss of the table. These data chose it, so judge it on others."
    assert words + ("." if symmetry else chosen) in found.summary
    table = found.report().tables[0]
    assert [table.cells[i][0] for i in table.bold] == [said["merged_by"]]
    before, after = (torch.load(path, weights_only=True) for path in (paths[1], moved))
    assert (symmetry == "none") == all(torch.equal(before[key], after[key]) for key in before)


def test_statistics_of_repaired_networks_are_those_of_the_data_that_are_named(
    course: tuple[list[Path], Tensor, Tensor], residual: Definition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignments, "_best_line", lambda *_: "all symmetries, REPAIR")
    paths, x, y = course
    train = 3 + 2 * torch.randn(50, 1, 6, 6)
    options: dict[str, Any] = {"net": residual, "merge": 0.5}
    data, others = TensorDataset(x, y), DataLoader(TensorDataset(train, torch.zeros(50)), 7, shuffle=True)
    words = {
        "REPAIR's statistics are of the data that it is judged on, which flatters it": ({"data": data}, x),
        "REPAIR's statistics are of samples of data": ({"data": data, "repair_data": others}, train),
        "REPAIR's statistics are of samples of <lambda>": ({"repair_data": lambda: [(train, y)]}, train),
    }
    for number, (told, (given, inputs)) in enumerate(words.items()):
        found = align_checkpoints(*paths, **options, **given)
        assert told in found.summary
        assert list(found.results["lines"]) == [m + r for m in METHODS for r in ("", ", REPAIR")]
        merged = torch.load(found.write(tmp_path / f"{number}")[1], weights_only=True)
        entering = F.conv2d(inputs, merged["stem.weight"], padding=1).movedim(1, 0).flatten(1)
        torch.testing.assert_close(merged["norm.running_mean"], entering.mean(1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(merged["norm.running_var"], entering.var(1, correction=0), rtol=1e-4, atol=1e-4)


def test_a_merged_network_with_batch_norm_and_without_data_names_repair(
    course: tuple[list[Path], Tensor, Tensor], residual: Definition, tmp_path: Path
) -> None:
    paths, x, y = course
    words = "batch norms have averages of the networks' statistics, which are not those of its own activations: --data"
    assert words in align_checkpoints(*paths, net=residual, merge=0.5).summary
    assert "REPAIR" not in align_checkpoints(*paths, net=residual).summary
    assert words not in align_checkpoints(*paths, net=residual, merge=0.5, data=lambda: (x, y)).summary
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    plain = define(module, torch.randn(2, 4), "Plain")
    pair = [saved(tmp_path / f"plain{i}.pt", mlp(i, (4, 6, 2))) for i in (1, 2)]
    assert "REPAIR" not in align_checkpoints(*pair, net=plain, merge=0.5).summary


@pytest.mark.parametrize("sharded", [False, True])
def test_networks_of_transformers_keep_their_configuration(residual: Definition, tmp_path: Path, sharded: bool) -> None:
    paths, configurations = [], []
    for i in (1, 2, 3):
        folder = tmp_path / f"run{i}"
        state = weights(residual, i)
        saved(folder / ("part.safetensors" if sharded else "model.safetensors"), state)
        if sharded:
            index = {"metadata": {}, "weight_map": dict.fromkeys(state, "part.safetensors")}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        configurations.append(json.dumps({"model_type": "ours", "number": i}).encode())
        (folder / "config.json").write_bytes(configurations[-1])
        paths.append(folder)
    weight_files = {"part.safetensors", "model.safetensors.index.json"} if sharded else {"model.safetensors"}
    align_checkpoints(*paths, net=residual, merge=0.5).write(tmp_path / "out")
    for name, configuration in (("run2", 1), ("run3", 2), ("merged", 0)):
        files = {path.name: path for path in (tmp_path / "out" / name).iterdir()}
        assert set(files) == {"config.json"} | weight_files
        assert files["config.json"].read_bytes() == configurations[configuration]
    balance_checkpoint(paths[1], net=residual).write(tmp_path / "balanced")
    (written,) = (tmp_path / "balanced").rglob("config.json")
    assert written.read_bytes() == configurations[1]
    assert {path.name for path in written.parent.iterdir()} >= weight_files
    # So is a network that is called as the merged one is.
    merged = paths[0].rename(tmp_path / "merged")
    align_checkpoints(paths[2], merged, net=residual, merge=0.5).write(tmp_path / "again")
    assert {path.name for path in (tmp_path / "again").iterdir() if path.is_dir()} == {"merged", "merged-network"}
    # A config.json beside a file that transformers would not read is no part of the network.
    odd = saved(tmp_path / "odd" / "net.pt", weights(residual, 1))
    (odd.parent / "config.json").write_bytes(configurations[0])
    align_checkpoints(paths[2], odd, net=residual, merge=0.5).write(tmp_path / "odd-out")
    assert (tmp_path / "odd-out" / "net.pt").is_file()
    # Others' config.json, such as one of timm, is no part of the network.
    (paths[1] / "config.json").write_text('{"architecture": "ours"}', encoding="utf-8")
    balance_checkpoint(paths[1], net=residual).write(tmp_path / "other")
    assert not list((tmp_path / "other").rglob("config.json"))


class Drawn(Dataset[Any]):
    """Samples that are drawn anew each time."""

    taken: int = 0

    def __len__(self) -> int:
        return 700

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.taken += 1
        return torch.randn(4) + i / 700, i % 4


class Stream(IterableDataset[tuple[Tensor, int]]):
    """Nobody knows how long it is."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return ((torch.full((4,), float(i)), i % 4) for i in range(300))


def test_a_data_set_without_a_length_is_taken_as_it_comes() -> None:
    for data in (Stream(), DataLoader(Stream(), 32)):
        assert loss_on(data, ()).words == "cross-entropy on 300 samples"


def test_a_data_set_is_taken_in_batches_and_is_the_same_each_time() -> None:
    module, drawn = nn.Identity(), Drawn()
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    for data in (drawn, DataLoader(drawn, 32, shuffle=True), lambda: drawn):
        loss: Any = loss_on(data, ())
        assert loss.words == "cross-entropy on 700 samples"
        assert loss.of_merged(module, {}, ()) == loss.of_merged(module, {}, ())
        assert 700 <= len(loss.statistics) < 1300
    assert [len(y) for _, y in loss] == [256, 256, 188]
    assert torch.equal(torch.random.get_rng_state(), state), "of others nothing changes"
    parts = iter(loss)
    drawn.taken = 0
    next(parts)
    assert drawn.taken == 256, "one batch is in memory"


def test_classes_may_stand_in_the_second_dimension_and_data_come_in_parts() -> None:
    x, y = torch.randn(5, 4, 3), torch.arange(15).reshape(5, 3) % 4
    pixels, words = (loss_on(lambda inputs=inputs: (inputs, y), ()) for inputs in (x, x.movedim(1, 2)))
    scores = [loss.of_merged(nn.Identity(), {}, ()) for loss in (pixels, words)]
    assert scores[0] == scores[1] == pytest.approx((float(F.cross_entropy(x, y)), scores[0][1]))
    parts = loss_on(lambda: [(x, x), (x[:1], x[:1] + 6)], ())
    assert parts.of_merged(nn.Identity(), {}, ())[0] == pytest.approx(6)


def test_batches_may_have_samples_of_other_sizes() -> None:
    """As images of several sizes; statistics are taken on those like the first."""
    images = [torch.randn(2, 3, n, n) for n in (8, 6, 8)]
    loss = loss_on([(x, x + 1) for x in images], ())
    assert loss.of_merged(nn.Identity(), {}, ())[0] == pytest.approx(1)
    assert torch.equal(loss.statistics, torch.cat([images[0], images[2]]))


WRONG: Any = [
    ({"data": "own.py:nothing"}, r"own\.py:nothing returns Tensor: expected tensors \(inputs, targets\), a list of"),
    ({"data": "own.py:fails"}, r"own\.py:fails fails: RuntimeError: no such disk"),
    ({"data": "own.py:no_such"}, r"own\.py has no class or function no_such"),
    ({"data": torch.tensor([0, 5, 1])}, "classes must be 0 to 1, found"),
    ({"data": torch.zeros(4, 7).long()}, r"outputs are \(3, 2\) and classes \(4, 7\)"),
    ({"data": torch.zeros(3, 7)}, r"outputs are \(3, 2\), but targets \(3, 7\)"),
    ({"data": 5}, r"data returns int: expected tensors \(inputs, targets\), a list"),
    ({"data": TensorDataset(torch.zeros(3))}, "data returns DataLoader: expected tensors"),
    ({"data": Drawn()}, r"classes must be 0 to 1, found \[0, 1, 2, 3\]"),
    ({"data": [(torch.zeros(3, 4), "one")]}, "data returns other things: expected tensors"),
    ({"data": lambda: torch.zeros(3, 2)}, "<lambda> returns Tensor: expected tensors"),
    ({"data": [torch.zeros(2, 4)]}, r"outputs are \(2,\), but targets \(4,\)"),
    ({"data": [(torch.zeros(4), torch.tensor(1))]}, "data returns samples one by one: expected tensors"),
    ({"data": [(torch.tensor(1.0), torch.zeros(4))]}, "data returns samples one by one: expected tensors"),
    ({"symmetry": "scale"}, "--symmetry scale: expected none, permutation, all"),
    ({"merge": 1.5}, r"--merge 1\.5: expected the share of the others, 0 to 1"),
    ({"merge": float("nan")}, "--merge nan"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=range(len(WRONG)))
def test_data_and_shares_that_cannot_be_used(
    options: Any, message: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parent)
    paths = [saved(tmp_path / f"{i}.pt", mlp(i)) for i in (1, 2)]
    if isinstance(targets := options.get("data"), Tensor):
        options = {"data": lambda: (torch.randn(3, 4), targets)}
    with pytest.raises(ValueError, match=message):
        align_checkpoints(*paths, activation="relu", **options)
