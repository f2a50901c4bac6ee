"""Zoos: what is stored is what was trained, no more is trained than is missing, and what is not ours is left alone."""

import json
import logging
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from invoking import said
from tiny_inrs import TINY as INRS
from tiny_mixed_zoo import TINY as MIXED
from tiny_mixed_zoo import run
from torch import Tensor

from nfn_monomial.benchmarks.data.formats.base import FORMATS, CorpusError
from nfn_monomial.benchmarks.data.formats.detection import detect, load_generalization
from nfn_monomial.benchmarks.data.formats.made import MadeMixedZoo, MadeZoo, Shard, read_groups, stated
from nfn_monomial.benchmarks.data.images import Images
from nfn_monomial.benchmarks.data.networks import Corpus, split_rows
from nfn_monomial.benchmarks.make import config as zoo_config
from nfn_monomial.benchmarks.make import jobs
from nfn_monomial.benchmarks.make.config import (
    ZooConfig,
)
from nfn_monomial.benchmarks.make.inrs import make_inrs
from nfn_monomial.benchmarks.make.jobs import Made
from nfn_monomial.benchmarks.make.zoo import make_zoo
from nfn_monomial.tools.files.sealed import read_sealed, seal
from nfn_monomial.tools.predictors.architectures import Architecture

# A dozen networks in about ten shards, trained for a few steps.
CNN = ZooConfig(networks=12, chunk=2, epochs=(1, 2), train_fractions=(0.1, 0.2), seed=3)
CONFIGS = {"cnn": CNN, "mixed": MIXED, "inrs": INRS}


def make(out: Path, config: Any, **options: Any) -> Made:
    return (make_inrs if config is INRS or isinstance(config, type(INRS)) else make_zoo)(out, config, **options)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory, inrs: Path) -> dict[str, Path]:
    """One of every kind, which tests only read."""
    folder = tmp_path_factory.mktemp("zoos")
    for kind, count in {"cnn": 12, "mixed": 22}.items():
        made = make(folder / kind, CONFIGS[kind])
        assert (made.made, made.networks, made.summary["diverged"]) == (count, count, 0)
    return {"cnn": folder / "cnn", "mixed": folder / "mixed", "inrs": inrs}


@pytest.fixture(params=CONFIGS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def copied(source: Path, target: Path) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("shard-*"))}


def groups_in(folder: Path) -> list[Shard]:
    kind = json.loads((folder / "zoo.json").read_text())["kind"]
    return read_groups(folder, kind)[1]


# --- what is stored ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cnn", "mixed"])
def test_stored_accuracies_are_those_of_the_stored_networks(name: str, sets: dict[str, Path], digits: Images) -> None:
    x, y = digits.x[digits.test], digits.y[digits.test]
    groups = groups_in(sets[name])
    for group in groups:
        assert isinstance(group.architecture, Architecture)
        accuracy = (run(group.architecture, group.parameters, x).argmax(-1) == y).float().mean(1)
        assert float((group.tensors["accuracy"] - accuracy).abs().max()) * len(y) < 1.5  # rounding: one image
    assert len({a for group in groups for a in group.tensors["accuracy"].tolist()}) > 8


def test_networks_of_all_kinds(tmp_path: Path, digits: Images) -> None:
    config = replace(MIXED, networks=8, per_architecture=2, kinds=("transformer", "residual"), epochs=(2, 2))
    assert make_zoo(tmp_path, config).made
    corpus = MadeMixedZoo.load(tmp_path)["mixed"]
    x, y = digits.x[digits.test], digits.y[digits.test]
    for part in (*corpus.train, *corpus.val, *corpus.test):
        assert part.info.template is not None
        module, tensors = part.info.template().eval(), part.networks.tensors
        for i, stored in enumerate(part.networks.accuracy):
            answers = torch.func.functional_call(module, {name: t[i] for name, t in tensors.items()}, (x,))
            assert abs((answers.argmax(-1) == y).float().mean() - stored) < 1.5 / len(y)
        assert part.info.input_shape == (1, 8, 8)
    assert [group.architecture.kind for group in groups_in(tmp_path)] == ["transformer", "residual"] * 2


