"""INR corpora in the formats of nfn and DWSNets, whole and damaged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from published_writers import (
    NfnSiren,
    edit,
    save,
    truncate,
    write_dws_fashion,
    write_dws_mnist,
    write_nfn,
)

from nfn_monomial.benchmarks.data.formats.base import CorpusError
from nfn_monomial.benchmarks.data.formats.detection import load_inr
from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart, Siren

NUMBERS = (0, 3, 13, 44_999, 45_000, 49_999, 50_000, 60_001)
IMAGES = {
    "train": [("training", 5, 12), ("training", 0, 7), ("training", 3, 44)],
    "val": [("training", 1, 9)],
    "test": [("testing", 5, 12), ("testing", 2, 3)],
}
LABELS = {"train": [3, 1, 2, 0], "val": [9], "test": [4, 4]}
SECOND = "randinit_smaller_3s/net3.pth"


@pytest.fixture
def nfn(tmp_path: Path) -> Path:
    folder = tmp_path / "siren_mnist_wts"
    write_nfn(folder, NUMBERS)
    return folder


@pytest.fixture
def dws(tmp_path: Path) -> Path:
    write_dws_mnist(tmp_path, IMAGES)
    return tmp_path


def images(corpus: InrCorpus, part: InrPart) -> torch.Tensor:
    return corpus.siren.render(part.tensors)


def expected(networks: list, size: int) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack([network.image(size) for network in networks])


# --- nfn -----------------------------------------------------------------------------------------------------------


def test_nfn_corpus_has_the_published_splits_labels_and_images(tmp_path: Path) -> None:
    folder = tmp_path / "siren_mnist_wts"
    made = {int(path.stem[3:]): network for path, network in write_nfn(folder, NUMBERS).items()}
    corpus = load_inr(folder)
    assert corpus.siren == Siren((2, 8, 8, 1), 30.0, (1, 28, 28))
    assert (corpus.name, corpus.classes) == ("siren_mnist_wts", 10)
    for part, numbers in ((corpus.train, NUMBERS[:4]), (corpus.val, NUMBERS[4:6]), (corpus.test, NUMBERS[6:])):
        assert part.image.tolist() == list(numbers)
        assert part.labels.tolist() == [n % 10 for n in numbers]
        torch.testing.assert_close(images(corpus, part), expected([made[n] for n in numbers], 28), atol=1e-4, rtol=0)
    wrong = load_inr(folder, omega_0=29.0)
    assert (images(wrong, wrong.train) - expected([made[n] for n in NUMBERS[:4]], 28)).abs().max() > 1e-2


def test_augmented_fits_are_read_when_asked_for_and_only_then(nfn: Path) -> None:
    copies = {i: write_nfn(nfn, NUMBERS, f"randinit_smaller_aug{i}") for i in (10, 2)}
    plain = load_inr(nfn)
    assert len(plain.train) == 4
    corpus = load_inr(nfn, augmented=1)
    assert corpus.train.image.tolist() == [*NUMBERS[:4], *NUMBERS[:4]]
    assert (len(corpus.val), len(corpus.test)) == (2, 2), "validation and test networks are never augmented"
    copied = [copies[2][nfn / f"randinit_smaller_aug2_{n % 10}s" / f"net{n}.pth"] for n in NUMBERS[:4]]
    torch.testing.assert_close(images(corpus, corpus.train)[4:], expected(copied, 28), atol=1e-4, rtol=0)
    assert load_inr(nfn, augmented=2, limit=2).train.image.tolist() == [0, 3] * 3
    with pytest.raises(CorpusError, match=r"augmented is 3, .* randinit_smaller_aug2, randinit_smaller_aug10"):
        load_inr(nfn, augmented=3)


def change(**tensors: Any) -> Callable[[Path], object]:
    return lambda folder: edit(folder / SECOND, **tensors)


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: truncate(f / SECOND), r"net3\.pth is damaged"),
    (lambda f: save({}, f / SECOND), r"net3\.pth is empty; expected net\.0\.linear\.weight"),
    (change(net__0__linear__bias=torch.full((8,), torch.nan)), r"net3\.pth: net\.0\.linear\.bias holds NaN"),
    (change(net__2__bias=None), r"net3\.pth: net\.2\.bias is missing"),
    (change(epoch=torch.ones(1)), r"net3\.pth has keys epoch; expected net\.0\.linear"),
    (
        change(net__2__weight=None, net__2__bias=None, net__2__linear__weight=torch.ones(1, 8),
               net__2__linear__bias=torch.ones(1)),
        r"net3\.pth: layers net\.0\.linear, net\.1\.linear, net\.2\.linear, expected .* net\.2 ",
    ),
    (
        lambda f: save(NfnSiren(9).state_dict(), f / SECOND),
        r"net3\.pth: weight\.0 is \(9, 2\), expected \(8, 2\) as in .*net0\.pth",
    ),
    (lambda f: (f / "randinit_smaller_4s").rmdir(), r"folders missing: randinit_smaller_4s .prefixes found: randinit"),
    (
        lambda f: (f / SECOND).rename(f / "randinit_smaller_7s" / "net13.pth"),
        r"7s/net13\.pth and .*3s/net13\.pth have the same number 13",
    ),
    (lambda f: [next(f.glob(f"*/net{n}.pth")).unlink() for n in NUMBERS[4:6]], "no network for val"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damage_is_named(nfn: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(nfn)
    with pytest.raises(CorpusError, match=message):
        load_inr(nfn)


# --- DWSNets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [False, True])
def test_dws_mnist_follows_the_split_file(tmp_path: Path, inside: bool) -> None:
    made = write_dws_mnist(tmp_path, IMAGES)
    corpus = load_inr(tmp_path / "mnist-inrs" if inside else tmp_path)
    assert corpus.siren == Siren((2, 8, 8, 1), 30.0, (1, 28, 28), gain=1.0, offset=0.5, column_first=True)
    assert corpus.classes == 6
    networks = iter(made.values())
    for part, networks_of_part in (("train", corpus.train), ("val", corpus.val), ("test", corpus.test)):
        assert networks_of_part.labels.tolist() == [label for _, label, _ in IMAGES[part]]
        shown = expected([next(networks) for _ in IMAGES[part]], 28)
        torch.testing.assert_close(images(corpus, networks_of_part), shown, atol=1e-4, rtol=0)
    every = torch.cat([corpus.train.image, corpus.val.image, corpus.test.image]).tolist()
    assert len(set(every)) == len(every), "image 12 of class 5 is two images, for training and for testing"
    assert load_inr(tmp_path, limit=2).train.labels.tolist() == [5, 0]


def splits(folder: Path, change: Callable[[dict], object]) -> None:
    file = folder / "mnist_splits.json"
    splits = json.loads(file.read_text(encoding="utf-8"))
    change(splits)
    file.write_text(json.dumps(splits), encoding="utf-8")


def repeat(splits: dict) -> None:
    for what in ("path", "label"):
        splits["test"][what].append(splits["train"][what][0])


SPLIT_DAMAGES: list[tuple[Callable[[dict], object], str]] = [
    (lambda s: s.pop("val"), r"mnist_splits\.json is damaged .*KeyError: 'val'.*: expected"),
    (lambda s: s["train"]["label"].__setitem__(0, "4"), r"mnist_png_training_5_12.* has label 4, .* folder says 5"),
    (lambda s: s["train"]["path"].__setitem__(0, "x/y.pth"), r"mnist_splits\.json: 'x/y\.pth' in train, expected"),
    (lambda s: s["train"]["path"].__setitem__(0, "mnist_png_training_5_12/../../../x"), r"\.\./x' in train, expected"),
    (repeat, r"mnist_png_training_5_12.* occurs twice, in train and test"),
]


@pytest.mark.parametrize(("damage", "message"), SPLIT_DAMAGES)
def test_damaged_split_files_are_named(dws: Path, damage: Callable[[dict], object], message: str) -> None:
    splits(dws, damage)
    with pytest.raises(CorpusError, match=message):
        load_inr(dws)


def test_dws_fashion_takes_labels_from_the_files(tmp_path: Path) -> None:
    made = write_dws_fashion(tmp_path, LABELS | {"train": [*range(10), 3, 1]})
    corpus = load_inr(tmp_path)
    assert corpus.train.labels.tolist() == [*range(10), 3, 1], "model_10 follows model_9, not model_1"
    assert (corpus.val.labels.tolist(), corpus.test.labels.tolist()) == ([9], [4, 4])
    shown = expected([made[tmp_path / "fmnist_inrs/test" / f"model_{i}.pth"] for i in range(2)], 28)
    torch.testing.assert_close(images(corpus, corpus.test), shown, atol=1e-4, rtol=0)
    assert load_inr(tmp_path / "fmnist_inrs", limit=2).train.labels.tolist() == [0, 1]


def test_dws_fashion_damages_are_named(tmp_path: Path) -> None:
    write_dws_fashion(tmp_path, LABELS)
    broken = tmp_path / "fmnist_inrs/train/model_1.pth"
    edit(broken, label="many")
    with pytest.raises(CorpusError, match=r"model_1\.pth: label is 'many', expected a whole number"):
        load_inr(tmp_path)
    (tmp_path / "fmnist_inrs/val").rename(tmp_path / "fmnist_inrs/other")
    with pytest.raises(CorpusError, match="fmnist_inrs: folders val missing"):
        load_inr(tmp_path)
