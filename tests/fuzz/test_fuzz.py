"""Damaged files: whatever they hold, reading them gives the data of before, or an error of ours.

`fuzz.longer` tries as many damages as one likes. Failures name the sample and the number of the damage:
``Bench(sample, folder).trial(number)`` is the same again.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from fuzz.longer import run
from fuzz.mutations import OF_BYTES, OF_MEANING
from fuzz.samples import SAMPLES, make
from fuzz.trial import Bench

from nfn_monomial.adapters import tensor_files
from nfn_monomial.tools import sealed

TRIALS = 40  # of each sample


@pytest.mark.parametrize("name", SAMPLES)
def test_damage_is_an_error_or_does_not_matter(name: str, tmp_path: Path) -> None:
    bench = Bench(name, tmp_path)
    outcomes = [bench.trial(number) for number in range(1 if bench.sample.slow else TRIALS)]
    assert [(what, outcome.detail) for what, outcome in outcomes if outcome.kind == "FAULT"] == []
    assert {outcome.kind for _, outcome in outcomes} >= {"refused"}


def test_trials_are_the_same_again(tmp_path: Path) -> None:
    first, second = (_damages(Bench("checkpoints_csv", tmp_path / name), 20) for name in "ab")
    assert first == second


def test_every_mutation_is_used(tmp_path: Path) -> None:
    used = set()
    for name in ("checkpoints_csv", "checkpoints_json", "published_zoo", "torch_file"):
        used |= {how for _, how, _ in _damages(Bench(name, tmp_path), 100)}
    assert used == {*OF_BYTES, *OF_MEANING}


def _damages(bench: Bench, count: int) -> list[tuple[str, str, bytes]]:
    made = []
    for number in range(count):
        with bench.damaged(number) as (file, how):
            whole = file.is_file() and not file.is_symlink() and file.stat().st_size < 2**20
            made.append((file.name, how, file.read_bytes() if whole else b""))
    return made


class Broken(NamedTuple):
    """A reader that does not look at its file."""

    content: object


@pytest.mark.parametrize(
    ("name", "function", "broken", "fault"),
    [
        ("made_inrs", "_digest", lambda tensors, text: "always the same", "damage was taken for data"),
        ("torch_file", "SavedFile", lambda path: Broken({"state": {"weight": torch.zeros(1)}}), "taken for data"),
        (
            "torch_file",
            "SavedFile",
            lambda path: Broken({"state": {"weight": torch.ones(2**28 + 2**20).sum()}}),
            "more memory",
        ),
    ],
)
def test_faults_are_found(
    name: str, function: str, broken: object, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(name, tmp_path)
    monkeypatch.setattr(sealed if function == "_digest" else tensor_files, function, broken)
    if function == "_digest":  # which the file was written with
        bench = Bench(name, tmp_path / "again")
    assert any(fault in bench.trial(number)[1].detail for number in range(60))


def test_longer_runs_count_on(tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    first = run(10, counts, names=("checkpoints_csv", "torch_file"))
    second = run(16, counts, names=("checkpoints_csv", "torch_file"))
    assert sum(first["checkpoints_csv"].values()) == 5
    assert sum(second["checkpoints_csv"].values()) + sum(second["torch_file"].values()) == 16
    assert all(second["checkpoints_csv"][kind] >= number for kind, number in first["checkpoints_csv"].items())


def test_samples_are_always_the_same(tmp_path: Path) -> None:
    first, second = (make("safetensors_file", tmp_path / name).path.read_bytes() for name in "ab")
    assert first == second