def numbers(corpus: Corpus) -> list[list[float]]:
    """Every network by its accuracy and a weight."""

    def of(part: Any) -> list[float]:
        return (part.networks.accuracy + part.networks.tensors["bias.0"][:, 0]).tolist()

    return [[x for part in getattr(corpus, name) for x in of(part)] for name in ("train", "val", "test")]


def test_networks_are_split_by_activation(sets: dict[str, Path]) -> None:
    corpora = MadeZoo.load(sets["cnn"])
    assert list(corpora) == ["relu", "tanh"]
    for corpus in corpora.values():
        parts = numbers(corpus)
        assert [len(part) for part in parts] == [2, 1, 3]
        assert len({x for part in parts for x in part}) == 6
    assert len(MadeZoo.load(sets["cnn"], limit=1)["tanh"].train[0]) == 1
    with pytest.raises(CorpusError, match="limit is 0"):
        load_generalization(sets["cnn"], limit=0)


def test_fewer_networks_are_for_testing(sets: dict[str, Path]) -> None:
    half, fewer = MadeZoo.load(sets["cnn"]), load_generalization(sets["cnn"], ["tested=0.17"])
    for name, corpus in fewer.items():
        train, val, test = numbers(corpus)
        assert [len(train), len(val), len(test)] == [3, 1, 2]
        assert sorted(train + val + test) == sorted(x for part in numbers(half[name]) for x in part)
        assert set(test) < set(numbers(half[name])[2]), "the last of the same order"
        assert corpus.source["test"] == 2
    for share in (0, 1, -0.5, float("nan")):
        with pytest.raises(CorpusError, match=rf"tested is {float(share)}, expected a share of the networks between"):
            load_generalization(sets["cnn"], [f"tested={share}"])
    with pytest.raises(CorpusError, match=r"with tested=0\.99 no network of 6 is left for train and val: take another"):
        load_generalization(sets["cnn"], tested=0.99)
    less = load_generalization(sets["cnn"], ["tested=0.17", "limit=2"])["relu"]
    assert [len(part) for part in numbers(less)] == [2, 1, 2]


@pytest.mark.parametrize(
    ("networks", "tested", "train", "val", "test"),
    [(9000, 0.14, 6192, 1548, 1260), (1000, 0.07, 744, 186, 70), (1000, 0.9, 80, 20, 900), (7, 0.5, 2, 1, 4)],
)
def test_networks_are_split_by_share(networks: int, tested: float, train: int, val: int, test: int) -> None:
    rows = [2 * i for i in range(networks)]
    parts = split_rows(rows, tested)
    assert {name: len(part) for name, part in parts.items()} == {"train": train, "val": val, "test": test}
    assert parts["test"] == rows[-test:]
    order = rows[: train + val]
    random.Random(0).shuffle(order)
    assert parts["train"] + parts["val"] == order, "as nfn shuffles them"


def test_every_architecture_is_spread_over_the_parts_or_is_in_one(sets: dict[str, Path]) -> None:
    corpus, other = (MadeMixedZoo.load(sets["mixed"], seed=seed)["mixed"] for seed in (0, 1))
    parts = numbers(corpus)
    assert [len(part) for part in parts] == [9, 2, 11]
    assert len({x for part in parts for x in part}) == 22, "every network is in one part"
    assert {str(p.info.space) for p in corpus.train} == {str(p.info.space) for p in corpus.test}
    assert len(corpus.info.architectures) == corpus.source["architectures"] == 6
    assert parts == numbers(MadeMixedZoo.load(sets["mixed"])["mixed"])
    assert parts != numbers(other)
    unseen = MadeMixedZoo.load(sets["mixed"], unseen_architectures=True)["mixed"]
    assert [len(part) for part in (unseen.train, unseen.val, unseen.test)] == [2, 1, 3]
    assert sum(map(len, numbers(unseen))) == 22


# --- making --------------------------------------------------------------------------------------------------------


