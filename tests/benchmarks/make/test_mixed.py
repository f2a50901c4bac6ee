"""Zoos of many architectures: what is stored is what was trained, and the modules of the architectures compute it."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from invoking import said
from safetensors import safe_open
from tiny_mixed_zoo import TINY, run

from nfn_monomial.benchmarks.data.formats.mixed_zoo import Group, MixedZoo, load_mixed_zoo, read_group
from nfn_monomial.benchmarks.data.images import Images
from nfn_monomial.benchmarks.data.layout import ZooError
from nfn_monomial.benchmarks.data.networks import fingerprint
from nfn_monomial.benchmarks.data.shards import ShardRows
from nfn_monomial.benchmarks.make import mixed as zoo_mixed_make
from nfn_monomial.benchmarks.make import mixed_recipes
from nfn_monomial.benchmarks.make.mixed import make_mixed_zoo
from nfn_monomial.benchmarks.make.mixed_recipes import ResidualRanges, TransformerRanges, draw_architecture
from nfn_monomial.benchmarks.make.recipes import ZooConfig, draw_recipes
from nfn_monomial.benchmarks.make.zoo import make_zoo


def group_in(folder: Path, number: int = 0) -> tuple[Group, int]:
    return read_group(folder, number, json.loads((folder / "zoo.json").read_text())["config"])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("zoos") / "tiny"
    made = make_mixed_zoo(out, TINY)
    assert (made.made, made.networks, made.diverged) == (True, 22, 0)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def everything(zoo: MixedZoo) -> list[tuple[str, Group]]:
    return [(name, group) for name in ("train", "val", "test") for group in getattr(zoo, name)]


def test_stored_accuracies_are_those_of_the_stored_networks(tiny: Path, digits: Images) -> None:
    x, y = digits.x[digits.test], digits.y[digits.test]
    seen: list[float] = []
    for _, group in everything(load_mixed_zoo(tiny)):
        accuracy = (run(group, x).argmax(-1) == y).float().mean(1)
        torch.testing.assert_close(group.accuracy, accuracy, rtol=0, atol=1.5 / len(y))  # rounding: one image
        seen += group.accuracy.tolist()
    assert len(seen) == 22
    assert len(set(seen)) > 10


def test_a_zoo_of_all_kinds(tmp_path: Path, digits: Images) -> None:
    config = replace(
        TINY,
        networks=8,
        per_architecture=2,
        kinds=("transformer", "residual"),
        epochs=(2, 2),
        transformer=TransformerRanges(blocks=(1, 2), widths=(4, 6), hidden=(4, 6)),
        residual=ResidualRanges(widths=(3, 5)),
    )
    assert make_mixed_zoo(tmp_path, config).made
    assert not make_mixed_zoo(tmp_path, config).made
    corpus = load_mixed_zoo(tmp_path).corpus()
    x, y = digits.x[digits.test], digits.y[digits.test]
    for part in (*corpus.train, *corpus.val, *corpus.test):
        assert part.info.template is not None
        module, tensors = part.info.template().eval(), part.networks.tensors
        for i, stored in enumerate(part.networks.accuracy):
            answers = torch.func.functional_call(module, {name: t[i] for name, t in tensors.items()}, (x,))
            assert abs((answers.argmax(-1) == y).float().mean() - stored) < 1.5 / len(y)
        assert part.info.input_shape == (1, 8, 8)
    architectures = [group_in(tmp_path, i)[0].architecture for i in range(4)]
    assert [a.kind for a in architectures] == ["transformer", "residual"] * 2


def test_every_architecture_is_spread_over_the_parts(tiny: Path) -> None:
    zoo = load_mixed_zoo(tiny)
    assert [sum(map(len, part)) for part in (zoo.train, zoo.val, zoo.test)] == [9, 2, 11]
    assert zoo.info["architectures"] == len({g.architecture for _, g in everything(zoo)}) == 6
    assert {g.architecture for g in zoo.train} == {g.architecture for g in zoo.test}
    fingerprints = [t.item() for _, g in everything(zoo) for t in g.tensors["weight.0"].flatten(1).sum(1)]
    assert len(set(fingerprints)) == 22, "every network is in one part"
    for _, group in everything(zoo):
        group.space.validate({name: t.unsqueeze(1) for name, t in group.tensors.items()})
    again = load_mixed_zoo(tiny)
    other = load_mixed_zoo(tiny, seed=1)
    first, same, moved = (torch.cat([g.accuracy for g in z.test]) for z in (zoo, again, other))
    assert torch.equal(first, same)
    assert not torch.equal(first, moved)


def test_unseen_architectures(tiny: Path) -> None:
    zoo = load_mixed_zoo(tiny, unseen_architectures=True)
    parts = [{g.architecture for g in part} for part in (zoo.train, zoo.val, zoo.test)]
    assert [len(part) for part in parts] == [2, 1, 3]
    assert len(set.union(*parts)) == 6
    assert sum(len(g) for _, g in everything(zoo)) == 22


def test_subset(tiny: Path) -> None:
    group, _ = group_in(tiny)
    part = group.subset([2, 0])
    assert len(part) == 2
    assert torch.equal(part.accuracy, group.accuracy[[2, 0]])
    assert torch.equal(part.tensors["weight.0"], group.tensors["weight.0"][[2, 0]])
    assert len(group.subset(slice(1, None))) == 3


def test_files_state_recipes_and_configuration(tiny: Path) -> None:
    stated = json.loads((tiny / "zoo.json").read_text(encoding="utf-8"))
    assert (stated["kind"], stated["groups"], stated["diverged"]) == ("mixed", 6, 0)
    assert stated["config"]["depths"] == [2, 5]
    drawn = draw_recipes(TINY.training)
    with safe_open(tiny / "group_00005.safetensors", framework="pt") as file:
        described = json.loads(json.loads(file.metadata()["sealed"])["stated"])
    assert [r["learning_rate"] for r in described["recipes"]] == [r.learning_rate for r in drawn[20:]]
    assert "dropout" not in described["recipes"][0]


def test_seed_reproduces_a_zoo_and_another_makes_another(tiny: Path, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    make_mixed_zoo(tmp_path / "again", TINY, workers=2)
    assert contents(tiny) == contents(tmp_path / "again")
    assert torch.equal(state, torch.get_rng_state()), "the global generator is left alone"
    other = draw_architecture(replace(TINY, seed=2), 0, 8, 10)
    assert other != group_in(tiny)[0].architecture


def test_interrupted_and_continued_is_the_same_zoo(tiny: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []

    def interrupt(done: int, total: int) -> None:
        calls.append((done, total))
        if len(calls) == 4:  # at the start, and after each of three architectures
            raise KeyboardInterrupt

    out = tmp_path / "zoo"
    with pytest.raises(KeyboardInterrupt):
        make_mixed_zoo(out, TINY, workers=1, progress=interrupt)
    stored = sorted(out.glob("group_*.safetensors"))
    assert 3 <= len(stored) < 6
    with pytest.raises(ZooError, match="is not finished, its making was interrupted"):
        load_mixed_zoo(out)

    stored[0].write_bytes(stored[0].read_bytes()[:1000])  # a machine that lost power: trained again
    kept = stored[1].stat().st_mtime_ns
    resumed: list[tuple[int, int]] = []
    assert make_mixed_zoo(out, TINY, progress=lambda done, total: resumed.append((done, total))).made
    assert 0 < resumed[0][0] < calls[-1][1]
    assert resumed[-1][0] == resumed[-1][1] == calls[-1][1]
    assert contents(tiny) == contents(out)
    assert stored[1].stat().st_mtime_ns == kept


def test_finished_zoo_is_not_made_again(tiny: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny.iterdir()}
    made = make_mixed_zoo(tiny, TINY, progress=lambda done, total: pytest.fail("nothing should be trained"))
    assert (made.made, made.networks) == (False, 22)
    assert before == {path: path.stat().st_mtime_ns for path in tiny.iterdir()}


def test_another_configuration_is_refused_or_overwrites(tmp_path: Path) -> None:
    few = replace(TINY, networks=6, per_architecture=2, widths=(8, 9), epochs=(1, 1))
    make_mixed_zoo(tmp_path, few)
    other = replace(few, networks=2, depths=(2, 2))
    with pytest.raises(ValueError, match=r"depths is \[2, 5\] there, \[2, 2\] asked for; networks is 6 .*--overwrite"):
        make_mixed_zoo(tmp_path, other)
    assert make_mixed_zoo(tmp_path, other, overwrite=True).made
    assert sorted(contents(tmp_path)) == ["group_00000.safetensors", "zoo.json"]
    with pytest.raises(ZooError, match="has 2 networks, too few for three parts"):
        load_mixed_zoo(tmp_path)


def test_a_zoo_of_one_architecture_is_refused_or_overwritten_completely(tmp_path: Path) -> None:
    make_zoo(tmp_path, ZooConfig(networks=2, epochs=(1, 1), train_fractions=(0.1,)))
    with pytest.raises(ZooError, match="holds a zoo of one architecture, which load_zoo reads"):
        load_mixed_zoo(tmp_path)
    few = replace(TINY, networks=2)
    with pytest.raises(ValueError, match=r"another configuration: kind is None there, 'mixed' asked for.*--overwrite"):
        make_mixed_zoo(tmp_path, few)
    assert make_mixed_zoo(tmp_path, few, overwrite=True).made
    assert not (tmp_path / "weights.npy").exists()
    assert not (tmp_path / "metrics.csv.gz").exists()


def test_damaged_zoos(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ZooError, match="does not exist"):
        load_mixed_zoo(tmp_path / "nothing")
    with pytest.raises(ZooError, match=r"holds no zoo\.json: mixed zoos are made by nfn-monomial zoo make --vary"):
        load_mixed_zoo(tmp_path)
    for name, data in contents(tiny).items():
        (tmp_path / name).write_bytes(data)
    group = tmp_path / "group_00002.safetensors"
    good = group.read_bytes()
    for bad in (good[:-10], b"", good.replace(b"gelu", b"sinh").replace(b"tanh", b"sinh").replace(b"relu", b"sinh")):
        group.write_bytes(bad)
        with pytest.raises(ZooError, match=r"group_00002\.safetensors is damaged .*delete it"):
            load_mixed_zoo(tmp_path)
    group.write_bytes((tmp_path / "group_00001.safetensors").read_bytes().replace(b'"bias.0"', b'"bias.9"'))
    with pytest.raises(ZooError, match="is damaged"):
        load_mixed_zoo(tmp_path)
    group.unlink()
    assert make_mixed_zoo(tmp_path, TINY).made
    assert contents(tiny) == contents(tmp_path), "what was deleted is trained again"
    (tmp_path / "zoo.json").write_text("{", encoding="utf-8")
    with pytest.raises(ZooError, match=r"zoo\.json is damaged"):
        load_mixed_zoo(tmp_path)


def test_diverged_networks_are_drawn_again_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wild = replace(
        TINY,
        networks=3,
        epochs=(1, 1),
        depths=(2, 3),
        optimizers=("sgd",),
        sgd_learning_rate=(1e-2, 1e5),
        activations=("relu",),
    )
    with caplog.at_level(logging.INFO, logger="nfn_monomial.benchmarks"):
        made = make_mixed_zoo(tmp_path / "wild", wild)
    assert made.diverged > 0
    assert f"{made.diverged} networks diverged" in caplog.text
    group, diverged = group_in(tmp_path / "wild")
    assert diverged == made.diverged == make_mixed_zoo(tmp_path / "wild", wild).diverged
    assert all(torch.isfinite(t).all() for t in group.tensors.values())
    hopeless = replace(wild, sgd_learning_rate=(1e8, 1e9))
    with pytest.raises(ZooError, match=r"network \d diverged 6 times: choose smaller learning rates"):
        make_mixed_zoo(tmp_path / "hopeless", hopeless)


def test_missing_images_leave_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError("pip install nfn-monomial[bench]")

    monkeypatch.setattr(zoo_mixed_make, "load_images", missing)
    with pytest.raises(ImportError, match="bench"):
        make_mixed_zoo(tmp_path / "zoo", TINY)
    assert not (tmp_path / "zoo").exists()


def test_zoo_make_vary_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_recipes, "MixedConfig", lambda **given: replace(TINY, **given))
    command = ("zoo", "make", "--vary-architecture", "--out", tmp_path / "zoo", "--networks", 8)
    command = (*command, "--activations", "tanh")
    assert "8 networks trained" in said(*command)
    assert "8 networks were there already" in said(*command)
    assert {g.architecture.activations[0] for _, g in everything(load_mixed_zoo(tmp_path / "zoo"))} == {"tanh"}
    transformers = (*command[:3], "--kinds", "transformer", "--out", tmp_path / "other", "--networks", 2)
    assert "2 networks trained" in said(*transformers)
    assert "add --vary-architecture" in said("zoo", "make", "--kinds", "residual", "--out", tmp_path / "no", code=2)
    text = said(*command, "--seed", 7, code=2)
    assert "another configuration: seed is 0 there, 7 asked for" in text


def test_large_zoos_stay_in_their_files(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, lazy = load_mixed_zoo(tiny).corpus(), load_mixed_zoo(tiny, in_memory_bytes=0).corpus()
    for name in ("train", "val", "test"):
        for memory, disk in zip(getattr(held, name), getattr(lazy, name), strict=True):
            assert (memory.streamed, disk.streamed) == (False, True)
            assert torch.equal(memory.networks.accuracy, disk.networks.accuracy)
            assert memory.networks.rows.shapes == disk.networks.rows.shapes
            for key, tensor in memory.networks.tensors.items():
                assert torch.equal(tensor, disk.networks.tensors[key])
    assert fingerprint(held) == fingerprint(lazy)
    monkeypatch.setattr("nfn_monomial.benchmarks.data.networks.IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(ShardRows, "read", lambda *_: pytest.fail("they were read"))
    assert fingerprint(held) != fingerprint(lazy), "of the checksums of the files"
    fewer = replace(lazy, train=lazy.train[1:])
    assert fingerprint(fewer) != fingerprint(lazy)
