"""INR corpora in the formats of nfn and DWSNets, whole and damaged."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from published_writers import (
    Marker,
    NfnSiren,
    edit,
    save,
    truncate,
    write_dws_fashion,
    write_dws_mnist,
    write_nfn,
)

from nfn_monomial.benchmarks.data.formats.base import CorpusError
from nfn_monomial.benchmarks.data.formats.checkpoints import FileRows
from nfn_monomial.benchmarks.data.formats.detection import load_inr
from nfn_monomial.benchmarks.data.rows import TensorRows
from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart, Siren

NUMBERS = (0, 3, 13, 44_999, 45_000, 49_999, 50_000, 60_001)
IMAGES = {
    "train": [("training", 5, 12), ("training", 0, 7), ("training", 3, 44)],
    "val": [("training", 1, 9)],
    "test": [("testing", 5, 12), ("testing", 2, 3)],
}
LABELS = {"train": [3, 1, 2, 0], "val": [9], "test": [4, 4]}
FIRST = "randinit_smaller_0s/net0.pth"
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
    return corpus.siren.render(part.rows.read_all())


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


def test_nfn_colour_images_have_32_pixels_a_side(tmp_path: Path) -> None:
    made = write_nfn(tmp_path, NUMBERS, hidden=5, channels=3)
    corpus = load_inr(tmp_path)
    assert corpus.siren.image == (3, 32, 32)
    network = made[tmp_path / FIRST]
    torch.testing.assert_close(images(corpus, corpus.train)[:1], expected([network], 32), atol=1e-4, rtol=0)


def test_augmented_fits_are_read_when_asked_for_and_only_then(nfn: Path) -> None:
    copies = {i: write_nfn(nfn, NUMBERS, f"randinit_smaller_aug{i}") for i in (10, 2)}
    plain = load_inr(nfn)
    assert len(plain.train) == 4
    corpus = load_inr(nfn, augmented=1)
    assert corpus.train.image.tolist() == [*NUMBERS[:4], *NUMBERS[:4]]
    assert (len(corpus.val), len(corpus.test)) == (2, 2), "validation and test networks are never augmented"
    own = [copies[2][nfn / f"randinit_smaller_aug2_{n % 10}s" / f"net{n}.pth"] for n in NUMBERS[:4]]
    torch.testing.assert_close(images(corpus, corpus.train)[4:], expected(own, 28), atol=1e-4, rtol=0)
    assert load_inr(nfn, augmented=2, limit=2).train.image.tolist() == [0, 3] * 3
    with pytest.raises(CorpusError, match=r"augmented is 3, .* randinit_smaller_aug2, randinit_smaller_aug10"):
        load_inr(nfn, augmented=3)


def test_large_sets_stay_in_their_files_and_give_the_same_networks(nfn: Path) -> None:
    held, lazy = load_inr(nfn), load_inr(nfn, in_memory_bytes=0)
    assert isinstance(held.train.rows, TensorRows)
    assert isinstance(lazy.train.rows, FileRows)
    assert (held.info["in_memory"], lazy.info["in_memory"]) == (True, False)
    index = torch.tensor([3, 0, 3])
    for name, tensor in lazy.train.rows.read(index).items():
        assert torch.equal(tensor, held.train.rows.read(index)[name])
    assert lazy.train.rows.shapes == held.train.rows.shapes
    assert lazy.train.rows.nbytes == held.train.rows.nbytes


def test_only_the_files_asked_for_are_opened(nfn: Path) -> None:
    rows = load_inr(nfn, in_memory_bytes=0).train.rows
    (nfn / SECOND).unlink()
    assert len(rows.read(torch.tensor([0, 2, 3]))["bias.0"]) == 3
    with pytest.raises(FileNotFoundError, match="net3"):
        rows.read(torch.tensor([1]))


def test_progress_counts_all_files(nfn: Path) -> None:
    seen: list[tuple[int, int]] = []
    load_inr(nfn, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n, len(NUMBERS)) for n in range(1, len(NUMBERS) + 1)]


Damage = Callable[[Path], object]
NAN = torch.full((8,), float("nan"))
DAMAGES: list[tuple[str, Damage, str]] = [
    ("truncated", truncate, r"net3\.pth is damaged"),
    ("empty", lambda p: p.write_bytes(b""), r"net3\.pth is damaged"),
    ("text", lambda p: p.write_text("<html>not found</html>", encoding="utf-8"), r"net3\.pth"),
    ("a list", lambda p: save([1, 2], p), r"net3\.pth holds a list, expected a state dict"),
    ("nothing", lambda p: save({}, p), r"net3\.pth is empty; expected net\.0\.linear\.weight"),
    ("NaN", lambda p: edit(p, net__0__linear__bias=NAN), r"net3\.pth: net\.0\.linear\.bias holds NaN"),
    ("no bias", lambda p: edit(p, net__2__bias=None), r"net3\.pth: net\.2\.bias is missing"),
    ("no weight", lambda p: edit(p, net__2__weight=None), r"net3\.pth: there is net\.2\.bias but no net\.2\.weight"),
    ("integers", lambda p: edit(p, net__2__bias=torch.ones(1).long()), r"net3\.pth: net\.2\.bias has dtype torch\.int"),
    ("no tensor", lambda p: edit(p, net__2__bias=0.5), r"net3\.pth: net\.2\.bias is 0.5, expected a dense tensor"),
    ("no vector", lambda p: edit(p, net__2__bias=torch.ones(1, 1)), r"net3\.pth: net\.2\.bias has shape \(1, 1\)"),
    ("other keys", lambda p: edit(p, epoch=torch.ones(1)), r"net3\.pth has keys epoch; expected net\.0\.linear"),
    (
        "a sine layer too many",
        lambda p: edit(p, net__2__weight=None, net__2__bias=None, net__2__linear__weight=torch.ones(1, 8),
                       net__2__linear__bias=torch.ones(1)),
        r"net3\.pth: layers net\.0\.linear, net\.1\.linear, net\.2\.linear, expected .* net\.2 ",
    ),
    ("a gap", lambda p: edit(p, net__1__linear__weight=None, net__1__linear__bias=None), r"net3\.pth: layers net\.0"),
    ("inputs", lambda p: edit(p, net__2__weight=torch.ones(1, 9)), r"net3\.pth: net\.2\.weight reads 9 inputs, .* 8"),
    ("rows", lambda p: edit(p, net__2__bias=torch.ones(2)), r"net3\.pth: net\.2\.bias has 2 entries, .* 1 rows"),
    (
        "another shape",
        lambda p: save(NfnSiren(9).state_dict(), p),
        r"net3\.pth: weight\.0 is \(9, 2\), expected \(8, 2\) as in .*net0\.pth",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), [d[1:] for d in DAMAGES], ids=[d[0] for d in DAMAGES])
@pytest.mark.parametrize("in_memory_bytes", [2**30, 0], ids=["memory", "files"])
def test_damaged_files_are_named(nfn: Path, damage: Damage, message: str, in_memory_bytes: int) -> None:
    damage(nfn / SECOND)
    with pytest.raises(CorpusError, match=message):
        load_inr(nfn, in_memory_bytes=in_memory_bytes).train.rows.read(torch.tensor([0, 1]))


@pytest.mark.parametrize("legacy", [False, True])
def test_code_in_a_file_is_refused_and_never_run(nfn: Path, tmp_path: Path, legacy: bool) -> None:
    marker = tmp_path / "marker"
    torch.save({"net.0.linear.weight": Marker(marker)}, nfn / SECOND, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CorpusError, match=r"net3\.pth: .*weight is <.*, not imported>, expected a dense tensor"):
        load_inr(nfn)
    assert not marker.exists()
    torch.load(nfn / SECOND, weights_only=False)
    assert marker.exists(), "the file does what it was made for when it is unpickled"


def test_missing_label_folders_are_named(nfn: Path) -> None:
    for place in ("randinit_smaller_4s", "randinit_smaller_9s"):
        (nfn / place).rmdir() if not any((nfn / place).iterdir()) else (nfn / place).rename(nfn / "elsewhere")
    with pytest.raises(CorpusError, match="label folders missing: randinit_smaller_4s, randinit_smaller_9s"):
        load_inr(nfn)
    with pytest.raises(CorpusError, match=r"label folders missing: .*prefixes found: randinit_smaller"):
        load_inr(nfn, prefix="randinit")


def test_a_number_in_two_classes_is_an_error(nfn: Path) -> None:
    (nfn / SECOND).rename(nfn / "randinit_smaller_7s" / "net13.pth")
    with pytest.raises(CorpusError, match=r"7s/net13\.pth and .*3s/net13\.pth have the same number 13"):
        load_inr(nfn)


def test_empty_parts_and_limits_are_errors(tmp_path: Path) -> None:
    write_nfn(tmp_path, (0, 1, 50_000))
    with pytest.raises(CorpusError, match="no network for val"):
        load_inr(tmp_path)
    with pytest.raises(CorpusError, match="limit is 0"):
        load_inr(tmp_path, limit=0)


def test_networks_of_anything_but_coordinates_are_refused(tmp_path: Path) -> None:
    for path in write_nfn(tmp_path, NUMBERS):
        edit(path, net__0__linear__weight=torch.ones(8, 3))
    with pytest.raises(CorpusError, match="layers of 3-8-8-1 neurons, expected linear ones from 2 coordinates"):
        load_inr(tmp_path)


# --- DWSNets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [False, True])
def test_dws_mnist_follows_the_split_file(tmp_path: Path, inside: bool) -> None:
    made = write_dws_mnist(tmp_path, IMAGES)
    corpus = load_inr(tmp_path / "mnist-inrs" if inside else tmp_path)
    assert corpus.siren == Siren((2, 8, 8, 1), 30.0, (1, 28, 28), gain=1.0, offset=0.5, column_first=True)
    assert corpus.classes == 6
    networks = iter(made.values())
    for part, found in (("train", corpus.train), ("val", corpus.val), ("test", corpus.test)):
        assert found.labels.tolist() == [label for _, label, _ in IMAGES[part]]
        own = expected([next(networks) for _ in IMAGES[part]], 28)
        torch.testing.assert_close(images(corpus, found), own, atol=1e-4, rtol=0)
    every = torch.cat([corpus.train.image, corpus.val.image, corpus.test.image]).tolist()
    assert len(set(every)) == len(every), "image 12 of class 5 is two images, for training and for testing"
    assert load_inr(tmp_path, limit=2).train.labels.tolist() == [5, 0]


def splits(folder: Path, change: Callable[[dict], object]) -> None:
    file = folder / "mnist_splits.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    change(found)
    file.write_text(json.dumps(found), encoding="utf-8")


def repeat(found: dict) -> None:
    for what in ("path", "label"):
        found["test"][what].append(found["train"][what][0])


SPLIT_DAMAGES: list[tuple[Callable[[dict], object], str]] = [
    (lambda s: s.pop("val"), r"mnist_splits\.json is damaged .*KeyError: 'val'.*: expected"),
    (lambda s: s["train"]["label"].pop(), r"mnist_splits\.json is damaged"),
    (lambda s: s["train"]["label"].__setitem__(0, "4"), r"mnist_png_training_5_12.* has label 4, .* folder says 5"),
    (lambda s: s["train"]["path"].__setitem__(0, "x/y.pth"), r"mnist_splits\.json: 'x/y\.pth' in train, expected"),
    (lambda s: s["train"]["path"].__setitem__(0, "mnist_png_training_5_12/../../../x"), r"\.\./x' in train, expected"),
    (repeat, r"mnist_png_training_5_12.* occurs twice, in train and test"),
]


@pytest.mark.parametrize(("change", "message"), SPLIT_DAMAGES)
def test_damaged_split_files_are_named(dws: Path, change: Callable[[dict], object], message: str) -> None:
    splits(dws, change)
    with pytest.raises(CorpusError, match=message):
        load_inr(dws)


def test_missing_split_files_and_networks_are_named(dws: Path, tmp_path: Path) -> None:
    (dws / "mnist_splits.json").rename(dws / "mine.json")
    with pytest.raises(CorpusError, match=r"file of splits is missing, looked for .*mnist-inrs/mnist_splits\.json"):
        load_inr(dws)
    assert len(load_inr(dws, splits=dws / "mine.json").train) == 3
    (dws / "mnist-inrs/mnist_png_testing_2_3/checkpoints/model_final.pth").unlink()
    with pytest.raises(
        CorpusError, match=r"testing_2_3.*model_final\.pth is missing, which .*mine\.json lists in test"
    ):
        load_inr(dws, splits=dws / "mine.json")


def test_split_files_that_are_cut_are_named(dws: Path) -> None:
    truncate(dws / "mnist_splits.json")
    with pytest.raises(CorpusError, match=r"mnist_splits\.json is damaged .*not JSON"):
        load_inr(dws)


def test_nfn_keys_in_a_dws_file_are_refused(dws: Path) -> None:
    path = dws / "mnist-inrs/mnist_png_training_0_7/checkpoints/model_final.pth"
    save(NfnSiren(8).state_dict(), path)
    with pytest.raises(CorpusError, match=r"model_final\.pth has keys net\.0.*expected seq\.0\.weight"):
        load_inr(dws)


@pytest.mark.parametrize("in_memory_bytes", [2**30, 0])
def test_dws_fashion_takes_labels_from_the_files(tmp_path: Path, in_memory_bytes: int) -> None:
    made = write_dws_fashion(tmp_path, LABELS | {"train": [*range(10), 3, 1]})
    corpus = load_inr(tmp_path, in_memory_bytes=in_memory_bytes)
    assert corpus.train.labels.tolist() == [*range(10), 3, 1], "model_10 follows model_9, not model_1"
    assert (corpus.val.labels.tolist(), corpus.test.labels.tolist()) == ([9], [4, 4])
    own = expected([made[tmp_path / "fmnist_inrs/test" / f"model_{i}.pth"] for i in range(2)], 28)
    torch.testing.assert_close(images(corpus, corpus.test), own, atol=1e-4, rtol=0)
    assert load_inr(tmp_path / "fmnist_inrs", limit=2).train.labels.tolist() == [0, 1]


def test_dws_fashion_damages_are_named(tmp_path: Path) -> None:
    write_dws_fashion(tmp_path, LABELS)
    broken = tmp_path / "fmnist_inrs/train/model_1.pth"
    for label, message in ((None, "label is None"), ("many", "label is 'many'"), (-1, "label is -1")):
        edit(broken, label=torch.tensor(0))
        edit(broken, label=label)
        with pytest.raises(CorpusError, match=rf"model_1\.pth: {message}, expected a whole number"):
            load_inr(tmp_path)
    (tmp_path / "fmnist_inrs/val").rename(tmp_path / "fmnist_inrs/other")
    with pytest.raises(CorpusError, match="fmnist_inrs: folders val missing"):
        load_inr(tmp_path)