def test_interrupted_and_continued_is_the_same_set(kind: str, sets: dict[str, Path], tmp_path: Path) -> None:
    state = torch.get_rng_state()

    def interrupt(done: int, total: int) -> None:
        if done >= total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, CONFIGS[kind], workers=1, progress=interrupt)
    stored = sorted(tmp_path.glob("shard-*"))
    assert 1 < len(stored) < len(shards(sets[kind]))
    with pytest.raises(CorpusError, match="is not finished, its making was interrupted: the command that made"):
        FORMATS[detect(tmp_path)].load(tmp_path)

    stored[0].write_bytes(stored[0].read_bytes()[:1000])  # a machine that lost power: made again
    kept = stored[1].stat().st_mtime_ns
    resumed: list[tuple[int, int]] = []
    made = make(tmp_path, CONFIGS[kind], workers=2, progress=lambda *news: resumed.append(news))
    assert 0 < made.made < made.networks
    assert resumed[0][0] > 0
    assert resumed[-1][0] == resumed[-1][1]
    assert shards(sets[kind]) == shards(tmp_path)
    assert stored[1].stat().st_mtime_ns == kept
    again = make(tmp_path, replace(INRS, steps=None) if kind == "inrs" else CONFIGS[kind])  # which are 100 for digits
    assert (again.made, again.networks) == (0, made.networks)
    assert stored[1].stat().st_mtime_ns == kept
    assert torch.equal(state, torch.get_rng_state()), "the global generator is left alone"


def test_another_configuration_is_refused_or_overwrites(sets: dict[str, Path], tmp_path: Path) -> None:
    before = shards(copied(sets["mixed"], tmp_path))
    few = replace(CNN, networks=3, epochs=(1, 1))
    refused = r"networks of another configuration: .*networks is \d+ there, 3 asked for.*--overwrite"
    with pytest.raises(ValueError, match=refused):
        make_zoo(tmp_path, few)
    assert shards(tmp_path) == before
    assert make_zoo(tmp_path, few, overwrite=True).made == 3
    assert 1 < len(shards(tmp_path)) < 4
    with pytest.raises(CorpusError, match="no network is left for train: too few"):
        FORMATS[detect(tmp_path)].load(tmp_path)


def test_what_is_finished_stays_whoever_would_overwrite(sets: dict[str, Path], tmp_path: Path) -> None:
    """Of the same configuration: a command with --overwrite that was cut off goes on, too."""
    copied(sets["cnn"], tmp_path)
    first, *_ = sorted(tmp_path.glob("shard-*"))
    before = shards(tmp_path)
    assert make_zoo(tmp_path, CNN, overwrite=True).made == 0
    first.unlink()
    made = make_zoo(tmp_path, CNN, overwrite=True)
    assert 0 < made.made < made.networks
    assert shards(tmp_path) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_not_ours_is_left_alone(overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / "shard-00000.safetensors").write_text("a download of five gigabytes", encoding="utf-8")
    with pytest.raises(ValueError, match=r"holds shard-00000\.safetensors but no zoo\.json.*choose another folder"):
        make(tmp_path, CNN, overwrite=overwrite)
    assert (tmp_path / "shard-00000.safetensors").exists()
    for text in ("{", '{"kind": "another"}', '{"kind": "cnn", "config": {}, "networks": 2, "shards": 0}'):
        (tmp_path / "zoo.json").write_text(text, encoding="utf-8")
        with pytest.raises(CorpusError, match=r"zoo\.json is damaged .*delete the folder"):
            make(tmp_path, CNN, overwrite=overwrite)


