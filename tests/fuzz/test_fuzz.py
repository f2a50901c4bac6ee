"""Damaged files: whatever they hold, reading them gives the data of before, or an error of ours.

`fuzz.longer` tries as many damages as one likes. Failures name the sample and the number of the damage:
``Bench(sample, folder).trial(number)`` is the same again.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from fuzz.samples import SAMPLES
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
