"""Training a zoo: what is written is what was trained, and no more is trained than is missing."""

import csv
import gzip
import json
import logging
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from small_cnns import LAYOUT, torch_forward
from torch.nn import functional as F

from nfn_monomial.benchmarks.data.formats.small_cnn_zoo import load_zoo
from nfn_monomial.benchmarks.data.images import load_images
from nfn_monomial.benchmarks.data.layout import ZooError
from nfn_monomial.benchmarks.make import zoo as zoo_make
from nfn_monomial.benchmarks.make.mixed import make_mixed_zoo
from nfn_monomial.benchmarks.make.mixed_recipes import MixedConfig
from nfn_monomial.benchmarks.make.plans import Plan, initial_weights
from nfn_monomial.benchmarks.make.recipes import ZooConfig, draw_recipes
from nfn_monomial.benchmarks.make.training import ImageTensors
from nfn_monomial.benchmarks.make.zoo import make_zoo

# A zoo of a dozen networks in about ten chunks, trained for a few steps.
TINY = ZooConfig(networks=12, chunk=2, epochs=(1, 2), train_fractions=(0.1, 0.2), seed=3)
FILES = ("weights.npy", "metrics.csv.gz", "layout.csv", "zoo.json")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("zoos") / "tiny"
    made = make_zoo(out, TINY)
    assert (made.made, made.networks, made.diverged) == (True, 12, 0)
    return out


def read_metrics(folder: Path) -> list[dict[str, str]]:
    with gzip.open(folder / "metrics.csv.gz", "rt", newline="") as file:
        return list(csv.DictReader(file))


def same(first: Path, second: Path) -> bool:
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in FILES)


def test_zoo_is_in_the_published_format(tiny: Path) -> None:
    zoo = load_zoo(tiny, "relu")
    assert [len(part) for part in (zoo.train, zoo.val, zoo.test)] == [2, 1, 3]
    assert len(load_zoo(tiny, "tanh").test) == 3
    assert sorted(p.name for p in tiny.iterdir()) == sorted([*FILES, "SHA256SUMS", "tiny_split.csv"])


def test_metrics_state_the_recipes(tiny: Path) -> None:
    rows = read_metrics(tiny)
    assert [row["config.activation"] for row in rows] == ["relu", "tanh"] * 6
    assert len({row["modeldir"] for row in rows}) == 12
    for row, drawn in zip(rows, draw_recipes(TINY), strict=True):
        assert float(row["config.learning_rate"]) == drawn.learning_rate
        assert int(row["config.random_seed"]) == drawn.random_seed
        assert row["config.w_init"] == drawn.w_init
        assert row["step"] == row["config.epochs"] == str(drawn.epochs)
        assert (row["config.dataset"], row["config.num_layers"], row["config.num_units"]) == ("digits", "3", "16")


def test_written_accuracies_are_those_of_the_written_weights(tiny: Path, data: ImageTensors) -> None:
    weights = torch.from_numpy(np.load(tiny / "weights.npy"))
    images = data.test_x.movedim(-1, 1)
    for row, line in zip(weights, read_metrics(tiny), strict=True):
        logits = torch_forward(row[None], images[None], 1, line["config.activation"])[0]
        accuracy = (logits.argmax(1) == data.test_y).float().mean().item()
        assert float(line["test_accuracy"]) == pytest.approx(accuracy, abs=1.5 / len(images))  # rounding: one image
        loss = F.cross_entropy(logits, data.test_y).item()
        assert float(line["test_loss"]) == pytest.approx(loss, rel=1e-4)


def test_train_accuracy_is_that_on_the_share_of_images_seen(tiny: Path, data: ImageTensors) -> None:
    weights = torch.from_numpy(np.load(tiny / "weights.npy"))
    for row, line, drawn in zip(weights, read_metrics(tiny), draw_recipes(TINY), strict=True):
        subset = Plan(drawn, partial(initial_weights, layout=LAYOUT), len(data.train_y), 32, 1).subset
        logits = torch_forward(row[None], data.train_x[subset].movedim(-1, 1)[None], 1, drawn.activation)[0]
        accuracy = (logits.argmax(1) == data.train_y[subset]).float().mean().item()
        assert float(line["train_accuracy"]) == pytest.approx(accuracy, abs=1.5 / len(subset))


def test_seed_reproduces_a_zoo_and_another_makes_another(tiny: Path, tmp_path: Path) -> None:
    make_zoo(tmp_path / "again", TINY, workers=1)
    assert same(tiny, tmp_path / "again")
    make_zoo(tmp_path / "other", replace(TINY, seed=4))
    assert not np.allclose(np.load(tiny / "weights.npy"), np.load(tmp_path / "other" / "weights.npy"))