def test_diverged_networks_are_drawn_again_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small = replace(CNN, activations=("relu",))
    wild = replace(small, networks=4, epochs=(1, 1), optimizers=("sgd",), sgd_learning_rate=(1e-2, 1e5), seed=1)
    with caplog.at_level(logging.INFO, logger="nfn_monomial.benchmarks"):
        diverged = make_zoo(tmp_path / "wild", wild).summary["diverged"]
    assert diverged > 0
    assert f"{diverged} networks diverged" in caplog.text
    tensors = [t for group in groups_in(tmp_path / "wild") for t in group.tensors.values()]
    assert all(t.abs().max() <= 1e3 for t in tensors)
    hopeless = replace(wild, sgd_learning_rate=(1e8, 1e9))
    with pytest.raises(CorpusError, match=r"network \d diverged 6 times: choose smaller learning rates"):
        make_zoo(tmp_path / "hopeless", hopeless)


def test_zoo_make_vary_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo_config, "MixedConfig", lambda **changes: replace(MIXED, **changes))
    command = ("zoo", "make", "--vary-architecture", "--out", tmp_path / "zoo", "--networks", 8)
    command = (*command, "--activations", "tanh")
    assert "8 networks trained" in said(*command)
    assert "8 networks were already there" in said(*command)
    assert {group.architecture.activation for group in groups_in(tmp_path / "zoo")} == {"tanh"}
    assert "add --vary-architecture" in said("zoo", "make", "--kinds", "residual", "--out", tmp_path / "no", code=2)
    refused = said(*command, "--seed", 7, code=2)
    assert "there, 7 asked for" in refused
    assert "training" not in refused, "no bar of what does not begin"


def test_zoo_make_of_the_published_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = zoo_config.PublishedConfig(train_fractions=(0.1,), epochs=(1, 1))
    monkeypatch.setattr(zoo_config, "PublishedConfig", lambda **changes: replace(tiny, **changes))
    command = ("zoo", "make", "--out", tmp_path / "zoo", "--networks", 12, "--images", "digits")
    assert "12 networks trained" in said(*command, "--grid", "published")
    assert "12 networks were already there" in said(*command, "--grid", "published")
    assert "grid is 'published' there, None asked for" in said(*command, code=2)
    assert {name: len(corpus.test[0]) for name, corpus in MadeZoo.load(tmp_path / "zoo").items()} == {
        "relu": 3,
        "tanh": 3,
    }
    assert "leave out --vary-architecture" in said(*command, "--grid", "published", "--vary-architecture", code=2)


def test_a_zoo_from_before_a_setting_was_there_is_that_of_its_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CNN, networks=2)
    with monkeypatch.context() as before:
        before.setattr(jobs, "asdict", lambda c: {k: v for k, v in asdict(c).items() if k != "channels"})
        make_zoo(tmp_path, config)
    assert make_zoo(tmp_path, config).made == 0
    with pytest.raises(ValueError, match=r"channels is None there, \[3, 4, 5\] asked for"):
        make_zoo(tmp_path, replace(config, channels=(3, 4, 5)))
    assert make_zoo(tmp_path, config, overwrite=True).made == 0
    config = replace(config, networks=3)
    make_zoo(tmp_path, config, overwrite=True)
    assert stated(tmp_path)["config"] == json.loads(json.dumps(asdict(config))), "a new set states all of its settings"


def test_a_zoo_of_the_same_ranges_is_not_of_the_published_grid(tmp_path: Path) -> None:
    config = zoo_config.PublishedConfig(images="digits", networks=2, train_fractions=(0.1,), epochs=(1, 1))
    same = {name: value for name, value in vars(config).items() if name != "grid"}
    make_zoo(tmp_path, ZooConfig(**same))
    with pytest.raises(ValueError, match="grid is None there, 'published' asked for"):
        make_zoo(tmp_path, config)


def test_zoo_make_channels(tmp_path: Path) -> None:
    config = replace(CNN, networks=2, channels=(3, 4, 5))
    make_zoo(tmp_path, config)
    assert {tuple(t.shape[1:]) for group in groups_in(tmp_path) for t in group.tensors.values() if t.ndim > 3} == {
        (3, 1, 3, 3), (4, 3, 3, 3), (5, 4, 3, 3)
    }  # fmt: skip
    refused = said("zoo", "make", "--channels", "3", "--out", tmp_path / "no", code=2)
    assert "channels is" in refused
    many = said("zoo", "make", "--channels", "1000000,1,1", "--out", tmp_path / "no", code=2)
    assert "less than or equal to 512" in many
    assert "training" not in refused, "no bar of what does not begin"
    wrong = ("--vary-architecture", "--channels", "3,4,5", "--out", tmp_path / "no")
    assert "leave out --vary-architecture" in said("zoo", "make", *wrong, code=2)


