"""Corpora of fitted SIRENs on disk."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from nfn_monomial.adapters.tensor_files import read_sealed, seal
from nfn_monomial.benchmarks.cli.application import app
from nfn_monomial.benchmarks.data.formats.made_inrs import CORPUS_FILE, load_inrs
from nfn_monomial.benchmarks.data.images import load_pictures
from nfn_monomial.benchmarks.data.rows import TensorRows
from nfn_monomial.benchmarks.data.shards import ShardRows
from nfn_monomial.benchmarks.data.sirens import Siren
from nfn_monomial.benchmarks.make.inrs import InrConfig, make_inrs
from nfn_monomial.benchmarks.make.siren_fit import psnr
from nfn_monomial.benchmarks.report.reconstructions import draw_reconstructions
from nfn_monomial.benchmarks.studies.classify import fingerprint, subset

TINY = InrConfig("digits", fits=2, limit=40, steps=100, shard=16)  # 32 * 2 + 4 + 4 networks: five shards


@pytest.fixture(scope="module")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    made = make_inrs(folder, TINY)
    assert made.made == len(made.psnr) == 72
    return folder


@pytest.fixture
def copied(corpus_folder: Path, tmp_path: Path) -> Path:
    for path in corpus_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("shard-*"))}


# Corpora


def test_stored_weights_show_the_images_with_the_stored_psnr(corpus_folder: Path) -> None:
    corpus = load_inrs(corpus_folder)
    assert corpus.pixels is not None
    stored = torch.cat([load_file(path)["psnr"] for path in sorted(corpus_folder.glob("shard-*"))])
    split = torch.cat([load_file(path)["split"] for path in sorted(corpus_folder.glob("shard-*"))])
    for number, part in enumerate((corpus.train, corpus.val, corpus.test)):
        tensors, pixels = part.rows.read_all(), corpus.pixels[part.image]
        torch.testing.assert_close(psnr(corpus.siren.render(tensors), pixels), stored[split == number])
        assert stored[split == number].min() > 25
        wrong = replace(corpus.siren, omega_0=29.0)  # a little off is far off
        assert (psnr(wrong.render(tensors), pixels) < 20).all()
    assert corpus.info["psnr"]["median"] == pytest.approx(stored.median().item())


def test_parts_share_no_image_and_only_training_images_have_several_networks(corpus_folder: Path) -> None:
    corpus, pictures = load_inrs(corpus_folder), load_pictures("digits")
    parts = {name: getattr(corpus, name) for name in ("train", "val", "test")}
    for name, part in parts.items():
        assert set(part.image.tolist()) <= set(getattr(pictures, name).tolist())
        assert torch.equal(part.labels, pictures.labels[part.image])
        assert (part.image.unique(return_counts=True)[1] == (2 if name == "train" else 1)).all()
        assert len(part) == len(part.rows) == {"train": 64, "val": 4, "test": 4}[name]
    train = parts["train"].rows.read_all()["weight.0"].flatten(1)
    assert len(train.unique(dim=0)) == len(train)  # fits of one image begin elsewhere
    assert corpus.classes == 10


def test_more_fits_keep_the_first_and_smaller_corpora_are_part_of_larger(corpus_folder: Path, tmp_path: Path) -> None:
    make_inrs(tmp_path, replace(TINY, fits=1, limit=20))
    large, small = load_inrs(corpus_folder), load_inrs(tmp_path)
    for name in ("train", "val", "test"):
        few, many = getattr(small, name), getattr(large, name)
        assert 0 < len(few) < len(many)
        place = [many.image.tolist().index(image) for image in few.image.tolist()]  # the first one
        for key, tensor in few.rows.read_all().items():
            torch.testing.assert_close(tensor, many.rows.read(torch.tensor(place))[key], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("workers", [1, 2])
def test_interrupted_and_continued_is_the_same_to_the_byte(corpus_folder: Path, tmp_path: Path, workers: int) -> None:
    calls: list[tuple[int, int]] = []

    def interrupt(done: int, total: int) -> None:
        calls.append((done, total))
        if done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_inrs(tmp_path, TINY, workers=workers, progress=interrupt)
    kept = shards(tmp_path)
    assert 0 < len(kept) < 5
    with pytest.raises(ValueError, match="not finished: `nfn-monomial inr make`"):
        load_inrs(tmp_path)
    calls.clear()
    made = make_inrs(tmp_path, TINY, workers=workers, progress=lambda *done: calls.append(done))
    assert 0 < made.made < 72
    assert calls[0] == (72 - made.made, 72)
    assert calls[-1] == (72, 72)
    assert shards(tmp_path) == shards(corpus_folder)
    assert make_inrs(tmp_path, TINY).made == 0
    assert load_inrs(tmp_path).info["psnr"] == load_inrs(corpus_folder).info["psnr"]


@pytest.mark.parametrize("seed", [0, 1])
def test_seeds_decide(corpus_folder: Path, tmp_path: Path, seed: int) -> None:
    make_inrs(tmp_path, replace(TINY, seed=seed), workers=2)
    assert (shards(tmp_path) == shards(corpus_folder)) == (seed == TINY.seed)


def test_another_configuration_is_refused_unless_told(copied: Path) -> None:
    other = replace(TINY, fits=1, steps=5, limit=20, shard=500)
    before = shards(copied)
    with pytest.raises(ValueError, match=r"another configuration: fits is 2 there, 1 asked for; .*--overwrite"):
        make_inrs(copied, other)
    assert shards(copied) == before
    made = make_inrs(copied, other, overwrite=True)
    assert list(shards(copied)) == ["shard-00000.safetensors"]  # and none of the five of before
    assert len(made.psnr) == made.made == 20


def test_shards_that_are_nobodys_are_left_alone(copied: Path) -> None:
    (copied / CORPUS_FILE).unlink()
    with pytest.raises(ValueError, match=r"holds shard-00000.safetensors, .* but no corpus.json.*another folder"):
        make_inrs(copied, TINY, overwrite=True)


def reseal(path: Path, change: Callable[[Tensor], Tensor] = lambda t: t, **changed: Tensor) -> None:
    """Write a shard again with other tensors, as if they had been meant."""
    tensors, stated = read_sealed(path)
    path.write_bytes(seal({name: change(t) for name, t in (tensors | changed).items()}, stated))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def _drop(path: Path) -> None:
    tensors, stated = read_sealed(path)
    path.write_bytes(seal({name: t for name, t in tensors.items() if name != "bias.1"}, stated))


def _reshape(path: Path) -> None:
    reseal(path, **{"weight.1": load_file(path)["weight.1"][:, :-1]})


def _shorten(path: Path) -> None:
    reseal(path, lambda t: t[:-1])


def _not_finite(path: Path) -> None:
    weight = load_file(path)["weight.1"]
    weight[5, 3, 2] = torch.nan
    reseal(path, **{"weight.1": weight})


def _other_label(path: Path) -> None:
    reseal(path, label=(load_file(path)["label"] + 1) % 10)


def _other_image(path: Path) -> None:
    reseal(path, image=load_file(path)["image"] + 10**6)


def _negative(path: Path) -> None:
    reseal(path, image=-load_file(path)["image"])


def _twice(path: Path) -> None:
    reseal(path, lambda t: t[[0, *range(len(t) - 1)]])


def _another(path: Path) -> None:
    path.write_bytes(path.with_name("shard-00000.safetensors").read_bytes())


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "shard-00001.safetensors is missing"),
        (_truncate, "shard-00001.safetensors is damaged"),
        (_drop, r"shard-00001.safetensors .*bias.1 is missing, expected"),
        (_reshape, r"shard-00001.safetensors .*weight.1 is .*\(16, 31, 32\)\), expected .*\(16, 32, 32\)"),
        (_not_finite, r"shard-00001.safetensors: weight.1 holds NaN or infinite values in row 5"),
        (_shorten, r"speaks of networks .*'train': 64.* the shards hold .*'train': 63"),
        (_other_label, r"network 16 has the label \d, its image \d"),
        (_other_image, r"image 100\d{4}, but digits has 1797"),
        (_negative, "image is negative"),
        (_twice, "a network occurs twice"),
        (_another, "a shard of another corpus or another place"),
        (_flip, "do not have the checksum that it states"),
    ],
)
def test_damaged_shards_are_named_and_can_be_mended(
    corpus_folder: Path, copied: Path, damage: Any, message: str
) -> None:
    damage(copied / "shard-00001.safetensors")
    with pytest.raises(ValueError, match=message) as caught:
        load_inrs(copied)
    assert "`nfn-monomial inr make` with the options it was made with" in str(caught.value)
    assert make_inrs(copied, TINY).made == 16
    assert shards(copied) == shards(corpus_folder)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"kind": "another"}',
        '{"kind": "INRs made by nfn-monomial"}',
        '{"kind": "INRs made by nfn-monomial", "siren": {"sizes": [3, 4]}}',
    ],
)
def test_descriptions_of_something_else_are_refused(copied: Path, text: str) -> None:
    (copied / CORPUS_FILE).write_text(text, encoding="utf-8")
    for use in (load_inrs, lambda folder: make_inrs(folder, TINY)):
        with pytest.raises(ValueError, match=r"corpus.json .*describes no corpus .*give another folder"):
            use(copied)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("config", "shard", "16"), ("pictures", "fingerprint", 1), ("networks", "test", None), ("siren", "omega", 30.0)],
)
def test_descriptions_with_an_entry_gone_wrong_are_refused(copied: Path, part: str, name: str, value: Any) -> None:
    found = json.loads((copied / CORPUS_FILE).read_text(encoding="utf-8"))
    found[part][name] = value
    (copied / CORPUS_FILE).write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(ValueError, match=f"corpus.json is damaged .*{name}.*describes no corpus"):
        load_inrs(copied)


def test_no_corpus_at_all(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no corpus.json: give a folder that"):
        load_inrs(tmp_path / "nowhere")


def test_other_images_than_those_that_were_fitted_are_noticed(copied: Path) -> None:
    found = json.loads((copied / CORPUS_FILE).read_text(encoding="utf-8"))
    found["pictures"]["fingerprint"] = "0" * 16
    (copied / CORPUS_FILE).write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(ValueError, match="was fitted to other images than the digits installed here"):
        load_inrs(copied)
    with pytest.raises(ValueError, match="fingerprint is '0000000000000000' there"):
        make_inrs(copied, TINY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": "cifar"}, "unknown images 'cifar': choose one of digits, mnist5k, crops"),
        ({"fits": 0}, "fits is 0: it has to be at least 1"),
        ({"limit": 0}, "limit is 0: it has to be at least 1"),
        ({"steps": -1}, "steps is -1"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_configurations_that_make_no_sense(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **change)


def test_more_images_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="limit is 1798, but digits has 1797 images"):
        make_inrs(tmp_path / "none", InrConfig("digits", limit=1798))
    assert not (tmp_path / "none").exists()


# Rows in shards


@given(data=st.data(), counts=st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_rows_of_shards_are_the_rows_of_all(data: st.DataObject, counts: list[int]) -> None:
    total = sum(counts)
    tensors = {"weight.0": torch.rand(total, 3, 2), "bias.0": torch.rand(total, 3)}
    rows = st.lists(st.integers(0, total - 1), min_size=1, max_size=8)
    chosen = torch.tensor(data.draw(rows))
    index = torch.tensor(data.draw(st.lists(st.integers(0, len(chosen) - 1), max_size=8)), dtype=torch.int64)
    parts = [
        dict(zip(tensors, part, strict=True)) for part in zip(*(t.split(counts) for t in tensors.values()), strict=True)
    ]
    paths = [Path(f"shard-{k}") for k in range(len(parts))]
    found = ShardRows(paths, parts, counts, {"weight.0": (3, 2), "bias.0": (3,)}, chosen, "")
    wanted = TensorRows({name: t[chosen] for name, t in tensors.items()})
    assert len(found) == len(wanted)
    assert found.shapes == wanted.shapes
    assert found.nbytes == wanted.nbytes
    for name, tensor in wanted.read(index).items():
        assert torch.equal(found.read(index)[name], tensor)


def test_numbers_of_mapped_networks_are_checked_when_they_are_read(copied: Path) -> None:
    path = copied / "shard-00001.safetensors"
    bias = load_file(path)["bias.2"]
    bias[7] = torch.inf
    reseal(path, **{"bias.2": bias})
    rows = load_inrs(copied, in_memory_bytes=0).train.rows  # network 16 + 7 of the first fits, which are for training
    assert isinstance(rows, ShardRows)
    bad = int((rows.chosen == 23).nonzero())
    rest = torch.arange(len(rows))[torch.arange(len(rows)) != bad]
    assert all(t.isfinite().all() for t in rows.read(rest).values())
    with pytest.raises(ValueError, match=r"shard-00001.safetensors: bias.2 holds NaN or infinite values in row 7: "):
        rows.read(torch.tensor([0, bad, 1]))


def test_a_corpus_larger_than_memory_is_known_by_the_checksums_of_its_files(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = fingerprint(load_inrs(copied))
    assert fingerprint(load_inrs(copied, in_memory_bytes=0)) == known, "one that fits is read, wherever it is"
    monkeypatch.setattr("nfn_monomial.benchmarks.studies.classify.IN_MEMORY_BYTES", 0)
    corpus = load_inrs(copied, in_memory_bytes=0)
    path = copied / "shard-00001.safetensors"
    reseal(path, **{"bias.2": load_file(path)["bias.2"] + 1})
    other = load_inrs(copied, in_memory_bytes=0)
    monkeypatch.setattr(ShardRows, "read", lambda *_: pytest.fail("the networks were read"))
    fewer = replace(corpus, train=subset(corpus.train, None, 3))
    assert len({known, fingerprint(corpus), fingerprint(other), fingerprint(fewer)}) == 4


def test_large_corpora_stay_in_their_files(corpus_folder: Path) -> None:
    loaded = load_inrs(corpus_folder)
    nbytes = sum(len(part) for part in (loaded.train, loaded.val, loaded.test)) * loaded.train.rows.nbytes // 64
    assert isinstance(load_inrs(corpus_folder, in_memory_bytes=nbytes).train.rows, TensorRows)
    mapped = load_inrs(corpus_folder, in_memory_bytes=nbytes - 1)
    assert isinstance(loaded.train.rows, TensorRows)
    assert isinstance(mapped.train.rows, ShardRows)
    for name in ("train", "val", "test"):
        for key, tensor in getattr(loaded, name).rows.read_all().items():
            assert torch.equal(getattr(mapped, name).rows.read_all()[key], tensor)


# Figure and command


def test_figure_needs_the_images(corpus_folder: Path) -> None:
    with pytest.raises(ValueError, match="digits: the images that its networks were fitted to are not known"):
        draw_reconstructions(replace(load_inrs(corpus_folder), pixels=None), psnr)


def test_figure_has_images_above_their_reconstructions(corpus_folder: Path) -> None:
    corpus = load_inrs(corpus_folder)
    figure = draw_reconstructions(corpus, psnr)
    assert corpus.pixels is not None
    pixels = corpus.pixels[corpus.test.image]
    shown = corpus.siren.render(corpus.test.rows.read_all())
    decibels = psnr(shown, pixels)
    count = min(10, len(pixels))
    above, below = figure.axes[:count], figure.axes[count:]
    order = [float(ax.get_xlabel().removesuffix(" dB")) for ax in below]
    assert order == sorted(order)
    assert (order[0], order[-1]) == pytest.approx((float(decibels.min()), float(decibels.max())), abs=0.051)
    worst = int(decibels.argmin())
    for ax, image in ((above[0], pixels[worst]), (below[0], shown[worst])):
        np.testing.assert_array_equal(ax.get_images()[0].get_array(), image[0].clamp(0, 1).numpy())
    assert (above[0].get_ylabel(), below[0].get_ylabel()) == ("image", "network")
    assert f"{count} of {len(pixels)} test networks" in figure.get_suptitle()


def test_command_makes_a_corpus_of_colour_images_and_continues(tmp_path: Path) -> None:
    command = ["inr", "make", "--images", "crops", "--networks", "12", "--steps", "8", "--out", str(tmp_path)]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    assert "12 networks, 12 fitted in" in first.output
    assert "PSNR: min" in first.output
    figure = tmp_path / "reconstructions.png"
    assert figure.read_bytes().startswith(b"\x89PNG")
    corpus = load_inrs(tmp_path)
    assert corpus.siren == Siren((2, 32, 32, 3), 30.0, (3, 32, 32))
    assert corpus.info["config"]["steps"] == 8
    figure.unlink()
    second = CliRunner().invoke(app, command)
    assert "12 networks, all were there already" in second.output
    assert figure.exists()
    third = CliRunner().invoke(app, [*command, "--seed", "1"])
    assert third.exit_code == 2
    assert "seed is 0 there, 1 asked for" in third.output


@pytest.mark.parametrize("device", ["foo", "cuda:9"])
def test_devices_and_folders_are_checked_first(tmp_path: Path, device: str) -> None:
    (tmp_path / "file").touch()
    command = ["inr", "make", "--images", "digits", "--out"]
    for options, message in (
        ([str(tmp_path / "out"), "--device", device], f"device '{device}' is "),
        ([str(tmp_path / "file")], "is a file: give a folder for the results"),
        ([str(tmp_path / "file" / "in")], "is a file: give a folder for the results"),
    ):
        result = CliRunner().invoke(app, [*command, *options])
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())
        assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()
