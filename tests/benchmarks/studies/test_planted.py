"""The study of planted elements in small: what it moves, and that it tells a recovery from a failure."""

import math

import pytest
import torch

from nfn_monomial import GroupElement, WeightSpace
from nfn_monomial.alignment import Alignment
from nfn_monomial.benchmarks.settings.measurements import PlantedConfig
from nfn_monomial.benchmarks.studies.alignment import planted
from nfn_monomial.benchmarks.studies.alignment.planted import (
    KINDS,
    planted_element,
    planted_report,
    recover,
    recover_planted,
)

TINY = PlantedConfig(runs=1, changed_runs=1)


def test_scales_are_as_wide_as_they_should_be() -> None:
    space = WeightSpace.mlp([2, 400, 400, 1], "relu")
    matrix = planted_element(space, 1e6, torch.Generator().manual_seed(0)).matrices["h1"]
    logs = matrix.scale.log() / math.log(1e6)
    assert -1 <= float(logs.min()) < -0.95
    assert 0.95 < float(logs.max()) <= 1
    assert float(logs.std()) == pytest.approx(1 / math.sqrt(3), rel=0.1)  # of a uniform distribution
    assert not torch.equal(matrix.permutation, torch.arange(400))
    signs = planted_element(WeightSpace.mlp([2, 400, 1], "tanh"), 1e6, torch.Generator().manual_seed(0))
    assert set(signs.matrices["h1"].scale.tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize("kind", ["MLP", "GPT block"])
def test_runs_are_recovered_and_can_be_repeated(kind: str) -> None:
    for change in ("exact", "noised"):
        first, second = (recover(kind, change, 5, TINY, {}) for _ in range(2))
        assert first.recovered
        assert first.output_error == second.output_error
        assert (first.output_error < 1e-10) == (change == "exact")


@pytest.mark.parametrize("change", ["exact", "float32", "noised"])
def test_what_was_not_recovered_is_not_counted(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(space: WeightSpace, a: object, b: dict[str, torch.Tensor]) -> Alignment:
        return Alignment(GroupElement(space, {}), b, 1.0)

    monkeypatch.setattr(planted, "align", nothing)
    assert not recover("MLP", change, 5, TINY, {}).recovered


def test_the_table_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planted, "KINDS", {"MLP": KINDS["MLP"]})
    steps: list[tuple[int, int]] = []
    config = PlantedConfig(runs=3, changed_runs=2)
    recoveries = recover_planted(config, lambda done, total: steps.append((done, total)))
    assert steps == [(i, 7) for i in range(1, 8)]
    report = planted_report(recoveries, config)
    assert [(row["change"], row["runs"], row["recovered"]) for row in report.results["rows"]] == [
        ("exact", 3, 3),
        ("float32", 2, 2),
        ("noised", 2, 2),
    ]
    assert "| MLP | exact | 3 | 3 |" in report.markdown