@pytest.mark.parametrize("channels", [(3, 4), (3, 4, 5, 6, 4)])
def test_zoos_are_deeper_or_shallower(channels: tuple[int, ...], tmp_path: Path) -> None:
    """The first three convolutions halve the image, and the networks are those that are read: they are as accurate."""
    make_zoo(tmp_path, replace(CNN, networks=4, channels=channels))
    for group in groups_in(tmp_path):
        architecture = group.architecture
        assert len(architecture.space.parameters) == 2 * len(channels) + 2
        assert architecture.strides == (2, 2, 2, 1, 1)[: len(channels)]
        assert architecture.paddings == (1,) * len(channels)
        state = {name: t[0] for name, t in group.tensors.items()}
        images = torch.randn(3, 1, 8, 8)
        assert architecture.module()(images).shape == (3, 10)
        assert set(state) >= set(architecture.space.parameters)


def test_ranges_of_trainings_are_set(tmp_path: Path) -> None:
    small = ("--networks", 4, "--activations", "tanh", "--channels", "3,4", "--out", tmp_path)
    some = ("--set", "optimizers=sgd", "--set", "dropout=0", "--set", "train_fractions=0.1", "--set", "epochs=1,1")
    said("zoo", "make", *small, *some)
    drawn = [one for path in tmp_path.glob("shard-*") for one in read_sealed(path)[1]["drawn"]]
    assert {(one["optimizer"], one["dropout"], one["train_fraction"]) for one in drawn} == {("sgd", 0.0, 0.1)}
    assert "were already there" in said("zoo", "make", *small, *some)
    assert "batch is 32 there, 16 asked for" in said("zoo", "make", *small, *some, "--set", "batch=16", code=2)
    for key in ("channels=3,4", "networks=5", "wrong=1"):
        assert f"--set {key}: zoo make sets b_inits, batch" in said("zoo", "make", "--set", key, code=2)


# --- damage --------------------------------------------------------------------------------------------------------


def reseal(path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], **stated: Any) -> None:
    """Write a shard again with other contents, as if they had been meant."""
    tensors, content = read_sealed(path)
    path.write_bytes(seal(change({name: t.clone() for name, t in tensors.items()}), content | stated))


def not_finite(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    next(t for t in tensors.values() if t.ndim > 1)[1].flatten()[0] = torch.nan
    return tensors


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:1000]), "shard-00001.safetensors is damaged"),
    "another place": (
        lambda path: path.write_bytes(path.with_name("shard-00000.safetensors").read_bytes()),
        "it is a shard of another set or another place",
    ),
    "another set": (lambda path: reseal(path, dict, set={}), "it is a shard of another set or another place"),
    "a tensor less": (
        lambda path: reseal(path, lambda t: dict(list(t.items())[1:])), r"is damaged .*is missing, expected"
    ),
    "not finite": (lambda path: reseal(path, not_finite), "shard-00001.safetensors is damaged .* holds NaN .* row 1"),
    "fewer networks": (
        lambda path: reseal(path, lambda t: {name: x[1:] for name, x in t.items()}, networks=[0]),
        r"networks, but zoo\.json states \d+|is \(torch",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_shards_are_named_and_can_be_mended(name: str, sets: dict[str, Path], tmp_path: Path) -> None:
    damage, message = DAMAGES[name]
    damage(copied(sets["inrs"], tmp_path) / "shard-00001.safetensors")
    with pytest.raises(ValueError, match=message) as caught:
        FORMATS[detect(tmp_path)].load(tmp_path)
    assert "the command that made these networks, given the same options, makes what" in str(caught.value)
    assert make(tmp_path, INRS).made > 0
    assert shards(tmp_path) == shards(sets["inrs"])
