"""Zoos: what is stored is what was trained, no more is trained than is missing, and what is not ours is left alone."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from invoking import said
from tiny_inrs import TINY as INRS
from tiny_mixed_zoo import TINY as MIXED
from tiny_mixed_zoo import run
from torch import Tensor

from nfn_monomial.benchmarks.data.formats.base import CorpusError
from nfn_monomial.benchmarks.data.formats.detection import load_corpus
from nfn_monomial.benchmarks.data.formats.made import Group, MadeMixedZoo, MadeZoo, read_groups
from nfn_monomial.benchmarks.data.images import Images, load_images
from nfn_monomial.benchmarks.data.networks import Corpus, fingerprint
from nfn_monomial.benchmarks.data.rows import IN_MEMORY_BYTES, ShardRows
from nfn_monomial.benchmarks.make import config as zoo_config
from nfn_monomial.benchmarks.make import inrs as inrs_make
from nfn_monomial.benchmarks.make import zoo as zoo_make
from nfn_monomial.benchmarks.make.config import (
    MixedConfig,
    ResidualRanges,
    TransformerRanges,
    ZooConfig,
    draw_hyperparameters,
)
from nfn_monomial.benchmarks.make.inrs import make_inrs
from nfn_monomial.benchmarks.make.jobs import Made
from nfn_monomial.benchmarks.make.zoo import make_zoo
from nfn_monomial.tools.predictors.architectures import Architecture
from nfn_monomial.tools.sealed import read_sealed, seal

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


def groups_in(folder: Path) -> list[Group]:
    kind = json.loads((folder / "zoo.json").read_text())["kind"]
    return read_groups(folder, kind, IN_MEMORY_BYTES)[1]


# --- what is stored ------------------------------------------------------------------------------------------------


def wrong_by(groups: list[Group], images: Images) -> float:
    """The largest difference between stored accuracies and those of the stored networks, in images."""
    x, y = images.x[images.test], images.y[images.test]
    differences = []
    for group in groups:
        assert isinstance(group.architecture, Architecture)
        accuracy = (run(group.architecture, group.rows.read_all(), x).argmax(-1) == y).float().mean(1)
        differences.append((group.columns["accuracy"] - accuracy).abs().max().item())
    return max(differences) * len(y)


@pytest.mark.parametrize("name", ["cnn", "mixed"])
def test_stored_accuracies_are_those_of_the_stored_networks(name: str, sets: dict[str, Path], digits: Images) -> None:
    groups = groups_in(sets[name])
    assert wrong_by(groups, digits) < 1.5  # rounding: one image
    assert len({a for group in groups for a in group.columns["accuracy"].tolist()}) > 8


def test_images_of_mnist_have_no_border(tmp_path: Path) -> None:
    make_zoo(tmp_path, replace(CNN, images="mnist5k", networks=1, activations=("tanh",), epochs=(1, 1)))
    (group,) = groups_in(tmp_path)
    assert group.architecture.paddings == (0, 0, 0)
    assert wrong_by([group], load_images("mnist5k")) < 1.5


def test_networks_of_all_kinds(tmp_path: Path, digits: Images) -> None:
    config = replace(
        MIXED,
        networks=8,
        per_architecture=2,
        kinds=("transformer", "residual"),
        epochs=(2, 2),
        transformer=TransformerRanges(blocks=(1, 2), widths=(4, 6), hidden=(4, 6)),
        residual=ResidualRanges(widths=(3, 5)),
    )
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


def test_shards_state_what_was_drawn(sets: dict[str, Path]) -> None:
    for name in ("cnn", "mixed"):
        rates = dict[int, float]()
        for path in sets[name].glob("shard-*"):
            content = read_sealed(path)[1]
            rates |= zip(content["networks"], [one["learning_rate"] for one in content["drawn"]], strict=True)
        drawn = draw_hyperparameters(CONFIGS[name])  # type: ignore[arg-type]
        assert [rates[i] for i in range(len(rates))] == [one.learning_rate for one in drawn]


def numbers(corpus: Corpus) -> list[list[float]]:
    """Every network by its accuracy and a weight."""

    def of(part: Any) -> list[float]:
        return (part.networks.accuracy + part.networks.tensors["bias.0"][:, 0]).tolist()

    return [[x for part in getattr(corpus, name) for x in of(part)] for name in ("train", "val", "test")]


def test_networks_are_split_by_activation(sets: dict[str, Path]) -> None:
    found = MadeZoo.load(sets["cnn"])
    assert list(found) == ["relu", "tanh"]
    for corpus in found.values():
        parts = numbers(corpus)
        assert [len(part) for part in parts] == [2, 1, 3]
        assert len({x for part in parts for x in part}) == 6
    assert len(MadeZoo.load(sets["cnn"], limit=1)["tanh"].train[0]) == 1
    with pytest.raises(CorpusError, match="limit is 0"):
        MadeZoo.load(sets["cnn"], limit=0)


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


@pytest.mark.parametrize("name", ["cnn", "mixed"])
def test_large_zoos_stay_in_their_files(name: str, sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    held, lazy = (next(iter(load_corpus(sets[name], **o).values())) for o in ({}, {"in_memory_bytes": 0}))  # type: ignore[union-attr]
    for part in ("train", "val", "test"):
        for memory, disk in zip(getattr(held, part), getattr(lazy, part), strict=True):
            assert (memory.streamed, disk.streamed) == (False, True)
            assert torch.equal(memory.networks.accuracy, disk.networks.accuracy)
            assert memory.networks.rows.shapes == disk.networks.rows.shapes
            for key, tensor in memory.networks.tensors.items():
                assert torch.equal(tensor, disk.networks.tensors[key])
    assert fingerprint(held) == fingerprint(lazy)
    monkeypatch.setattr("nfn_monomial.benchmarks.data.networks.IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(ShardRows, "read", lambda *_: pytest.fail("they were read"))
    assert fingerprint(held) != fingerprint(lazy), "of the checksums of the files"
    (part, *more) = lazy.test
    fewer = replace(part, networks=part.networks.subset(slice(1, None)))
    assert fingerprint(replace(lazy, test=(fewer, *more))) != fingerprint(lazy)


# --- making --------------------------------------------------------------------------------------------------------


def test_seed_reproduces_a_set_and_another_makes_another(kind: str, sets: dict[str, Path], tmp_path: Path) -> None:
    state = torch.get_rng_state()
    make(tmp_path / "again", CONFIGS[kind], workers=2)
    assert shards(sets[kind]) == shards(tmp_path / "again")
    assert torch.equal(state, torch.get_rng_state()), "the global generator is left alone"
    make(tmp_path / "other", replace(CONFIGS[kind], seed=7))  # type: ignore[type-var]
    first, other = (groups_in(folder)[0].rows.read_all() for folder in (sets[kind], tmp_path / "other"))
    assert any(first[name].shape != t.shape or not torch.allclose(first[name], t) for name, t in other.items())


def test_interrupted_and_continued_is_the_same_set(kind: str, sets: dict[str, Path], tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []

    def interrupt(done: int, total: int) -> None:
        calls.append((done, total))
        if done >= total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, CONFIGS[kind], workers=1, progress=interrupt)
    stored = sorted(tmp_path.glob("shard-*"))
    assert 1 < len(stored) < len(shards(sets[kind]))
    with pytest.raises(CorpusError, match="is not finished, its making was interrupted: the command that made"):
        load_corpus(tmp_path)

    stored[0].write_bytes(stored[0].read_bytes()[:1000])  # a machine that lost power: made again
    kept = stored[1].stat().st_mtime_ns
    resumed: list[tuple[int, int]] = []
    made = make(tmp_path, CONFIGS[kind], workers=1, progress=lambda *news: resumed.append(news))
    assert 0 < made.made < made.networks
    assert 0 < resumed[0][0] < calls[-1][1]
    assert resumed[-1][0] == resumed[-1][1] == calls[-1][1]
    assert shards(sets[kind]) == shards(tmp_path)
    assert stored[1].stat().st_mtime_ns == kept


def test_a_finished_set_is_not_made_again(kind: str, sets: dict[str, Path]) -> None:
    before = {path: path.stat().st_mtime_ns for path in sets[kind].iterdir()}
    made = make(sets[kind], replace(INRS, steps=None) if kind == "inrs" else CONFIGS[kind])  # which are 100 for digits
    assert (made.made, made.networks) == (0, sum(len(group.numbers) for group in groups_in(sets[kind])))
    assert before == {path: path.stat().st_mtime_ns for path in sets[kind].iterdir()}


def test_another_configuration_is_refused_or_overwrites(kind: str, sets: dict[str, Path], tmp_path: Path) -> None:
    before = shards(copied(sets[kind], tmp_path))
    few = replace(CNN, networks=3, epochs=(1, 1))
    refused = r"networks of another configuration: .*networks is \d+ there, 3 asked for.*--overwrite"
    with pytest.raises(ValueError, match=refused):
        make_zoo(tmp_path, few)
    assert shards(tmp_path) == before
    assert make_zoo(tmp_path, few, overwrite=True).made == 3
    assert 1 < len(shards(tmp_path)) < 4
    with pytest.raises(CorpusError, match="no network is left for train: too few"):
        load_corpus(tmp_path)


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_not_ours_is_left_alone(kind: str, overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / "shard-00000.safetensors").write_text("a download of five gigabytes", encoding="utf-8")
    with pytest.raises(ValueError, match=r"holds shard-00000\.safetensors but no zoo\.json.*choose another folder"):
        make(tmp_path, CONFIGS[kind], overwrite=overwrite)
    assert (tmp_path / "shard-00000.safetensors").exists()
    for text in ("{", "[]", "{}", '{"kind": "another"}', '{"kind": "cnn", "config": {}, "networks": 2, "shards": 0}'):
        (tmp_path / "zoo.json").write_text(text, encoding="utf-8")
        for use in (lambda: make(tmp_path, CONFIGS[kind], overwrite=overwrite), lambda: load_corpus(tmp_path)):
            with pytest.raises(CorpusError, match=r"zoo\.json is damaged .*delete the folder"):
                use()
    with pytest.raises(ValueError, match=r"zoo\.json is a file: give a folder"):
        make(tmp_path / "zoo.json" / "deep", CONFIGS[kind], overwrite=overwrite)


def test_data_are_deleted_before_the_file_that_makes_them_ours(
    sets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(sets["cnn"], tmp_path)
    unlink, gone = Path.unlink, list[str]()

    def noted(path: Path, missing_ok: bool = False) -> None:
        gone.append(path.name)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", noted)
    make_zoo(tmp_path, replace(CNN, networks=1), overwrite=True)
    own = [name for name in gone if not name.endswith(".partial")]
    assert own == [*shards(sets["cnn"]), "zoo.json"]


@pytest.mark.parametrize(("room", "name"), [(zoo_make, "load_images"), (inrs_make, "load_pictures")])
def test_missing_images_leave_no_folder(room: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ImportError("pip install nfn-monomial[bench]")

    monkeypatch.setattr(room, name, missing)
    with pytest.raises(ImportError, match="bench"):
        make(tmp_path / "zoo", CNN if room is zoo_make else INRS)
    assert not (tmp_path / "zoo").exists()


@pytest.mark.parametrize("small", [replace(CNN, activations=("relu",)), replace(MIXED, activations=("relu",))])
def test_diverged_networks_are_drawn_again_and_counted(
    small: ZooConfig | MixedConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wild = replace(small, networks=4, epochs=(1, 1), optimizers=("sgd",), sgd_learning_rate=(1e-2, 1e5), seed=1)
    with caplog.at_level(logging.INFO, logger="nfn_monomial.benchmarks"):
        diverged = make_zoo(tmp_path / "wild", wild).summary["diverged"]
    assert diverged > 0
    assert f"{diverged} networks diverged" in caplog.text
    assert make_zoo(tmp_path / "wild", wild).summary["diverged"] == diverged
    tensors = [t for group in groups_in(tmp_path / "wild") for t in group.rows.read_all().values()]
    assert all(t.abs().max() <= 1e3 for t in tensors)
    hopeless = replace(wild, sgd_learning_rate=(1e8, 1e9))
    with pytest.raises(CorpusError, match=r"network \d diverged 6 times: choose smaller learning rates"):
        make_zoo(tmp_path / "hopeless", hopeless)


def test_zoo_make_vary_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo_config, "MixedConfig", lambda **given: replace(MIXED, **given))
    command = ("zoo", "make", "--vary-architecture", "--out", tmp_path / "zoo", "--networks", 8)
    command = (*command, "--activations", "tanh")
    assert "8 networks trained" in said(*command)
    assert "8 networks were there already" in said(*command)
    assert {group.architecture.activation for group in groups_in(tmp_path / "zoo")} == {"tanh"}
    transformers = (*command[:3], "--kinds", "transformer", "--out", tmp_path / "other", "--networks", 2)
    assert "2 networks trained" in said(*transformers)
    assert "add --vary-architecture" in said("zoo", "make", "--kinds", "residual", "--out", tmp_path / "no", code=2)
    text = said(*command, "--seed", 7, code=2)
    assert "another configuration: seed is 1 there, 7 asked for" in text or "seed is 0 there, 7 asked for" in text


# --- damage --------------------------------------------------------------------------------------------------------


def reseal(path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], **stated: Any) -> None:
    """Write a shard again with other contents, as if they had been meant."""
    tensors, content = read_sealed(path)
    path.write_bytes(seal(change({name: t.clone() for name, t in tensors.items()}), content | stated))


def not_finite(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    next(t for t in tensors.values() if t.ndim > 1)[1].flatten()[0] = torch.nan
    return tensors


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "shard-00001.safetensors is missing"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:1000]), "shard-00001.safetensors is damaged"),
    "another byte": (
        lambda path: path.write_bytes(path.read_bytes()[:-9] + b"\0" + path.read_bytes()[-8:]), "is damaged .*checksum"
    ),
    "another place": (
        lambda path: path.write_bytes(path.with_name("shard-00000.safetensors").read_bytes()),
        "it is a shard of another set or another place",
    ),
    "a tensor less": (
        lambda path: reseal(path, lambda t: dict(list(t.items())[1:])), r"is damaged .*is missing, expected"
    ),
    "another shape": (
        lambda path: reseal(path, lambda t: {name: x[:-1] for name, x in t.items()}), r"is \(torch.* expected \(torch"
    ),
    "not finite": (lambda path: reseal(path, not_finite), "shard-00001.safetensors: .* holds NaN .* row 1: "),
    "fewer networks": (
        lambda path: reseal(path, lambda t: {name: x[1:] for name, x in t.items()}, networks=[0]),
        r"networks, but zoo\.json states \d+|is \(torch",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_shards_are_named_and_can_be_mended(
    kind: str, name: str, sets: dict[str, Path], tmp_path: Path
) -> None:
    damage, message = DAMAGES[name]
    damage(copied(sets[kind], tmp_path) / "shard-00001.safetensors")
    with pytest.raises(ValueError, match=message) as caught:
        load_corpus(tmp_path)
    assert "the command that made these networks, given the same options, makes what" in str(caught.value)
    assert make(tmp_path, CONFIGS[kind]).made > 0
    assert shards(tmp_path) == shards(sets[kind])


def test_architectures_too_large_for_their_tensors_are_not_built(sets: dict[str, Path], tmp_path: Path) -> None:
    path = copied(sets["mixed"], tmp_path) / "shard-00001.safetensors"
    architecture = read_sealed(path)[1]["architecture"]
    reseal(path, dict, architecture=architecture | {"channels": [1, 10**9]})
    with pytest.raises(CorpusError, match="has 1000000000 of something, its tensors have at most"):
        load_corpus(tmp_path)
