"""Costs: every model in every setting, relative to HNP, and the paper's numbers in a table of their own."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from nfn_monomial.benchmarks.cli import application as cli
from nfn_monomial.benchmarks.settings.measurements import COST as PRESETS
from nfn_monomial.benchmarks.settings.measurements import CostConfig
from nfn_monomial.benchmarks.studies import cost
from nfn_monomial.benchmarks.studies.cost import Cost, cost_table, measure_costs, published_table
from nfn_monomial.benchmarks.studies.figures import draw_costs
from nfn_monomial.benchmarks.studies.params import zoo_network

TINY = CostConfig(("hnp", "stats", "monomial"), ("relu",), (2, 4), networks=10, repeats=1)


def a_cost(model: str, step_ms: float, peak_bytes: int) -> Cost:
    return Cost("relu", 8, model, model.upper(), "permutations", 20_000, step_ms, 0.5, peak_bytes)


def test_every_model_in_every_setting() -> None:
    told: list[str] = []
    costs = measure_costs(TINY, told.append)
    assert [(c.batch, c.model) for c in costs] == [(b, m) for b in (2, 4) for m in ("hnp", "stats", "monomial")]
    assert told == ["relu networks, batches of 2", "relu networks, batches of 4"]
    assert all(min(c.step_ms, c.prepare_ms, c.peak_bytes) > 0 for c in costs)
    small, large = ({c.model: c for c in costs if c.batch == batch} for batch in (2, 4))
    assert small["monomial"].parameters == 254_799
    # Parameters, gradients and Adam's two moments are there at least, and more of a larger batch.
    assert all(c.peak_bytes > 4 * 4 * c.parameters for c in costs)
    assert small["monomial"].peak_bytes < large["monomial"].peak_bytes
    assert small["stats"].peak_bytes < small["monomial"].peak_bytes < small["hnp"].peak_bytes
    assert draw_costs(costs).startswith(b"\x89PNG")


def test_a_step_trains() -> None:
    contender = cost._contender("hnp", zoo_network("tanh"), 4, torch.device("cpu"))
    losses = [float(contender.step()) for _ in range(8)]  # type: ignore[arg-type]
    assert losses[-1] < losses[0]


def test_table_is_relative_to_hnp() -> None:
    table = cost_table([a_cost("hnp", 100.0, 8 << 20), a_cost("other", 25.0, 16 << 20)], 81, "cpu")
    lines = [dict(zip(table.header, line, strict=True)) for line in table.cells]
    assert [line["time / HNP"] for line in lines] == ["1.00", "0.25"]
    assert [line["memory / HNP"] for line in lines] == ["1.00", "2.00"]
    assert [line["peak MiB"] for line in lines] == ["8", "16"]
    assert lines[0]["s/epoch"] == "1.1", "81 networks are 11 steps"
    assert lines[0]["min/50 epochs"] == "0.9"


def test_published() -> None:
    lines = {line[0]: line[1:] for line in published_table().cells}
    assert lines["HNP"][2:4] == ("1.00", "1.00")
    assert lines["Monomial-NFN"] == ("18m23s", "23m47s", "0.62", "0.79", "582MB", "560MB", "0.68", "0.65")
    assert lines["GNN"][2] == "8.96"


def test_configurations() -> None:
    assert PRESETS["paper"].batch_sizes == (8,)
    for wrong, message in (
        ({"models": ("monomial",)}, "models is monomial: add hnp"),
        ({"batch_sizes": (8, 8)}, "none twice"),
        ({"batch_sizes": (0,)}, "batch_sizes is 0"),
        ({"activations": ()}, "at least one"),
    ):
        with pytest.raises(ValueError, match=message):
            CostConfig(**wrong)
    with pytest.raises(ValueError, match="unknown model 'nothing'"):
        measure_costs(CostConfig(models=("hnp", "nothing")))


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.console, "_width", 80)
    arguments = ["cost", "--out", str(tmp_path), "--models", "hnp,stats"]
    small = ["--set", "batch_sizes=2", "--set", "repeats=1", "--set", "activations=tanh"]
    result = CliRunner().invoke(cli.app, [*arguments, *small])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    text = (tmp_path / "table.md").read_text()
    assert text.index("Training on tanh networks in batches of 2") < text.index("Published: 50 epochs")
    results = json.loads((tmp_path / "results.json").read_text())
    assert [c["model"] for c in results["costs"]] == ["hnp", "stats"]
    assert results["environment"]["device"] == "cpu"
    assert (tmp_path / "cost.png").exists()
    result = CliRunner().invoke(cli.app, [*arguments, "--device", "tpu"])
    assert result.exit_code == 2
    assert "device 'tpu' is unknown" in " ".join(result.output.split())
