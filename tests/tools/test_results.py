"""Folders for results: nothing is written over, and the same command alone goes on with what it has kept."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from own_networks import mlp, saved

from nfn_monomial.errors import InvalidValueError
from nfn_monomial.tools import compare_checkpoints
from nfn_monomial.tools.predictors import Predictor
from nfn_monomial.tools.results import UNFINISHED, Progress, Results, command_key, silent
from nfn_monomial.tools.store import Store


@pytest.fixture
def networks(tmp_path: Path) -> list[Path]:
    return [saved(tmp_path / "nets" / f"{i}.safetensors", mlp(i)) for i in range(4)]


def results_of(folder: Path, files: list[Path], **arguments: Any) -> Results:
    return Results(folder / "out", command_key("compare", {"seed": 0} | arguments, files), leaves=["table.md"])


def store_of(results: Results) -> Store:
    assert results.store is not None
    return results.store


def test_files_that_were_begun_are_replaced_by_the_same_command_alone(networks: list[Path], tmp_path: Path) -> None:
    (path,) = results_of(tmp_path, networks).claim(["table.md"], {})
    path.touch()  # and then it was cut off
    there = r"table\.md is there already: give another --out, or --force"
    with pytest.raises(InvalidValueError, match=there):
        results_of(tmp_path, networks, seed=1)
    again = results_of(tmp_path, networks)
    with pytest.raises(InvalidValueError, match="would be written twice"):
        again.claim(["table.md", "table.md"], {})
    with pytest.raises(InvalidValueError, match="is a, which was read, and is not written over"):
        again.claim(["table.md"], {path.resolve(): "a"})
    assert again.claim(["table.md"], {}) == [path]
    (tmp_path / "out" / "results.json").write_text("a user's")
    with pytest.raises(InvalidValueError, match=r"results\.json is there already"):
        again.claim(["table.md", "results.json"], {})
    again.finish()
    assert [entry.name for entry in sorted((tmp_path / "out").iterdir())] == ["results.json", "table.md"]
    with pytest.raises(InvalidValueError, match=there):
        results_of(tmp_path, networks)
    assert Results(path.parent, leaves=["table.md"], force=True).claim(["table.md"], {}) == [path]


def test_other_arguments_and_other_contents_of_files_have_other_pieces(networks: list[Path], tmp_path: Path) -> None:
    store_of(results_of(tmp_path, networks)).put("first", [0.1], {"x": torch.ones(3)})
    assert store_of(results_of(tmp_path, networks)).get("first") is not None
    assert store_of(results_of(tmp_path, networks, seed=1)).get("first") is None
    before, changed = networks[1].stat(), bytearray(networks[1].read_bytes())
    changed[-1] ^= 1
    networks[1].write_bytes(changed)  # as large as before, and as old
    os.utime(networks[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store_of(results_of(tmp_path, networks)).get("first") is None


def compared(paths: list[Path], store: Store | None, progress: Progress) -> Any:
    return compare_checkpoints(*paths[:3], activation="relu", store=store, progress=progress).to_json()


def predicted(paths: list[Path], store: Store | None, progress: Progress) -> list[float]:
    """By the predictor that ships, of five networks of its kind, two at once."""
    predictor = Predictor.load()
    folder = paths[0].parent / "cnns"
    for i in range(5):
        torch.manual_seed(i)
        state = {name: torch.randn(shape) for name, shape in predictor.task.infos[0].space.shapes().items()}
        saved(folder / f"{i}.safetensors", state)
    return [float(p.answer) for p in predictor.predict([folder], store=store, progress=progress)]


@pytest.mark.parametrize(("command", "steps", "lost"), [(compared, 1, 1), (predicted, 4, 0)])
def test_a_command_that_was_interrupted_goes_on(
    command: Callable[..., Any], steps: int, lost: int, networks: list[Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("nfn_monomial.tools.predictors.models.EVALUATION_BATCH", 2)
    expected = command(networks, None, silent)

    def stop(done: int, total: int) -> None:
        if done > steps:
            raise KeyboardInterrupt

    def times() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / UNFINISHED).glob("*.piece")}

    with pytest.raises(KeyboardInterrupt):
        command(networks, results_of(tmp_path, networks).store, stop)
    before = times()
    assert before
    assert command(networks, results_of(tmp_path, networks).store, silent) == expected
    kept = [name for name, time in times().items() if before.get(name) == time]
    assert len(kept) == len(before) - lost, "all but the row that was under way"
