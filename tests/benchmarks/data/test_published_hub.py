"""Folders in the style of the Hugging Face hub, whole and damaged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from published_writers import HubNet, truncate, write_hub

from nfn_monomial.adapters.modules import network_outputs
from nfn_monomial.benchmarks.data.formats.base import CorpusError
from nfn_monomial.benchmarks.data.formats.detection import load_generalization
from nfn_monomial.benchmarks.data.moves import transform

REPOS = [f"net-{n}" for n in range(7)]


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    write_hub(tmp_path, REPOS)
    return tmp_path


@pytest.mark.parametrize("cache", [False, True])
def test_hub_networks_compute_what_they_did(tmp_path: Path, cache: bool) -> None:
    made = list(write_hub(tmp_path, [f"models--me--{r}/snapshots/abc" if cache else r for r in REPOS]).values())
    (corpus,) = load_generalization(tmp_path).values()
    assert (corpus.activation, corpus.source["train"]) == ("relu", 5)
    assert list(corpus.info.space.parameters) == [
        "weight.0", "bias.0", "weight.1", "weight.2", "bias.2", "weight.3", "bias.3",
    ]  # fmt: skip
    keys = [name for name, _ in HubNet().named_parameters()]
    x = torch.randn(4, 1, 6, 6)
    for part in (*corpus.train, *corpus.val, *corpus.test):
        own = torch.stack([made[round(100 * a)](x) for a in part.networks.accuracy.tolist()])
        for networks in (part, transform((part,), 5.0, seed=3)[0]):
            tensors = dict(zip(keys, (t.unsqueeze(1) for t in networks.networks.tensors.values()), strict=True))
            torch.testing.assert_close(network_outputs(HubNet(), tensors, x), own, atol=1e-5, rtol=1e-4)


def test_activations_come_from_the_configuration_or_the_caller(hub: Path) -> None:
    for n in range(3):
        (hub / REPOS[n] / "config.json").write_text(json.dumps({"activation": "tanh"}), encoding="utf-8")
    assert {name: c.source["train"] for name, c in load_generalization(hub).items()} == {"relu": 2, "tanh": 1}
    assert list(load_generalization(hub, activation="gelu")) == ["gelu"]
    (hub / REPOS[1] / "config.json").unlink()
    with pytest.raises(CorpusError, match=r"net-1/config\.json does not state activation, .* give activation"):
        load_generalization(hub)
    with pytest.raises(CorpusError, match=r"net-0: unknown activation or symmetry 'swoosh'"):
        load_generalization(hub, activation="swoosh")


def accuracies(folder: Path, **options: Any) -> list[float]:
    (corpus,) = load_generalization(folder, **options).values()
    found = torch.cat([part.networks.accuracy for part in (*corpus.train, *corpus.val, *corpus.test)])
    return sorted(round(a, 4) for a in found.tolist())


def test_accuracies_come_from_results_metrics_metadata_or_targets(hub: Path) -> None:
    assert accuracies(hub) == [n / 100 for n in range(7)]
    (hub / "net-1" / "results.json").rename(hub / "net-1" / "metrics.json")
    (hub / "net-2" / "results.json").unlink()
    file = hub / "net-2" / "model.safetensors"
    safetensors.torch.save_file(HubNet().state_dict(), file, metadata={"test_accuracy": "0.02"})
    assert accuracies(hub) == [n / 100 for n in range(7)]
    (hub / "net-1" / "metrics.json").unlink()
    with pytest.raises(CorpusError, match=r"net-1: no accuracy, .* give targets, a CSV file with columns repo and"):
        load_generalization(hub)
    table = hub / "targets.csv"
    table.write_text("repo,accuracy\n" + "".join(f"net-{n},{n / 10}\n" for n in range(8)), encoding="utf-8")
    assert accuracies(hub, targets=table) == [n / 10 for n in range(7)]


TARGETS = [
    ("repo,accuracy\nnet-0,0.5\n", "net-1: targets has no line for repo net-1"),
    ("repo,accuracy\nnet-0,0.5\nnet-0,0.6\n", r"targets\.csv, line 3: repo net-0 occurs twice"),
    ("repo,accuracy\nnet-0,95\n", r"targets\.csv, line 2: accuracy is '95', expected an accuracy as a share"),
    ("name,score\n", r"targets\.csv has columns name, score, expected repo and accuracy"),
]


@pytest.mark.parametrize(("text", "message"), TARGETS)
def test_damaged_targets_are_named(hub: Path, text: str, message: str) -> None:
    (hub / "targets.csv").write_text(text, encoding="utf-8")
    with pytest.raises(CorpusError, match=message):
        load_generalization(hub, targets=hub / "targets.csv")
    with pytest.raises(CorpusError, match=r"none\.csv does not exist"):
        load_generalization(hub, targets=hub / "none.csv")


def other(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        state = dict(HubNet().state_dict())
        change(state)
        safetensors.torch.save_file(state, path)

    return write


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (truncate, "is damaged"),
    (other(lambda s: s.pop("classifier.0.bias")), r"bias\.2 is missing, expected \(6,\) as in"),
    (other(lambda s: s.update(mean=torch.ones(1))), r"has mean \(1,\): no chain of layers"),
    (other(lambda s: s.update({"norm.weight": torch.ones(4)})), r"has norm\.weight \(4,\): no chain of layers"),
    (other(lambda s: s["features.0.bias"].fill_(float("nan"))), r"features\.0\.bias holds NaN"),
    (
        other(lambda s: s.update({"features.0.weight": torch.ones(4, 2, 3, 3)})),
        r"weight\.0 is \(4, 2, 3, 3\), expected",
    ),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damaged_snapshots_are_named(hub: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(hub / "net-4" / "model.safetensors")
    with pytest.raises(CorpusError, match=rf"net-4/model\.safetensors:? {message}"):
        load_generalization(hub)


def test_damaged_json_and_double_snapshots_are_named(tmp_path: Path) -> None:
    write_hub(tmp_path, [f"models--me--net/snapshots/{name}" for name in ("abc", "def")])
    with pytest.raises(CorpusError, match=r"def/model\.safetensors and .*abc/.* are snapshots of the same me/net"):
        load_generalization(tmp_path)
    write_hub(tmp_path / "other", REPOS)
    truncate(tmp_path / "other" / "net-3" / "results.json")
    with pytest.raises(CorpusError, match=r"net-3/results\.json is damaged"):
        load_generalization(tmp_path / "other")


@pytest.mark.parametrize(("names", "clear"), [(("one", "two", "three"), False), (("fc1", "fc2", "fc10"), True)])
def test_layers_whose_order_is_not_clear_are_an_error(tmp_path: Path, names: tuple[str, ...], clear: bool) -> None:
    for n in range(3):
        (tmp_path / f"net-{n}").mkdir()
        state = {f"{name}.weight": torch.full((4, 4), float(i)) for i, name in enumerate(names)}
        safetensors.torch.save_file(state, tmp_path / f"net-{n}" / "model.safetensors", metadata={"accuracy": "0.5"})
    if clear:
        tensors = load_generalization(tmp_path, activation="relu")["relu"].test[0].networks.tensors
        assert [t[0, 0, 0].item() for t in tensors.values()] == [0.0, 1.0, 2.0]
    else:
        with pytest.raises(CorpusError, match=r"model\.safetensors: the order of the layers is not clear \(both"):
            load_generalization(tmp_path, activation="relu")