def test_interrupted_and_continued_is_the_same_zoo(tiny: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []

    def interrupt(done: int, total: int) -> None:
        calls.append((done, total))
        if len(calls) == 4:  # at the start, and after each of three chunks
            raise KeyboardInterrupt

    out = tmp_path / "zoo"
    with pytest.raises(KeyboardInterrupt):
        make_zoo(out, TINY, workers=1, progress=interrupt)
    stored = sorted((out / ".chunks").glob("*.safetensors"))
    assert len(stored) >= 3
    assert not (out / "metrics.csv.gz").exists()
    with pytest.raises(ZooError, match="missing"):
        load_zoo(out)

    stored[0].write_bytes(stored[0].read_bytes()[:1000])  # a machine that lost power: trained again
    resumed: list[tuple[int, int]] = []
    assert make_zoo(out, TINY, progress=lambda done, total: resumed.append((done, total))).made
    assert 0 < resumed[0][0] < calls[-1][1]
    assert resumed[-1][0] == resumed[-1][1] == calls[-1][1]
    assert same(tiny, out)
    assert not (out / ".chunks").exists()


def test_finished_zoo_is_not_made_again(tiny: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny.iterdir()}
    made = make_zoo(tiny, TINY, progress=lambda done, total: pytest.fail("nothing should be trained"))
    assert (made.made, made.networks) == (False, 12)
    assert before == {path: path.stat().st_mtime_ns for path in tiny.iterdir()}


def test_another_configuration_is_refused_or_overwrites(tmp_path: Path) -> None:
    small = replace(TINY, networks=2)
    make_zoo(tmp_path, small)
    other = replace(small, seed=9, epochs=(1, 1))
    with pytest.raises(
        ValueError, match=r"epochs is \[1, 2\] there, \[1, 1\] asked for; seed is 3 there, 9 .*--overwrite"
    ):
        make_zoo(tmp_path, other)
    assert make_zoo(tmp_path, other, overwrite=True).made
    assert json.loads((tmp_path / "zoo.json").read_text(encoding="utf-8"))["config"]["seed"] == 9


def test_a_mixed_zoo_is_refused_or_overwritten_completely(tmp_path: Path) -> None:
    make_mixed_zoo(tmp_path, MixedConfig(networks=2, per_architecture=1, widths=(4, 5), epochs=(1, 1), depths=(2, 2)))
    with pytest.raises(ValueError, match=r"holds a zoo of another configuration: .*--overwrite"):
        make_zoo(tmp_path, replace(TINY, networks=2))
    assert len(list(tmp_path.glob("group_*.safetensors"))) == 2
    assert make_zoo(tmp_path, replace(TINY, networks=2), overwrite=True).made
    assert not list(tmp_path.glob("group_*.safetensors"))


@pytest.mark.parametrize("name", ["weights.npy", "metrics.csv.gz", "layout.csv", "group_00000.safetensors"])
def test_foreign_zoos_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("a download of five gigabytes", encoding="utf-8")
    for make in (lambda: make_zoo(tmp_path, TINY, overwrite=True), lambda: make_mixed_zoo(tmp_path, overwrite=True)):
        with pytest.raises(ValueError, match=rf"holds {re.escape(name)} but no zoo\.json"):
            make()
    assert (tmp_path / name).exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_damaged_description_is_for_people_to_look_at(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "zoo.json").write_text("{", encoding="utf-8")
    with pytest.raises(ZooError, match=r"zoo\.json is damaged .*delete the folder"):
        make_zoo(tmp_path, TINY, overwrite=overwrite)


def test_diverged_networks_are_drawn_again_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wild = replace(TINY, networks=4, activations=("relu",), optimizers=("sgd",), sgd_learning_rate=(1e-2, 1e3), seed=1)
    with caplog.at_level(logging.INFO, logger="nfn_monomial.benchmarks"):
        made = make_zoo(tmp_path / "wild", wild)
    assert made.diverged > 0
    assert f"{made.diverged} networks diverged" in caplog.text
    assert np.isfinite(np.load(tmp_path / "wild" / "weights.npy")).all()
    drawn = [str(r.learning_rate) for r in draw_recipes(wild)]
    assert [row["config.learning_rate"] for row in read_metrics(tmp_path / "wild")] != drawn
    assert make_zoo(tmp_path / "wild", wild).diverged == made.diverged

    hopeless = replace(wild, sgd_learning_rate=(1e6, 1e7))
    with pytest.raises(ZooError, match=r"network \d diverged 6 times: choose smaller learning rates"):
        make_zoo(tmp_path / "hopeless", hopeless)


def test_missing_images_leave_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError("pip install nfn-monomial[bench]")

    monkeypatch.setattr(zoo_make, "load_images", missing)
    with pytest.raises(ImportError, match="bench"):
        make_zoo(tmp_path / "zoo", TINY)
    assert not (tmp_path / "zoo").exists()


def test_mnist5k_has_the_published_shape(tmp_path: Path) -> None:
    make_zoo(tmp_path, replace(TINY, images="mnist5k", networks=1, activations=("tanh",), epochs=(1, 1)))
    images = load_images("mnist5k")
    row = torch.from_numpy(np.load(tmp_path / "weights.npy"))
    logits = torch_forward(row, images.x[images.test][None], 0, "tanh")[0]
    accuracy = (logits.argmax(1) == images.y[images.test]).float().mean().item()
    assert float(read_metrics(tmp_path)[0]["test_accuracy"]) == pytest.approx(accuracy, abs=1.5 / len(images.test))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": "cifar"}, "unknown images 'cifar': choose one of digits, mnist5k"),
        ({"networks": 0}, "networks is 0, but must be at least 1"),
        ({"activations": ("gelu",)}, "activations is .*choose at least one of relu, tanh"),
        ({"optimizers": ()}, "optimizers is .*choose at least one of adam, rmsprop, sgd"),
        ({"epochs": (5, 2)}, r"epochs is \(5, 2\), expected a range"),
        ({"learning_rate": (0.0, 1.0)}, "learning_rate is"),
        ({"train_fractions": (1.5,)}, "train_fractions is"),
        ({"dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_configurations_that_make_no_sense(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)  # type: ignore[arg-type]


def test_recipes_of_a_longer_zoo_begin_with_those_of_a_shorter() -> None:
    assert draw_recipes(replace(TINY, networks=20))[:12] == draw_recipes(TINY)
    assert len({r.random_seed for r in draw_recipes(replace(TINY, networks=500))}) == 500
